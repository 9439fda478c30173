"""One step of the second API: four graphs over memory that is bound once.

    forward ─► loss and its gradient ─► backward ─► (penalty) ─► update

Weights, gradients and velocities are flat vectors. The backward graph writes into the gradient
vector, the penalty adds to it, and the update changes the weights in place: nothing is allocated
or copied in a step but the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx

from ...errors import InputError, ModelError
from ...passes.partition import Partition
from ...runtime.files.dtypes import BY_NUMPY
from ...runtime.session.binding import Binding
from ...runtime.session.devices import Device, session_options
from ...runtime.session.threads import is_small
from ...runtime.state.buffers import TensorSpec, TensorStore
from ...runtime.step.finite import HUGE, Snapshot, first_not_finite, is_finite
from .base import Array, BaseOnnx
from .exceptions import BatchError
from .onnx_helper import proto_type_to_dtype
from .ortgradient import OrtGradientForwardBackward
from .rewriter import without_unused
from .sgd_learning_loss import BaseLearningLoss
from .sgd_learning_penalty import BaseLearningPenalty
from .sgd_learning_rate import BaseLearningRate

FEATURES, LABELS, ROW_WEIGHTS = "features", "labels", "row weights"
ROWS, SCALE, SEED, LOSS = "rows", "scale", "gradient of the loss", "loss"


class FourGraphs(BaseOnnx):
    """The graphs of one training, their sessions and their memory.

    Args:
        function: the model with its gradient.
        loss: the loss, with its graphs built.
        penalty: the penalty, with its graph built.
        rate: the learning rate.
        device: where everything is.
    """

    def __init__(
        self,
        function: OrtGradientForwardBackward,
        loss: BaseLearningLoss,
        penalty: BaseLearningPenalty,
        rate: BaseLearningRate,
        device: Device,
    ) -> None:
        weights = function.weights
        kinds = {a.dtype for a in weights.values()}
        if len(kinds) != 1:
            raise ModelError(
                f"The trained weights have the types {', '.join(sorted(k.name for k in kinds))}; "
                "they must have one."
            )
        self.dtype = kinds.pop()
        self.device, self.loss, self.penalty = device, loss, penalty
        self.parts: Partition = function.halves
        parts = self.parts
        self.forward_onnx_, self.backward_onnx_ = (
            parts.forward,
            _only(parts.backward, set(function.gradient_names_.values())),
        )
        self.weight_of = {g: w for w, g in function.gradient_names_.items()}
        self.loss_onnx_, self.penalty_onnx_ = loss.loss_grad_onnx_, penalty.penalty_grad_onnx_
        self.update_onnx_ = rate.update_graph(self.dtype)
        self.input_name = function.input_names[0]
        self.weights = TensorStore.from_arrays(weights)
        self.gradients = self.weights.like()
        self.moments = {name: self.weights.like() for name in rate.optimizer().states}
        for store in (self.weights, self.gradients, *self.moments.values()):
            store.place(device)
        small = is_small(self.weights.size)
        graphs = {
            "forward": self.forward_onnx_,
            "loss": self.loss_onnx_,
            "backward": self.backward_onnx_,
            "penalty": self.penalty_onnx_,
            "update": self.update_onnx_,
        }
        self.sessions = {n: _session(g, device, small) for n, g in graphs.items() if g is not None}
        self.numbers = _store(
            device,
            {
                "learning_rate": ((1,), self.dtype),
                "step": ((1,), np.int64),
                "penalty": ((), self.dtype),
            },
        )
        self.counts = any("step" in n.input for n in self.update_onnx_.graph.node)
        self._sides: dict[int, Side] = {}
        self.steps = 0

    def side(self, x: Array) -> Side:
        """The bindings for batches of this size."""
        side = self._sides.get(len(x))
        if side is None or side.fed.specs[FEATURES].shape != x.shape:
            if len(self._sides) > 8:  # sizes that change all the time would pile up memory
                self._sides.clear()
            side = self._sides[len(x)] = Side(self, x)
        return side

    def run(self, data: tuple[Array, ...], rows: int, starts: range) -> tuple[float, float]:
        """A step for each of the batches that begin at `starts`.

        Args:
            data: features, labels and, if the loss takes them, weights.
            rows: size of these batches.
            starts: their first rows.

        Returns:
            The sums of the losses and of the penalties.
        """
        first = starts[0]
        return self.side(data[0][first : first + rows]).run(data, starts)

    def check(self, loss: float, start: int, rows: int) -> None:
        """Raise `BatchError` if the loss of a batch, or a gradient, is not finite."""
        self.gradients.written()
        name = first_not_finite(self.gradients)
        if math.isfinite(loss) and name is None:
            return
        what = f"The loss is {loss}"
        if math.isfinite(loss):
            what = f"The gradient of {name!r} is NaN or infinite"
        raise BatchError(f"{what} in the batch of rows {start} to {start + rows - 1}", loss)

    def try_update(self, run: Callable[[], None]) -> None:
        """Change the weights, and take it back if gradients are so large that it overflows."""
        stores = [self.weights, *self.moments.values()]
        for store in stores:
            store.written()
        before = Snapshot(stores)
        run()
        for store in stores:
            store.written()
        if not all(map(is_finite, stores)):
            before.restore()
            raise BatchError("The update of a batch overflows")

    def set_rate(self, value: float) -> None:
        """Set the learning rate of the next steps."""
        write(self.numbers, "learning_rate", value)

    def state(self, kind: str = "weight") -> dict[str, Array]:
        """Copies of weights or gradients, by name."""
        store = {"weight": self.weights, "grad": self.gradients}[kind]
        return _copies(store)

    def set_state(self, values: dict[str, Array], kind: str = "weight") -> None:
        """Set weights or gradients."""
        _fill({"weight": self.weights, "grad": self.gradients}[kind], values)

    def clear_moments(self) -> None:
        """Forget what the update keeps from one step to the next."""
        for store in self.moments.values():
            _fill(store, {name: np.zeros(store.specs[name].shape) for name in store})

    def full_state(self) -> dict[str, Any]:
        """Everything that a training goes on from."""
        moments = {n: _copies(s) for n, s in self.moments.items()}
        return {
            "weight": self.state(),
            "grad": self.state("grad"),
            "moments": moments,
            "steps": self.steps,
        }

    def set_full_state(self, state: dict[str, Any]) -> None:
        """Go on from what `full_state` gave."""
        self.set_state(state["weight"])
        self.set_state(state["grad"], "grad")
        for name, values in state["moments"].items():
            if name in self.moments:
                _fill(self.moments[name], values)
        self.steps = state["steps"]


class Side:
    """The bindings for one size of batch.

    Attributes:
        fed: what is copied in: features, labels, weights of the rows, and numbers that stay.
        crossing: what goes from one graph to the next.
        results: the loss.
    """

    def __init__(self, of: FourGraphs, x: Array) -> None:
        device, dtype, rows = of.device, of.dtype, len(x)
        self.of, self.rows = of, rows
        self.fed = _store(device, {FEATURES: (x.shape, x.dtype)})
        write(self.fed, FEATURES, x)
        forward_results = self._forward_results()
        predicted, _ = forward_results[of.parts.outputs[0]]
        if not predicted or predicted[0] != rows:
            raise ModelError(
                f"The model's output {of.parts.outputs[0]!r} has the shape "
                f"{list(predicted)} for {rows} observations; its first dimension must be "
                "theirs."
            )
        self.predicted = predicted
        labels = (rows, *of.loss.label_columns(predicted))
        self.fed = _store(
            device,
            {
                FEATURES: (x.shape, x.dtype),
                LABELS: (labels, of.loss.label_dtype or dtype),
                ROW_WEIGHTS: ((rows,), dtype),
                ROWS: ((1,), dtype),
                SCALE: ((1,), dtype),
            },
        )
        write(self.fed, ROWS, rows)
        write(self.fed, SCALE, 1.0 / rows)
        self.crossing = _store(device, {**forward_results, SEED: (predicted, dtype)})
        self.results = _store(device, {LOSS: ((), dtype)})
        bindings = [
            self._forward(forward_results),
            self._loss(),
            self._backward(),
            *([self._penalty()] if of.penalty_onnx_ is not None else []),
            self._update(),
        ]
        *self._gradients, self._run_update = [binding.bare_run() for binding in bindings]
        self._names = [FEATURES, LABELS]
        if of.loss.weight_name_ is not None:
            self._names.append(ROW_WEIGHTS)

    def run(self, data: tuple[Array, ...], starts: range) -> tuple[float, float]:
        """A step for each of the batches that begin at `starts`.

        A batch whose loss or gradient is not finite raises `BatchError` before the update.
        """
        of, rows, gradients, update = self.of, self.rows, self._gradients, self._run_update
        (flat,) = (buffer.data for buffer in of.gradients.buffers.values())
        labels = of.loss.prepare(data[1], (len(data[1]), *self.predicted[1:]))
        # In host memory the buffers are arrays: no call in between.
        pairs = [
            (self.fed.view(name), array)
            for name, array in zip(self._names, (data[0], labels, *data[2:]))
        ]
        host, copy = of.device.is_host, np.copyto
        fixed, step = self.results.view(LOSS), of.numbers.view("step")
        fixed_penalty = of.numbers.view("penalty")
        penalized = of.penalty_onnx_ is not None
        total, penalty = 0.0, 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for start in starts:
                stop = start + rows
                for buffer, array in pairs:
                    copy(buffer, array[start:stop])
                if of.counts:
                    step[0] = of.steps + 1
                if not host:
                    self.fed.push()
                    of.numbers.push()
                for run in gradients:
                    run()
                loss = (fixed if host else read(self.results, LOSS)).item()
                extra = 0.0
                if penalized:
                    extra = (fixed_penalty if host else read(of.numbers, "penalty")).item()
                if host and math.isfinite(loss + extra) and flat.dot(flat) < HUGE * HUGE:
                    update()
                else:
                    of.check(loss + extra, start, rows)
                    of.try_update(update)
                of.steps += 1
                total += loss
                penalty += extra
        return total, penalty

    # -- bindings ----------------------------------------------------------------------------------

    def _forward_results(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Shapes and types of what the forward graph returns, from a first run."""
        binding = self._begin("forward")
        names = [o.name for o in self.of.forward_onnx_.graph.output]
        for name in names:
            binding.allocated_output(name)
        binding.run()
        values = binding.io.get_outputs()
        return {
            name: (tuple(values[i].shape()), _numpy_type(values[i])) for i, name in enumerate(names)
        }

    def _binding(self, name: str) -> Binding:
        return Binding(self.of.sessions[name], self.of.device)

    def _begin(self, name: str) -> Binding:
        """A binding with the features and the weights bound where the graph reads them."""
        of, binding = self.of, self._binding(name)
        reads = {i.name for i in of.sessions[name].get_inputs()}
        if of.input_name in reads:
            binding.input_tensor(of.input_name, self.fed, FEATURES)
        for weight in of.weights:
            if weight in reads:
                binding.input_tensor(weight, of.weights, weight)
        return binding

    def _forward(self, names: Iterable[str]) -> Binding:
        binding = self._begin("forward")
        for name in names:
            binding.output_tensor(name, self.crossing, name)
        return binding

    def _loss(self) -> Binding:
        of, binding = self.of, self._binding("loss")
        binding.input_tensor("X1", self.fed, LABELS)
        binding.input_tensor("X2", self.crossing, of.parts.outputs[0])
        if of.loss.weight_name_ is not None:
            binding.input_tensor(of.loss.weight_name_, self.fed, ROW_WEIGHTS)
        binding.output_tensor("Y", self.results, LOSS)
        binding.output_tensor("Z", self.crossing, SEED)
        return binding

    def _backward(self) -> Binding:
        of, binding = self.of, self._begin("backward")
        graph = of.backward_onnx_.graph
        for value in graph.input:
            if value.name in of.parts.saved:
                binding.input_tensor(value.name, self.crossing, value.name)
            elif value.name not in of.weights and value.name != of.input_name:
                binding.input_tensor(value.name, self.crossing, SEED)
        for value in graph.output:
            binding.output_tensor(value.name, of.gradients, of.weight_of[value.name])
        return binding

    def _penalty(self) -> Binding:
        of, binding = self.of, self._binding("penalty")
        _bind_flat(binding.input, "X", of.weights)
        _bind_flat(binding.input, "G", of.gradients)
        binding.input_tensor("scale", self.fed, ROWS)
        binding.output_tensor("Y", of.numbers, "penalty")
        _bind_flat(binding.output, "Z", of.gradients)
        return binding

    def _update(self) -> Binding:
        of, binding = self.of, self._binding("update")
        for name in ("learning_rate", "step"):
            binding.input_tensor(name, of.numbers, name)
        binding.input_tensor("grad_scale", self.fed, SCALE)
        stores = {"params": of.weights, "gradients": of.gradients, **of.moments}
        for name, store in stores.items():
            _bind_flat(binding.input, name, store)
            if name != "gradients":
                _bind_flat(binding.output, f"{name}.updated", store)
        return binding


def _store(device: Device, tensors: Mapping[str, tuple[tuple[int, ...], Any]]) -> TensorStore:
    """Room for tensors of these shapes and types, where the weights are."""
    store = TensorStore(
        TensorSpec(name, BY_NUMPY[np.dtype(kind)], shape) for name, (shape, kind) in tensors.items()
    )
    store.place(device)
    return store


def write(store: TensorStore, name: str, value: Any) -> None:
    """Copy a value in."""
    store.view(name)[...] = value
    store.push()


def read(store: TensorStore, name: str) -> Array:
    """What a graph has written."""
    store.written()
    store.pull()
    return store.view(name)


def _session(model: onnx.ModelProto, device: Device, small: bool) -> Any:
    options = session_options(threads=1 if small else 0)
    return device.session(model.SerializeToString(), options)


def _only(backward: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    """The backward half without the gradients of the features, which nobody reads here."""
    model = onnx.ModelProto()
    model.CopyFrom(backward)
    outputs = [o for o in model.graph.output if o.name in names]
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    return without_unused(model)


def _bind_flat(bind: Callable[..., None], name: str, store: TensorStore) -> None:
    """Bind a whole store as one vector."""
    (buffer,) = store.buffers.values()
    bind(name, buffer.type, (buffer.data.size,), buffer.pointer())


def _copies(store: TensorStore) -> dict[str, Array]:
    if store.placed:
        store.written()
        store.pull()
    return {n: store.view(n).copy() for n in store}


def _fill(store: TensorStore, values: dict[str, Array]) -> None:
    for name, value in values.items():
        view = store.view(name)
        if np.shape(value) != view.shape:
            raise InputError(
                f"{name!r} has the shape {list(view.shape)}, and the state holds "
                f"{list(np.shape(value))}."
            )
        view[...] = value
    store.push()


def _numpy_type(value: Any) -> Any:
    return proto_type_to_dtype(value.data_type())
