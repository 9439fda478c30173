"""The plain LSTM, by hand: a loop that is laid out for speed, and whose gradient is too.

States and gates are kept with features in rows and sequences in columns. A step is then one
product with the weights on the left, which onnxruntime reads as they lie; on the right it would
copy all of them into another order in every step. Gates are blocks of rows, so that splitting and
joining them copies whole blocks, and they stay in the order in which the model has its weights.

The loop returns what its gradient (`autodiff.rules.lstm`) reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ...autodiff.bodies import Slices, scan
from ...autodiff.rules.lstm import LstmLoop, declare_loop, factors_of
from ...graph import OpBuilder, Tensor
from .gates import Gates, find_gates
from .layer import Layer

FEWEST_SEQUENCES = 16
"""With fewer sequences than the columns of a product's tile, rows of sequences are faster."""


def is_plain(node: ir.Node) -> bool:
    """Whether a node is an LSTM as most are, on a batch that is not known to be small."""
    if node.op_type != "LSTM" or "clip" in node.attributes or not _has_usual_activations(node):
        return False
    if node.attributes.get_int("input_forget", 0) or any(_has(node, i) for i in (4, 7)):
        return False
    x, axis = batch_axis(node)
    if x.shape is None:
        return False
    batch = x.shape[axis]
    return not isinstance(batch, int) or batch >= FEWEST_SEQUENCES


def is_open(node: ir.Node) -> bool:
    """Whether the number of sequences is only known when the graph runs."""
    x, axis = batch_axis(node)
    return x.shape is not None and not isinstance(x.shape[axis], int)


def batch_axis(node: ir.Node) -> tuple[ir.Value, int]:
    """The input of a layer, and which of its axes counts sequences."""
    x = node.inputs[0]
    assert x is not None
    return x, 0 if node.attributes.get_int("layout", 0) else 1


def _has_usual_activations(node: ir.Node) -> bool:
    """Those that are meant where none are named; some exporters name them."""
    named = node.attributes.get("activations")
    usual = ("sigmoid", "tanh", "tanh")
    activations = () if named is None else [name.lower() for name in named.as_strings()]
    return all(name == usual[i % 3] for i, name in enumerate(activations))


def _has(node: ir.Node, operand: int) -> bool:
    return len(node.inputs) > operand and node.inputs[operand] is not None


def write(op: OpBuilder, node: ir.Node) -> list[Tensor]:
    """The layer's Y, Y_h and Y_c."""
    layer = Layer(op, node)
    return layer.results(op, [_direction(op, layer, d) for d in range(layer.count)])


def _direction(op: OpBuilder, layer: Layer, d: int) -> tuple[Tensor, list[Tensor]]:
    """One direction: h of all steps, and the final states, in rows again."""
    gates = find_gates(op, layer, d)
    batch, size = layer.x.dim(1), layer.size
    x = op.transpose(layer.x, 0, 2, 1)
    x.value.shape = ir.Shape([layer.x.dim(0), layer.x.dim(2), batch])
    states = []
    for start in layer.starts(d):
        state = op.transpose(start, 1, 0)
        state.value.shape = ir.Shape([size, batch])
        states.append(state)
    y, *finals = _loop(op, gates, x, states, layer.backwards[d])
    return op.transpose(y, 0, 2, 1), [op.transpose(f, 1, 0) for f in finals]


def _loop(
    op: OpBuilder, gates: Gates, x: Tensor, states: Sequence[Tensor], backwards: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The loop that computes h and c, and keeps what the gradient needs; h, last h and last c."""
    weights = op.Concat(gates.w, gates.r, axis=1)
    bias = None if gates.bias is None else op.Unsqueeze(gates.bias, [1])

    def step(
        op: OpBuilder, states: Sequence[Tensor], now: Slices
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        h, c = states
        xh = op.Concat(now["x"], h, axis=0)
        z = op.many("Split", op.Gemm(weights, xh, bias), outputs=4, axis=0, num_outputs=4)
        by_name = dict(zip(gates.order, z))
        i, f, o = (op.Sigmoid(by_name[k]) for k in "ifo")
        g = op.Tanh(by_name["g"])
        fc, ig = f * c, i * g
        c = fc + ig
        tanh_c = op.Tanh(c)
        h = o * tanh_c
        stacks = {"h": h, "xh": xh, "i": i, "f": f, "o": o, "g": g, "ig": ig, "fc": fc}
        return [h, c], {**stacks, "tanh c": tanh_c}

    (h, c), stacks = scan(op, states, {"x": x}, step, backwards)
    h0, c0 = states
    declare_loop(
        LstmLoop(
            gates.w,
            gates.r,
            gates.bias,
            gates.order,
            weights,
            x,
            h0,
            c0,
            stacks["h"],
            stacks["xh"],
            factors_of(op, stacks),
            backwards,
        )
    )
    return stacks["h"], h, c
