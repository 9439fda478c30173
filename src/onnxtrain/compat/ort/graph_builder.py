"""From a model to its gradient model, the two halves around a YieldOp, and what is in them."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import onnx
import onnx_ir as ir

from ...compile import Plan, differentiate, forward_model, gradients
from ...errors import ModelError, StateError, UnknownNameError
from ...graph import load, to_proto
from ...graph.io import parsed
from ...graph.sound import check_sound
from ...passes.draws import draw_from_counter
from ...passes.partition import Partition, partition
from ...passes.schedule import schedule
from ...runtime.files.readfile import ALLOWED_BYTES, GROWTH
from .fields import Fields

METADATA = "onnxtrain.partition"
MICROSOFT = "com.microsoft"


class Severity(IntEnum):
    """How serious a message must be to be logged."""

    VERBOSE = 0
    INFO = 1
    WARNING = 2
    ERROR = 3
    FATAL = 4


class PropagateCastOpsStrategy(IntEnum):
    """How casts of mixed-precision models would be moved; kept for scripts that name one."""

    NONE = 0
    INSERT_AND_REDUCE = 1
    FLOOD_FILL = 2


@dataclass
class PropagateCastOpsConfiguration(Fields):
    """Part of `TrainingGraphTransformerConfiguration`; onnxtrain moves no casts."""

    strategy: PropagateCastOpsStrategy = PropagateCastOpsStrategy.FLOOD_FILL
    level: int = 1
    allow: list[str] = field(default_factory=list)


@dataclass
class TrainingGraphTransformerConfiguration(Fields):
    """Wishes for the graph before it is differentiated.

    `optimized_pre_grad_filepath` is honoured: the forward model is written there. The others chose
    between kernels and memory plans of another runtime; they are accepted and change nothing,
    because what is computed again in the backward half is chosen by size here.
    """

    enable_gelu_approximation: bool = False
    attn_dropout_recompute: bool = False
    gelu_recompute: bool = False
    transformer_layer_recompute: bool = False
    number_recompute_layers: int = 0
    enable_compute_optimizer: bool = False
    print_input_density: bool = False
    optimized_pre_grad_filepath: str = ""
    propagate_cast_ops_config: PropagateCastOpsConfiguration = field(
        default_factory=PropagateCastOpsConfiguration
    )


@dataclass
class OrtModuleGraphBuilderConfiguration(Fields):
    """What `OrtModuleGraphBuilder` shall build.

    Attributes:
        initializer_names: weights that become inputs, in this order, after the model's own.
        initializer_names_to_train: those of them whose gradients are wanted, in this order.
        input_names_require_grad: inputs of the model whose gradients are wanted.
        build_gradient_graph: false for the forward model alone.
        graph_transformer_config: the older place of what `build` takes today.
        use_memory_efficient_gradient: accepted; the backward half always keeps as little as it can.
        enable_caching: accepted; values that cross from one half to the other are never copied.
        loglevel: accepted.
    """

    initializer_names: Sequence[str] = field(default_factory=list)
    initializer_names_to_train: Sequence[str] = field(default_factory=list)
    input_names_require_grad: Sequence[str] = field(default_factory=list)
    use_memory_efficient_gradient: bool = False
    build_gradient_graph: bool = True
    enable_caching: bool = False
    loglevel: int = Severity.WARNING
    graph_transformer_config: TrainingGraphTransformerConfiguration = field(
        default_factory=TrainingGraphTransformerConfiguration
    )


@dataclass
class GraphInfo:
    """Names and positions in the models that were built."""

    user_input_names: list[str] = field(default_factory=list)
    user_input_grad_names: dict[str, str] = field(default_factory=dict)
    initializer_names: list[str] = field(default_factory=list)
    initializer_names_to_train: list[str] = field(default_factory=list)
    initializer_grad_names_to_train: list[str] = field(default_factory=list)
    user_output_names: list[str] = field(default_factory=list)
    output_grad_indices_non_differentiable: list[int] = field(default_factory=list)
    output_grad_indices_require_full_shape: list[int] = field(default_factory=list)
    module_output_indices_requires_save_for_backward: list[int] = field(default_factory=list)
    frontier_node_arg_map: dict[str, str] = field(default_factory=dict)
    cached_node_arg_names: list[str] = field(default_factory=list)
    module_output_gradient_name: list[str] = field(default_factory=list)


class OrtModuleGraphBuilder:
    """Builds the gradient model that a `TrainingAgent` runs.

    The gradient model takes the model's inputs, then the weights; it returns ``<input>_grad``, then
    ``<weight>_grad``. Between its halves one node ``com.microsoft::YieldOp`` reads the outputs
    and gives their gradients; all other nodes are standard operators. The model carries a function
    of that name, so that any onnxruntime loads it, and its two halves in its metadata.

    Example:
        >>> import onnx.parser
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] w = {1, 2}> { Y = MatMul(X, w) }
        ... ''')
        >>> config = OrtModuleGraphBuilderConfiguration()
        >>> config.initializer_names = config.initializer_names_to_train = ["w"]
        >>> builder = OrtModuleGraphBuilder()
        >>> builder.initialize(model.SerializeToString(), config)
        >>> builder.build()
        >>> gradient = onnx.load_from_string(builder.get_gradient_model())
        >>> [i.name for i in gradient.graph.input], [o.name for o in gradient.graph.output]
        (['X', 'w'], ['w_grad'])
    """

    def __init__(self) -> None:
        self._source: ir.Model | None = None
        self._config = OrtModuleGraphBuilderConfiguration()
        self._info = GraphInfo()
        self._forward: onnx.ModelProto | None = None
        self._gradient: onnx.ModelProto | None = None

    def initialize(self, model: bytes, config: OrtModuleGraphBuilderConfiguration) -> None:
        """Read the model and check the configuration against it."""
        loaded = load(model)
        known = list(loaded.graph.initializers)
        for name in config.initializer_names:
            if name not in known:
                raise UnknownNameError("initializer", name, known)
        for name in config.initializer_names_to_train:
            if name not in config.initializer_names:
                raise UnknownNameError(
                    "weight in initializer_names", name, list(config.initializer_names)
                )
        inputs = [v.name or "" for v in loaded.graph.inputs if v.name not in known]
        for name in config.input_names_require_grad:
            if name not in inputs:
                raise UnknownNameError("input", name, inputs)
        self._source, self._config = loaded, config
        self._forward = self._gradient = None
        self._info = GraphInfo(
            user_input_names=inputs,
            initializer_names=list(config.initializer_names),
            initializer_names_to_train=list(config.initializer_names_to_train),
            user_output_names=[o.name or "" for o in loaded.graph.outputs],
        )

    def build(
        self,
        config: TrainingGraphTransformerConfiguration | None = None,
        input_shapes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Build the models, with or without a configuration of the transformations.

        Args:
            config: see `TrainingGraphTransformerConfiguration`.
            input_shapes: sizes that the inputs will always have, one list per input of the model.
        """
        if self._source is None:
            raise StateError("Call initialize(model, configuration) before build().")
        config = config or self._config.graph_transformer_config
        model = self._source.clone()
        if input_shapes is not None:
            _fix_shapes(model, self._info.user_input_names, input_shapes)
        plan = self._plan(model)
        forward = forward_model(plan)
        _order_inputs(forward, [*self._info.user_input_names, *self._info.initializer_names])
        self._forward = to_proto(forward)
        if config.optimized_pre_grad_filepath:
            onnx.save(self._forward, config.optimized_pre_grad_filepath)
        self._gradient = None
        if self._config.build_gradient_graph:
            self._gradient = self._build_gradient(plan)

    def _plan(self, model: ir.Model) -> Plan:
        trained = set(self._config.initializer_names_to_train)
        with_gradient = set(self._config.input_names_require_grad)
        return Plan(
            model,
            trainable=self._info.initializer_names_to_train,
            frozen=[n for n in self._info.initializer_names if n not in trained],
            inputs=[n for n in self._info.user_input_names if n in with_gradient],
            vjp=True,
            unused="zeros",
            update_statistics=False,
        )

    def _build_gradient(self, plan: Plan) -> onnx.ModelProto:
        info = self._info
        wrt = [*plan.inputs, *info.initializer_names_to_train]
        if not wrt:
            raise ModelError(
                "There is nothing to differentiate: name weights in initializer_names_to_train, "
                "inputs in input_names_require_grad, or set build_gradient_graph to False."
            )
        built = gradients(plan)
        if not built.seeds:
            raise ModelError(f"No output of the model depends on any of {', '.join(wrt)}.")
        model, names = built.model, built.gradients
        targets = set(built.seeds)
        by_name = {v.name: v for v in model.graph.inputs}
        seeds = [by_name[n] for n in built.seeds.values()]
        info.output_grad_indices_non_differentiable = [
            i for i, n in enumerate(info.user_output_names) if n not in targets
        ]
        info.output_grad_indices_require_full_shape = [
            i for i, n in enumerate(info.user_output_names) if n in targets
        ]
        info.module_output_gradient_name = list(built.seeds.values())
        info.user_input_grad_names = {n: names[n] for n in plan.inputs}
        info.initializer_grad_names_to_train = [names[n] for n in info.initializer_names_to_train]
        _order_inputs(
            model,
            [*info.user_input_names, *info.initializer_names, *info.module_output_gradient_name],
        )
        _insert_yield(model, seeds, [names[n] for n in wrt], info)
        proto = to_proto(model)
        _add_yield_function(proto)
        parts = split(proto)
        info.module_output_indices_requires_save_for_backward = [
            i for i, n in enumerate(info.user_output_names) if n in parts.saved
        ]
        _embed(proto, parts)
        return proto

    def get_gradient_model(self) -> bytes:
        """The serialized gradient model."""
        if self._gradient is None:
            raise StateError("There is no gradient model: build() has not made one.")
        return bytes(self._gradient.SerializeToString())

    def get_forward_model(self) -> bytes:
        """The serialized forward model: inputs, then weights → outputs."""
        if self._forward is None:
            raise StateError("There is no forward model yet: call build().")
        return bytes(self._forward.SerializeToString())

    get_model = get_gradient_model
    get_inference_optimized_model = get_forward_model

    def get_graph_info(self) -> GraphInfo:
        """Names and positions in the models."""
        return self._info


class GradientGraphBuilder:
    """Adds the gradients of a loss to a serialized model as outputs ``<name>_grad``.

    Args:
        model: the model, serialized.
        y_node_arg_names: its outputs; kept for compatibility, the loss must be among them.
        x_node_arg_names: inputs and initializers whose gradients are wanted.
        loss_node_arg_name: the scalar output that is differentiated.
        options: accepted, unused.
    """

    def __init__(
        self,
        model: bytes,
        y_node_arg_names: Sequence[str] | set[str],
        x_node_arg_names: Sequence[str] | set[str],
        loss_node_arg_name: str,
        options: Any = None,
    ) -> None:
        if loss_node_arg_name not in y_node_arg_names:
            raise UnknownNameError(
                "output to differentiate", loss_node_arg_name, sorted(y_node_arg_names)
            )
        self._source = load(model)
        graph = self._source.graph
        known = list(dict.fromkeys([*(v.name or "" for v in graph.inputs), *graph.initializers]))
        for name in x_node_arg_names:
            if name not in known:
                raise UnknownNameError("input or initializer", name, known)
        self._wrt = [n for n in known if n in x_node_arg_names]
        self._loss = loss_node_arg_name
        self._model: onnx.ModelProto | None = None

    def build(self) -> None:
        """Compute the gradient graph."""
        self._model = differentiate(self._source, wrt=self._wrt, of=self._loss)

    def get_model(self) -> bytes:
        """The model with its gradients, serialized."""
        if self._model is None:
            raise StateError("Call build() first.")
        return bytes(self._model.SerializeToString())

    def save(self, path: str) -> None:
        """Write the model with its gradients to a file."""
        content = self.get_model()
        with open(path, "wb") as file:
            file.write(content)


# -- the YieldOp and the halves around it ----------------------------------------------------------


def split(gradient: onnx.ModelProto | bytes | str) -> Partition:
    """Cut a gradient model at its YieldOp.

    Random operators of the halves draw from a counter that `TrainingAgent` feeds; the gradient
    model itself, whose inputs are the user's, keeps them as they are.
    """
    model = load(gradient)
    graph = model.graph
    nodes = [n for n in graph if n.op_type == "YieldOp" and n.domain == MICROSOFT]
    if len(nodes) != 1:
        raise ModelError(
            f"A gradient model has one node com.microsoft::YieldOp, this one has {len(nodes)}. "
            "Make it with OrtModuleGraphBuilder.get_gradient_model()."
        )
    node = nodes[0]
    outputs = [v for v in node.inputs if v is not None]
    seeds = list(node.outputs)
    gradients = [o.name or "" for o in graph.outputs]
    new = [ir.Value(name=s.name, type=s.type or _type_of(s, outputs), shape=s.shape) for s in seeds]
    for old, value in zip(seeds, new):
        old.replace_all_uses_with(value)
    graph.remove(node, safe=True)
    graph.inputs.extend(new)
    rest = list(graph.outputs)
    graph.outputs.clear()
    graph.outputs.extend([*outputs, *rest])
    model.functions.pop((MICROSOFT, "YieldOp", ""), None)
    model.opset_imports.pop(MICROSOFT, None)
    model.metadata_props.pop(METADATA, None)
    schedule(draw_from_counter(model).graph)
    return partition(model, [v.name or "" for v in new], gradients)


def _type_of(seed: ir.Value, outputs: Sequence[ir.Value]) -> ir.TypeProtocol | None:
    """The type of an output's gradient is the output's."""
    stem = (seed.name or "").removesuffix("_external").removesuffix("_grad")
    return next((o.type for o in outputs if o.name == stem), outputs[0].type)


def embedded(metadata: Any) -> Partition | None:
    """The halves that a gradient model carries in its metadata, None if it has none."""
    text = metadata.get(METADATA)
    if text is None:
        return None
    try:
        packed = json.loads(text)
        forward, backward = (_unpacked(packed[half]) for half in ("forward", "backward"))
        names = [[str(name) for name in packed[key]] for key in ("saved", "outputs")]
    except (ModelError, ValueError, TypeError, LookupError, RecursionError, zlib.error) as error:
        raise ModelError(
            f"The model's metadata {METADATA!r} do not hold its two halves ({error}). Use the "
            "bytes of OrtModuleGraphBuilder.get_gradient_model() as they are."
        ) from error
    return Partition(forward, backward, *names)


def _unpacked(text: str) -> onnx.ModelProto:
    """A model that was compressed; one that grows beyond all proportion is refused."""
    data = base64.b64decode(text)
    decoder = zlib.decompressobj()
    content = decoder.decompress(data, max(GROWTH * len(data), ALLOWED_BYTES))
    if not decoder.eof:
        raise ValueError("cut off, or far larger than what a model grows to")
    model = parsed(content, "the half of a model")
    if check_sound(model, "the half of a model"):
        raise ValueError("they name other files")
    return model


def _embed(proto: onnx.ModelProto, parts: Partition) -> None:
    packed: dict[str, Any] = {
        half: base64.b64encode(zlib.compress(model.SerializeToString(), 1)).decode("ascii")
        for half, model in (("forward", parts.forward), ("backward", parts.backward))
    }
    packed.update(saved=parts.saved, outputs=parts.outputs)
    onnx.helper.set_model_props(
        proto,
        {**{p.key: p.value for p in proto.metadata_props}, METADATA: json.dumps(packed)},
    )


def _insert_yield(
    model: ir.Model, seeds: Sequence[ir.Value], gradients: Sequence[str], info: GraphInfo
) -> None:
    """Put the node that reads the outputs and gives their gradients between the halves."""
    graph = model.graph
    by_name = {o.name: o for o in graph.outputs}
    outputs = [by_name[n] for n in info.user_output_names]
    attributes = [ir.AttrInt64s("full_shape_outputs", info.output_grad_indices_require_full_shape)]
    if info.output_grad_indices_non_differentiable:
        attributes.append(
            ir.AttrInt64s("non_differentiable_outputs", info.output_grad_indices_non_differentiable)
        )
    node = ir.Node(
        MICROSOFT, "YieldOp", outputs, attributes, num_outputs=len(seeds), name="YieldOp"
    )
    for seed, result in zip(seeds, node.outputs):
        result.name, result.type, result.shape = seed.name, seed.type, seed.shape
        seed.replace_all_uses_with(result)
        graph.inputs.remove(seed)
    graph.append(node)
    graph.outputs.clear()
    graph.outputs.extend(by_name[g] for g in gradients)
    graph.sort()
    model.opset_imports[MICROSOFT] = 1


def _add_yield_function(proto: onnx.ModelProto) -> None:
    """A body for YieldOp, which stock onnxruntime does not know: gradient = output."""
    (node,) = (n for n in proto.graph.node if n.op_type == "YieldOp" and n.domain == MICROSOFT)
    skipped = {i for a in node.attribute if a.name == "non_differentiable_outputs" for i in a.ints}
    inputs = [f"output_{i}" for i in range(len(node.input))]
    differentiable = [name for i, name in enumerate(inputs) if i not in skipped]
    results = [f"{name}_grad" for name in differentiable]
    body = [onnx.helper.make_node("Identity", [a], [b]) for a, b in zip(differentiable, results)]
    opset = next(o for o in proto.opset_import if o.domain in {"", "ai.onnx"})
    proto.functions.append(
        onnx.helper.make_function(
            MICROSOFT, "YieldOp", inputs, results, body, [opset], [a.name for a in node.attribute]
        )
    )


def _order_inputs(model: ir.Model, names: Sequence[str]) -> None:
    values = {v.name: v for v in model.graph.inputs}
    model.graph.inputs.clear()
    model.graph.inputs.extend(values[n] for n in names)


def _fix_shapes(model: ir.Model, names: Sequence[str], shapes: Sequence[Sequence[int]]) -> None:
    if len(names) != len(shapes):
        raise ModelError(
            f"The model has {len(names)} inputs ({', '.join(names)}), and {len(shapes)} shapes "
            "were given."
        )
    values = {v.name: v for v in model.graph.inputs}
    for name, shape in zip(names, shapes):
        values[name].shape = ir.Shape(list(shape))
