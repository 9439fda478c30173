"""Recognise files of onnxruntime-training; the conversion itself is in `onnxtrain.compat`."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Any

from ...errors import ModelFileError
from .onnxfile import ModelFile, Source

CONTRACT_KEY = "onnxtrain.artifact"
MARKS = {
    "InPlaceAccumulatorV2": "training",
    "AdamWOptimizer": "optimizer",
    "SGDOptimizerV2": "optimizer",
}
"""Operators that only its training builds had, and the kind of model they occur in."""


def kind_of(model: ModelFile) -> str | None:
    """What the predecessor made this model for, None if it is not the predecessor's."""
    kinds = (MARKS.get(n.op_type) for n in model.nodes if n.domain == "com.microsoft")
    return next((k for k in kinds if k is not None), None)


def converted_training(source: Source, frozen: Collection[str]) -> ModelFile:
    """A training model of the predecessor, with standard operators and described as ours are."""
    content = _converter(source).training_bytes(_loadable(source), frozen)
    return ModelFile.load(content)


def converted_optimizer(source: Source) -> ModelFile:
    """An optimizer model of the predecessor as a flat update."""
    return ModelFile.load(_converter(source).optimizer_bytes(_loadable(source)))


def repaired_eval(source: Source) -> Source:
    """The eval model, with the predecessor's mistake in it corrected.

    It switched BatchNormalization to inference and left the outputs that only training has.
    """
    model = ModelFile.load(source)
    if CONTRACT_KEY in model.metadata:
        return source
    changed = False
    for node in model.all_nodes():
        if node.op_type == "BatchNormalization" and not node.integer("training_mode", 0):
            changed |= len(node.outputs) > 1
            node.outputs = node.outputs[:1]
    if not changed:
        return source
    model.embed_external()  # bytes have no folder
    return model.encode()


def _converter(source: Source) -> Any:
    try:
        return import_module("onnxtrain.compat.ort.old_artifacts")
    except ModuleNotFoundError as error:
        where = "the model" if isinstance(source, bytes | bytearray | memoryview) else repr(source)
        raise ModelFileError(
            f"{where} is an artifact of onnxruntime-training. To convert it, {error.name!r} is "
            "needed: install it here, or convert where it is installed with "
            "onnxtrain.compat.convert_artifacts(old_dir, new_dir)."
        ) from error


def _loadable(source: Source) -> Any:
    return bytes(source) if isinstance(source, bytearray | memoryview) else source
