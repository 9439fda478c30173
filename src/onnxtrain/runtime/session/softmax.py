"""A softmax that is written out along an axis, and gradients, as one node of our own.

`passes/across.py` has marked the nodes; what they compute is read from them.
"""

from __future__ import annotations

from ..fusion.operators import SOFTMAX_ACROSS, SOFTMAX_GRADIENT_ACROSS, Operator
from .own_nodes import Node, if_sound
from .patterns import Nodes, Opened, Pattern, Result, Value, matches

X, Y, DY, AXES = Value("x"), Value("y"), Value("dy"), Value("axes")


def _sum(of: Pattern) -> Result:
    return Result("ReduceSum", (of, AXES))


def _below(name: str = "") -> Result:
    return Result("Sub", (X, Result("ReduceMax", (X, AXES))), name=name)


E = Result("Exp", (_below(),), name="e")
SOFTMAX = Result("Div", (E, _sum(Value("e"))))
LOG_SOFTMAX = Result(
    "Sub", (_below("below"), Result("Log", (_sum(Result("Exp", (Value("below"),))),)))
)
GRADIENT = Result("Mul", (Y, Result("Sub", (DY, _sum(Result("Mul", (DY, Y)))))))
LOG_GRADIENT = Result("Sub", (DY, Result("Mul", (Result("Exp", (Y,)), _sum(DY)))))

FORMS: tuple[tuple[Result, Operator, tuple[str, ...], int], ...] = (
    (SOFTMAX, SOFTMAX_ACROSS, ("x",), 0),
    (LOG_SOFTMAX, SOFTMAX_ACROSS, ("x",), 1),
    (GRADIENT, SOFTMAX_GRADIENT_ACROSS, ("dy", "y"), 0),
    (LOG_GRADIENT, SOFTMAX_GRADIENT_ACROSS, ("dy", "y"), 1),
)
"""Formula, operator, its operands, and whether it is of the logarithm."""


def written_softmax(nodes: Nodes, node: Opened) -> Node | None:
    """The node for a formula whose last node this is."""
    for pattern, operator, operands, is_log in FORMS:
        bound = dict[str, str]()
        if not matches(nodes, node.outputs[0], pattern, bound):
            continue
        axes = nodes.constant(bound["axes"])
        if axes is None or len(axes.elements) != 1:
            return None
        numbers = (axes.elements[0], is_log)
        return if_sound(Node(operator, tuple(bound[n] for n in operands), node.outputs, numbers))
    return None
