"""Which model the blocks are working on: the contexts `base`, `empty_base` and `onnx_model`."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import onnx
from onnx import external_data_helper, helper

from ..errors import OnnxTrainError
from ..normalize import MAX_IR, MAX_OPSET
from ._graph_utils import KEEP_BYTES


class AccessorError(OnnxTrainError, RuntimeError):
    """A block is used outside a context, or contexts are nested."""


class ModelAccessor:
    """The model that blocks extend.

    Args:
        model: the model.
        model_path: where it was read from; its external data stays there on disk.
    """

    def __init__(self, model: onnx.ModelProto, model_path: str | None = None) -> None:
        self._model, self._path = model, model_path
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
        """Folder that the model's external data is relative to; "" for a model without a file."""
        return os.path.dirname(os.path.abspath(self._path)) if self._path is not None else ""

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


_accessor: ContextVar[ModelAccessor | None] = ContextVar("onnxblock.accessor", default=None)
_library: ContextVar[str | None] = ContextVar("onnxblock.library", default=None)
_GLOBALS: dict[str, ContextVar[Any]] = {
    "_GLOBAL_ACCESSOR": _accessor,
    "_GLOBAL_CUSTOM_OP_LIBRARY": _library,
}
"""What the predecessor's scripts read as variables of this module; every thread has its own."""


def __getattr__(name: str) -> Any:
    if name not in _GLOBALS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _GLOBALS[name].get()


def current() -> ModelAccessor:
    """The accessor of the innermost context."""
    accessor = _accessor.get()
    if accessor is None:
        raise AccessorError(
            "No base onnx model: call blocks inside `with onnxblock.base(model):`, "
            "`with onnxblock.empty_base():` or `with onnxblock.onnx_model(model):`."
        )
    return accessor


@contextlib.contextmanager
def _active(accessor: ModelAccessor) -> Iterator[ModelAccessor]:
    if _accessor.get() is not None:  # one model at a time, as the API promises; in each thread
        raise AccessorError(
            "Base onnx model already exists: contexts cannot be nested. Leave the first one."
        )
    # Before version 4 every initializer must be listed as an input too; blocks add initializers.
    accessor.model.ir_version = max(accessor.model.ir_version, 4)
    _accessor.set(accessor)
    try:
        yield accessor
    finally:
        _accessor.set(None)


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
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    accessor = ModelAccessor(copy, model_path)
    if accessor.has_path:
        _load_small_tensors(copy, accessor.base_dir)
    with _active(accessor):
        yield accessor


def _load_small_tensors(model: onnx.ModelProto, folder: str) -> None:
    """Shapes, axes and scales are needed to infer shapes; only real weights stay on disk."""
    for tensor in model.graph.initializer:
        if tensor.data_location != tensor.EXTERNAL:
            continue
        size = math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        if size <= KEEP_BYTES:
            external_data_helper.load_external_data_for_tensor(tensor, folder)
            tensor.data_location = tensor.DEFAULT
            del tensor.external_data[:]


@contextlib.contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Blocks called inside build a new model.

    Args:
        opset_version: version of ai.onnx, by default the newest that every onnxruntime from
            1.20 on runs.
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
    if _library.get() is not None:
        raise AccessorError("A custom op library is set already: contexts cannot be nested.")
    if not os.path.exists(path):
        raise AccessorError(f"The custom op library {path!r} does not exist.")
    _library.set(path)
    try:
        yield path
    finally:
        _library.set(None)
