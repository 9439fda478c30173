"""``onnxtrain inspect``: what is in a model, and what of it can be trained."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from .app import common
from .output import count, current, size

if TYPE_CHECKING:
    from ..summary import ModelSummary

EPILOG = """\b
Examples:
  onnxtrain inspect model.onnx
  onnxtrain inspect model.onnx --batch-size 8
  onnxtrain inspect model.onnx --json | jq '.parameters[] | select(.trainable) | .name'
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.option("--batch-size", default=32, show_default=True, help="For the memory estimate.")
@common
def command(model: str, as_json: bool, batch_size: int) -> None:
    """Show inputs, outputs, parameters and operators of MODEL.

    Also: which parameters are trainable, what blocks a gradient and why, and how much memory
    training takes.
    """
    from ..summary import summarize

    summary = summarize(model, batch=batch_size)
    if as_json:
        click.echo(json.dumps(summary.to_dict(), indent=2))
    else:
        show(model, summary)


def show(model: str, summary: ModelSummary) -> None:
    """Print a summary as tables."""
    output = current()
    producer = f", by {summary.producer}" if summary.producer else ""
    output.show(f"{model}: opset {summary.opset}, IR {summary.ir_version}{producer}\n")
    for title, values in (("Inputs", summary.inputs), ("Outputs", summary.outputs)):
        rows = [(v.name, v.dtype, shown(v.shape)) for v in values]
        output.table(title, ("name", "type", "shape"), rows)
        output.show("")
    parameters = [
        (
            p.name,
            p.dtype,
            shown(p.shape),
            size(p.bytes),
            "yes" if p.trainable else f"no: {p.reason}",
        )
        for p in summary.parameters
    ]
    output.table("Parameters", ("name", "type", "shape", "size", "trainable"), parameters, "size")
    chosen = [p for p in summary.parameters if p.trainable]
    output.show(
        f"{count(sum(p.elements for p in summary.parameters), 'element')} in "
        f"{count(len(summary.parameters), 'parameter')}, of which "
        f"{sum(p.elements for p in chosen):,} in {len(chosen):,} are trainable\n"
    )
    operators = [
        (f"{o.domain}::{o.op_type}" if o.domain else o.op_type, o.count, o.gradient)
        for o in summary.operators
    ]
    output.table("Operators", ("operator", "nodes", "gradient"), operators, "nodes")
    _show_problems(summary)
    for advice in _advice(summary):
        output.show(f"\nWarning: {advice}")
    memory = summary.memory
    output.show(
        f"\nMemory for training with Adam, batch {memory.batch}: about {size(memory.total)} "
        f"(parameters {size(memory.parameters)}, gradients {size(memory.gradients)}, optimizer "
        f"{size(memory.optimizer)}, activations at most {size(memory.activations)})"
    )


def _show_problems(summary: ModelSummary) -> None:
    output = current()
    if summary.problem:
        output.show(f"\nThe model cannot be trained as it is: {summary.problem}")
    elif summary.blockers:
        output.show(f"\nThe gradient is blocked by {count(len(summary.blockers), 'node')}:")
        for blocker in summary.blockers:
            output.show(f"  - {blocker}")
    elif not summary.trainable:
        output.show("\nNo parameter is trainable; the reasons stand beside the parameters.")
    else:
        output.show("\nNothing blocks a gradient.")


def _advice(summary: ModelSummary) -> list[str]:
    """What to watch for in a loss on outputs that are probabilities."""
    texts = {
        "Softmax": "cross_entropy applies a Softmax itself and nll takes logarithms. Train with "
        "--loss cross_entropy --loss-output {scores}",
        "Sigmoid": "bce_with_logits applies a Sigmoid itself. Train with --loss bce_with_logits "
        "--loss-output {scores}, or with --loss bce",
    }
    return [
        f"the output {e.value!r} comes out of a {e.function}, and "
        f"{texts[e.function].format(scores=e.scores)}."
        for e in summary.endings
        if e.function in texts
    ]


def shown(shape: tuple[int | str | None, ...] | None) -> str:
    """A shape for people: "N×3×224×224"."""
    if shape is None:
        return "unknown"
    return "×".join("?" if d is None else str(d) for d in shape) or "scalar"
