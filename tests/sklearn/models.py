"""Small models for the tests of the scikit-learn front end."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser

HEADER = '<ir_version: 8, opset_import: ["": 18]>'


def parse(graph: str, weights: dict[str, Any] | None = None) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{HEADER} {graph}")
    for name, array in (weights or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def linear(features: int = 3, outputs: int = 1, dtype: Any = np.float32) -> onnx.ModelProto:
    """Y = X·zeta + alpha: names that are not in alphabetical order."""
    kind = "float" if dtype is np.float32 else "double"
    weights = {
        "zeta": np.zeros((features, outputs), dtype),
        "alpha": np.zeros(outputs, dtype),
    }
    text = f"""g ({kind}[N,{features}] X) => ({kind}[N,{outputs}] Y) {{
        m = MatMul(X, zeta)  Y = Add(m, alpha)
    }}"""
    return parse(text, weights)


def mlp(
    seed: int = 0, features: int = 4, hidden: int = 8
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    weights = {
        "w_second": rng.normal(size=(hidden, 1)).astype(np.float32),
        "w_first": rng.normal(size=(features, hidden)).astype(np.float32),
        "bias": rng.normal(size=hidden).astype(np.float32),
    }
    text = f"""g (float[N,{features}] X) => (float[N,1] Y) {{
        z = MatMul(X, w_first)  h = Add(z, bias)  a = Relu(h)  Y = MatMul(a, w_second)
    }}"""
    return parse(text, weights), weights


def regression(rows: int = 120, features: int = 3, seed: int = 0) -> tuple[Any, Any]:
    """Features and a noisy linear function of them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, features)).astype(np.float32)
    y = X @ np.arange(1, features + 1) - 1.5 + 0.1 * rng.normal(size=rows)
    return X, y.astype(np.float32)


def classes(rows: int = 150, features: int = 4, count: int = 3, seed: int = 0) -> tuple[Any, Any]:
    """Blobs that can be told apart."""
    rng = np.random.default_rng(seed)
    centers = 3 * rng.normal(size=(count, features))
    y = np.arange(rows) % count
    return (centers[y] + rng.normal(size=(rows, features))).astype(np.float32), y
