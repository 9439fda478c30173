"""The op builder: ``op.MatMul(a, b)`` appends a node and returns its output.

Python numbers become constants of the right type, names are unique and tell which forward node
they came from, and a few helpers (`shape_of`, `sum_to`, `zeros_like`) do once what gradient rules
would otherwise repeat: being right for static and for dynamic shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from .parameters import mark_constant
from .schema import constant_dtype, output_dtype, signature
from .tensor import Dim, Operand, Tensor, dims_of


class Names:
    """Hands out names that are not in use yet."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def reserve(self, name: str) -> None:
        """Mark a name as used."""
        self._taken.add(name)

    def fresh(self, stem: str) -> str:
        """`stem` itself when free, else with a number behind it."""
        name, number = stem, self._next.get(stem, 0)
        while name in self._taken:
            number += 1
            name = f"{stem}_{number}"
        self._next[stem] = number
        self._taken.add(name)
        return name

    def output(self, node: str, op_type: str, index: int, count: int) -> str:
        """A name for one of the `count` outputs of a node."""
        return self.fresh(f"{node}_out" if count == 1 else f"{node}_out{index}")


class Constants:
    """The constants that built nodes use, each stored once; they become initializers."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._known: dict[tuple[Any, ...], ir.Value] = {}

    def get(self, array: np.ndarray[Any, Any], dtype: ir.DataType) -> ir.Value:
        """The value that stands for `array` in the graph."""
        key = (dtype, array.shape, array.tobytes())
        value = self._known.get(key)
        if value is None:
            name = self._names.fresh(f"const_{_describe(array)}")
            tensor = ir.tensor(array, dtype=dtype, name=name)
            value = ir.Value(
                name=name,
                shape=ir.Shape(array.shape),
                type=ir.TensorType(dtype),
                const_value=tensor,
            )
            self._known[key] = value
        return value

    def values(self) -> list[ir.Value]:
        """All constants handed out so far."""
        return list(self._known.values())


def _describe(array: np.ndarray[Any, Any]) -> str:
    """A readable stem for a constant's name: its content when short, else its shape."""
    if array.size == 0:
        return "empty"
    if array.size <= 4:
        return "_".join(f"{x:g}" if array.dtype.kind == "f" else str(x) for x in array.ravel())
    return "x".join(map(str, array.shape))


class OpBuilder:
    """Appends nodes to a list; every ONNX operator is a method.

    Attributes:
        nodes: the nodes built so far, in an order that can be run.
        opset: version of ai.onnx that is emitted.
        scope: prefix of the names of new nodes; the walk sets it to the forward node's name.
        node: the forward node whose gradient is being built (see `output`).
    """

    def __init__(self, names: Names, constants: Constants, opset: int) -> None:
        self.names, self.constants, self.opset = names, constants, opset
        self.nodes: list[ir.Node] = []
        self.scope = ""
        self.node: ir.Node | None = None
        self._shapes: dict[ir.Value, Tensor] = {}
        self._dims: dict[tuple[ir.Value, int], Tensor] = {}
        self._rows_of_ones: dict[tuple[tuple[Dim, ...] | None, ir.DataType], Tensor] = {}

    @classmethod
    def on(cls, model: ir.Model) -> OpBuilder:
        """A builder that knows the names in use in a model; `attach` what it built."""
        graph = model.graph
        names = Names(v.name for v in (*graph.inputs, *graph.initializers.values()) if v.name)
        for node in graph.all_nodes():
            names.reserve(node.name or "")
            for output in node.outputs:
                names.reserve(output.name or "")
        return cls(names, Constants(names), model.opset_imports[""])

    def attach(
        self,
        graph: ir.Graph,
        *,
        before: ir.Node | None = None,
        after: ir.Node | None = None,
        mark: bool = False,
    ) -> None:
        """Put the nodes into a graph, by default at its end, with the constants they read.

        With `mark` these constants are never taken for weights (see `parameters`).
        """
        self.place(graph, before=before, after=after)
        self.register_constants(graph, mark=mark)

    def place(
        self, graph: ir.Graph, *, before: ir.Node | None = None, after: ir.Node | None = None
    ) -> list[ir.Node]:
        """Put the nodes into a graph, which may be a body, and give them; constants come later."""
        nodes, self.nodes = self.nodes, []
        if before is not None:
            graph.insert_before(before, nodes)
        elif after is not None:
            graph.insert_after(after, nodes)
        else:
            graph.extend(nodes)
        return nodes

    def register_constants(self, graph: ir.Graph, *, mark: bool = False) -> None:
        """Make the constants that nodes read initializers of the main graph."""
        for constant in self.constants.values():
            if constant.uses() or constant.is_graph_output():
                if mark:
                    mark_constant(constant)
                graph.register_initializer(constant)

    # -- operators ---------------------------------------------------------------------------

    def __getattr__(self, op_type: str) -> Callable[..., Tensor]:
        """``op.Name(*inputs, **attributes)``: append a node of operator Name, give its output."""
        if op_type.startswith("_"):
            raise AttributeError(op_type)

        def build(*inputs: Operand, **attributes: Any) -> Tensor:
            return self.emit(op_type, inputs, 1, **attributes)[0]

        return build

    def many(
        self, op_type: str, *inputs: Operand, outputs: int, **attributes: Any
    ) -> tuple[Tensor, ...]:
        """Append a node with several outputs: ``a, b = op.many("Split", x, outputs=2, axis=0)``."""
        return self.emit(op_type, inputs, outputs, **attributes)

    def exactly(self, op_type: str, *inputs: Operand, **attributes: Any) -> Tensor:
        """Append a node as it is given, whatever the opset."""
        return self.emit(op_type, inputs, 1, **attributes)[0]

    def emit(
        self,
        op_type: str,
        inputs: Sequence[Operand],
        outputs: int,
        *,
        domain: str = "",
        **attributes: Any,
    ) -> tuple[Tensor, ...]:
        """Append a node and give its outputs."""
        sig = signature(op_type, self.opset, domain)
        attributes = {k: v for k, v in attributes.items() if v is not None}
        known = [i.dtype if isinstance(i, Tensor) else None for i in inputs]
        values = [self._operand(sig, i, operand, known) for i, operand in enumerate(inputs)]
        while values and values[-1] is None:
            values.pop()
        dtypes = [v.dtype if v is not None else None for v in values]
        name = self.names.fresh(f"{self.scope}/{op_type}" if self.scope else op_type)
        results = [
            ir.Value(
                name=self.names.output(name, op_type, i, outputs),
                type=_tensor_type(output_dtype(sig, i, dtypes, attributes)),
            )
            for i in range(outputs)
        ]
        converted = [_attribute(name, value) for name, value in attributes.items()]
        self.nodes.append(ir.Node(domain, op_type, values, converted, outputs=results, name=name))
        return tuple(Tensor(self, v) for v in results)

    def body(
        self, name: str, inputs: Sequence[Tensor], build: Callable[[], Sequence[Tensor]]
    ) -> ir.Graph:
        """What `build` builds as the body of a loop or branch; its constants stay outside.

        Args:
            name: of the body.
            inputs: made by `body_input`.
            build: builds the nodes, and gives the outputs.
        """
        outer = self.nodes, self._shapes, self._dims, self._rows_of_ones
        self.nodes = []
        # what is known outside may be used inside, and not the other way round
        self._shapes, self._dims = dict(self._shapes), dict(self._dims)
        self._rows_of_ones = dict(self._rows_of_ones)
        try:
            outputs = build()
            values = [[t.value for t in tensors] for tensors in (inputs, outputs)]
            return ir.Graph(values[0], values[1], nodes=self.nodes, name=name)
        finally:
            self.nodes, self._shapes, self._dims, self._rows_of_ones = outer

    def body_input(self, stem: str, dtype: ir.DataType, dims: Sequence[Dim] | None) -> Tensor:
        """An input for a body."""
        return self.graph_input(self.names.fresh(stem), dtype, dims)

    def graph_input(self, name: str, dtype: ir.DataType, dims: Sequence[Dim] | None) -> Tensor:
        """An input with just this name; it is for the caller to put it into a graph."""
        self.names.reserve(name)
        shape = None if dims is None else ir.Shape(list(dims))
        return self.tensor(ir.Value(name=name, type=ir.TensorType(dtype), shape=shape))

    def _operand(
        self, sig: Any, index: int, operand: Operand, known: Sequence[ir.DataType | None]
    ) -> ir.Value | None:
        if operand is None or isinstance(operand, Tensor):
            return operand.value if operand is not None else None
        array = np.asarray(operand)
        if isinstance(operand, np.ndarray):
            return self.const(operand).value
        dtype = constant_dtype(sig, index, known, array.dtype.kind == "f")
        return self.const(array, dtype).value

    # -- values ------------------------------------------------------------------------------

    def tensor(self, value: ir.Value) -> Tensor:
        """Wrap a value of the graph."""
        return Tensor(self, value)

    def const(
        self,
        array: np.ndarray[Any, Any] | Sequence[Any] | float | bool,
        dtype: ir.DataType | None = None,
    ) -> Tensor:
        """A constant; integers default to INT64 and Python floats to FLOAT."""
        data = np.asarray(array)
        if dtype is None:
            if not isinstance(array, np.ndarray) and data.dtype.kind == "f":
                dtype = ir.DataType.FLOAT
            else:
                dtype = ir.DataType.from_numpy(data.dtype)
        data = np.asarray(data).astype(dtype.numpy())
        return Tensor(self, self.constants.get(data, dtype))

    def like(self, number: float, x: Tensor) -> Tensor:
        """A scalar constant of the same element type as `x`."""
        return self.const(number, x.dtype)

    def as_type_of(self, value: Tensor, x: Tensor) -> Tensor:
        """A value in the element type of `x`; no node where it has it already."""
        return value if value.dtype == x.dtype else self.Cast(value, to=x.dtype)

    def output(self, index: int) -> Tensor:
        """Output `index` of the forward node, requested from it now if nobody had before.

        This is how a rule uses what the forward operator already knows: MaxPool's indices,
        Dropout's mask, LayerNormalization's mean.
        """
        node = self.node
        assert node is not None, "op.output() only works inside a gradient rule"
        if len(node.outputs) <= index:
            node.resize_outputs(index + 1)
        value = node.outputs[index]
        if not value.name:
            value.name = self.names.fresh(f"{node.name or node.op_type}_output{index}")
        if value.type is None:
            sig = signature(node.op_type, self.opset, node.domain)
            dtypes = [v.dtype if v is not None else None for v in node.inputs]
            value.type = _tensor_type(output_dtype(sig, index, dtypes, {}))
        return self.tensor(value)

    # -- shapes ------------------------------------------------------------------------------

    def shape_of(self, x: Tensor) -> Tensor:
        """The shape as a 1-D INT64 tensor: a constant when static, else one shared Shape node."""
        if x.static_shape is not None:
            return self.const(np.array(x.static_shape, np.int64))
        known = self._shapes.get(x.value)
        if known is None:
            known = self._shapes[x.value] = self.Shape(x)
        return known

    def dim_of(self, x: Tensor, axis: int) -> Tensor:
        """One dimension as an INT64 tensor of shape [1]."""
        if x.shape is None:
            return self.Gather(self.shape_of(x), [axis])
        axis = axis % x.rank
        size = x.dim(axis)
        if isinstance(size, int):
            return self.const(np.array([size], np.int64))
        key = (x.value, axis)
        known = self._dims.get(key)
        if known is None:
            known = self._dims[key] = self.Shape(x, start=axis, end=axis + 1)
        return known

    def reshape_like(
        self,
        x: Tensor,
        like: Tensor,
        x_shape: Sequence[Dim] | None = None,
        may_infer: Collection[int] = (),
    ) -> Tensor:
        """`x` with the shape of `like`.

        One unknown dimension follows from the others, and those that `x` has in the same place are
        copied. Both at once is an error where there are no elements at all.

        Args:
            x: any tensor.
            like: another with as many elements.
            x_shape: what is known of the shape of `x`, if more than itself tells.
            may_infer: dimensions beside which one may follow, as in a Reshape that came before.
        """
        dims = like.shape
        if dims is not None and 0 not in dims:
            x_dims = (x.shape if x_shape is None else x_shape) or ()
            shape = [d if isinstance(d, int) else -1 for d in dims]
            same = {
                i for i, (mine, other) in enumerate(zip(x_dims, dims))
                if shape[i] == -1 and mine is not None and mine == other
            }  # fmt: skip
            unknown = shape.count(-1)
            follows = unknown - len(same) == 1 and same <= set(may_infer)
            if unknown > 1 and (unknown == len(same) or follows):
                shape = [0 if i in same else size for i, size in enumerate(shape)]
            if shape.count(-1) <= 1:
                return self.Reshape(x, self.const(np.array(shape, np.int64)))
        return self.Reshape(x, self.shape_of(like), allowzero=1)

    def zeros_like(self, x: Tensor) -> Tensor:
        """A tensor of zeros with the shape and type of `x`."""
        return self.full(self.shape_of(x), 0, x.dtype)

    def full(self, shape: Tensor, number: float, dtype: ir.DataType) -> Tensor:
        """A tensor filled with one number."""
        if dtype == ir.DataType.BFLOAT16 and self.opset < 20:  # ConstantOfShape has no bfloat16 yet
            return self.Cast(self.full(shape, number, ir.DataType.FLOAT), to=dtype)
        fill = ir.tensor(np.array([number], dtype.numpy()), dtype=dtype)
        result: Tensor = self.ConstantOfShape(shape, value=fill)
        result.value.type = ir.TensorType(dtype)
        return result

    def count(
        self, x: Tensor, axes: Sequence[int] | None = None, like: Tensor | None = None
    ) -> Tensor:
        """How many elements lie along `axes` (all of them by default), typed like `like` or `x`."""
        dtype = (like or x).dtype
        axes = range(x.rank) if axes is None else [a % x.rank for a in axes]
        dims = [x.dim(a) for a in axes]
        if all(isinstance(d, int) for d in dims):
            return self.const(
                np.array(int(np.prod([int(d) for d in dims if d is not None]))), dtype
            )
        picked = self.Gather(self.shape_of(x), self.const(np.array(list(axes), np.int64)), axis=0)
        return self.Cast(self.ReduceProd(picked, keepdims=0), to=dtype)

    def sum_to(self, dx: Tensor, x: Tensor, y_shape: tuple[Dim, ...] | None, y: Tensor) -> Tensor:
        """Sum `dx`, which has the shape of `y`, over the axes along which `x` was broadcast.

        Axes are decided now where the dimensions tell (a number other than 1, or the same
        symbol on both sides, was not broadcast; a 1 against another number was), and by a few
        operations on the shapes at run time where they do not.
        """
        x_shape = x.shape
        if x_shape is not None and y_shape is not None:
            axes = broadcast_axes(x_shape, y_shape)
            if axes is not None:
                return self._sum_static(dx, x, axes, y_shape)
        sx, sy = self.shape_of(x), self.shape_of(y)
        if x_shape is not None and y_shape is not None:
            lead = np.ones(len(y_shape) - len(x_shape), np.int64)
            padded = self.Concat(self.const(lead), sx, axis=0) if lead.size else sx
        else:
            padded = self.Concat(
                self.full(self.Sub(self.Shape(sy), self.Shape(sx)), 1, ir.DataType.INT64),
                sx,
                axis=0,
            )
        axes_now = self.Reshape(self.NonZero(padded - sy), [-1])
        summed = self.ReduceSum(dx, axes_now, keepdims=1, noop_with_empty_axes=1)
        return self.Reshape(summed, sx)

    def _sum_static(
        self, dx: Tensor, x: Tensor, axes: list[int], y_shape: tuple[Dim, ...]
    ) -> Tensor:
        if not axes:
            return dx
        lead = len(y_shape) - x.rank
        if axes == list(range(lead)):
            return (
                self.sum_leading(dx, x, y_shape)
                if x.rank == 1
                else self.ReduceSum(dx, axes, keepdims=0)
            )
        summed: Tensor = self.ReduceSum(dx, axes, keepdims=1)
        return self.Squeeze(summed, list(range(lead))) if lead else summed

    def sum_leading(self, dx: Tensor, x: Tensor, dx_shape: tuple[Dim, ...] | None = None) -> Tensor:
        """Sum over all axes but the last, into the shape of the vector `x`.

        What is known of the shape of `dx` may be more than itself tells (`dx_shape`).

        As a product with a row of ones: up to eleven times faster than ReduceSum on onnxruntime's
        CPU provider for the gradient of a bias (docs/performance.md).
        """
        width = x.dim(0)
        rows = dx
        if dx.shape is None or dx.rank != 2:
            if isinstance(width, int):
                rows = self.Reshape(dx, self.const(np.array([-1, width], np.int64)))
            else:
                shape = self.Concat(self.const([-1]), self.dim_of(x, 0), axis=0)
                rows = self.Reshape(dx, shape)
        dims = _more_exact(dx.shape, dx_shape)
        return self._ones(rows, None if dims is None else dims[:-1]) @ rows

    def _ones(self, rows: Tensor, lead: tuple[Dim, ...] | None) -> Tensor:
        """A vector of ones, one per row; shared by all tensors whose leading dimensions agree."""
        sizes = [d for d in lead or () if isinstance(d, int)]
        if lead is not None and len(sizes) == len(lead):
            return self.const(np.ones(int(np.prod(sizes))), rows.dtype)
        key = (lead, rows.dtype)
        if lead is None or None in lead or key not in self._rows_of_ones:
            size = self.Shape(rows, start=0, end=1)
            self._rows_of_ones[key] = self.full(size, 1, rows.dtype)
        return self._rows_of_ones[key]

    def transpose(self, x: Tensor, *perm: int) -> Tensor:
        """Transpose; without a permutation the last two axes are swapped."""
        order = list(perm) if perm else [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        return self.Transpose(x, perm=order)


def _more_exact(
    one: tuple[Dim, ...] | None, other: tuple[Dim, ...] | None
) -> tuple[Dim, ...] | None:
    """What two descriptions of one shape tell together: numbers rather than symbols or nothing."""
    if one is None or other is None:
        return one if other is None else other
    return tuple(a if isinstance(a, int) or b is None else b for a, b in zip(one, other))


def broadcast_axes(x: tuple[Dim, ...], y: tuple[Dim, ...]) -> list[int] | None:
    """Axes of `y` along which a tensor of shape `x` was repeated; None when that is not decided."""
    lead = len(y) - len(x)
    axes = list(range(lead))
    for axis, size in enumerate(x, start=lead):
        if size == y[axis] and size is not None:
            continue
        if isinstance(size, int) and size != 1:
            continue
        if size == 1:  # right whatever a symbol on the other side stands for
            axes.append(axis)
        else:
            return None
    return axes


def _attribute(name: str, value: Any) -> ir.Attr:
    """The common kinds of attribute directly; onnx-ir's general conversion is slow."""
    if isinstance(value, ir.Attr):
        return value
    if isinstance(value, int):
        return ir.AttrInt64(name, int(value))
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    if isinstance(value, (list, tuple)) and all(type(v) is int for v in value):
        return ir.AttrInt64s(name, value)
    return ir.convenience.convert_attribute(name, value)


def _tensor_type(dtype: ir.DataType | None) -> ir.TensorType | None:
    return None if dtype is None else ir.TensorType(dtype)


__all__ = ["Constants", "Names", "OpBuilder", "Tensor", "broadcast_axes", "dims_of"]
