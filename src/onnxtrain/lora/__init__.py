"""LoRA: adapt a large model by training two small matrices beside each chosen layer.

    adapted = lora.add("model.onnx", targets="q_proj|v_proj", rank=8, alpha=16)
    onnxtrain.generate_artifacts(adapted, loss=…, optimizer=…, artifact_directory="run")
    …                                                    train as any other model
    adapter = lora.Adapter.of(adapted, "run/checkpoint")
    lora.merge("model.onnx", adapter, output="merged.onnx")

Only the adapters are trained, and checkpoints hold nothing else. An adapter is written for PEFT
(`save_peft`) or for onnxruntime (`save_onnx_adapter`, with `with_inputs` for the base), and read
back from either.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from ..errors import AdapterError as AdapterError
from ..errors import model_errors
from ..graph import ModelLike, load
from ..graph.io import deliver
from ..normalize.constants import lift_constants
from .adapter import Adapter as Adapter
from .adapter import LayerAdapter as LayerAdapter
from .add import add_adapters, start_values
from .config import Config as Config
from .layers import Layer as Layer
from .layers import find_layers
from .merge import merge_into
from .onnx_adapter import base_with_inputs
from .onnx_adapter import load_onnx_adapter as load_onnx_adapter
from .onnx_adapter import save_onnx_adapter as save_onnx_adapter
from .peft import load_peft as load_peft
from .peft import save_peft as save_peft
from .targets import ALL
from .values import fingerprint

Output = str | os.PathLike[str] | None


def layers(model: ModelLike) -> list[Layer]:
    """The layers that adapters can be added to, with their names and sizes."""
    return find_layers(_base(model))


@model_errors("Adding adapters")
def add(
    model: ModelLike,
    targets: str | Sequence[str] = ALL,
    rank: int = 8,
    alpha: float = 16.0,
    dropout: float = 0.0,
    *,
    use_rslora: bool = False,
    use_dora: bool = False,
    modules_to_save: Sequence[str] = (),
    seed: int = 0,
    output: Output = None,
) -> onnx.ModelProto:
    """A model with adapters beside its layers, which alone are trained.

    Args:
        model: path, bytes, ModelProto or `onnx_ir.Model`; it is not changed.
        targets: "all-linear" (all linear layers but the one that gives an output); a regular
            expression for names of layers or their last parts, such as ``q_proj|v_proj``; or a list
            of names, last parts, or patterns with ``*``. `layers` tells the names.
        rank: of the update of each weight.
        alpha: the update is multiplied by alpha ÷ rank.
        dropout: share of a layer's inputs that its adapter does not see while training.
        use_rslora: multiply by alpha ÷ √rank instead.
        use_dora: learn the norm of each output's weights apart from their direction.
        modules_to_save: parameters or layers of the model that are trained in full beside the
            adapters: a new head, say.
        seed: of the values to begin with.
        output: also write the model to this path; weights that lie beside it stay there.

    Raises:
        AdapterError: the targets match nothing, or the rank does not fit.
    """
    config = Config(rank, alpha, dropout, use_rslora, use_dora)
    values = start_values(config, seed)
    adapted, description = add_adapters(_base(model), targets, config, values, modules_to_save)
    description.write(adapted)
    return deliver(adapted, output)


@model_errors("Attaching the adapter")
def attach(model: ModelLike, adapter: Adapter, *, output: Output = None) -> onnx.ModelProto:
    """A base model with an adapter that exists, to go on training it."""
    base = _base(model)
    names = [layer.name for layer in adapter.matched(find_layers(base))]
    saved = list(adapter.saved)
    adapted, description = add_adapters(base, names, adapter.config, adapter.values(), saved)
    adapter.check_base(description.base)
    for name, array in adapter.saved.items():
        adapted.graph.initializers[name].const_value = ir.tensor(array, name=name)
    description.write(adapted)
    return deliver(adapted, output)


@model_errors("Merging the adapter")
def merge(model: ModelLike, adapter: Adapter, *, output: Output = None) -> onnx.ModelProto:
    """The base model with an adapter in its weights: same inputs, same outputs, nothing beside.

    Layers whose weights are quantised become layers of floats.
    """
    return deliver(merge_into(_base(model), adapter), output)


@model_errors("Making inputs for adapters")
def with_inputs(
    model: ModelLike, adapters: Adapter | Sequence[Adapter], *, output: Output = None
) -> onnx.ModelProto:
    """The base model with inputs for what `save_onnx_adapter` writes; they may be left out.

    Args:
        model: the base.
        adapters: one, or several for the same base: every layer that one of them adapts has inputs.
        output: also write the model to this path.
    """
    base = _base(model)
    several = [adapters] if isinstance(adapters, Adapter) else adapters
    known = find_layers(base)
    names: dict[str, None] = {}
    for adapter in several:
        chosen = adapter.matched(known)
        adapter.check_base(fingerprint(chosen))
        names.update(dict.fromkeys(layer.name for layer in chosen))
    return deliver(base_with_inputs(base, list(names)), output)


def _base(model: ModelLike) -> ir.Model:
    """A model whose weights are initializers, also those that came as Constant nodes."""
    return lift_constants(load(model))
