"""Symbolic shapes: know that ``[batch, 16, 4, 8]`` is that, however the model computed it.

onnx's inference stops at shape arithmetic with a symbolic batch: behind the first
``Reshape(x, Concat(Gather(Shape(x), 0), …))`` nothing is known, and every gradient behind it would
have to decide at run time what to sum over. This pass follows the small integer tensors of such
computations as polynomials of the symbols, fills in the dimensions that follow, replaces what turns
out to be constant, and turns a Reshape with one symbolic dimension into a Reshape with one -1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ..graph.tensor import dims_of
from .polynomial import Poly, UnknownError

Array: TypeAlias = "np.ndarray[Any, Any]"
SymDim: TypeAlias = "int | Poly | None"

MAX_ELEMENTS = 64
"""Contents are followed only for tensors this small: shapes, axes, scalars."""


def infer_symbolic(model: ir.Model) -> ir.Model:
    """Refine shapes and fold shape arithmetic, in place; types are known before."""
    graph = model.graph
    _Pass(graph).run()
    return model


class _Pass:
    """One forward sweep over a graph."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.symbols: dict[str, Poly] = {}
        self.contents: dict[ir.Value, Array] = {}
        self.taken = {v.name for v in (*graph.inputs, *graph.initializers.values())}
        self.taken.update(o.name for node in graph.all_nodes() for o in node.outputs)

    def run(self) -> None:
        for value in self.graph.inputs:
            self._name_dimensions(value)
        for node in list(self.graph):
            if node.domain:
                continue
            self._refine(node)
            self._fold(node)

    def _name_dimensions(self, value: ir.Value) -> None:
        """Give unnamed dimensions of an input a symbol of their own."""
        dims = dims_of(value)
        if dims is not None and None in dims:
            value.shape = ir.Shape(
                [f"{value.name}_dim{i}" if d is None else d for i, d in enumerate(dims)]
            )

    # -- what is known of a value --------------------------------------------------------------

    def dims(self, value: ir.Value | None) -> list[SymDim] | None:
        """Dimensions as integers and polynomials."""
        shape = None if value is None else dims_of(value)
        if shape is None:
            return None
        return [self._poly(d) if isinstance(d, str) else d for d in shape]

    def _poly(self, name: str) -> Poly:
        return self.symbols.setdefault(name, Poly.symbol(name))

    def content(self, value: ir.Value | None) -> Array | None:
        """The elements of a small constant or followed tensor."""
        if value is None:
            return None
        if value in self.contents:
            return self.contents[value]
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or tensor.size > MAX_ELEMENTS:
            return None
        if tensor.dtype == ir.DataType.BOOL:
            return tensor.numpy()
        if not tensor.dtype.is_integer():  # a float may be a parameter
            return None
        return tensor.numpy().astype(object)

    def set_dims(self, value: ir.Value, dims: list[SymDim] | None) -> None:
        """Fill in dimensions that are unknown so far, or known only by a made-up symbol."""
        if dims is None:
            return
        old = dims_of(value)
        if old is not None and len(old) != len(dims):
            return
        merged: list[int | str | None] = []
        for i, new in enumerate(dims):
            before = None if old is None else old[i]
            if isinstance(before, int) or new is None:
                merged.append(before)
            else:
                merged.append(new if isinstance(new, int) else self._symbol(new))
        if tuple(merged) != old:
            value.shape = ir.Shape(merged)

    def _symbol(self, poly: Poly) -> str:
        name = str(poly)
        self.symbols.setdefault(name, poly)
        return name

    # -- shapes ------------------------------------------------------------------------------

    def _refine(self, node: ir.Node) -> None:
        rule = SHAPES.get(node.op_type)
        if rule is None:
            return
        if all(_complete(o) for o in node.outputs):
            return
        try:
            results = rule(self, node)
        except (UnknownError, TypeError, IndexError, ValueError, KeyError):
            return
        for output, dims in zip(node.outputs, results):
            self.set_dims(output, dims)

    # -- contents ----------------------------------------------------------------------------

    def _fold(self, node: ir.Node) -> None:
        """Follow contents; replace a constant result, simplify a Reshape."""
        if node.op_type == "Reshape":
            self._simplify_reshape(node)
        rule = CONTENTS.get(node.op_type)
        if rule is None or len(node.outputs) != 1:
            return
        try:
            result = rule(self, node)
        except (UnknownError, TypeError, IndexError, ValueError, KeyError, ZeroDivisionError):
            return
        output = node.outputs[0]
        if result is None or result.size > MAX_ELEMENTS or output.dtype is None:
            return
        self.contents[output] = result
        if any(isinstance(e, Poly) for e in result.ravel()):
            return
        self._replace_by_constant(output, result.astype(output.dtype.numpy()))

    def _replace_by_constant(self, output: ir.Value, array: Array) -> None:
        if not output.is_graph_output():
            constant = self._constant(f"{output.name}_const", array)
            output.replace_all_uses_with(constant)
            self.contents[constant] = self.contents[output]

    def _simplify_reshape(self, node: ir.Node) -> None:
        """One symbolic dimension among positive numbers can be written as -1."""
        target = self.content(node.inputs[1])
        if target is None or all(isinstance(e, int) for e in target):
            return
        symbolic = [e for e in target if isinstance(e, Poly)]
        if len(symbolic) != 1 or any(isinstance(e, int) and e <= 0 for e in target):
            return
        array = np.array([-1 if isinstance(e, Poly) else e for e in target], np.int64)
        constant = self._constant(f"{node.outputs[0].name}_shape", array)
        node.replace_input_with(1, constant)
        node.attributes.pop("allowzero", None)

    def _constant(self, name: str, array: Array) -> ir.Value:
        name = self._fresh(name)
        tensor = ir.tensor(array, name=name)
        value = ir.Value(
            name=name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(array.shape),
            const_value=tensor,
        )
        self.graph.register_initializer(value)
        return value

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def _complete(value: ir.Value) -> bool:
    dims = dims_of(value)
    return dims is not None and not any(d is None or str(d).startswith("unk__") for d in dims)


# --- how dimensions follow ---------------------------------------------------------------------

Shapes: TypeAlias = "list[list[SymDim] | None]"


def _same(p: _Pass, node: ir.Node) -> Shapes:
    return [p.dims(node.inputs[0])] * len(node.outputs)


def broadcast(shapes: list[list[SymDim] | None]) -> list[SymDim] | None:
    """Dimensions of operands put together by the broadcasting rules."""
    if any(s is None for s in shapes):
        return None
    known = [s for s in shapes if s is not None]
    rank = max(map(len, known))
    result: list[SymDim] = []
    for axis in range(-rank, 0):
        column = [s[axis] for s in known if len(s) >= -axis]
        big = {d for d in column if d != 1}
        if not big:
            result.append(1)
        elif len(big) == 1:
            result.append(big.pop())
        else:
            numbers = [d for d in big if isinstance(d, int)]
            result.append(numbers[0] if numbers else None)
    return result


def _broadcast(p: _Pass, node: ir.Node) -> Shapes:
    return [broadcast([p.dims(v) for v in node.inputs])]


def _matmul(p: _Pass, node: ir.Node) -> Shapes:
    a, b = p.dims(node.inputs[0]), p.dims(node.inputs[1])
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return [None]
    lead = broadcast([a[:-2], b[:-2]]) if len(a) > 2 or len(b) > 2 else []
    return [None if lead is None else [*lead, a[-2], b[-1]]]


def _transpose(p: _Pass, node: ir.Node) -> Shapes:
    dims = p.dims(node.inputs[0])
    if dims is None:
        return [None]
    attribute = node.attributes.get("perm")
    perm = list(attribute.as_ints()) if attribute else list(range(len(dims)))[::-1]
    return [[dims[i] for i in perm]]


def _reshape(p: _Pass, node: ir.Node) -> Shapes:
    dims, target = p.dims(node.inputs[0]), p.content(node.inputs[1])
    if target is None:
        return [None]
    result: list[SymDim] = list(target)
    for i, size in enumerate(target):
        if isinstance(size, int) and size == 0:
            result[i] = None if dims is None else dims[i]
    if -1 in [d for d in result if isinstance(d, int)]:
        hole = result.index(-1)
        rest = result[:hole] + result[hole + 1 :]
        result[hole] = None
        if dims is not None and None not in dims and None not in rest:
            result[hole] = _product(dims) // _product(rest)
    return [result]


def _product(dims: list[SymDim]) -> Poly | int:
    total: Poly | int = 1
    for d in dims:
        total = Poly.of(total) * d
    return total


def _expand(p: _Pass, node: ir.Node) -> Shapes:
    target = p.content(node.inputs[1])
    return [None if target is None else broadcast([p.dims(node.inputs[0]), list(target)])]


def _constant_of_shape(p: _Pass, node: ir.Node) -> Shapes:
    target = p.content(node.inputs[0])
    return [None if target is None else list(target)]


def _concat(p: _Pass, node: ir.Node) -> Shapes:
    shapes = [p.dims(v) for v in node.inputs]
    if any(s is None for s in shapes):
        return [None]
    known = [s for s in shapes if s is not None]
    axis = node.attributes["axis"].as_int() % len(known[0])
    result: list[SymDim] = [
        next((s[i] for s in known if s[i] is not None), None) for i in range(len(known[0]))
    ]
    sizes = [s[axis] for s in known]
    total: Poly | int = 0
    for size in sizes:
        total = Poly.of(total) + size
    result[axis] = None if None in sizes else total
    return [result]


def _unsqueeze(p: _Pass, node: ir.Node) -> Shapes:
    dims, axes = p.dims(node.inputs[0]), p.content(node.inputs[1])
    if dims is None or axes is None:
        return [None]
    rank = len(dims) + axes.size
    places = {int(a) % rank for a in np.atleast_1d(axes)}
    rest = iter(dims)
    return [[1 if i in places else next(rest) for i in range(rank)]]


def _squeeze(p: _Pass, node: ir.Node) -> Shapes:
    dims = p.dims(node.inputs[0])
    axes = p.content(node.inputs[1]) if len(node.inputs) > 1 else None
    if dims is None or axes is None:
        return [None]
    places = {int(a) % len(dims) for a in np.atleast_1d(axes)}
    return [[d for i, d in enumerate(dims) if i not in places]]


def _reduce(p: _Pass, node: ir.Node) -> Shapes:
    dims = p.dims(node.inputs[0])
    axes = p.content(node.inputs[1]) if len(node.inputs) > 1 else None
    if dims is None or (axes is None and len(node.inputs) > 1 and node.inputs[1] is not None):
        return [None]
    if axes is None or not axes.size:
        return [None]
    keep = node.attributes.get("keepdims")
    places = {int(a) % len(dims) for a in np.atleast_1d(axes)}
    if keep is None or keep.as_int():
        return [[1 if i in places else d for i, d in enumerate(dims)]]
    return [[d for i, d in enumerate(dims) if i not in places]]


def _gather(p: _Pass, node: ir.Node) -> Shapes:
    data, indices = p.dims(node.inputs[0]), p.dims(node.inputs[1])
    if data is None or indices is None:
        return [None]
    attribute = node.attributes.get("axis")
    axis = (attribute.as_int() if attribute else 0) % len(data)
    return [[*data[:axis], *indices, *data[axis + 1 :]]]


def _slice(p: _Pass, node: ir.Node) -> Shapes:
    dims = p.dims(node.inputs[0])
    if dims is None:
        return [None]
    parts = [p.content(v) for v in node.inputs[1:]]
    starts, ends = parts[0], parts[1]
    axes = parts[2] if len(parts) > 2 else np.arange(len(dims))
    steps = parts[3] if len(parts) > 3 else None
    if axes is None or (len(node.inputs) > 4 and steps is None):
        return [None]
    result = list(dims)
    for i, axis in enumerate(np.atleast_1d(axes)):
        place, step = int(axis) % len(dims), 1 if steps is None else int(steps[i])
        start = None if starts is None else starts[i]
        end = None if ends is None else ends[i]
        result[place] = _sliced(dims[place], start, end, step)
    return [result]


def _sliced(size: SymDim, start: Any, end: Any, step: int) -> SymDim:
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(*slice(start, end, step).indices(size)))
    if size is None or step != 1 or start is None or end is None:
        return None
    if isinstance(start, int) and start == 0:
        if isinstance(end, Poly) and end == size:
            return size
        if isinstance(end, int) and end >= 2**31 - 1:
            return size
        if isinstance(end, int) and end < 0:
            return Poly.of(size) + end
    if isinstance(start, int) and start > 0 and isinstance(end, int) and end >= 2**31 - 1:
        return Poly.of(size) - start
    return None


def _split(p: _Pass, node: ir.Node) -> Shapes:
    dims = p.dims(node.inputs[0])
    if dims is None:
        return [None]
    attribute = node.attributes.get("axis")
    axis = (attribute.as_int() if attribute else 0) % len(dims)
    sizes = p.content(node.inputs[1]) if len(node.inputs) > 1 else None
    if sizes is None:
        return [[*dims[:axis], None, *dims[axis + 1 :]]] * len(node.outputs)
    return [[*dims[:axis], s, *dims[axis + 1 :]] for s in sizes]


def _gemm(p: _Pass, node: ir.Node) -> Shapes:
    a, b = p.dims(node.inputs[0]), p.dims(node.inputs[1])
    if a is None or b is None:
        return [None]
    flags = [node.attributes.get(n) for n in ("transA", "transB")]
    rows = a[1] if flags[0] is not None and flags[0].as_int() else a[0]
    columns = b[0] if flags[1] is not None and flags[1].as_int() else b[1]
    return [[rows, columns]]


def _batch_and_rest(p: _Pass, node: ir.Node) -> Shapes:
    """Conv and pooling keep the batch; the rest is onnx's business."""
    dims, old = p.dims(node.inputs[0]), p.dims(node.outputs[0])
    return [None if dims is None or old is None else [dims[0], *old[1:]]]


def _resize(p: _Pass, node: ir.Node) -> Shapes:
    """Axes that are scaled by one keep their size; the rest is onnx's business."""
    dims, old = p.dims(node.inputs[0]), p.dims(node.outputs[0])
    factors = _float_constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if dims is None or factors is None or "axes" in node.attributes:
        return [None]
    result: list[SymDim] = []
    for i, (size, factor) in enumerate(zip(dims, factors)):
        grown = int(np.floor(size * factor)) if isinstance(size, int) else None
        result.append(size if factor == 1 else grown if old is None else grown or old[i])
    return [result if len(result) == len(dims) else None]


def _float_constant(value: ir.Value | None) -> Array | None:
    """Scales that are constant, or several constants put together."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    producer = value.producer()
    if producer is None or producer.op_type != "Concat":
        return None
    parts = [_float_constant(v) for v in producer.inputs]
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known and len(known) == len(parts) else None


UNARY = """
    Abs Neg Exp Log Sqrt Reciprocal Tanh Sigmoid Relu LeakyRelu Elu Selu Celu Softplus Softsign
    HardSigmoid HardSwish Mish Gelu Erf Sin Cos Tan Floor Ceil Round Sign Clip Cast Identity Not
    Softmax LogSoftmax LayerNormalization Dropout CumSum Trilu InstanceNormalization Hardmax
    GroupNormalization LpNormalization MeanVarianceNormalization QuantizeLinear IsNaN IsInf
    DequantizeLinear CastLike ScatterND ScatterElements ThresholdedRelu Shrink
"""
BROADCAST = """
    Add Sub Mul Div Pow Max Min Sum Mean Where Equal Less LessOrEqual Greater GreaterOrEqual And
    Or Xor Mod PRelu
"""
REDUCE = "Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare"

SHAPES: dict[str, Callable[[_Pass, ir.Node], Shapes]] = {
    **dict.fromkeys(UNARY.split(), _same),
    **dict.fromkeys(BROADCAST.split(), _broadcast),
    **dict.fromkeys((f"Reduce{kind}" for kind in REDUCE.split()), _reduce),
    **dict.fromkeys(["Conv", "MaxPool", "AveragePool", "ConvTranspose"], _batch_and_rest),
    "Resize": _resize,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
}


# --- how contents follow -----------------------------------------------------------------------


def _shape_content(p: _Pass, node: ir.Node) -> Array | None:
    dims = p.dims(node.inputs[0])
    if dims is None:
        return None
    bounds = [node.attributes.get(n) for n in ("start", "end")]
    start = bounds[0].as_int() if bounds[0] is not None else 0
    end = bounds[1].as_int() if bounds[1] is not None else len(dims)
    part = dims[start:end]
    return None if None in part else _objects(part)


def _objects(items: list[Any]) -> Array:
    result = np.empty(len(items), object)
    for i, item in enumerate(items):
        result[i] = item
    return result


def _operands(p: _Pass, node: ir.Node) -> list[Array]:
    found = [p.content(v) for v in node.inputs]
    if any(c is None for c in found):
        raise UnknownError
    return [c for c in found if c is not None]


def _arithmetic(function: Callable[..., Any]) -> Callable[[_Pass, ir.Node], Array | None]:
    def apply(p: _Pass, node: ir.Node) -> Array | None:
        return np.asarray(function(*_operands(p, node)))

    return apply


def _integer_division(a: Array, b: Array) -> Array:
    if object in (a.dtype, b.dtype):
        return np.asarray(a // b)
    return np.asarray(a / b)


def _gather_content(p: _Pass, node: ir.Node) -> Array | None:
    data, indices = _operands(p, node)
    attribute = node.attributes.get("axis")
    axis = attribute.as_int() if attribute else 0
    return np.asarray(np.take(data, indices.astype(np.int64), axis=axis))


def _slice_content(p: _Pass, node: ir.Node) -> Array | None:
    data, *parts = _operands(p, node)
    if data.ndim != 1:
        return None
    start, end = int(parts[0][0]), int(parts[1][0])
    step = int(parts[3][0]) if len(parts) > 3 else 1
    return data[start:end:step]


def _concat_content(p: _Pass, node: ir.Node) -> Array | None:
    return np.concatenate(_operands(p, node), axis=node.attributes["axis"].as_int())


def _cast_content(p: _Pass, node: ir.Node) -> Array | None:
    (data,) = _operands(p, node)
    dtype = ir.DataType(node.attributes["to"].as_int())
    if dtype.is_integer():
        return data.astype(object) if data.dtype == object else data.astype(np.int64).astype(object)
    return data.astype(dtype.numpy())


def _axes_content(move: Callable[[Array, tuple[int, ...]], Array]) -> Any:
    def apply(p: _Pass, node: ir.Node) -> Array | None:
        data, *axes = _operands(p, node)
        if not axes:
            return np.asarray(np.squeeze(data))
        return np.asarray(move(data, tuple(int(a) for a in np.atleast_1d(axes[0]))))

    return apply


def _reshape_content(p: _Pass, node: ir.Node) -> Array | None:
    data, target = _operands(p, node)
    return data.reshape([int(t) for t in target])


def _range_content(p: _Pass, node: ir.Node) -> Array | None:
    start, limit, delta = (int(o.reshape(())[()]) for o in _operands(p, node))
    return _objects(list(range(start, limit, delta)))


def _product_content(p: _Pass, node: ir.Node) -> Array | None:
    data = _operands(p, node)[0]
    keep = node.attributes.get("keepdims")
    total = _product(list(data.ravel()))
    one = np.empty((1,) * data.ndim if keep is None or keep.as_int() else (), object)
    one[...] = total
    return one


def _size_content(p: _Pass, node: ir.Node) -> Array | None:
    dims = p.dims(node.inputs[0])
    return None if dims is None or None in dims else _objects([_product(dims)]).reshape(())


def _filled_content(p: _Pass, node: ir.Node) -> Array | None:
    (shape,) = _operands(p, node)
    attribute = node.attributes.get("value")
    fill = attribute.as_tensor().numpy().reshape(()) if attribute else np.float32(0)
    if fill.dtype.kind not in "iu":
        return None
    result = np.empty([int(s) for s in shape], object)
    result[...] = int(fill)
    return result


def _compare(function: Callable[[Array, Array], Any]) -> Callable[[_Pass, ir.Node], Array | None]:
    def apply(p: _Pass, node: ir.Node) -> Array | None:
        a, b = _operands(p, node)
        if any(isinstance(e, Poly) for part in (a, b) for e in part.ravel()):
            return None
        return np.asarray(function(a, b)).astype(bool)

    return apply


CONTENTS: dict[str, Callable[[_Pass, ir.Node], Array | None]] = {
    "Shape": _shape_content,
    "Identity": _arithmetic(lambda a: a),
    "Add": _arithmetic(lambda a, b: a + b),
    "Sub": _arithmetic(lambda a, b: a - b),
    "Mul": _arithmetic(lambda a, b: a * b),
    "Div": _arithmetic(_integer_division),
    "Mod": _arithmetic(lambda a, b: a % b),
    "Neg": _arithmetic(lambda a: -a),
    "Abs": _arithmetic(np.abs),
    "Max": _arithmetic(lambda *parts: functools.reduce(np.maximum, parts)),
    "Min": _arithmetic(lambda *parts: functools.reduce(np.minimum, parts)),
    "Sqrt": _arithmetic(np.sqrt),
    "Equal": _compare(lambda a, b: a == b),
    "Less": _compare(lambda a, b: a < b),
    "LessOrEqual": _compare(lambda a, b: a <= b),
    "Greater": _compare(lambda a, b: a > b),
    "GreaterOrEqual": _compare(lambda a, b: a >= b),
    "Not": _arithmetic(np.logical_not),
    "And": _arithmetic(np.logical_and),
    "Or": _arithmetic(np.logical_or),
    "Where": _arithmetic(np.where),
    "Expand": _arithmetic(lambda a, shape: a * np.ones([int(s) for s in shape], object)),
    "Size": _size_content,
    "ConstantOfShape": _filled_content,
    "Gather": _gather_content,
    "Slice": _slice_content,
    "Concat": _concat_content,
    "Cast": _cast_content,
    "Unsqueeze": _axes_content(np.expand_dims),
    "Squeeze": _axes_content(np.squeeze),
    "Reshape": _reshape_content,
    "Range": _range_content,
    "ReduceProd": _product_content,
}
