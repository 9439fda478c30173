"""Shape inference where subgraphs are involved.

onnx's inference does two things by halves there. Inside a body it does not see the constants of
the outer graph, so that a Reshape or Slice in a body ends it: here such constants are lent to the
bodies meanwhile. And it forgets the shapes of what a Loop carries, because an iteration may change
them: here each is first assumed to stay, and that is then checked, dimension by dimension.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping

import onnx

from .onnx_inference import UNKNOWN
from .subgraphs import graph_protos, subgraph_protos

Infer = Callable[[onnx.ModelProto], onnx.ModelProto]

LENT_BYTES = 1024
ROUNDS = 30


def infer_with_bodies(model: onnx.ModelProto, infer: Infer) -> onnx.ModelProto:
    """Run shape inference; see the module's description."""
    if not any(True for node in model.graph.node for _ in subgraph_protos(node)):
        return infer(model)
    _lend(model)
    loops = Loops(model)
    model = infer(model)
    for _ in range(ROUNDS):
        if not loops.refine(model.graph, {}):
            break
        _describe_handed_on(model)  # onnx would believe the output, of which nothing is known
        model = infer(model)
    _take_back(model)
    _describe_handed_on(model)
    return model


# --- constants ---------------------------------------------------------------------------------


def _lend(model: onnx.ModelProto) -> None:
    small = {
        t.name: t
        for t in model.graph.initializer
        if t.ByteSize() <= LENT_BYTES and t.data_location != onnx.TensorProto.EXTERNAL
    }
    for body in itertools.islice(graph_protos(model.graph), 1, None):
        used = dict.fromkeys(name for node in body.node for name in node.input if name in small)
        body.initializer.extend(small[name] for name in used)


def _take_back(model: onnx.ModelProto) -> None:
    outer = {t.name for t in model.graph.initializer}
    for body in itertools.islice(graph_protos(model.graph), 1, None):
        own = [t for t in body.initializer if t.name not in outer]
        if len(own) != len(body.initializer):
            del body.initializer[:]
            body.initializer.extend(own)


def _describe_handed_on(model: onnx.ModelProto) -> None:
    """An output of a body that is its input has the input's type and shape."""
    for body in itertools.islice(graph_protos(model.graph), 1, None):
        inputs = {v.name: v for v in body.input}
        for output in body.output:
            if output.name in inputs:
                output.type.CopyFrom(inputs[output.name].type)


# --- what a Loop carries -----------------------------------------------------------------------


class Loops:
    """Assumes that what a Loop carries keeps its shape, and takes back what proves wrong.

    What is known of values in bodies before any assumption stays known.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._refuted: set[tuple[str, int]] = set()
        self._facts = _facts(model)

    def refine(
        self, graph: onnx.GraphProto, outer: Mapping[str, onnx.ValueInfoProto | None]
    ) -> bool:
        """Adjust the assumptions in a graph and below; whether anything changed."""
        types: dict[str, onnx.ValueInfoProto | None] = {**outer, **_types(graph)}
        changed = False
        for node in graph.node:
            for body in subgraph_protos(node):
                # An assumption can be judged only when none changes inside the body.
                if self.refine(body, types) or (
                    node.op_type == "Loop" and self._loop(graph, node, body, types)
                ):
                    changed = True
        return changed

    def _loop(
        self,
        graph: onnx.GraphProto,
        node: onnx.NodeProto,
        body: onnx.GraphProto,
        types: dict[str, onnx.ValueInfoProto | None],
    ) -> bool:
        if self._assume(node, body, types):
            return True  # what a wrong assumption leads to is seen when all of them are made
        inner = _types(body)
        changed, wrong = False, False
        for i, _ in enumerate(node.input[2:]):
            carried, result = body.input[i + 2], inner.get(body.output[i + 1].name)
            key = (node.output[0], i)
            before = _shape(carried)
            if key in self._refuted or before is None:
                continue
            after = None if result is None else _shape(result)
            if after is None or len(before.dim) != len(after.dim):
                carried.type.tensor_type.ClearField("shape")
                self._refuted.add(key)
                wrong = True
            elif _weaken(before, after):
                wrong = True
            elif i < len(node.output) and node.output[i]:
                changed |= _describe(graph, node.output[i], carried)
        if wrong:
            _forget(body, self._facts)
        return changed or wrong

    def _assume(
        self,
        node: onnx.NodeProto,
        body: onnx.GraphProto,
        types: Mapping[str, onnx.ValueInfoProto | None],
    ) -> bool:
        """Give what a Loop carries the shape of its start where it has none; whether any had."""
        changed = False
        for i, first in enumerate(node.input[2:]):
            carried, start = body.input[i + 2], types.get(first)
            if (node.output[0], i) in self._refuted or not _is_tensor(carried):
                continue
            shape = None if start is None else _shape(start)
            if _shape(carried) is None and shape is not None:
                carried.type.tensor_type.shape.CopyFrom(shape)
                changed = True
        return changed


def _facts(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Results inside of bodies whose shapes are known, by name; not of names that occur twice."""
    facts: dict[str, onnx.ValueInfoProto] = {}
    names = Counter[str]()
    for body in itertools.islice(graph_protos(model.graph), 1, None):
        for value in body.value_info:
            names[value.name] += 1
            if _shape(value) is not None:
                fact = facts[value.name] = onnx.ValueInfoProto()
                fact.CopyFrom(value)
    return {name: fact for name, fact in facts.items() if names[name] == 1}


def _types(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    # An output may be an input that a body hands on: what is known of it stands there.
    types = {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}
    for tensor in graph.initializer:
        if tensor.name not in types:
            types[tensor.name] = onnx.helper.make_tensor_value_info(
                tensor.name, tensor.data_type, list(tensor.dims)
            )
    return types


def _is_tensor(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.WhichOneof("value") == "tensor_type")


def _shape(value: onnx.ValueInfoProto) -> onnx.TensorShapeProto | None:
    if not _is_tensor(value) or not value.type.tensor_type.HasField("shape"):
        return None
    return value.type.tensor_type.shape


def _weaken(before: onnx.TensorShapeProto, after: onnx.TensorShapeProto) -> bool:
    """Forget dimensions that an iteration changes; whether there were any.

    What was forgotten before has got a name from onnx meanwhile, a new one each time.
    """
    weaker = False
    for old, new in zip(before.dim, after.dim):
        if old.dim_param.startswith(UNKNOWN):
            old.ClearField("dim_param")
        elif old.WhichOneof("value") is not None and (old.dim_value, old.dim_param) != (
            new.dim_value,
            new.dim_param,
        ):
            old.ClearField("dim_value")
            old.ClearField("dim_param")
            weaker = True
    return weaker


def _describe(graph: onnx.GraphProto, name: str, like: onnx.ValueInfoProto) -> bool:
    """Give a Loop's output the shape of what it carries; whether that is new."""
    value = next((v for v in (*graph.output, *graph.value_info) if v.name == name), None)
    if value is not None and _shape(value) is not None:
        return False
    if value is None:
        value = graph.value_info.add(name=name)
    value.type.CopyFrom(like.type)
    return True


def _forget(body: onnx.GraphProto, facts: Mapping[str, onnx.ValueInfoProto]) -> None:
    """Drop what was inferred from an assumption that proved wrong."""
    for graph in graph_protos(body):
        remaining = [facts[v.name] for v in graph.value_info if v.name in facts]
        del graph.value_info[:]
        graph.value_info.extend(remaining)
        for output in graph.output:
            if _is_tensor(output):
                output.type.tensor_type.ClearField("shape")
