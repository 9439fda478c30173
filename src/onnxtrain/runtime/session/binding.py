"""A session with everything that does not change bound once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from numpy import ndarray

from ...errors import InputError, RunError
from ..files.dtypes import BY_ONNX, ElementType
from ..files.onnxfile import ValueInfo
from ..state.buffers import TensorStore
from ..step.artifact import Artifact
from .devices import RUN_OPTIONS, Device
from .feeds import FeedCheck
from .labels import ClassLabels
from .native import core_of, new_io, raw_ortvalue
from .strings import string_value

Array = npt.NDArray[Any]
OWN_BUFFER_ELEMENTS = 64
"""Outputs of known size up to this many elements get a buffer of their own, bound once."""

STAGED = 32768
"""Inputs up to this many bytes are copied into memory that stays bound."""

HOST = Device("cpu")


class Binding:
    """One set of inputs and outputs of a session, on which it is run again and again.

    User outputs must be bound before all others, so that they come first in the results.

    Args:
        session: what `open_session` gives.
        device: where the state lives that is bound.
    """

    def __init__(self, session: Any, device: Device) -> None:
        self.session, self.device = session, device
        self.io = new_io(session)
        self._run = core_of(session).run_with_iobinding
        self._bound: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._staged: dict[str, Array] = {}
        self._again: list[tuple[Array, Any, tuple[int, ...]]] = []
        self._fed: Sequence[Any] = ()
        self.labels: Sequence[ClassLabels] = ()
        """What inputs that stay bound have to be checked for when they get other numbers."""
        self._watched: list[tuple[Array, int, Array, ClassLabels]] = []
        self.output_names: list[str] = []
        """The user's outputs, in the order of the results."""
        self._small: dict[str, Array] = {}
        self._copies: list[Callable[[], Array]] = []
        self._large: list[tuple[int, str]] = []

    # --- once ------------------------------------------------------------------------------------

    def user_outputs(self, infos: Sequence[ValueInfo]) -> None:
        """Results to hand out: small ones into a fixed buffer, large ones made by each run."""
        for index, info in enumerate(infos):
            self.output_names.append(info.name)
            kind = BY_ONNX.get(info.elem_type or 0)
            shape = small_shape(info)
            if self.device.is_host and kind is not None and not kind.opaque and shape is not None:
                buffer = np.zeros(shape, kind.numpy)
                self._small[info.name] = buffer
                self._copies.append(buffer.copy)
                self.output(info.name, kind, shape, address(buffer))
            else:
                self._large.append((index, info.name))
                self.allocated_output(info.name)

    def input(self, name: str, kind: ElementType, shape: Sequence[int], pointer: int) -> None:
        """Bind memory where the state lives."""
        self.io.bind_input(name, self.device.ort_device, kind.binding, shape, pointer)

    def host_input(self, name: str, array: Array) -> None:
        """Bind an array of the host, a learning rate say, that the caller keeps and changes."""
        element = array.dtype.type
        self.io.bind_input(name, HOST.ort_device, element, array.shape, address(array))

    def output(self, name: str, kind: ElementType, shape: Sequence[int], pointer: int) -> None:
        """Let a result be written to memory where the state lives."""
        self.io.bind_output(name, self.device.ort_device, kind.binding, shape, pointer)

    def host_output(self, name: str, array: Array) -> None:
        """Let a result be written to an array of the host that the caller keeps."""
        element = array.dtype.type
        self.io.bind_output(name, HOST.ort_device, element, array.shape, address(array))

    def allocated_output(self, name: str) -> None:
        """Let a run make a result, in memory of the host; to be said again before the next run."""
        self.io.bind_output(name, HOST.ort_device)

    def input_tensor(self, name: str, store: TensorStore, tensor: str) -> None:
        """Bind a tensor of a flat buffer as input."""
        spec = store.specs[tensor]
        self.input(name, spec.type, spec.shape, store.pointer(tensor))

    def output_tensor(self, name: str, store: TensorStore, tensor: str) -> None:
        """Let a result be written to a tensor of a flat buffer."""
        spec = store.specs[tensor]
        self.output(name, spec.type, spec.shape, store.pointer(tensor))

    # --- every step ------------------------------------------------------------------------------

    def feed(self, infos: Sequence[ValueInfo], values: Sequence[Any]) -> None:
        """Bind the user's inputs without copying; the same memory as before costs nothing."""
        self._fed = values  # bound by address: converted copies must live until the run is over
        for info, value in zip(infos, values):
            if value is None:
                continue
            name = info.name
            if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
                # copying a little is cheaper than binding again, unless a device has its own copy
                if self.device.is_host and value.nbytes <= STAGED:
                    self._feed_staged(info, value)
                else:
                    self._feed_array(info, value)
                continue
            ortvalue = string_value(value) if isinstance(value, np.ndarray) else value
            self.io.bind_ortvalue_input(name, ortvalue)
            self._bound.pop(name, None)
            self._staged.pop(name, None)
        staged = [self._staged[i.name] for i in infos if i.name in self._staged]
        self._again = [(a, a.dtype, a.shape) for a in staged] if len(staged) == len(infos) else []
        self._watched = [
            self._watch(labels)
            for labels in self.labels
            if self._again and self._staged[labels.input].size
        ]

    def _watch(self, labels: ClassLabels) -> tuple[Array, int, Array, ClassLabels]:
        """A view of bound labels, what none of them may exceed, and what it is a view of."""
        staged = self._staged[labels.input]
        return labels.unsigned(staged), labels.last(staged.dtype), staged, labels

    def feed_again(self, values: Sequence[Any]) -> bool:
        """Feed small arrays that are like the last ones; False if there is more to be done.

        This is all that happens to the inputs of a small model in almost every step.
        """
        staged = self._again
        if len(values) != len(staged):
            return False
        for value, (staging, dtype, shape) in zip(values, staged):
            if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                return False
            staging[...] = value
        for unsigned, last, bound, labels in self._watched:
            if unsigned.item(unsigned.argmax()) > last:
                labels.look_closer(bound)
        return True

    def again(self, values: Sequence[Any]) -> list[Array] | None:
        """A whole run on small arrays like the last ones; None if there is more to be done.

        In steps of some ten microseconds every call of Python counts, so `feed_again` and `results`
        are written out here.
        """
        staged = self._again
        if len(values) != len(staged):
            return None
        for value, (staging, dtype, shape) in zip(values, staged):
            if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                return None
            staging[...] = value
        for unsigned, last, bound, labels in self._watched:
            if unsigned.item(unsigned.argmax()) > last:
                labels.look_closer(bound)
        try:
            self._run(self.io, RUN_OPTIONS)
        except Exception as error:
            raise self._failed(error) from error
        return self.results() if self._large else [copy() for copy in self._copies]

    def _feed_staged(self, info: ValueInfo, value: Array) -> None:
        staged = self._staged.get(info.name)
        if staged is None or staged.shape != value.shape or staged.dtype != value.dtype:
            staged = np.empty_like(value)
            self._feed_array(info, staged)
            self._staged[info.name] = staged
        np.copyto(staged, value)

    def _feed_array(self, info: ValueInfo, value: Array) -> None:
        memory = (address(value), value.shape)
        if self._bound.get(info.name) == memory:
            return
        kind = BY_ONNX.get(info.elem_type or 0)
        element = kind.binding if kind is not None else value.dtype.type
        self.io.bind_input(info.name, HOST.ort_device, element, value.shape, memory[0])
        self._bound[info.name] = memory
        self._staged.pop(info.name, None)

    def run(self, options: Any = RUN_OPTIONS) -> None:
        """Run; an error of onnxruntime becomes one of ours, with the large outputs rebound."""
        try:
            self._run(self.io, options)
        except Exception as error:
            raise self._failed(error) from error
        finally:
            self._fed = ()

    def bare_run(self) -> Callable[[], None]:
        """A run that raises what onnxruntime raises: for loops of steps of microseconds."""
        return partial(self._run, self.io, RUN_OPTIONS)

    def _failed(self, error: Exception) -> RunError:
        text = f"onnxruntime could not run the model: {error}{self._suspicion(error)}"
        self._bound.clear()
        self._staged.clear()
        self._again, self._watched = [], []
        for _, name in self._large:
            self.allocated_output(name)
        return RunError(text)

    def _suspicion(self, error: Exception) -> str:
        """What may be wrong with labels whose number of classes nobody knew before the run."""
        unknown = [one.input for one in self.labels if one.classes is None]
        if "out of range" not in str(error).lower():
            return ""
        return "".join(
            f" Input {name!r} has labels up to {self._staged[name].max()}: are there as many "
            "classes?"
            for name in unknown
            if name in self._staged
        )

    def results(self) -> list[Array]:
        """Results as arrays: copies of the small ones, the large ones as they were made."""
        if not self._large:
            return [copy() for copy in self._copies]
        large = self._take_large()
        return [
            self._small[n].copy() if n in self._small else np.asarray(large[n].numpy())
            for n in self.output_names
        ]

    def result_values(self) -> list[onnxruntime.OrtValue]:
        """Results as OrtValues."""
        large = self._take_large()
        return [
            onnxruntime.OrtValue.ortvalue_from_numpy(self._small[n].copy())
            if n in self._small
            else onnxruntime.OrtValue(large[n])
            for n in self.output_names
        ]

    def _take_large(self) -> dict[str, Any]:
        if not self._large:
            return {}
        outputs = self.io.get_outputs()
        large = {name: outputs[index] for index, name in self._large}
        for _, name in self._large:  # otherwise the next run would write over what was given out
            self.allocated_output(name)
        return large


class UserSide:
    """The inputs and outputs of a model that belong to the user."""

    def __init__(
        self,
        inputs: Sequence[ValueInfo],
        outputs: Sequence[ValueInfo],
        optional: set[str] | None = None,
        labels: Sequence[ClassLabels] = (),
    ) -> None:
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.check = FeedCheck(self.inputs, optional or set(), labels)
        self.labels = self.check.labels

    @property
    def input_names(self) -> list[str]:
        """Names in the order of the call's arguments."""
        return [i.name for i in self.inputs]

    @property
    def fixed_batch(self) -> int | None:
        """The number of rows that every input must have, if the model says one."""
        rows = {i.shape[0] if i.shape else None for i in self.inputs}
        size = rows.pop() if len(rows) == 1 else None
        return size if isinstance(size, int) else None

    @property
    def output_names(self) -> list[str]:
        """Names in the order of the results."""
        return [o.name for o in self.outputs]

    def nothing_counts(self, values: Sequence[Any]) -> bool:
        """Whether every label of a batch is ignored: then its mean loss is 0/0, its gradient 0."""
        return any(
            labels.ignore_index is not None and not labels.counted(np.asarray(values[index]))
            for index, labels in self.check.labels_at
        )

    def weight(self, values: Sequence[Any]) -> int:
        """How many elements a batch's mean loss is the mean of: labels that count, or rows."""
        for index, labels in self.check.labels_at:
            if index < len(values):  # too few of them are told when they are fed
                return labels.counted(np.asarray(values[index]))
        return len(values[0]) if values and np.ndim(values[0]) else 1

    def weight_per_row(self, values: Sequence[Any]) -> int:
        """How many of these elements a row has if none is ignored."""
        for index, labels in self.check.labels_at:
            if index < len(values):
                return labels.per_row(np.asarray(values[index]))
        return 1

    def ordered(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """Positional and named values in the order of the inputs."""
        values = list(args)
        if not named:
            return values
        names = self.input_names
        unknown = sorted(set(named) - set(names))
        if unknown:
            raise InputError(f"Unknown input(s) {unknown}; the model takes {', '.join(names)}.")
        twice = sorted(set(named) & set(names[: len(values)]))
        if twice:
            raise InputError(f"Input(s) {twice} are given twice.")
        missing = [
            n for n in names[len(values) :] if n not in named and n not in self.check.optional
        ]
        if missing:
            raise InputError(f"Missing input(s) {missing}; the model takes {', '.join(names)}.")
        return values + [named.get(n) for n in names[len(values) :]]


def user_side(artifact: Artifact) -> UserSide:
    """The user's side of an artifact."""
    return UserSide(
        artifact.infos(artifact.user_inputs),
        artifact.infos(artifact.user_outputs, outputs=True),
        set(artifact.model.initializer_names),
        artifact.labels,
    )


def all_ortvalues(values: Sequence[Any]) -> bool:
    """Whether a user gave OrtValues, and then gets OrtValues."""
    return bool(values) and all(raw_ortvalue(v) is not None for v in values)


def small_shape(info: ValueInfo) -> tuple[int, ...] | None:
    """The shape of a value, if it is known and small."""
    if info.shape is None:
        return None
    sizes = tuple(d for d in info.shape if isinstance(d, int))
    known = len(sizes) == len(info.shape) and math.prod(sizes) <= OWN_BUFFER_ELEMENTS
    return sizes if known else None


def address(array: Array) -> int:
    """Address of the first element."""
    return int(array.__array_interface__["data"][0])
