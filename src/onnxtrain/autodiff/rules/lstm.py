"""The plain LSTM, by hand: its loop and the loop of its gradient, laid out for speed.

States and gates are kept with features in rows and sequences in columns. A step is then one
product with the weights on the left, which onnxruntime reads as they lie; on the right it would
copy all of them into another order in every step. Gates are blocks of rows, so that splitting and
joining them copies whole blocks, and they stay in the order in which the model has its weights.

With gates i, f, o and candidate g, a step computes

    c = f·c⁻ + i·g,   h = o·tanh(c)

and with the gradients ḣ and ċ of h and c, those of what goes into the gates are

    ċ += ḣ·(o − h·tanh c),   i: ċ·(ig − ig·i),   f: ċ·(fc⁻ − fc⁻·f),   g: ċ·(i − ig·g),
    o: ḣ·(h − h·o),          ċ⁻ = ċ·f

where the factors in brackets come from products the forward step has anyway. They are computed for
all steps at once, and so are the gradients of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ...graph.infer_nodes import infer_nodes
from .. import bodies
from ..walk import Walk
from .gate_rows import Gates, find_gates
from .recurrent_layer import Layer, active_operands, put_in_place

Now: TypeAlias = Mapping[str, Tensor]
"""Slices of one step, or the stacks they come from, by name."""

Step: TypeAlias = Callable[[OpBuilder, Sequence[Tensor], Now], tuple[list[Tensor], Now]]

FEW = 16
"""With fewer sequences than the columns of a product's tile, rows of sequences are faster."""


def is_plain(node: ir.Node) -> bool:
    """Whether a node is an LSTM as most are, on a batch that is not known to be small."""
    if node.op_type != "LSTM" or "clip" in node.attributes or not _has_usual_activations(node):
        return False
    if node.attributes.get_int("input_forget", 0) or any(_has(node, i) for i in (4, 7)):
        return False
    x = node.inputs[0]
    if x is None or x.shape is None:
        return False
    batch = x.shape[0 if node.attributes.get_int("layout", 0) else 1]
    return not isinstance(batch, int) or batch >= FEW


def _has_usual_activations(node: ir.Node) -> bool:
    """Those that are meant where none are named; some exporters name them."""
    named = node.attributes.get("activations")
    usual = ("sigmoid", "tanh", "tanh")
    given = () if named is None else [name.lower() for name in named.as_strings()]
    return all(name == usual[i % 3] for i, name in enumerate(given))


def _has(node: ir.Node, operand: int) -> bool:
    return len(node.inputs) > operand and node.inputs[operand] is not None


def gradient(
    walk: Walk, node: ir.Node, dys: Sequence[Tensor | None]
) -> Iterable[tuple[ir.Value, Tensor]]:
    """Replace the node by loops that keep what their gradients need; the gradients."""
    op, scope = walk.op, walk.op.scope
    before, middle, after = (bodies.inside(op) for _ in range(3))
    for part in (before, middle, after):
        part.scope = node.name or node.op_type
    layer = Layer(before, node)
    loops = [_loop(before, middle, layer, d) for d in range(layer.count)]
    results = layer.results(after, [_by_rows(after, loop) for loop in loops])
    nodes = [*before.nodes, *middle.nodes, *after.nodes]
    infer_nodes(nodes, op.opset)
    behind = Walk(after.nodes, op, [v for loop in loops for v in loop.outputs], walk.stop)
    for result, dy in zip(results, dys):
        if dy is not None:
            behind.add(result.value, dy)
    operands = active_operands(walk, nodes)
    put_in_place(node, nodes, results)
    behind.run()
    ahead = Walk(before.nodes, op, operands, walk.stop)
    for loop in loops:
        op.scope = scope
        dys = [behind.take(v) for v in loop.outputs]
        for value, found in loop.gradients(op, *dys, of_x=layer.x.value in ahead.active):
            ahead.add(value, found)
    ahead.run()
    op.scope = scope
    return [(v, g) for v in ahead.wrt if (g := ahead.take(v)) is not None]


def _loop(before: OpBuilder, op: OpBuilder, layer: Layer, d: int) -> Loop:
    """One direction: operands in columns, and the loop over them."""
    gates = find_gates(before, layer, d)
    batch, size = layer.x.dim(1), layer.size
    x = before.transpose(layer.x, 0, 2, 1)
    x.value.shape = ir.Shape([layer.x.dim(0), layer.x.dim(2), batch])
    states = []
    for start in layer.starts(d):
        state = before.transpose(start, 1, 0)
        state.value.shape = ir.Shape([size, batch])
        states.append(state)
    return _forward(op, gates, x, states, layer.backwards[d])


def _by_rows(op: OpBuilder, loop: Loop) -> tuple[Tensor, list[Tensor]]:
    y, *finals = (op.tensor(v) for v in loop.outputs)
    return op.transpose(y, 0, 2, 1), [op.transpose(f, 1, 0) for f in finals]


@dataclass(frozen=True)
class Loop:
    """A loop over time that is built, and what its gradient needs.

    Attributes:
        gates: the weights.
        weights: those of input and state side by side.
        x, h0, c0: the other operands.
        outputs: h of all steps, the last h and the last c.
        kept: what the steps kept, by name, stacked.
        backwards: whether it starts at the last step.
    """

    gates: Gates
    weights: Tensor
    x: Tensor
    h0: Tensor
    c0: Tensor
    outputs: tuple[ir.Value, ir.Value, ir.Value]
    kept: dict[str, Tensor]
    backwards: bool

    def gradients(
        self,
        op: OpBuilder,
        dy: Tensor | None,
        dh: Tensor | None,
        dc: Tensor | None,
        *,
        of_x: bool,
    ) -> list[tuple[ir.Value, Tensor]]:
        """Gradients of the operands, given those of the outputs that have one."""
        first = len(op.nodes)
        w, r, bias = self.gates.w, self.gates.r, self.gates.bias
        widths = _widths(op, w, r)
        if of_x:  # parts of one: onnxruntime would make the Transpose part of a slower product
            turned = op.transpose(self.weights, 1, 0)
            w_turned, r_turned = op.many("Split", turned, widths, outputs=2, axis=0)
        else:
            r_turned = op.transpose(r, 1, 0)
        dz, dh0, dc0 = self._backward(op, r_turned, dy, dh, dc)
        columns = _side_by_side(op, dz)
        both = op.Gemm(columns, _side_by_side(op, self.kept["xh"]), transB=1)
        dw, dr = op.many("Split", both, widths, outputs=2, axis=1)
        found = [(w, dw), (r, dr), (self.h0, dh0), (self.c0, dc0)]
        if of_x:
            found.append((self.x, w_turned @ dz))
        if bias is not None:
            found.append((bias, op.ReduceSum(columns, [1], keepdims=0)))
        infer_nodes(op.nodes[first:], op.opset)
        return [(operand.value, made) for operand, made in found]

    def _backward(
        self,
        op: OpBuilder,
        r_turned: Tensor,
        dy: Tensor | None,
        dh: Tensor | None,
        dc: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """From the last step to the first: gradients of the gates and of the first states."""
        stacks = _factors(op, self.kept)
        if dy is not None:
            stacks["dy"] = dy

        def step(op: OpBuilder, states: Sequence[Tensor], now: Now) -> tuple[list[Tensor], Now]:
            dh, dc = states
            if "dy" in now:
                dh = op.Add(dh, now["dy"])
            dc = op.Add(dc, op.Mul(dh, now["c"]))
            parts = [op.Mul(dh if g == "o" else dc, now[f"to {g}"]) for g in self.gates.order]
            dz = op.Concat(*parts, axis=0)
            return [op.Gemm(r_turned, dz), op.Mul(dc, now["f"])], {"dz": dz}

        starts = [op.zeros_like(self.h0) if d is None else d for d in (dh, dc)]
        (dh0, dc0), made = _scan(op, starts, stacks, step, not self.backwards)
        return made["dz"], dh0, dc0


def _factors(op: OpBuilder, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the gradients of a step are multiplied with, for all steps."""
    i, f, o, g, ig, fc = (kept[k] for k in ("i", "f", "o", "g", "ig", "fc"))
    h, tanh_c = kept["h"], kept["tanh c"]
    return {
        "f": f,
        "c": op.Sub(o, op.Mul(h, tanh_c)),
        "to i": op.Sub(ig, op.Mul(ig, i)),
        "to f": op.Sub(fc, op.Mul(fc, f)),
        "to g": op.Sub(i, op.Mul(ig, g)),
        "to o": op.Sub(h, op.Mul(h, o)),
    }


def _widths(op: OpBuilder, w: Tensor, r: Tensor) -> Tensor:
    """Of the two blocks of columns, as Split wants them."""
    known = [d for d in (w.dim(1), r.dim(1)) if isinstance(d, int)]
    if len(known) == 2:
        return op.const(known)
    return op.Concat(op.dim_of(w, 1), op.dim_of(r, 1), axis=0)


def _side_by_side(op: OpBuilder, stack: Tensor) -> Tensor:
    """The columns of all steps in one matrix: [time, rows, batch] as [rows, time · batch]."""
    return op.Flatten(op.transpose(stack, 1, 0, 2), axis=1)


def _forward(
    op: OpBuilder, gates: Gates, x: Tensor, states: Sequence[Tensor], backwards: bool
) -> Loop:
    """The loop that computes h and c, and keeps what the gradient needs."""
    weights = op.Concat(gates.w, gates.r, axis=1)
    bias = None if gates.bias is None else op.Unsqueeze(gates.bias, [1])

    def step(op: OpBuilder, states: Sequence[Tensor], now: Now) -> tuple[list[Tensor], Now]:
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
        kept = {"h": h, "xh": xh, "i": i, "f": f, "o": o, "g": g, "ig": ig, "fc": fc}
        return [h, c], {**kept, "tanh c": tanh_c}

    finals, kept = _scan(op, states, {"x": x}, step, backwards)
    outputs = (kept["h"].value, finals[0].value, finals[1].value)
    return Loop(gates, weights, x, states[0], states[1], outputs, kept, backwards)


def _scan(
    op: OpBuilder, starts: Sequence[Tensor], stacks: Now, step: Step, backwards: bool
) -> tuple[Sequence[Tensor], dict[str, Tensor]]:
    """A loop over the first axis of stacks: the final states, and what the steps give, stacked.

    Args:
        op: builder of the graph that holds it.
        starts: the states before the first step.
        stacks: what the steps read, by name.
        step: (builder of the body, states, slices) → new states, and what is to be stacked.
        backwards: start at the end.
    """
    body = bodies.inside(op)
    body.scope = op.scope
    states = [bodies.body_input(body, f"{op.scope}/state", s.value) for s in starts]
    slices = {name: _slice(body, stack) for name, stack in stacks.items()}
    after, given = step(body, states, slices)
    outputs = bodies.body_outputs(body, [*after, *given.values()])
    graph = ir.Graph(
        [t.value for t in (*states, *slices.values())],
        outputs,
        nodes=body.nodes,
        name=op.names.fresh(f"{op.scope}/step"),
    )
    results = op.many(
        "Scan",
        *starts,
        *stacks.values(),
        outputs=len(outputs),
        body=graph,
        num_scan_inputs=len(stacks),
        scan_input_directions=[int(backwards)] * len(stacks),
        scan_output_directions=[int(backwards)] * len(given),
    )
    return results[: len(starts)], dict(zip(given, results[len(starts) :]))


def _slice(body: OpBuilder, stack: Tensor) -> Tensor:
    value = ir.Value(name=body.names.fresh(f"{stack.name}_now"), type=ir.TensorType(stack.dtype))
    if stack.shape is not None:
        value.shape = ir.Shape(stack.shape[1:])
    return body.tensor(value)
