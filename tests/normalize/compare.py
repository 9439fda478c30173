"""Run a model before and after normalizing, and compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnxruntime as ort
from onnx import helper

from onnxtrain.graph import load, to_proto
from onnxtrain.normalize import MAX_IR, MAX_OPSET, MIN_OPSET, normalize

Arrays = dict[str, np.ndarray]


def run_ort(model: onnx.ModelProto, feeds: Arrays) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def run_reference(model: onnx.ModelProto, feeds: Arrays) -> list[Any]:
    with np.errstate(all="ignore"):
        return list(onnx.reference.ReferenceEvaluator(model).run(None, feeds))


def normalized(model: Any) -> onnx.ModelProto:
    """The normalized model, checked for everything the stage promises."""
    result = to_proto(normalize(load(model)))
    if all(o.type.tensor_type.HasField("shape") for o in result.graph.output):
        onnx.checker.check_model(result, full_check=True)  # it wants a rank on every output
    versions = {o.domain: o.version for o in result.opset_import}
    assert MIN_OPSET <= versions[""] <= MAX_OPSET
    assert result.ir_version <= MAX_IR
    assert not [n for n in walk(result.graph) if n.op_type == "Constant"]
    return result


def walk(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    nodes = []
    for node in graph.node:
        nodes.append(node)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                nodes += walk(attribute.g)
    return nodes


def operators(model: onnx.ModelProto) -> set[str]:
    return {n.op_type if not n.domain else f"{n.domain}.{n.op_type}" for n in walk(model.graph)}


def assert_same(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    feeds: Arrays,
    *,
    run: Any = run_ort,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    names = {i.name for i in after.graph.input}
    expected = run(before, feeds)
    got = run(after, {k: v for k, v in feeds.items() if k in names})
    assert [o.name for o in after.graph.output] == [o.name for o in before.graph.output]
    for a, b in zip(got, expected):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def op_model(
    op_type: str,
    inputs: list[np.ndarray | None],
    *,
    opset: int,
    outputs: int = 1,
    domain: str = "",
    constants: tuple[int, ...] = (),
    ir_version: int = 8,
    dynamic: bool = False,
    output_types: tuple[int, ...] = (),
    imports: dict[str, int] | None = None,
    **attributes: Any,
) -> tuple[onnx.ModelProto, Arrays]:
    """One node over the given arrays; those listed in `constants` are initializers."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    node = helper.make_node(
        op_type, names, [f"y{i}" for i in range(outputs)], name="node", domain=domain, **attributes
    )
    infos, initializers, feeds = [], [], {}
    for i, (name, array) in enumerate(zip(names, inputs)):
        if array is None:
            continue
        if i in constants:
            initializers.append(onnx.numpy_helper.from_array(array, name))
            continue
        feeds[name] = array
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        shape: list[Any] = (
            [f"{name}_d{a}" for a in range(array.ndim)] if dynamic else list(array.shape)
        )
        infos.append(helper.make_tensor_value_info(name, kind, shape))
    results = []
    for i in range(outputs):
        info = onnx.ValueInfoProto(name=f"y{i}")
        if i < len(output_types):
            info.type.tensor_type.elem_type = output_types[i]
        results.append(info)
    graph = helper.make_graph([node], "graph", infos, results, initializers)
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(d, v) for d, v in (imports or {}).items()]
    if domain and domain not in (imports or {}):
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version), feeds
