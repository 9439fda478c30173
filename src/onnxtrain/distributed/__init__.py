"""Data-parallel training: several processes, one model.

Every process (*rank*) holds the whole model and works on its part of each batch; gradients are one
flat buffer, so one all-reduce per step makes the ranks agree. ``Trainer(distributed="mpi")`` is all
a script needs; this package holds what stands behind it.
"""

from .backend import Backend as Backend
from .backend import Single as Single
from .connect import connect as connect
from .connect import detect as detect
from .parallel import DataParallel as DataParallel
from .sampler import ShardedBatches as ShardedBatches
from .sampler import share as share
