"""Helpers around training models, under the names they had in onnxruntime-training."""

from __future__ import annotations

from collections.abc import Collection

import onnx

from ..errors import OnnxTrainError


class OverlapError(OnnxTrainError, RuntimeError):
    """A parameter is both trained and frozen."""


def get_model_parameters(
    model: onnx.ModelProto,
    args_requiring_gradient: Collection[str],
    args_not_requiring_gradient: Collection[str],
) -> tuple[list[onnx.TensorProto], list[onnx.TensorProto]]:
    """Trainable and frozen initializers of a model, each in the model's order."""
    both = set(args_requiring_gradient) & set(args_not_requiring_gradient)
    if both:
        raise OverlapError(f"Trained and frozen at once: {', '.join(sorted(both))}.")
    trainable, frozen = [], []
    for tensor in model.graph.initializer:
        if tensor.name in args_requiring_gradient:
            trainable.append(tensor)
        elif tensor.name in args_not_requiring_gradient:
            frozen.append(tensor)
    return trainable, frozen
