"""``onnxtrain differentiate``: a model that also computes gradients."""

from __future__ import annotations

from pathlib import Path

import click

from .app import common
from .output import UserError, current

EPILOG = """\b
Examples:
  onnxtrain differentiate loss.onnx -o gradient.onnx
  onnxtrain differentiate model.onnx -o gradient.onnx --wrt fc1.weight --wrt x --of loss
  onnxtrain differentiate model.onnx -o gradient.onnx --vjp
  onnxtrain differentiate loss.onnx --explain
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path())
@click.option("-o", "--output", type=click.Path(), help="File to write.")
@click.option("--wrt", multiple=True, help="Parameter or input; by default all parameters.")
@click.option("--of", multiple=True, help="Output to differentiate; by default the first.")
@click.option("--vjp", is_flag=True, help="Gradients of the outputs become inputs.")
@click.option("--no-gradient", multiple=True, help="Node or operator that counts as constant.")
@click.option("--allow-unused", is_flag=True, help="Zeros for what has no influence.")
@click.option("--explain", is_flag=True, help="Print each stage and pass, with nodes and time.")
@click.option("--recompute", help="Save memory: auto, cheap, a number of segments, or names.")
@common
def command(
    model: str,
    output: str | None,
    wrt: tuple[str, ...],
    of: tuple[str, ...],
    vjp: bool,
    no_gradient: tuple[str, ...],
    allow_unused: bool,
    explain: bool,
    recompute: str | None,
) -> None:
    """Add the backward half to MODEL, with standard operators only.

    With --explain and without -o nothing is written.
    """
    from ..compile import differentiate
    from ..passes import Trace
    from .settings import read_recompute

    if output is None and not explain:
        raise click.UsageError(
            "Give the file to write with -o, or --explain to see what would be done."
        )
    if output is not None and Path(output).is_dir():
        raise UserError(f"-o {output} is a folder; give the name of a file.")
    trace = Trace()
    gradient_model = differentiate(
        model,
        list(wrt) or None,
        list(of) or None,
        vjp=vjp,
        no_gradient=no_gradient,
        allow_unused=allow_unused,
        recompute=read_recompute(recompute),
        output=output,
        trace=trace,
    )
    graph = gradient_model.graph
    screen = current()
    if explain:
        screen.show(str(trace))
    screen.show(f"{output or 'not written'}: {len(graph.node)} nodes")
    screen.show("inputs: " + ", ".join(sorted({i.name for i in graph.input})))
    screen.show("outputs: " + ", ".join(o.name for o in graph.output))
