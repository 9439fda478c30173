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
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(), help="File to write.")
@click.option("--wrt", multiple=True, help="Parameter or input; by default all parameters.")
@click.option("--of", multiple=True, help="Output to differentiate; by default the first.")
@click.option("--vjp", is_flag=True, help="Gradients of the outputs become inputs.")
@click.option("--no-gradient", multiple=True, help="Node or operator that counts as constant.")
@click.option("--allow-unused", is_flag=True, help="Zeros for what has no influence.")
@click.option("--recompute", help="Save memory: auto, cheap, a number of segments, or names.")
@common
def command(
    model: str,
    output: str,
    wrt: tuple[str, ...],
    of: tuple[str, ...],
    vjp: bool,
    no_gradient: tuple[str, ...],
    allow_unused: bool,
    recompute: str | None,
) -> None:
    """Add the backward half to MODEL, with standard operators only."""
    from ..compile import differentiate
    from .settings import read_recompute

    if Path(output).is_dir():
        raise UserError(f"-o {output} is a folder; give the name of a file.")
    made = differentiate(
        model,
        list(wrt) or None,
        list(of) or None,
        vjp=vjp,
        no_gradient=no_gradient,
        allow_unused=allow_unused,
        recompute=read_recompute(recompute),
        output=output,
    )
    known = {i.name for i in made.graph.input}
    screen = current()
    screen.show(f"{output}: {len(made.graph.node)} nodes")
    screen.show("inputs: " + ", ".join(sorted(known)))
    screen.show("outputs: " + ", ".join(o.name for o in made.graph.output))
