"""Optimizers as chains of small transforms, built as ONNX graphs of standard operators.

    from onnxtrain import optim

    optimizer = optim.adamw(weight_decay=0.01, groups=[optim.Group("*.bias", weight_decay=0.0)])
    optimizer = optim.chain(optim.scale_by_adam(), optim.scale_by_learning_rate(), name="mine")

Either goes into `generate_artifacts(..., optimizer=optimizer)`.
"""

from .adafactor import scale_by_factored_rms as scale_by_factored_rms
from .build import append_update as append_update
from .build import describe as describe
from .build import flat_model as flat_model
from .build import sequence_model as sequence_model
from .build import tensor_model as tensor_model
from .build import update_all as update_all
from .linear import Linear as Linear
from .optimizer import ClipNorm as ClipNorm
from .optimizer import ClipValue as ClipValue
from .optimizer import Group as Group
from .optimizer import Optimizer as Optimizer
from .optimizer import OptimizerError as OptimizerError
from .optimizer import chain as chain
from .optimizers import adadelta as adadelta
from .optimizers import adafactor as adafactor
from .optimizers import adagrad as adagrad
from .optimizers import adam as adam
from .optimizers import adam_8bit as adam_8bit
from .optimizers import adamw as adamw
from .optimizers import adamw_8bit as adamw_8bit
from .optimizers import lamb as lamb
from .optimizers import lion as lion
from .optimizers import rmsprop as rmsprop
from .optimizers import sgd as sgd
from .recipes import OPERATORS as OPERATORS
from .recipes import RECIPES as RECIPES
from .recipes import Recipe as Recipe
from .recipes import from_operator as from_operator
from .transform import Context as Context
from .transform import Transform as Transform
from .transforms import add_decayed_weights as add_decayed_weights
from .transforms import clip_by_value as clip_by_value
from .transforms import scale_by_adadelta as scale_by_adadelta
from .transforms import scale_by_adam as scale_by_adam
from .transforms import scale_by_learning_rate as scale_by_learning_rate
from .transforms import scale_by_rms as scale_by_rms
from .transforms import scale_by_sign_of_momentum as scale_by_sign_of_momentum
from .transforms import scale_by_sum_of_squares as scale_by_sum_of_squares
from .transforms import scale_by_trust_ratio as scale_by_trust_ratio
from .transforms import shrink_updated_weights as shrink_updated_weights
from .transforms import subtract_decayed_weights as subtract_decayed_weights
from .transforms import trace as trace
