"""Where a session runs and where its state lives.

The CPU path is what the tests run. Code for other devices (CUDA, DirectML, ROCm …) is complete, but
the machines it was written on have none of them: it is exercised with host memory standing in
for the device's, and marked "not run on hardware" in the documentation.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import _pybind_state as ort

from ...errors import DeviceError, ModelFileError
from ...preparing import preparing
from ..files.onnxfile import ModelFile
from ..files.outline import Outline
from ..fusion.compiler_code import release_compiler, release_free_memory
from ..fusion.library import prepare, register
from ..fusion.operators import Operator
from .cut_session import cut_if_long
from .forms import Form, forms_of
from .native import core_of, ort_device
from .options import (
    BUSY,
    FOLDER,
    PREPACKING,
    SPINNING,
    UserOptions,
    Way,
    entry_of,
    may_spin,
    ways_with,
)
from .sharing import note_session
from .taken_out import Lean, lend, taken_out

Array = npt.NDArray[Any]
Provider: TypeAlias = "str | tuple[str, dict[str, Any]]"

RUN_OPTIONS = onnxruntime.RunOptions()
"""The defaults. A run that is given none makes them anew, which takes 5 µs in every step."""

REFUSALS = (
    ort.Fail,
    ort.InvalidArgument,
    ort.InvalidGraph,
    ort.NotImplemented,
    ort.RuntimeException,
)
"""What onnxruntime raises for a form of a model that it does not support: an operator, an attribute
or a kernel that it lacks. A file that is missing or damaged is so in every form."""

OWN_DOMAINS = frozenset(
    {
        b"", b"ai.onnx", b"ai.onnx.ml", b"ai.onnx.training", b"ai.onnx.preview.training",
        b"com.microsoft", b"com.microsoft.nchwc", b"com.microsoft.experimental",
        b"com.ms.internal.nhwc", b"org.pytorch.aten",
    }
)  # fmt: skip
"""Domains whose operators onnxruntime brings, or refuses, by itself."""

SMALL_MODEL = 2**15
"""Bytes of a model whose session is made in milliseconds, of which starting the thread that would
tell of it is a tenth."""
MANY_CONSTANTS = 2**29
"""Bytes of constants from which on no copies of them are made, see `session_options`."""

CPU = "CPUExecutionProvider"
PROVIDER_OF = {
    "cpu": CPU,
    "cuda": "CUDAExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "dml": "DmlExecutionProvider",
    "cann": "CANNExecutionProvider",
    "webgpu": "WebGpuExecutionProvider",
}
"""Kinds of devices, and the execution providers that compute there."""
MEMORY_OF = {
    "CUDAExecutionProvider": "cuda",
    "ROCMExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "cuda",
    "DmlExecutionProvider": "dml",
    "CANNExecutionProvider": "cann",
}
"""Execution providers whose tensors are not in the host's memory."""


def parse_name(name: str) -> tuple[str, int]:
    """Kind and number of a device: ``cuda:1`` is ``cuda`` and 1; 0 is left out."""
    kind, _, number = name.partition(":")
    if number and not number.isdigit():
        raise DeviceError(f"Device {name!r}: the part after ':' must be a number.")
    if kind == "cpu" and int(number or 0):
        raise DeviceError("There is only one device 'cpu'; leave the number out.")
    return kind, int(number or 0)


class Mirror:
    """A flat buffer's twin in device memory.

    `newer` tells that the device has values the host has not seen.
    """

    def __init__(self, device: Device, host: Array) -> None:
        self.device = device
        self.value = ort.OrtValue.ortvalue_from_shape_and_type(
            list(host.shape), host.dtype.type, device.ort_device
        )
        self.newer = False
        self.push(host)

    @property
    def pointer(self) -> int:
        """Address on the device."""
        return int(self.value.data_ptr())

    def twin(self, host: Array) -> Mirror:
        """A mirror of another host buffer on the same device."""
        return Mirror(self.device, host)

    def pull(self, host: Array) -> None:
        """Copy device to host if the device has newer values."""
        if self.newer:
            np.copyto(host, self.value.numpy())
            self.newer = False

    def push(self, host: Array) -> None:
        """Copy host to device."""
        if host.size:
            self.value.update_inplace(host)
        self.newer = False


class Device:
    """A device name such as ``cpu``, ``cuda:1`` or an execution provider's name, resolved.

    Args:
        name: ``cpu``, ``cuda[:id]``, ``rocm[:id]``, ``dml[:id]``, or an execution provider such as
            ``OpenVINOExecutionProvider`` (whose tensors then stay in host memory).
        providers: passed to onnxruntime as they are, instead of those that follow from `name`.
    """

    def __init__(self, name: str = "cpu", providers: Sequence[Provider] | None = None) -> None:
        if not isinstance(name, str):
            raise DeviceError(f"A device is a name such as 'cpu' or 'cuda:0', not {name!r}.")
        self.name = name
        kind, self.id = parse_name(name)
        provider = PROVIDER_OF.get(kind, kind)
        if provider == kind and not kind.endswith("ExecutionProvider"):
            raise DeviceError(
                f"Unknown device {name!r}. Use one of {', '.join(sorted(PROVIDER_OF))}, with "
                "':id' for a device number, or the name of an execution provider."
            )
        self.provider = provider
        self.memory = MEMORY_OF.get(provider, "cpu")
        self.providers: list[Provider] = (
            list(providers) if providers is not None else self._default()
        )
        self.is_host = self.memory == "cpu"
        if not self.is_host:
            self._check_available()
        self.ort_device = ort_device(self.memory, self.id)

    @classmethod
    def of_providers(
        cls, providers: Sequence[Any], provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> Device:
        """The device of the first of some execution providers."""
        first = providers[0] if providers else CPU
        pair = first if isinstance(first, tuple) else (first, (provider_options or [{}])[0])
        number = int(pair[1].get("device_id", 0) or 0)
        return cls(f"{pair[0]}:{number}" if number else pair[0])

    def _default(self) -> list[Provider]:
        if self.provider == CPU:
            return [CPU]
        options = {"device_id": self.id} if self.memory != "cpu" else {}
        return [(self.provider, options), CPU]

    def _check_available(self) -> None:
        if self.provider not in onnxruntime.get_available_providers():
            raise DeviceError(
                f"Device {self.name!r} needs {self.provider}, and this onnxruntime has only "
                f"{', '.join(onnxruntime.get_available_providers())}. Install a build that has it "
                "(onnxruntime-gpu for CUDA), or use device='cpu'."
            )

    def mirror(self, host: Array) -> Mirror:
        """Device memory with the values of a host buffer."""
        return Mirror(self, host)

    def session(self, model: bytes | str, options: Any = None) -> Any:
        """A session on this device, see `open_session`.

        An error if onnxruntime silently left the provider out.
        """
        asked = [p if isinstance(p, str) else p[0] for p in self.providers]
        missing = [p for p in asked if p not in onnxruntime.get_available_providers()]
        if missing:
            raise DeviceError(
                f"This onnxruntime has no {', '.join(missing)}; it has "
                f"{', '.join(onnxruntime.get_available_providers())}."
            )
        try:
            session = open_session(model, options, self.providers)
        except Exception as error:  # its errors have no common base class
            raise ModelFileError(f"onnxruntime cannot load the model: {error}") from error
        if asked and asked[0] not in session.get_providers():
            raise DeviceError(
                f"onnxruntime could not start {asked[0]} and would have used "
                f"{session.get_providers()} instead. Check the driver and libraries it needs."
            )
        return session


def open_session(
    model: bytes | str,
    options: Any = None,
    providers: Sequence[Any] | None = None,
    provider_options: Sequence[Any] | None = None,
) -> Any:
    """What runs a model: one session of onnxruntime, or a `CutSession` if the model is long.

    Only on the host's processor, whose memory the pieces share; the arguments are those of
    `create_session`.
    """
    options = session_options() if options is None else options
    on_host = is_on_host(providers)

    def open_form(content: bytes | str, outline: Outline | None, lean: Lean | None = None) -> Any:
        chosen = options
        if lean is not None and lean.size > MANY_CONSTANTS:
            chosen = UserOptions(options, {}, {PREPACKING: "1"})

        def create(content: bytes | str, outline: Outline | None = None) -> Any:
            return create_session(
                content, chosen, providers, provider_options,
                outline=outline, kernels=on_host, lean=lean,
            )  # fmt: skip

        if isinstance(content, bytes) and on_host:
            cut_session = cut_if_long(content, outline, chosen, create)
            if cut_session is not None:
                return cut_session
        return create(content, outline)

    with _announced(model):
        outline = Outline.of(model) if isinstance(model, bytes) else None
        lean = taken_out(outline) if outline is not None and on_host else None
        if lean is not None:
            try:
                return open_form(lean.content, Outline.of(lean.content), lean)
            except REFUSALS:  # this onnxruntime, or these options, cannot be lent weights
                pass
        return open_form(model, outline)


def _announced(model: bytes | str) -> AbstractContextManager[None]:
    """What tells of a session that takes long; that of a small model never does."""
    if isinstance(model, bytes) and len(model) < SMALL_MODEL:
        return nullcontext()
    return preparing("making a session of onnxruntime", lambda: len(ModelFile.load(model).nodes))


def create_session(
    model: bytes | str,
    options: Any = None,
    providers: Sequence[Any] | None = None,
    provider_options: Sequence[Any] | None = None,
    *,
    outline: Outline | None = None,
    kernels: bool = False,
    lean: Lean | None = None,
) -> onnxruntime.InferenceSession:
    """A session of onnxruntime; all that onnxtrain has are created here.

    Args:
        model: its bytes, or the path of its file.
        options: of the session, by default those of `session_options`.
        providers: execution providers, with or without their options; by default the CPU's.
        provider_options: their options, where the providers are names.
        outline: of the model's bytes, if somebody has looked at them already.
        kernels: whether weights of four bits may go through onnxruntime's own kernel.
        lean: has the weights that were taken out of the model.
    """
    providers = [CPU] if providers is None else list(providers)
    options = session_options() if options is None else options
    if outline is None and isinstance(model, bytes):
        outline = Outline.of(model)
    on_host = is_on_host(providers)
    forms = forms_of(model, outline, options, on_host=on_host, kernels=kernels and on_host)
    ways: list[Way[onnxruntime.InferenceSession]]
    ways = ways_with(options, is_foreign=_is_foreign(outline))

    def attempts() -> Iterator[tuple[Form, Way[onnxruntime.InferenceSession]]]:
        for form in forms:
            yield form, ways[0]
        yield from ((form, way) for way in ways[1:])

    def create(form: Form, way: Way[onnxruntime.InferenceSession]) -> onnxruntime.InferenceSession:
        def make(chosen: Any) -> onnxruntime.InferenceSession:
            is_lent = chosen is getattr(options, "options", None)
            return session_of(form, chosen, providers, provider_options, is_lent=is_lent, lean=lean)

        return way(make)

    refusal: Exception | None = None
    for form, chosen_way in attempts():
        try:
            session = create(form, chosen_way)
        except REFUSALS as error:
            refusal = error
            continue
        note_session(core_of(session))
        return session
    assert refusal is not None
    raise refusal


def session_of(
    form: Form,
    options: Any,
    providers: Sequence[Any] = (CPU,),
    provider_options: Sequence[Any] | None = None,
    *,
    is_lent: bool = False,
    lean: Lean | None = None,
) -> onnxruntime.InferenceSession:
    """The session of one form of a model; `is_lent` says that the options are a user's own."""
    weights = list[Any]()
    if lean is not None and isinstance(form.content, bytes):
        if is_lent:
            raise ort.NotImplemented("a user's own options would keep the weights")
        options = lean.options_with(options)
    if form.operators:
        _register(options, form.operators, is_lent=is_lent)
    if lean is not None and isinstance(form.content, bytes):
        prepare(form.content, form.operators)
        are_laid_out = entry_of(options, PREPACKING) != "1"
        weights = lean.add_weights(options, form.content, are_laid_out=are_laid_out)
    session = onnxruntime.InferenceSession(
        form.content, options, list(providers), provider_options, disabled_optimizers=form.idle
    )
    if lean is not None:
        lend(core_of(session), weights)
        release_compiler()
        release_free_memory()
    return session


_registered: weakref.WeakKeyDictionary[Any, set[Operator]] = weakref.WeakKeyDictionary()
"""Options that know operators of ours: they take each only once."""


def _register(options: Any, needed: Collection[Operator], *, is_lent: bool) -> None:
    """Tell onnxruntime of the operators that a model has; a refusal if that cannot be."""
    known = _registered.get(options, set())
    missing = set(needed) - known
    if not missing:
        return
    if is_lent or not register(options, missing):  # an object of the user's would keep them
        raise ort.NotImplemented("there is no kernel for fused nodes")
    _registered[options] = known | missing


def _is_foreign(outline: Outline | None) -> bool:
    """Whether a model has operators that a library of the user's brings."""
    try:
        return outline is not None and not outline.domains() <= OWN_DOMAINS
    except IndexError:  # onnxruntime says what is wrong with it
        return False


def is_on_host(providers: Sequence[Any] | None) -> bool:
    """Whether all is computed by the host's processor."""
    return all(p in (CPU, (CPU, {})) for p in providers or [CPU])


def session_options(
    user_options: Any = None,
    *,
    folder: str | None = None,
    weights_change: bool = False,
    pattern: bool = True,
    spin: bool = False,
    threads: int = 0,
    constants: int = 0,
    entries: Mapping[str, str] | None = None,
) -> Any:
    """Options for one of several sessions in a process; what a user set holds, the rest is ours.

    Idle worker threads of one session spin and take the cores away from the next (Module,
    Optimizer and eval model alternate), so spinning stops when a run ends, unless no other session
    is near (`spin`) or the caller's own options say otherwise. Where weights change
    (`weights_change`), onnxruntime's own use of its blocked layout does not apply; without it no
    tensor is reordered for nothing (3 to 5 % of a step of ResNet-18 and U-Net). Marked convolutions
    are laid out by `blocked`.

    onnxruntime does not plan which buffer takes the place of which (`enable_mem_reuse`): it would
    compare each value with all free ones, half of the time that a session of gradients takes, and
    its arena gives the memory to the next value anyway. Steps of a CNN, an LSTM, an encoder and
    ResNet-18 take as long without (0.96 to 1.01), and their memory is the same or 2 % less.

    With its memory pattern (`pattern`) onnxruntime allocates the second run in one piece, while the
    arena still holds what the first run had in many: twice the memory, for a fraction of a
    microsecond per node. So only steps of microseconds use it.

    onnxruntime keeps a copy of each constant for each product that reads it, laid out for that
    product: a frozen weight that has a gradient behind it is in memory twice. Where the `constants`
    beside the model have many bytes it does not, and they stay in the file, which the system reads
    as needed. A product takes as long with 512 rows, a seventh longer with 128, a third with 32.

    How many `threads` (0: as many as there are cores) is for `threads.is_small` to say. `entries`
    are onnxruntime's own settings by name, and go before those that follow from the rest.
    """
    attributes = {
        "log_severity_level": 3,
        "enable_mem_pattern": pattern,
        "enable_mem_reuse": False,
        "intra_op_num_threads": threads,
    }
    if weights_change:
        extended = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        attributes["graph_optimization_level"] = extended
    settings = {} if spin else {SPINNING: "1"}
    if constants > MANY_CONSTANTS:
        settings[PREPACKING] = "1"
    settings.update(entries or {})
    if folder:
        settings[FOLDER] = folder
    if user_options is not None:
        return UserOptions(
            user_options, attributes, settings if may_spin(user_options) else _less(settings)
        )
    options = onnxruntime.SessionOptions()
    for name, value in attributes.items():
        setattr(options, name, value)
    for key, text in settings.items():
        options.add_session_config_entry(key, text)
    return options


def _less(settings: Mapping[str, str]) -> dict[str, str]:
    """Without ours on idle threads, of which the user has said something."""
    return {key: text for key, text in settings.items() if key not in BUSY}
