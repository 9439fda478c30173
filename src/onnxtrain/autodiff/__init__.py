"""Stage 3: the reverse walk, the registry of rules, and the rules, one file per family."""

from . import rules as rules
from .differentiate import differentiate_model as differentiate_model
from .differentiate import reachable as reachable
from .recompute import recompute_activations as recompute_activations
from .segments import Recompute as Recompute
from .segments import RecomputeError as RecomputeError
from .segments import check_recompute as check_recompute
from .segments import kept_by_name as kept_by_name
