"""The gradient rules, one file per family; importing this package registers them all."""

from . import elementwise as elementwise
from . import linear as linear
from . import reductions as reductions
