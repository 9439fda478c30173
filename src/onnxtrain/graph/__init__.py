"""What the stages work on: models of onnx-ir, the op builder, reading and writing, inference."""

from .builder import Constants as Constants
from .builder import Names as Names
from .builder import OpBuilder as OpBuilder
from .edit import Inputs as Inputs
from .edit import replace_outputs as replace_outputs
from .edit import set_outputs as set_outputs
from .io import ModelLike as ModelLike
from .io import load as load
from .io import to_proto as to_proto
from .schema import FLOATS as FLOATS
from .tensor import Dim as Dim
from .tensor import Tensor as Tensor
