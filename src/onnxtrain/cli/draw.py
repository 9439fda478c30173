"""``onnxtrain draw``: a model as a picture, with the backward half in colour."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..drawing.inert import inert
from .app import common
from .output import UserError, current

if TYPE_CHECKING:
    import onnx

    from ..drawing.layout import Drawing
    from ..drawing.scopes import Grouping

EPILOG = """\b
Examples:
  onnxtrain draw model.onnx                          text, in the terminal
  onnxtrain draw model.onnx -o model.svg
  onnxtrain draw model.onnx -o model.html            pan, zoom, click a node for its attributes
  onnxtrain draw model.onnx --gradient -o gradient.png
  onnxtrain draw artifacts/training_model.onnx -o training.svg
  onnxtrain draw bert.onnx --collapse 2 -o bert.html            one box for each scope of depth 2
  onnxtrain draw bert.onnx --collapse 'encoder/layer.*' -o bert.svg

\b
A scope is a part of a node's name before a slash, as exporters write the modules of a network:
/encoder/layer.0/MatMul is in encoder, and there in layer.0.
PNG needs Pillow (pip install "onnxtrain[plot]"); everything else needs nothing.
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path())
@click.option(
    "-o", "--output", type=click.Path(),
    help="File: .svg, .html, .png or .txt; by default text here.",
)  # fmt: skip
@click.option("--gradient", is_flag=True, help="Differentiate the model first.")
@click.option("--of", help="With --gradient: output to differentiate.")
@click.option(
    "--collapse", multiple=True,
    help="Draw scopes as one box: their depth, or a name such as 'encoder/layer.*'.",
)  # fmt: skip
@click.option(
    "--shapes/--no-shapes", default=True, show_default=True, help="Write shapes on the lines."
)
@click.option("--max-nodes", default=2000, show_default=True, help="Refuse to draw more boxes.")
@common
def command(
    model: str,
    output: str | None,
    gradient: bool,
    of: str | None,
    collapse: tuple[str, ...],
    shapes: bool,
    max_nodes: int,
) -> None:
    """Draw the graph of MODEL as SVG, as a page, as PNG or as text.

    Nodes of the forward half are blue, those of the backward half orange. Models without a scalar
    output are differentiated in the vector–Jacobian form.
    """
    from ..drawing.facts import value_texts
    from ..drawing.layout import arrange

    path = _checked(output)
    group = _grouping(collapse)
    proto, results = _load(model, gradient, of)
    if group is None:
        _refuse_many(model, len(proto.graph.node), max_nodes)
    labels = value_texts(_with_shapes(proto).graph) if shapes and path is not None else {}
    drawing = arrange(proto, results, labels, group)
    _refuse_many(model, len(drawing.boxes), max_nodes)
    if path is None:
        _show(drawing)
        return
    _write(drawing, Path(model).name, path)
    nodes = sum(box.nodes for box in drawing.boxes)
    in_boxes = f" in {len(drawing.boxes)} boxes" if group is not None else ""
    current().show(f"{path}  {nodes} nodes{in_boxes}, {drawing.backward} of them backward")


def _checked(output: str | None) -> Path | None:
    """The file to write, if that can be done."""
    if output is None:
        return None
    path = Path(output)
    if path.suffix.lower() not in WRITERS:
        raise UserError(f"-o {output}: a drawing is written as {', '.join(WRITERS)}.")
    if not path.absolute().parent.is_dir():
        raise UserError(f"-o {output}: the folder {path.parent} does not exist.")
    return path


def _grouping(collapse: tuple[str, ...]) -> Grouping | None:
    from ..drawing.scopes import by_depth, by_patterns

    if not collapse:
        return None
    numbers = [text for text in collapse if text.isdigit()]
    if not numbers:
        return by_patterns([text.strip("/") for text in collapse])
    if len(collapse) > 1 or not int(numbers[0]):
        raise UserError(
            f"--collapse {' '.join(collapse)}: give one depth from 1 on, or names of scopes."
        )
    return by_depth(int(numbers[0]))


def _refuse_many(model: str, boxes: int, most: int) -> None:
    if boxes > most:
        raise UserError(
            f"{model} has {boxes} nodes, which nobody can look at in one picture. Draw scopes as "
            f"one box each (--collapse 1), or raise --max-nodes (it is {most}) if you want it all "
            "the same."
        )


def _write(drawing: Drawing, title: str, path: Path) -> None:
    from ..runtime.files.atomic import write_atomically

    write_atomically(path, [WRITERS[path.suffix.lower()](drawing, title)])


def _text(drawing: Drawing, _: str) -> bytes:
    return "".join(f"{inert(line)}\n" for line, _ in drawing.lines()).encode()


def _page(drawing: Drawing, title: str) -> bytes:
    from ..drawing.page import page

    return page(drawing, title).encode()


def _png(drawing: Drawing, title: str) -> bytes:
    try:
        return drawing.scene(title).png()
    except ImportError:
        raise UserError(
            'A PNG needs Pillow: pip install "onnxtrain[plot]". SVG and HTML need nothing.'
        ) from None
    except ValueError as error:
        raise UserError(
            f"The drawing is too large for PNG ({error}): write .svg or .html, or draw scopes as "
            "one box each (--collapse 1)."
        ) from error


def _svg(drawing: Drawing, title: str) -> bytes:
    return drawing.svg(title).encode()


WRITERS: dict[str, Callable[[Drawing, str], bytes]] = {
    ".svg": _svg, ".html": _page, ".png": _png, ".txt": _text,
}  # fmt: skip


def _with_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the shapes of its values, as far as they follow."""
    from ..errors import OnnxTrainError
    from ..graph import load, to_proto
    from ..graph.infer import infer_shapes

    try:
        return to_proto(infer_shapes(load(proto)))
    except OnnxTrainError as error:
        current().say(f"Drawn without shapes on the lines: {' '.join(str(error).split())}")
        return proto


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
        style = styles.get(kind, "dodger_blue1")
        console.print(Text(inert(line), style), soft_wrap=True)
