"""A layer and the activation behind it are one node in a session, as onnxruntime would make it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper, parser

from onnxtrain.graph import load, to_proto
from onnxtrain.graph.infer import infer_shapes
from onnxtrain.operators import ACTIVATED, IDLE_OPTIMIZERS, OF_LAYERS
from onnxtrain.passes.activations import mark_activated
from onnxtrain.passes.idle import note_idle_optimizers
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.session.devices import create_session, session_options
from onnxtrain.runtime.session.layers import activated_layers
from onnxtrain.runtime.session.optimizers import ACTIVATING, idle_optimizers, idle_without_us

HEAD = '<ir_version: 9, opset_import: ["" : 18, "local" : 1]>'
CONV = "i = Reshape(x, image) c = Conv<pads = [1, 1, 1, 1]>(i, kernel, bias1)"
GEMM = "c = Gemm<transB = 1, alpha = 0.5>(x, w, bias)"
CONSTANTS = {
    "image": np.array([-1, 1, 8, 8]), "low": np.float32(-0.5), "high": np.float32(0.5),
    "kernel": np.linspace(-1, 1, 18, dtype=np.float32).reshape(2, 1, 3, 3),
    "kernel1": np.linspace(-1, 1, 9, dtype=np.float32).reshape(1, 1, 3, 3),
    "bias1": np.array([0.1, -0.2], np.float32),
    "w": np.linspace(-0.4, 0.6, 5 * 64, dtype=np.float32).reshape(5, 64),
    "bias": np.linspace(-1, 1, 5, dtype=np.float32), "around": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
}  # fmt: skip


def model(body: str, constants: dict[str, np.ndarray] = CONSTANTS) -> onnx.ModelProto:
    """A model of x [n, 64]; `y` and `z` are outputs if the body makes them."""
    outputs = ", ".join(f"float[] {name}" for name in "yz" if f"{name} = " in body)
    built = parser.parse_model(f'{HEAD} g (float["n", 64] x) => ({outputs}) {{ {body} }}')
    for output in built.graph.output:
        output.type.tensor_type.ClearField("shape")
    read = {name for node in built.graph.node for name in node.input}
    built.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(constants[n]), n) for n in sorted(read & {*constants})
    )
    return built


def noted(plain: onnx.ModelProto) -> onnx.ModelProto:
    """The model as the last passes leave it."""
    return to_proto(note_idle_optimizers(mark_activated(infer_shapes(load(plain)))))


def layers_of(marked: onnx.ModelProto) -> dict[int, list[bytes]]:
    outline = Outline.of(marked.SerializeToString())
    assert outline is not None
    return activated_layers(outline)


def optimized(content: bytes, folder: Path) -> list[str]:
    """The operators that a session of ours runs."""
    options = session_options(threads=1, weights_change=True)
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    create_session(content, options)
    return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


def results(content: bytes, rows: np.ndarray) -> list[np.ndarray]:
    session = create_session(content, session_options(threads=1, weights_change=True))
    return session.run(None, {"x": rows})


def samples() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    strange = rng.normal(size=(3, 64)).astype(np.float32)
    strange[0, 5], strange[1, 9], strange[2, 7] = np.nan, np.inf, -np.inf
    return {
        "normal": rng.normal(size=(7, 64)).astype(np.float32),
        "large": (rng.normal(size=(2, 64)) * 1e3).astype(np.float32),
        "strange": strange,
        "empty": np.zeros((0, 64), np.float32),
    }


@pytest.mark.parametrize("layer", [CONV, GEMM], ids=["Conv", "Gemm"])
@pytest.mark.parametrize("said", [*sorted(OF_LAYERS), "LeakyRelu<alpha = 0.3>"])
def test_a_session_runs_what_onnxruntime_would_make(layer: str, said: str, tmp_path: Path) -> None:
    plain = model(f"{layer} y = {said}(c)")
    marked = noted(plain)
    assert set(ACTIVATING) <= {*marked.metadata_props[0].value.split(";")}
    content, stock = marked.SerializeToString(), plain.SerializeToString()
    made = optimized(content, tmp_path)
    assert made[-1] in ("FusedConv", "FusedGemm")
    assert made == optimized(stock, tmp_path)
    single = onnxruntime.SessionOptions()
    single.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    one_by_one = onnxruntime.InferenceSession(stock, single)
    for name, rows in samples().items():
        (ours,), (theirs,) = results(content, rows), results(stock, rows)
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
        (exact,) = one_by_one.run(None, {"x": rows})
        np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-6, err_msg=name)


NOT_MARKED = {
    "read twice": f"{GEMM} a = Relu(c) y = Mul(a, c)",
    "an output": f"{GEMM} y = Relu(c) z = Identity(c)",
    "another activation": f"{GEMM} y = Elu(c)",
    "bounds that are constant": f"{CONV} y = Clip(c, low, high)",
    "padding that a Conv takes in": """i = Reshape(x, image) p = Pad(i, around)
        c = Conv(p, kernel) y = Relu(c)""",
    "a product that is turned": "t = Transpose<perm = [1, 0]>(w) c = Gemm(x, t, bias) y = Relu(c)",
}


@pytest.mark.parametrize("name", NOT_MARKED)
def test_the_rest_is_left_to_onnxruntime(name: str, tmp_path: Path) -> None:
    plain = model(NOT_MARKED[name])
    marked = noted(plain)
    assert not any(node.doc_string == ACTIVATED for node in marked.graph.node)
    assert optimized(marked.SerializeToString(), tmp_path) == optimized(
        plain.SerializeToString(), tmp_path
    )


def test_a_layer_that_somebody_reads_meanwhile_is_left_as_it_is() -> None:
    marked = noted(model(f"{GEMM} y = Relu(c)"))
    marked.graph.node.append(helper.make_node("Neg", ["c"], ["z"]))
    marked.graph.output.append(helper.make_tensor_value_info("z", 1, None))
    rows = samples()["normal"]
    ours = results(marked.SerializeToString(), rows)
    np.testing.assert_array_equal(ours[0], np.maximum(-ours[1], 0))


def test_marks_that_are_wrong_change_nothing() -> None:
    marked = model("d = Reshape(x, image) c = Neg(d) y = Relu(c)")
    for node in marked.graph.node:
        node.doc_string = ACTIVATED
    assert layers_of(marked) == {}
    without = noted(model(f"{GEMM} y = Relu(c)"))
    del without.graph.node[0]
    without.graph.input[0].name = "c"
    assert layers_of(without) == {}


def test_of_two_names_the_whole_one_counts() -> None:
    """Where a name is the end of another one, or stands in a text."""
    plain = model("c = Gemm<transB = 1>(x, w, bias) ac = Neg(c) b = Sum(ac) y = Relu(b)")
    marked = noted(plain)
    marked.graph.node[2].op_type = "Gemm"
    marked.graph.node[1].name = "x\x12\x01b"
    marked.graph.node[3].doc_string = ACTIVATED
    (nodes,) = [n for n in layers_of(marked).values() if n]
    assert onnx.NodeProto.FromString(nodes[0]).input == ["ac"]


def test_places_that_are_taken_are_left_alone() -> None:
    outline = Outline.of(noted(model(f"{GEMM} y = Relu(c)")).SerializeToString())
    assert outline is not None
    assert [*activated_layers(outline)] == [0, 1]
    assert activated_layers(outline, taken={0}) == activated_layers(outline, taken={1}) == {}


def test_a_form_without_marks_leaves_the_work_to_onnxruntime() -> None:
    outline = Outline.of(noted(model(f"{GEMM} y = Relu(c)")).SerializeToString())
    assert outline is not None
    idle = idle_optimizers(outline)
    assert set(ACTIVATING) <= {*idle}
    assert not set(ACTIVATING) & {*idle_without_us(outline, idle)}
    assert outline.metadata(IDLE_OPTIMIZERS)


STEPS = {"windows of an image": (1, True), "every second element": (2, False)}


@pytest.mark.parametrize("name", STEPS)
def test_slices_side_by_side_are_blocks_only_if_they_skip_elements(name: str) -> None:
    """The gradient of a first layer's weights has such: it reads neighbours."""
    step, is_idle = STEPS[name]
    starts = [[0, 0], [1, 0], [0, 1], [1, 1]]
    constants = {f"s{i}": np.array(start) for i, start in enumerate(starts)}
    constants |= {f"e{i}": np.array(start) + 7 for i, start in enumerate(starts)}
    constants |= {"axes": np.array([2, 3]), "steps": np.array([step, step])}
    cuts = " ".join(f"p{i} = Slice(i, s{i}, e{i}, axes, steps)" for i in range(4))
    plain = model(
        f"i = Reshape(x, image) {cuts} y = Concat<axis = 1>(p0, p1, p2, p3)",
        CONSTANTS | constants,
    )
    outline = Outline.of(noted(plain).SerializeToString())
    assert ("SliceConcatToSpaceToDepthFusion" in idle_optimizers(outline)) is is_idle
