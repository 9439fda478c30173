"""Cut a differentiated model in two: a forward that also returns what the backward needs.

Which values cross the cut is a minimum cut. Every value that the backward half reads is either an
input of the model (free: whoever calls has it), or is kept from the forward run (costs its size),
or is computed again from others that cross. Only what costs next to nothing may be computed
again, and random draws never are.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import onnx
import onnx_ir as ir

from ..errors import ModelError, UnknownNameError
from ..graph import ModelLike, load, to_proto
from ..graph.edit import remove_nodes, values_by_name
from ..graph.infer import infer_shapes
from ..graph.subgraphs import live_nodes, subgraphs, used_values
from ..operators import AT_THE_SPEED_OF_MEMORY, RANDOM, VIEWS
from .fusion import mark_fusable
from .kernels import mark_for_kernels
from .sizes import SYMBOLIC

FOREVER = math.inf
AFTERWARDS = 1 + 2.0**-10
"""Of two values of equal size rather the forward half's own is kept: the backward half then starts
with the other, and a Transpose, say, can be fused into the product that reads it."""


class Partition(NamedTuple):
    """The two halves.

    Attributes:
        forward: inputs of the model → its outputs, then the saved values that are not among them.
        backward: saved values, then inputs of the model that it reads, then the gradients of the
            outputs → gradients.
        saved: names of the values that cross over from one to the other.
        outputs: names of the forward half's own outputs, which come first among its outputs.
    """

    forward: onnx.ModelProto
    backward: onnx.ModelProto
    saved: list[str]
    outputs: list[str]


def partition(model: ModelLike, seeds: Sequence[str], gradients: Sequence[str]) -> Partition:
    """Split a model with gradients, made with ``vjp=True``, into forward and backward.

    Args:
        model: the model; it is not changed.
        seeds: its inputs that are gradients of outputs.
        gradients: its outputs that are gradients; all others belong to the forward half.

    Example:
        >>> import onnx.parser, onnxtrain
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N] x) => (float[N] y) { y = Tanh(x) }
        ... ''')
        >>> both = onnxtrain.differentiate(model, wrt=["x"], vjp=True)
        >>> parts = partition(both, ["y_grad"], ["x_grad"])
        >>> parts.saved, [i.name for i in parts.backward.graph.input]
        (['y'], ['y', 'y_grad'])
    """
    loaded = infer_shapes(load(model))  # values are weighed by size, those of gradients too
    graph = loaded.graph
    values = values_by_name(graph)
    for name in (*seeds, *gradients):
        if name not in values:
            raise UnknownNameError("value", name, list(values))
    outputs = [o.name or "" for o in graph.outputs if o.name not in gradients]
    late = _depending_on(graph, [values[s] for s in seeds])
    leaked = [o for o in outputs if values[o] in late]
    if leaked:
        raise ModelError(f"The forward output {leaked[0]!r} depends on a gradient of an output.")
    saved = _cut(graph, late, [values[o] for o in outputs], [values[g] for g in gradients])
    names = [v.name or "" for v in saved]
    forward = _forward(loaded, outputs, names, seeds)
    backward = _backward(loaded, names, seeds, gradients)
    first, second = (to_proto(mark_fusable(mark_for_kernels(half))) for half in (forward, backward))
    return Partition(first, second, names, outputs)


def _depending_on(graph: ir.Graph, seeds: Iterable[ir.Value]) -> set[ir.Value]:
    dependent = set(seeds)
    for node in graph:
        if any(v in dependent for v in used_values([node])):
            dependent.update(node.outputs)
    return dependent


# -- the cut ---------------------------------------------------------------------------------------


def _cut(
    graph: ir.Graph,
    late: Collection[ir.Value],
    outputs: Sequence[ir.Value],
    gradients: Sequence[ir.Value],
) -> list[ir.Value]:
    """The cheapest set of forward values from which the backward half can be computed."""
    in_forward = set(live_nodes(graph, outputs))
    free = {*graph.inputs, *graph.initializers.values()}
    crossing_candidates: dict[ir.Value, None] = {g: None for g in gradients if g not in late}
    for node in graph:
        if any(o in late for o in node.outputs):
            crossing_candidates.update((v, None) for v in used_values([node]) if v not in late)
    forced = {v for v in crossing_candidates if v not in free and not _may_repeat(v, in_forward)}
    free |= forced  # what is kept anyway can be read without further cost
    todo = [v for v in crossing_candidates if v not in free]
    flow, reached = _Flow(), set[ir.Value]()
    for value in todo:
        flow.edge("backward", (value, "after"), FOREVER)
    while todo:
        value = todo.pop()
        if value in reached:
            continue
        reached.add(value)
        cost = FOREVER if value in gradients else 0.0 if value in outputs else _weight(value)
        if value.producer() not in in_forward:
            cost *= AFTERWARDS
        flow.edge((value, "after"), (value, "before"), cost)
        if not _may_repeat(value, in_forward):
            flow.edge((value, "before"), "forward", FOREVER)
            continue
        producer = value.producer()
        assert producer is not None
        for read in used_values([producer]):
            if read not in free:
                flow.edge((value, "before"), (read, "after"), FOREVER)
                todo.append(read)
    near = flow.near()
    crossing = {v for v in reached if (v, "after") in near and (v, "before") not in near}
    return [o for node in graph for o in node.outputs if o in crossing or o in forced]


def _may_repeat(value: ir.Value, in_forward: Collection[ir.Node]) -> bool:
    """Whether the backward half may compute a value itself.

    What only the gradients need is computed once in either half.
    """
    node = value.producer()
    assert node is not None
    random = node.op_type in RANDOM or any(
        inner.op_type in RANDOM for graph in subgraphs(node) for inner in graph.all_nodes()
    )
    return not random and (
        node not in in_forward or (node.op_type in AT_THE_SPEED_OF_MEMORY and not node.domain)
    )


def _weight(value: ir.Value) -> float:
    """Bytes that keeping a value costs, roughly; one more so that fewer values are better."""
    if value.shape is None:
        return float(SYMBOLIC**3)
    sizes = [d if isinstance(d, int) else SYMBOLIC for d in value.shape]
    width = value.dtype.itemsize if value.dtype is not None else 4
    producer = value.producer()
    # A view that leaves the graph is copied, so what it looks at is the better one to keep.
    copied = 1.1 if producer is not None and producer.op_type in VIEWS else 1.0
    return math.prod(sizes) * width * copied + 1.0


class _Flow:
    """Maximum flow from "backward" to "forward" by shortest augmenting paths."""

    def __init__(self) -> None:
        self._left: dict[object, dict[object, float]] = {"backward": {}, "forward": {}}

    def edge(self, start: object, end: object, capacity: float) -> None:
        there = self._left.setdefault(start, {})
        there[end] = there.get(end, 0.0) + capacity
        self._left.setdefault(end, {}).setdefault(start, 0.0)

    def near(self) -> set[object]:
        """The backward side of the minimum cut; of several, the one that repeats least."""
        while True:
            came_from = self._search()
            if "forward" not in came_from:
                return set(came_from)
            path: list[tuple[object, object]] = []
            at: object = "forward"
            while at != "backward":
                path.append((came_from[at], at))
                at = came_from[at]
            amount = min(self._left[a][b] for a, b in path)
            assert amount < FOREVER, "a value that can be neither kept nor computed again"
            for a, b in path:
                self._left[a][b] -= amount
                self._left[b][a] += amount

    def _search(self) -> dict[object, object]:
        came_from: dict[object, object] = {"backward": "backward"}
        queue: deque[object] = deque(["backward"])
        while queue and "forward" not in came_from:
            at = queue.popleft()
            for to, left in self._left[at].items():
                if left > 0 and to not in came_from:
                    came_from[to] = at
                    queue.append(to)
        return came_from


# -- the halves ------------------------------------------------------------------------------------


def _forward(
    model: ir.Model, outputs: Sequence[str], saved: Sequence[str], seeds: Collection[str]
) -> ir.Model:
    half = model.clone()
    graph = half.graph
    values = values_by_name(graph)
    _set_outputs(graph, [values[n] for n in dict.fromkeys([*outputs, *saved])])
    _prune(graph)
    _keep_inputs(graph, [v for v in graph.inputs if v.name not in seeds])
    return half


def _backward(
    model: ir.Model, saved: Sequence[str], seeds: Collection[str], gradients: Sequence[str]
) -> ir.Model:
    half = model.clone()
    graph = half.graph
    values = values_by_name(graph)
    _set_outputs(graph, [values[g] for g in gradients])
    saved_inputs = [_becomes_input(values[name]) for name in saved]
    _prune(graph)
    rest = [v for v in graph.inputs if v.name not in seeds and v.uses()]
    _keep_inputs(graph, [*saved_inputs, *rest, *(values[s] for s in seeds)])
    return half


def _becomes_input(value: ir.Value) -> ir.Value:
    new = ir.Value(
        name=value.name,
        type=value.type,
        shape=None if value.shape is None else value.shape.copy(),
    )
    value.replace_all_uses_with(new)
    value.name = f"{value.name}.in_forward"
    return new


def _prune(graph: ir.Graph) -> None:
    """Remove the nodes and initializers that no output needs."""
    needed = set(live_nodes(graph, graph.outputs))
    remove_nodes(graph, [n for n in graph if n not in needed])
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]


def _keep_inputs(graph: ir.Graph, values: Sequence[ir.Value]) -> None:
    graph.inputs.clear()
    graph.inputs.extend(values)


def _set_outputs(graph: ir.Graph, values: Sequence[ir.Value]) -> None:
    graph.outputs.clear()
    graph.outputs.extend(values)
