"""Small random graphs of some ninety operators: shapes, axes and attributes that nobody chose.

A case's number is the seed that it grows from. Every node is tried on onnxruntime as it is added,
so a graph has a value everywhere, of a size that differences can judge. Sizes of inputs are symbols
about half of the time, weights are initializers, values are read once or several times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from conformance.cases import Array, OnnxCase

PACKAGES: list[str] = []
BATCH = 400
"""How many cases share a process."""
GRAPHS = 1000
UNDECIDED = {543, 697}
"""Seeds whose graphs normalise twice, so that nothing but rounding is left of one gradient, and
differences cannot tell: a shift that is taken out again (0; ours -5e-7, differences -4.5e-5 ± 4e-5)
and a scale that is (PyTorch in float64 -7.45e-4, ours -7.49e-4, differences ten times that)."""
OPSETS = (13, 15, 17, 18, 20, 21, 22, 23)
AXES_ARE_INPUTS = 18
SIZES = (1, 2, 3, 4, 5)
LARGEST, ELEMENTS = 30.0, 400
"""Beyond which a value is dropped: what grows without bounds is no test of a formula."""

Operator = Callable[["Grown", str], Sequence[str]]
"""Adds nodes that read a value; their results, [] where the operator does not take its shape."""


def names() -> list[str]:
    """Seeds."""
    seeds = (seed for seed in itertools.count() if seed not in UNDECIDED)
    return [f"graph-{seed}" for seed in itertools.islice(seeds, GRAPHS)]


def case(name: str) -> OnnxCase:
    """The graph of a seed."""
    graph = Grown(int(name.rpartition("-")[2]))
    for _ in range(int(graph.rng.integers(3, 14))):
        graph.grow()
    return OnnxCase(
        graph.model(), graph.feeds, family=graph.family, exporter="", wrt=graph.wrt, timing=False
    )


class Refused(Exception):  # noqa: N818 - not an error: another node is tried
    """An operator does not take these values."""


class Grown:
    """A graph that grows node by node, with the value of everything in it."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.rng.choice(OPSETS))
        self.values: dict[str, Array] = {}
        self.feeds: dict[str, Array] = {}
        self.wrt: list[str] = []
        self.nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._read: set[str] = set()
        self._is_open = bool(self.rng.random() < 0.5)
        self.family = "open sizes" if self._is_open else "fixed sizes"
        sizes = [int(s) for s in self.rng.choice(SIZES, 4)]
        for _ in range(int(self.rng.integers(1, 4))):
            rank = int(self.rng.choice((1, 2, 2, 3, 3, 4, 4)))
            self._input([int(i) for i in self.rng.integers(0, 4, rank)], sizes)

    def _input(self, places: Sequence[int], sizes: Sequence[int]) -> None:
        """An input whose sizes are at these places of a few: equal ones have one symbol."""
        name = f"input{len(self._inputs)}"
        shape = [1 if self.rng.random() < 0.1 else sizes[p] for p in places]
        declared = [f"size{p}" if s != 1 else 1 for p, s in zip(places, shape)]
        known = declared if self._is_open else shape
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, known))
        self.feeds[name] = self.values[name] = self.rng.normal(size=shape).astype(np.float32)
        self.wrt.append(name)

    # --- what operators ask for -------------------------------------------------------------------

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a value."""
        return self.values[name].shape

    def pick(self, *choices: Any) -> Any:
        """One of them."""
        return choices[int(self.rng.integers(len(choices)))]

    def axis(self, name: str) -> int:
        """An axis, counted from either end."""
        rank = self.values[name].ndim
        if not rank:
            raise Refused
        return int(self.rng.integers(-rank, rank))

    def axes(self, name: str) -> list[int]:
        """Some axes, at least one."""
        rank = self.values[name].ndim
        if not rank:
            raise Refused
        count = int(self.rng.integers(1, rank + 1))
        chosen = [int(a) for a in self.rng.permutation(rank)[:count]]
        return [a - rank if self.rng.random() < 0.3 else a for a in chosen]

    def ints(self, values: Any) -> str:
        """A constant of integers."""
        return self._constant(np.asarray(values, np.int64))

    def number(self, value: Any) -> str:
        """A constant of floats that is not differentiated."""
        return self._constant(np.asarray(value, np.float32))

    def _constant(self, array: Array) -> str:
        return self._stored(array, f"constant{len(self._weights)}")

    def weight(self, *shape: int) -> str:
        """A parameter."""
        name = f"weight{len(self._weights)}"
        size = 1.0 / math.sqrt(max(1.0, float(np.prod(shape[1:]))))
        self.wrt.append(name)
        return self._stored(self.rng.normal(scale=size, size=shape).astype(np.float32), name)

    def _stored(self, array: Array, name: str) -> str:
        self._weights.append(numpy_helper.from_array(array, name))
        self.values[name] = array
        return name

    def other(self) -> str:
        """Another value of floats that is computed or fed, the youngest most often."""
        stored = {w.name for w in self._weights}
        floats = [n for n, v in self.values.items() if v.dtype == np.float32 and n not in stored]
        return floats[-1 - min(int(self.rng.geometric(0.35)) - 1, len(floats) - 1)]

    def broadcast(self, name: str) -> str:
        """A value, or a weight, that broadcasts with another one."""
        if self.rng.random() < 0.6:
            return self.other()
        shape = [1 if self.rng.random() < 0.3 else s for s in self.shape(name)]
        return self.weight(*shape[int(self.rng.integers(0, len(shape) + 1)) :])

    def rank(self, name: str, *ranks: int) -> tuple[int, ...]:
        """The shape of a value that must have one of these ranks."""
        shape = self.shape(name)
        if len(shape) not in ranks or 0 in shape:
            raise Refused
        return shape

    def node(
        self, kind: str, inputs: Sequence[str], outputs: int = 1, *, captured: Sequence[str] = (),
        **attributes: Any,
    ) -> Any:  # fmt: skip
        """Add a node and compute it; the names of its outputs, or the only one.

        What its bodies read of the graph around them is `captured`.
        """
        made = [f"{kind.lower()}{len(self.nodes)}_{i}" for i in range(outputs)]
        node = helper.make_node(kind, inputs, made, name=made[0], **attributes)
        for name, value in zip(made, self._computed(node, captured)):
            self.values[name] = value
        self.nodes.append(node)
        self._read.update([*inputs, *captured])
        return made[0] if outputs == 1 else made

    def _computed(self, node: onnx.NodeProto, captured: Sequence[str]) -> list[Array]:
        known = {n: self.values[n] for n in dict.fromkeys([*node.input, *captured]) if n}
        kinds = {n: helper.np_dtype_to_tensor_dtype(v.dtype) for n, v in known.items()}
        graph = helper.make_graph(
            [node], "node",
            [helper.make_tensor_value_info(n, kinds[n], v.shape) for n, v in known.items()],
            [onnx.ValueInfoProto(name=n) for n in node.output],
        )  # fmt: skip
        try:
            session = _session(self._model(graph))
            values = [np.asarray(v) for v in session.run(None, known)]
        except Exception as error:  # its errors have no common base class
            raise Refused from error
        for value in values:
            if value.dtype.kind == "f" and not np.all(np.abs(value) < LARGEST):
                raise Refused
            if not 0 < value.size < ELEMENTS:
                raise Refused
        return values

    # --- growing ----------------------------------------------------------------------------------

    def grow(self) -> None:
        """Add an operator; one that does not fit leaves nothing behind."""
        for _ in range(50):
            before = (dict(self.values), list(self.nodes), list(self._weights), list(self.wrt))
            read = set(self._read)
            operator = OPERATORS[int(self.rng.integers(len(OPERATORS)))]
            try:
                operator(self, self.other())
            except Refused:
                self.values, self.nodes, self._weights, self.wrt = before
                self._read = read
            else:
                return

    def model(self) -> onnx.ModelProto:
        """The graph; its outputs are what no node reads."""
        made = {n: v for node in self.nodes for n in node.output for v in [self.values[n]]}
        ends = [n for n, v in made.items() if n not in self._read and v.dtype == np.float32]
        outputs = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * self.values[n].ndim)
            for n in ends
        ]
        read = [w for w in self._weights if w.name in self._read]
        graph = helper.make_graph(self.nodes, "random", self._inputs, outputs, read)
        self.wrt = [n for n in self.wrt if n in self._read]
        return self._model(graph)

    def _model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=10)


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


# --- element by element ---------------------------------------------------------------------------


def _unary(kind: str, **attributes: Any) -> Operator:
    return lambda g, x: [g.node(kind, [x], **attributes)]


def _positive(g: Grown, x: str) -> str:
    """What has a logarithm, a root and a reciprocal."""
    return str(g.node("Add", [g.node("Abs", [x]), g.number(0.5)]))


def _of_positive(kind: str) -> Operator:
    return lambda g, x: [g.node(kind, [_positive(g, x)])]


def _of_small(kind: str) -> Operator:
    """Inside (-1, 1)."""
    return lambda g, x: [g.node(kind, [g.node("Mul", [g.node("Tanh", [x]), g.number(0.9)])])]


def _binary(kind: str) -> Operator:
    def add(g: Grown, x: str) -> Sequence[str]:
        pair = [x, g.broadcast(x)]
        return [g.node(kind, pair if g.rng.random() < 0.5 else pair[::-1])]

    return add


def _divide(g: Grown, x: str) -> Sequence[str]:
    return [g.node("Div", [x, _positive(g, g.broadcast(x))])]


def _power(g: Grown, x: str) -> Sequence[str]:
    if g.rng.random() < 0.5:
        return [g.node("Pow", [x, g.number(g.pick(2.0, 3.0, 1.0, 2, 0.0))])]
    return [g.node("Pow", [_positive(g, x), g.broadcast(x)])]


def _variadic(kind: str) -> Operator:
    def add(g: Grown, x: str) -> Sequence[str]:
        more = [g.broadcast(x) for _ in range(int(g.rng.integers(0, 3)))]
        return [g.node(kind, [x, *more])]

    return add


def _where(g: Grown, x: str) -> Sequence[str]:
    condition = g.node(g.pick("Greater", "LessOrEqual"), [g.other(), g.pick(x, g.number(0.0))])
    return [g.node("Where", [condition, x, g.broadcast(x)])]


def _replaced_rows(g: Grown, x: str) -> Sequence[str]:
    """A softmax whose rows a Where exchanges, as attention does; others may read it, too."""
    y = g.node(g.pick("Softmax", "LogSoftmax"), [x], axis=-1)
    rows = g.node("ReduceSum", [x, g.ints([-1])], keepdims=1)
    condition = g.pick(
        lambda: g.node("IsNaN", [y]),
        lambda: g.node("Greater", [rows, g.number(0.0)]),
        lambda: g.node("Equal", [y, g.number(0.0)]),
    )()
    other = g.pick(g.number(0.0), g.broadcast(x))
    return [g.node("Where", g.pick([condition, y, other], [condition, other, y]))]


def _by_steps(*steps: tuple[str, Any]) -> Operator:
    """A known form step by step: with the number that is given, or `x` itself for a None."""

    def add(g: Grown, x: str) -> Sequence[str]:
        y = x
        for kind, factor in steps:
            more = [x if factor is None else g.number(factor)] if factor != () else []
            pair = [y, *more]
            turned = bool(more) and kind in {"Add", "Mul"} and g.rng.random() < 0.5
            y = g.node(kind, pair[::-1] if turned else pair)
        return [y]

    return add


def _rms_norm(g: Grown, x: str) -> Sequence[str]:
    square = g.node("Mul", [x, x]) if g.rng.random() < 0.5 else g.node("Pow", [x, g.number(2.0)])
    mean = _reduce("ReduceMean")(g, square)
    root = g.node("Sqrt", [g.node("Add", [mean[0], g.number(1e-3)])])
    return [g.node("Div", [x, root])]


def _clip(g: Grown, x: str) -> Sequence[str]:
    low, high = g.pick("", g.number(-0.5)), g.pick("", g.number(0.7))
    return [g.node("Clip", [x, low, high])]


def _prelu(g: Grown, x: str) -> Sequence[str]:
    shape = [1 if g.rng.random() < 0.5 else s for s in g.shape(x)]
    return [g.node("PRelu", [x, g.weight(*shape)])]


def _cast(g: Grown, x: str) -> Sequence[str]:
    wide = g.node("Cast", [x], to=TensorProto.DOUBLE)
    return [g.node("Cast", [g.node("Mul", [wide, wide])], to=TensorProto.FLOAT)]


# --- along axes -----------------------------------------------------------------------------------


def _reduce(kind: str) -> Operator:
    def add(g: Grown, x: str) -> Sequence[str]:
        keep = int(g.rng.integers(2))
        if kind == "ReduceLogSum":
            x = _positive(g, x)
        if g.rng.random() < 0.2:
            return [g.node(kind, [x], keepdims=keep)]
        axes = g.axes(x)
        if kind == "ReduceSum" or g.opset >= AXES_ARE_INPUTS:
            return [g.node(kind, [x, g.ints(axes)], keepdims=keep)]
        return [g.node(kind, [x], axes=axes, keepdims=keep)]

    return add


def _along(kind: str, **attributes: Any) -> Operator:
    return lambda g, x: [g.node(kind, [x], axis=g.axis(x), **attributes)]


def _cumsum(g: Grown, x: str) -> Sequence[str]:
    flags = {"exclusive": int(g.rng.integers(2)), "reverse": int(g.rng.integers(2))}
    return [g.node("CumSum", [x, g.ints(g.axis(x))], **flags)]


def _top_k(g: Grown, x: str) -> Sequence[str]:
    axis = g.axis(x)
    count = int(g.rng.integers(1, g.shape(x)[axis] + 1))
    values, places = g.node("TopK", [x, g.ints([count])], 2, axis=axis, largest=g.pick(0, 1))
    return [values, g.node("GatherElements", [x, places], axis=axis)]


def _layer_norm(g: Grown, x: str) -> Sequence[str]:
    axis = g.axis(x)
    shape = g.shape(x)[axis:]
    if np.prod(shape) < 2:
        raise Refused
    bias = [g.weight(*shape)] if g.rng.random() < 0.7 else []
    return [g.node("LayerNormalization", [x, g.weight(*shape), *bias], axis=axis)]


def _instance_norm(g: Grown, x: str) -> Sequence[str]:
    channels = g.rank(x, 3, 4)[1]
    return [g.node("InstanceNormalization", [x, g.weight(channels), g.weight(channels)])]


def _batch_norm(g: Grown, x: str) -> Sequence[str]:
    channels = g.rank(x, 2, 3, 4)[1]
    scale, bias, mean = (g.weight(channels) for _ in range(3))
    return [g.node("BatchNormalization", [x, scale, bias, mean, _positive(g, g.weight(channels))])]


def _group_norm(g: Grown, x: str) -> Sequence[str]:
    channels = g.rank(x, 3, 4)[1]
    groups = g.pick(*(d for d in SIZES if channels % d == 0))
    count = channels if g.opset >= 21 else groups
    weights = [g.weight(count), g.weight(count)]
    return [g.node("GroupNormalization", [x, *weights], num_groups=groups)]


def _lp_norm(g: Grown, x: str) -> Sequence[str]:
    return [g.node("LpNormalization", [_positive(g, x)], axis=g.axis(x), p=g.pick(1, 2))]


def _mean_variance(g: Grown, x: str) -> Sequence[str]:
    if len(g.shape(x)) == 4 and g.rng.random() < 0.5:
        return [g.node("MeanVarianceNormalization", [x])]
    return [g.node("MeanVarianceNormalization", [x], axes=g.axes(x))]


def _lrn(g: Grown, x: str) -> Sequence[str]:
    g.rank(x, 3, 4)
    return [g.node("LRN", [x], size=g.pick(1, 3, 5), alpha=0.3, beta=0.6, bias=1.2)]


# --- moving ---------------------------------------------------------------------------------------


def _transpose(g: Grown, x: str) -> Sequence[str]:
    order = [int(a) for a in g.rng.permutation(len(g.shape(x)))]
    return [g.node("Transpose", [x], perm=order)] if order else [g.node("Transpose", [x])]


def _reshape(g: Grown, x: str) -> Sequence[str]:
    """To sizes that are constants, or to the shape of the value with two axes as one."""
    shape = g.shape(x)
    if len(shape) < 2:
        target: list[int] = g.pick([-1], [1, -1], [-1, 1])
        return [g.node("Reshape", [x, g.ints(target)])]
    place = int(g.rng.integers(len(shape) - 1))
    how = g.pick("zeros", "computed", "constant")
    if how == "zeros":
        return [g.node("Reshape", [x, g.ints([0] * place + [-1, *shape[place + 2 :]])])]
    if how == "constant":
        sizes = [*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :]]
        return [g.node("Reshape", [x, g.ints(sizes)])]
    sizes = g.node("Shape", [x])
    parts = [g.node("Gather", [sizes, g.ints([i])]) for i in range(len(shape))]
    joined = g.node("Mul", parts[place : place + 2])
    target = g.node("Concat", [*parts[:place], joined, *parts[place + 2 :]], axis=0)
    return [g.node("Reshape", [x, target])]


def _squeeze(g: Grown, x: str) -> Sequence[str]:
    ones = [i for i, s in enumerate(g.shape(x)) if s == 1]
    if not ones:
        raise Refused
    axis = g.pick(*ones)
    return [g.node("Squeeze", [x, g.ints([g.pick(axis, axis - len(g.shape(x)))])])]


def _unsqueeze(g: Grown, x: str) -> Sequence[str]:
    rank = len(g.shape(x)) + 1
    return [g.node("Unsqueeze", [x, g.ints([int(g.rng.integers(-rank, rank))])])]


def _concat(g: Grown, x: str) -> Sequence[str]:
    others = [x, g.other(), x][: int(g.rng.integers(1, 4))]
    return [g.node("Concat", list(g.rng.permutation(others)), axis=g.axis(x))]


def _split(g: Grown, x: str) -> Sequence[str]:
    axis = g.axis(x)
    size = g.shape(x)[axis]
    if size < 2:
        raise Refused
    first = int(g.rng.integers(1, size))
    return list(g.node("Split", [x, g.ints([first, size - first])], 2, axis=axis))


def _slice(g: Grown, x: str) -> Sequence[str]:
    axes = g.axes(x)
    begins, ends, steps = [], [], []
    for axis in axes:
        size = g.shape(x)[axis]
        step = g.pick(1, 1, 2, -1, -2)
        one, two = (int(v) for v in g.rng.integers(-size - 1, size + 2, 2))
        begins.append(one)
        ends.append(g.pick(two, 2**31 - 1 if step > 0 else -(2**31)))
        steps.append(step)
    return [g.node("Slice", [x, *map(g.ints, (begins, ends, axes, steps))])]


def _pad(g: Grown, x: str) -> Sequence[str]:
    mode = g.pick("constant", "constant", "reflect", "edge")
    low = -1 if mode == "constant" else 0
    pads = [int(p) for p in g.rng.integers(low, 2, 2 * len(g.shape(x)))]
    fill = [g.weight()] if mode == "constant" and g.rng.random() < 0.5 else []
    return [g.node("Pad", [x, g.ints(pads), *fill], mode=mode)]


def _tile(g: Grown, x: str) -> Sequence[str]:
    return [g.node("Tile", [x, g.ints([int(r) for r in g.rng.integers(1, 3, len(g.shape(x)))])])]


def _expand(g: Grown, x: str) -> Sequence[str]:
    if g.rng.random() < 0.5:
        return [g.node("Expand", [x, g.node("Shape", [g.other()])])]
    shape = [g.pick(1, s) if s != 1 else g.pick(1, 2, 3) for s in g.shape(x)]
    more = [int(s) for s in g.rng.integers(1, 3, int(g.rng.integers(0, 2)))]
    return [g.node("Expand", [x, g.ints([*more, *shape])])]


def _gather(g: Grown, x: str) -> Sequence[str]:
    axis = g.axis(x)
    size = g.shape(x)[axis]
    shape = [int(s) for s in g.rng.integers(1, 4, int(g.rng.integers(0, 3)))]
    return [g.node("Gather", [x, g.ints(g.rng.integers(-size, size, shape))], axis=axis)]


def _gather_elements(g: Grown, x: str) -> Sequence[str]:
    axis = g.axis(x)
    size, shape = g.shape(x)[axis], list(g.shape(x))
    shape = [int(g.rng.integers(1, s + 1)) for s in shape]
    shape[axis] = int(g.rng.integers(1, 5))
    return [g.node("GatherElements", [x, g.ints(g.rng.integers(-size, size, shape))], axis=axis)]


def _gather_nd(g: Grown, x: str) -> Sequence[str]:
    shape = g.rank(x, 2, 3, 4)
    depth = int(g.rng.integers(1, len(shape) + 1))
    rows = np.stack([g.rng.integers(0, s, (3,)) for s in shape[:depth]], -1)
    return [g.node("GatherND", [x, g.ints(rows)])]


def _scatter_elements(g: Grown, x: str) -> Sequence[str]:
    axis = g.axis(x) % len(g.shape(x))
    size = g.shape(x)[axis]
    shape = [int(g.rng.integers(1, s + 1)) for s in g.shape(x)]
    shape[axis] = int(g.rng.integers(1, size + 1))
    orders = np.argsort(g.rng.random([*shape[:axis], size, *shape[axis + 1 :]]), axis)
    places = np.take(orders, range(shape[axis]), axis)  # no place twice
    reduces = g.opset >= AXES_ARE_INPUTS and g.rng.random() < 0.5
    more = {"reduction": g.pick("add", "mul", "max", "min")} if reduces else {}
    return [g.node("ScatterElements", [x, g.ints(places), g.weight(*shape)], axis=axis, **more)]


def _scatter_nd(g: Grown, x: str) -> Sequence[str]:
    shape = g.rank(x, 1, 2, 3, 4)
    rows = g.rng.permutation(shape[0])[: int(g.rng.integers(1, shape[0] + 1))]
    reduces = g.opset >= AXES_ARE_INPUTS and g.rng.random() < 0.5
    more = {"reduction": g.pick("add", "mul")} if reduces else {}
    updates = g.weight(len(rows), *shape[1:])
    return [g.node("ScatterND", [x, g.ints(rows[:, None]), updates], **more)]


def _trilu(g: Grown, x: str) -> Sequence[str]:
    g.rank(x, 2, 3, 4)
    return [g.node("Trilu", [x, g.ints(int(g.rng.integers(-2, 3)))], upper=g.pick(0, 1))]


def _flatten(g: Grown, x: str) -> Sequence[str]:
    return [g.node("Flatten", [x], axis=int(g.rng.integers(0, len(g.shape(x)) + 1)))]


def _depth_to_space(g: Grown, x: str) -> Sequence[str]:
    g.rank(x, 4)
    if g.rng.random() < 0.5:
        return [g.node("SpaceToDepth", [x], blocksize=2)]
    return [g.node("DepthToSpace", [x], blocksize=2, mode=g.pick("DCR", "CRD"))]


def _reverse(g: Grown, x: str) -> Sequence[str]:
    shape = g.rank(x, 2, 3, 4)
    time = g.pick(0, 1)
    lengths = g.rng.integers(1, shape[time] + 1, shape[1 - time])
    return [g.node("ReverseSequence", [x, g.ints(lengths)], time_axis=time, batch_axis=1 - time)]


def _compress(g: Grown, x: str) -> Sequence[str]:
    axis = g.axis(x)
    mask = g.node("Greater", [g.weight(g.shape(x)[axis]), g.number(-0.5)])
    return [g.node("Compress", [x, mask], axis=axis)]


# --- products -------------------------------------------------------------------------------------


def _matmul(g: Grown, x: str) -> Sequence[str]:
    shape = g.rank(x, 1, 2, 3, 4)
    width = int(g.rng.integers(1, 5))
    if g.rng.random() < 0.3 and len(shape) > 1:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        return [g.node("MatMul", [x, g.node("Transpose", [x], perm=order)])]
    if g.rng.random() < 0.4 and len(shape) > 1:
        return [g.node("MatMul", [g.weight(width, shape[-2]), x])]
    batch = [g.pick(1, s) for s in shape[int(g.rng.integers(0, len(shape))) : -2]]
    right = g.pick(g.weight(*batch, shape[-1], width), g.weight(shape[-1]))
    product = g.node("MatMul", [x, right])
    return [g.node("Add", [product, g.weight(width)]) if g.rng.random() < 0.5 else product]


def _gemm(g: Grown, x: str) -> Sequence[str]:
    rows, columns = g.rank(x, 2)
    flip, other = g.pick(0, 1), g.pick(0, 1)
    inner, outer = (rows, columns) if flip else (columns, rows)
    width = int(g.rng.integers(1, 5))
    right = g.weight(width, inner) if other else g.weight(inner, width)
    bias = [g.weight(*g.pick((width,), (1,), (outer, 1), (outer, width), ()))]
    factors = {"alpha": g.pick(1.0, 0.5), "beta": g.pick(1.0, 0.7)}
    biases = bias if g.rng.random() < 0.7 else []
    return [g.node("Gemm", [x, right, *biases], transA=flip, transB=other, **factors)]


def _einsum(g: Grown, x: str) -> Sequence[str]:
    shape = g.rank(x, 2, 3)
    letters = "abc"[: len(shape)]
    right = "cad"[: int(g.rng.integers(1, 4))] if len(shape) == 3 else "bd"
    sizes = {**dict(zip(letters, shape)), "d": 3}
    free = list(dict.fromkeys(letters + right))
    kept = [str(c) for c in g.rng.permutation(free)[: int(g.rng.integers(0, len(free) + 1))]]
    weight = g.weight(*(sizes[c] for c in right))
    return [g.node("Einsum", [x, weight], equation=f"{letters},{right}->{''.join(kept)}")]


# --- images ---------------------------------------------------------------------------------------


def _conv(g: Grown, x: str) -> Sequence[str]:
    channels, *space = g.rank(x, 3, 4)[1:]
    groups = g.pick(*(d for d in SIZES if channels % d == 0))
    made = groups * g.pick(1, 2)
    kernel = [g.pick(1, 2, 3) for _ in space]
    weight = g.weight(made, channels // groups, *kernel)
    bias = [g.weight(made)] if g.rng.random() < 0.6 else []
    return [g.node("Conv", [x, weight, *bias], group=groups, **_window(g, space))]


def _conv_transpose(g: Grown, x: str) -> Sequence[str]:
    channels, *space = g.rank(x, 3, 4)[1:]
    groups = g.pick(*(d for d in SIZES if channels % d == 0))
    kernel = [g.pick(1, 2, 3) for _ in space]
    weight = g.weight(channels, g.pick(1, 2), *kernel)
    return [g.node("ConvTranspose", [x, weight], group=groups, **_window(g, space))]


def _window(g: Grown, space: Sequence[int]) -> dict[str, Any]:
    """Strides, dilations and pads of a convolution."""
    window: dict[str, Any] = {"strides": [g.pick(1, 1, 2) for _ in space]}
    if g.rng.random() < 0.3:
        window["dilations"] = [g.pick(1, 2) for _ in space]
    if g.rng.random() < 0.2:
        return {**window, "auto_pad": g.pick("SAME_UPPER", "SAME_LOWER", "VALID")}
    return {**window, "pads": [int(p) for p in g.rng.integers(0, 2, 2 * len(space))]}


def _pool(kind: str) -> Operator:
    def add(g: Grown, x: str) -> Sequence[str]:
        space = g.rank(x, 3, 4)[2:]
        window = _window(g, space)
        if kind == "AveragePool":
            window["count_include_pad"] = g.pick(0, 1)
            if g.opset < 19:
                window.pop("dilations", None)
        kernel = [g.pick(1, 2, 3) for _ in space]
        return [g.node(kind, [x], kernel_shape=kernel, ceil_mode=g.pick(0, 0, 1), **window)]

    return add


def _global_pool(kind: str) -> Operator:
    def add(g: Grown, x: str) -> Sequence[str]:
        g.rank(x, 3, 4)
        return [g.node(kind, [x])]

    return add


def _resize(g: Grown, x: str) -> Sequence[str]:
    shape = g.rank(x, 3, 4)
    scales = [1.0, 1.0, *(g.pick(1.0, 2.0, 1.5, 0.6) for _ in shape[2:])]
    how = {
        "mode": g.pick("nearest", "linear", "cubic" if len(shape) == 4 else "linear"),
        "coordinate_transformation_mode": g.pick(
            "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"
        ),
    }
    return [g.node("Resize", [x, "", g.number(scales)], **how)]


# --- over time, and bodies ------------------------------------------------------------------------


def _recurrent(kind: str, gates: int) -> Operator:
    def add(g: Grown, x: str) -> Sequence[str]:
        width, hidden = g.rank(x, 3)[2], int(g.rng.integers(1, 4))
        direction = g.pick("forward", "reverse", "bidirectional")
        ways = 2 if direction == "bidirectional" else 1
        weights = [
            g.weight(ways, gates * hidden, width), g.weight(ways, gates * hidden, hidden),
            *([g.weight(ways, 2 * gates * hidden)] if g.rng.random() < 0.6 else []),
        ]  # fmt: skip
        more = {"linear_before_reset": g.pick(0, 1)} if kind == "GRU" else {}
        return list(g.node(kind, [x, *weights], 2, hidden_size=hidden, direction=direction, **more))

    return add


def _if(g: Grown, x: str) -> Sequence[str]:
    """Two branches that read the same values in their own ways."""
    total = g.node("ReduceSum", [g.other()], keepdims=0)
    other = g.broadcast(x)
    branches = {
        f"{branch}_branch": _body(
            [(g.pick("Mul", "Sub", "Max"), [x, other]), (g.pick("Tanh", "Neg", "Sigmoid"), [])],
            branch,
        )
        for branch in ("then", "else")
    }
    condition = g.node("Greater", [total, g.number(0.0)])
    return [g.node("If", [condition], captured=[x, other], **branches)]


def _loop(g: Grown, x: str) -> Sequence[str]:
    """A state that is multiplied with a weight again and again, and what it was on the way."""
    weight = g.weight(*g.shape(x))
    body = _body([("Mul", ["state", weight]), ("Tanh", [])], "loop")
    body.input.insert(0, helper.make_tensor_value_info("state", TensorProto.FLOAT, None))
    body.input.insert(0, helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []))
    body.input.insert(0, helper.make_tensor_value_info("turn", TensorProto.INT64, []))
    body.node.insert(0, helper.make_node("Identity", ["goes_on"], ["goes_on_too"]))
    body.node.append(helper.make_node("Identity", [body.output[0].name], ["scanned"]))
    body.output.insert(0, helper.make_tensor_value_info("goes_on_too", TensorProto.BOOL, []))
    body.output.append(helper.make_tensor_value_info("scanned", TensorProto.FLOAT, None))
    turns = g.ints(int(g.rng.integers(1, 4)))
    return list(g.node("Loop", [turns, "", x], 2, captured=[weight], body=body))


def _scan(g: Grown, x: str) -> Sequence[str]:
    """A running product of rows, forwards or backwards."""
    rows = g.rank(x, 2, 3)[1:]
    body = _body([("Mul", ["state", "row"]), ("Sin", [])], "scan", rows)
    for name in ("row", "state"):
        body.input.insert(0, helper.make_tensor_value_info(name, TensorProto.FLOAT, rows))
    body.node.append(helper.make_node("Identity", [body.output[0].name], ["scanned"]))
    body.output.append(helper.make_tensor_value_info("scanned", TensorProto.FLOAT, rows))
    way = {"scan_input_directions": [g.pick(0, 1)], "scan_output_directions": [g.pick(0, 1)]}
    return list(g.node("Scan", [g.weight(*rows), x], 2, body=body, num_scan_inputs=1, **way))


def _body(
    steps: Sequence[tuple[str, list[str]]], name: str, shape: Sequence[int] | None = None
) -> onnx.GraphProto:
    """A chain of nodes; a step without inputs reads the one before it."""
    nodes: list[onnx.NodeProto] = []
    for number, (kind, inputs) in enumerate(steps):
        before = inputs or [nodes[-1].output[0]]
        nodes.append(helper.make_node(kind, before, [f"{name}{number}"]))
    last = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, shape)
    return helper.make_graph(nodes, name, [], [last])


OPERATORS: list[Operator] = [
    *map(_unary, (
        "Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Softplus", "Erf", "LeakyRelu", "Elu", "Selu",
        "HardSigmoid", "HardSwish", "Softsign", "Sin", "Cos", "Atan", "Sinh", "Asinh", "Exp",
        "Celu", "ThresholdedRelu", "Mish", "Identity", "Floor", "Gelu",
    )),
    _unary("Gelu", approximate="tanh"), _clip, _prelu, _cast, _where, _divide, _divide, _power,
    *map(_of_positive, ("Log", "Sqrt", "Reciprocal")), *map(_of_small, ("Acos", "Asin", "Atanh")),
    *map(_binary, ("Add", "Sub", "Mul", "Mul", "Add", "Max", "Min")),
    *map(_variadic, ("Sum", "Mean", "Max", "Min")),
    *map(_reduce, (
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
        "ReduceLogSumExp", "ReduceSumSquare", "ReduceLogSum",
    )),
    *map(_along, ("Softmax", "LogSoftmax", "Softmax")),
    _cumsum, _top_k, _layer_norm, _instance_norm, _batch_norm, _group_norm, _lp_norm, _lrn,
    _transpose, _transpose, _reshape, _reshape, _squeeze, _unsqueeze, _concat, _concat, _split,
    _slice, _slice, _pad, _tile, _expand, _gather, _gather_elements, _gather_nd, _scatter_elements,
    _scatter_nd, _trilu, _flatten, _depth_to_space, _reverse, _compress, _matmul, _matmul, _matmul,
    _gemm, _gemm, _einsum, _conv, _conv, _conv_transpose, *map(_pool, ("MaxPool", "AveragePool")),
    *map(_global_pool, ("GlobalAveragePool", "GlobalMaxPool")), _resize,
    _recurrent("LSTM", 4), _recurrent("GRU", 3), _recurrent("RNN", 1), _mean_variance, _if, _loop,
    _scan, _replaced_rows, _replaced_rows, _rms_norm, _by_steps(("Sigmoid", ()), ("Mul", None)),
    _by_steps(("Div", 2**0.5), ("Erf", ()), ("Add", 1.0), ("Mul", None), ("Mul", 0.5)),
    _by_steps(("Softplus", ()), ("Tanh", ()), ("Mul", None)),
]  # fmt: skip
"""Equally often; twice what networks are made of."""
