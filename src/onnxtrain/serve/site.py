"""Which files the server gives out: a closed table, so that there is nothing to escape from."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ..errors import ModelError, OnnxTrainError
from ..runtime.files.external import DataFolder, Reference
from ..runtime.files.onnxfile import ModelFile

DEVICE = "device.json"
ARTIFACTS = (
    "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint", DEVICE,
)  # fmt: skip
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
"""What a language model's artifacts may have beside them."""
DESCRIBED = ("class_names", "image_mean", "image_std", "image_size")
"""Metadata of a model that say what its classes are called and how its images are made."""
NEEDED = ("training_model.onnx", "checkpoint")
WEBGPU = "ort.webgpu.min.mjs"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
}
BINARY = "application/octet-stream"
_RUNTIME_FILE = re.compile(r"ort[A-Za-z0-9.-]*\.(mjs|wasm)")


class SiteError(OnnxTrainError, ValueError):
    """What was asked to be served cannot be."""


@dataclass(frozen=True)
class File:
    """Something to send: bytes, their type, and whether they are compressed already."""

    content: bytes
    type: str
    gzipped: bool = False


class Site:
    """The page, onnxruntime-web, the bundled data and one artifact directory, by URL path.

    Args:
        artifacts: the directory that `generate_artifacts` wrote.
        prefix: of the artifacts' names.
        name: what the page calls the model; by default the directory's name.
        checkpoint: another checkpoint than the directory's own, that of a run.
        tokenizer: a ``tokenizer.json``, or the folder that has one, where the directory has none.
        model: a model whose metadata name the classes and say how images are made; by default the
            eval model.
        runtime: a directory with the files of another onnxruntime-web (its ``dist``), for
            example one with WebGPU; by default the WebAssembly build in this package.

    Example:
        >>> import tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("training_model.onnx", "checkpoint"):
        ...     _ = (folder / name).write_bytes(b"...")
        >>> site = Site(folder)
        >>> site.find("/artifacts/checkpoint").content
        b'...'
        >>> site.find("/artifacts/../secret") is None
        True
    """

    def __init__(
        self,
        artifacts: Path,
        prefix: str = "",
        name: str | None = None,
        runtime: Path | None = None,
        checkpoint: Path | None = None,
        tokenizer: Path | None = None,
        model: Path | None = None,
    ) -> None:
        self.artifacts, self.prefix = artifacts.resolve(), prefix
        self.checkpoint = None if checkpoint is None else checkpoint.absolute()
        self.name = name or self.artifacts.name
        self.runtime = None if runtime is None else runtime.resolve()
        self.tokenizer = self._tokenizer_folder(tokenizer)
        self.model = model or self.artifacts / f"{prefix}eval_model.onnx"
        self._check()
        self._static = _package_files()

    def _check(self) -> None:
        if not self.artifacts.is_dir():
            raise SiteError(f"There is no directory {str(self.artifacts)!r}.")
        missing = [n for n in NEEDED if not (self.artifacts / f"{self.prefix}{n}").is_file()]
        if missing:
            raise SiteError(
                f"{str(self.artifacts)!r} has no {self.prefix}{missing[0]}. Name a directory that "
                "generate_artifacts or `onnxtrain artifacts` wrote (and its --prefix)."
            )
        if self.runtime is not None and not (self.runtime / "ort.wasm.min.mjs").is_file():
            raise SiteError(
                f"{str(self.runtime)!r} has no ort.wasm.min.mjs: name the `dist` directory of the "
                "npm package onnxruntime-web."
            )

    def find(self, path: str) -> File | None:
        """The file under a URL path (decoded, without the query); None if there is none."""
        if path == "/info.json":
            return File(json.dumps(self.info()).encode(), TYPES[".json"])
        if path.startswith("/artifacts/"):
            return self._artifact(path.removeprefix("/artifacts/"))
        if path.startswith("/ort/") and self.runtime is not None:
            return self._runtime(path.removeprefix("/ort/"))
        static = self._static.get("/index.html" if path == "/" else path)
        return None if static is None else _read(static)

    def info(self) -> dict[str, object]:
        """What the page has to know."""
        webgpu = self.runtime is not None and (self.runtime / WEBGPU).is_file()
        return {
            "name": self.name,
            "prefix": self.prefix,
            "webgpu": webgpu,
            "tokenizer": [n for n in TOKENIZER if self._tokenizer_file(n) is not None],
            "metadata": self._metadata(),
        }

    def _metadata(self) -> dict[str, str]:
        """What the model says of its classes and images; nothing where it cannot be read."""
        try:
            content = _inside(self.model.parent, self.model.name)
            metadata = {} if content is None else ModelFile.load(content).metadata
        except OnnxTrainError:
            return {}
        return {key: metadata[key] for key in DESCRIBED if key in metadata}

    def _tokenizer_folder(self, path: Path | None) -> Path:
        if path is None:
            return self.artifacts
        folder = path if path.is_dir() else path.parent
        if not (folder / TOKENIZER[0]).is_file() or (path.is_file() and path.name != TOKENIZER[0]):
            raise SiteError(f"{str(path)!r} is no {TOKENIZER[0]}, nor a folder that has one.")
        return folder.resolve()

    def _tokenizer_file(self, name: str) -> bytes | None:
        return _inside(self.tokenizer, name) if (self.tokenizer / name).is_file() else None

    def _artifact(self, name: str) -> File | None:
        if name in TOKENIZER:
            content = self._tokenizer_file(name)
            return None if content is None else File(content, TYPES[".json"])
        if name not in {f"{self.prefix}{n}" for n in ARTIFACTS}:
            return None
        if name == f"{self.prefix}checkpoint" and self.checkpoint is not None:
            content = _inside(self.checkpoint.parent, self.checkpoint.name)
        else:
            content = _inside(self.artifacts, name)
        if content is None and name == f"{self.prefix}{DEVICE}":
            return self._device()
        return None if content is None else File(content, BINARY)

    def _device(self) -> File | None:
        """device.json for artifacts that an older release wrote without it."""
        from ..artifacts.device import device_file

        if (self.artifacts / f"{self.prefix}{DEVICE}").is_symlink():
            return None
        try:
            return File(device_file(self.artifacts, self.prefix), TYPES[".json"])
        except OnnxTrainError:
            return None

    def _runtime(self, name: str) -> File | None:
        if self.runtime is None or not _RUNTIME_FILE.fullmatch(name):
            return None
        content = _inside(self.runtime, name)
        return None if content is None else _typed(content, name)


def _package_files() -> dict[str, Path]:
    """URL path → file of this package; a compressed file goes by the name of its content."""
    root = Path(str(resources.files(__package__).joinpath("static")))
    files = {
        f"/{path.relative_to(root).as_posix().removesuffix('.gz')}": path
        for path in root.rglob("*")
        if path.is_file()
    }
    data = resources.files("onnxtrain.data").joinpath("digits.npz")
    return {**files, "/data/digits.npz": Path(str(data))}


def _inside(folder: Path, name: str) -> bytes | None:
    """The content of the file of that name; None if it is a link that leads out of the folder."""
    try:
        return DataFolder(folder, str(folder)).read(Reference(name, name))
    except ModelError:
        return None


def _read(path: Path) -> File:
    return _typed(path.read_bytes(), path.name)


def _typed(content: bytes, name: str) -> File:
    path = Path(name)
    gzipped = path.suffix == ".gz"
    plain = path.with_suffix("") if gzipped else path
    return File(content, TYPES.get(plain.suffix, BINARY), gzipped)
