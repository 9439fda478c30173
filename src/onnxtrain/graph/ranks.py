"""Ranks that onnx's shape inference gives up on when dimensions are symbolic.

Most gradients need the number of dimensions, few need the dimensions themselves. onnx infers
forwards only; a rank also follows from what reads a value: from the weight of the Conv behind a
Squeeze without axes, say, or behind an If whose branches differ in rank.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ..operators import KEEPS_RANK

Dims = list["int | str | None"]


def fill_ranks(model: ir.Model) -> set[str | None]:
    """Give values without a shape the rank that operators imply; names of the values."""
    return _from_operands(model) | _from_readers(model)


def _from_operands(model: ir.Model) -> set[str | None]:
    filled = set()
    for node in model.graph.all_nodes():
        rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        output = node.outputs[0]
        if rule is None or output.shape is not None or output.type is None:
            continue  # a shape without a type is not written, and would be filled for ever
        dims = rule(node)
        if dims is not None:
            output.shape = ir.Shape(dims)
            filled.add(output.name)
    return filled


def _from_readers(model: ir.Model) -> set[str | None]:
    """Operands of one rank have the rank of the one that is known, if the node runs at all.

    Inside a subgraph that need not be, so values from outside of it are left alone there.
    """
    filled = set()
    for node in model.graph.all_nodes():
        if node.domain not in ("", "ai.onnx"):
            continue
        for rank, values in _of_one_rank(node):
            for value in values:
                is_tensor = value is not None and isinstance(value.type, ir.TensorType)
                if value is None or not is_tensor or value.shape is not None:
                    continue
                if value.graph is node.graph:
                    value.shape = ir.Shape([None] * rank)
                    filled.add(value.name)
    return filled


def _of_one_rank(node: ir.Node) -> list[tuple[int, list[ir.Value | None]]]:
    """Operands and results that have one rank, and that rank where it is known."""
    kind, operands = node.op_type, [*node.inputs]
    fixed = FIXED_RANKS.get(kind, {})
    groups = [(rank, [operands[i]]) for i, rank in fixed.items() if i < len(operands)]
    if kind == "Transpose" and "perm" in node.attributes:
        return [(len(node.attributes["perm"].as_ints()), [operands[0], node.outputs[0]])]
    if kind in ("MatMul", "Unsqueeze"):
        return _of_matmul(node) if kind == "MatMul" else _of_unsqueeze(node)
    if kind == "Concat":
        alike = [*operands, node.outputs[0]]
    elif kind == "Split":
        alike = [operands[0], *node.outputs]
    elif kind in SAME_RANK:
        alike = [*(operands[i] for i in SAME_RANK[kind] if i < len(operands)), node.outputs[0]]
    else:
        return groups
    ranks = [len(v.shape) for v in alike if v is not None and v.shape is not None]
    if not ranks and "kernel_shape" in node.attributes:
        ranks = [2 + len(node.attributes["kernel_shape"].as_ints())]
    return [*groups, *([(ranks[0], alike)] if ranks else [])]


def _of_matmul(node: ir.Node) -> list[tuple[int, list[ir.Value | None]]]:
    """The operand with more dimensions has as many as the result."""
    result, (a, b) = _rank(node.outputs[0]), node.inputs[:2]
    if result is None:
        return []
    pairs = [(one, _rank(other)) for one, other in ((a, b), (b, a))]
    return [(result, [one]) for one, rank in pairs if rank is not None and 2 <= rank < result]


def _of_unsqueeze(node: ir.Node) -> list[tuple[int, list[ir.Value | None]]]:
    axes = node.inputs[1].shape if len(node.inputs) > 1 and node.inputs[1] is not None else None
    rank = _rank(node.outputs[0])
    if axes is None or rank is None or len(axes) > 1:
        return []
    count = axes[0] if len(axes) else 1  # onnxruntime takes a single number for one axis
    return [(rank - count, [node.inputs[0]])] if isinstance(count, int) and rank >= count else []


def _rank(value: ir.Value | None) -> int | None:
    return None if value is None or value.shape is None else len(value.shape)


FIXED_RANKS: dict[str, dict[int, int]] = {
    "Gemm": {0: 2, 1: 2},
    "LSTM": {0: 3, 1: 3, 2: 3},
    "GRU": {0: 3, 1: 3, 2: 3},
    "RNN": {0: 3, 1: 3, 2: 3},
    "DepthToSpace": {0: 4},
    "SpaceToDepth": {0: 4},
    "RoiAlign": {0: 4, 1: 2, 2: 1},
}
"""Operands whose rank an operator prescribes."""

SAME_RANK: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(KEEPS_RANK - {"Concat"}, (0,)),
    **dict.fromkeys(("Conv", "ConvTranspose", "ConvInteger"), (0, 1)),
    "DeformConv": (0, 1, 2),
    "GatherElements": (0, 1),
    "GridSample": (0, 1),
    "QLinearConv": (0, 3),
}
"""Operands that have the rank of the first result."""


def _dims(node: ir.Node, index: int) -> Dims | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or value.shape is None:
        return None
    return [d if isinstance(d, int) else d.value for d in value.shape.dims]


def _conv_transpose(node: ir.Node) -> Dims | None:
    x, w = _dims(node, 0), _dims(node, 1)
    if x is None and w is None:
        return None
    rank = len(x or w or [])
    group = node.attributes.get_int("group", 1)
    per_group = w[1] if w is not None else None
    channels = per_group * group if isinstance(per_group, int) else None
    return [x[0] if x is not None else None, channels, *[None] * (rank - 2)]


def _conv(node: ir.Node) -> Dims | None:
    x, w = _dims(node, 0), _dims(node, 3 if node.op_type == "QLinearConv" else 1)
    if x is None and w is None:
        return None
    first = x[0] if x is not None else None
    return [first, w[0] if w is not None else None, *[None] * (len(x or w or []) - 2)]


def _max_unpool(node: ir.Node) -> Dims | None:
    x = _dims(node, 0)
    return None if x is None else [*x[:2], *[None] * (len(x) - 2)]


def _gather_nd(node: ir.Node) -> Dims | None:
    x, indices = _dims(node, 0), _dims(node, 1)
    if x is None or indices is None or not isinstance(indices[-1], int):
        return None
    batch = node.attributes.get_int("batch_dims", 0)
    return [*indices[:-1], *x[batch + indices[-1] :]]


def _affine_grid(node: ir.Node) -> Dims | None:
    theta, size = _dims(node, 0), _dims(node, 1)
    axes = theta[1] if theta is not None else None
    if not isinstance(axes, int):
        count = size[0] if size else None
        axes = count - 2 if isinstance(count, int) else None
    batch = theta[0] if theta is not None else None
    return [batch, *[None] * axes, axes] if isinstance(axes, int) else None


def _col2im(node: ir.Node) -> Dims | None:
    x, sizes = _dims(node, 0), _dims(node, 1)
    count = sizes[0] if sizes else None
    if not isinstance(count, int):
        return None
    return [x[0] if x is not None else None, None, *[None] * count]


def _fixed(*dims: int | None) -> Callable[[ir.Node], Dims | None]:
    return lambda node: list(dims)


def _stft(node: ir.Node) -> Dims | None:
    x = _dims(node, 0)
    return [x[0] if x is not None else None, None, None, 2]


RULES: dict[str, Callable[[ir.Node], Dims | None]] = {
    "ConvTranspose": _conv_transpose,
    "Conv": _conv,
    "ConvInteger": _conv,
    "QLinearConv": _conv,
    "MaxUnpool": _max_unpool,
    "AffineGrid": _affine_grid,
    "Col2Im": _col2im,
    "GatherND": _gather_nd,
    "STFT": _stft,
    "HannWindow": _fixed(None),
    "HammingWindow": _fixed(None),
    "BlackmanWindow": _fixed(None),
    "MelWeightMatrix": _fixed(None, None),
}
