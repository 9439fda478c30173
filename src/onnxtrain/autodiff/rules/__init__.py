"""The gradient rules, one file per family; importing this package registers them all."""

from . import activations as activations
from . import control_flow as control_flow
from . import conv as conv
from . import deform as deform
from . import einsum as einsum
from . import elementwise as elementwise
from . import gridsample as gridsample
from . import indexing as indexing
from . import linear as linear
from . import loop as loop
from . import losses as losses
from . import lstm as lstm
from . import movement as movement
from . import normalization as normalization
from . import pool as pool
from . import quantization as quantization
from . import randomness as randomness
from . import reductions as reductions
from . import resize as resize
from . import roi as roi
from . import scan as scan
from . import sequence as sequence
from . import signal as signal
from . import softmax as softmax
from . import spatial as spatial
from . import stops as stops
