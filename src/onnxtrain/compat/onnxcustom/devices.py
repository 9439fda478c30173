"""Names of devices, `OrtDevice` objects and execution providers, turned into each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnxruntime.capi._pybind_state import OrtDevice, OrtValue

from ...errors import DeviceError
from ...runtime.session.devices import PROVIDER_OF, Device, parse_name
from ...runtime.session.native import ort_device
from .exceptions import ProviderError

CPU, CUDA = PROVIDER_OF["cpu"], PROVIDER_OF["cuda"]
KINDS = {"cpu": "cpu", "cuda": "cuda", "gpu": "cuda"}
"""What the predecessor calls devices, and what the engine calls them."""


def get_ort_device_type(device: str | OrtDevice) -> int:
    """The number that onnxruntime has for a kind of device, from ``"cpu"``, ``"cuda"``, ``"gpu"``.

    Raises:
        ProviderError: there is no such kind.
    """
    if isinstance(device, OrtDevice):
        return int(device.device_type())
    kind = device.lower().partition(":")[0]
    if kind not in KINDS:
        raise ProviderError(f"Unknown device {device!r}; use 'cpu', 'cuda' or 'cuda:<number>'.")
    return int(ort_device(KINDS[kind]).device_type())


def get_ort_device(device: str | OrtDevice) -> OrtDevice:
    """An `OrtDevice` from ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"gpu:1"``.

    Example:
        >>> ort_device_to_string(get_ort_device("gpu:1"))
        'cuda:1'
    """
    if isinstance(device, OrtDevice):
        return device
    try:
        kind, number = parse_name(device.lower())
    except DeviceError as error:
        raise ProviderError(str(error)) from None
    get_ort_device_type(kind)
    return ort_device(KINDS[kind], number)


def ort_device_to_string(device: OrtDevice) -> str:
    """``"cpu"``, ``"cuda"`` or ``"cuda:1"``."""
    kinds = {ort_device(kind).device_type(): kind for kind in KINDS.values()}
    kind = kinds.get(device.device_type())
    if kind is None:
        raise ProviderError(f"No name is known for device type {device.device_type()}.")
    number = device.device_id()
    return f"{kind}:{number}" if number else kind


def device_to_providers(device: str | OrtDevice) -> list[Any]:
    """Execution providers for a device, for `onnxruntime.InferenceSession`."""
    try:
        return list(Device(ort_device_to_string(get_ort_device(device))).providers)
    except DeviceError as error:
        raise ProviderError(str(error)) from None


def provider_to_device(provider: str) -> str:
    """The kind of device that an execution provider uses."""
    known = {CPU: "cpu", CUDA: "cuda"}
    if provider not in known:
        raise ProviderError(f"No device is known for {provider!r}; known: {', '.join(known)}.")
    return known[provider]


def get_ort_device_from_session(session: Any) -> OrtDevice:
    """The device of a session: that of its first provider."""
    provider = session.get_providers()[0]
    options = session.get_provider_options().get(provider, {})
    number = int(options.get("device_id", 0) or 0)
    kind = provider_to_device(provider)
    return get_ort_device(f"{kind}:{number}" if number else kind)


def numpy_to_ort_value(array: Any, device: str | OrtDevice | None = None) -> OrtValue:
    """An OrtValue of the C level with a copy of the array.

    A copy, because such a value does not keep the array alive whose memory it would share.
    """
    target = get_ort_device("cpu" if device is None else device)
    array = np.asarray(array, order="C")
    if array.dtype.kind not in "biuf" or array.size == 0:
        return OrtValue.ortvalue_from_numpy(array, target)
    value = OrtValue.ortvalue_from_shape_and_type(list(array.shape), array.dtype.type, target)
    value.update_inplace(array)
    return value


def str_ortvalue(value: Any) -> str:
    """A short description: device, type, shape and elements, of many the first and last five.

    Example:
        >>> str_ortvalue(numpy_to_ort_value(np.arange(2.0)))
        "device=Cpu dtype=dtype('float64') shape=(2,) value=[0.0, 1.0]"
    """
    raw = getattr(value, "_ortvalue", value)
    array = np.asarray(raw.numpy())
    elements: list[Any] = array.ravel().tolist()
    if len(elements) > 10:
        elements = [*elements[:5], "...", *elements[-5:]]
    where = f"device={raw.device_name()} dtype={array.dtype!r} shape={array.shape!r}"
    return f"{where} value={elements!r}"
