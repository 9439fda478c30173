"""`Block`: something that appends to the current model and gives the names of its outputs."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

import onnx

from ..errors import OnnxTrainError
from .accessor import current
from .model_builder import ModelBuilder
from .protos import check, infer_shapes


class BlockError(OnnxTrainError, RuntimeError):
    """A block was given or asked something impossible."""


class Block(ABC):
    """Base class of everything that can be stacked onto a model.

    Implement `build`; inside it `self.base` is the ModelProto to append to, and other blocks can be
    called. Calling the block runs `build` on the model of the current context and checks what came
    out. Forgetting ``super().__init__()`` does no harm.

    Example:
        >>> from onnxtrain import onnxblock
        >>> class Twice(onnxblock.Block):
        ...     def build(self, x):
        ...         return onnxblock.blocks.Add()(x, x)
        >>> with onnxblock.empty_base() as accessor:
        ...     result = Twice()(onnxblock.blocks.Constant(1.5)())
        >>> [node.op_type for node in accessor.model.graph.node]
        ['Add']
    """

    base: onnx.ModelProto | None = None
    temp_onnx_file_path: str | None = None
    temp_external_data_file_name: str | None = None

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:
        if os.path.isabs(temp_file_name):
            raise BlockError("Please pass in a relative path for the temp_file_name.")
        # Kept for scripts that read them: nothing temporary is written any more.
        self.temp_onnx_file_path = os.path.join(os.getcwd(), temp_file_name)
        self.temp_external_data_file_name = f"{temp_file_name}.data"

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Append to `self.base` and give the name, or names, of the outputs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build on the model of the current context and check the result."""
        accessor = current()
        self.base = accessor.model
        accessor.depth += 1
        try:
            output = self.build(*args, **kwargs)
        finally:
            accessor.depth -= 1
        if not accessor.depth:
            self._check()
        return output

    def _check(self) -> None:
        check(self._model)

    @property
    def _model(self) -> onnx.ModelProto:
        if self.base is None:
            self.base = current().model
        return self.base

    @property
    def _builder(self) -> ModelBuilder:
        """A fresh builder on the model being built."""
        return ModelBuilder(self._model)

    def infer_shapes_on_base(self) -> None:
        """Add the types and shapes that follow to `self.base`."""
        infer_shapes(self._model)
