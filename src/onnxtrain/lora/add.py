"""Adapters into a model: beside each chosen layer a product of two small matrices."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ..errors import AdapterError, UnknownNameError
from ..graph import OpBuilder, Tensor
from ..graph.nodes import initializer
from ..graph.parameters import ADAPTERS, STOP_GRADIENT
from ..normalize import normalize
from .config import Config, Description, Place
from .layers import MS, Layer, find_layers
from .targets import choose
from .values import Array, fingerprint, weight_of

INPUT = ".lora_A.weight"
"""How the name of a layer's first matrix ends."""
OPSET = 13
"""From here on Dropout says by an input whether it trains, and ReduceSum has its axes there."""

Values = Callable[[Layer], tuple[Array, Array, "Array | None"]]
"""The values to begin with: A, B and, with DoRA, the norms (None: those of the weight)."""


def add_adapters(
    model: ir.Model,
    targets: str | Sequence[str],
    config: Config,
    values: Values,
    modules_to_save: Sequence[str] = (),
) -> tuple[ir.Model, Description]:
    """The model with adapters, and where it has them; the model given may be changed."""
    if ADAPTERS in model.metadata_props:
        raise AdapterError(
            "The model has adapters already. Go on training it as it is, take them out with "
            "onnxtrain.lora.Adapter.of and merge them, or add to the base model."
        )
    taken = next((n for n, v in model.graph.initializers.items() if _is_place(n, v)), None)
    if taken is not None:
        raise AdapterError(
            f"The model takes adapters as inputs ({taken!r}), as the base.onnx of a run does: give "
            "the model that it was made of."
        )
    if (config.dropout or config.use_dora) and model.opset_imports.get("", 1) < OPSET:
        model = normalize(model)
    layers = find_layers(model)
    chosen = choose(model, layers, targets, config)
    base = fingerprint(chosen)
    saved = _saved(model, layers, modules_to_save)
    writer = _Writer(model, config)
    places = [writer.adapt(layer, *values(layer)) for layer in chosen]
    writer.op.register_constants(model.graph, mark=True)
    return model, Description(config, base, places, saved)


def _is_place(name: str, value: ir.Value) -> bool:
    """Whether an initializer is an empty matrix that an adapter of onnxruntime's is put for."""
    return name.endswith(INPUT) and value.const_value is not None and not value.const_value.size


def start_values(config: Config, seed: int) -> Values:
    """Those of PEFT: A small and random, B zero, so that nothing changes before training."""
    rng = np.random.default_rng(seed)

    def values(layer: Layer) -> tuple[Array, Array, Array | None]:
        fan_in = layer.inputs * int(np.prod(layer.kernel, dtype=np.int64))
        bound = 1 / np.sqrt(fan_in)
        shapes = adapter_shapes(layer, config.rank)
        dtype = layer.dtype.numpy()
        return rng.uniform(-bound, bound, shapes[0]).astype(dtype), np.zeros(shapes[1], dtype), None

    return values


def adapter_shapes(layer: Layer, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of A and B: [inputs, rank] and [rank, outputs], or those of two convolutions."""
    if not layer.kernel:
        return (layer.inputs, rank), (rank, layer.outputs)
    ones = (1,) * len(layer.kernel)
    return (rank, layer.inputs, *layer.kernel), (layer.outputs, rank, *ones)


def parameter_names(layer: str) -> tuple[str, str, str]:
    """Names of A, B and the norms of a layer, as PEFT has them."""
    return f"{layer}{INPUT}", f"{layer}.lora_B.weight", f"{layer}.lora_magnitude_vector"


def _saved(model: ir.Model, layers: Sequence[Layer], patterns: Sequence[str]) -> list[str]:
    """The parameters of the model itself that are trained in full."""
    known = list(model.graph.initializers)
    names: dict[str, None] = {}
    for pattern in patterns:
        meant = [n for n in known if fnmatch.fnmatchcase(n, pattern) or n.startswith(f"{pattern}.")]
        ends = (pattern, f".{pattern}")
        meant += [layer.weight.name or "" for layer in layers if f".{layer.name}".endswith(ends)]
        if not meant:
            raise UnknownNameError("parameter or layer", pattern, known)
        names.update(dict.fromkeys(meant))
    return list(names)


class _Writer:
    """Writes adapters into a model."""

    def __init__(self, model: ir.Model, config: Config) -> None:
        self.graph, self.config = model.graph, config
        self.op = OpBuilder.on(model)

    def adapt(self, layer: Layer, a: Array, b: Array, magnitude: Array | None) -> Place:
        """The adapter of one layer."""
        names = parameter_names(layer.name)
        for name in names:
            if name in self.graph.initializers:
                raise AdapterError(
                    f"The model has a parameter {name!r} already: it has been adapted, and is no "
                    "base. Give the model without adapters; to go on with one, attach its files "
                    "to that model (onnxtrain.lora.attach; --adapter on the command line)."
                )
        left, right = self._parameter(names[0], a), self._parameter(names[1], b)
        factor: Tensor | None = None
        self.op.scope = f"{layer.name}.lora"
        if self.config.use_dora:
            norms = np.linalg.norm(weight_of(layer).astype(np.float64), axis=0)
            start = norms.astype(a.dtype) if magnitude is None else magnitude
            factor = self._direction(layer, left, right, self._parameter(names[2], start), norms)
            self.op.place(self.graph, before=layer.nodes[0])
        for node in layer.nodes:
            self._beside(layer, node, left, right, factor)
        return Place(layer.name, *names[:2], names[2] if factor is not None else "")

    def _parameter(self, name: str, array: Array) -> Tensor:
        self.op.names.reserve(name)
        return self.op.tensor(initializer(self.graph, name, array))

    def _beside(
        self, layer: Layer, node: ir.Node, a: Tensor, b: Tensor, factor: Tensor | None
    ) -> None:
        """Add what the adapter gives to what a node gives."""
        op, old = self.op, node.outputs[0]
        bias = _take_bias(node) if factor is not None else None
        x = self._typed(node.inputs[0], layer)
        if self.config.dropout:
            x = op.Dropout(x, self.config.dropout, np.array(True), seed=None)
        y = self._typed(old, layer)
        if layer.kernel:
            sum_ = y + op.exactly(
                "Conv", self._scaled(op.exactly("Conv", x, a, **_window(node))), b
            )
        else:
            sum_ = y + self._scaled(x @ a) @ b
        first = sum_.value.producer()
        if factor is not None:
            sum_ = sum_ * factor
        if bias is not None:
            sum_ = sum_ + self._typed(bias, layer)
        op.place(self.graph, after=node)
        new = sum_.value
        new.type, new.shape = old.type, old.shape
        name, is_output = old.name, old.is_graph_output()
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        assert first is not None
        first.replace_input_with(0, old)
        if is_output:
            old.name, new.name = f"{name}.base", name

    def _scaled(self, low: Tensor) -> Tensor:
        """On the way between A and B, where there is least to multiply."""
        return low if self.config.scale == 1 else low * self.config.scale

    def _typed(self, value: ir.Value | None, layer: Layer) -> Tensor:
        assert value is not None
        value.type = value.type or ir.TensorType(layer.dtype)
        return self.op.tensor(value)

    def _direction(
        self, layer: Layer, a: Tensor, b: Tensor, learned: Tensor, norms: Array
    ) -> Tensor:
        """Learned norms ÷ norms of the adapted weights, which are never formed.

        |w + s·A·b|² = |w|² + 2 s b·(Aᵀw) + s² b·(AᵀA b) for each output. As in PEFT (and as its
        paper proposes) the gradient takes the norms for constants.
        """
        op, scale = self.op, self.config.scale
        across = op.Transpose(a, perm=[1, 0])
        mixed = self._through(layer.nodes[0], across) * (2 * scale)
        own = (across @ a @ b) * scale**2
        squares = op.const((norms**2).astype(layer.dtype.numpy()))
        norm = op.Sqrt(squares + op.ReduceSum((mixed + own) * b, [0], keepdims=0))
        last = norm.value.producer()
        assert last is not None
        last.name = self.op.names.fresh(f"{STOP_GRADIENT}/{layer.name}")
        return learned / norm

    def _through(self, node: ir.Node, rows: Tensor) -> Tensor:
        """A layer applied to other rows, without its bias."""
        weights = [None if v is None else self.op.tensor(v) for v in node.inputs[1:5]]
        operands = [rows, *(weights if node.domain == MS else weights[:1])]
        attributes = {n: a.value for n, a in node.attributes.items() if n != "beta"}
        result = self.op.emit(node.op_type, operands, 1, domain=node.domain, **attributes)[0]
        result.value.type = ir.TensorType(rows.dtype)
        return result


def _take_bias(node: ir.Node) -> ir.Value | None:
    """Take the bias out of a node."""
    place = {"Gemm": 2, "MatMulNBits": 5}.get(node.op_type, len(node.inputs))
    if place >= len(node.inputs) or node.inputs[place] is None:
        return None
    beta = node.attributes.get("beta")
    if beta is not None and beta.as_float() != 1.0:
        raise AdapterError(f"use_dora does not fit {node.name!r}, a Gemm whose beta is not 1.")
    bias = node.inputs[place]
    node.resize_inputs(place)
    return bias


def _window(node: ir.Node) -> dict[str, object]:
    """How a convolution moves over its input."""
    names = ("auto_pad", "dilations", "pads", "strides", "kernel_shape")
    return {n: node.attributes[n].value for n in names if n in node.attributes}
