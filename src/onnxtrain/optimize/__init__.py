"""Stage 4: the passes that leave no dead, duplicate or pointless node behind."""

from .columns import layers_in_columns as layers_in_columns
from .copies import copies_by_all_threads as copies_by_all_threads
from .passes import optimize as optimize
from .small_maps import small_maps_as_products as small_maps_as_products
