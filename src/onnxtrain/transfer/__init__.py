"""Transfer learning: a trained model with a classifier for other classes.

    head = transfer.new_head("photo.onnx", ["cat", "dog", "owl"])
    onnxtrain.generate_artifacts(head.model, requires_grad=head.parameters,
                                 loss=…, loss_input_names=[head.scores], …)

Only the new classifier is trained then. What comes before it gives the same numbers for an image
in every epoch, so they can be computed once:

    features = transfer.Features(head)({"image": images})
    onnxtrain.generate_artifacts(transfer.head_model(head, features.shape), …)
    …                                                    train on the features
    transfer.with_weights(head.model, trainer.state, "trained.onnx")
"""

from __future__ import annotations

from ..text.weights import with_weights as with_weights
from .features import Features as Features
from .features import head_model as head_model
from .front import Normalization as Normalization
from .front import normalization as normalization
from .head import CLASS_NAMES as CLASS_NAMES
from .head import NewHead as NewHead
from .head import new_head as new_head
