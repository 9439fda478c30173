"""Training on a device: numpy and onnxruntime are all this needs.

`Module`, `Optimizer`, `CheckpointState` and `LinearLRScheduler` have the names and behaviour of
onnxruntime-training's `api`; `Trainer` is the loop on top of them.
"""

from ..runtime.callbacks import Callback as Callback
from ..runtime.callbacks import EarlyStopping as EarlyStopping
from ..runtime.callbacks import Progress as Progress
from ..runtime.callbacks import SaveCheckpoint as SaveCheckpoint
from ..runtime.metrics import R2 as R2
from ..runtime.metrics import Accuracy as Accuracy
from ..runtime.metrics import MeanAbsoluteError as MeanAbsoluteError
from ..runtime.metrics import MeanSquaredError as MeanSquaredError
from ..runtime.metrics import Metric as Metric
from ..runtime.metrics import Perplexity as Perplexity
from ..runtime.metrics import TopK as TopK
from ..runtime.module import Module as Module
from ..runtime.optimizer import Optimizer as Optimizer
from ..runtime.schedulers import ConstantLR as ConstantLR
from ..runtime.schedulers import CosineAnnealingLR as CosineAnnealingLR
from ..runtime.schedulers import CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts
from ..runtime.schedulers import ExponentialLR as ExponentialLR
from ..runtime.schedulers import LinearLRScheduler as LinearLRScheduler
from ..runtime.schedulers import LRScheduler as LRScheduler
from ..runtime.schedulers import MultiStepLR as MultiStepLR
from ..runtime.schedulers import OneCycleLR as OneCycleLR
from ..runtime.schedulers import PolynomialLR as PolynomialLR
from ..runtime.schedulers import ReduceLROnPlateau as ReduceLROnPlateau
from ..runtime.schedulers import StepLR as StepLR
from ..runtime.schedulers import WarmUp as WarmUp
from ..runtime.state import CheckpointState as CheckpointState
from ..runtime.state import Parameter as Parameter
from ..runtime.state import Parameters as Parameters
from ..runtime.state import Properties as Properties
from ..runtime.trainer import History as History
from ..runtime.trainer import Trainer as Trainer
