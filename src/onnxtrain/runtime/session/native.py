"""onnxruntime's objects of the C level, behind those of its Python package.

A step of a small network takes some twenty microseconds, and every wrapper on the way costs one of
them. Only here does onnxtrain reach for what lies under the wrappers.
"""

from __future__ import annotations

from typing import Any

import onnxruntime
from onnxruntime.capi import _pybind_state as ort


def ort_device(memory: str, number: int = 0) -> Any:
    """onnxruntime's device for a kind of memory."""
    kind = getattr(ort.OrtDevice, memory)()
    return ort.OrtDevice(kind, ort.OrtDevice.default_memory(), number)


def core_of(session: Any) -> Any:
    """The session under an `onnxruntime.InferenceSession`; one of the C level as it is."""
    return getattr(session, "_sess", session)


def read_back(options: Any, model: bytes) -> Any:
    """The options that a session of a model says it was made with: a copy of those given.

    The session is not initialized, so that nothing is asked of the model.
    """
    return ort.InferenceSession(options, model, False, False).session_options


def try_out(model: bytes, output: str, feeds: dict[str, Any]) -> Any:
    """A result of a tiny model, which is run to learn what this onnxruntime can do.

    It is an error of onnxruntime's if it cannot, and nothing is logged.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(options, model, False, False)
    session.initialize_session(["CPUExecutionProvider"], [{}], set())
    return session.run([output], feeds, None)[0]


def whole_session(session: Any) -> Any:
    """An `onnxruntime.InferenceSession`, also from a `CutSession`: its first piece's."""
    sessions = getattr(session, "sessions", None)
    return session if sessions is None else sessions[0]


def new_io(session: Any) -> Any:
    """A new binding of the C level, also for a `CutSession`."""
    make = getattr(session, "new_io", None)
    return ort.SessionIOBinding(core_of(session)) if make is None else make()


def io_of(binding: onnxruntime.IOBinding) -> Any:
    """The binding under an `onnxruntime.IOBinding`."""
    return binding._iobinding


def wrap_io(session: Any, core: Any, io: Any) -> onnxruntime.IOBinding:
    """An `onnxruntime.IOBinding` around a binding and a session of our own.

    Args:
        session: whose class of wrappers is asked for.
        core: what runs the binding.
        io: what is bound to.
    """
    binding = onnxruntime.IOBinding(session)
    binding._iobinding, binding._session = io, core
    return binding


def raw_ortvalue(value: Any) -> Any:
    """The C-level OrtValue of either kind of OrtValue, None for anything else."""
    if isinstance(value, onnxruntime.OrtValue):
        return value._ortvalue
    return value if isinstance(value, ort.OrtValue) else None


def raw_device(device: Any) -> Any:
    """An OrtDevice of the C level, also from the wrapper that `onnxruntime.OrtDevice` is."""
    return device if isinstance(device, ort.OrtDevice) else device._get_c_device()
