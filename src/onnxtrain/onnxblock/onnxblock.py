"""`ForwardBlock` and `TrainingBlock`: blocks that make a whole model."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from ..compile import Plan, eval_model, training_model
from ..graph import FLOATS, load, protos, to_proto
from ..graph.accessor import ModelAccessor, current
from ..graph.block import Block, BlockError
from ..graph.schema import MAX_IR, MAX_OPSET
from ..normalize.normalize import one_opset
from ..passes import Recompute
from ._training_graph_utils import get_model_parameters

Parameters = tuple[list[onnx.TensorProto], list[onnx.TensorProto]]


class ForwardBlock(Block):
    """A block whose outputs become the outputs of the model.

    Implement `build` and return the name, or names, of the graph outputs.
    """

    _built: onnx.ModelProto | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build on the model of the current context and check the result."""
        accessor = current()
        output = _build(self, accessor, args, kwargs)
        protos.infer_shapes(accessor.model)
        protos.register_graph_outputs(accessor.model, output)
        protos.check(accessor.model)
        self._built = _runnable(accessor.model, accessor.base_dir)
        return output

    def to_model_proto(self) -> onnx.ModelProto:
        """The model that was built."""
        if self._built is None:
            raise BlockError("Please build the forward model first: call the block.")
        return self._built


def _runnable(model: onnx.ModelProto, base_dir: str) -> onnx.ModelProto:
    """A copy that every onnxruntime from 1.22 on reads: the newest opsets and formats are not."""
    opset = max((o.version for o in model.opset_import if o.domain in {"", "ai.onnx"}), default=0)
    if opset > MAX_OPSET:
        return to_proto(one_opset(load(model, base_dir=base_dir)))
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    copied.ir_version = min(model.ir_version, MAX_IR)
    return copied


def _build(block: Block, accessor: ModelAccessor, args: Any, kwargs: Any) -> Any:
    block.base = accessor.model
    accessor.depth += 1
    try:
        return block.build(*args, **kwargs)
    finally:
        accessor.depth -= 1


@dataclass(frozen=True)
class Built:
    """A plan, and the training and the eval model made from it."""

    plan: Plan
    training: ir.Model
    eval: ir.Model


class TrainingBlock(Block):
    """A block that makes a training model: forward, loss, gradients.

    Implement `build` and return the name of the loss, or a tuple of names that begins with it.
    Name what is trained with `requires_grad`; by default nothing is.

    Example:
        >>> import numpy as np, onnx.parser
        >>> from onnxtrain import onnxblock
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N, 2] x) => (float[N, 1] y) <float[2, 1] w = {1, 2}> { y = MatMul(x, w) }
        ... ''')
        >>> class Model(onnxblock.TrainingBlock):
        ...     def build(self, output):
        ...         return onnxblock.loss.MSELoss()(output)
        >>> block = Model()
        >>> block.requires_grad("w")
        >>> with onnxblock.base(model):
        ...     loss = block("y")
        >>> training, evaluation = block.to_model_proto()
        >>> [i.name for i in training.graph.input]
        ['x', 'target', 'w', 'w_grad.accumulation.buffer', 'lazy_reset_grad']
    """

    _accumulating = True
    _training_mode = "preserve"
    _no_gradient: Collection[str] = ()
    _among: Collection[str] | None = None
    """Of these initializers those are trained that are by default; None: only what is named."""
    recompute: Recompute = None
    _all_outputs_are_losses = False
    built: Built | None = None
    """What a call of the block has made."""
    _parameters: Parameters | None = None

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:
        super().__init__(temp_file_name)

    @property
    def _marks(self) -> dict[str, bool]:
        """Names given to `requires_grad`; made when first used, for subclasses without init."""
        marks: dict[str, bool] = self.__dict__.setdefault("_requires_grad_marks", {})
        return marks

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Say whether the gradient of an initializer, or of a graph input, is wanted.

        Args:
            argument_name: an initializer or a graph input.
            value: False freezes it: it stays a parameter of the model and does not change.
        """
        self._marks[argument_name] = value

    def parameters(self) -> Parameters:
        """The trainable and the frozen parameters, each in the model's order."""
        if self._parameters is None:
            raise BlockError(
                "Please build the training model first before trying to retrieve the parameters."
            )
        return self._parameters

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """The training model and the eval model."""
        if self.built is None:
            raise BlockError("Please build the training model first: call the block.")
        return ir.to_proto(self.built.training), ir.to_proto(self.built.eval)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build on the model of the current context and check the result."""
        accessor = current()
        before = [o.name for o in accessor.model.graph.output]
        output = _build(self, accessor, args, kwargs)
        protos.infer_shapes(accessor.model)
        protos.register_graph_outputs(accessor.model, output)
        protos.check(accessor.model)
        names = [output] if isinstance(output, str) else list(output)
        plan = self._make_plan(accessor, names, before)
        self._parameters = _tensors(accessor.model, plan.trainable, plan.frozen)
        training = training_model(plan, accumulating=self._accumulating)
        self.built = built = Built(plan, training, eval_model(plan))
        accessor.eval_model = ir.to_proto(built.eval)
        accessor.model.CopyFrom(ir.to_proto(built.training))
        return output

    def _make_plan(
        self, accessor: ModelAccessor, outputs: Sequence[str], model_outputs: Sequence[str]
    ) -> Plan:
        base = onnx.ModelProto()
        base.CopyFrom(accessor.model)
        trainable, frozen, inputs = self._choose(base)
        return Plan(
            base,
            base_dir=accessor.base_dir,
            outputs=outputs,
            trainable=trainable,
            frozen=frozen,
            among=self._among,
            inputs=inputs,
            model_outputs=model_outputs,
            of=outputs if self._all_outputs_are_losses else outputs[:1],
            everything_is_input=not (trainable or frozen or inputs),
            training_mode=self._training_mode,
            no_gradient=self._no_gradient,
            recompute=self.recompute,
            counter=True,
            labels_are_checked=True,
        )

    def _choose(self, base: onnx.ModelProto) -> tuple[list[str], list[str], list[str]]:
        """Trainable, frozen, and graph inputs whose gradient is wanted."""
        initializers = {t.name for t in base.graph.initializer}
        inputs = {i.name for i in base.graph.input} - initializers
        marked = [n for n, value in self._marks.items() if value]
        frozen = [n for n, value in self._marks.items() if not value and n not in inputs]
        return (
            [n for n in marked if n not in inputs],
            frozen,
            [n for n in marked if n in inputs],
        )


def _tensors(model: onnx.ModelProto, trainable: Sequence[str], frozen: Sequence[str]) -> Parameters:
    """Copies: the model they come from is about to be replaced by the training model."""
    first, second = get_model_parameters(model, set(trainable), set(frozen))
    return [copy.deepcopy(t) for t in first], [copy.deepcopy(t) for t in second]


class Model(ForwardBlock):
    """`ForwardBlock` under the name it had in onnxruntime-training 1.13 and 1.14."""


class TrainingModel(TrainingBlock):
    """The training block of onnxruntime-training 1.13 and 1.14.

    Every float initializer whose name does not begin with ``onnx::`` is trained unless
    ``requires_grad(name, False)`` says otherwise, ``requires_grad(name)`` is for graph inputs, and
    the gradient is that of the sum of all outputs that `build` returns. Use it with
    `onnxblock.onnx_model(model)`, which changes the model in place.
    """

    _all_outputs_are_losses = True

    def _choose(self, base: onnx.ModelProto) -> tuple[list[str], list[str], list[str]]:
        trainable, frozen, inputs = super()._choose(base)
        statistics = set(_running_statistics(base))
        for tensor in base.graph.initializer:
            name = tensor.name
            if name.startswith("onnx::") or name in {*trainable, *frozen}:
                continue
            if name in statistics:
                frozen.append(name)
            elif tensor.data_type in FLOATS:
                trainable.append(name)
        return trainable, frozen, inputs


def _running_statistics(base: onnx.ModelProto) -> list[str]:
    """Mean and variance inputs of BatchNormalization: never trained by a gradient."""
    return [
        name
        for node in base.graph.node
        if node.op_type == "BatchNormalization"
        for name in node.input[3:5]
    ]
