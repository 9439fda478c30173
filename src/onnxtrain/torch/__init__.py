"""From PyTorch: trainers that run a module's whole training step in stock onnxruntime.

from onnxtrain.torch import ORTTrainer, optim

trainer = ORTTrainer(model, model_desc, optim.AdamConfig(lr=1e-3), loss_fn=loss_fn)
loss, prediction = trainer.train_step(x, y)
"""

from . import amp as amp
from . import checkpoint as checkpoint
from . import experimental as experimental
from . import optim as optim
from . import utils as utils
from .base import ORTTrainer as ORTTrainer
from .checkpoint import aggregate_checkpoints as aggregate_checkpoints
from .debug_options import DebugOptions as DebugOptions
from .debug_options import LogLevel as LogLevel
from .descriptions import IODescription as IODescription
from .descriptions import ModelDescription as ModelDescription
from .descriptions import generate_sample as generate_sample
from .fallback import FallbackPolicy as FallbackPolicy
from .fallback import ORTModuleFallbackException as ORTModuleFallbackException
from .options import ORTTrainerOptions as ORTTrainerOptions
from .ortmodule import ORTModule as ORTModule
from .trainer_v1 import LossScaler as LossScaler
from .trainer_v1 import ORTTrainerV1 as ORTTrainerV1
from .trainer_v1 import load_checkpoint as load_checkpoint
from .trainer_v1 import save_checkpoint as save_checkpoint
from .trainer_v2 import ORTTrainerV2 as ORTTrainerV2
from .trainer_v2 import TrainStepInfo as TrainStepInfo
