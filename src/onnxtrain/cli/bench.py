"""``onnxtrain bench``: how long a training step takes, and where the time goes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from .app import common
from .output import UserError, current, size
from .recipes import OPTIMIZERS

EPILOG = """\b
Examples:
  onnxtrain bench model.onnx --batch-size 64
  onnxtrain bench model.onnx --loss mse --steps 200 --json
  onnxtrain bench model.onnx --dim sequence=128

PyTorch is timed beside it when it is installed and the model has common operators only.
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path())
@click.option("--loss", help="As for onnxtrain train; by default by the output's shape.")
@click.option(
    "--optimizer", default="adamw", show_default=True, help=f"One of {', '.join(OPTIMIZERS)}."
)
@click.option("--batch-size", type=int, default=32, show_default=True)
@click.option("--steps", type=int, default=50, show_default=True, help="Steps that are timed.")
@click.option("--dim", multiple=True, help="Size of a symbolic dimension, as name=number.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@common
def command(
    model: str,
    loss: str | None,
    optimizer: str,
    batch_size: int,
    steps: int,
    dim: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure a training step of MODEL on random data: time, memory, time per operator."""
    from .measure import measure
    from .plan import make_plan
    from .settings import Settings

    settings = Settings(
        model, loss=loss or "mse", optimizer=optimizer, batch_size=batch_size, epochs=steps
    )
    settings.check()
    plan = make_plan(settings)
    if loss is None and len(plan.output.shape or ()) == 2 and plan.output.shape[1] != 1:  # type: ignore[index]
        settings.loss = "cross_entropy"
        plan = make_plan(settings)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(settings, plan, steps, _sizes(dim), Path(folder))
    if as_json:
        click.echo(json.dumps(figures, indent=2))
    else:
        _show(model, settings.loss, figures)


def _sizes(dims: tuple[str, ...]) -> dict[str, int]:
    sizes = {}
    for text in dims:
        name, equals, number = text.partition("=")
        if not equals or not number.isdigit() or int(number) < 1:
            raise UserError(f"--dim {text!r} must be name=number, for example sequence=128.")
        sizes[name] = int(number)
    return sizes


def _show(model: str, loss: str, figures: dict[str, Any]) -> None:
    from .measure import profiler_note

    screen = current()
    screen.show(
        f"{model}: {loss}, {figures['optimizer']}, batch {figures['batch_size']}, "
        f"{figures['threads']} threads\n"
    )
    rows = [
        (name, f"{t['median_ms']:.3f}", f"{t['best_ms']:.3f}", f"{t['samples_per_second']:,.0f}")
        for name, t in figures["times"].items()
    ]
    head = ("", "median ms", "best ms", "samples/s")
    screen.table("Training step", head, rows, "median ms,best ms,samples/s")
    if figures["torch"]:
        screen.show(f"PyTorch: {figures['torch']}")
    if any(t["median_ms"] > 2 * t["best_ms"] for t in figures["times"].values()):
        screen.show("The times vary a lot, so the machine is busy: trust the best ones more.")
    memory = ", ".join(f"{k} {size(v)}" for k, v in figures["memory"].items())
    screen.show(f"\nMemory: {memory}\n")
    operators = [
        (o["operator"], o["nodes"], f"{o['ms_per_step']:.3f}", f"{o['share']:.1%}")
        for o in figures["operators"]
    ]
    columns = ("operator", "nodes", "ms per step", "share")
    screen.table("Where the time goes", columns, operators[:20], "nodes,ms per step,share")
    if note := profiler_note(figures):
        screen.show(note)
