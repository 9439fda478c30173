"""Stage 1: whatever comes in leaves as one opset, constants lifted, functions inlined, typed."""

from .constants import lift_constants as lift_constants
from .normalize import MAX_IR as MAX_IR
from .normalize import MAX_OPSET as MAX_OPSET
from .normalize import MIN_OPSET as MIN_OPSET
from .normalize import normalize as normalize
