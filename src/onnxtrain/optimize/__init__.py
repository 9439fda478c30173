"""Stage 4: the passes that leave no dead, duplicate or pointless node behind."""

from .passes import optimize as optimize
