"""Stage 4: the passes. Each takes a model and gives a model."""

from .cleanup import optimize as optimize
from .columns import layers_in_columns as layers_in_columns
from .copies import copies_by_all_threads as copies_by_all_threads
from .recompute import recompute_activations as recompute_activations
from .segments import Recompute as Recompute
from .segments import RecomputeError as RecomputeError
from .segments import check_recompute as check_recompute
from .segments import kept_by_name as kept_by_name
from .small_maps import small_maps_as_products as small_maps_as_products
