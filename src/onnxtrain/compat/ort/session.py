"""`TrainingSession`: one run is one step of training."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime

from ...errors import InputError, ModelError, StateError, UnknownNameError, model_errors
from ...graph import load, to_proto
from ...graph.contract import RANDOM_INPUT
from ...graph.external import data_folder
from ...graph.io import save
from ...hyper import LARGEST, check_rate
from ...optim.transforms import FIRST, SECOND
from ...preparing import preparing
from ...runtime.files.onnxfile import ValueInfo
from ...runtime.session.binding import Binding
from ...runtime.session.devices import RUN_OPTIONS, Device, open_session, session_options
from ...runtime.session.feeds import FeedCheck
from ...runtime.session.labels import ClassLabels
from ...runtime.session.native import core_of, io_of, raw_ortvalue, whole_session, wrap_io
from ...runtime.session.sharing import OneProcess, exclusive
from ...runtime.session.threads import is_small
from .binding import StepBinding
from .parameters import TrainingParameters
from .recipes import optimizers_for
from .runner import Key, StepRunner
from .seed import drawn_seed
from .step import LOSS_SCALE, STEP, Step, StepBuilder, loss_name, trained_weights

Array = npt.NDArray[Any]
MOMENTS = {"Moment_1": FIRST, "Moment_2": SECOND}
COUNT = "Update_Count"


class TrainingSession(OneProcess, onnxruntime.InferenceSession):  # type: ignore[misc]
    """Trains a model whose graph contains its loss: forward, backward and update in one run.

    It is used like an `onnxruntime.InferenceSession`. The inputs are those of the model, then the
    learning rate; the loss is the first output. The weights live in the session and change with
    every run, whether by `run`, by `run_with_iobinding`, or by ``_sess.run_with_iobinding``. Steps
    from several threads follow one another; a binding belongs to one thread.

    Args:
        path_or_bytes: the model: a path or its bytes.
        parameters: what to train and how.
        sess_options: options of onnxruntime. By default small models run on one thread.
        providers: execution providers, by default the CPU's.
        provider_options: their options.

    Example:
        >>> import numpy as np, onnx.parser
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N] x) => (float loss) <float w = {3}> {
        ...         y = Sub(x, w)  s = Mul(y, y)  loss = ReduceMean<keepdims=0>(s)
        ...     }
        ... ''')
        >>> parameters = TrainingParameters()
        >>> parameters.loss_output_name = "loss"
        >>> parameters.weights_to_train = {"w"}
        >>> parameters.training_optimizer_name = "SGDOptimizer"
        >>> session = TrainingSession(model.SerializeToString(), parameters)
        >>> feeds = {"x": np.ones(4, np.float32), "Learning_Rate": np.array([0.25], np.float32)}
        >>> [float(session.run(["loss"], feeds)[0]) for _ in range(3)]
        [4.0, 1.0, 0.25]
        >>> session.get_state()["w"]
        array(1.25, dtype=float32)
    """

    _instead = "Hand over the model and get_state(), and load_state() into a new session there."

    @preparing("preparing a TrainingSession")
    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        parameters: TrainingParameters,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        if not isinstance(parameters, TrainingParameters):
            raise InputError(
                f"parameters must be TrainingParameters, not {type(parameters).__name__}."
            )
        parameters.check()
        loaded = load(path_or_bytes)
        with model_errors("Reading the model"):
            proto = ir.to_proto(loaded)
        weights = trained_weights(loaded, parameters, loss_name(proto, parameters))
        optimizers = optimizers_for(parameters, weights)
        builder = StepBuilder(proto, data_folder(loaded), parameters, optimizers, weights)
        step = builder.updating()
        _write_files(builder, step, parameters)
        steps = {True: step}
        accumulation = parameters.gradient_accumulation_steps if optimizers else 1
        if accumulation > 1:
            steps[False] = builder.accumulating()
        providers = ["CPUExecutionProvider"] if providers is None else providers
        device = Device.of_providers(providers, provider_options)
        self._weights, self._optimizers = weights, optimizers
        arrays = _initial_arrays(loaded, step)
        small = is_small(sum(arrays[w].size for w in weights))
        sess_options = session_options(sess_options, pattern=False, threads=1 if small else 0)
        with model_errors("Loading the step into onnxruntime"):
            self.sessions = {
                updates: open_session(
                    to_proto(one.model).SerializeToString(),
                    sess_options,
                    providers,
                    provider_options,
                )
                for updates, one in steps.items()
            }
        # An InferenceSession in everything but its core, which knows about the state.
        whole = whole_session(self.sessions[True])
        self.__dict__.update(whole.__dict__)
        self._sess = _Stepper(self, core_of(whole))
        self._share()
        self.runner = StepRunner(
            steps,
            arrays,
            device,
            accumulation,
            updates=bool(optimizers),
            check_finite=parameters.check_finite,
        )
        self._make_user_side(step)
        self._rate_name = parameters.lr_params_feed_name if optimizers else ""
        self._loss_scale_name = LOSS_SCALE if LOSS_SCALE in step.inputs else ""
        if parameters.optimizer_initial_state:
            self._load_optimizer_state(parameters.optimizer_initial_state)

    # -- state -------------------------------------------------------------------------------------

    def _make_user_side(self, step: Step) -> None:
        inputs = {v.name: v for v in step.model.graph.inputs}
        outputs = {v.name: v for v in step.model.graph.outputs}
        self._input_names, self._output_names = list(step.inputs), list(step.outputs)
        self._input_infos = [_info(inputs[n]) for n in step.inputs]
        self._output_infos = {n: _info(outputs[n]) for n in step.outputs}
        labels = [ClassLabels(**one.to_dict()) for one in step.labels]
        self._check = FeedCheck(self._input_infos, set(), labels)
        self._own: dict[tuple[Key, tuple[str, ...]], Binding] = {}
        session = self.sessions[True]
        metas = {m.name: m for m in (*session.get_inputs(), *session.get_outputs())}
        self._inputs_meta = [metas[n] for n in step.inputs]
        self._outputs_meta = [metas[n] for n in step.outputs]

    # -- running -----------------------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """One step of training.

        Args:
            output_names: outputs to return, all of them by default.
            input_feed: the model's inputs and the learning rate, by name.
            run_options: options of onnxruntime.
        """
        names = self._input_names
        values = [input_feed[n] for n in names if n in input_feed]
        if len(values) != len(names) or len(input_feed) != len(names):
            self._refuse(input_feed)
        if self._rate_name:
            check_fed_rate(input_feed[self._rate_name], self._rate_name)
        outputs = tuple(output_names) if output_names else ()
        with self._lock:
            key = self.runner.key()
            binding = self._own.get((key, outputs)) or self._bind(key, outputs)
            if not binding.feed_again(values):
                binding.feed(self._input_infos, self._check.arrays(values))
            binding.run(RUN_OPTIONS if run_options is None else run_options)
            self.runner.finish(key)
            return binding.results()

    def new_binding(self, key: Key) -> Binding:
        """A binding of the engine for steps of one kind; `runner.bind` binds the state to it."""
        return Binding(self.sessions[key[0]], self.runner.device)

    def _bind(self, key: Key, outputs: tuple[str, ...]) -> Binding:
        for name in outputs:
            self._position(name)
        binding = self.new_binding(key)
        binding.user_outputs([self._output_infos[n] for n in outputs or self._output_names])
        binding.labels = self._check.labels
        self.runner.bind(key, binding)
        self._own[key, outputs] = binding
        return binding

    def _position(self, name: str) -> int:
        if name not in self._output_names:
            raise UnknownNameError("output", name, self._output_names)
        return self._output_names.index(name)

    def _refuse(self, feeds: Mapping[str, Any]) -> None:
        names = self._input_names
        missing = [n for n in names if n not in feeds]
        unknown = [n for n in feeds if n not in names]
        what = f"Missing input(s) {missing}" if missing else f"Unknown input(s) {unknown}"
        raise InputError(f"{what}; the session takes {', '.join(names)}.")

    @property
    def labels(self) -> Sequence[ClassLabels]:
        """What inputs that hold class labels may hold; `run` checks it."""
        return self._check.labels

    @exclusive
    def io_binding(self) -> onnxruntime.IOBinding:
        """A binding for the inputs and outputs; the weights are bound by the session."""
        whole = whole_session(self.sessions[True])
        binding = StepBinding(
            core_of(whole),
            [*self._input_names, *self._output_names],
            self.runner.key,
            self.new_binding,
            self.runner.bind,
        )
        return wrap_io(whole, self._sess, binding)

    def run_with_iobinding(self, iobinding: onnxruntime.IOBinding, run_options: Any = None) -> None:
        """One step of training on what is bound."""
        self._sess.run_with_iobinding(io_of(iobinding), run_options)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict: Mapping[str, Any], options: Any = None
    ) -> list[Any]:
        """One step of training on OrtValues."""
        outputs = list(output_names or self._output_names)
        binding = self.io_binding()
        io = io_of(binding)
        for name, value in input_dict.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            io.bind_output(name, self.runner.device.ort_device)
        self.run_with_iobinding(binding, options)
        return [onnxruntime.OrtValue(v) for v in io.get_outputs()]

    def run_bound(self, binding: Any, options: Any) -> None:
        """One step of training on a binding of the C level."""
        if not isinstance(binding, StepBinding):
            raise InputError(
                "This binding does not know the session's weights. Take one from "
                "TrainingSession.io_binding()."
            )
        if self._rate_name:
            check_fed_rate(binding.bound_input(self._rate_name), self._rate_name)
        for labels in self._check.labels:
            array = binding.host_array(labels.input)
            if array is not None:
                labels.check(array)
        options = RUN_OPTIONS if options is None else options
        with self._lock:
            key = self.runner.key()
            core_of(self.sessions[key[0]]).run_with_iobinding(binding.ready(key), options)
            self.runner.finish(key)

    # -- looking at the state, and changing it -----------------------------------------------------

    @exclusive
    def get_state(self) -> dict[str, Array]:
        """Copies of the weights by name.

        With Adam and Lamb also ``Moment_1_<w>``, ``Moment_2_<w>`` and ``Update_Count_<w>``; with
        batch normalization that trains, also its running statistics; with Dropout that trains, also
        ``onnxtrain.random``: seed and number of the runs so far, from which its masks follow.
        """
        store = self.runner.current()
        names = [*self._weights, *self.runner.steps[True].statistics]
        if RANDOM_INPUT in store:
            names.append(RANDOM_INPUT)
        state = {n: store.view(n).copy() for n in names}
        for weight, moments in self.get_optimizer_state().items():
            state.update({f"{kind}_{weight}": value for kind, value in moments.items()})
        return state

    @exclusive
    def get_model_state(
        self, include_mixed_precision_weights: bool = False
    ) -> dict[str, dict[str, Array]]:
        """``{"full_precision": {weight: array}}``."""
        store = self.runner.current()
        state = {"full_precision": {n: store.view(n).copy() for n in self._weights}}
        if include_mixed_precision_weights:
            state["mixed_precision"] = {}
        return state

    @exclusive
    def get_optimizer_state(self) -> dict[str, dict[str, Array]]:
        """``{weight: {"Moment_1": …, "Moment_2": …, "Update_Count": …}}``; empty without moments.

        The count is the number of the next update: 1 at the start.
        """
        store = self.runner.current()
        if STEP not in store:
            return {}
        return {
            weight: {
                **{k: store.view(f"{weight}.{s}").copy() for k, s in self._moments(weight).items()},
                COUNT: store.view(STEP).copy(),
            }
            for weight in self._weights
        }

    def _moments(self, weight: str) -> dict[str, str]:
        """What the optimizer keeps for a weight: public name → name of the state."""
        public = {state: kind for kind, state in MOMENTS.items()}
        return {public.get(s, s): s for s in self._optimizers[weight].states}

    @exclusive
    def load_state(self, state: Mapping[str, Any], strict: bool = False) -> None:
        """Set weights, and whatever else `get_state` gives.

        Args:
            state: arrays by name.
            strict: an error when names are missing or unknown; otherwise what is missing stays,
                and unknown names are passed over.
        """
        known = self.get_state()
        if strict:
            unknown = [n for n in state if n not in known]
            missing = [n for n in known if n not in state and n != RANDOM_INPUT]
            if unknown:
                raise UnknownNameError("state", unknown[0], list(known))
            if missing:
                raise ModelError(f"The state lacks {', '.join(missing)}.")
        moments: dict[str, dict[str, Any]] = {}
        plain: dict[str, Any] = {}
        for name, value in state.items():
            if name not in known:
                continue
            if name in self.runner.current():
                plain[name] = value
                continue
            weight = next(
                w for w in self._weights if name.endswith(f"_{w}") and self._kind(name, w)
            )
            moments.setdefault(weight, {})[self._kind(name, weight)] = value
        self._set(plain)
        if moments:
            self._load_optimizer_state(moments)

    def _kind(self, name: str, weight: str) -> str:
        """The kind of optimizer state that a name such as Moment_1_<weight> stands for."""
        kind = name.removesuffix(f"_{weight}")
        return kind if kind in {*self._moments(weight), COUNT} else ""

    def _load_optimizer_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        values: dict[str, Any] = {}
        counts: set[int] = set()
        for weight, moments in state.items():
            shared = weight == "shared_optimizer_state"
            if weight not in self._weights and not shared:
                raise UnknownNameError("trained weight", weight, self._weights)
            for kind, value in moments.items():
                if kind == COUNT or (shared and kind.lower() == "step"):
                    counts.add(int(np.asarray(value).reshape(())))
                elif not shared and kind in self._moments(weight):
                    values[f"{weight}.{self._moments(weight)[kind]}"] = value
                else:
                    known = [] if shared else [*self._moments(weight), COUNT]
                    raise UnknownNameError(
                        f"optimizer state of {weight!r}",
                        kind,
                        known if STEP in self.runner.current() else [],
                    )
        if len(counts) > 1:
            raise InputError(
                f"{COUNT} differs between weights ({sorted(counts)}); all weights of a session "
                "are updated together and have one count."
            )
        if counts and STEP in self.runner.current():
            values[STEP] = np.array([counts.pop()], np.int64)
        self._set(values)

    def _set(self, values: Mapping[str, Any]) -> None:
        store = self.runner.current()
        arrays = {}
        for name, value in values.items():
            raw = raw_ortvalue(value)
            array = np.asarray(value if raw is None else raw.numpy())
            if array.shape != store.specs[name].shape:
                raise InputError(
                    f"{name!r} has shape {list(store.specs[name].shape)}, and the state holds "
                    f"{list(array.shape)}."
                )
            arrays[name] = array
        for name, array in arrays.items():
            store.view(name)[...] = array
        store.push()

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Refused: the weights live where the session was made."""
        raise StateError(
            "The providers of a TrainingSession cannot be changed. Make a new session with "
            "providers=… and hand it the state: new.load_state(old.get_state())."
        )

    # -- small questions ---------------------------------------------------------------------------

    @property
    def loss_scale_input_name(self) -> str:
        """The input that scales the loss; empty when there is none."""
        return self._loss_scale_name

    def is_output_fp32_node(self, output_name: str) -> bool:
        """Whether an output is of type float32."""
        return bool(self._outputs_meta[self._position(output_name)].type == "tensor(float)")

    def get_partition_info_map(self) -> dict[str, Any]:
        """How weights are spread over processes: they are not."""
        return {}


class _Stepper:
    """The core of a training session: onnxruntime's own, except that a run is a step."""

    def __init__(self, session: TrainingSession, core: Any) -> None:
        self._session, self._core = session, core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        """One step of training on what is bound."""
        self._session.run_bound(binding, options)

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], options: Any = None
    ) -> list[Any]:
        """One step of training."""
        return self._session.run(output_names, feeds, options)


def check_fed_rate(value: Any, name: str) -> None:
    """Raise unless a learning rate that is fed is finite and not negative.

    Its shape and type are checked elsewhere; what is not in the host's memory cannot be looked at.
    """
    if not isinstance(value, np.ndarray):
        raw = raw_ortvalue(value)
        if value is None or (raw is not None and raw.device_name().lower() != "cpu"):
            return
        value = np.asarray(value if raw is None else raw.numpy())
    if value.size == 1 and value.dtype.kind in "fiu" and not 0.0 <= value.item() <= LARGEST:
        check_rate(value.item(), f"The learning rate {name!r}")


def _info(value: ir.Value) -> ValueInfo:
    shape = None
    if value.shape is not None:
        shape = tuple(d if isinstance(d, int) else d.value for d in value.shape)
    return ValueInfo(value.name or "", None if value.dtype is None else int(value.dtype), shape)


def _initial_arrays(model: ir.Model, step: Step) -> dict[str, Array]:
    """The first value of everything that a step reads besides the user's inputs."""
    arrays: dict[str, Array] = {}
    for value in step.model.graph.inputs:
        name = value.name or ""
        if name in step.inputs:
            continue
        known = model.graph.initializers.get(name)
        if known is not None and known.const_value is not None:
            arrays[name] = known.const_value.numpy()
        else:
            assert value.shape is not None
            assert value.dtype is not None
            arrays[name] = np.zeros(value.shape.numpy(), value.dtype.numpy())
    if STEP in arrays:
        arrays[STEP][...] = 1
    if RANDOM_INPUT in arrays:
        arrays[RANDOM_INPUT][0] = drawn_seed()
    return arrays


def _write_files(builder: StepBuilder, step: Step, parameters: TrainingParameters) -> None:
    if parameters.model_after_graph_transforms_path:
        save(builder.transformed(), parameters.model_after_graph_transforms_path)
    if parameters.model_with_gradient_graph_path:
        save(builder.with_gradients(), parameters.model_with_gradient_graph_path)
    if parameters.model_with_training_graph_path:
        save(step.model, parameters.model_with_training_graph_path)
