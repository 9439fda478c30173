"""The models inside the onnx package: nine networks of the model zoo, and those of its backends."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
from onnx import numpy_helper

from ..cases import Array, OnnxCase

PACKAGES: list[str] = []
BATCH = 200
DATA = Path(onnx.backend.test.__file__).parent / "data"
FLOATS = (np.float32, np.float64)


def names() -> list[str]:
    """Paths without the file's name."""
    files = sorted(DATA.rglob("*.onnx"))
    return [os.fspath(_short(f.relative_to(DATA))) for f in files]


def case(name: str) -> OnnxCase:
    """A model with the inputs beside it, or random ones."""
    folder = DATA / name
    path = folder / "model.onnx" if folder.is_dir() else DATA / f"{name}.onnx"
    model = onnx.load(path)
    is_light = name.startswith("light")
    if is_light:
        _with_random_weights(model.graph)
    stored = {i.name for i in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in stored]
    return OnnxCase(
        model,
        {value.name: _feed(value, folder, i) for i, value in enumerate(inputs)},
        family=name.split(os.sep, maxsplit=1)[0],
        exporter="",
        timing=is_light,
    )


def _with_random_weights(graph: onnx.GraphProto) -> None:
    """These files leave out their weights: nodes fill them with one number.

    Random weights of a usual size are put in their place; biases, statistics and the like, which
    are vectors, get numbers around the one that was there.
    """
    rng = np.random.default_rng(0)
    shapes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    for node in [n for n in graph.node if n.op_type == "ConstantOfShape"]:
        shape = shapes[node.input[0]]
        (fill,) = numpy_helper.to_array(node.attribute[0].t).ravel()
        if len(shape) > 1:
            values = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        else:
            values = fill + rng.uniform(0.0, 0.1, shape)
        graph.node.remove(node)
        graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))


def _short(path: Path) -> Path:
    return path.parent if path.name == "model.onnx" else path.with_suffix("")


def _feed(value: onnx.ValueInfoProto, folder: Path, number: int) -> Array:
    stored = folder / "test_data_set_0" / f"input_{number}.pb"
    if stored.is_file():
        return numpy_helper.to_array(onnx.load_tensor(stored))
    kind = value.type.tensor_type
    shape = [d.dim_value or 1 for d in kind.shape.dim]
    values = np.random.default_rng(0).uniform(0, 1, shape)
    return values.astype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
