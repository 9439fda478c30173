"""Fully connected layers that follow each other, with the batch in columns.

Exporters write a layer as x·Wᵀ. onnxruntime's product copies its right operand into the order that
its kernel wants, and weights that are trained have to be copied in every step. Written as W·xᵀ,
with values of [features, batch], the weights are the left operand, which is read as it lies, and
what is copied is a batch. The gradients follow from that form: of W it is dY·x, the other way round
it would be dYᵀ·x, which also copies.

A tile of the product has 16 columns: smaller batches are slower in columns (twice as slow with a
single row). Where the batch size is open, the graph has the chain in both forms, and an If on it.
Where weights are small there is nothing to gain. ADR 13 has the measurements.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import onnx_ir as ir

from ..graph import OpBuilder
from ..graph.edit import remove_nodes, take_over
from ..graph.nodes import insert
from ..graph.tensor import Dim, dims_of
from ..operators import UNARY
from .both_forms import BothForms, is_read_outside

FEWEST, MOST = 16, 512
"""Batch sizes that are laid out in columns."""
FEWEST_WEIGHTS = 65_536
"""Weights of the largest layer from which on it pays."""
FEWEST_WEIGHTS_OF_BOTH = 524_288
"""Weights of a chain from which on an If pays: it takes 6 of the 150 µs of a step with one row."""
MOST_LAYERS = 16
"""Layers that share an If: onnxruntime takes more than linear time to prepare a long branch."""


def layers_in_columns(
    model: ir.Model,
    keep: Collection[str] = (),
    no_gradient: Collection[str] = (),
    *,
    open_batches: bool = True,
) -> ir.Model:
    """Turn chains of layers in the graph itself.

    Args:
        model: is changed. Nodes keep their names, and so does, in rows, what others read.
        keep: names of values that are needed in rows where they are made.
        no_gradient: names of nodes that have to stay where they are.
        open_batches: whether chains with a batch size that is not known get both forms.
    """
    search = _Search(frozenset(keep), frozenset(no_gradient), open_batches)
    chains = search.chains(model.graph)
    if not chains:
        return model
    op = OpBuilder.on(model)
    forms = BothForms(op, model.graph, FEWEST, MOST)
    for chain in chains:
        graph, nodes = model.graph, chain.nodes
        x = nodes[0].inputs[0]
        if x is not None and chain.is_open:
            graph, _ = forms.split(nodes, x)
            nodes = list(graph)
        _turn(op, graph, nodes)
    op.register_constants(model.graph)
    return model


@dataclass
class _Chain:
    """Layers, each an element-wise function of the one before.

    Attributes:
        batch: how many rows there are: a number, a symbol, or None.
        nodes: the layers and the functions between and behind them, in the graph's order.
        weights: how many each layer has.
    """

    batch: Dim
    nodes: list[ir.Node] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether the batch size is only known when the graph runs."""
        return not isinstance(self.batch, int)

    @property
    def pays(self) -> bool:
        """Whether there is something to gain."""
        if len(self.weights) < 2 or max(self.weights) < FEWEST_WEIGHTS:
            return False
        return not self.is_open or sum(self.weights) >= FEWEST_WEIGHTS_OF_BOTH

    def add(self, node: ir.Node) -> None:
        """Let a node follow."""
        self.nodes.append(node)
        if node.op_type == "Gemm":
            self.weights.append(_weights(node))


@dataclass
class _Search:
    """What of a graph belongs to chains; see `layers_in_columns`."""

    keep: frozenset[str]
    no_gradient: frozenset[str]
    open_batches: bool

    def chains(self, graph: ir.Graph) -> list[_Chain]:
        """The chains of a graph that pay."""
        chains: list[_Chain] = []
        chain_of: dict[ir.Value | None, _Chain] = {}
        for node in graph:
            chain = self._chain_with(node, chain_of.get(node.inputs[0]) if node.inputs else None)
            if chain is None:
                continue
            if not chain.nodes:
                chains.append(chain)
            chain.add(node)
            chain_of[node.outputs[0]] = chain
        return [chain for chain in chains if chain.pays]

    def _chain_with(self, node: ir.Node, before: _Chain | None) -> _Chain | None:
        """The chain that a node goes on with, or begins."""
        if any(o.name in self.keep for o in node.outputs):
            return None
        if _is_layer(node):
            if before is not None and before.is_open and len(before.weights) == MOST_LAYERS:
                before = None
            return self._if_it_may_move(node, before or _Chain(_batch_of(node)))
        if before is None or not _is_elementwise(node):
            return None
        return self._if_it_may_move(node, before)

    def _if_it_may_move(self, node: ir.Node, chain: _Chain) -> _Chain | None:
        """The chain, unless its If, where the first layer was, would come too early for a node."""
        if not chain.is_open:
            return chain
        is_free = all(v is None or v.producer() is None for v in node.inputs[1:])
        return (
            chain if self.open_batches and is_free and node.name not in self.no_gradient else None
        )


def _is_layer(node: ir.Node) -> bool:
    """x·Wᵀ + b with weights that are no constants, for a batch of a size that may pay."""
    if node.op_type != "Gemm" or node.domain:
        return False
    flags = [node.attributes.get_int(name, 0) for name in ("transA", "transB")]
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    if flags != [0, 1] or factors != [1.0, 1.0]:
        return False
    x, weights = node.inputs[:2]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if x is None or weights is None or not weights.is_graph_input():
        return False
    matrix = dims_of(weights)
    if dims_of(x) is None or matrix is None or not all(isinstance(d, int) for d in matrix):
        return False
    if bias is not None and dims_of(bias) != matrix[:1]:
        return False
    batch = _batch_of(node)
    return not isinstance(batch, int) or FEWEST <= batch <= MOST


def _batch_of(layer: ir.Node) -> Dim:
    x = layer.inputs[0]
    dims = dims_of(x) if x is not None else None
    return dims[0] if dims else None


def _weights(layer: ir.Node) -> int:
    weights = layer.inputs[1]
    dims = dims_of(weights) if weights is not None else None
    assert dims is not None
    outs, ins = dims
    assert isinstance(outs, int)
    assert isinstance(ins, int)
    return outs * ins


def _is_elementwise(node: ir.Node) -> bool:
    return node.op_type in UNARY and not node.domain and len(node.outputs) == 1


# -- columns ---------------------------------------------------------------------------------------


def _turn(op: OpBuilder, graph: ir.Graph, nodes: list[ir.Node]) -> None:
    """Write the nodes of a chain in columns; what others read is there in rows too."""
    columns: dict[ir.Value | None, ir.Value] = {}
    for node in nodes:
        x = columns.get(node.inputs[0])
        form = _layer(op, node, x) if node.op_type == "Gemm" else _like(node, x)
        columns[node.outputs[0]] = form
    inside = set(nodes)
    for node in reversed(nodes):
        old = node.outputs[0]
        if is_read_outside(old, inside):
            take_over(old, insert(node, "Transpose", [columns[old]], "rows", perm=[1, 0]))
        remove_nodes(graph, [node])


def _layer(op: OpBuilder, node: ir.Node, x_columns: ir.Value | None) -> ir.Value:
    x, weights = node.inputs[:2]
    operands = [weights, x if x_columns is None else x_columns]
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = node.inputs[2]
        column = insert(node, "Unsqueeze", [bias, op.const([1]).value], "bias")
        assert bias.shape is not None
        column.shape = ir.Shape([*bias.shape.dims, 1])
        operands.append(column)
    result = insert(node, "Gemm", operands, "columns", transB=int(x_columns is None))
    return _described(result, node)


def _like(node: ir.Node, x_columns: ir.Value | None) -> ir.Value:
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    result = insert(node, node.op_type, [x_columns, *node.inputs[1:]], "columns", **attributes)
    return _described(result, node)


def _described(value: ir.Value, node: ir.Node) -> ir.Value:
    """The result of the node that takes another one's place."""
    new, shape = value.producer(), node.outputs[0].shape
    assert new is not None
    new.name = node.name
    value.shape = None if shape is None else ir.Shape([shape[1], shape[0]])
    return value
