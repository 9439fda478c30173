"""`TrainingAgent`: forward now, backward later, with whatever the caller likes in between."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnxruntime.capi._pybind_state import OrtValue
from onnxruntime.capi._pybind_state import OrtValueVector as OrtValueVector

from ...errors import ExecutionError, InputError, ModelError, UnknownNameError
from ...graph.contract import RANDOM_INPUT
from ...passes.partition import Partition
from ...runtime.session.devices import open_session, session_options
from ...runtime.session.native import core_of, ort_device, raw_device, raw_ortvalue
from ...runtime.session.sharing import OneProcess, keep_from_parent
from ...runtime.step.halves import BackwardHalf, ForwardHalf, vector_of
from .graph_builder import embedded, split
from .seed import drawn_seed

FORWARD, BACKWARD = "Error in forward pass execution: ", "Error in backward pass execution: "


class PartialGraphExecutionState:
    """What one forward pass leaves for its backward pass.

    It holds the values by reference. The backward pass releases them, and so does forgetting
    the state.
    """

    __slots__ = ("__weakref__", "owner", "thread", "values")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        """The thread that made it."""
        self.owner: TrainingAgent | None = None
        """The agent whose backward pass is due; None before the forward pass and afterwards."""
        self.values: Any = None
        """What that pass reads."""


class OrtValueCache:
    """Values by name, kept from one call to the next."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def insert(self, name: str, value: Any) -> None:
        """Keep a value."""
        self._values[name] = value

    def keys(self) -> list[str]:
        """Names of the values that are kept."""
        return list(self._values)

    def count(self, name: str) -> int:
        """1 when a value of this name is kept, else 0."""
        return int(name in self._values)

    def remove(self, name: str) -> None:
        """Forget a value."""
        if name not in self._values:
            raise UnknownNameError("cached value", name, self.keys())
        del self._values[name]

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()


class TrainingAgent(OneProcess):
    """Runs the two halves of a gradient model made by `OrtModuleGraphBuilder`.

    Values are passed by position: the model's inputs and weights forward, the gradients of its
    outputs backward. Nothing is copied: results are new OrtValues, and what the backward half needs
    stays where the forward half made it. Any number of forward passes may be pending. So inputs and
    weights must not be written over in place between a forward pass and its backward pass. Several
    threads may use one agent at the same time, each with states of its own.

    Args:
        session: the session of the gradient model, `onnxruntime.InferenceSession` or its `_sess`.
        fw_feed_names: inputs in the order in which `run_forward` gets them.
        fw_outputs_device_info: where each output shall be.
        bw_fetches_names: gradients in the order in which `run_backward` gives them.
        bw_outputs_device_info: where each gradient shall be.
        local_rank: accepted; one process is one agent.

    Attributes:
        random: seed and number of forward passes so far, from which the masks of Dropout follow;
            None if nothing is drawn. To continue a run exactly, save it and set it again. The first
            seed follows from `onnxruntime.set_seed`.
    """

    _instead = "Hand over the gradient model, and make a new agent from it there."

    def __init__(
        self,
        session: Any,
        fw_feed_names: Sequence[str],
        fw_outputs_device_info: Sequence[Any],
        bw_fetches_names: Sequence[str],
        bw_outputs_device_info: Sequence[Any],
        local_rank: int = 0,
    ) -> None:
        parts = _parts_of(session)
        known = [i.name for i in parts.forward.graph.input]
        inputs = [n for n in known if n != RANDOM_INPUT]
        reads = [i.name for i in parts.backward.graph.input]
        gradients = [o.name for o in parts.backward.graph.output]
        _check_names(fw_feed_names, inputs, bw_fetches_names, gradients)
        _check_count("outputs", parts.outputs, fw_outputs_device_info)
        _check_count("gradients", bw_fetches_names, bw_outputs_device_info)
        forward, backward = _sessions(session, parts.forward, parts.backward)
        self._count = len(fw_feed_names)
        feeds = list(fw_feed_names)
        self.random: tuple[int, int] | None = None
        if RANDOM_INPUT in known:
            feeds.append(RANDOM_INPUT)
            self.random = (drawn_seed(), 0)
        results = [o.name for o in parts.forward.graph.output]
        self._outputs = len(parts.outputs)
        devices = [*map(raw_device, fw_outputs_device_info)]
        devices += devices[:1] * (len(results) - len(devices))
        self._saved = [n for n in reads if n in parts.saved]
        self._read_inputs = [n for n in reads if n in known]
        self._seeds = reads[len(self._saved) + len(self._read_inputs) :]
        self._forward: Any = ForwardHalf(forward, feeds, results, devices)
        self._backward: Any = BackwardHalf(
            backward,
            self._forward,
            saved=self._saved,
            inputs=self._read_inputs,
            seeds=self._seeds,
            gradients=bw_fetches_names,
            device=[*map(raw_device, bw_outputs_device_info)],
        )
        self._differentiable = [
            i for i, name in enumerate(parts.outputs) if f"{name}_grad" in self._seeds
        ]
        self._share()

    def after_fork(self) -> None:
        """Refuse to work in a forked process."""
        super().after_fork()
        keep_from_parent((self._forward, self._backward))
        self._forward = self._backward = self._refusal()

    def run_forward(
        self,
        feeds: Any,
        fetches: Any,
        state: PartialGraphExecutionState,
        cache: OrtValueCache | None = None,
    ) -> None:
        """Compute the outputs and keep, in `state`, what the backward pass needs.

        Args:
            feeds: OrtValueVector (or list of OrtValues): the inputs, in the agent's order.
            fetches: OrtValueVector to which the outputs are appended.
            state: a new state, one for every forward pass.
            cache: accepted; nothing has to be cached here.
        """
        feeds = _vector(feeds)
        if len(feeds) != self._count:
            raise ExecutionError(
                f"{FORWARD}the model takes {self._count} inputs "
                f"({', '.join(self._forward.feeds[: self._count])}), {len(feeds)} were given."
            )
        if self.random is not None:
            feeds = _with(feeds, _words(self.random))
        run, keep = self._forward.run, self._backward.keep  # a forked process has neither
        try:
            results = run(feeds)
        except Exception as error:
            raise ExecutionError(f"{FORWARD}{error}") from error
        if self.random is not None:
            self.random = (self.random[0], self.random[1] + 1)
        for i in range(self._outputs):
            fetches.push_back(results[i])
        state.owner, state.values = self, keep(results, feeds)

    def run_backward(self, feeds: Any, fetches: Any, state: PartialGraphExecutionState) -> None:
        """Compute the gradients from those of the outputs, and release the state.

        Args:
            feeds: OrtValueVector (or list of OrtValues): the gradients of the outputs.
            fetches: OrtValueVector to which the gradients are appended.
            state: the state of the forward pass.
        """
        seeds = [feeds[i] for i in range(len(feeds))]  # iterating a vector is slow
        if len(seeds) == self._outputs != len(self._seeds):
            seeds = [seeds[i] for i in self._differentiable]
        if len(seeds) != len(self._seeds):
            raise ExecutionError(
                f"{BACKWARD}it takes {len(self._seeds)} gradients of outputs "
                f"({', '.join(self._seeds)}), {len(seeds)} were given."
            )
        needed = self._taken(state)
        for value in seeds:
            needed.push_back(raw_ortvalue(value))
        run = self._backward.run
        try:
            gradients = run(needed, None if len(fetches) else fetches)
        except Exception as error:
            raise ExecutionError(f"{BACKWARD}{error}") from error
        if gradients is not fetches:
            for i in range(len(gradients)):
                fetches.push_back(gradients[i])

    def _taken(self, state: PartialGraphExecutionState) -> Any:
        """What a forward pass has left; a state gives it once, to one thread."""
        with self._lock:
            if state.owner is not self:
                why = "belongs to another agent" if state.owner else "has no forward pass pending"
                raise ExecutionError(
                    f"{BACKWARD}this state {why}. Every backward pass needs its own run_forward."
                )
            needed, state.owner, state.values = state.values, None, None
            return needed

    def get_serialized_ortmodule_memory_stat(self, *unused: Any) -> str:
        """What the backward half needs from the forward half, as JSON."""
        return json.dumps({"saved": self._saved, "inputs": self._read_inputs})


def _check_names(
    feeds: Sequence[str], inputs: Sequence[str], fetches: Sequence[str], gradients: Sequence[str]
) -> None:
    for name in feeds:
        if name not in inputs:
            raise UnknownNameError("input of the forward half", name, inputs)
    missing = [n for n in inputs if n not in feeds]
    if missing:
        raise InputError(f"fw_feed_names lacks {', '.join(missing)}.")
    for name in fetches:
        if name not in gradients:
            raise UnknownNameError("gradient", name, gradients)


def _check_count(what: str, names: Sequence[str], devices: Sequence[Any]) -> None:
    if len(names) != len(devices):
        raise InputError(
            f"There are {len(names)} {what} ({', '.join(names)}), and {len(devices)} devices "
            "were given."
        )


def _parts_of(session: Any) -> Partition:
    """The halves: from the metadata of the session's model, or cut from the model itself."""
    core = core_of(session)
    parts = embedded(core.model_meta.custom_metadata_map)
    if parts is not None:
        return parts
    model = getattr(session, "_model_path", None) or getattr(session, "_model_bytes", None)
    if model is None:
        raise ModelError(
            "The session's model does not carry its two halves in its metadata. Use the bytes of "
            "OrtModuleGraphBuilder.get_gradient_model() as they are, or pass the "
            "onnxruntime.InferenceSession instead of its _sess."
        )
    return split(model)


def _sessions(session: Any, *models: onnx.ModelProto) -> list[Any]:
    """One session per half, with the options and providers of the gradient model's session."""
    core = core_of(session)
    options = core.get_provider_options()
    providers = [(name, options.get(name, {})) for name in core.get_providers()]
    chosen = session_options(core.session_options)
    return [open_session(model.SerializeToString(), chosen, providers) for model in models]


def _words(random: tuple[int, int]) -> OrtValue:
    """Seed and counter in memory of their own: a backward pass that is due later may read them."""
    value = OrtValue.ortvalue_from_shape_and_type([2], np.int64, ort_device("cpu"))
    value.update_inplace(np.array(random, np.int64))
    return value


def _with(values: Any, last: OrtValue) -> Any:
    """A copy of a vector with one more value; the vector is the caller's."""
    return vector_of([*(values[i] for i in range(len(values))), last])


def _vector(values: Any) -> Any:
    if isinstance(values, OrtValueVector):
        return values
    return vector_of([raw_ortvalue(value) for value in values])
