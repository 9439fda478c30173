"""Training on a device: numpy and onnxruntime are all this needs.

`Module`, `Optimizer`, `CheckpointState` and `LinearLRScheduler` have the names and behaviour of
onnxruntime-training's `api`; `Trainer` is the loop on top of them.
"""

from ..runtime.loop.callbacks import Callback as Callback
from ..runtime.loop.callbacks import EarlyStopping as EarlyStopping
from ..runtime.loop.callbacks import Progress as Progress
from ..runtime.loop.callbacks import SaveCheckpoint as SaveCheckpoint
from ..runtime.loop.metrics import AUC as AUC
from ..runtime.loop.metrics import F1 as F1
from ..runtime.loop.metrics import R2 as R2
from ..runtime.loop.metrics import Accuracy as Accuracy
from ..runtime.loop.metrics import MeanAbsoluteError as MeanAbsoluteError
from ..runtime.loop.metrics import MeanSquaredError as MeanSquaredError
from ..runtime.loop.metrics import Metric as Metric
from ..runtime.loop.metrics import Perplexity as Perplexity
from ..runtime.loop.metrics import Precision as Precision
from ..runtime.loop.metrics import Recall as Recall
from ..runtime.loop.metrics import TopK as TopK
from ..runtime.loop.schedulers import ConstantLR as ConstantLR
from ..runtime.loop.schedulers import CosineAnnealingLR as CosineAnnealingLR
from ..runtime.loop.schedulers import CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts
from ..runtime.loop.schedulers import ExponentialLR as ExponentialLR
from ..runtime.loop.schedulers import LinearLRScheduler as LinearLRScheduler
from ..runtime.loop.schedulers import LRScheduler as LRScheduler
from ..runtime.loop.schedulers import MultiStepLR as MultiStepLR
from ..runtime.loop.schedulers import OneCycleLR as OneCycleLR
from ..runtime.loop.schedulers import PolynomialLR as PolynomialLR
from ..runtime.loop.schedulers import ReduceLROnPlateau as ReduceLROnPlateau
from ..runtime.loop.schedulers import StepLR as StepLR
from ..runtime.loop.schedulers import WarmUp as WarmUp
from ..runtime.loop.trainer import History as History
from ..runtime.loop.trainer import Trainer as Trainer
from ..runtime.state.checkpoint_state import CheckpointState as CheckpointState
from ..runtime.state.checkpoint_state import Parameter as Parameter
from ..runtime.state.checkpoint_state import Parameters as Parameters
from ..runtime.state.checkpoint_state import Properties as Properties
from ..runtime.step.module import Module as Module
from ..runtime.step.optimizer import Optimizer as Optimizer
