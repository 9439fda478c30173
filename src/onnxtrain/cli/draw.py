"""``onnxtrain draw``: a model as a picture, with the backward half in colour."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..drawing.inert import inert
from .app import common
from .output import UserError, current

if TYPE_CHECKING:
    import onnx

    from ..drawing.layout import Drawing

EPILOG = """\b
Examples:
  onnxtrain draw model.onnx                      text, in the terminal
  onnxtrain draw model.onnx -o model.svg
  onnxtrain draw model.onnx --gradient -o gradient.svg
  onnxtrain draw artifacts/training_model.onnx -o training.svg
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path())
@click.option("-o", "--output", type=click.Path(), help="SVG or text file; by default text here.")
@click.option("--gradient", is_flag=True, help="Differentiate the model first.")
@click.option("--of", help="With --gradient: output to differentiate.")
@click.option("--max-nodes", default=2000, show_default=True, help="Refuse larger graphs.")
@common
def command(model: str, output: str | None, gradient: bool, of: str | None, max_nodes: int) -> None:
    """Draw the graph of MODEL as SVG or text.

    Nodes of the forward half are blue, those of the backward half orange. Models without a scalar
    output are differentiated in the vector–Jacobian form.
    """
    from ..drawing.layout import arrange
    from .history import write_text

    proto, results = _load(model, gradient, of)
    if len(proto.graph.node) > max_nodes:
        raise UserError(
            f"{model} has {len(proto.graph.node)} nodes, which nobody can look at in one picture. "
            f"Raise --max-nodes (it is {max_nodes}) if you want it all the same."
        )
    drawing = arrange(proto, results)
    if output is None:
        _show(drawing)
        return
    path = Path(output)
    if not path.absolute().parent.is_dir():
        raise UserError(f"-o {output}: the folder {path.parent} does not exist.")
    if path.suffix.lower() == ".svg":
        write_text(path, drawing.svg(Path(model).name))
    elif path.suffix.lower() == ".txt":
        write_text(path, "\n".join(line for line, _ in drawing.lines()) + "\n")
    else:
        raise UserError(f"-o {output}: a drawing is written as .svg or .txt.")
    current().show(f"{path}  {len(drawing.boxes)} nodes, {drawing.backward} of them backward")


def _load(model: str, gradient: bool, of: str | None) -> tuple[onnx.ModelProto, set[str] | None]:
    """The model to draw; the outputs of its forward half when it was differentiated here."""
    from ..compile import differentiate
    from ..graph import load, to_proto
    from ..normalize import normalize

    if not gradient:
        return to_proto(load(model)), None
    normal = to_proto(normalize(load(model)))
    scalar = _is_scalar(normal, of)
    results = {o.name for o in normal.graph.output}
    return differentiate(model, of=of, vjp=not scalar), results


def _is_scalar(model: onnx.ModelProto, of: str | None) -> bool:
    outputs = {o.name: o for o in model.graph.output}
    chosen = outputs.get(of) if of is not None else model.graph.output[0]
    if chosen is None:
        return True  # an unknown name is told by `differentiate`
    dims = chosen.type.tensor_type.shape.dim
    return all(d.dim_value == 1 for d in dims)


def _show(drawing: Drawing) -> None:
    from rich.text import Text

    console = current().out
    styles = {"backward": "orange3", "update": "medium_purple"}
    for line, kind in drawing.lines():
        style = styles.get(kind, "dodger_blue2")
        console.print(Text(inert(line), style), soft_wrap=True)
