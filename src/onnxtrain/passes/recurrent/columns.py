"""Recurrent layers laid out for speed: loops in columns whose gradients are written by hand.

States and gates are kept with features in rows and sequences in columns. A step is then a
product with the weights on the left, which onnxruntime reads as they lie; on the right it would
copy all of them into another order in every step. Gates are blocks of rows, so that splitting and
joining them copies whole blocks, and they stay in the order in which the model has its weights.

The steps and their gradients are in `autodiff.recurrent_cells`, the loop is in
`autodiff.rules.recurrent`.
"""

from __future__ import annotations

import onnx_ir as ir

from ...autodiff.recurrent_cells import SLOPES, Cell, GruCell, LstmCell, Product, RnnCell
from ...autodiff.rules.recurrent import Lengths, recurrent_loop
from ...graph import OpBuilder, Tensor
from .cells import CELLS
from .gates import Gates, find_gates
from .layer import Layer
from .rows import steps_of_sequences

FEWEST_SEQUENCES = 16
"""With fewer sequences than the columns of a product's tile, rows of sequences are faster."""

NARROWEST = {"LSTM": 1, "GRU": 64, "RNN": 256}
"""Hidden sizes from which on a step copies so much of the weights that columns are faster.

32 sequences, time in columns ÷ in rows on one thread: GRU of 32 1.01, of 128 0.95; RNN of 32 1.25,
of 128 1.02, of 256 0.96. An LSTM, whose gradient by hand has fewer passes, gains at any size.
"""


NARROW = 16
"""Hidden size of an LSTM up to which the gates' gradients are scaled together, by one Mul.

One thread, 20 steps, 1 to 32 sequences: 0.91 to 0.96 of the time of four; 128 sequences of a hidden
size of 16: the same.
"""

ALWAYS, ALWAYS_WITH_LENGTHS = 8, 16
"""Hidden sizes of an LSTM up to which columns are as fast as rows with few sequences, too.

1, 4 and 8 sequences, time in columns ÷ in both forms under an If: hidden size 4 0.96, 1.00, 0.97; 8
0.94, 1.02, 0.97; 16 0.95, 1.09, 1.05 (with 16 to 128 sequences 0.85 to 0.91, without the If). What
ends a sequence is part of the factors in columns, and a Where for each state in rows: with lengths
and 4 sequences hidden sizes of 4, 8, 16 and 32 took 0.73, 0.75, 0.85 and 1.12 of the time of rows.
"""


def fewest_sequences(node: ir.Node) -> int:
    """How many sequences a layer has at least that is faster in columns."""
    has_lengths = len(node.inputs) > 4 and node.inputs[4] is not None
    widest = ALWAYS_WITH_LENGTHS if has_lengths else ALWAYS
    is_always = node.op_type == "LSTM" and node.attributes.get_int("hidden_size", 0) <= widest
    return 0 if is_always else FEWEST_SEQUENCES


def has_form(node: ir.Node) -> bool:
    """Whether a layer can be written in columns, and is not known to be faster in rows."""
    if node.attributes.get_int("input_forget", 0) or "clip" in node.attributes:
        return False
    if not _has_usual_activations(node):
        return False
    if node.attributes.get_int("hidden_size", 0) < NARROWEST[node.op_type]:
        return False
    x, axis = batch_axis(node)
    if x.shape is None:
        return False
    batch = x.shape[axis]
    return not isinstance(batch, int) or batch >= fewest_sequences(node)


def is_open(node: ir.Node) -> bool:
    """Whether the best form depends on a number of sequences that is known when the graph runs."""
    x, axis = batch_axis(node)
    is_known = x.shape is None or isinstance(x.shape[axis], int)
    return not is_known and fewest_sequences(node) > 0


def batch_axis(node: ir.Node) -> tuple[ir.Value, int]:
    """The input of a layer, and which of its axes counts sequences."""
    x = node.inputs[0]
    assert x is not None
    return x, 0 if node.attributes.get_int("layout", 0) else 1


def _has_usual_activations(node: ir.Node) -> bool:
    """Those that are meant where none are named (some exporters name them); any known for RNN."""
    named = node.attributes.get("activations")
    activations = () if named is None else [name.lower() for name in named.as_strings()]
    if node.op_type == "RNN":
        return all(name in SLOPES for name in activations)
    usual = [name.lower() for name in CELLS[node.op_type][2]]
    return all(name == usual[i % len(usual)] for i, name in enumerate(activations))


def write(op: OpBuilder, node: ir.Node) -> list[Tensor]:
    """The layer's Y, Y_h and, for an LSTM, Y_c."""
    layer = Layer(op, node)
    lengths = _lengths(op, layer)
    return layer.results(op, [_direction(op, layer, d, lengths) for d in range(layer.count)])


def _lengths(op: OpBuilder, layer: Layer) -> Lengths | None:
    steps = steps_of_sequences(op, layer)
    if steps is None:
        return None
    mask = op.Cast(op.Unsqueeze(steps, [1]), to=layer.x.dtype)
    mask.value.shape = ir.Shape([layer.x.dim(0), 1, layer.x.dim(1)])
    keep = op.Sub(op.like(1.0, mask), mask)
    keep.value.shape = mask.value.shape.copy()
    return Lengths(mask, keep)


def _direction(
    op: OpBuilder, layer: Layer, d: int, lengths: Lengths | None
) -> tuple[Tensor, list[Tensor]]:
    """One direction: h of all steps, and the final states, in rows again."""
    cell = _cell(op, layer, d)
    x = op.transpose(layer.x, 0, 2, 1)
    x.value.shape = ir.Shape([layer.x.dim(0), layer.x.dim(2), layer.x.dim(1)])
    states = layer.starts(d, in_columns=True)
    y, finals = recurrent_loop(op, cell, x, states, lengths, layer.backwards[d])
    return op.transpose(y, 0, 2, 1), [op.transpose(f, 1, 0) for f in finals]


def _cell(op: OpBuilder, layer: Layer, d: int) -> Cell:
    gates = find_gates(op, layer, d)
    if layer.node.op_type == "GRU":
        return _gru(op, layer, gates)
    if layer.node.op_type == "RNN":
        of_x = Product.of(op, "x", gates.w, None, None, result="z")
        of_h = Product.of(op, "h", None, gates.r, gates.bias(op), result="z")
        return RnnCell(of_x, of_h, layer.activations[d])
    product = Product.of(op, "gates", gates.w, gates.r, gates.bias(op))
    peepholes = layer.peepholes(d)
    columns = {gate: op.Unsqueeze(p, [1]) for gate, p in peepholes.items()}
    is_narrow = layer.size <= NARROW
    return LstmCell(product, gates.order, peepholes, columns, is_narrow=is_narrow)


def _gru(op: OpBuilder, layer: Layer, gates: Gates) -> Cell:
    """Gates and candidate are products of their own, the second reads what the first gives."""
    sizes = op.const([2 * layer.size, layer.size])
    w, r, *biases = (
        op.many("Split", t, sizes, outputs=2, axis=0) for t in (gates.w, gates.r, *gates.biases)
    )
    both = Product.of(op, "gates", w[0], r[0], op.Add(*(b[0] for b in biases)) if biases else None)
    of_x, of_h = (b[1] for b in biases) if biases else (None, None)
    if layer.flags.get("linear_before_reset"):
        new = [
            Product.of(op, "candidate of x", w[1], None, of_x),
            Product.of(op, "candidate of h", None, r[1], of_h),
        ]
    else:
        bias = None if of_x is None or of_h is None else op.Add(of_x, of_h)
        new = [Product.of(op, "candidate", w[1], r[1], bias)]
    return GruCell(both, new, gates.order[:2])
