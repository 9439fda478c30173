"""Frozen convolutions as constants of a graph, for as long as nobody changes them.

The parameters of a module are inputs of its graphs, since somebody may change them. Frozen
convolutions pay for it: their weights are laid out for the kernels in every step, and a
BatchNormalization in eval mode stays an operator of its own. As constants, both is done once.

Whether they are still what they were is asked before every call, by comparing all their bits: a
version number of torch's does not tell of writes through `.data` or `.numpy()`, nor of those of
BatchNormalization to its statistics. It takes 3 ms for the 45 MB of a ResNet-18 (two threads, where
a step of its head takes 30), so that only convolutions are worth it, each of whose weights is used
at many places.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper
import onnx_ir as ir
import torch

from ..graph.subgraphs import node_protos

Array = npt.NDArray[Any]
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
MAX_BYTES = 1 << 28
"""Of all constants together: they are in memory two times more than the module has them, as they
were when the graphs were made, and as the kernels read them."""

LENT_BYTES = 1 << 20
"""Bytes of any constant from which on it is worth not to copy it."""

LENT = "lent"
"""Stands for the file in which a model would find numbers that it does not have itself."""

MAX_CHANGES = 3
"""How often frozen weights may change before they are inputs for good: graphs are made anew for it,
which is much for the teacher of a distillation whose weights follow those of the student."""


class Constants:
    """Tensors of a module that its graphs have as constants, as they were then.

    Args:
        names: of all the module's tensors.
        tensors: those.
        chosen: names of the ones that are constants.
    """

    def __init__(
        self, names: Sequence[str], tensors: Sequence[torch.Tensor], chosen: Collection[str]
    ) -> None:
        self._indices = [i for i, name in enumerate(names) if name in chosen]
        copies = [tensors[i].detach().clone() for i in self._indices]
        self.values = {names[i]: copy for i, copy in zip(self._indices, copies)}
        self._pairs = [_pairs(copy) for copy in copies]

    def hold(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether a module's tensors are what they were, to the last bit.

        Compared as integers: a NaN is equal to itself then, and zero not to minus zero.
        """
        for i, copy, pairs in zip(self._indices, self.values.values(), self._pairs):
            tensor = tensors[i].detach()
            now = None if pairs is None else _pairs(tensor)
            if pairs is not None and now is not None:
                same = torch.equal(now, pairs)
            else:
                same = torch.equal(tensor.view(torch.int32), copy.view(torch.int32))
            if not same:
                return False
        return True


def _pairs(tensor: torch.Tensor) -> torch.Tensor | None:
    """Two numbers as one integer, which takes two thirds of the time; None where that cannot be."""
    is_possible = tensor.is_contiguous() and tensor.numel() % 2 == 0
    return tensor.view(-1).view(torch.int64) if is_possible else None


def worth_it(
    model: onnx.ModelProto, frozen: Mapping[str, torch.Tensor], trained: Collection[str]
) -> set[str]:
    """Which frozen tensors a graph should have as constants.

    Those of convolutions and of BatchNormalization in eval mode, where all tensors of the layer are
    frozen, nobody else reads them and no gradient passes the layer: its backward pass would gain
    nothing (a ResNet-18 whose convolutions alone are frozen took a tenth longer). None of them if
    they have more than `MAX_BYTES`.

    Args:
        model: the graph, with all tensors as initializers.
        frozen: the tensors that have no gradient, and that the graph does not change.
        trained: names of tensors and inputs that have one.
    """
    fits = {n for n, t in frozen.items() if t.dtype is torch.float32 and t.device.type == "cpu"}
    fits -= {value.name for value in model.graph.output}
    layers = _layers(model.graph, trained)
    others = [node for node in node_protos(model.graph.node) if id(node) not in layers]
    for node in others:
        fits.difference_update(node.input)
    before = -1
    while before != len(fits):  # a tensor less may be a layer less
        before = len(fits)
        for node in layers.values():
            tensors = {name for name in node.input[1:] if name}
            fits.difference_update(node.input[:1] if fits >= tensors else node.input)
    chosen = fits.intersection(name for node in layers.values() for name in node.input)
    if not any(frozen[name].dim() > 1 for name in chosen):  # no convolution is among them
        return set()
    size = 4 * sum(math.prod(frozen[name].shape) for name in chosen)
    return chosen if size <= MAX_BYTES else set()


def _layers(graph: onnx.GraphProto, trained: Collection[str]) -> dict[int, onnx.NodeProto]:
    """Convolutions and norms that nothing trained comes before, by the ids of their nodes."""
    reached, layers = set(trained), {}
    for node in graph.node:
        names = {name for inner in node_protos([node]) for name in inner.input}
        if reached & names:
            reached.update(node.output)
        elif _is_fixed(node):
            layers[id(node)] = node
    return layers


def _is_fixed(node: onnx.NodeProto) -> bool:
    """Whether a node computes the same whenever its tensors are the same."""
    if node.op_type in CONVOLUTIONS:
        return True
    trains = any(a.name == "training_mode" and a.i for a in node.attribute)
    return node.op_type == "BatchNormalization" and not trains


def park(model: ir.Model, names: Collection[str]) -> dict[str, Array]:
    """Let constants be inputs, so that no model that is made from this one has a copy of them.

    Args:
        model: the model.
        names: which; all large ones are besides, as the matrix that a frozen convolution of a few
            pixels has become.

    Returns:
        Their numbers.
    """
    graph, values = model.graph, dict[str, Array]()
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or value.is_graph_output() or value.is_graph_input():
            continue
        if name not in names and (
            tensor.nbytes < LENT_BYTES or tensor.dtype is not ir.DataType.FLOAT
        ):
            continue
        values[name] = np.ascontiguousarray(tensor.numpy())
        value.type = value.type or ir.TensorType(tensor.dtype)
        value.shape = value.shape or ir.Shape(tensor.shape.numpy())
        value.const_value = None
        del graph.initializers[name]
        graph.inputs.append(value)
    return values


def lend(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Let parked inputs be constants again, whose numbers the options of a session bring.

    As part of the model they would be in memory seven times while a session is made: in the whole
    model and a half of it, in its bytes, in changed bytes, and in what onnxruntime reads from them.
    """
    graph = model.graph
    parked = [value for value in graph.input if value.name in names]
    others = [value for value in graph.input if value.name not in names]
    del graph.input[:]
    graph.input.extend(others)
    for value in parked:
        kind = value.type.tensor_type
        tensor = graph.initializer.add(
            name=value.name,
            data_type=kind.elem_type,
            dims=[d.dim_value for d in kind.shape.dim],
            data_location=onnx.TensorProto.EXTERNAL,
        )
        tensor.external_data.add(key="location", value=LENT)


def lent(model: onnx.ModelProto) -> list[str]:
    """Names of the constants that a model does not have itself."""
    external = onnx.TensorProto.EXTERNAL
    return [t.name for t in model.graph.initializer if t.data_location == external]


def with_values(model: onnx.ModelProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    """A copy of a model that has its constants itself."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    missing = set(lent(model))
    for tensor in whole.graph.initializer:
        if tensor.name in missing:
            tensor.CopyFrom(onnx.numpy_helper.from_array(values[tensor.name], tensor.name))
    return whole


def without_values(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """The model without the numbers of some initializers; shapes and types stay.

    The model itself loses them too. It is another object because protobuf gives memory back only
    with a whole model.
    """
    for tensor in model.graph.initializer:
        if tensor.name in names:
            kind, shape = tensor.data_type, tensor.dims
            tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=kind, dims=shape))
    light = onnx.ModelProto()
    light.CopyFrom(model)
    return light
