"""Stage 1: whatever comes in leaves as one opset, constants lifted, functions inlined, typed."""

from ..graph.schema import MAX_IR as MAX_IR
from ..graph.schema import MAX_OPSET as MAX_OPSET
from ..graph.schema import MIN_OPSET as MIN_OPSET
from .constants import lift_constants as lift_constants
from .normalize import normalize as normalize
