"""Says in the model which optimizers of onnxruntime have nothing to gain in it.

Who makes a session of it (`runtime/session/optimizers.py`) leaves them out: one that changes a
graph, be it in vain, has all shapes inferred again, a seventh of the time that a session takes.

Duplicates are merged by `clean_up`. Transpositions cannot be moved out of the way where the
backward half reads what lies between them: on twelve networks (ConvNeXt, Swin, MobileNetV3,
EfficientNet, ShuffleNet, detectors, an LSTM, a language model) a step took 0.95 to 1.01 of its time
without that optimizer. A frozen convolutional network that changes between layouts of images has
no such readers, and keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container
from typing import TypeAlias

import onnx_ir as ir

from ..graph.nodes import producer_of
from ..graph.subgraphs import subgraphs
from ..operators import (
    ACTIVATED,
    ACTIVATIONS,
    AT_THE_SPEED_OF_MEMORY,
    BIASED,
    IDLE_OPTIMIZERS,
    KERNEL,
    RANDOM,
    TRANSPOSED,
)
from .transposed import has_bias, is_left_to_onnxruntime, is_scale, only_reader

DUPLICATES, FOLDING = "CommonSubexpressionElimination", "ConstantFolding"
TRANSPOSING = ("TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider")
TRANSPOSED_PRODUCTS = "MatmulTransposeFusion"
PRODUCTS = frozenset({"MatMul"})
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
OF_NORMS = ("BiasSkipLayerNormFusion", "EmbedLayerNormFusion", "SkipLayerNormFusion")
Occurs: TypeAlias = "Callable[[ir.Node], bool]"
FOLDED_SHARE = 0.125
"""Of all nodes: what may depend on constants alone before it is worth while to fold it."""
MANY_ELEMENTS = 1000.0
"""What a node computes in the time that it takes to be called, about a microsecond."""
REPETITIONS = 20.0
"""How often the body of a loop is taken to run."""
COPYING = frozenset({"Add", "Concat", "Div", "Gather", "Mul", "Slice", "Split", "Sub"})
"""Operators that take about an eighth of the time that others take for as many elements."""
VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that copy nothing, not even constants: two million elements in 6 µs."""
GROWING = frozenset({"ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile"})
"""Operators whose results may be larger than all that they read."""
LATER = frozenset({"DequantizeLinear"})
"""What onnxruntime leaves as it is, though it reads constants only."""


def note_idle_optimizers(model: ir.Model) -> ir.Model:
    """Note that duplicates are merged, and what else there is no use for."""
    idle = [DUPLICATES]
    if not _can_be_folded(model.graph):
        idle.append(FOLDING)
    if not _has_frozen_layouts(model.graph):
        idle += TRANSPOSING
    if not is_left_to_onnxruntime(model):
        idle.append(TRANSPOSED_PRODUCTS)
    nodes = list(model.graph.all_nodes())
    for name, occurs in PATTERNS.items():
        matches = sum(map(occurs, nodes)) if name in RARE else any(map(occurs, nodes))
        if matches <= RARE.get(name, 0.0) * len(nodes):
            idle.append(name)
    model.metadata_props[IDLE_OPTIMIZERS] = ";".join(idle)
    return model


def _goes_into(operators: Collection[str], readers: Collection[str]) -> Occurs:
    """Nodes of some operators whose only reader is one of others."""

    def occurs(node: ir.Node) -> bool:
        reader = only_reader(node) if node.op_type in operators else None
        return reader is not None and reader.op_type in readers

    return occurs


def _is_read_once(operator: str) -> Occurs:
    return lambda node: node.op_type == operator and only_reader(node) is not None


def _comes_from(operator: str, place: int, sources: Collection[str]) -> Occurs:
    """Nodes of an operator whose operand at a place is made by one of some operators."""

    def occurs(node: ir.Node) -> bool:
        if node.op_type != operator or len(node.inputs) <= place:
            return False
        value = node.inputs[place]
        producer = None if value is None else value.producer()
        return producer is not None and producer.op_type in sources

    return occurs


def _takes_parts_of_one(node: ir.Node) -> bool:
    """Whether several nodes take parts of the result of this one."""
    return any(
        sum(user.op_type in ("Gather", "Slice") and place == 0 for user, place in value.uses()) > 1
        for value in (
            *node.outputs,
            *(v for v in node.inputs if v is not None and not v.producer()),
        )
    )


def _is_norm_by_parts(node: ir.Node) -> bool:
    """Whether a node divides by a root, maybe of another type."""
    if node.op_type != "Div" or len(node.inputs) < 2:
        return False
    cast = producer_of(node.inputs[1], "Cast")
    return producer_of(node.inputs[1] if cast is None else cast.inputs[0], "Sqrt") is not None


def _is_mean_of_powers(node: ir.Node) -> bool:
    """Whether a mean of powers is taken, maybe of another type."""
    readers = [user.op_type for value in node.outputs for user, _ in value.uses()]
    return node.op_type == "Pow" and not {"Cast", "ReduceMean"}.isdisjoint(readers)


def _is_norm(node: ir.Node) -> bool:
    """Whether a node is a normalization, or onnxruntime may make one of it."""
    is_own = node.op_type.endswith(("LayerNormalization", "RMSNormalization"))
    return is_own or _is_mean_of_powers(node) or _is_norm_by_parts(node)


def _joins_slices(node: ir.Node) -> bool:
    """Whether a Concat joins slices, of which four would make an image's blocks.

    Blocks are every second element, or fewer: slices of neighbours are windows of an image.
    """
    sources = [v.producer() for v in node.inputs if v is not None]
    slices = sum(source is not None and _skips_elements(source) for source in sources)
    return node.op_type == "Concat" and slices >= 4


def _skips_elements(node: ir.Node) -> bool:
    """Whether a Slice may leave out elements between those that it takes."""
    steps = _constant(node.inputs[4]) if len(node.inputs) > 4 else None
    is_dense = len(node.inputs) < 5 or (steps is not None and bool((steps.numpy() == 1).all()))
    return node.op_type == "Slice" and not is_dense


def _is_scaled(node: ir.Node) -> bool:
    """Whether a product, or an operand of it, is multiplied with a constant number.

    One that others read too is computed anyway, and one that is marked is left to the session.
    """
    if node.op_type != "MatMul":
        return False
    before = [v.producer() for v in node.inputs if v is not None]
    scales = [only_reader(node), *(n for n in before if n is not None and only_reader(n) is node)]
    return any(
        n is not None and is_scale(n) and not (n.doc_string or "").startswith(TRANSPOSED)
        for n in scales
    )


def _is_activated_convolution(node: ir.Node) -> bool:
    """Whether an activation alone reads a Conv, and no session puts the two together itself."""
    return _goes_into({"Conv"}, ACTIVATIONS | {"Clip"})(node) and not _has_marked_reader(node)


def _is_activated_layer(node: ir.Node) -> bool:
    """Whether an activation alone reads a Gemm of the model's own, and is left to onnxruntime.

    One for each product with a bias would be found in vain before there is a Gemm.
    """
    is_ours = node.doc_string in (BIASED, KERNEL) or _has_marked_reader(node)
    return not is_ours and _goes_into({"Gemm", "MatMul"}, ACTIVATIONS)(node)


def _has_marked_reader(layer: ir.Node) -> bool:
    reader = only_reader(layer)
    return reader is not None and reader.doc_string == ACTIVATED


def _any_of(*patterns: Occurs) -> Occurs:
    return lambda node: any(occurs(node) for occurs in patterns)


def _is_plus_one(operator: str) -> Occurs:
    """Nodes of an operator to which something is added, and that is all that they are read for.

    A gradient reads the sum too, which is a factor.
    """

    def occurs(node: ir.Node) -> bool:
        sum_of = only_reader(node) if node.op_type == operator else None
        return sum_of is not None and sum_of.op_type == "Add" and only_reader(sum_of) is not None

    return occurs


GELU_BY_PARTS, FAST_GELU_BY_PARTS = _is_plus_one("Erf"), _is_plus_one("Tanh")
GELUS = frozenset({"FastGelu", "Gelu"})

PATTERNS: dict[str, Occurs] = {
    "AttentionFusion": _is_read_once("Softmax"),  # its gradient reads it too
    "BiasGeluFusion": _any_of(GELU_BY_PARTS, FAST_GELU_BY_PARTS, _goes_into({"Add"}, GELUS)),
    "ConvActivationFusion": _is_activated_convolution,
    "FastGeluFusion": FAST_GELU_BY_PARTS,
    "GatherSliceToSplitFusion": _takes_parts_of_one,
    "GatherToSliceFusion": _comes_from("Gather", 1, {"Range"}),
    **dict.fromkeys(("GeluFusionL1", "GeluFusionL2"), GELU_BY_PARTS),
    "GemmActivationFusion": _is_activated_layer,
    **dict.fromkeys(("LayerNormFusionL1", "LayerNormFusionL2"), _is_norm_by_parts),
    **dict.fromkeys(OF_NORMS, _is_norm),
    "MatMulAddFusion": has_bias,
    "MatMulScaleFusion": _is_scaled,
    "QuickGeluFusion": _goes_into({"Sigmoid"}, {"Mul"}),
    "ReshapeFusion": _comes_from("Reshape", 1, {"Concat"}),
    "SimplifiedLayerNormFusion": _any_of(
        _is_mean_of_powers, lambda node: node.op_type == "SimplifiedLayerNormalization"
    ),
    "SliceConcatToSpaceToDepthFusion": _joins_slices,
}
"""Optimizers, and for each what a node must be like, or they find nothing at all."""


RARE = {"GemmActivationFusion": 0.005}
"""Optimizers that save one call of a kernel each time, and the share of all nodes up to which that
is not worth having all shapes inferred again: the one Tanh of an encoder's 2,600 nodes."""


def _can_be_folded(graph: ir.Graph) -> bool:
    """Whether what depends on constants alone takes a time that counts in a step.

    Folding has all shapes inferred again, a fifth of the time that a session takes. On twenty
    models with 1 to 40 such nodes (layouts of weights, numbers of a normalization) steps took 0.95
    to 1.02 of their time without. A weight that a product reads transposed does not count: the
    product does that itself. Nor do zeros, which are better made when they are needed. Parameters
    count as constants, which they are for whoever does not train them.
    """
    sizes = {v: _elements(v) for v in graph.inputs if v.const_value is not None}
    sizes |= {v: _elements(v) for v in graph.initializers.values()}
    work = sum(_folded_work(node, sizes) for node in graph)
    return work > FOLDED_SHARE * sum(1 for _ in graph.all_nodes())


def _folded_work(node: ir.Node, sizes: dict[ir.Value, float]) -> float:
    """What a node, or nodes inside of it, do with constants alone, in nodes of few elements."""
    bodies = subgraphs(node)
    if not bodies:
        if not _reads_only(node, sizes) or _is_of_a_product(node):
            return 0.0
        work = _work(node, sizes)
        return 0.0 if node.op_type == "ConstantOfShape" else work
    inside = [
        sum(
            _work(inner, sizes)
            for inner in body.all_nodes()
            if _reads_only(inner, sizes) and inner.op_type != "ConstantOfShape"
        )
        for body in bodies
    ]  # of branches only one is taken
    return REPETITIONS * sum(inside) if node.op_type in ("Loop", "Scan") else max(inside)


def _work(node: ir.Node, sizes: dict[ir.Value, float]) -> float:
    """One, and more for many elements; the sizes of the results are noted."""
    read = sum(sizes.get(v, _elements(v)) for v in node.inputs if v is not None)
    for value in node.outputs:
        shape = value.shape
        if shape is not None and shape.is_static():
            sizes[value] = float(math.prod(shape.numpy()))
        elif node.op_type == "ConstantOfShape" and (sides := _constant(node.inputs[0])) is not None:
            sizes[value] = float(math.prod(sides.numpy()))
        else:
            sizes[value] = math.inf if node.op_type in GROWING else read
    if node.op_type in VIEWS:
        return 1.0
    copies = node.op_type in AT_THE_SPEED_OF_MEMORY or node.op_type in COPYING
    return 1.0 + max(read, *(sizes[v] for v in node.outputs)) / (8 if copies else 1) / MANY_ELEMENTS


def _constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    return None if value is None else value.const_value


def _elements(value: ir.Value) -> float:
    return 0.0 if value.const_value is None else float(value.const_value.size)


def _reads_only(node: ir.Node, constants: Container[ir.Value]) -> bool:
    if node.op_type in RANDOM or node.op_type in LATER or node.domain:
        return False
    return bool(node.inputs) and all(
        v is None or v in constants or (v.is_initializer() and v.const_value is not None)
        for v in node.inputs
    )


def _is_of_a_product(node: ir.Node) -> bool:
    """Whether a node swaps the last two axes of what only products read."""
    if node.op_type != "Transpose" or node.outputs[0].is_graph_output():
        return False
    order = list(node.attributes.get_ints("perm", ()))
    swaps = len(order) < 2 or order == [*range(len(order) - 2), len(order) - 1, len(order) - 2]
    readers = [user for user, _ in node.outputs[0].uses()]
    return swaps and all(n.op_type in PRODUCTS and not n.domain for n in readers)


def _has_frozen_layouts(graph: ir.Graph) -> bool:
    """Whether channels go from first to last or back in a network with frozen convolutions."""
    nodes = [node for node in graph.all_nodes() if not node.domain]
    if not any(n.op_type == "Transpose" and _moves_channels(n) for n in nodes):
        return False
    weights = [n.inputs[1] for n in nodes if n.op_type in CONVOLUTIONS]
    return any(w is not None and w.is_initializer() for w in weights)


def _moves_channels(node: ir.Node) -> bool:
    order = list(node.attributes.get_ints("perm", ()))
    last = len(order) - 1
    return last >= 2 and order in ([0, last, *range(1, last)], [0, *range(2, last + 1), 1])
