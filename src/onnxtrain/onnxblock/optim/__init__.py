"""Optimizer blocks: they build the optimizer model with its sequences of tensors."""

from . import optim as _blocks
from .optim import SGD as SGD
from .optim import Adadelta as Adadelta
from .optim import Adafactor as Adafactor
from .optim import Adagrad as Adagrad
from .optim import Adam as Adam
from .optim import AdamW as AdamW
from .optim import ClipGradNorm as ClipGradNorm
from .optim import ClipGradValue as ClipGradValue
from .optim import Custom as Custom
from .optim import Lamb as Lamb
from .optim import Lion as Lion
from .optim import OptimizerBlock as OptimizerBlock
from .optim import RMSprop as RMSprop


def __getattr__(block: str) -> type[OptimizerBlock]:
    return _blocks.__getattr__(block)
