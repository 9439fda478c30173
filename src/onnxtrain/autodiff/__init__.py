"""Stage 3: the reverse walk, the registry of rules, and the rules, one file per family."""

from . import rules as rules
from .differentiate import differentiate_model as differentiate_model
from .differentiate import reachable as reachable
from .differentiate import walk_between as walk_between
