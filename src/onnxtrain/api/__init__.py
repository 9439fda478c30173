"""Training on a device: numpy and onnxruntime are all this needs."""

from ..runtime.module import Module as Module
from ..runtime.optimizer import Optimizer as Optimizer
from ..runtime.state import CheckpointState as CheckpointState
from ..runtime.state import Parameter as Parameter
from ..runtime.state import Parameters as Parameters
from ..runtime.state import Properties as Properties
