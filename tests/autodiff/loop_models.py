"""Check a model with control flow: central differences in float64, onnxruntime in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort

import onnxtrain
from onnxtrain.graph.evaluate import evaluator


def parse(text: str, dtype: str, opset: int = 18) -> onnx.ModelProto:
    """A model written with REAL for the float type, and TYPE for its number."""
    source = f'<ir_version: 8, opset_import: ["": {opset}]>\n' + text.replace("REAL", dtype)
    source = source.replace("TYPE", "11" if dtype == "double" else "1")
    return onnx.parser.parse_model(source)


def reference(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    return list(evaluator(model).run(None, feeds))


def runtime(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def cast(feeds: dict[str, Any], dtype: Any) -> dict[str, Any]:
    return {
        k: np.asarray(v, dtype) if np.asarray(v).dtype.kind == "f" else np.asarray(v)
        for k, v in feeds.items()
    }


def check(
    text: str, feeds: dict[str, Any], wrt: list[str], opset: int = 18, twice: bool = False
) -> dict[str, Any]:
    """Compare the gradients of the first output in all ways; `twice`: those of |gradient|² too."""
    model = parse(text, "double", opset)
    exact = cast(feeds, np.float64)
    grad = onnxtrain.differentiate(model, wrt=wrt)
    onnx.checker.check_model(grad, full_check=True)
    results = dict(zip(wrt, reference(grad, exact)[-len(wrt) :]))
    compare_differences(model, exact, results)
    single = onnxtrain.differentiate(parse(text, "float", opset), wrt=wrt)
    for name, got in zip(wrt, runtime(single, cast(feeds, np.float32))[-len(wrt) :]):
        np.testing.assert_allclose(got, results[name], rtol=2e-3, atol=1e-4, err_msg=name)
    if twice:
        check_twice(grad, single, feeds, wrt)
    return results


def compare_differences(
    model: onnx.ModelProto, feeds: dict[str, Any], grads: dict[str, Any], tolerance: float = 1e-6
) -> None:
    rng = np.random.default_rng(1)
    direction = {n: rng.uniform(-1, 1, feeds[n].shape) for n in grads}
    step, losses = 1e-5, []
    for sign in (1, -1):
        moved = {n: feeds[n] + sign * step * d for n, d in direction.items()}
        losses.append(float(reference(model, {**feeds, **moved})[0]))
    for n, g in grads.items():
        assert g.shape == feeds[n].shape
    analytic = sum(float(np.sum(g * direction[n])) for n, g in grads.items())
    numeric = (losses[0] - losses[1]) / (2 * step)
    np.testing.assert_allclose(analytic, numeric, rtol=tolerance, atol=tolerance)


def squared_norm(model: onnx.ModelProto, wrt: list[str]) -> onnx.ModelProto:
    """A model whose first output is Σ|gradient|², from a gradient model."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    graph = new.graph
    kind = graph.output[0].type.tensor_type.elem_type
    terms = []
    for name in wrt:
        graph.node.add(op_type="ReduceSumSquare", input=[f"{name}_grad"], output=[f"{name}_sq"])
        graph.node[-1].attribute.append(onnx.helper.make_attribute("keepdims", 0))
        terms.append(f"{name}_sq")
    graph.node.add(op_type="Sum", input=terms, output=["norm"])
    del graph.output[:]
    graph.output.append(onnx.helper.make_tensor_value_info("norm", kind, []))
    return new


def check_twice(
    exact: onnx.ModelProto, single: onnx.ModelProto, feeds: dict[str, Any], wrt: list[str]
) -> None:
    model = squared_norm(exact, wrt)
    second = onnxtrain.differentiate(model, wrt=wrt)
    results = dict(zip(wrt, reference(second, cast(feeds, np.float64))[-len(wrt) :]))
    compare_differences(model, cast(feeds, np.float64), results, 1e-5)
    again = onnxtrain.differentiate(squared_norm(single, wrt), wrt=wrt)
    for name, got in zip(wrt, runtime(again, cast(feeds, np.float32))[-len(wrt) :]):
        np.testing.assert_allclose(got, results[name], rtol=5e-3, atol=5e-4, err_msg=name)
