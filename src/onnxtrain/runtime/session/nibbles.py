"""Weights of four bits that become floats: blocks, put side by side, and cut where they end.

`normalize/few_bits.py` writes them so: a block is a row with one scale, a Reshape makes rows of the
matrix of blocks, and a Slice drops what fills the last block of each row.
"""

from __future__ import annotations

from ..fusion.operators import NIBBLES, SIGN_BIT, UINT4
from .own_nodes import Node, if_sound
from .patterns import Nodes, Number, Opened, Result, Value, matches

BLOCKS = Result(
    "DequantizeLinear", (Value("codes"), Value("scales"), Value("zeros")), {"axis": 0}
)  # fmt: skip
SIDE_BY_SIDE = Result("Reshape", (BLOCKS, Value("shape")))
CUT = Result("Slice", (Value("rows"), Number((0,)), Value("end"), Number((1,))))


def unpacked(nodes: Nodes, node: Opened) -> Node | None:
    """A matrix of floats from constants of four bits, all of the blocks or cut."""
    bound = dict[str, str]()
    is_cut = matches(nodes, node.outputs[0], CUT, bound)
    if not matches(nodes, bound["rows"] if is_cut else node.outputs[0], SIDE_BY_SIDE, bound):
        return None
    shape, kind = nodes.constant(bound["shape"]), nodes.type_of(bound["codes"])
    if shape is None or len(shape.elements) != 2 or shape.elements[0] != -1:
        return None
    length = width = shape.elements[1]
    if is_cut:
        end = nodes.constant(bound["end"])
        width = end.elements[0] if end is not None and len(end.elements) == 1 else 0
    operator = NIBBLES.get(kind)
    if operator is None or nodes.type_of(bound["zeros"]) != kind:
        return None
    operands = (bound["codes"], bound["scales"], bound["zeros"])
    sign = 0 if kind == UINT4 else SIGN_BIT
    return if_sound(Node(operator, operands, node.outputs, (length, width, sign)))
