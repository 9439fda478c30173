"""Blocks around `onnxtrain.optim`: the optimizer model that scripts know, in standard operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir

from ... import optim as _optim
from ...hyper import LARGEST, check_limit
from ...optim.optimizers import ADAMW_PRESETS
from ..block import Block, BlockError
from ..emit import Emitter
from ..model_accessor import current
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
        emit = self._emit
        emit.require(17, "ClipGradNorm on a sequence (SequenceMap)")
        total = _sum_of_squares(emit, gradients_name)
        norm = emit.add(emit.node("Sqrt", total), _float(emit, 1e-6))
        ratio = emit.div(_float(emit, self.max_norm), norm)
        is_huge = emit.node("Greater", total, _float(emit, LARGEST))
        with emit.body() as rare:
            again = self._ratio_of_smaller(emit, gradients_name)
        with emit.body() as usual:
            same = emit.node("Identity", ratio)
        branches = {
            "then_branch": _branch(emit, rare, again),
            "else_branch": _branch(emit, usual, same),
        }
        factor = emit.node("Min", emit.node("If", is_huge, **branches), _float(emit, 1.0))
        return _map(emit, gradients_name, "Mul", factor)

    def _ratio_of_smaller(self, emit: Emitter, gradients: str) -> str:
        """For gradients whose squares overflow: the same from gradients made smaller."""
        smaller = _map(emit, gradients, "Mul", _float(emit, SHRINK))
        norm = emit.node("Sqrt", _sum_of_squares(emit, smaller))
        return emit.div(_float(emit, self.max_norm * SHRINK), norm)


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
        emit = self._emit
        emit.require(17, "ClipGradValue on a sequence (SequenceMap)")
        low, high = (emit.constant(x, onnx.TensorProto.FLOAT) for x in (-self.limit, self.limit))
        return _map(emit, gradients_name, "Clip", low, high)


SHRINK = 2.0**-80
"""With this factor 10⁹ squares of the largest float32 add up to a finite number."""


def _float(emit: Emitter, number: float) -> str:
    return emit.constant(np.array(number), onnx.TensorProto.FLOAT)


def _sum_of_squares(emit: Emitter, sequence: str) -> str:
    squares = _map(emit, sequence, "ReduceSumSquare", keepdims=0)
    stacked = emit.node("ConcatFromSequence", squares, axis=0, new_axis=1)
    return emit.reduce("ReduceSum", stacked)


def _branch(emit: Emitter, nodes: Sequence[onnx.NodeProto], result: str) -> onnx.GraphProto:
    output = onnx.helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, [])
    return onnx.helper.make_graph(nodes, emit.name("branch"), [], [output])


def _map(emit: Emitter, sequence: str, op_type: str, *captured: str, **attributes: Any) -> str:
    """SequenceMap of one operator whose other operands come from the outer graph."""
    helper = onnx.helper
    item, result = emit.name("item"), emit.name("item_output")
    body = helper.make_graph(
        [helper.make_node(op_type, [item, *captured], [result], **attributes)],
        emit.name("map"),
        [helper.make_tensor_value_info(item, onnx.TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, None)],
    )
    return emit.node("SequenceMap", sequence, body=body)


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
        emit = self._emit
        flag = emit.name(f"{self.optimizer.name.lower()}.updated_flag")
        model = _optim.sequence_model(self.optimizer, shapes, emit.opset, flag=flag)
        built = ir.to_proto(model)
        target = self._model
        target.graph.CopyFrom(built.graph)
        onnx.helper.set_model_props(
            target, {p.key: p.value for p in (*target.metadata_props, *built.metadata_props)}
        )
        return tuple(o.name for o in built.graph.output)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build on the model of the current context and check the result."""
        accessor = current()
        self.base = accessor.model
        outputs = self.build(*args, **kwargs)
        self._check()
        self._built = onnx.ModelProto()
        self._built.CopyFrom(accessor.model)
        return outputs


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
