"""Models with operators of ai.onnx.preview.training, as models that onnxruntime runs."""

from __future__ import annotations

import os

import onnx
import onnx_ir as ir

from ..errors import model_errors
from ..graph import ModelLike, load, to_proto
from ..normalize import normalize
from ..passes import clean_up
from .gradients import expand_gradients, is_gradient


def expand(
    model: onnx.ModelProto | str | os.PathLike[str], *, base_dir: str | os.PathLike[str] = ""
) -> onnx.ModelProto:
    """Rewrite Gradient, Adam, Adagrad and Momentum with standard operators.

    Args:
        model: the model or its file; it is not changed.
        base_dir: folder of its external data, where it is a message in memory.

    Example:
        >>> import onnx
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18, "ai.onnx.preview.training": 1]>
        ...     g (float x) => (float dx) {
        ...         y = Mul(x, x)
        ...         dx = ai.onnx.preview.training.Gradient<xs = ["x"], y = "y">(x)
        ...     }''')
        >>> sorted({node.domain for node in expand(model).graph.node})
        ['']
    """
    return to_proto(expanded(model, base_dir))


@model_errors("Rewriting ai.onnx.preview.training")
def expanded(model: ModelLike, base_dir: str | os.PathLike[str] = "") -> ir.Model:
    """The same as a model of onnx-ir; parameters that are inputs stay inputs."""
    loaded = load(model, base_dir=base_dir)
    has_gradients = any(is_gradient(n) for n in loaded.graph.all_nodes())
    return clean_up(expand_gradients(loaded) if has_gradients else normalize(loaded))
