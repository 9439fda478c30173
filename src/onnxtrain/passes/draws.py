"""Random operators draw from a counter that the caller feeds, not from a generator of the kernel.

The kernels' generators cannot be saved: after a restart a run goes on with other masks than it
would have had, other builds of onnxruntime draw other numbers from the same seed, and drawing takes
ten times as long as dropping. So each random operator becomes standard operators on integers that
are a function of seed, counter, the node's name and the position (`bits.py`, ADR 16). Seed and
counter are one more input of the model, `RANDOM_INPUT`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import ModelError
from ..graph import Constants, Names, OpBuilder, Tensor
from ..graph.contract import RANDOM_INPUT
from ..graph.dropout import dropout_scale, never_drops, ratio_of, training_mode_of
from ..graph.edit import remove_nodes, replace_value, take_over
from ..graph.subgraphs import subgraphs
from ..operators import RANDOM
from .bits import INT32, INT64, Area, Bits

LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1
FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def draw_from_counter(model: ir.Model) -> ir.Model:
    """Rewrite the random operators; the model gets the input `RANDOM_INPUT` if there are any.

    Those inside If, Loop and Scan are rewritten too, with a new draw in every iteration. What is
    inside other operators with bodies keeps its kernel.
    """
    random_nodes = list(_draws_in(model.graph))
    if random_nodes:
        _Rewriting(model, random_nodes).run()
    return model


def draws_from_counter(model: ir.Model) -> bool:
    """Whether a model has the input that its random operators draw from."""
    return any(v.name == RANDOM_INPUT for v in model.graph.inputs)


@dataclass
class _RandomNode:
    """A random node, and the loops around it."""

    node: ir.Node
    loops: list[ir.Node] = field(default_factory=list)


def _draws_in(graph: ir.Graph, loops: Sequence[ir.Node] = ()) -> Iterator[_RandomNode]:
    for node in graph:
        if node.domain:
            continue
        if draws(node):
            yield _RandomNode(node, list(loops))
        if node.op_type in ("If", "Loop", "Scan"):
            around = loops if node.op_type == "If" else [*loops, node]
            for inner in subgraphs(node):
                yield from _draws_in(inner, around)


def draws(node: ir.Node) -> bool:
    """Whether a node is a random one; a Dropout is one unless it is certainly switched off."""
    if node.op_type not in RANDOM or node.domain:
        return False
    return node.op_type != "Dropout" or not never_drops(node)


class _Rewriting:
    """One application to one model."""

    def __init__(self, model: ir.Model, random_nodes: Sequence[_RandomNode]) -> None:
        self.graph, self.random_nodes = model.graph, random_nodes
        names = Names(_all_names(model.graph))
        self.op = OpBuilder(names, Constants(names), model.opset_imports[""])
        streams = [s for p in random_nodes for s in _streams(p.node)]
        unique = [s if s not in streams[:i] else f"{s}#{i}" for i, s in enumerate(streams)]
        self._streams = iter(range(len(unique)))
        self.bits = Bits(self.op, self.op.tensor(self._add_input()), unique)
        self._numbers: dict[ir.Node, Tensor] = {}

    def _add_input(self) -> ir.Value:
        if any(v.name == RANDOM_INPUT for v in self.graph.inputs):
            raise ModelError(f"The model has an input named {RANDOM_INPUT!r} already; rename it.")
        value = ir.Value(name=RANDOM_INPUT, type=ir.TensorType(INT64), shape=ir.Shape([2]))
        self.graph.inputs.append(value)
        return value

    def run(self) -> None:
        """Rewrite all places, then add what they share."""
        for random_node in self.random_nodes:
            self._rewrite(random_node)
        start = next(iter(self.graph), None)
        if start is None:
            self.graph.extend(self.bits.first)
        else:
            self.graph.insert_before(start, self.bits.first)
        self.op.register_constants(self.graph)

    def _rewrite(self, random_node: _RandomNode) -> None:
        node, op = random_node.node, self.op
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        op.nodes, op.scope, op.node = [], f"{node.name or node.op_type}/draw", node
        iterations = [self._iteration(loop) for loop in random_node.loops]

        def integers(area: Area) -> Tensor:
            return self.bits.integers(next(self._streams), area, graph, iterations)

        results = OPERATORS[node.op_type](_Draw(op, node, integers))
        nodes = op.place(graph, before=node)
        for old, new in zip(node.outputs, results):
            new.value.type, new.value.shape = old.type or new.value.type, old.shape
            if new.value.producer() in nodes:
                take_over(old, new.value)
            else:
                replace_value(graph, old, new.value)
        remove_nodes(graph, [node])

    def _iteration(self, loop: ir.Node) -> Tensor:
        """The number of a loop's iteration, a scalar inside its body."""
        if loop not in self._numbers:
            body = loop.attributes["body"].as_graph()
            if loop.op_type == "Loop":
                self._numbers[loop] = self.op.tensor(body.inputs[0])
            else:
                self._numbers[loop] = self.op.tensor(self._count_iterations(loop, body))
        return self._numbers[loop]

    def _count_iterations(self, scan: ir.Node, body: ir.Graph) -> ir.Value:
        """Let a Scan read the numbers of its iterations as one more sequence."""
        op = self.op
        nodes, op.nodes = op.nodes, []
        count = scan.attributes["num_scan_inputs"].as_int()
        first = scan.inputs[len(scan.inputs) - count]
        assert first is not None
        axes = scan.attributes.get("scan_input_axes")
        axis = axes.as_ints()[0] if axes is not None else 0
        rank = len(first.shape) if first.shape is not None else None
        if axis < 0 and rank is not None:
            axis += rank
        length = op.Squeeze(op.Shape(op.tensor(first), start=axis, end=axis + 1))
        numbers = op.Range(op.const(0), length, op.const(1))
        scan.resize_inputs(len(scan.inputs) + 1)
        scan.replace_input_with(len(scan.inputs) - 1, numbers.value)
        scan.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", count + 1)
        for name in ("scan_input_axes", "scan_input_directions"):
            if name in scan.attributes:
                values = scan.attributes[name].as_ints()
                scan.attributes[name] = ir.AttrInt64s(name, [*values, 0])
        number = ir.Value(
            name=op.names.fresh(f"{scan.name}/iteration"),
            type=ir.TensorType(INT64),
            shape=ir.Shape([]),
        )
        body.inputs.append(number)
        assert scan.graph is not None
        op.place(scan.graph, before=scan)
        op.nodes = nodes
        return number


def _all_names(graph: ir.Graph) -> Iterator[str]:
    values = [*graph.inputs, *graph.initializers.values()]
    for node in graph.all_nodes():
        yield node.name or ""
        values.extend(node.outputs)
        for body in subgraphs(node):
            values += [*body.inputs, *body.initializers.values()]
    yield from (v.name for v in values if v.name)


# --- the operators --------------------------------------------------------------------------------


@dataclass
class _Draw:
    """What an operator's rewrite gets: the builder, the node, and integers for a shape."""

    op: OpBuilder
    node: ir.Node
    integers: Callable[[Area], Tensor]

    def data(self) -> Tensor:
        """The first input."""
        first = self.node.inputs[0]
        assert first is not None
        return self.op.tensor(first)

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute's value."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def dtype(self, like: Tensor | None = None) -> ir.DataType:
        """The type asked for, by default that of `like`, or float."""
        number = self.attribute("dtype", None)
        if number is not None:
            return ir.DataType(number)
        return FLOAT if like is None else like.dtype

    def like(self, x: Tensor) -> Tensor:
        """Integers in the shape of a tensor."""
        if x.shape:
            return self.integers(Area(x.shape, x))
        op = self.op
        flat = op.Reshape(x, [-1])
        return op.Reshape(self.integers(Area((None,), flat)), op.Shape(x), allowzero=1)

    def uniform(self, integers: Tensor, dtype: ir.DataType) -> Tensor:
        """The integers as numbers from 0 up to, and without, 1."""
        kind, below = (DOUBLE, 1 - 2.0**-53) if dtype == DOUBLE else (FLOAT, 1 - 2.0**-24)
        numbers = self.op.Cast(integers, to=kind) * 2.0**-32 + 0.5
        return self.op.Min(numbers, self.op.like(below, numbers))

    def to(self, x: Tensor, dtype: ir.DataType) -> Tensor:
        """`x` in another type."""
        return x if x.dtype == dtype else self.op.Cast(x, to=dtype)


def _dropout(draw: _Draw) -> list[Tensor]:
    """Keep where the integer is small enough; divide by the share that is kept."""
    op, node, x = draw.op, draw.node, draw.data()
    mask = draw.like(x) <= _limit(op, node)
    mask.value.shape = x.value.shape
    # By way of uint8, which is no slower: the gradient casts the mask itself, and one cast for
    # both would be kept in place of the mask, at four bytes an element.
    factor = op.Cast(op.Cast(mask, to=ir.DataType.UINT8), to=x.dtype)
    return [x * (factor * dropout_scale(op, node, x)), mask]


def _limit(op: OpBuilder, node: ir.Node) -> Tensor:
    """The largest integer that is kept; all are when nothing is dropped."""
    ratio, training = ratio_of(node), training_mode_of(node)
    if isinstance(ratio, ir.Value):
        keep_ratio = 1.0 - op.Cast(op.tensor(ratio), to=DOUBLE)
        last = op.Floor(keep_ratio * 2.0**32) + float(LOWEST - 1)
        limit = op.Cast(op.Clip(last, float(LOWEST), float(HIGHEST)), to=INT32)
    else:
        number = math.floor((1.0 - ratio) * 2.0**32) + LOWEST - 1
        limit = op.const(np.array(min(max(number, LOWEST), HIGHEST), np.int32))
    if isinstance(training, ir.Value):
        return op.Where(op.tensor(training), limit, op.const(np.array(HIGHEST, np.int32)))
    return limit


def _bernoulli(draw: _Draw) -> list[Tensor]:
    p = draw.data()
    below = draw.uniform(draw.like(p), p.dtype)
    return [draw.op.Cast(below < draw.to(p, below.dtype), to=draw.dtype(p))]


def _random_uniform(draw: _Draw, integers: Tensor, dtype: ir.DataType) -> Tensor:
    low, high = draw.attribute("low", 0.0), draw.attribute("high", 1.0)
    return draw.to(draw.uniform(integers, dtype) * (high - low) + low, dtype)


def _random_normal(draw: _Draw, pair: Sequence[Tensor], dtype: ir.DataType) -> Tensor:
    """By the transform of Box and Muller."""
    mean, scale = draw.attribute("mean", 0.0), draw.attribute("scale", 1.0)
    op = draw.op
    share, angle = (draw.uniform(integers, dtype) for integers in pair)
    radius = op.Sqrt(op.Log(1.0 - share) * -2.0)
    return draw.to(radius * op.Cos(angle * math.tau) * scale + mean, dtype)


def _of_shape(draw: _Draw) -> Tensor:
    dims = tuple(draw.attribute("shape", ()))
    if dims:
        return draw.integers(Area(dims))
    return draw.op.Reshape(draw.integers(Area((1,))), draw.op.const(np.zeros(0, np.int64)))


def _multinomial(draw: _Draw) -> list[Tensor]:
    """How many of the cumulated probabilities, without the last, a uniform number has passed."""
    op, x = draw.op, draw.data()
    count = draw.attribute("sample_size", 1)
    batch = x.dim(0)
    numbers = draw.uniform(draw.integers(Area((batch, count), x)), x.dtype)
    ends = op.CumSum(op.Softmax(draw.to(x, numbers.dtype), axis=1), op.const(1))
    passed = op.Unsqueeze(numbers, [2]) >= op.Unsqueeze(op.Slice(ends, [0], [-1], [1]), [1])
    kind = ir.DataType(draw.attribute("dtype", int(INT32)))
    return [op.ReduceSum(op.Cast(passed, to=kind), [2], keepdims=0)]


OPERATORS: dict[str, Callable[[_Draw], list[Tensor]]] = {
    "Dropout": _dropout,
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "RandomUniform": lambda d: [_random_uniform(d, _of_shape(d), d.dtype())],
    "RandomUniformLike": lambda d: [_random_uniform(d, d.like(d.data()), d.dtype(d.data()))],
    "RandomNormal": lambda d: [_random_normal(d, [_of_shape(d), _of_shape(d)], d.dtype())],
    "RandomNormalLike": lambda d: [
        _random_normal(d, [d.like(d.data()), d.like(d.data())], d.dtype(d.data()))
    ],
}
"""How each operator is written: from what it draws to its outputs."""


def _streams(node: ir.Node) -> list[str]:
    """Names of the sequences of integers that a node needs."""
    name = node.name or (node.outputs[0].name or "")
    return [f"{name}/radius", f"{name}/angle"] if "Normal" in node.op_type else [name]
