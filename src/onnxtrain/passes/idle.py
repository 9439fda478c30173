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

from collections.abc import Callable, Collection
from typing import TypeAlias

import onnx_ir as ir

from ..graph.subgraphs import subgraphs
from ..operators import ACTIVATIONS, IDLE_OPTIMIZERS, RANDOM
from .transposed import is_left_to_onnxruntime

DUPLICATES, FOLDING = "CommonSubexpressionElimination", "ConstantFolding"
TRANSPOSING = ("TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider")
TRANSPOSED_PRODUCTS = "MatmulTransposeFusion"
PRODUCTS = frozenset({"MatMul"})
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
Occurs: TypeAlias = "Callable[[ir.Node], bool]"
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
    nodes = [node for node in model.graph.all_nodes() if not node.domain]
    idle += [name for name, occurs in PATTERNS.items() if not any(map(occurs, nodes))]
    model.metadata_props[IDLE_OPTIMIZERS] = ";".join(idle)
    return model


def _only_reader(node: ir.Node) -> ir.Node | None:
    """The node that alone reads the result of another: what onnxruntime puts together."""
    uses = node.outputs[0].uses() if node.outputs else ()
    return uses[0][0] if len(uses) == 1 and not node.outputs[0].is_graph_output() else None


def _goes_into(operators: Collection[str], readers: Collection[str]) -> Occurs:
    """Nodes of some operators whose only reader is one of others."""

    def occurs(node: ir.Node) -> bool:
        reader = _only_reader(node) if node.op_type in operators else None
        return reader is not None and reader.op_type in readers

    return occurs


def _is_read_once(operator: str) -> Occurs:
    return lambda node: node.op_type == operator and _only_reader(node) is not None


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
        for value in (*node.outputs, *(v for v in node.inputs if v is not None and not v.producer()))
    )


def _is_scaled(node: ir.Node) -> bool:
    """Whether a product, or an operand of it, is multiplied with a constant number."""
    if node.op_type != "MatMul":
        return False
    before = (v.producer() for v in node.inputs if v is not None)
    return any(
        other is not None and other.op_type in ("Div", "Mul")
        and any(v is not None and _is_constant_number(v) for v in other.inputs)
        for other in (_only_reader(node), *before)
    )  # fmt: skip


def _is_constant_number(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.size == 1


PATTERNS: dict[str, Occurs] = {
    "AttentionFusion": _is_read_once("Softmax"),  # its gradient reads it too
    "BiasSoftmaxFusion": _goes_into({"Add"}, {"Softmax"}),
    "ConvActivationFusion": _goes_into({"Conv"}, ACTIVATIONS | {"Clip"}),
    "GatherSliceToSplitFusion": _takes_parts_of_one,
    "GatherToSliceFusion": _comes_from("Gather", 1, {"Range"}),
    "GemmActivationFusion": _goes_into({"Gemm", "MatMul"}, ACTIVATIONS),
    "MatMulAddFusion": _goes_into({"MatMul"}, {"Add"}),
    "MatMulScaleFusion": _is_scaled,
    "QuickGeluFusion": _goes_into({"Sigmoid"}, {"Mul"}),
    "ReshapeFusion": _comes_from("Reshape", 1, {"Concat"}),
    "SliceConcatToSpaceToDepthFusion": _comes_from("Concat", 0, {"Slice"}),
}
"""Optimizers, and for each what a node must be like, or they find nothing at all."""


def _can_be_folded(graph: ir.Graph) -> bool:
    """Whether a node depends on constants alone.

    A weight that a product reads transposed does not count: the product does that itself. Nor do
    the zeros of a branch, which are better made when they are needed. Parameters count as
    constants, which they are for whoever does not train them.
    """
    constants = {v for v in graph.inputs if v.const_value is not None}
    constants.update(graph.initializers.values())
    for node in graph:
        inner = [n for body in subgraphs(node) for n in body.all_nodes()]
        if any(_reads_only(n, constants) and n.op_type != "ConstantOfShape" for n in inner):
            return True
        if not inner and _reads_only(node, constants) and not _is_of_a_product(node):
            return True
    return False


def _reads_only(node: ir.Node, constants: set[ir.Value]) -> bool:
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
