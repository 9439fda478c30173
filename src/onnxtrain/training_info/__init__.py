"""ONNX's own way to say how a model is trained: ``TrainingInfoProto``, and its operators.

A model file can hold, beside the network, a graph that does one step of training: the loss, a
``Gradient`` node, an update, and a list which output replaces which weight. No runtime executes
it. Here it is rewritten with standard operators and run by the stock onnxruntime:

    training = onnxtrain.training_info.Training("model.onnx")
    for x, y in batches:
        print(training.step({"x": x, "target": y})["loss"])
    training.save("trained.onnx")

`add` writes such a file for a model, a loss and an optimizer; `expand` rewrites the operators of
ai.onnx.preview.training (Gradient, Adam, Adagrad, Momentum) in any model.
"""

from __future__ import annotations

from .add import add
from .expand import expand
from .read import Algorithm, TrainingInfoError, read
from .training import Training

__all__ = ["Algorithm", "Training", "TrainingInfoError", "add", "expand", "read"]
