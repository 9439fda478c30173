"""Append nodes to a ModelProto, each in the form that the model's own opset understands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..errors import ModelError, UnknownNameError
from ._graph_utils import find_value, generate_graph_name, infer_shapes, names_in

FLOATS = frozenset(
    {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
    }
)


class Emitter:
    """Builds on `model`; every method returns the name of its result.

    Reductions, Squeeze, Unsqueeze and Clip changed their form over the opsets (attributes became
    inputs); the methods here write the one that is valid.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.graph = model, model.graph
        self.opset = next((o.version for o in model.opset_import if o.domain in {"", "ai.onnx"}), 0)
        self._names = names_in(model)
        self._nodes: Any = model.graph.node

    def name(self, token: str) -> str:
        """A fresh name."""
        while (name := generate_graph_name(token)) in self._names:
            pass
        self._names.add(name)
        return name

    def require(self, opset: int, what: str) -> None:
        """Raise when the model's opset is older than `what` needs."""
        if self.opset < opset:
            raise ModelError(
                f"{what} needs opset {opset} or later, and the model has opset {self.opset}. "
                f"Raise it with onnx.version_converter.convert_version(model, {opset})."
            )

    # -- what is known -----------------------------------------------------------------------

    def value(self, name: str) -> onnx.ValueInfoProto:
        """Type and shape of a value, inferred now if need be."""
        found = find_value(self.model, name)
        if found is None:
            infer_shapes(self.model)
            found = find_value(self.model, name)
        if found is None:
            known = [v.name for v in (*self.graph.output, *self.graph.input)]
            raise UnknownNameError("value with a known type", name, known)
        return found

    def dtype(self, name: str) -> int:
        """Element type of a value."""
        return int(self.value(name).type.tensor_type.elem_type)

    def dims(self, name: str) -> list[int | str | None]:
        """Dimensions of a value: numbers, symbols or None."""
        tensor = self.value(name).type.tensor_type
        if not tensor.HasField("shape"):
            raise ModelError(
                f"The number of dimensions of {name!r} is not known. Give the model's inputs "
                "full shapes (symbolic dimensions are fine)."
            )
        return [
            d.dim_value if d.HasField("dim_value") else (d.dim_param or None)
            for d in tensor.shape.dim
        ]

    def rank(self, name: str) -> int:
        """Number of dimensions of a value."""
        return len(self.dims(name))

    # -- nodes -------------------------------------------------------------------------------

    def node(
        self, op_type: str, *inputs: str, token: str = "", domain: str = "", **attributes: Any
    ) -> str:
        """Append a node with one output."""
        return self.nodes(op_type, inputs, [token or f"{op_type.lower()}_output"],
                          domain=domain, **attributes)[0]  # fmt: skip

    def nodes(
        self,
        op_type: str,
        inputs: Sequence[str],
        tokens: Sequence[str],
        *,
        domain: str = "",
        **attributes: Any,
    ) -> list[str]:
        """Append a node with an output per token."""
        outputs = [self.name(token) for token in tokens]
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        attributes = {k: v for k, v in attributes.items() if v is not None}
        self._nodes.append(
            helper.make_node(
                op_type, given, outputs, name=self.name(op_type), domain=domain, **attributes
            )
        )
        return outputs

    @contextlib.contextmanager
    def body(self) -> Iterator[list[onnx.NodeProto]]:
        """Nodes emitted meanwhile go to a list, for a subgraph; constants stay outside."""
        outer, self._nodes = self._nodes, []
        try:
            yield self._nodes
        finally:
            self._nodes = outer

    def constant(
        self, value: Any, dtype: int | None = None, token: str = "constant", like: str = ""
    ) -> str:
        """A new initializer, of a given element type or that of the value `like`."""
        if like:
            dtype = self.dtype(like)
        array = np.asarray(value)
        if dtype is None:
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        array = np.array(array, helper.tensor_dtype_to_np_dtype(dtype))  # 0-d stays 0-d
        name = self.name(token)
        tensor = numpy_helper.from_array(array, name)
        tensor.data_type = dtype
        self.graph.initializer.append(tensor)
        return name

    def number(self, value: float, like: str) -> str:
        """A constant without dimensions, of the element type of `like`."""
        return self.constant(np.array(value, np.float64), like=like)

    def input(self, name: str, dtype: int, dims: Sequence[int | str | None]) -> str:
        """A new graph input."""
        self.graph.input.append(helper.make_tensor_value_info(name, dtype, list(dims)))
        self._names.add(name)
        return name

    # -- arithmetic --------------------------------------------------------------------------

    def add(self, a: str, b: str) -> str:
        """a + b."""
        return self.node("Add", a, b)

    def sub(self, a: str, b: str) -> str:
        """a − b."""
        return self.node("Sub", a, b)

    def mul(self, a: str, b: str) -> str:
        """a · b."""
        return self.node("Mul", a, b)

    def div(self, a: str, b: str) -> str:
        """a / b."""
        return self.node("Div", a, b)

    def scale(self, x: str, factor: float) -> str:
        """x times a number."""
        return x if factor == 1.0 else self.mul(x, self.number(factor, x))

    def shift(self, x: str, summand: float) -> str:
        """x plus a number."""
        return x if summand == 0.0 else self.add(x, self.number(summand, x))

    def cast(self, x: str, dtype: int) -> str:
        """x in another element type."""
        return self.node("Cast", x, to=dtype)

    def is_equal(self, x: str, number: float, like: str) -> str:
        """1 where x equals a number, else 0, in the element type of `like`."""
        if self.opset < 11 and self.dtype(x) in FLOATS:  # Equal knew no floats then
            x = self.cast(x, onnx.TensorProto.INT64)
        value = self.constant(np.array(number), self.dtype(x))
        return self.cast(self.node("Equal", x, value), self.dtype(like))

    def at_least(self, x: str, minimum: float) -> str:
        """max(x, minimum)."""
        if minimum == 0.0:
            return self.node("Relu", x)
        if self.opset < 8:  # Max did not broadcast then
            return self.clip(x, minimum, None)
        return self.node("Max", x, self.number(minimum, x))

    def at_most(self, x: str, maximum: float) -> str:
        """min(x, maximum)."""
        if self.opset < 8:
            return self.clip(x, None, maximum)
        return self.node("Min", x, self.number(maximum, x))

    # -- operators whose form depends on the opset --------------------------------------------

    def reduce(
        self,
        op_type: str,
        x: str,
        axes: Sequence[int] | None = None,
        keepdims: bool = False,
        token: str = "",
    ) -> str:
        """ReduceSum, ReduceMean and the like over `axes`, by default all."""
        as_input = 13 if op_type == "ReduceSum" else 18
        token = token or f"{op_type.lower()}_output"
        if axes is None:
            return self.node(op_type, x, token=token, keepdims=int(keepdims))
        if self.opset >= as_input:
            where = self.constant(np.array(axes, np.int64))
            return self.node(op_type, x, where, token=token, keepdims=int(keepdims))
        rank = self.rank(x)
        positive = [a % rank for a in axes]  # negative axes came with opset 11
        return self.node(op_type, x, token=token, keepdims=int(keepdims), axes=positive)

    def unsqueeze(self, x: str, axis: int) -> str:
        """A new axis of size one; `axis` counts in the result, from the front."""
        return self._axes("Unsqueeze", x, axis)

    def squeeze(self, x: str, axis: int) -> str:
        """Without an axis of size one, counted from the front."""
        return self._axes("Squeeze", x, axis)

    def _axes(self, op_type: str, x: str, axis: int) -> str:
        if self.opset >= 13:
            return self.node(op_type, x, self.constant(np.array([axis], np.int64)))
        return self.node(op_type, x, axes=[axis])

    def clip(self, x: str, low: float | None, high: float | None, token: str = "") -> str:
        """x limited to an interval that may be open on either side."""
        if self.opset < 11:
            return self.node("Clip", x, token=token, min=low, max=high)
        bounds = [
            "" if b is None else self.constant(np.array(b), like=x, token=f"clip_{what}")
            for what, b in (("min", low), ("max", high))
        ]
        return self.node("Clip", x, *bounds, token=token)

    def softmax(self, op_type: str, x: str, axis: int) -> str:
        """Softmax or LogSoftmax along one axis."""
        rank = self.rank(x)
        axis %= rank
        if self.opset >= 13 or axis == rank - 1:  # before 13 all later axes were taken together
            return self.node(op_type, x, axis=axis)
        order = [*range(axis), *range(axis + 1, rank), axis]
        back = [order.index(i) for i in range(rank)]
        turned = self.node("Transpose", x, perm=order)
        return self.node("Transpose", self.node(op_type, turned, axis=rank - 1), perm=back)
