"""The elementary blocks under the name they had in onnxruntime-training 1.13 and 1.14."""

from .blocks import Abs as Abs
from .blocks import Add as Add
from .blocks import Block as Block
from .blocks import Cast as Cast
from .blocks import Clip as Clip
from .blocks import Constant as Constant
from .blocks import Div as Div
from .blocks import InputLike as InputLike
from .blocks import LabelEncoder as LabelEncoder
from .blocks import Linear as Linear
from .blocks import Log as Log
from .blocks import Mul as Mul
from .blocks import Neg as Neg
from .blocks import PassThrough as PassThrough
from .blocks import Pow as Pow
from .blocks import ReduceAllL2 as ReduceAllL2
from .blocks import ReduceMean as ReduceMean
from .blocks import ReduceSum as ReduceSum
from .blocks import SequenceConstruct as SequenceConstruct
from .blocks import Sigmoid as Sigmoid
from .blocks import Sub as Sub
