"""Learning-rate schedules: ``schedulers.OneCycleLR(optimizer, …)``. The device half has them."""

from .runtime.loop.schedulers import ConstantLR as ConstantLR
from .runtime.loop.schedulers import CosineAnnealingLR as CosineAnnealingLR
from .runtime.loop.schedulers import CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts
from .runtime.loop.schedulers import ExponentialLR as ExponentialLR
from .runtime.loop.schedulers import LinearLRScheduler as LinearLRScheduler
from .runtime.loop.schedulers import LRScheduler as LRScheduler
from .runtime.loop.schedulers import MultiStepLR as MultiStepLR
from .runtime.loop.schedulers import OneCycleLR as OneCycleLR
from .runtime.loop.schedulers import PolynomialLR as PolynomialLR
from .runtime.loop.schedulers import ReduceLROnPlateau as ReduceLROnPlateau
from .runtime.loop.schedulers import StepLR as StepLR
from .runtime.loop.schedulers import WarmUp as WarmUp
