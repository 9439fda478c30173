"""From PyTorch: trainers that run a module's whole training step in stock onnxruntime.

from onnxtrain.torch import ORTTrainer, optim

trainer = ORTTrainer(model, model_desc, optim.AdamConfig(lr=1e-3), loss_fn=loss_fn)
loss, prediction = trainer.train_step(x, y)
"""

from ..compat.moved import also_at
from ..compat.ort.orttrainer import amp as amp
from ..compat.ort.orttrainer import checkpoint as checkpoint
from ..compat.ort.orttrainer import experimental as experimental
from ..compat.ort.orttrainer import optim as optim
from ..compat.ort.orttrainer import utils as utils
from ..compat.ort.orttrainer.base import ORTTrainer as ORTTrainer
from ..compat.ort.orttrainer.checkpoint import aggregate_checkpoints as aggregate_checkpoints
from ..compat.ort.orttrainer.descriptions import IODescription as IODescription
from ..compat.ort.orttrainer.descriptions import ModelDescription as ModelDescription
from ..compat.ort.orttrainer.descriptions import generate_sample as generate_sample
from ..compat.ort.orttrainer.options import ORTTrainerOptions as ORTTrainerOptions
from ..compat.ort.orttrainer.trainer_v1 import LossScaler as LossScaler
from ..compat.ort.orttrainer.trainer_v1 import ORTTrainerV1 as ORTTrainerV1
from ..compat.ort.orttrainer.trainer_v1 import load_checkpoint as load_checkpoint
from ..compat.ort.orttrainer.trainer_v1 import save_checkpoint as save_checkpoint
from ..compat.ort.orttrainer.trainer_v2 import ORTTrainerV2 as ORTTrainerV2
from ..compat.ort.orttrainer.trainer_v2 import TrainStepInfo as TrainStepInfo
from .debug_options import DebugOptions as DebugOptions
from .debug_options import LogLevel as LogLevel
from .fallback import FallbackPolicy as FallbackPolicy
from .fallback import ORTModuleFallbackException as ORTModuleFallbackException
from .first_result import ExportDifferenceWarning as ExportDifferenceWarning
from .ortmodule import ORTModule as ORTModule
from .value_reads import FixedValueWarning as FixedValueWarning

also_at(
    __name__,
    "onnxtrain.compat.ort.orttrainer",
    ("amp", "checkpoint", "descriptions", "experimental", "fused_adam", "lr_scheduler", "optim",
     "options", "trainer_v1", "trainer_v2", "utils", "utils.data"),
)  # fmt: skip
