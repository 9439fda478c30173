"""onnxruntime's own adapters: ``.onnx_adapter`` files for a base whose adapters are inputs.

``onnxruntime.LoraAdapter`` loads them and ``RunOptions.add_active_adapter`` uses one for a run;
onnxruntime-genai takes them too. The file has tensors by name and two numbers; what scales A·B is
multiplied into B, so that adapters of any rank and scale fit the same base.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime

from ..errors import AdapterError
from ..runtime.files.atomic import write_atomically
from ..runtime.files.readfile import read_regular
from .adapter import Adapter, LayerAdapter
from .adapter_tables import read_tables
from .add import adapter_shapes, add_adapters, parameter_names
from .config import Config
from .layers import Layer
from .values import Array

DIGITS = 7
"""Of the fingerprint of the base, as many as the file's INT32 holds."""
RANK = "lora_rank"
"""How the names of the dimensions begin that adapters may choose. Each layer has its own:
onnxruntime takes equal names for equal sizes, and an adapter may leave layers out."""


def base_with_inputs(model: ir.Model, layers: str | Sequence[str]) -> ir.Model:
    """The base model with inputs for adapters; without any it computes what it did.

    Each adapted layer gets two inputs, A [inputs, rank] and B [rank, outputs], that may be left
    out: they have no columns then, or zeros for a convolution, and their product is zero.
    """
    config = Config(rank=1, alpha=1.0)

    def empty(layer: Layer) -> tuple[Array, Array, None]:
        rank = 1 if layer.kernel else 0  # onnxruntime's Conv does not fill what it sums nothing for
        a, b = (np.zeros(shape, layer.dtype.numpy()) for shape in adapter_shapes(layer, rank))
        return a, b, None

    model, description = add_adapters(model, layers, config, empty)
    for place in description.places:
        for name, axis in zip(place.parameters, (-1, 0)):
            _let_feed(model, name, axis, f"{RANK}.{place.layer}")
    return model


def _let_feed(model: ir.Model, name: str, axis: int, rank: str) -> None:
    """Make an initializer the default of an input that has any size along an axis."""
    value = model.graph.initializers[name]
    assert value.shape is not None
    dims: list[int | str] = [int(d) for d in value.shape.numpy()]
    if len(dims) > 2:
        axis = axis + 1  # of a convolution: A [rank, inputs, …], B [outputs, rank, …]
    dims[axis] = rank
    value.shape = ir.Shape(dims)
    model.graph.inputs.append(value)


def save_onnx_adapter(adapter: Adapter, path: str | os.PathLike[str]) -> None:
    """Write an adapter for onnxruntime."""
    if adapter.config.use_dora or adapter.saved:
        what = "use_dora" if adapter.config.use_dora else "modules_to_save"
        raise AdapterError(
            f"An .onnx_adapter holds A and B only; this adapter was trained with {what}. Merge it "
            "into the model, or save it for PEFT."
        )
    values = {}
    for name, layer in adapter.layers.items():
        a, b, _ = parameter_names(name)
        values[a] = _ortvalue(layer.a)
        values[b] = _ortvalue(layer.b * layer.b.dtype.type(adapter.config.scale))
    form = onnxruntime.AdapterFormat()
    form.set_adapter_version(1)
    form.set_model_version(model_version(adapter.base))
    form.set_parameters(values)
    with tempfile.TemporaryDirectory(prefix="onnxtrain-") as folder:
        written = Path(folder) / "adapter"
        form.export_adapter(str(written))
        write_atomically(path, [written.read_bytes()])


def load_onnx_adapter(path: str | os.PathLike[str]) -> Adapter:
    """Read an adapter of onnxruntime; its scale is 1, as it is part of B.

    Raises:
        AdapterError: the file is none, is damaged, or has other tensors than A and B.
    """
    where = repr(os.fspath(path))
    tables = read_tables(read_regular(path, AdapterError), where)
    layers = _layers(tables.values, where)
    ranks = {_rank(layer) for layer in layers.values()}
    if len(ranks) != 1:
        raise AdapterError(f"{where} has layers of several ranks ({sorted(ranks)}).")
    rank = ranks.pop()
    version = tables.model_version
    return Adapter(Config(rank, float(rank)), layers, f"{version:0{DIGITS}x}" if version else "")


def model_version(base: str) -> int:
    """What the file can say of its base: the beginning of the fingerprint."""
    return int(base[:DIGITS] or "0", 16)


def _layers(values: dict[str, Array], where: str) -> dict[str, LayerAdapter]:
    ends = [end.removeprefix("x") for end in parameter_names("x")[:2]]
    names = [name.removesuffix(ends[0]) for name in values if name.endswith(ends[0])]
    expected = {f"{name}{end}" for name in names for end in ends}
    odd = expected.symmetric_difference(values)
    if odd or not names:
        raise AdapterError(f"{where} is no adapter of A and B in pairs: see {sorted(odd)[:3]}.")
    if any(array.ndim < 2 for array in values.values()):
        raise AdapterError(f"{where} has tensors that are no matrices.")
    return {n: LayerAdapter(values[f"{n}{ends[0]}"], values[f"{n}{ends[1]}"]) for n in names}


def _rank(layer: LayerAdapter) -> int:
    return int(layer.a.shape[-1] if layer.a.ndim == 2 else layer.a.shape[0])


def _ortvalue(array: Array) -> onnxruntime.OrtValue:
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
