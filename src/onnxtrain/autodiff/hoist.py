"""Move work of a backward Scan out of its body, where one big operation replaces many small ones.

Before the loop: element-wise operations on values that the forward Scan stacked, the factors of
derivatives for instance, are computed for all iterations at once. After the loop: the gradient of
a captured weight, a sum over iterations of matrix products, is one product of stacked factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ..graph import Dim, OpBuilder, Tensor
from ..graph.subgraphs import live_nodes, subgraphs, used_values
from ..graph.tensor import dims_of
from ..operators import ELEMENTWISE
from . import bodies
from .loops import Backward, Port, typed


@dataclass(frozen=True)
class Stack:
    """What a value of the body is for all iterations: a tensor with one more axis in front.

    Attributes:
        whole: the tensor outside.
        rank: number of dimensions of one slice.
        backwards: in which direction the loop reads it.
        shape: dimensions of one slice, None when they are not all known.
    """

    whole: Tensor
    rank: int
    backwards: bool
    shape: tuple[Dim, ...] | None

    def fits(self, other: Stack) -> bool:
        """Whether element-wise operations on slices may be done on the wholes."""
        return (self.rank, self.backwards) == (other.rank, other.backwards)


def stacks_of(op: OpBuilder, back: Backward) -> dict[ir.Value, Stack]:
    """The stacks a backward body reads, by the value that stands for a slice."""
    return {
        p.inner: Stack(op.tensor(p.outer), len(p.inner.shape), p.backwards, known_dims(p.inner))
        for p in back.reads
        if p.axis == 0 and p.outer is not None and p.inner.shape is not None
    }


def known_dims(value: ir.Value) -> tuple[Dim, ...] | None:
    """Dimensions when each has a number or a name."""
    dims = dims_of(value)
    return None if dims is None or None in dims else dims


def out_of_the_loop(op: OpBuilder, back: Backward, inputs: Iterable[ir.Value] = ()) -> None:
    """Move nodes that read outer values only to the outer graph: they run once.

    Args:
        op: builder of the outer graph.
        back: the backward body.
        inputs: further values that change with every iteration.
    """
    changing = {o for n in back.op.nodes for o in n.outputs}
    changing.update(b.value for _, b, _ in back.states)
    changing.update(p.inner for p in back.reads)
    changing.update((*back.locals, *inputs))
    inside = []
    for node in back.op.nodes:
        if subgraphs(node) or any(v in changing for v in used_values([node])):
            inside.append(node)
        else:
            changing.difference_update(node.outputs)
            op.nodes.append(node)
    back.op.nodes[:] = inside


def before_the_loop(op: OpBuilder, back: Backward) -> None:
    """Compute element-wise functions of stacked values outside, for all iterations at once."""
    stacks = stacks_of(op, back)
    local = {o for n in back.op.nodes for o in n.outputs}
    local.update(b.value for _, b, _ in back.states)
    local.update(p.inner for p in back.reads)
    moved: dict[ir.Value, Stack] = {}
    inside: list[ir.Node] = []
    for node in back.op.nodes:
        stack = _moved(op, node, {**stacks, **moved}, local)
        if stack is None:
            inside.append(node)
        else:
            moved[node.outputs[0]] = stack
    used = used_values(inside)
    used.update((r.value, None) for r in back.results())
    back.op.nodes[:] = inside
    for value, stack in moved.items():
        if value in used:
            inner = bodies.body_input(back.op, f"{value.name}_then", value)
            inner.value.shape = ir.Shape(stack.shape or [None] * stack.rank)
            back.reads.append(Port(stack.whole.value, inner.value, 0, stack.backwards))
            back.replace(value, inner.value)


def _moved(
    op: OpBuilder, node: ir.Node, stacks: dict[ir.Value, Stack], local: set[ir.Value]
) -> Stack | None:
    """The node applied to whole stacks, if that means the same."""
    if node.op_type not in ELEMENTWISE or node.domain or len(node.outputs) != 1:
        return None
    inputs = [v for v in node.inputs if v is not None]
    sliced = [stacks[v] for v in inputs if v in stacks]
    others = [v for v in inputs if v not in stacks]
    if not sliced or not all(sliced[0].fits(s) for s in sliced):
        return None
    rank = sliced[0].rank
    if any(v in local or v.shape is None or len(v.shape) > rank for v in others):
        return None
    operands = [
        None if v is None else stacks[v].whole if v in stacks else op.tensor(v) for v in node.inputs
    ]
    attributes = {k: a.value for k, a in node.attributes.items()}
    whole = op.emit(node.op_type, operands, 1, **attributes)[0]
    whole.value.type = node.outputs[0].type
    shape = sliced[0].shape
    if any(s.shape != shape for s in sliced) or any(v.shape is None or v.shape for v in others):
        shape = None  # something was broadcast, perhaps
    return Stack(whole, rank, sliced[0].backwards, shape)


@dataclass
class After:
    """Sums over iterations that are taken after the loop.

    Attributes:
        backwards: whether the stacks are written from their ends.
        stacked: values of the backward body that are to be stacked for it.
        terms: captured value, how its gradient is made, and the factors: a stack that exists
            already, or a position in `stacked`; negative ones count back from it into the stacks
            that the loop writes before them.
    """

    backwards: bool
    stacked: list[Tensor] = field(default_factory=list)
    terms: list[tuple[ir.Value, ir.Node, list[ir.Value | int]]] = field(default_factory=list)

    def finish(
        self, op: OpBuilder, written: Sequence[Tensor], before: int
    ) -> list[tuple[ir.Value, Tensor]]:
        """The gradients, from the stacks that the loop wrote, `before` of them for others."""
        gradients = []
        for stack, inner in zip(written[before:], self.stacked):
            typed(stack, inner.value, 0)
        for value, node, factors in self.terms:
            whole = [written[before + f] if isinstance(f, int) else op.tensor(f) for f in factors]
            op.scope = f"{value.name}_grad"
            gradients.append((value, _sum_over_time(op, node, whole)))
        return gradients


def _sum_over_time(op: OpBuilder, node: ir.Node, whole: list[Tensor]) -> Tensor:
    if len(whole) == 1 and node.op_type == "MatMul":  # a row of ones times the rows: their sum
        return op.ReduceSum(op.Flatten(whole[0], axis=2), [0], keepdims=0)
    if node.op_type == "ReduceSum":
        axes = _axes(node) or []
        moved = [0, *(a + 1 if a >= 0 else a for a in axes)]
        return op.ReduceSum(whole[0], moved, keepdims=0)
    # Σₜ aₜᵀ·bₜ = Aᵀ·B with the iterations laid out below each other
    return op.Gemm(_rows(op, whole[0]), _rows(op, whole[1]), transA=1)


def _rows(op: OpBuilder, stack: Tensor) -> Tensor:
    """The rows of all iterations, as the gradient of a Reshape that made the stack has them."""
    width = None if stack.shape is None else stack.dim(-1)
    if isinstance(width, int) and width > 0:
        return op.Reshape(stack, op.const([-1, width]))
    return op.Flatten(stack, axis=2)


def after_the_loop(back: Backward) -> After:
    """Find sums over iterations of products or of reductions, and take them out of the body.

    Stacks that are multiplied with one another have the iterations in one order, that in which
    the loop reads most of what it reads.
    """
    after = After(_reads_backwards(back))
    producers = {o: n for n in back.op.nodes for o in n.outputs}
    existing: dict[ir.Value, ir.Value | int] = {
        p.inner: p.outer
        for p in back.reads
        if p.axis == 0 and p.backwards == after.backwards and p.outer is not None
    }
    for index, (port, gradient) in enumerate(back.slices):
        if port.axis == 0 and port.backwards != after.backwards:  # the loop writes it anyway
            existing.setdefault(gradient.value, index - len(back.slices))
    left: list[tuple[ir.Value, Tensor]] = []
    for value, gradient in back.sums:
        rest = _split(after, back.op, value, gradient.value, producers, existing)
        left.extend((value, back.op.tensor(r)) for r in rest)
    if after.terms:
        back.sums = left
        results = [*back.results(), *after.stacked]
        back.op.nodes[:] = live_nodes(back.op.nodes, [r.value for r in results])
    return after


def _reads_backwards(back: Backward) -> bool:
    """In which direction a backward loop reads its stacks; the usual one where it reads both."""
    return any(p.backwards for p in back.reads) or not back.reads


def _split(
    after: After,
    op: OpBuilder,
    value: ir.Value,
    gradient: ir.Value,
    producers: dict[ir.Value, ir.Node],
    existing: dict[ir.Value, ir.Value | int],
) -> list[ir.Value]:
    """Take out what can be of a gradient, term by term; returns the terms that stay."""
    node = producers.get(gradient)
    if node is not None and node.op_type in ("Add", "Sum") and len(node.inputs) > 1:
        parts = [v for v in node.inputs if v is not None]
        if all(v in producers for v in parts):
            return [r for v in parts for r in _split(after, op, value, v, producers, existing)]
    factors = None if node is None else _factors(node, producers)
    if node is None or factors is None:
        return [gradient]
    if len(factors) == 1 and node.op_type == "MatMul" and len(value.shape or ()) != 1:
        return [gradient]
    sources: list[ir.Value | int] = []
    for factor in factors:
        if factor in existing:
            sources.append(existing[factor])
            continue
        known = [t.value for t in after.stacked]
        if factor not in known:
            after.stacked.append(op.tensor(factor))
            known.append(factor)
        sources.append(known.index(factor))
    after.terms.append((value, node, sources))
    return []


def _factors(node: ir.Node, producers: dict[ir.Value, ir.Node]) -> list[ir.Value] | None:
    """The values to stack, when the node is one of the forms that are taken out."""
    first = node.inputs[0]
    if first is None:
        return None
    if node.op_type == "ReduceSum" and _axes(node) is not None:
        return [first]
    if node.op_type == "MatMul":
        turned, second = producers.get(first), node.inputs[1]
        if second is not None and _is_ones(first, turned):
            return [second]
        if turned is None or turned.op_type != "Transpose" or second is None:
            return None
        source = turned.inputs[0]
        perm = turned.attributes.get("perm")
        if source is None or perm is None or list(perm.as_ints()) != [1, 0]:
            return None
        return [source, second]
    if node.op_type == "Gemm" and len(node.inputs) == 2 and node.inputs[1] is not None:
        flags = {k: a.value for k, a in node.attributes.items()}
        if flags.get("transA") == 1 and not flags.get("transB") and flags.get("alpha", 1.0) == 1.0:
            return [first, node.inputs[1]]
    return None


def _is_ones(value: ir.Value, node: ir.Node | None) -> bool:
    """Whether a value is a vector of ones (the fastest way to sum over rows)."""
    if node is not None:
        filled = node.attributes.get("value") if node.op_type == "ConstantOfShape" else None
        return filled is not None and filled.as_tensor().numpy().item() == 1
    tensor = value.const_value
    if tensor is None or len(tensor.shape) != 1 or value.is_graph_input():
        return False
    return bool((tensor.numpy() == 1).all())


def _axes(node: ir.Node) -> list[int] | None:
    """Constant axes of a ReduceSum that removes them, else None."""
    keep = node.attributes.get("keepdims")
    if len(node.inputs) < 2 or keep is None or keep.as_int() != 0 or node.inputs[1] is None:
        return None
    axes = node.inputs[1].const_value
    return None if axes is None else [int(a) for a in axes.numpy()]
