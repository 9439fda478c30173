"""Which model the blocks are working on: the contexts `base`, `empty_base` and `onnx_model`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

import onnx

from ..errors import OnnxTrainError
from .io import checked
from .protos import KEEP_BYTES
from .schema import MAX_IR, MAX_OPSET


class AccessorError(OnnxTrainError, RuntimeError):
    """A block is used outside a context, or contexts are nested."""


class ModelAccessor:
    """The model that blocks extend.

    Args:
        model: the model.
        model_path: where it was read from; its external data stays there on disk.
        base_dir: what the locations of that data are relative to.
    """

    def __init__(
        self, model: onnx.ModelProto, model_path: str | None = None, base_dir: str = ""
    ) -> None:
        self._model, self._path, self._base_dir = model, model_path, base_dir
        self._eval_model: onnx.ModelProto | None = None
        self.depth = 0

    @property
    def model(self) -> onnx.ModelProto:
        """The model as it stands."""
        if self._model is None:
            raise AccessorError(
                "The onnx model is not set. Use onnxblock.base(model) or onnxblock.empty_base()."
            )
        return self._model

    @property
    def path(self) -> str:
        """The file the model came from."""
        if self._path is None:
            raise AccessorError("The path of the onnx model is not set: it was given as a proto.")
        return self._path

    @property
    def has_path(self) -> bool:
        """Whether the model came from a file."""
        return self._path is not None

    @property
    def base_dir(self) -> str:
        """Folder that the model's external data is relative to; "" if it has none."""
        return self._base_dir

    @property
    def eval_model(self) -> onnx.ModelProto:
        """The eval model, once a training model has been built in this context."""
        if self._eval_model is None:
            raise AccessorError(
                "The eval model does not exist yet. Build the training model first: call a "
                "TrainingModel or TrainingBlock inside this context."
            )
        return self._eval_model

    @eval_model.setter
    def eval_model(self, model: onnx.ModelProto) -> None:
        self._eval_model = model


accessor_variable: ContextVar[ModelAccessor | None] = ContextVar("onnxblock.accessor", default=None)
library_variable: ContextVar[str | None] = ContextVar("onnxblock.library", default=None)


def current() -> ModelAccessor:
    """The accessor of the innermost context."""
    accessor = accessor_variable.get()
    if accessor is None:
        raise AccessorError(
            "No base onnx model: call blocks inside `with onnxblock.base(model):`, "
            "`with onnxblock.empty_base():` or `with onnxblock.onnx_model(model):`."
        )
    return accessor


@contextlib.contextmanager
def _active(accessor: ModelAccessor) -> Iterator[ModelAccessor]:
    if (
        accessor_variable.get() is not None
    ):  # one model at a time, as the API promises; in each thread
        raise AccessorError(
            "Base onnx model already exists: contexts cannot be nested. Leave the first one."
        )
    # Before version 4 every initializer must be listed as an input too; blocks add initializers.
    accessor.model.ir_version = max(accessor.model.ir_version, 4)
    accessor_variable.set(accessor)
    try:
        yield accessor
    finally:
        accessor_variable.set(None)


@contextlib.contextmanager
def base(model: onnx.ModelProto, model_path: str | None = None) -> Iterator[ModelAccessor]:
    """Blocks called inside extend a copy of `model`; the model itself is not changed.

    Args:
        model: the model to build on.
        model_path: its file, when its weights are external data that must stay on disk.

    Example:
        >>> from onnxtrain import onnxblock
        >>> with onnxblock.empty_base() as accessor:
        ...     name = onnxblock.blocks.Constant(2.0)()
        >>> len(accessor.model.graph.initializer)
        1
    """
    if model is None:
        raise AccessorError("The base onnx model cannot be None.")
    checked, base_dir = _checked(model, model_path)
    copy = onnx.ModelProto()
    copy.CopyFrom(checked)
    with _active(ModelAccessor(copy, model_path, base_dir)) as accessor:
        yield accessor


def _checked(model: onnx.ModelProto, path: str | None) -> tuple[onnx.ModelProto, str]:
    """The model with its external data checked, and their folder.

    Shapes, axes and scales are needed to infer shapes, so they are read; weights stay on disk.
    """
    if path is None:
        return checked(model, None, "The base model")
    folder = os.path.dirname(os.path.abspath(path))
    return checked(model, folder, repr(path), embed_up_to=KEEP_BYTES)


@contextlib.contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Blocks called inside build a new model.

    Args:
        opset_version: version of ai.onnx, by default the newest that every onnxruntime from
            1.22 on runs.
    """
    version = opset_version or min(MAX_OPSET, onnx.defs.onnx_opset_version())
    with _active(ModelAccessor(_empty_model(version, "graph"))) as accessor:
        yield accessor


@contextlib.contextmanager
def onnx_model(model: onnx.ModelProto | None = None) -> Iterator[ModelAccessor]:
    """Blocks called inside change `model` itself, in place.

    This is how onnxruntime-training 1.13 and 1.14 worked; after a `TrainingModel` has been called,
    `accessor.eval_model` is the eval model. Without a model a new one is started.
    """
    if model is None:
        model = _empty_model(14, "graph")
    _checked(model, None)
    with _active(ModelAccessor(model)) as accessor:
        yield accessor


def _empty_model(opset: int, name: str) -> onnx.ModelProto:
    return onnx.helper.make_model(
        onnx.helper.make_graph([], name, [], []),
        producer_name="onnxtrain",
        opset_imports=[onnx.helper.make_opsetid("", opset)],
        ir_version=min(onnx.IR_VERSION, MAX_IR),
    )


@contextlib.contextmanager
def custom_op_library(custom_op_library_path: str | os.PathLike[str]) -> Iterator[str]:
    """Remember a library of custom operators while models are built and converted."""
    path = os.fspath(custom_op_library_path)
    if library_variable.get() is not None:
        raise AccessorError("A custom op library is set already: contexts cannot be nested.")
    if not os.path.exists(path):
        raise AccessorError(f"The custom op library {path!r} does not exist.")
    library_variable.set(path)
    try:
        yield path
    finally:
        library_variable.set(None)
