"""Stage 3: the reverse walk, the registry of rules, and the rules, one file per family.

Differentiating appends the backward half and leaves the forward graph alone. It may ask a forward
node for more of its results: outputs that the operator has (indices, a mask), or values of its
body, which then become outputs of the body (a Loop whose iterations differ in shape carries them
along in sequences). It never changes what the forward graph computes, and never replaces, removes
or renames a node: a pass does that, before (`passes.BEFORE`).
"""

from . import rules as rules
from .differentiate import differentiate_model as differentiate_model
from .differentiate import reachable as reachable
from .differentiate import walk_between as walk_between
