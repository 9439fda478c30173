"""Graphs side by side, as text, SVG or PNG: nothing has to be installed for the first two."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ...drawing.layout import arrange_with_types
from ...drawing.scene import Arrow, Line, Scene, Shape, Text, beside
from ...errors import OnnxTrainError
from .onnx_helper import as_proto

KINDS: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float",
    onnx.TensorProto.DOUBLE: "double",
    onnx.TensorProto.FLOAT16: "half",
    onnx.TensorProto.INT64: "int64",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.BOOL: "bool",
    onnx.TensorProto.STRING: "string",
}


class DrawingError(OnnxTrainError, RuntimeError):
    """A picture cannot be made in the form that was asked for."""


# -- from a model to a picture ---------------------------------------------------------------------


def _type_text(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    dims = [d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in
            tensor.shape.dim]  # fmt: skip
    kind = KINDS.get(tensor.elem_type, str(tensor.elem_type))
    return f"{kind}[{', '.join(dims)}]" if tensor.HasField("shape") else f"{kind}[…]"


def _types(model: onnx.ModelProto) -> dict[str, str]:
    try:
        model = onnx.shape_inference.infer_shapes(model)
    except Exception:  # a picture without shapes is better than none
        return {}
    graph = model.graph
    return {v.name: _type_text(v) for v in (*graph.value_info, *graph.input, *graph.output)}


def picture(
    model: onnx.ModelProto, title: str = "", weights: Collection[str] | None = None
) -> Scene:
    """A graph with the types and shapes of its values.

    Args:
        model: the graph.
        title: what is written above it.
        weights: names that are shown as weights; by default the initializers.
    """
    graph = model.graph
    types = {**_types(model), **{t.name: _tensor_text(t) for t in graph.initializer}}
    types.update({v.name: _type_text(v) for v in (*graph.input, *graph.output)})
    return arrange_with_types(model, types, weights).scene(title or graph.name, legend=False)


def _tensor_text(tensor: onnx.TensorProto) -> str:
    kind = KINDS.get(tensor.data_type, str(tensor.data_type))
    return f"{kind}[{', '.join(map(str, tensor.dims))}]"


# -- text ------------------------------------------------------------------------------------------


def onnx_simple_text_plot(model: Any) -> str:
    """A graph as text: inputs, weights, nodes and outputs with types and shapes.

    Example:
        >>> import onnx.parser
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] w = {1, 2}> { Y = MatMul(X, w) }
        ... ''')
        >>> print(onnx_simple_text_plot(model))
        opset: ai.onnx 18
        input:  X  float[N, 2]
        weight: w  float[2, 1]
        Y = MatMul(X, w)  float[N, 1]
        output: Y  float[N, 1]
    """
    proto = as_proto(model)
    graph, types = proto.graph, _types(proto)
    constants = {t.name for t in graph.initializer}
    opsets = ", ".join(f"{o.domain or 'ai.onnx'} {o.version}" for o in proto.opset_import)
    lines = [f"opset: {opsets}"]
    lines += [f"input:  {v.name}  {_type_text(v)}" for v in graph.input if v.name not in constants]
    for tensor in graph.initializer:
        value = ""
        if not tensor.dims or (len(tensor.dims) == 1 and tensor.dims[0] <= 4):
            value = f" = {onnx.numpy_helper.to_array(tensor).tolist()}"
        lines.append(f"weight: {tensor.name}  {_tensor_text(tensor)}{value}")
    for node in graph.node:
        shown = next((f"  {types[o]}" for o in node.output if o in types), "")
        attributes = ", ".join(_attribute(a) for a in node.attribute)
        call = f"{node.op_type}<{attributes}>" if attributes else node.op_type
        lines.append(f"{', '.join(node.output)} = {call}({', '.join(node.input)}){shown}")
    lines += [f"output: {v.name}  {_type_text(v)}" for v in graph.output]
    return "\n".join(lines)


def _attribute(attribute: onnx.AttributeProto) -> str:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = "…" if isinstance(value, (onnx.GraphProto, onnx.TensorProto)) else str(value)
    return f"{attribute.name}={text}"


# -- what is called --------------------------------------------------------------------------------


def _pictures(graphs: Mapping[str, Any], weights: Collection[str]) -> list[Scene]:
    return [picture(as_proto(model), title, weights) for title, model in graphs.items()]


def plot_onnxs(
    *onx: Any,
    ax: Any = None,
    dpi: int = 300,
    temp_dot: Any = None,
    temp_img: Any = None,
    show: bool = False,
    title: str | Sequence[str] | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Any:
    """Draw graphs side by side.

    Args:
        onx: models.
        ax: one matplotlib axis, or one per model, to draw on.
        dpi: accepted; SVG has no resolution.
        temp_dot: accepted; no other program draws.
        temp_img: an older name of `path`.
        show: show the figure, with `ax`.
        title: one title, or one per model.
        path: a file: ``.svg``, ``.png`` (with Pillow) or ``.txt``.

    Returns:
        The axis when one is given, else the SVG as a string.
    """
    if not onx:
        raise DrawingError("There is no model to draw.")
    titles = [title] if isinstance(title, str) else list(title or [])
    names = [titles[i] if i < len(titles) else f"graph {i + 1}" for i in range(len(onx))]
    pictures = [picture(as_proto(m), n) for m, n in zip(onx, names)]
    target = path if path is not None else temp_img
    if target is not None:
        _write(pictures, {n: as_proto(m) for n, m in zip(names, onx)}, Path(target), "")
    if ax is not None:
        return _on_axes(pictures, ax, show)
    return beside(pictures).svg()


def _write(pictures: list[Scene], graphs: Mapping[str, Any], path: Path, title: str) -> None:
    kind = path.suffix.lower()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {str(path.parent)!r} does not exist.")
    if kind == ".svg":
        path.write_text(beside(pictures, title).svg(), encoding="utf-8")
    elif kind == ".png":
        _write_png(beside(pictures, title), path)
    elif kind == ".txt":
        path.write_text(graphs_text(graphs), encoding="utf-8")
    else:
        raise DrawingError(f"{path.name!r}: use .svg, .png or .txt.")


def _write_png(scene: Scene, path: Path) -> None:
    try:
        scene.write_png(path)
    except ImportError as error:
        raise DrawingError(
            "A PNG needs the package Pillow (pip install pillow). SVG needs nothing: choose a "
            "file name that ends in .svg."
        ) from error


def graphs_text(graphs: Mapping[str, Any]) -> str:
    """Several graphs as text, one below the other."""
    rule = "-" * 60
    return "\n".join(
        f"{rule}\n{name}\n{rule}\n{onnx_simple_text_plot(model)}\n"
        for name, model in graphs.items()
    )


def _on_axes(pictures: list[Scene], ax: Any, show: bool) -> Any:
    axes = list(ax.ravel()) if isinstance(ax, np.ndarray) else ax if isinstance(ax, list) else [ax]
    if len(axes) not in {1, len(pictures)}:
        raise DrawingError(f"There are {len(pictures)} graphs and {len(axes)} axes.")
    for axis, scene in zip(axes, pictures if len(axes) > 1 else [beside(pictures)]):
        for shape in scene.shapes:
            _on_axis(axis, shape)
        axis.set_axis_off()
    if show:
        axes[0].figure.show()
    return ax


def _on_axis(axis: Any, shape: Shape) -> None:
    """One shape; matplotlib counts upwards."""
    if isinstance(shape, Line):
        xs, ys = zip(*shape.points)
        axis.plot(xs, [-y for y in ys], color=shape.colour, linewidth=0.8)
    elif isinstance(shape, Arrow):
        axis.plot(shape.tip[0], 2 - shape.tip[1], marker="v", color=shape.colour, markersize=2)
    elif isinstance(shape, Text):
        anchor = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
        weight = "bold" if shape.bold else "normal"
        style = {"ha": anchor, "fontsize": shape.size / 2, "fontweight": weight}
        axis.text(shape.x, -shape.y, shape.text, **style)
    elif shape.edge:  # the white ground is the axis' own
        right, bottom = shape.x + shape.width, -(shape.y + shape.height)
        corners = [shape.x, right, right, shape.x], [-shape.y, -shape.y, bottom, bottom]
        axis.fill(*corners, facecolor=shape.fill, edgecolor=shape.edge, linewidth=0.8, zorder=2)


def four_graphs(trained: Any) -> dict[str, onnx.ModelProto]:
    """The graphs of a forward–backward optimizer by what they do, in the order of a step.

    Args:
        trained: an `OrtGradientForwardBackwardOptimizer` that was fitted or built.
    """
    engine = trained.engine_
    graphs = {
        "model and its gradient": engine_gradient(trained),
        "loss and its gradient": engine.loss_onnx_,
        "penalty and its gradient": engine.penalty_onnx_,
        "weight update": engine.update_onnx_,
    }
    return {name: graph for name, graph in graphs.items() if graph is not None}


def engine_gradient(trained: Any) -> onnx.ModelProto:
    """The gradient graph without the halves that its metadata carries."""
    model = as_proto(trained.train_session_._trained_onnx)
    del model.metadata_props[:]
    return model


def plot_four_graphs(
    trained: Any, path: str | os.PathLike[str] | None = None, title: str = "", ax: Any = None
) -> Any:
    """Draw the four graphs of the second API side by side, with shapes and parameter names.

    Args:
        trained: an `OrtGradientForwardBackwardOptimizer` that was fitted or built.
        path: a file: ``.svg``, ``.png`` (with Pillow) or ``.txt``.
        title: headline of the picture.
        ax: matplotlib axes to draw on.

    Returns:
        The axis when one is given, else the SVG as a string.
    """
    graphs = four_graphs(trained)
    pictures = _pictures(graphs, {*trained.train_session_.weights_to_train, "params"})
    if path is not None:
        _write(pictures, graphs, Path(path), title)
    return _on_axes(pictures, ax, False) if ax is not None else beside(pictures, title).svg()
