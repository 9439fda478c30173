"""The binding that a `TrainingSession` gives to its user.

A step reads one set of buffers and writes the other, and the next step goes the other way. So every
binding of the user is several of the engine's `Binding`, one per direction (and per graph, when
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

from ...errors import UnknownNameError
from ...runtime.session.binding import HOST, Binding
from ...runtime.session.feeds import on_host

Call = tuple[str, tuple[Any, ...]]
Array = npt.NDArray[Any]


class StepBinding(SessionIOBinding):  # type: ignore[misc]
    """What `TrainingSession.io_binding()._iobinding` is.

    Args:
        core: the session of onnxruntime.
        names: inputs and outputs that the user may bind.
        current: gives the key of the side that the next step uses.
        make: makes the `Binding` of a side from its key.
        attach: binds the session's state to it; gives the outputs it bound.
    """

    def __init__(
        self,
        core: Any,
        names: Sequence[str],
        current: Callable[[], Hashable],
        make: Callable[[Any], Binding],
        attach: Callable[[Any, Binding], Iterable[str]],
    ) -> None:
        super().__init__(core)
        self._names = names
        self._current, self._make, self._attach = current, make, attach
        self._calls: dict[tuple[str, str], Call] = {}
        self._sides: dict[Hashable, Binding] = {}
        self._stale: dict[Hashable, dict[tuple[str, str], None]] = {}
        self._output_indices: dict[Hashable, dict[str, int]] = {}
        self._last: Hashable = None

    # -- what the user binds -----------------------------------------------------------------------

    def _record(self, kind: str, method: str, name: str, *args: Any) -> None:
        if name not in self._names:
            raise UnknownNameError(kind, name, self._names)
        key = self._current()
        side = self._side(key)
        getattr(side.io, method)(name, *args)
        self._calls[kind, name] = (method, (name, *args))
        for other, stale in self._stale.items():
            if other != key:
                stale[kind, name] = None
        if kind == "output":
            self._note_output(key, name)

    def _note_output(self, key: Hashable, name: str) -> None:
        """Note the position of an output; binding it again keeps its place."""
        indices = self._output_indices[key]
        indices.setdefault(name, len(indices))

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
        self._output_indices.clear()

    # -- running -----------------------------------------------------------------------------------

    def _side(self, key: Hashable) -> Binding:
        side = self._sides.get(key)
        if side is None:
            side = self._sides[key] = self._make(key)
            self._output_indices[key] = {}
            self._stale[key] = dict.fromkeys(self._calls)
            self._refresh(key, side)  # the user's outputs first: they come first in the results
            for name in self._attach(key, side):
                self._note_output(key, name)
        return side

    def _refresh(self, key: Hashable, side: Binding) -> None:
        for kind, name in self._stale[key]:
            method, args = self._calls[kind, name]
            getattr(side.io, method)(*args)
            if kind == "output":
                self._note_output(key, name)
        self._stale[key].clear()

    def ready(self, key: Hashable) -> Any:
        """The binding of a side, up to date; its results are what `get_outputs` gives next."""
        side = self._side(key)
        if self._stale[key]:
            self._refresh(key, side)
        self._last = key
        return side.io

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
        values = self._side(key).io.get_outputs()
        indices = self._output_indices[key]
        return [values[indices[name]] for kind, name in self._calls if kind == "output"]

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
        self._side(self._current()).io.synchronize_inputs()

    def synchronize_outputs(self) -> None:
        """Wait for copies of outputs from a device."""
        if self._last in self._sides:
            self._sides[self._last].io.synchronize_outputs()
