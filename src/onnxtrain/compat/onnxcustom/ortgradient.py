"""Forward and backward as two calls, around whatever the caller does in between."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import onnx
from onnxruntime.capi._pybind_state import OrtValue

from ...errors import DeviceError, InputError, ModelError, SharingError, UnknownNameError
from ...graph import ModelLike
from ...passes.partition import Partition
from ...runtime.session.devices import RUN_OPTIONS, open_session
from ...runtime.step.halves import ForwardHalf
from ..ort import (
    GraphInfo,
    OrtModuleGraphBuilder,
    OrtModuleGraphBuilderConfiguration,
    OrtValueCache,
    OrtValueVector,
    PartialGraphExecutionState,
    TrainingAgent,
)
from ..ort.graph_builder import embedded
from .base import Array, BaseOnnx
from .devices import (
    device_to_providers,
    get_ort_device,
    numpy_to_ort_value,
    ort_device_to_string,
)
from .exceptions import ProviderError, UnknownWeightError
from .onnx_helper import as_proto, get_train_initializer

LOGGER = logging.getLogger("onnxcustom")
Shape = tuple[int, ...]


class OrtGradientForwardBackward(BaseOnnx):
    """A model whose gradient can be computed, as a class of functions.

    Args:
        onnx_model: the model, without loss.
        weights_to_train: initializers to train, in any order; all float ones by default.
        input_names: inputs that are no weights; found in the model by default.
        output_names: outputs to differentiate; all outputs by default.
        class_name: name of the class that is made.
        sess_options: options of onnxruntime.
        providers: execution providers.
        provider_options: their options.
        run_options: options of a run.
        graph_builder_config: an `OrtModuleGraphBuilderConfiguration` to use as it is.
        device_index: number of the device.
        enable_logging: log what is built to the logger ``onnxcustom``.
        debug: check the device of every tensor that is passed.

    Attributes:
        cls_type_: the class; `new_instance` makes objects of it. Its sessions are made when they
            are first used.
        feed_names: what `forward` takes: the inputs, then the weights.
        gradient_names: what `backward` gives: the gradients of the inputs, then of the weights.
        halves: the forward and the backward graph.

    Example:
        >>> import numpy as np, onnx.parser
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] w = {1, 2}> { Y = MatMul(X, w) }
        ... ''')
        >>> function = OrtGradientForwardBackward(model).new_instance()
        >>> x = np.array([[1, 10]], np.float32)
        >>> (y,) = function.forward([x, np.array([[1], [2]], np.float32)], training=True)
        >>> dx, dw = function.backward([np.ones((1, 1), np.float32)])
        >>> y.numpy().tolist(), dw.numpy().tolist()
        ([[21.0]], [[1.0], [10.0]])
    """

    _transient = ("cls_type_",)

    def __init__(
        self,
        onnx_model: ModelLike,
        weights_to_train: Sequence[str] | None = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        class_name: str | None = None,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        run_options: Any = None,
        graph_builder_config: OrtModuleGraphBuilderConfiguration | None = None,
        device_index: int = 0,
        enable_logging: bool = False,
        debug: bool = False,
    ) -> None:
        self.onnx_model = as_proto(onnx_model)
        known = list(get_train_initializer(self.onnx_model))
        self.weights_to_train = list(known if weights_to_train is None else weights_to_train)
        for name in self.weights_to_train:
            if name not in known:
                raise UnknownWeightError("float initializer", name, known)
        constants = {i.name for i in self.onnx_model.graph.initializer}
        inputs = [i.name for i in self.onnx_model.graph.input if i.name not in constants]
        self.input_names = list(inputs if input_names is None else input_names)
        outputs = [o.name for o in self.onnx_model.graph.output]
        self.output_names = list(outputs if output_names is None else output_names)
        for name in self.output_names:
            if name not in outputs:
                raise UnknownNameError("output", name, outputs)
        self.class_name = class_name or f"OrtGradientForwardBackwardFunction_{id(self)}"
        self.sess_options, self.run_options = sess_options, run_options
        self.providers = list(device_to_providers("cpu") if providers is None else providers)
        first = self.providers[0]
        name = first if isinstance(first, str) else first[0]
        if name not in {"CPUExecutionProvider", "CUDAExecutionProvider"}:
            raise ProviderError(f"{name} is not supported here; use the CPU's or CUDA's provider.")
        self.provider_options = provider_options
        self.graph_builder_config = graph_builder_config
        self.device_index, self.enable_logging, self.debug = device_index, enable_logging, debug
        self._build()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._build()

    def get_initializer(self, name: str, exc: bool = True) -> Array | None:
        """The value of an initializer; None when there is none and `exc` is False."""
        for tensor in self.onnx_model.graph.initializer:
            if tensor.name == name:
                return onnx.numpy_helper.to_array(tensor)
        if exc:
            names = [t.name for t in self.onnx_model.graph.initializer]
            raise UnknownNameError("initializer", name, names)
        return None

    @property
    def weights(self) -> dict[str, Array]:
        """The weights of the model, by name, in the order in which they are passed."""
        weights = {n: self.get_initializer(n) for n in self.weights_to_train}
        return {n: a for n, a in weights.items() if a is not None}

    def new_instance(self) -> OrtGradientForwardBackwardFunction:
        """A function with a memory of its own for pending forward passes."""
        function: OrtGradientForwardBackwardFunction = self.cls_type_()
        return function

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"

    # -- building ----------------------------------------------------------------------------------

    def _build(self) -> None:
        self._log("input_names=%r", self.input_names)
        self._log("output_names=%r", self.output_names)
        self._log("weights_to_train=%r", self.weights_to_train)
        info = self._create_onnx_graphs()
        names = info.initializer_grad_names_to_train
        self.gradient_names_ = dict(zip(self.weights_to_train, names))
        self.feed_names = [i.name for i in self._trained_onnx.graph.input]
        self.gradient_names = [o.name for o in self._trained_onnx.graph.output]
        self.cls_type_ = self._make_class(info)

    def _create_onnx_graphs(self) -> GraphInfo:
        """Build the gradient graph, its halves, and the graph that evaluates."""
        model = onnx.ModelProto()
        model.CopyFrom(self.onnx_model)
        outputs = [o for o in model.graph.output if o.name in self.output_names]
        del model.graph.output[:]
        model.graph.output.extend(outputs)
        builder = OrtModuleGraphBuilder()
        builder.initialize(model.SerializeToString(), self._configuration(model))
        builder.build()
        self._trained_onnx = onnx.load_from_string(builder.get_gradient_model())
        self._optimized_pre_grad_model = onnx.load_from_string(builder.get_forward_model())
        halves = embedded({p.key: p.value for p in self._trained_onnx.metadata_props})
        assert halves is not None, "OrtModuleGraphBuilder embeds the halves"
        self.halves: Partition = halves
        info = builder.get_graph_info()
        self._log("graph_info=%r", info)
        return info

    def _log(self, message: str, *values: Any) -> None:
        if self.enable_logging:
            LOGGER.info(f"[{type(self).__name__}] {message}", *values)

    def _configuration(self, model: onnx.ModelProto) -> OrtModuleGraphBuilderConfiguration:
        if self.graph_builder_config is not None:
            return self.graph_builder_config
        config = OrtModuleGraphBuilderConfiguration()
        config.initializer_names = list(self.weights_to_train)
        config.initializer_names_to_train = list(self.weights_to_train)
        floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16}
        config.input_names_require_grad = [
            i.name
            for i in model.graph.input
            if i.name in self.input_names and i.type.tensor_type.elem_type in floats
        ]
        return config

    def _make_class(self, info: GraphInfo) -> type:
        device, outputs = self._ort_device(), list(info.user_output_names)
        attributes = {
            "_grad_input_names": self.feed_names,
            "_feed_shapes": self._feed_shapes(),
            "_input_names": self.input_names,
            "_output_names": outputs,
            "_bw_fetches_names": self.gradient_names,
            "_onx_inp": self.feed_names,
            "_onx_out": self.gradient_names,
            "_weights_to_train": self.weights_to_train,
            "_graph_info": info,
            "_devices": [device] * len(self.feed_names),
            "_fw_outputs_device_info": [device] * len(outputs),
            "_fw_no_grad_output_device_info": [device] * len(outputs),
            "_bw_outputs_device_info": [device] * len(self.gradient_names),
            "_sess": OnFirstUse(partial(self._session, self._trained_onnx)),
            "_sess_eval": OnFirstUse(partial(self._session, self._optimized_pre_grad_model)),
            "_training_agent": OnFirstUse(self._agent),
            "_cache": OrtValueCache(),
            "_run_options": self.run_options,
            "_debug": self.debug,
            "_trained_onnx": self._trained_onnx,
            "_optimized_pre_grad_model": self._optimized_pre_grad_model,
        }
        return type(self.class_name, (OrtGradientForwardBackwardFunction,), attributes)

    def _feed_shapes(self) -> dict[str, Shape | None]:
        """The shapes of the weights; features may have any."""
        weights = self.weights
        return {n: weights[n].shape if n in weights else None for n in self.feed_names}

    def _ort_device(self) -> Any:
        first = self.providers[0]
        cuda = (first if isinstance(first, str) else first[0]) == "CUDAExecutionProvider"
        return get_ort_device(f"cuda:{self.device_index}" if cuda else "cpu")

    def _session(self, model: onnx.ModelProto) -> Any:
        return open_session(
            model.SerializeToString(), self.sess_options, self.providers, self.provider_options
        )

    def _agent(self) -> TrainingAgent:
        cls: Any = self.cls_type_
        return TrainingAgent(
            cls._sess,
            cls._grad_input_names,
            cls._fw_outputs_device_info,
            cls._bw_fetches_names,
            cls._bw_outputs_device_info,
        )


def in_shapes(values: Any, shapes: Mapping[str, Shape | None], what: str) -> Any:
    """OrtValues with the shapes that a graph wants; None is any shape.

    Args:
        values: an OrtValueVector.
        shapes: the shapes by the name of what they belong to, in the order of the values.
        what: what the values are, for the message.
    """
    actual = [tuple(values[i].shape()) for i in range(len(values))]
    pairs = list(zip(actual, shapes.items()))
    if all(expected is None or shape == expected for shape, (_, expected) in pairs):
        return values
    adapted = OrtValueVector()
    for i, (shape, (name, expected)) in enumerate(pairs):
        if expected is None or shape == expected:
            adapted.push_back(values[i])
            continue
        if math.prod(shape) != math.prod(expected):
            raise InputError(
                f"{name!r} has the shape {list(expected)}, and the {what} it that was given "
                f"{list(shape)}."
            )
        device = values[i].device_name().lower()
        adapted.push_back(numpy_to_ort_value(values[i].numpy().reshape(expected), device))
    return adapted


class OnFirstUse:
    """A class attribute whose value is made when it is first read."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: Any = None

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        with self._lock:
            if self._value is None:
                self._value = self._make()
            return self._value


class OrtGradientForwardBackwardFunction:
    """Forward and backward passes of one model; made by `OrtGradientForwardBackward`.

    A backward pass belongs to the last forward pass, so every thread needs an instance of its own.
    """

    _devices: Sequence[Any] = ()
    _bw_outputs_device_info: Sequence[Any] = ()
    _bw_fetches_names: Sequence[str] = ()
    _fw_no_grad_output_device_info: Sequence[Any] = ()
    _grad_input_names: Sequence[str] = ()
    _feed_shapes: Mapping[str, Shape | None] = {}
    _output_names: Sequence[str] = ()
    _training_agent: Any = None
    _sess_eval: Any = None
    _cache: Any = None
    _run_options: Any = None
    _debug = False
    _trained_onnx: Any = None
    _optimized_pre_grad_model: Any = None

    def __init__(self) -> None:
        self.states_: list[tuple[PartialGraphExecutionState, list[Shape]]] = []
        self.saved_tensors_: tuple[Any, ...] | None = None

    @staticmethod
    def device_name(device: Any) -> str:
        """``"cpu"`` or ``"cuda:<number>"``."""
        return ort_device_to_string(device)

    @staticmethod
    def input_to_ort(tensors: Any, devices: Sequence[Any], debug: bool = False) -> Any:
        """Arrays, OrtValues or an OrtValueVector as an OrtValueVector on the devices."""
        if isinstance(tensors, OrtValueVector):
            return tensors
        values = OrtValueVector()
        for i, tensor in enumerate(tensors):
            raw = getattr(tensor, "_ortvalue", tensor)
            device = devices[i] if i < len(devices) else devices[-1]
            if not isinstance(raw, OrtValue):
                raw = numpy_to_ort_value(raw, device)
            elif (
                debug
                and raw.device_name().lower() != ort_device_to_string(device).partition(":")[0]
            ):
                raise DeviceError(
                    f"Tensor {i} is on {raw.device_name()!r}, and "
                    f"{ort_device_to_string(device)!r} is expected."
                )
            values.push_back(raw)
        return values

    def save_for_backward(self, inputs: Any) -> None:
        """Keep tensors until the backward pass."""
        self.saved_tensors_ = tuple(inputs)

    @property
    def saved_tensors(self) -> tuple[Any, ...] | None:
        """What `save_for_backward` kept."""
        return self.saved_tensors_

    def forward(
        self, inputs: Any, training: bool = False, forward_outputs_cache: Any = None
    ) -> Any:
        """Compute the outputs from inputs and weights, in the order of the gradient graph.

        Args:
            inputs: arrays, OrtValues or an OrtValueVector: the features, then the weights. A weight
                that has as many elements as the model's, and another shape, is taken for it.
            training: keep what a backward pass needs.
            forward_outputs_cache: an empty OrtValueVector to fill instead of a new one.
        """
        values = self.input_to_ort(inputs, self._devices, self._debug)
        if len(values) != len(self._grad_input_names):
            raise ModelError(
                f"The model takes {len(self._grad_input_names)} inputs "
                f"({', '.join(self._grad_input_names)}), {len(values)} were given."
            )
        values = in_shapes(values, self._feed_shapes, "value of")
        if training:
            outputs = OrtValueVector() if forward_outputs_cache is None else forward_outputs_cache
            state = PartialGraphExecutionState()
            before = len(outputs)
            self._training_agent.run_forward(values, outputs, state, self._cache)
            shapes = [tuple(outputs[i].shape()) for i in range(before, len(outputs))]
            self.states_.append((state, shapes))
            return outputs
        names, devices = self._grad_input_names, list(self._fw_no_grad_output_device_info)
        half = ForwardHalf(self._sess_eval, names, self._output_names, devices)
        return half.run(values, options=self._run_options or RUN_OPTIONS)

    def backward(self, grad_outputs: Any, backward_outputs_cache: Any = None) -> Any:
        """Gradients of the float inputs, then of the weights, for the last pending forward pass.

        Args:
            grad_outputs: arrays, OrtValues or an OrtValueVector: the gradients of the outputs. One
                with as many elements as its output, and another shape, is taken for it.
            backward_outputs_cache: an empty OrtValueVector to fill instead of a new one.
        """
        if not self.states_:
            raise ModelError("There is no forward pass pending: call forward(…, training=True).")
        if len({state.thread for state, _ in list(self.states_)}) > 1:
            raise SharingError(
                "Forward passes of several threads are pending, and the last one need not be that "
                "of this thread. Give every thread a function of its own: new_instance()."
            )
        values = self.input_to_ort(grad_outputs, self._bw_outputs_device_info, self._debug)
        outputs = OrtValueVector() if backward_outputs_cache is None else backward_outputs_cache
        state, shapes = self.states_.pop()
        values = in_shapes(values, dict(zip(self._output_names, shapes)), "gradient of")
        self._training_agent.run_backward(values, outputs, state)
        return outputs

    @classmethod
    def save_onnx_graph(cls, folder: Any, prefix: str = "", suffix: str = "") -> dict[str, Any]:
        """Write the gradient graph and the evaluation graph; see `BaseOnnx.save_onnx_graph`."""
        holder = BaseOnnx()
        holder.__dict__.update(
            _trained_onnx=cls._trained_onnx, _optimized_pre_grad_model=cls._optimized_pre_grad_model
        )
        return holder.save_onnx_graph(folder, prefix or cls.__name__, suffix)
