"""The elementary blocks: arithmetic, reductions, constants, inputs, one linear layer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import UnknownNameError
from ..graph.block import Block as Block
from ..graph.block import BlockError
from ..optim.clipping import sum_of_squares


class _BinaryOp(Block):
    """An operator of two inputs."""

    def __init__(self, op_name: str) -> None:
        super().__init__()
        self._op_name = op_name

    def build(self, input_name1: str, input_name2: str) -> str:
        """Append the operator."""
        op = self._builder
        operands = [op.operand(n) for n in (input_name1, input_name2)]
        return op.append(op.emit(self._op_name, operands, 1)[0])


class Add(_BinaryOp):
    """``input1 + input2``."""

    def __init__(self) -> None:
        super().__init__("Add")


class Sub(_BinaryOp):
    """``input1 - input2``."""

    def __init__(self) -> None:
        super().__init__("Sub")


class Mul(_BinaryOp):
    """``input1 * input2``."""

    def __init__(self) -> None:
        super().__init__("Mul")


class Div(_BinaryOp):
    """``input1 / input2``."""

    def __init__(self) -> None:
        super().__init__("Div")


class _UnaryOp(Block):
    """An operator of one input."""

    def __init__(self, op_name: str, **attributes: Any) -> None:
        super().__init__()
        self._op_name, self._attributes = op_name, attributes

    def build(self, input_name: str) -> str:
        """Append the operator."""
        op = self._builder
        result = op.emit(self._op_name, [op.operand(input_name)], 1, **self._attributes)[0]
        return op.append(result)


class Sigmoid(_UnaryOp):
    """``1 / (1 + exp(-x))``."""

    def __init__(self) -> None:
        super().__init__("Sigmoid")


class Log(_UnaryOp):
    """The natural logarithm."""

    def __init__(self) -> None:
        super().__init__("Log")


class Neg(_UnaryOp):
    """``-x``."""

    def __init__(self) -> None:
        super().__init__("Neg")


class Abs(_UnaryOp):
    """``|x|``."""

    def __init__(self) -> None:
        super().__init__("Abs")


class Cast(_UnaryOp):
    """Another element type, given as an `onnx.TensorProto` number."""

    def __init__(self, to: int) -> None:
        super().__init__("Cast", to=to)


class ReduceMean(Block):
    """The mean over all axes."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__()
        self._keepdims = keepdims

    def build(self, reduce_input_name: str) -> str:
        """Append the operator."""
        op = self._builder
        x = op.operand(reduce_input_name)
        return op.append(op.ReduceMean(x, keepdims=int(self._keepdims)))


class ReduceSum(Block):
    """The sum over all axes."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__()
        self._keepdims = keepdims

    def build(self, reduce_input_name: str) -> str:
        """Append the operator."""
        op = self._builder
        x = op.operand(reduce_input_name)
        return op.append(op.ReduceSum(x, keepdims=int(self._keepdims)))


class Pow(Block):
    """``x ** exponent``."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = exponent

    def build(self, pow_input_name: str) -> str:
        """Append the operator; the exponent is a FLOAT[1] initializer."""
        op = self._builder
        x, dtype = op.operand(pow_input_name), ir.DataType.FLOAT
        if op.opset < 12:  # both operands had to have one type
            x = op.value(pow_input_name)
            dtype = x.dtype
        exponent = op.initializer([self._exponent], dtype, "pow_exponent")
        return op.append(op.Pow(x, exponent))


class Constant(Block):
    """A number, as a FLOAT[1] initializer."""

    def __init__(self, value_float: float) -> None:
        super().__init__()
        self._value = value_float

    def build(self) -> str:
        """Append the initializer."""
        return self._builder.initializer([self._value], ir.DataType.FLOAT, "constant").name


class SequenceConstruct(Block):
    """A sequence of tensors."""

    def build(self, *sequence_input_names: str) -> str:
        """Append the operator."""
        op = self._builder
        return op.append(op.SequenceConstruct(*(op.operand(n) for n in sequence_input_names)))


class ReduceAllL2(Block):
    """The 2-norm of several tensors together, FLOAT[1], in standard operators."""

    def build(self, *reduce_input_names: str) -> str:
        """Append ``sqrt(Σ ‖x‖²)``."""
        if not reduce_input_names:
            raise BlockError("ReduceAllL2 needs at least one input.")
        op = self._builder
        total = sum_of_squares(op, [op.operand(name) for name in reduce_input_names])
        return op.append(op.Reshape(op.Sqrt(total), [1]), "reducealll2_output")


class Clip(Block):
    """x limited to ``[clip_min, clip_max]``; None leaves a side open."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self._min, self._max = clip_min, clip_max

    def build(self, clip_input_name: str) -> str:
        """Append the operator."""
        op = self._builder
        return op.append(op.Clip(op.value(clip_input_name), self._min, self._max))


class PassThrough(Block):
    """The names it is given; the graph stays as it is."""

    def build(self, *input_names: str) -> tuple[str, ...]:
        """Give the names back."""
        return input_names


class InputLike(Block):
    """A new graph input with the type and shape of an input or output.

    Args:
        like: name of that input or output.
    """

    def __init__(self, like: str) -> None:
        super().__init__()
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        """Add the input, under a fresh name unless one is given."""
        graph = self._model.graph
        values = [*graph.output, *graph.input]
        for value in values:
            if value.name == self._like:
                cloned = copy.deepcopy(value)
                cloned.name = input_name or self._builder.names.fresh(f"{self._like}_input")
                graph.input.append(cloned)
                return str(cloned.name)
        raise UnknownNameError("graph input or output", self._like, [v.name for v in values])


class LabelEncoder(Block):
    """Maps keys to values with ``ai.onnx.ml::LabelEncoder``; the model must import that opset."""

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: Sequence[float] | None = None,
        keys_int64s: Sequence[int] | None = None,
        keys_strings: Sequence[str] | None = None,
        values_floats: Sequence[float] | None = None,
        values_int64s: Sequence[int] | None = None,
        values_strings: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._attributes: dict[str, Any] = {
            "default_float": default_float,
            "default_int64": default_int64,
            "default_string": default_string,
            "keys_floats": keys_floats,
            "keys_int64s": keys_int64s,
            "keys_strings": keys_strings,
            "values_floats": values_floats,
            "values_int64s": values_int64s,
            "values_strings": values_strings,
        }

    def build(self, label_encoder_input_name: str) -> str:
        """Append the operator."""
        op = self._builder
        x = op.operand(label_encoder_input_name)
        encoded = op.LabelEncoder(x, domain="ai.onnx.ml", **self._attributes)
        return op.append(encoded)


class Linear(Block):
    """A layer ``alpha · x·W + beta · b`` with random initial weights.

    Args:
        in_features: size of the last axis of the input.
        out_features: size of the last axis of the output.
        bias: whether b exists.
        alpha: factor on the product.
        beta: factor on the bias.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        super().__init__()
        self._shape, self._bias = (in_features, out_features), bias
        self._factors: dict[str, Any] = {"alpha": alpha, "beta": beta}

    def build(self, linear_input_name: str) -> str:
        """Append a Gemm with initializers ``onnx::linear.weight::N`` and ``….bias::N``."""
        op, random = self._builder, np.random.default_rng()
        weight = random.standard_normal(self._shape)
        inputs = [op.initializer(weight, ir.DataType.FLOAT, "linear.weight")]
        if self._bias:
            bias = random.standard_normal(self._shape[1])
            inputs.append(op.initializer(bias, ir.DataType.FLOAT, "linear.bias"))
        result = op.Gemm(op.operand(linear_input_name), *inputs, **self._factors)
        return op.append(result, "linear_output")
