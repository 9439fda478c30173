"""Bindings that carry a session's state along with what the user binds.

A step reads one set of buffers and writes the other, and the next step goes the other way. So every
binding of the user is several bindings of onnxruntime, one per direction (and per graph, when
gradients are accumulated); what the user binds is passed on to each before it is used.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnxruntime.capi._pybind_state import OrtValueVector, SessionIOBinding

from ...errors import RunError, UnknownNameError
from ...runtime.files.dtypes import BY_ONNX
from ...runtime.files.onnxfile import ValueInfo
from ...runtime.session.binding import HOST, small_shape
from ...runtime.session.devices import RUN_OPTIONS
from ...runtime.session.feeds import FeedCheck, on_host

Call = tuple[str, tuple[Any, ...]]
Array = npt.NDArray[Any]
STAGED = 1 << 16
"""Inputs up to this many bytes are copied into memory that stays bound."""


class StepBinding(SessionIOBinding):  # type: ignore[misc]
    """What `TrainingSession.io_binding()._iobinding` is.

    Args:
        core: the session of onnxruntime.
        names: inputs and outputs that the user may bind.
        current: gives the key of the side that the next step uses.
        make: makes the binding of a side from its key.
        attach: binds the session's state to the binding of a side; gives the outputs it bound.
    """

    def __init__(
        self,
        core: Any,
        names: Sequence[str],
        current: Callable[[], Hashable],
        make: Callable[[Any], Any],
        attach: Callable[[Any, Any], Iterable[str]],
    ) -> None:
        super().__init__(core)
        self._names = names
        self._current, self._make, self._attach = current, make, attach
        self._calls: dict[tuple[str, str], Call] = {}
        self._sides: dict[Hashable, Any] = {}
        self._stale: dict[Hashable, dict[tuple[str, str], None]] = {}
        self._places: dict[Hashable, dict[str, int]] = {}
        self._last: Hashable = None

    # -- what the user binds -----------------------------------------------------------------------

    def _record(self, kind: str, method: str, name: str, *args: Any) -> None:
        if name not in self._names:
            raise UnknownNameError(kind, name, self._names)
        key = self._current()
        side = self._side(key)
        getattr(side, method)(name, *args)
        self._calls[kind, name] = (method, (name, *args))
        for other, stale in self._stale.items():
            if other != key:
                stale[kind, name] = None
        if kind == "output":
            self._place(key, name)

    def _place(self, key: Hashable, name: str) -> None:
        """Note the position of an output; binding it again keeps its place."""
        places = self._places[key]
        places.setdefault(name, len(places))

    def bind_input(self, name: str, *args: Any) -> None:
        """Bind an input to an array, or to memory."""
        self._record("input", "bind_input", name, *args)

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        """Bind an input to an OrtValue."""
        self._record("input", "bind_ortvalue_input", name, value)

    def bind_output(self, name: str, *args: Any) -> None:
        """Ask for an output on a device, or in memory of the caller."""
        self._record("output", "bind_output", name, *args)

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        """Bind an output to an OrtValue."""
        self._record("output", "bind_ortvalue_output", name, value)

    def clear_binding_inputs(self) -> None:
        """Forget the inputs that the user bound."""
        self._forget("input")

    def clear_binding_outputs(self) -> None:
        """Forget the outputs that the user bound."""
        self._forget("output")

    def _forget(self, kind: str) -> None:
        self._calls = {key: call for key, call in self._calls.items() if key[0] != kind}
        self._sides.clear()
        self._stale.clear()
        self._places.clear()

    # -- running -----------------------------------------------------------------------------------

    def _side(self, key: Hashable) -> Any:
        side = self._sides.get(key)
        if side is None:
            side = self._sides[key] = self._make(key)
            self._places[key] = {}
            self._stale[key] = dict.fromkeys(self._calls)
            self._refresh(key, side)  # the user's outputs first: they come first in the results
            for name in self._attach(key, side):
                self._place(key, name)
        return side

    def _refresh(self, key: Hashable, side: Any) -> None:
        for kind, name in self._stale[key]:
            method, args = self._calls[kind, name]
            getattr(side, method)(*args)
            if kind == "output":
                self._place(key, name)
        self._stale[key].clear()

    def ready(self, key: Hashable) -> Any:
        """The binding of a side, up to date; its results are what `get_outputs` gives next."""
        side = self._side(key)
        if self._stale[key]:
            self._refresh(key, side)
        self._last = key
        return side

    def bound_input(self, name: str) -> Any:
        """The array or OrtValue that the user bound; None for an address, or for nothing."""
        _, args = self._calls.get(("input", name), ("", ()))
        return args[1] if len(args) == 2 else None

    def host_array(self, name: str) -> Array | None:
        """What is bound to an input, if it is in the host's memory."""
        _, args = self._calls.get(("input", name), ("", ()))
        if len(args) == 2:
            return on_host(args[1])
        if len(args) != 5 or args[1].device_type() != HOST.ort_device.device_type():
            return None
        _, _, element, shape, pointer = args
        size = np.dtype(element).itemsize * math.prod(shape)
        memory: Any = (ctypes.c_char * size).from_address(pointer)
        array: Array = np.frombuffer(memory, element).reshape(shape)
        return array

    # -- results -----------------------------------------------------------------------------------

    def _outputs(self) -> list[Any]:
        key = self._last if self._last in self._sides else self._current()
        made = self._side(key).get_outputs()
        place = self._places[key]
        return [made[place[name]] for kind, name in self._calls if kind == "output"]

    def get_outputs(self) -> Any:
        """The outputs that the user bound, in the order of binding."""
        vector = OrtValueVector()
        for value in self._outputs():
            vector.push_back(value)
        return vector

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The same as arrays."""
        return [value.numpy() for value in self._outputs()]

    def synchronize_inputs(self) -> None:
        """Wait for copies of inputs to a device."""
        self._side(self._current()).synchronize_inputs()

    def synchronize_outputs(self) -> None:
        """Wait for copies of outputs from a device."""
        if self._last in self._sides:
            self._sides[self._last].synchronize_outputs()


class Prebound:
    """One direction of a session for arrays, with as much as possible bound once.

    Args:
        core: the session of onnxruntime.
        inputs: what is fed, in order.
        outputs: what is wanted, in order.
        check: turns values into arrays that fit the inputs, or raises; knows the class labels.
        stage: whether bound host memory can be written anew for the next run; a device has
            copied it away.
    """

    def __init__(
        self,
        core: Any,
        inputs: list[ValueInfo],
        outputs: list[ValueInfo],
        check: FeedCheck,
        stage: bool = True,
    ) -> None:
        self._limit = STAGED if stage else -1
        self.io = SessionIOBinding(core)
        self._core, self._check = core, check
        self._inputs = [i.name for i in inputs]
        self._staged: list[Array | None] = [None] * len(inputs)
        self._held: list[Any] = [None] * len(inputs)
        self._fixed: list[Array | None] = []
        self._made: list[str] = []
        for info in outputs:
            kind, shape = BY_ONNX.get(info.elem_type or 0), small_shape(info)
            if kind is None or kind.opaque or shape is None:
                self._fixed.append(None)
                self._made.append(info.name)
                self.io.bind_output(info.name, HOST.ort_device)
                continue
            buffer = np.zeros(shape, kind.numpy)
            self._fixed.append(buffer)
            place = (kind.numpy.type, shape, buffer.ctypes.data)
            self.io.bind_output(info.name, HOST.ort_device, *place)

    def feed(self, values: list[Any]) -> None:
        """Hand over the inputs; the same types and shapes as last time cost a copy each."""
        for value, staged in zip(values, self._staged):
            if (
                staged is None
                or value.__class__ is not np.ndarray
                or value.shape != staged.shape
                or (value.dtype is not staged.dtype and value.dtype != staged.dtype)
            ):
                self._bind(self._check.arrays(values))
                return
            staged[...] = value
        for index, labels in self._check.labels_at:
            staged = self._staged[index]
            assert staged is not None
            labels.check(staged)

    def _bind(self, arrays: list[Any]) -> None:
        for i, (name, array) in enumerate(zip(self._inputs, arrays)):
            self._staged[i], self._held[i] = None, array
            if not isinstance(array, np.ndarray):
                self.io.bind_ortvalue_input(name, array)
            elif array.dtype.kind in "biuf" and array.nbytes <= self._limit:
                self._staged[i] = copy = array.copy()
                self.io.bind_input(name, copy)
            else:
                self.io.bind_input(name, array)

    def run(self, options: Any) -> None:
        """Run the session."""
        options = RUN_OPTIONS if options is None else options
        try:
            self._core.run_with_iobinding(self.io, options)
        except Exception as error:
            self._staged = [None] * len(self._staged)
            raise RunError(f"onnxruntime could not run the training graph: {error}") from error

    def results(self) -> list[Array]:
        """What was asked for: copies of small results, large ones as they were made."""
        if not self._made:
            return [buffer.copy() for buffer in self._fixed if buffer is not None]
        made = self.io.get_outputs()
        results = [
            np.asarray(made[i].numpy()) if buffer is None else buffer.copy()
            for i, buffer in enumerate(self._fixed)
        ]
        for name in self._made:  # the next run must not write over what was given out
            self.io.bind_output(name, HOST.ort_device)
        return results
