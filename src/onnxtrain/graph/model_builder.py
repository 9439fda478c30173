"""The op builder on a model as it came: a ModelProto at its own opset, which blocks extend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ..errors import ModelError, UnknownNameError
from .builder import Constants, Names, OpBuilder
from .older_forms import OLDER
from .protos import find_value, generate_graph_name, infer_shapes, names_in, node_arg_exists
from .tensor import Dim, Operand, Tensor


class BlockNames(Names):
    """Names as blocks give them, ``onnx::<token>::<N>``: unique over models of one process."""

    def fresh(self, stem: str) -> str:
        """A name that nothing in the model has."""
        while (name := generate_graph_name(stem)) in self._taken:
            pass
        self._taken.add(name)
        return name

    def output(self, node: str, op_type: str, index: int, count: int) -> str:
        """``onnx::<operator>_output::<N>``."""
        return self.fresh(f"{op_type.lower()}_output")


class ModelBuilder(OpBuilder):
    """Builds on a ModelProto. Operators are written as always, in their newest form.

    What the model's own opset does not know in that form (axes of reductions as an input, say)
    gets the form that it knows: see `older_forms`. Nodes are in the model after `append`.

    Args:
        model: what is extended, in place.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        opset = next((o.version for o in model.opset_import if o.domain in {"", "ai.onnx"}), 0)
        names = BlockNames(names_in(model))
        super().__init__(names, Constants(names), opset)
        self._named: dict[str, ir.Value] = {}
        self._stored = 0

    def require(self, opset: int, what: str) -> None:
        """Raise when the model's opset is older than `what` needs."""
        if self.opset < opset:
            raise ModelError(
                f"{what} needs opset {opset} or later, and the model has opset {self.opset}. "
                f"Raise it with onnx.version_converter.convert_version(model, {opset})."
            )

    # -- values of the model -----------------------------------------------------------------

    def operand(self, name: str) -> Tensor:
        """A value by its name, whatever its type."""
        return self.tensor(self._named.setdefault(name, ir.Value(name=name)))

    def value(self, name: str) -> Tensor:
        """A value by its name, with type and shape, which are inferred now if need be."""
        value = self._named.get(name)
        if value is None or value.type is None:
            info = find_value(self.model, name)
            if info is None:
                infer_shapes(self.model)
                info = find_value(self.model, name)
            if info is None:
                graph = self.model.graph
                known = [v.name for v in (*graph.output, *graph.input)]
                raise UnknownNameError("value with a known type", name, known)
            value = self._named.setdefault(name, ir.Value(name=name))
            described = ir.serde.deserialize_value_info_proto(info, None)
            value.type, value.shape = described.type, described.shape
        return self.tensor(value)

    def input(self, name: str, dtype: ir.DataType, dims: Sequence[Dim]) -> Tensor:
        """A new graph input; or the value of that name, if there is one."""
        if node_arg_exists(self.model, name):
            return self.value(name)
        info = onnx.helper.make_tensor_value_info(name, int(dtype), list(dims))
        self.model.graph.input.append(info)
        self.names.reserve(name)
        return self.value(name)

    def initializer(self, array: Any, dtype: ir.DataType, token: str) -> Tensor:
        """A new initializer with a name of its own."""
        name = self.names.fresh(token)
        data = np.array(array, dtype.numpy())
        self.model.graph.initializer.append(_tensor(data, dtype, name))
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(data.shape))
        return self.tensor(self._named.setdefault(name, value))

    # -- nodes -------------------------------------------------------------------------------

    def emit(
        self,
        op_type: str,
        inputs: Sequence[Operand],
        outputs: int,
        *,
        domain: str = "",
        **attributes: Any,
    ) -> tuple[Tensor, ...]:
        """Build a node, in the form that the model's opset has."""
        newest, older = OLDER.get(op_type, (0, None))
        if older is not None and self.opset < newest and domain in {"", "ai.onnx"}:
            result = older(self, op_type, list(inputs), attributes)
            if result is not None:
                return (result,)
        return super().emit(op_type, inputs, outputs, domain=domain, **attributes)

    def exactly(self, op_type: str, *inputs: Operand, **attributes: Any) -> Tensor:
        """Build a node as it is given, whatever the opset."""
        return super().emit(op_type, inputs, 1, **attributes)[0]

    def append(self, result: Tensor, token: str = "") -> str:
        """Put what was built into the model; the name of `result`.

        Args:
            result: the value that the caller is after.
            token: what to call it.
        """
        if token:
            result.value.name = self.names.fresh(token)
        graph = self.model.graph
        graph.node.extend(ir.serde.serialize_node(node) for node in self.nodes)
        self.nodes = []
        constants = self.constants.values()
        for constant in constants[self._stored :]:
            tensor = constant.const_value
            assert tensor is not None
            if constant.uses() or constant is result.value:
                graph.initializer.append(_tensor(tensor.numpy(), tensor.dtype, constant.name or ""))
        self._stored = len(constants)
        return result.name


def _tensor(array: np.ndarray[Any, Any], dtype: ir.DataType, name: str) -> onnx.TensorProto:
    return ir.to_proto(ir.tensor(array, dtype=dtype, name=name))
