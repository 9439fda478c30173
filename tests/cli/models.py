"""Small models and data that the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser

HEAD = '<ir_version: 8, opset_import: ["": 18]>'


def save(text: str, path: str = "model.onnx", head: str = HEAD) -> str:
    onnx.save(onnx.parser.parse_model(head + text), path)
    return path


def classifier(
    path: str = "model.onnx", classes: int = 3, batch: str = "N", dropout: float = 0.0
) -> str:
    """x: batch×4 → scores: batch×classes, with two layers of weights, and Dropout between them."""
    rng = np.random.default_rng(0)
    constants = f"<float ratio = {{{dropout}}}, bool on = {{1}}>" if dropout else ""
    drop, kept = ("d = Dropout(r, ratio, on)", "d") if dropout else ("", "r")
    model = onnx.parser.parse_model(
        HEAD + f"g (float[{batch}, 4] x) => (float[{batch}, {classes}] scores) {constants}"
        f"{{ h = MatMul(x, enc_w) r = Relu(h) {drop} scores = Gemm({kept}, head_w, head_b) }}"
    )
    for name, shape in {"enc_w": (4, 8), "head_w": (8, classes), "head_b": (classes,)}.items():
        value = rng.standard_normal(shape).astype(np.float32) * 0.5
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    onnx.save(model, path)
    return path


def regressor(path: str = "regressor.onnx") -> str:
    """x: N×3 → y: N×1."""
    return save(
        "g (float[N, 3] x) => (float[N, 1] y) <float[3, 1] w = {0.1, 0.2, 0.3}>"
        "{ y = MatMul(x, w) }",
        path,
    )


def blobs(rows: int = 120, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points around one corner per class: easy to tell apart."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    x = rng.standard_normal((rows, 4)).astype(np.float32) * 0.4
    x[np.arange(rows), labels] += 2.0
    return x, labels.astype(np.int64)


def write_npz(path: str = "train.npz", **changed: np.ndarray) -> str:
    x, labels = blobs()
    arrays = {"x": x, "labels": labels, **changed}
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


def write_csv(path: str, columns: dict[str, list[object]]) -> str:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values()))]
    Path(path).write_text("\n".join(lines) + "\n")
    return path


def tree(folder: Path) -> set[str]:
    """Every file and folder below a folder, but for what Python itself keeps of modules."""
    paths = (p.relative_to(folder) for p in folder.rglob("*"))
    return {str(path) for path in paths if "__pycache__" not in path.parts}
