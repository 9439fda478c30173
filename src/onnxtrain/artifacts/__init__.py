"""Stage 5: the files that a device trains with."""

from .generate import LossType as LossType
from .generate import OptimType as OptimType
from .generate import generate_artifacts as generate_artifacts
