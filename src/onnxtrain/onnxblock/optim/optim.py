"""Blocks around `onnxtrain.optim`: the optimizer model that scripts know, in standard operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import onnx
import onnx_ir as ir

from ... import optim as _optim
from ...graph import OpBuilder, Tensor
from ...graph.accessor import current
from ...graph.block import Block, BlockError
from ...hyper import check_limit
from ...optim.clipping import norm_ratio
from ...optim.optimizers import ADAMW_PRESETS
from ..onnxblock import ForwardBlock


class ClipGradNorm(Block):
    """Scales gradients so that their common 2-norm is at most `max_norm`.

    Given to an optimizer block as ``clip_grad``; called on the name of a sequence of tensors of
    known length it appends the clipping and gives the name of the clipped sequence.

    Args:
        max_norm: the limit. The factor is ``min(1, max_norm / (‖g‖₂ + 1e-6))``.
    """

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self.max_norm = check_limit(max_norm, "max_norm", _optim.OptimizerError)

    def to_optim(self) -> _optim.ClipNorm:
        """The same as an option of `onnxtrain.optim`."""
        return _optim.ClipNorm(self.max_norm)

    def build(self, gradients_name: str) -> str:
        """Append the clipping of a sequence: one loop for the norm, one for the scaling."""
        op = self._builder
        op.require(17, "ClipGradNorm on a sequence (SequenceMap)")
        gradients = op.operand(gradients_name)

        def squares(factor: float) -> Tensor:
            return _sum_of_squares(op, gradients, factor)

        ratio = norm_ratio(op, squares, op.const(float(self.max_norm)))
        return op.append(_map(op, gradients, "Mul", op.Min(ratio, op.const(1.0))))


class ClipGradValue(Block):
    """Limits every element of the gradients to ``[-limit, limit]``; for ``clip_grad``."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = check_limit(limit, "limit", _optim.OptimizerError)

    def to_optim(self) -> _optim.ClipValue:
        """The same as an option of `onnxtrain.optim`."""
        return _optim.ClipValue(self.limit)

    def build(self, gradients_name: str) -> str:
        """Append the clipping of a sequence."""
        op = self._builder
        op.require(17, "ClipGradValue on a sequence (SequenceMap)")
        low, high = (op.const(float(x)) for x in (-self.limit, self.limit))
        return op.append(_map(op, op.operand(gradients_name), "Clip", low, high))


def _sum_of_squares(op: OpBuilder, sequence: Tensor, factor: float) -> Tensor:
    if factor != 1.0:
        sequence = _map(op, sequence, "Mul", op.const(factor))
    squares = _map(op, sequence, "ReduceSumSquare", keepdims=0)
    stacked = op.ConcatFromSequence(squares, axis=0, new_axis=1)
    stacked.value.type = ir.TensorType(ir.DataType.FLOAT)
    return op.ReduceSum(stacked, keepdims=0)


def _map(
    op: OpBuilder, sequence: Tensor, op_type: str, *captured: Tensor, **attributes: Any
) -> Tensor:
    """SequenceMap of one operator whose other operands come from the outer graph."""
    item = op.body_input("item", ir.DataType.FLOAT, None)
    body = op.body("map", [item], lambda: op.emit(op_type, [item, *captured], 1, **attributes))
    mapped = op.SequenceMap(sequence, body=body)
    mapped.value.type = ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
    return mapped


def shapes_of(trainable: Sequence[onnx.TensorProto]) -> list[tuple[str, list[int]]]:
    """Name and shape of the parameters that an optimizer updates, all of them FLOAT."""
    if not trainable:
        raise BlockError(
            "An optimizer needs at least one trainable parameter, and there is none. Name "
            "parameters with requires_grad."
        )
    for tensor in trainable:
        if tensor.data_type != onnx.TensorProto.FLOAT:
            kind = onnx.TensorProto.DataType.Name(tensor.data_type)
            raise BlockError(
                f"Parameter {tensor.name!r} is {kind}, and an optimizer over vectors or sequences "
                "updates FLOAT only. Freeze it, or use a step model, which keeps each type."
            )
    return [(t.name, list(t.dims)) for t in trainable]


PREDECESSOR = ADAMW_PRESETS["onnxruntime"]
Clip = ClipGradNorm | ClipGradValue | None
Groups = Sequence[_optim.Group]


class OptimizerBlock(ForwardBlock):
    """Builds an optimizer model from an `onnxtrain.optim.Optimizer`.

    Inputs: ``learning_rate``, ``step``, and sequences ``params``, ``gradients`` and one per state.
    Outputs: a flag, then ``params.updated`` and ``<state>.updated``.
    """

    optimizer: _optim.Optimizer

    def __init__(self, optimizer: _optim.Optimizer) -> None:
        super().__init__()
        self.optimizer = optimizer

    def build(
        self,
        parameters: tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]],
    ) -> tuple[str, ...]:
        """Build the model for the trainable ones of `parameters`."""
        shapes = shapes_of(parameters[0])
        op = self._builder
        flag = op.names.fresh(f"{self.optimizer.name.lower()}.updated_flag")
        model = _optim.sequence_model(self.optimizer, shapes, op.opset, flag=flag)
        built = ir.to_proto(model)
        target = self._model
        target.graph.CopyFrom(built.graph)
        onnx.helper.set_model_props(
            target, {p.key: p.value for p in (*target.metadata_props, *built.metadata_props)}
        )
        return tuple(o.name for o in built.graph.output)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build on the model of the current context, check it, and give the name of the flag."""
        accessor = current()
        self.base = accessor.model
        flag = self.build(*args, **kwargs)[0]
        self._check()
        self._built = onnx.ModelProto()
        self._built.CopyFrom(accessor.model)
        return flag


def _clip(clip_grad: Clip) -> _optim.ClipNorm | _optim.ClipValue | None:
    if clip_grad is None:
        return None
    if not isinstance(clip_grad, ClipGradNorm | ClipGradValue):
        raise BlockError(
            f"clip_grad is a ClipGradNorm or ClipGradValue, not {type(clip_grad).__name__}."
        )
    return clip_grad.to_optim()


class AdamW(OptimizerBlock):
    """AdamW in the Hugging Face form, the predecessor's default; see `onnxtrain.optim.adamw`."""

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = PREDECESSOR.eps,
        weight_decay: float = PREDECESSOR.weight_decay,
        clip_grad: Clip = None,
        *,
        form: Literal["huggingface", "torch"] = PREDECESSOR.form,
        groups: Groups = (),
    ) -> None:
        super().__init__(
            _optim.adamw(
                betas,
                eps,
                weight_decay,
                correct_bias=bias_correction,
                form=form,
                clip=_clip(clip_grad),
                groups=groups,
            )
        )


class SGD(OptimizerBlock):
    """Stochastic gradient descent; see `onnxtrain.optim.sgd`."""

    def __init__(
        self,
        clip_grad: Clip = None,
        *,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        groups: Groups = (),
    ) -> None:
        super().__init__(
            _optim.sgd(
                momentum, dampening, nesterov, weight_decay, clip=_clip(clip_grad), groups=groups
            )
        )


class Custom(OptimizerBlock):
    """Any chain of `onnxtrain.optim`, for example ``Custom(optim.chain(...))``."""


class _Named(OptimizerBlock):
    """An optimizer of `onnxtrain.optim` with its own arguments, and ``clip_grad``."""

    _recipe: str
    """Its row in `onnxtrain.optim.RECIPES`."""

    def __init__(self, *args: Any, clip_grad: Clip = None, **kwargs: Any) -> None:
        make = _optim.RECIPES[self._recipe].make
        super().__init__(make(*args, clip=_clip(clip_grad), **kwargs))


class Adam(_Named):
    """See `onnxtrain.optim.adam` for the arguments."""

    _recipe = "adam"


class AdamW8bit(_Named):
    """See `onnxtrain.optim.adamw_8bit` for the arguments."""

    _recipe = "adamw_8bit"


class Adam8bit(_Named):
    """See `onnxtrain.optim.adam_8bit` for the arguments."""

    _recipe = "adam_8bit"


class Lamb(_Named):
    """See `onnxtrain.optim.lamb` for the arguments."""

    _recipe = "lamb"


class Adagrad(_Named):
    """See `onnxtrain.optim.adagrad` for the arguments."""

    _recipe = "adagrad"


class RMSprop(_Named):
    """See `onnxtrain.optim.rmsprop` for the arguments."""

    _recipe = "rmsprop"


class Adadelta(_Named):
    """See `onnxtrain.optim.adadelta` for the arguments."""

    _recipe = "adadelta"


class Lion(_Named):
    """See `onnxtrain.optim.lion` for the arguments."""

    _recipe = "lion"


class Adafactor(_Named):
    """See `onnxtrain.optim.adafactor` for the arguments."""

    _recipe = "adafactor"


def __getattr__(block: str) -> type[_Named]:
    """The block of an optimizer that has a row in the table and no class above."""
    for name, recipe in _optim.RECIPES.items():
        if recipe.block == block:
            text = f"See `onnxtrain.optim.{name}` for the arguments."
            return type(block, (_Named,), {"__doc__": text, "_recipe": name})
    raise AttributeError(f"module {__name__!r} has no attribute {block!r}")
