"""The graph that one run of a `TrainingSession` executes: loss, gradients and update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir

from ...compile import Plan, forward, gradients, weights_of
from ...errors import ModelError, UnknownNameError
from ...graph import FLOATS, OpBuilder, Tensor
from ...graph import parameters as params
from ...graph.contract import RANDOM_INPUT
from ...graph.labels import ClassLabels
from ...optim import ClipNorm, ClipValue, Optimizer
from ...optim.clipping import norm_coefficient
from ...passes import clean_up
from ...runtime.state.buffers import Part
from .parameters import ParameterError, TrainingParameters

SCALED = "onnxtrain.scaled_loss"
FACTOR = "onnxtrain.loss_factor"
STEP = "onnxtrain.step"
FINITE = "all_gradients_finite"
CHECK = "onnxtrain.check"
LOSS_SCALE = "loss_scale"
TOGETHER = 1 << 14
"""Weights of fewer elements than this, on average, are updated as one vector."""
TOGETHER_NAME = "onnxtrain.weights"
ALIGNED = 16
"""Every weight starts at a multiple of this many elements of the vector."""
FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64


@dataclass
class Step:
    """A graph with the names that a session has to know.

    Attributes:
        model: the graph.
        inputs: what the user feeds.
        outputs: what the user gets, the loss first.
        states: tensors that the session keeps: input name → output name.
        accumulators: weight → input that holds the sum of the gradients so far.
        parts: tensors of the state that are pieces of a vector of the state.
        statistics: running statistics among the states.
        check: output that is 0, or NaN when the loss is not finite; empty if nobody asked.
        labels: what inputs with class labels may hold.
    """

    model: ir.Model
    inputs: list[str]
    outputs: list[str]
    states: dict[str, str] = field(default_factory=dict)
    accumulators: dict[str, str] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    statistics: list[str] = field(default_factory=list)
    check: str = ""
    labels: list[ClassLabels] = field(default_factory=list)


class StepBuilder:
    """Builds the graphs of a session.

    Args:
        model: the forward model with its loss.
        folder: where its external data is.
        parameters: what the user wants.
        optimizers: the optimizer of each weight; its keys are what is trained. Without any
            (`weights` then says what is trained) nothing is updated.
        weights: the trained weights, in the model's order.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        folder: str,
        parameters: TrainingParameters,
        optimizers: Mapping[str, Optimizer],
        weights: Sequence[str],
    ) -> None:
        self.model, self.folder, self.parameters = model, folder, parameters
        self.optimizers, self.weights = optimizers, list(weights)
        self.loss = loss_name(model, parameters)
        others = [o.name for o in model.graph.output if o.name != self.loss]
        self.outputs = [self.loss, *others]

    def plan(self, factor: str | None = None) -> Plan:
        """What is differentiated: the loss, or its product with a scalar value named `factor`."""
        model, of = self.model, [self.loss]
        if factor is not None:
            model, of = onnx.ModelProto(), [SCALED]
            model.CopyFrom(self.model)
            model.graph.input.append(
                onnx.helper.make_tensor_value_info(factor, self._loss_type(), [])
            )
            model.graph.node.append(
                onnx.helper.make_node("Mul", [self.loss, factor], [SCALED], name=SCALED)
            )
        return Plan(
            model,
            base_dir=self.folder,
            outputs=self.outputs,
            trainable=self.weights,
            of=of,
            recompute=self.parameters.what_to_recompute(),
            counter=True,
        )

    def _loss_type(self) -> int:
        output = next(o for o in self.model.graph.output if o.name == self.loss)
        return output.type.tensor_type.elem_type or onnx.TensorProto.FLOAT

    # -- what is written to files ------------------------------------------------------------------

    def transformed(self) -> ir.Model:
        """The model as it is differentiated."""
        model, _ = forward(self.plan())
        params.to_initializers(model)
        return model

    def with_gradients(self) -> ir.Model:
        """The model with its gradients as outputs."""
        model = gradients(self.plan()).model
        params.to_initializers(model)
        return model

    # -- what is run -------------------------------------------------------------------------------

    @property
    def folds(self) -> bool:
        """Whether −η goes into the loss, so that what comes back is the step itself.

        Plain gradient descent then is ``w + (step)``, which a product adds on its own.
        """
        p = self.parameters
        return (
            bool(self.optimizers)
            and all(
                o.name == "SGD" and not o.states and not o.decays and o.clip is None
                for o in self.optimizers.values()
            )
            and p.gradient_accumulation_steps == 1
            and not p.set_gradients_as_graph_outputs
            and not p.use_mixed_precision
            and self._loss_type() == onnx.TensorProto.FLOAT
        )

    def updating(self) -> Step:
        """Forward, backward and update."""
        build = _Build(self, FACTOR if self.folds or self.parameters.use_mixed_precision else None)
        build.check_loss()
        rate = build.scalar_input(self.parameters.lr_params_feed_name) if self.optimizers else None
        if self.folds:
            assert rate is not None
            build.set_factor(-rate)
            build.fold()
            return build.finish()
        build.unscale()
        build.accumulate(self.parameters.gradient_accumulation_steps)
        build.check_gradients()
        build.gradient_outputs()
        if rate is not None:
            build.update(rate)
        return build.finish()

    def accumulating(self) -> Step:
        """Forward and backward; the gradient is added to those before."""
        build = _Build(self, FACTOR if self.parameters.use_mixed_precision else None)
        build.check_loss()
        if self.optimizers:  # unused here, and still an input like in the graph that updates
            build.scalar_input(self.parameters.lr_params_feed_name)
        build.unscale()
        build.check_gradients()
        build.gradient_outputs()
        build.add_to_accumulators()
        return build.finish()


class _Build:
    """One graph in the making."""

    def __init__(self, of: StepBuilder, factor: str | None) -> None:
        self.of, self.parameters = of, of.parameters
        plan = of.plan(factor)
        try:
            built = gradients(plan)
        except ModelError as error:  # the user knows the loss, not its product
            raise type(error)(str(error).replace(SCALED, of.loss)) from None
        self.model: ir.Model = built.model
        graph = self.model.graph
        self.op: OpBuilder = OpBuilder.on(self.model)
        values = {v.name: v for v in (*graph.inputs, *graph.outputs)}
        self.values = values
        self.params = {n: self.op.tensor(values[n]) for n in of.weights}
        self.gradients = {n: self.op.tensor(values[built.gradients[n]]) for n in of.weights}
        self.inputs = [v for v in graph.inputs if v.name in plan.user_inputs and v.name != factor]
        self.outputs = [values[n] for n in of.outputs]
        self.factor = values.get(factor) if factor else None
        self.new_inputs: list[ir.Value] = []
        self.states: dict[str, ir.Value] = {n: values[u] for n, u in built.states.items()}
        self.statistics, self.labels = list(built.states), built.labels
        self.accumulators: dict[str, str] = {}
        self.parts: dict[str, Part] = {}
        self.finite: Tensor | None = None
        self.clip_factors: dict[float, Tensor] = {}
        self.check: Tensor | None = None
        if RANDOM_INPUT in values:
            self._count_passes(self.op.tensor(values[RANDOM_INPUT]))

    def _count_passes(self, random: Tensor) -> None:
        """What random operators draw from is a state: the seed stays, the counter grows."""
        self.op.scope = RANDOM_INPUT
        self.keep(RANDOM_INPUT, random + self.op.const(np.array([0, 1], np.int64)), random)

    def input(self, name: str, dtype: ir.DataType | None, shape: Sequence[int]) -> ir.Value:
        if name in self.values:
            raise ModelError(
                f"The name {name!r} is taken in the model, and the training graph needs it. "
                "Rename the value (for the learning rate: set lr_params_feed_name)."
            )
        assert dtype is not None
        return self.op.graph_input(name, dtype, shape).value

    def scalar_input(self, name: str) -> Tensor:
        """A user input FLOAT[1], as a scalar."""
        value = self.input(name, FLOAT, [1])
        self.inputs.append(value)
        self.op.scope = "update"
        return self.op.Reshape(self.op.tensor(value), self.op.const(np.zeros(0, np.int64)))

    def state(self, name: str, dtype: ir.DataType | None, shape: Sequence[int]) -> Tensor:
        value = self.input(name, dtype, shape)
        self.new_inputs.append(value)
        return self.op.tensor(value)

    def keep(self, name: str, new: Tensor, old: Tensor) -> None:
        """Make `new` the next value of the state `name`."""
        value = new.value
        if value.producer() not in self.op.nodes:
            value = self.op.Identity(new).value
        value.name = f"{name}.updated"
        value.type, value.shape = old.value.type, old.value.shape
        self.states[name] = value

    # -- the loss factor ---------------------------------------------------------------------------

    def set_factor(self, factor: Tensor) -> None:
        assert self.factor is not None
        graph = self.model.graph
        self._run_first()
        self.factor.replace_all_uses_with(factor.value)
        graph.inputs.remove(self.factor)

    def _run_first(self) -> None:
        """Put the nodes built so far in front of all others."""
        nodes, self.op.nodes = self.op.nodes, []
        self.model.graph.insert_before(next(iter(self.model.graph)), nodes)

    def unscale(self) -> None:
        """With mixed precision: scale the loss, and divide the gradients by the same number."""
        if not self.parameters.use_mixed_precision:
            return
        if self.parameters.loss_scale:
            scale = self.op.const(np.array(self.parameters.loss_scale, np.float32))
        else:
            scale = self.scalar_input(LOSS_SCALE)
        assert self.factor is not None
        dtype = self.factor.dtype
        self.set_factor(scale if dtype == FLOAT else self.op.Cast(scale, to=dtype))
        for name, gradient in self.gradients.items():
            self.op.scope = f"unscale/{name}"
            inverse = self._like(1.0 / scale, gradient)
            self.gradients[name] = gradient * inverse

    # -- what is finite ----------------------------------------------------------------------------

    def check_loss(self) -> None:
        """Let the session know whether the loss is finite."""
        if self.parameters.check_finite:
            self.op.scope = "check"
            self.check = self._nothing([self.op.tensor(self.outputs[0])])

    def check_gradients(self) -> None:
        """With mixed precision: do without an update from gradients that are not finite.

        For `check_finite` the session looks at the results of the update. Clipped value by value,
        an infinite gradient leaves no trace there.
        """
        clipped = any(isinstance(o.clip, ClipValue) for o in self.of.optimizers.values())
        if not self.parameters.use_mixed_precision and not (self.check is not None and clipped):
            return
        self.op.scope = "check"
        nothing = self._nothing(list(self.gradients.values()))
        if self.parameters.use_mixed_precision:
            self.finite = self.op.Not(self.op.IsNaN(nothing))
        if self.check is not None:
            self.check = self.check + nothing

    def _nothing(self, tensors: Sequence[Tensor]) -> Tensor:
        """0, or NaN when an element is NaN or infinite: 0·x is 0 for all others."""
        zeros = [self.op.ReduceSum(x * 0.0, keepdims=0) for x in tensors]
        floats = [z if z.dtype == FLOAT else self.op.Cast(z, to=FLOAT) for z in zeros]
        return floats[0] if len(floats) == 1 else self.op.Sum(*floats)

    def _like(self, scalar: Tensor, x: Tensor) -> Tensor:
        return scalar if scalar.dtype == x.dtype else self.op.Cast(scalar, to=x.dtype)

    # -- gradients ---------------------------------------------------------------------------------

    def _accumulator(self, name: str) -> Tensor:
        gradient = self.params[name]
        stem = f"{name}_grad.accumulation.buffer"
        value = self.state(stem, gradient.dtype, list(gradient.static_shape or ()))
        self.accumulators[name] = stem
        return value

    def accumulate(self, steps: int) -> None:
        """The mean of this gradient and those that were added up before."""
        if steps == 1:
            return
        for name, gradient in self.gradients.items():
            total = self._accumulator(name) + gradient
            self.gradients[name] = total * (1.0 / steps)

    def add_to_accumulators(self) -> None:
        for name, gradient in self.gradients.items():
            self.op.scope = f"accumulate/{name}"
            buffer = self._accumulator(name)
            self.keep(self.accumulators[name], buffer + gradient, buffer)

    def gradient_outputs(self) -> None:
        if not self.parameters.set_gradients_as_graph_outputs:
            return
        for name, gradient in self.gradients.items():
            value = gradient.value
            if value.name != f"{name}_grad":
                self.values[f"{name}_grad"].name = f"{name}_grad.raw"
                value.name = f"{name}_grad"
            value.type, value.shape = self.params[name].value.type, self.params[name].value.shape
            self.outputs.append(value)

    # -- the update --------------------------------------------------------------------------------

    def fold(self) -> None:
        """w ← w + step, inside the product that makes the step where there is one."""
        for name, gradient in self.gradients.items():
            self.op.scope = f"update/{name}"
            param = self.params[name]
            self.keep(name, _product_plus(self.op, gradient, param) or param + gradient, param)

    def update(self, rate: Tensor) -> None:
        op = self.op
        stateful = any(o.states for o in self.of.optimizers.values())
        step = op.const(np.array(1, np.int64))
        if stateful:
            counted = self.state(STEP, INT64, [1])
            step = op.Reshape(counted, op.const(np.zeros(0, np.int64)))
            one = op.const(np.array(1, np.int64))
            if self.finite is not None:
                one = op.Cast(self.finite, to=INT64)
            self.keep(STEP, counted + one, counted)
        if self._is_small():
            self._update_together(step, rate)
            return
        for name, optimizer in self.of.optimizers.items():
            self._update_one(name, optimizer, step, rate)

    def _is_small(self) -> bool:
        """Whether one update of all weights as a vector beats one update each.

        It costs a copy of the gradients and saves some fifteen nodes per weight.
        """
        optimizers = list(self.of.optimizers.values())
        types = {p.dtype for p in self.params.values()}
        total = sum(math.prod(p.static_shape or ()) for p in self.params.values())
        return (
            len(optimizers) > 1
            and len(types) == 1
            and bool(optimizers[0].states)
            and optimizers[0].layout == "elementwise"
            and all(o == optimizers[0] for o in optimizers)
            and total / len(optimizers) < TOGETHER
        )

    def _update_together(self, step: Tensor, rate: Tensor) -> None:
        op, optimizer = self.op, next(iter(self.of.optimizers.values()))
        dtype = next(iter(self.params.values())).dtype
        end, flattened = 0, []
        for name, gradient in self.gradients.items():
            op.scope = f"together/{name}"
            shape = self.params[name].static_shape or ()
            size = math.prod(shape)
            self.parts[name] = Part(TOGETHER_NAME, end, shape)
            for state in optimizer.states:
                self.parts[f"{name}.{state}"] = Part(f"{TOGETHER_NAME}.{state}", end, shape)
            padding = -size % ALIGNED
            flattened.append(op.Reshape(gradient, op.const(np.array([-1], np.int64))))
            if padding:
                flattened.append(op.const(np.zeros(padding), dtype))
            end += size + padding
        op.scope = "together"
        weights = self.state(TOGETHER_NAME, dtype, [end])
        gradients = op.Concat(*flattened, axis=0)
        self.params = {TOGETHER_NAME: weights}
        self.gradients = {TOGETHER_NAME: gradients}
        self._update_one(TOGETHER_NAME, optimizer, step, rate)

    def _update_one(self, name: str, optimizer: Optimizer, step: Tensor, rate: Tensor) -> None:
        op, param = self.op, self.params[name]
        scale: float | Tensor = 1.0
        if isinstance(optimizer.clip, ClipNorm):
            scale = self._like(self._clip_factor(optimizer.clip.max_norm), param)
        op.scope = f"update/{name}"
        shape = list(param.static_shape or ())
        states = {
            s: self.state(f"{name}.{s}", param.dtype, optimizer.state_shape(s, shape))
            for s in optimizer.states
        }
        new, moments = optimizer.update(
            op,
            param,
            self.gradients[name],
            states,
            step=step,
            learning_rate=self._like(rate, param),
            weight_decay=optimizer.weight_decay,
            grad_scale=scale,
        )
        for state, old in states.items():
            self.keep(f"{name}.{state}", self._if_finite(moments[state], old), old)
        self.keep(name, self._if_finite(new, param), param)

    def _clip_factor(self, max_norm: float) -> Tensor:
        """What all gradients are multiplied with; computed once for all weights."""
        if max_norm not in self.clip_factors:
            self.op.scope = "clip"
            gradients = list(self.gradients.values())
            self.clip_factors[max_norm] = norm_coefficient(self.op, gradients, max_norm)
        return self.clip_factors[max_norm]

    def _if_finite(self, new: Tensor, old: Tensor) -> Tensor:
        return new if self.finite is None else self.op.Where(self.finite, new, old)

    # -- done --------------------------------------------------------------------------------------

    def finish(self) -> Step:
        """Attach what was built and put inputs and outputs in order."""
        graph = self.model.graph
        for name in self.statistics if self.finite is not None else ():
            old, new = self.op.tensor(self.values[name]), self.op.tensor(self.states[name])
            new.value.name = f"{name}.of_batch"
            self.keep(name, self._if_finite(new, old), old)
        hidden = []
        if self.check is not None:
            self.check.value.name, self.check.value.shape = CHECK, ir.Shape([])
            hidden.append(self.check.value)
        if self.finite is not None:
            self.finite.value.name = FINITE
            self.finite.value.shape = ir.Shape([])
            self.outputs.append(self.finite.value)
        self.op.attach(graph)
        graph.outputs.clear()
        graph.outputs.extend([*self.outputs, *hidden, *self.states.values()])
        outputs = [v.name or "" for v in self.outputs]  # a rewrite may put other values there
        states = {name: value.name or "" for name, value in self.states.items()}
        self.model = clean_up(self.model)
        state_inputs = [v for v in graph.inputs if v not in self.inputs and v is not self.factor]
        graph.inputs.clear()
        graph.inputs.extend([*self.inputs, *state_inputs, *self.new_inputs])
        for value in (*state_inputs, *self.new_inputs):
            value.const_value = None
        return Step(
            self.model,
            [v.name or "" for v in self.inputs],
            outputs,
            states,
            self.accumulators,
            self.parts,
            self.statistics,
            CHECK if hidden else "",
            self.labels,
        )


def _product_plus(op: OpBuilder, gradient: Tensor, param: Tensor) -> Tensor | None:
    """``A'·B' + w`` as one Gemm, when the gradient is a product of two matrices."""
    node = gradient.value.producer()
    if node is None or param.rank != 2 or gradient.value.uses():
        return None
    left, right = node.inputs[:2] if len(node.inputs) >= 2 else (None, None)
    if left is None or right is None or node.domain:
        return None
    if node.op_type == "Gemm" and len(node.inputs) == 2:
        attributes = {n: a.value for n, a in node.attributes.items() if n != "beta"}
        return op.Gemm(op.tensor(left), op.tensor(right), param, **attributes)
    if node.op_type != "MatMul":
        return None
    a, trans_a = _untransposed(left)
    b, trans_b = _untransposed(right)
    if not (trans_a or trans_b):  # only then both are certainly matrices
        return None
    return op.Gemm(op.tensor(a), op.tensor(b), param, transA=trans_a, transB=trans_b)


def _untransposed(value: ir.Value) -> tuple[ir.Value, int]:
    node = value.producer()
    if node is not None and node.op_type == "Transpose" and not node.domain:
        perm = node.attributes.get("perm")
        if perm is not None and list(perm.as_ints()) == [1, 0] and node.inputs[0] is not None:
            return node.inputs[0], 1
    return value, 0


def loss_name(model: onnx.ModelProto, parameters: TrainingParameters) -> str:
    """The output that is minimised."""
    outputs = [o.name for o in model.graph.output]
    name = parameters.loss_output_name or outputs[0]
    if name not in outputs:
        raise UnknownNameError("output (loss_output_name)", name, outputs)
    return name


def trained_weights(model: ir.Model, parameters: TrainingParameters, loss: str) -> list[str]:
    """The weights that the parameters choose, in the model's order.

    Without a choice it is what `trainable_by_default` says.
    """
    known = list(model.graph.initializers)
    for name in (*parameters.weights_to_train, *parameters.weights_not_to_train):
        if name not in known:
            raise UnknownNameError("initializer", name, known)
    both = set(parameters.weights_to_train) & set(parameters.weights_not_to_train)
    if both:
        raise ParameterError(
            f"{', '.join(sorted(both))} is in weights_to_train and in weights_not_to_train."
        )
    chosen = set(parameters.weights_to_train)
    if not chosen:
        chosen = set(weights_of(model, [loss]))
        chosen -= _immutable(model, parameters)
        chosen -= set(parameters.weights_not_to_train)
    floats = [n for n in known if n in chosen and _is_float(model, n)]
    others = chosen - set(floats)
    if others:
        raise ParameterError(f"{sorted(others)[0]!r} holds no floating-point numbers to train.")
    if not floats:
        raise ParameterError(
            "There is no weight to train: the loss depends on no float initializer."
        )
    return floats


def _is_float(model: ir.Model, name: str) -> bool:
    tensor = model.graph.initializers[name].const_value
    return tensor is not None and tensor.dtype in FLOATS


def _immutable(model: ir.Model, parameters: TrainingParameters) -> set[str]:
    """Initializers that `immutable_weights` describes by operator, position and value."""
    names = set()
    for node in model.graph:
        described = parameters.immutable_weights.get(node.op_type, ())
        pairs = described.items() if isinstance(described, Mapping) else described
        for index, number in pairs:
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is None or value.const_value is None or value.const_value.size != 1:
                continue
            if np.isclose(float(value.const_value.numpy().reshape(())), number, rtol=1e-6):
                names.add(value.name or "")
    return names
