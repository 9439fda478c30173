"""Exports in a folder, so that the next process does not have to make them again.

The environment variable ``ORTMODULE_CACHE_DIR`` names the folder. An entry is found by the
`fingerprint` of the module and of the call. It holds the graph without weights, names, and for
which sizes it is right: no Python, no pickle. What it says is checked against the module; an entry
that is damaged or does not belong to it is written anew. Whoever may write into the folder decides
what is computed, so one that others may write into is not used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.helper
import torch

from ..errors import OnnxTrainError
from ..graph.io import parsed
from ..graph.sound import check_sound
from ..runtime.files.atomic import write_atomically
from ..runtime.files.readfile import read_regular
from . import repair
from .element_types import ONNX_TYPES
from .export import Exported
from .fingerprint import NoFingerprintError, fingerprint
from .size_rules import from_json, only, to_json

log = logging.getLogger(__name__)
CACHE_VARIABLE = "ORTMODULE_CACHE_DIR"
MAGIC = b"onnxtrain export 1\n"
SUFFIX = ".export"
ENTRIES = 16
"""Entries of one fingerprint, each for other sizes, that are looked at; and the exact one."""
FIELDS = {
    "inputs": list, "outputs": list, "names": dict, "exporter": str, "note": str, "barriers": list,
}  # fmt: skip


class EntryError(OnnxTrainError, ValueError):
    """A file in the folder that is not an export of this module."""


@dataclass(frozen=True)
class Request:
    """An export that is wanted.

    Attributes:
        name: of the user's module.
        module: what is exported.
        inputs: the tensors it is called with, by the names that the graph gives them.
        outputs: how many results the graph has.
        more: whatever else the graph depends on.
    """

    name: str
    module: torch.nn.Module
    inputs: Mapping[str, torch.Tensor]
    outputs: int
    more: tuple[Any, ...]

    @property
    def shapes(self) -> list[torch.Size]:
        """Sizes of the inputs."""
        return [tensor.shape for tensor in self.inputs.values()]

    def fingerprint(self) -> str:
        """What the entries for this request are called; sizes count only where they are below 2."""
        kinds = [
            (t.dtype, t.device, tuple(size if size < 2 else -1 for size in t.shape))
            for t in self.inputs.values()
        ]
        return fingerprint(self.module, kinds, self.outputs, self.more)


def cached(request: Request, make: Callable[[], Exported]) -> Exported:
    """The export from the folder; where there is none it is made, and written there."""
    folder = _folder()
    if folder is None:
        return make()
    try:
        key = request.fingerprint()
    except NoFingerprintError as reason:
        log.info("The export of %s is not kept in %s: %s.", request.name, folder, reason)
        return make()
    exact = folder / _file_name(key, to_json(only(request.shapes), request.shapes))
    others = sorted(set(folder.glob(f"{key}*{SUFFIX}")) - {exact})[:ENTRIES]
    for path in (exact, *others):
        exported = _try(path, request)
        if exported is not None:
            log.info("The export of %s is read from %s.", request.name, path)
            return exported
    exported = make()
    _write(folder, key, request, exported)
    return exported


def _folder() -> Path | None:
    """The folder for exports, if there is one that can be trusted."""
    name = os.environ.get(CACHE_VARIABLE)
    if not name:
        return None
    folder = Path(name)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        log.warning("%s: exports cannot be kept in %s: %s.", CACHE_VARIABLE, folder, error.strerror)
        return None
    foreign = os.name == "posix" and (
        status.st_uid not in (os.geteuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )
    if foreign:
        log.warning(
            "%s: others may write into %s and would decide what is computed, so it is not used. "
            "Take it from them (chmod go-w), or name a folder of your own.",
            CACHE_VARIABLE,
            folder,
        )
        return None
    return folder


# --- reading --------------------------------------------------------------------------------------


def _try(path: Path, request: Request) -> Exported | None:
    """The export in a file, if it can be read and holds for these sizes."""
    try:
        exported = _read(path, request)
    except FileNotFoundError:  # taken away since the folder was listed
        return None
    except OnnxTrainError as error:
        log.warning("%s is exported again: %s", request.name, error)
        return None
    return exported if exported.fits(request.shapes) else None


def _read(path: Path, request: Request) -> Exported:
    what = repr(os.fspath(path))
    try:
        head, data = _parts(read_regular(path, EntryError))
        exported = _exported(head, data, what)
        _check(exported, request)
        _add_weights(exported, request.module)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, EntryError):
            raise
        raise EntryError(f"{what} is damaged: {error}. It may be deleted.") from error
    return exported


def _parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The description and the graph in the bytes of a file."""
    start = len(MAGIC)
    digest, body = data[start : start + 32], data[start + 32 :]
    if not data.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
        raise ValueError("it does not have the content that was written")
    (length,) = struct.unpack_from("<I", body)
    if length > len(body) - 4:
        raise ValueError("its description is cut off")
    head = json.loads(body[4 : 4 + length])
    if not isinstance(head, dict) or head.keys() != {*FIELDS, "sizes"}:
        raise ValueError("its description has other fields")
    for name, kind in FIELDS.items():
        if not isinstance(head[name], kind):
            raise ValueError(f"{name} is no {kind.__name__}")
    texts = [*head["inputs"], *head["outputs"], *head["barriers"], *head["names"].values()]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a name in it is no text")
    return head, body[4 + length :]


def _exported(head: Mapping[str, Any], data: bytes, what: str) -> Exported:
    model = parsed(data, what)
    if check_sound(model, what):
        raise ValueError("it names other files")
    return Exported(
        model,
        head["inputs"],
        head["outputs"],
        head["names"],
        head["exporter"],
        head["note"],
        head["barriers"],
        fits=from_json(head["sizes"]),
    )


def _check(exported: Exported, request: Request) -> None:
    """Refuse a graph that could not have come from this module."""
    graph = exported.model.graph
    inputs = {v.name: v.type.tensor_type for v in graph.input}
    if list(inputs) != exported.inputs or len(inputs) != len(graph.input):
        raise ValueError("its inputs are not those that it tells")
    for name, kind in inputs.items():
        tensor = request.inputs.get(name)
        element_type = None if tensor is None else ONNX_TYPES[tensor.dtype]
        if tensor is None or kind.elem_type != element_type or len(kind.shape.dim) != tensor.ndim:
            raise ValueError(f"its input {name!r} is none of the module's")
    if [v.name for v in graph.output] != exported.outputs:
        raise ValueError("its outputs are not those that it tells")
    if len(exported.outputs) != request.outputs:
        raise ValueError(f"it has {len(exported.outputs)} outputs, not {request.outputs}")
    known = repair.aliases(request.module)
    if any(known.get(name) != first for name, first in exported.names.items()):
        raise ValueError("it has weights that are not the module's")
    present = {t.name for t in graph.initializer}
    if not present.isdisjoint(exported.names.values()):
        raise ValueError("it has values for the module's weights")


def _add_weights(exported: Exported, module: torch.nn.Module) -> None:
    """The module's own weights in the places of those that were not written."""
    tensors = repair.tensors_by_name(module)
    for name in dict.fromkeys(exported.names.values()):
        tensor = tensors[name]
        exported.model.graph.initializer.append(
            onnx.helper.make_tensor(
                name, ONNX_TYPES[tensor.dtype], tensor.shape, _bytes(tensor), raw=True
            )
        )


# --- writing --------------------------------------------------------------------------------------


def _write(folder: Path, key: str, request: Request, exported: Exported) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(exported.model)
    weights = set(exported.names.values())
    constants = [t for t in model.graph.initializer if t.name not in weights]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    head = {name: getattr(exported, name) for name in FIELDS}
    head["sizes"] = to_json(exported.fits, request.shapes)
    text = json.dumps(head, sort_keys=True).encode()
    body = struct.pack("<I", len(text)) + text + model.SerializeToString()
    path = folder / _file_name(key, head["sizes"])
    try:
        write_atomically(path, [MAGIC, hashlib.sha256(body).digest(), body], durable=False)
    except OSError as error:
        log.warning("%s cannot be written (%s); the export is not kept.", path, error)


def _file_name(key: str, sizes: Any) -> str:
    """One file for each fingerprint and rule for sizes."""
    rule = hashlib.sha256(json.dumps(sizes, sort_keys=True).encode()).hexdigest()[:16]
    return f"{key}-{rule}{SUFFIX}"


def _bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return plain.flatten().view(torch.uint8).numpy().tobytes()
