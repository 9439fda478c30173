"""Blocks that are stacked onto an ONNX model: losses, arithmetic, training and optimizer models.

with onnxblock.base(model):
    loss = my_training_block("output")
training_model, eval_model = my_training_block.to_model_proto()
"""

from . import blocks as blocks
from . import building_blocks as building_blocks
from . import loss as loss
from . import optim as optim
from .blocks import Block as Block
from .checkpoint_utils import load_checkpoint_to_model as load_checkpoint_to_model
from .checkpoint_utils import save_checkpoint as save_checkpoint
from .model_accessor import base as base
from .model_accessor import custom_op_library as custom_op_library
from .model_accessor import empty_base as empty_base
from .model_accessor import onnx_model as onnx_model
from .onnxblock import ForwardBlock as ForwardBlock
from .onnxblock import Model as Model
from .onnxblock import TrainingBlock as TrainingBlock
from .onnxblock import TrainingModel as TrainingModel

__all__ = [
    "Block", "ForwardBlock", "Model", "TrainingBlock", "TrainingModel", "base", "blocks",
    "building_blocks", "custom_op_library", "empty_base", "load_checkpoint_to_model", "loss",
    "onnx_model", "optim", "save_checkpoint",
]  # fmt: skip
