"""Quantisation-aware training: a model that rounds as its integers will, and learns with that."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

from ..errors import QuantizationError, UnknownNameError, model_errors
from ..graph import ModelLike, load
from ..graph.io import deliver
from ..graph.schema import MAX_OPSET
from ..normalize import lift_constants, normalize
from ..normalize.custom_types import infer_with_custom
from ..normalize.few_bits import raise_version
from .constants import value_of
from .continued import has_integer_operators, is_quantized, reopen
from .fake import Quantizer, Writer
from .folding import fold_batch_norms
from .observers import CalibrationData, Observed, check_method, observe
from .places import (
    Activation,
    QuantizedLayer,
    find_activations,
    find_quantized_layers,
    matches,
    root_of,
)
from .scales import (
    ACTIVATIONS,
    NEWEST,
    WEIGHT_OBSERVERS,
    WEIGHTS,
    activation_start,
    weight_start,
)

PREPARED = "onnxtrain.qat"
"""Metadata key of models with fake quantisation: JSON, what was asked for and what is learned."""
OLDEST = 13
"""From here on QuantizeLinear has scales along an axis."""


@dataclass(frozen=True)
class _Options:
    weight_bits: int
    activation_bits: int | None
    per_channel: bool
    weight_observer: str
    learn_scales: bool
    overrides: Mapping[str, int] = field(default_factory=dict)

    def check(self) -> None:
        for bits in (self.weight_bits, *self.overrides.values()):
            if bits not in WEIGHTS:
                raise QuantizationError(
                    f"Weights of {bits!r} bits cannot be trained: ONNX and onnxruntime have types "
                    f"of {' and '.join(map(str, WEIGHTS))} bits. Use weight_bits=8 or 4."
                )
        if self.activation_bits is not None and self.activation_bits not in ACTIVATIONS:
            raise QuantizationError(
                f"Activations of {self.activation_bits!r} bits cannot be trained: use "
                f"activation_bits={', '.join(map(str, ACTIVATIONS))}, or None to leave them floats."
            )
        if self.weight_observer not in WEIGHT_OBSERVERS:
            raise QuantizationError(
                f"There is no observer of weights {self.weight_observer!r}. Use one of "
                f"{', '.join(WEIGHT_OBSERVERS)}."
            )

    @property
    def opset(self) -> int:
        """The first opset that has the types."""
        bits = {self.weight_bits, self.activation_bits, *self.overrides.values()}
        return OLDEST if bits.isdisjoint(NEWEST) else MAX_OPSET

    def check_names(self, layers: Sequence[QuantizedLayer]) -> None:
        """Raise if bits were asked for a layer that is not there."""
        for pattern in self.overrides:
            if not any(matches(layer, pattern) for layer in layers):
                raise UnknownNameError("layer", pattern, [layer.name for layer in layers])

    def bits_of(self, layer: QuantizedLayer) -> int:
        fitting = [bits for pattern, bits in self.overrides.items() if matches(layer, pattern)]
        return fitting[-1] if fitting else self.weight_bits


@model_errors("Preparing quantisation-aware training")
def prepare_qat(
    model: ModelLike,
    calibration: CalibrationData | None = None,
    *,
    weight_bits: int = 8,
    activation_bits: int | None = 8,
    per_channel: bool = True,
    observer: str = "minmax",
    percentile: float = 99.99,
    calibration_rows: int = 256,
    weight_observer: str = "mse",
    learn_scales: bool = True,
    fold_batch_norm: bool = True,
    exclude: Sequence[str] = (),
    overrides: Mapping[str, int] | None = None,
    output: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """A model of floats that rounds weights and activations as integers would; train it as any.

    Weights of Conv, ConvTranspose, Gemm and MatMul and what these read (and what convolutions
    give) pass a QuantizeLinear and a DequantizeLinear. Gradients pass straight through the
    rounding; scales are learned too (LSQ). `convert` makes the model with integers of what was
    trained.

    A model that is quantised already (QDQ, by this package or by onnxruntime's tool) goes on: its
    integers become floats to train, its scales are where the learned ones begin, and calibration
    and settings about bits are not looked at.

    Args:
        model: path, bytes, ModelProto or `onnx_ir.Model`; it is not changed.
        calibration: rows of the inputs, from which the ranges of activations follow: an array, one
            array per input, a dict by name (others in it are ignored), or batches that are dicts.
        weight_bits: 8 or 4.
        activation_bits: 8, 16 or 4; None leaves activations floats, and needs no calibration.
        per_channel: a scale for each output of a weight, not one for all.
        observer: "minmax", "percentile" or "entropy" (onnxruntime's), for activations.
        percentile: share of the values, in %, that the observer of that name leaves inside.
        calibration_rows: how many rows are used at most.
        weight_observer: where scales of weights begin: "mse", nearest to the floats, or "minmax".
        learn_scales: train the scales; otherwise they stay where they begin.
        fold_batch_norm: put BatchNormalization into the weights before it, as it will be deployed.
        exclude: layers that stay floats, by name or pattern; see the names with
            `onnxtrain.lora.layers`.
        overrides: bits of the weights of some layers, by name or pattern: ``{"fc2": 8}``.
        output: also write the model to this path.

    Raises:
        QuantizationError: there is nothing to quantise, too few rows, or bits that there are not.
    """
    options = _Options(
        weight_bits, activation_bits, per_channel, weight_observer, learn_scales, overrides or {}
    )
    options.check()
    check_method(observer, percentile)
    base = lift_constants(load(model))
    if PREPARED in base.metadata_props:
        return deliver(base, output)
    refuse_operators(base)
    if is_quantized(base):
        writer = reopen(_typed(base, OLDEST), learn_scales)
        return deliver(_described(writer, options), output)
    base = _typed(base, options.opset)
    if fold_batch_norm:
        fold_batch_norms(base)
    layers = find_quantized_layers(base, exclude)
    if not layers:
        raise QuantizationError(
            "There is nothing to quantise: the model has no Conv, ConvTranspose, Gemm or MatMul "
            "with a stored float32 weight in its main graph"
            + (" that is not excluded." if exclude else ".")
        )
    options.check_names(layers)
    observed: dict[str, Observed] = {}
    activations: list[Activation] = []
    if activation_bits is not None:
        activations = find_activations(base, layers, integer_kernels=activation_bits == 8)
    if activations:
        if calibration is None:
            raise QuantizationError(
                "Ranges of activations need data: pass `calibration`, some hundred rows of the "
                "training inputs, or activation_bits=None to quantise weights only."
            )
        names = [a.value.name or "" for a in activations]
        observed = observe(base, names, calibration, observer, percentile, calibration_rows)
    writer = _write(base, layers, activations, observed, options)
    return deliver(_described(writer, options), output)


def refuse_operators(model: ir.Model) -> None:
    """Raise for a model whose operators work on integers; those hide their floats."""
    hidden = has_integer_operators(model)
    if hidden:
        raise QuantizationError(
            f"The model is quantised with operators on integers ({hidden}), which cannot be "
            "trained further. Start from the model of floats, or quantise it as QDQ "
            "(onnxruntime.quantization.quantize_static with QuantFormat.QDQ, with opset 21 for "
            "4 or 16 bits)."
        )


def _typed(model: ir.Model, opset: int) -> ir.Model:
    """The model with types, at least at an opset."""
    version = model.opset_imports[""]
    if version >= opset:
        return infer_with_custom(model)
    model = normalize(model)
    if model.opset_imports[""] < opset and not raise_version(model):
        raise QuantizationError(
            f"Integers of 4 or 16 bits need opset {MAX_OPSET}, and the model has operators that "
            f"mean something else there. Export it with opset {MAX_OPSET}, or use 8 bits."
        )
    return infer_with_custom(model)


def _write(
    model: ir.Model,
    layers: Sequence[QuantizedLayer],
    activations: Sequence[Activation],
    observed: Mapping[str, Observed],
    options: _Options,
) -> Writer:
    writer = Writer(model, options.learn_scales)
    roots = {layer.node: [root_of(v) for v in layer.data] for layer in layers}
    quantizers: dict[ir.Value, Quantizer] = {}
    for activation in activations:
        name = activation.value.name or ""
        assert options.activation_bits is not None
        seen = observed[name]
        start = activation_start(seen.low, seen.high, seen.size, options.activation_bits)
        quantizers[activation.value] = writer.quantizer(name, start)
    of_weights: dict[tuple[ir.Value, int | None, int], Quantizer] = {}
    for layer in layers:
        if layer.weight is None:
            continue
        weights = _weight_quantizer(writer, layer, options, of_weights)
        data = quantizers.get(roots[layer.node][0])
        if data is not None and _has_integer_bias(layer, options):
            writer.bias(layer.node, 2, data, weights)
        writer.weight(layer.node, layer.weight, weights)
    for activation in activations:
        value = activation.value
        writer.activation(value, activation.readers, quantizers[value])
    writer.finish()
    return writer


def _weight_quantizer(
    writer: Writer,
    layer: QuantizedLayer,
    options: _Options,
    known: dict[tuple[ir.Value, int | None, int], Quantizer],
) -> Quantizer:
    """That of a layer's weight; layers that share the weight share it."""
    assert layer.weight is not None
    value = layer.node.inputs[layer.weight]
    assert value is not None
    axis, bits = (layer.axis if options.per_channel else None), options.bits_of(layer)
    key = value, axis, bits
    if key not in known:
        array = value_of(value)
        assert array is not None
        start = weight_start(array, bits, axis, options.weight_observer)
        known[key] = writer.quantizer(value.name or layer.name, start)
    return known[key]


def _has_integer_bias(layer: QuantizedLayer, options: _Options) -> bool:
    """Whether integer kernels will add the bias, in int32."""
    node = layer.node
    if node.op_type == "MatMul" or (options.bits_of(layer), options.activation_bits) != (8, 8):
        return False
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    array = value_of(bias)
    plain = all(
        name not in node.attributes or node.attributes[name].value == 1.0
        for name in ("alpha", "beta")
    )
    groups = node.attributes.get_int("group", 1) if node.op_type == "ConvTranspose" else 1
    return array is not None and array.ndim == 1 and plain and groups == 1


def _described(writer: Writer, options: _Options) -> ir.Model:
    model = writer.model
    noted: dict[str, Any] = {
        "version": 1,
        "weight_bits": options.weight_bits,
        "activation_bits": options.activation_bits,
        "scales": writer.factors,
    }
    model.metadata_props[PREPARED] = json.dumps(noted)
    return model
