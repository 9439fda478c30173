"""What helps around training."""

from . import data as data
