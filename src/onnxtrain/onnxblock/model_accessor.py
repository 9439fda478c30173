"""The contexts of blocks, in the module where scripts look for them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from ..graph.accessor import AccessorError as AccessorError
from ..graph.accessor import ModelAccessor as ModelAccessor
from ..graph.accessor import accessor_variable, library_variable
from ..graph.accessor import base as base
from ..graph.accessor import current as current
from ..graph.accessor import custom_op_library as custom_op_library
from ..graph.accessor import empty_base as empty_base
from ..graph.accessor import onnx_model as onnx_model

_GLOBALS: dict[str, ContextVar[Any]] = {
    "_GLOBAL_ACCESSOR": accessor_variable,
    "_GLOBAL_CUSTOM_OP_LIBRARY": library_variable,
}
"""What the predecessor's scripts read as variables of this module; every thread has its own."""


def __getattr__(name: str) -> Any:
    if name not in _GLOBALS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _GLOBALS[name].get()
