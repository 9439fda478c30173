"""Forecast a time series with an LSTM that is one ONNX node, trained without another framework."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime

from onnxtrain import artifacts, onnxblock, optim
from onnxtrain.api import CosineAnnealingLR, Trainer

WINDOW = 36
"""How many past values the forecast sees; the model itself takes any number."""
GRAPH = """
<ir_version: 9, opset_import: ["": 18]>
forecaster (float[batch, time, 1] x) => (float[batch, 1] next) {{
    in_time = Transpose <perm = [1, 0, 2]> (x)
    all, last, cell = LSTM <hidden_size={hidden}> (in_time, lstm_weight, lstm_recurrent, lstm_bias)
    axis = Constant <value_ints = [0]> ()
    h = Squeeze (last, axis)
    change = Gemm (h, out_weight, out_bias)
    minus_one = Constant <value_int = -1> ()
    newest = Gather <axis = 1> (x, minus_one)
    next = Add (newest, change)
}}
"""


def build(hidden: int, rng: np.random.Generator) -> onnx.ModelProto:
    """An LSTM that predicts the change from the newest value to the next."""
    spread = hidden**-0.5
    shapes = {
        "lstm_weight": (1, 4 * hidden, 1), "lstm_recurrent": (1, 4 * hidden, hidden),
        "lstm_bias": (1, 8 * hidden), "out_weight": (hidden, 1), "out_bias": (1,),
    }  # fmt: skip
    model = onnx.parser.parse_model(GRAPH.format(hidden=hidden))
    for name, shape in shapes.items():
        array = rng.uniform(-spread, spread, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def series(path: Path | None, length: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers from a text file, or two overlaid rhythms with noise; spread 1, mean 0."""
    if path is not None:
        values = np.loadtxt(path, delimiter=",", ndmin=1)
        if values.ndim != 1 or len(values) < 10 * WINDOW:
            raise SystemExit(f"{path}: one column of at least {10 * WINDOW} numbers is needed.")
    else:
        t = np.arange(length)
        slow, fast = np.sin(2 * np.pi * t / 24), np.sin(2 * np.pi * t / 7.3 + np.sin(t / 50))
        values = slow + 0.6 * fast + rng.normal(0, 0.1, length)
    return ((values - values.mean()) / values.std()).astype(np.float32)


def windows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every stretch of WINDOW values, and the value that follows it."""
    view = np.lib.stride_tricks.sliding_window_view(values, WINDOW + 1)
    return view[:, :-1, None].copy(), view[:, -1:].copy()


def error(forecast: np.ndarray, truth: np.ndarray) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((forecast - truth) ** 2)))


def main(given: Sequence[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a text file with one number per line")
    parser.add_argument("--out", type=Path, default=Path("forecaster"), help="folder for files")
    parser.add_argument("--hidden", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="little data: only to see it run")
    options = parser.parse_args(given)
    rng = np.random.default_rng(0)
    values = series(options.data, 800 if options.quick else 3000, rng)
    epochs = 8 if options.quick else options.epochs
    cut = int(0.8 * len(values))
    x, y = windows(values[:cut])
    x_test, y_test = windows(values[cut:])

    options.out.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        build(options.hidden, rng),
        requires_grad="*",
        loss=onnxblock.loss.HuberLoss(),
        optimizer=optim.adam(clip=optim.ClipNorm(1.0)),
        artifact_directory=options.out,
    )
    steps = epochs * -(-len(x) // 32)
    trainer = Trainer.from_directory(
        options.out,
        learning_rate=1e-2,
        scheduler=lambda optimizer: CosineAnnealingLR(optimizer, T_max=steps),
    )
    trainer.fit((x, y), epochs=epochs, batch_size=32, validation_data=(x_test, y_test))
    trainer.export(options.out / "trained.onnx")

    session = onnxruntime.InferenceSession(str(options.out / "trained.onnx"))
    ours = error(session.run(["next"], {"x": x_test})[0], y_test)
    naive = error(x_test[:, -1], y_test)
    print(
        f"error on {len(y_test)} unseen steps: {ours:.3f}; repeating the newest value: {naive:.3f}"
    )
    return ours, naive


if __name__ == "__main__":
    main()
