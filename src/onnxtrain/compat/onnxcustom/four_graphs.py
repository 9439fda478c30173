"""One step of the second API: four graphs over memory that is bound once.

    forward ─► loss and its gradient ─► backward ─► (penalty) ─► update

Weights, gradients and velocities are flat vectors. The backward graph writes into the gradient
vector, the penalty adds to it, and the update changes the weights in place: nothing is allocated
or copied in a step but the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.capi._pybind_state import OrtValue, SessionIOBinding

from ...errors import InputError, ModelError
from ...passes.partition import Partition
from ...runtime.session.devices import RUN_OPTIONS, Device, session_options
from ...runtime.session.native import core_of
from ...runtime.session.threads import is_small
from ...runtime.state.buffers import TensorStore
from ...runtime.step.finite import HUGE, Snapshot, first_not_finite, is_finite
from .base import Array, BaseOnnx
from .exceptions import BatchError
from .onnx_helper import proto_type_to_dtype
from .ortgradient import OrtGradientForwardBackward
from .rewriter import without_unused
from .sgd_learning_loss import BaseLearningLoss
from .sgd_learning_penalty import BaseLearningPenalty
from .sgd_learning_rate import BaseLearningRate


class Buffer:
    """A tensor that stays where it is, in host memory or on a device."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, device: Device) -> None:
        self.shape, self.dtype, self._ort_device = tuple(shape), np.dtype(dtype), device.ort_device
        self._array: Array | None = None
        self._value: Any = None
        if device.is_host:
            self._array = np.zeros(self.shape, self.dtype)
        else:
            self._value = OrtValue.ortvalue_from_shape_and_type(
                list(shape), self.dtype.type, device.ort_device
            )

    @property
    def place(self) -> tuple[Any, ...]:
        """What `bind_input` and `bind_output` take after the name."""
        pointer = self._array.ctypes.data if self._array is not None else self._value.data_ptr()
        return self._ort_device, self.dtype.type, self.shape, pointer

    def write(self, array: Any) -> None:
        """Copy an array in."""
        if self._array is not None:
            self._array[...] = array
        else:
            self._value.update_inplace(np.ascontiguousarray(array, self.dtype))

    def read(self) -> Array:
        """The values, in host memory."""
        return self._array if self._array is not None else np.asarray(self._value.numpy())


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
        self.rate = Buffer((1,), self.dtype, device)
        self.count = Buffer((1,), np.int64, device)
        self.penalty_value = Buffer((), self.dtype, device)
        self.counts = any("step" in n.input for n in self.update_onnx_.graph.node)
        self._sides: dict[int, Side] = {}
        self.steps = 0

    def side(self, x: Array) -> Side:
        """The bindings for batches of this size."""
        side = self._sides.get(len(x))
        if side is None or side.x.shape != x.shape:
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

    def try_update(self, run: Callable[..., None], binding: Any) -> None:
        """Change the weights, and take it back if gradients are so large that it overflows."""
        stores = [self.weights, *self.moments.values()]
        for store in stores:
            store.written()
        before = Snapshot(stores)
        run(binding, RUN_OPTIONS)
        for store in stores:
            store.written()
        if not all(map(is_finite, stores)):
            before.restore()
            raise BatchError("The update of a batch overflows")

    def set_rate(self, value: float) -> None:
        """Set the learning rate of the next steps."""
        self.rate.write(value)

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
    """The bindings for one size of batch."""

    def __init__(self, of: FourGraphs, x: Array) -> None:
        device, dtype, rows = of.device, of.dtype, len(x)
        self.of, self.rows = of, rows
        self.x = Buffer(x.shape, x.dtype, device)
        self.x.write(x)
        crossing = self._crossing()
        predicted = crossing[of.parts.outputs[0]]
        if not predicted.shape or predicted.shape[0] != rows:
            raise ModelError(
                f"The model's output {of.parts.outputs[0]!r} has the shape "
                f"{list(predicted.shape)} for {rows} observations; its first dimension must be "
                "theirs."
            )
        shape = (rows, *of.loss.label_columns(predicted.shape))
        self.label = Buffer(shape, of.loss.label_dtype or dtype, device)
        self.weight = Buffer((rows,), dtype, device)
        self.loss_value = Buffer((), dtype, device)
        scale = Buffer((1,), dtype, device)
        scale.write(1.0 / rows)
        self._scale, self._crossing_buffers = scale, crossing  # bound memory must stay alive
        self._seed = Buffer(predicted.shape, dtype, device)
        runs = [
            self._forward(crossing),
            self._loss(predicted),
            self._backward(crossing),
            *([self._penalty(rows)] if of.penalty_onnx_ is not None else []),
            self._update(),
        ]
        self._runs = [(core_of(of.sessions[n]).run_with_iobinding, b) for n, b in runs]
        self._fed = [self.x, self.label]
        if of.loss.weight_name_ is not None:
            self._fed.append(self.weight)

    def run(self, data: tuple[Array, ...], starts: range) -> tuple[float, float]:
        """A step for each of the batches that begin at `starts`.

        A batch whose loss or gradient is not finite raises `BatchError` before the update.
        """
        of, rows = self.of, self.rows
        *gradients, (run_update, binding_of_update) = self._runs
        (flat,) = (buffer.data for buffer in of.gradients.buffers.values())
        labels = of.loss.prepare(data[1], (len(data[1]), *self._seed.shape[1:]))
        pairs = list(zip(self._fed, (data[0], labels, *data[2:])))
        penalized = of.penalty_onnx_ is not None
        total, penalty = 0.0, 0.0
        host = of.device.is_host
        # In host memory the buffers are arrays: no call in between.
        arrays = [(b.read(), a) for b, a in pairs] if host else []
        copy, read = np.copyto, self.loss_value.read
        fixed = read() if host else None
        with np.errstate(over="ignore", invalid="ignore"):
            for start in starts:
                stop = start + rows
                for buffer, array in arrays:
                    copy(buffer, array[start:stop])
                if not host:
                    for target, array in pairs:
                        target.write(array[start:stop])
                if of.counts:
                    of.count.write(of.steps + 1)
                for step, binding in gradients:
                    step(binding, RUN_OPTIONS)
                loss = (read() if fixed is None else fixed).item()
                extra = of.penalty_value.read().item() if penalized else 0.0
                if host and math.isfinite(loss + extra) and flat.dot(flat) < HUGE * HUGE:
                    run_update(binding_of_update, RUN_OPTIONS)
                else:
                    of.check(loss + extra, start, rows)
                    of.try_update(run_update, binding_of_update)
                of.steps += 1
                total += loss
                penalty += extra
        return total, penalty

    # -- bindings ----------------------------------------------------------------------------------

    def _crossing(self) -> dict[str, Buffer]:
        """Memory for what the forward graph returns; its shapes come from a first run."""
        of = self.of
        binding = self._begin("forward")
        names = [o.name for o in of.forward_onnx_.graph.output]
        for name in names:
            binding.bind_output(name, of.device.ort_device)
        core_of(of.sessions["forward"]).run_with_iobinding(binding, RUN_OPTIONS)
        values = binding.get_outputs()
        return {
            name: Buffer(tuple(values[i].shape()), _numpy_type(values[i]), of.device)
            for i, name in enumerate(names)
        }

    def _begin(self, name: str, stores: bool = True) -> Any:
        """A binding with the features and the weights bound where the graph reads them."""
        of = self.of
        session = of.sessions[name]
        binding = SessionIOBinding(core_of(session))
        reads = {i.name for i in session.get_inputs()}
        if of.input_name in reads:
            binding.bind_input(of.input_name, *self.x.place)
        for weight in of.weights:
            if stores and weight in reads:
                binding.bind_input(weight, *_place(of, of.weights, weight))
        return binding

    def _forward(self, crossing: dict[str, Buffer]) -> tuple[str, Any]:
        binding = self._begin("forward")
        for name, buffer in crossing.items():
            binding.bind_output(name, *buffer.place)
        return "forward", binding

    def _loss(self, predicted: Buffer) -> tuple[str, Any]:
        of = self.of
        binding = SessionIOBinding(core_of(of.sessions["loss"]))
        binding.bind_input("X1", *self.label.place)
        binding.bind_input("X2", *predicted.place)
        if of.loss.weight_name_ is not None:
            binding.bind_input(of.loss.weight_name_, *self.weight.place)
        binding.bind_output("Y", *self.loss_value.place)
        binding.bind_output("Z", *self._seed.place)
        return "loss", binding

    def _backward(self, crossing: dict[str, Buffer]) -> tuple[str, Any]:
        of = self.of
        binding = self._begin("backward")
        graph = of.backward_onnx_.graph
        for value in graph.input:
            if value.name in of.parts.saved:
                binding.bind_input(value.name, *crossing[value.name].place)
            elif value.name not in of.weights and value.name != of.input_name:
                binding.bind_input(value.name, *self._seed.place)
        for value in graph.output:
            place = _place(of, of.gradients, of.weight_of[value.name])
            binding.bind_output(value.name, *place)
        return "backward", binding

    def _penalty(self, rows: int) -> tuple[str, Any]:
        of = self.of
        binding = SessionIOBinding(core_of(of.sessions["penalty"]))
        self._rows = Buffer((1,), of.dtype, of.device)
        self._rows.write(rows)
        binding.bind_input("X", *_flat(of, of.weights))
        binding.bind_input("G", *_flat(of, of.gradients))
        binding.bind_input("scale", *self._rows.place)
        binding.bind_output("Y", *of.penalty_value.place)
        binding.bind_output("Z", *_flat(of, of.gradients))
        return "penalty", binding

    def _update(self) -> tuple[str, Any]:
        of = self.of
        binding = SessionIOBinding(core_of(of.sessions["update"]))
        binding.bind_input("learning_rate", *of.rate.place)
        binding.bind_input("step", *of.count.place)
        binding.bind_input("grad_scale", *self._scale.place)
        stores = {"params": of.weights, "gradients": of.gradients, **of.moments}
        for name, store in stores.items():
            binding.bind_input(name, *_flat(of, store))
            if name != "gradients":
                binding.bind_output(f"{name}.updated", *_flat(of, store))
        return "update", binding


def _session(model: onnx.ModelProto, device: Device, small: bool) -> onnxruntime.InferenceSession:
    options = session_options(threads=1 if small else 0)
    return device.session(model.SerializeToString(), options)


def _only(backward: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    """The backward half without the gradients of the features, which nobody reads here."""
    model = onnx.ModelProto()
    model.CopyFrom(backward)
    kept = [o for o in model.graph.output if o.name in names]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    return without_unused(model)


def _place(of: FourGraphs, store: TensorStore, name: str) -> tuple[Any, ...]:
    return of.device.ort_device, of.dtype.type, store.specs[name].shape, store.pointer(name)


def _flat(of: FourGraphs, store: TensorStore) -> tuple[Any, ...]:
    (buffer,) = store.buffers.values()
    return of.device.ort_device, of.dtype.type, (buffer.data.size,), buffer.pointer()


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
