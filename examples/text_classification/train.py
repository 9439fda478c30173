"""Which part of Python's standard library does a docstring come from? A bag-of-words classifier."""

from __future__ import annotations

import argparse
import ast
import csv
import re
import sysconfig
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime

from onnxtrain import artifacts, optim
from onnxtrain.api import EarlyStopping, Trainer

LENGTH, PAD, UNKNOWN = 48, 0, 1
PACKAGES = ("asyncio", "email", "http", "logging", "multiprocessing", "unittest", "xml")
GRAPH = """
<ir_version: 9, opset_import: ["": 18]>
text (int64[batch, length] tokens) => (float[batch, {classes}] logits) {{
    embedded = Gather (embedding, tokens)
    pad = Constant <value_int = 0> ()
    real = Greater (tokens, pad)
    mask = Cast <to = 1> (real)
    last = Constant <value_ints = [2]> ()
    column = Unsqueeze (mask, last)
    kept = Mul (embedded, column)
    axis = Constant <value_ints = [1]> ()
    total = ReduceSum <keepdims = 0> (kept, axis)
    count = ReduceSum <keepdims = 0> (column, axis)
    mean = Div (total, count)
    h = Gemm (mean, hidden_weight, hidden_bias)
    a = Relu (h)
    d = Dropout (a, dropout_ratio)
    logits = Gemm (d, out_weight, out_bias)
}}
"""


def docstrings() -> tuple[list[str], list[str]]:
    """Docstrings of the standard library, read without importing it, and their packages."""
    library = Path(sysconfig.get_paths()["stdlib"])
    texts, labels = [], []
    for package in PACKAGES:
        for file in sorted((library / package).rglob("*.py")):
            tree = ast.parse(file.read_text("utf-8", errors="replace"))
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    text = ast.get_docstring(node) or ""
                    if len(words(text)) > 3:
                        texts.append(text)
                        labels.append(package)
    return texts, labels


def from_csv(path: Path) -> tuple[list[str], list[str]]:
    """The columns ``text`` and ``label`` of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"text", "label"} <= set(rows[0]):
        raise SystemExit(f"{path}: a header with the columns text and label is needed.")
    return [r["text"] for r in rows], [r["label"] for r in rows]


def words(text: str) -> list[str]:
    """Lower-case words."""
    return re.findall(r"[a-z]{2,}", text.lower())


def encode(texts: Sequence[str], vocabulary: dict[str, int]) -> np.ndarray:
    """Word numbers, cut or filled up to LENGTH."""
    tokens = np.full((len(texts), LENGTH), PAD, np.int64)
    for row, text in enumerate(texts):
        found = [vocabulary.get(w, UNKNOWN) for w in words(text)[:LENGTH]] or [UNKNOWN]
        tokens[row, : len(found)] = found
    return tokens


def build(size: int, classes: int, rng: np.random.Generator) -> onnx.ModelProto:
    """Mean of word vectors, one hidden layer."""
    width, hidden = 32, 64
    weights = {
        "embedding": rng.normal(0, 0.3, (size, width)),
        "hidden_weight": rng.normal(0, (2 / width) ** 0.5, (width, hidden)),
        "hidden_bias": np.zeros(hidden),
        "out_weight": rng.normal(0, hidden**-0.5, (hidden, classes)),
        "out_bias": np.zeros(classes),
        "dropout_ratio": np.array(0.3),
    }
    model = onnx.parser.parse_model(GRAPH.format(classes=classes))
    for name, array in weights.items():
        tensor = onnx.numpy_helper.from_array(np.asarray(array, np.float32), name)
        model.graph.initializer.append(tensor)
    return model


def main(given: Sequence[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a CSV file with the columns text and label")
    parser.add_argument("--out", type=Path, default=Path("text"), help="folder for all files")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="few epochs: only to see it run")
    options = parser.parse_args(given)
    rng = np.random.default_rng(0)
    texts, names = from_csv(options.data) if options.data else docstrings()
    classes = sorted(set(names))
    y = np.array([classes.index(n) for n in names], np.int64)
    order = rng.permutation(len(texts))
    train, valid, test = np.split(order, [int(0.7 * len(y)), int(0.85 * len(y))])
    counts = Counter(w for i in train for w in words(texts[i]))
    known = [w for w, count in counts.most_common(4000) if count > 1]
    vocabulary = {w: number for number, w in enumerate(known, start=2)}
    x = encode(texts, vocabulary)
    print(f"{len(texts)} texts, {len(classes)} classes, {len(vocabulary)} words")

    options.out.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        build(len(vocabulary) + 2, len(classes), rng),
        requires_grad=["embedding", "hidden_*", "out_*"],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=optim.adamw(weight_decay=0.05, form="torch"),
        artifact_directory=options.out,
        step_model=True,
        training_mode="train",
    )
    trainer = Trainer.from_directory(options.out, learning_rate=3e-3, metrics=["accuracy"])
    trainer.fit(
        (x[train], y[train]),
        epochs=3 if options.quick else options.epochs,
        batch_size=64,
        validation_data=(x[valid], y[valid]),
        callbacks=[EarlyStopping("val_accuracy", patience=6)],
    )
    trainer.export(options.out / "trained.onnx")

    session = onnxruntime.InferenceSession(str(options.out / "trained.onnx"))
    (scores,) = session.run(["logits"], {"tokens": x[test]})
    accuracy = float((scores.argmax(axis=1) == y[test]).mean())
    common = float(np.bincount(y[test]).max() / len(test))
    print(f"accuracy on {len(test)} new texts: {accuracy:.3f} (always the commonest: {common:.3f})")
    for i in test[:3]:
        (score,) = session.run(["logits"], {"tokens": x[i : i + 1]})
        print(f"  {classes[int(score.argmax())]:<16} {' '.join(texts[i].split())[:70]}")
    return accuracy, common


if __name__ == "__main__":
    main()
