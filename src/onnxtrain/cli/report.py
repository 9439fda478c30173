"""report.html: one page per run that needs no other file and no network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..drawing.scene import png_address
from .charts import confusion, curves
from .inspect import shown
from .match import thumbnail
from .output import count, size
from .pages import escape, whole_page

if TYPE_CHECKING:
    from .run import Run

Array = npt.NDArray[Any]
SAMPLES, LOOKED_AT = 12, 512
"""Predictions that are shown, and rows from which they are chosen."""
MOST_CLASSES = 20


def page(run: Run) -> str:
    """The whole page as text."""
    parts = [
        f'<p class="sub">{escape(_headline(run))}</p>',
        _cards(run),
        "<h2>Curves</h2>",
        _curves(run),
        *_matrix(run),
        "<h2>Samples of predictions</h2>",
        _samples(run),
        "<h2>Settings</h2>",
        html_table(("setting", "value"), _settings(run)),
        "<h2>Model</h2>",
        _model(run),
        "<h2>Epochs</h2>",
        _epochs(run),
    ]
    return whole_page(f"Training of {Path(run.settings.model).name}", "\n".join(parts))


def _headline(run: Run) -> str:
    rows = count(run.training.total, "row") if run.training.total else "batches"
    parts = [f"{rows} from {run.training.where}"]
    if run.validation is not None and run.validation.rows:
        parts.append(f"validated on {count(run.validation.rows, 'row')}")
    trained = sum(p.elements for p in run.plan.summary.parameters if p.name in run.plan.trainable)
    parts.append(f"{trained:,} numbers trained with {run.settings.optimizer}")
    return ", ".join(parts)


def _cards(run: Run) -> str:
    cells = [("epochs", str(len(run.history.get("loss", [])))), ("steps", f"{run.trainer.step:,}")]
    if run.best is not None:
        cells.append(("best epoch", str(run.best.epoch(run.history) + 1)))
    cells += [(name.replace("_", " "), _number(name, v)) for name, v in run.reached.items()]
    cards = "".join(
        f'<div class="card"><b>{escape(v)}</b><span>{escape(n)}</span></div>' for n, v in cells
    )
    return f'<div class="cards">{cards}</div>'


def _number(name: str, value: float) -> str:
    return f"{value:.2%}" if name.endswith("accuracy") else f"{value:.4g}"


def _curves(run: Run) -> str:
    from .run import loss_picture

    pictures = [loss_picture(run)]
    metrics = {
        name: [(float(i + 1), v) for i, v in enumerate(values)]
        for name, values in run.history.items()
        if name not in {"loss", "lr", "val_loss"}
    }
    if metrics:
        pictures.append(curves("Metric", metrics, "epoch"))
    rates = {"learning rate": [(float(s), rate) for s, _, rate in run.steps]}
    pictures.append(curves("Learning rate", rates, "step"))
    drawn = "".join(f'<div class="chart">{p.svg()}</div>' for p in pictures)
    return f'<div class="charts">{drawn}</div>'


# --- predictions --------------------------------------------------------------------------------


def class_names(run: Run) -> list[str]:
    """Names of the classes, their numbers without any."""
    shape = run.plan.output.shape or ()
    number = shape[1] if len(shape) > 1 and isinstance(shape[1], int) else 0
    names = run.task.classes
    return names + [str(i) for i in range(len(names), number)] if number else names


def predictions(run: Run, rows: int | None = None) -> tuple[Array, Array] | None:
    """The loss's output and the targets, on validation data if there are any."""
    data = run.validation if run.validation is not None else run.training
    outputs = [v.name for v in run.plan.summary.outputs]
    if not data.rows or (run.plan.output.name not in outputs and run.plan.link is None):
        return None
    part = data.part(slice(0, rows))
    target = part.arrays[run.plan.loss.target]
    if run.task.scale is not None:
        target = run.task.scale.undo(target)
    inputs = {k: v for k, v in part.arrays.items() if k != run.plan.loss.target}
    predicted = run.trainer.predict(inputs, run.settings.batch_size)
    if isinstance(predicted, tuple):
        name = run.plan.output.name
        predicted = predicted[outputs.index(name) if name in outputs else 0]
    return predicted, target


def confusion_matrix(run: Run) -> tuple[Array, list[str]] | None:
    """Counts by true class (rows) and predicted class (columns), for plain classifiers."""
    names = class_names(run)
    shape = run.plan.output.shape or ()
    if run.plan.loss.kind != "class" or len(shape) != 2 or not 2 <= len(names) <= MOST_CLASSES:
        return None
    predicted = predictions(run)
    if predicted is None:
        return None
    scores, target = predicted
    matrix = np.zeros((len(names), len(names)), np.int64)
    np.add.at(matrix, (target, scores.argmax(axis=1)), 1)
    return matrix, names


def _matrix(run: Run) -> list[str]:
    matrix = confusion_matrix(run)
    if matrix is None:
        return []
    drawn = confusion(*matrix).svg()
    return [f'<h2>Confusion matrix</h2><div class="charts"><div class="chart">{drawn}</div></div>']


def _samples(run: Run) -> str:
    language = run.task.language
    if language is not None:
        return html_table(("", repr(language.prompt)), list(language.samples.items()))
    if run.plan.loss.kind == "token":
        return "<p>Scores of tokens are too many to show; --task causal-lm shows text.</p>"
    predicted = predictions(run, LOOKED_AT)
    if predicted is None:
        return "<p>There are no rows to show: the data are batches.</p>"
    scores, target = predicted
    data = run.validation if run.validation is not None else run.training
    first = next(v for k, v in data.arrays.items() if k != run.plan.loss.target)
    verdicts = [_verdict(run, score, true) for score, true in zip(scores, target)]
    cells = []
    for i in _interesting([is_right for _, is_right in verdicts]):
        text, is_right = verdicts[i]
        tone = "" if is_right is None else ' class="right"' if is_right else ' class="wrong"'
        row = first[i] if data.files is None else thumbnail(data.files[i])
        cells.append(f'<div class="sample">{_input(row)}<div{tone}>{text}</div></div>')
    return f'<div class="samples">{"".join(cells)}</div>'


def _interesting(verdicts: Sequence[bool | None]) -> list[int]:
    """Rows to show: some of the mistakes first, then the others in their order."""
    wrong = [i for i, is_right in enumerate(verdicts) if is_right is False][: SAMPLES // 3]
    others = [i for i, is_right in enumerate(verdicts) if is_right is not False]
    return [*wrong, *others][:SAMPLES]


def _input(row: Array) -> str:
    """A picture if it looks like one, otherwise the first numbers."""
    pixels = _pixels(row)
    if pixels is not None:
        return f'<img alt="input" src="{png_address(pixels)}">'
    values = ", ".join(f"{float(v):.4g}" for v in row.reshape(-1)[:6])
    more = " …" if row.size > 6 else ""
    return f"<div>{escape(values)}{more}</div>"


def _pixels(row: Array) -> Array | None:
    if row.ndim != 3 or min(row.shape[0], row.shape[2]) not in (1, 3) or row.size > 3 * 512 * 512:
        return None
    image = row.transpose(1, 2, 0) if row.shape[0] in (1, 3) else row
    if min(image.shape[:2]) < 4:
        return None
    low, high = float(image.min()), float(image.max())
    scaled = (image - low) / ((high - low) or 1.0) * 255
    pixels = np.round(scaled).astype(np.uint8)
    return pixels[..., 0] if pixels.shape[2] == 1 else pixels


def _verdict(run: Run, score: Array, target: Array) -> tuple[str, bool | None]:
    if run.plan.loss.kind == "class" and score.ndim == 1:
        names = class_names(run)
        best, true = int(score.argmax()), int(target)
        label = [names[i] if i < len(names) else str(i) for i in (best, true)]
        text = f"predicted {escape(label[0])}{_share(run, score, best)}<br>true {escape(label[1])}"
        return text, best == true
    shown_ = [", ".join(f"{float(v):.4g}" for v in a.reshape(-1)[:4]) for a in (score, target)]
    return f"predicted {escape(shown_[0])}<br>true {escape(shown_[1])}", None


def _share(run: Run, score: Array, chosen: int) -> str:
    if run.settings.loss != "cross_entropy":
        return ""
    if run.plan.link == "Softmax":
        return f" ({score[chosen]:.0%})"
    powers = np.exp(score.astype(np.float64) - float(score.max()))
    return f" ({powers[chosen] / powers.sum():.0%})"


# --- tables -------------------------------------------------------------------------------------


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of text."""
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'


def _settings(run: Run) -> list[tuple[str, str]]:
    skipped = {None, "", (), False}
    chosen = {k: v for k, v in vars(run.settings).items() if v not in skipped}
    chosen["model"] = Path(run.settings.model).name
    return [
        (k.replace("_", "-"), ", ".join(v) if isinstance(v, tuple) else str(v))
        for k, v in chosen.items()
    ]


def _model(run: Run) -> str:
    summary = run.plan.summary
    values = [("input", v) for v in summary.inputs] + [("output", v) for v in summary.outputs]
    sides = html_table(("", "name", "type", "shape"), [
        (side, v.name, v.dtype, shown(v.shape)) for side, v in values
    ])  # fmt: skip
    trained = set(run.plan.trainable)
    rows = [
        (p.name, p.dtype, shown(p.shape), size(p.bytes), "yes" if p.name in trained else "no")
        for p in summary.parameters
    ]
    parameters = html_table(("parameter", "type", "shape", "size", "trained"), rows)
    used = ", ".join(f"{o.op_type} ({o.count})" for o in summary.operators)
    return f"{sides}<p>Operators: {escape(used)}</p>{parameters}"


def _epochs(run: Run) -> str:
    names = list(run.history)
    length = max((len(v) for v in run.history.values()), default=0)
    rows = []
    for i in range(length):
        values = [run.history[n][i] if i < len(run.history[n]) else math.nan for n in names]
        rows.append((str(i + 1), *(f"{v:.6g}" for v in values)))
    return html_table(("epoch", *names), rows)
