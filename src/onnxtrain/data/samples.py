"""From the bytes of a sample to arrays, by the ending of each."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError, MissingPackageError, OnnxTrainError

Array = npt.NDArray[Any]
PICTURES = {"png", "jpg", "jpeg", "bmp", "gif", "webp", "tif", "tiff", "ppm"}
PICKLED = {"pkl", "pickle", "pyd", "pth", "pt"}


def decode_sample(sample: Mapping[str, bytes]) -> dict[str, Array]:
    """Arrays of a sample, by ending; the last part of the ending decides how.

    ``npy`` is an array, ``cls``, ``id`` and ``index`` a whole number, ``txt`` text, ``json`` what
    it holds (numbers and lists of them), ``png``, ``jpg`` and the like an image of uint8, height ×
    width × channels. Other endings stay bytes.

    Example:
        >>> decode_sample({"cls": b"7", "caption.txt": b"a cat"})["cls"]
        array(7)
    """
    return {ending: _decoded(ending, content) for ending, content in sample.items()}


def _decoded(ending: str, content: bytes) -> Array:
    try:
        return np.asarray(_decoder(ending.rpartition(".")[2])(content))
    except OnnxTrainError:
        raise
    except Exception as error:  # of numpy, json and Pillow, and not all documented
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"its part {ending!r} cannot be read ({reason}).") from error


def _decoder(kind: str) -> Callable[[bytes], Any]:
    if kind in PICTURES:
        return read_picture
    if kind in PICKLED:
        raise DataError(
            f"its part {kind!r} is pickled, and to unpickle is to run what somebody else wrote. "
            "Store arrays as npy."
        )
    decoders: dict[str, Callable[[bytes], Any]] = {
        "npy": read_npy,
        "cls": int,
        "id": int,
        "index": int,
        "txt": bytes.decode,
        "text": bytes.decode,
        "json": json.loads,
    }
    return decoders.get(kind, np.bytes_)


def read_npy(content: bytes) -> Array:
    """An array; one that says that it is larger than it is costs nothing."""
    file = io.BytesIO(content)
    # Typed since numpy 2.3, which Python 3.10 has not.
    version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call, unused-ignore]
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise DataError(f"its part npy has version {version} of the format.")
    shape, in_columns, dtype = read(file)  # type: ignore[no-untyped-call, unused-ignore]
    if dtype.hasobject:
        raise DataError("its part npy holds Python objects. Store numbers.")
    array: Array = np.ndarray(shape, dtype, content, file.tell(), order="F" if in_columns else "C")
    return array


def read_picture(
    content: bytes, mode: str | None = None, size: tuple[int, int] | None = None
) -> Array:
    """An image of uint8: height × width × channels.

    Args:
        content: of the file.
        mode: of Pillow, such as "RGB" or "L"; by default RGB, or L for images in grey.
        size: width and height to which it is brought.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingPackageError("Pillow", "Reading images", "images") from None
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(content)) as image:
            grey = image.mode in ("1", "L", "I;16")
            converted = image.convert(mode or ("L" if grey else "RGB"))
            pixels = np.asarray(converted.resize(size) if size is not None else converted)
    return pixels.reshape(*pixels.shape[:2], -1)
