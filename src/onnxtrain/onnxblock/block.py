"""`Block`, in the module where it was."""

from ..graph.block import Block as Block
from ..graph.block import BlockError as BlockError
