"""Regression on a table: diabetes progression from ten measurements, with raw columns as input."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression

from onnxtrain import artifacts, optim
from onnxtrain.api import EarlyStopping, Trainer

GRAPH = """
<ir_version: 9, opset_import: ["": 18]>
table (float[rows, {columns}] x) => (float[rows, 1] y) {{
    centred = Sub (x, x_mean)
    scaled = Div (centred, x_spread)
    h = Gemm (scaled, hidden_weight, hidden_bias)
    a = Relu (h)
    curved = MatMul (a, out_weight)
    straight = Gemm (scaled, linear_weight, linear_bias)
    sum = Add (curved, straight)
    unscaled = Mul (sum, y_spread)
    y = Add (unscaled, y_mean)
}}
"""


def table() -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Columns, target and names of columns; through pandas when it is installed."""
    try:
        import pandas  # noqa: F401
    except ImportError:
        bunch = load_diabetes(scaled=False)
        x, y, names = bunch.data, bunch.target, list(bunch.feature_names)
    else:
        frame = load_diabetes(as_frame=True, scaled=False).frame
        y, features = frame["target"].to_numpy(), frame.drop(columns="target")
        x, names = features.to_numpy(), list(features.columns)
    return x.astype(np.float32), y.astype(np.float32).reshape(-1, 1), names


def build(x: np.ndarray, y: np.ndarray, hidden: int, rng: np.random.Generator) -> onnx.ModelProto:
    """A linear model plus a hidden layer; the scaling of the columns is part of the graph."""
    columns = x.shape[1]
    weights = {
        "x_mean": x.mean(axis=0), "x_spread": x.std(axis=0),
        "y_mean": y.mean(axis=0), "y_spread": y.std(axis=0),
        "hidden_weight": rng.normal(0, columns**-0.5, (columns, hidden)),
        "hidden_bias": np.zeros(hidden),
        "out_weight": np.zeros((hidden, 1)),
        "linear_weight": np.zeros((columns, 1)), "linear_bias": np.zeros(1),
    }  # fmt: skip
    model = onnx.parser.parse_model(GRAPH.format(columns=columns))
    for name, array in weights.items():
        tensor = onnx.numpy_helper.from_array(np.asarray(array, np.float32), name)
        model.graph.initializer.append(tensor)
    return model


def r2(y: np.ndarray, predicted: np.ndarray) -> float:
    """Share of the variance that is explained."""
    return float(1 - ((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def main(given: Sequence[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("diabetes"), help="folder for all files")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="few epochs: only to see it run")
    options = parser.parse_args(given)
    rng = np.random.default_rng(0)
    x, y, names = table()
    order = rng.permutation(len(x))
    train, valid, test = np.split(order, [int(0.6 * len(x)), int(0.8 * len(x))])
    print(f"{len(x)} rows; columns: {', '.join(names)}")

    options.out.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        build(x[train], y[train], 16, rng),
        requires_grad=["hidden_*", "out_*", "linear_*"],  # the scaling stays as it is
        loss=artifacts.LossType.MSELoss,
        optimizer=optim.adamw(weight_decay=0.02, groups=[optim.Group("*_bias", weight_decay=0.0)]),
        artifact_directory=options.out,
        step_model=True,
    )
    trainer = Trainer.from_directory(options.out, learning_rate=3e-3, metrics=["r2", "mae"])
    history = trainer.fit(
        (x[train], y[train]),
        epochs=40 if options.quick else options.epochs,
        batch_size=32,
        validation_data=(x[valid], y[valid]),
        callbacks=[EarlyStopping(patience=30)],
        progress=False,
    )
    trainer.export(options.out / "trained.onnx")
    print(f"{len(history['loss'])} epochs, best validation R² {max(history['val_r2']):.3f}")

    session = onnxruntime.InferenceSession(str(options.out / "trained.onnx"))
    ours = r2(y[test], session.run(["y"], {"x": x[test]})[0])
    linear = LinearRegression().fit(x[train], y[train])
    theirs = r2(y[test], linear.predict(x[test]))
    print(
        f"R² on {len(test)} new patients: {ours:.3f} (scikit-learn's LinearRegression {theirs:.3f})"
    )
    return ours, theirs


if __name__ == "__main__":
    main()
