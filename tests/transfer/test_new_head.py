"""A new classifier in models of several exporters: the rest is the same, and errors say what is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtrain import artifacts, losses, transfer
from onnxtrain.api import Trainer
from onnxtrain.errors import ModelError, UnknownNameError
from tests.onnxblock.harness import run

from .models import CASES, OLD, SIDE, dropout, gemm, parsed, softmax, with_constants

DATA = Path(__file__).parent / "data"
RNG = np.random.default_rng(1)
IMAGES = RNG.normal(size=(4, 3, SIDE, SIDE)).astype(np.float32)


def feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    value = model.graph.input[0]
    last = value.type.tensor_type.shape.dim[3].dim_value == 3
    return {value.name: IMAGES.transpose(0, 2, 3, 1).copy() if last else IMAGES}


def weights(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def set_weight(model: onnx.ModelProto, name: str, value: np.ndarray) -> None:
    (tensor,) = [t for t in model.graph.initializer if t.name == name]
    assert list(tensor.dims) in (list(value.shape), list(value.T.shape))
    fitting = value if list(tensor.dims) == list(value.shape) else value.T
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(fitting), name))


@pytest.mark.parametrize("name", CASES)
def test_with_the_old_numbers_it_computes_what_it_did(name: str) -> None:
    case = CASES[name]
    model = with_constants(case.make())
    onnx.checker.check_model(model, full_check=True)
    head = transfer.new_head(model, OLD)
    onnx.checker.check_model(head.model, full_check=True)
    assert head.parameters == case.parameters
    old = weights(model)
    for new, stored in zip(head.parameters, (case.weight, case.bias)):
        set_weight(head.model, new, old[stored])
    (want,) = run(model, feeds(model))
    (got,) = run(head.model, feeds(model))
    np.testing.assert_allclose(got, want.reshape(4, OLD), rtol=1e-5, atol=1e-6)
    kept = {n: v for n, v in weights(head.model).items() if n in old and n != "shape"}
    assert {n for n in kept if n.startswith("c_")} == {"c_w", "c_b"}
    assert all(np.array_equal(v, old[n]) for n, v in kept.items())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("classes", [2, 7])
def test_other_numbers_of_classes(name: str, classes: int) -> None:
    model = with_constants(CASES[name].make())
    head = transfer.new_head(model, classes)
    (scores,) = run(head.model, feeds(model))
    assert scores.shape == (4, classes)
    if "Softmax" in {n.op_type for n in head.model.graph.node}:
        assert head.scores == "y.scores"
        np.testing.assert_allclose(scores.sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize(
    ("name", "layer"), [("resnet", "fc"), ("mobilenet", "classifier.1"), ("vit", "head")]
)
def test_models_of_torch(name: str, layer: str, exporter: str) -> None:
    """As its exporters wrote them: see make_data.py."""
    model = onnx.load(DATA / f"{name}_{exporter}.onnx")
    head = transfer.new_head(model, OLD)
    assert head.parameters == (f"{layer}.weight", f"{layer}.bias")
    for parameter in head.parameters:
        set_weight(head.model, parameter, weights(model)[parameter])
    (want,), (got,) = run(model, {"x": IMAGES}), run(head.model, {"x": IMAGES})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    other = transfer.new_head(model, 3)
    features = transfer.Features(other)({"x": IMAGES})
    part = transfer.head_model(other, features.shape)
    (want,), (got,) = run(other.model, {"x": IMAGES}), run(part, {other.features: features})
    assert want.shape == (4, 3)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_names_of_classes_are_in_the_metadata() -> None:
    head = transfer.new_head(gemm(), ["cat", "dog"])
    known = {p.key: p.value for p in head.model.metadata_props}
    assert json.loads(known[transfer.CLASS_NAMES]) == ["cat", "dog"]
    again = transfer.new_head(head.model, 3)  # numbers have no names, and the old ones are gone
    assert not again.model.metadata_props
    assert again.parameters == head.parameters


def test_a_sigmoid_becomes_a_softmax() -> None:
    """Cats against dogs with one score: two classes or more have one score each."""
    model = parsed(
        "g (float[N, 4] x) => (float[N] y) <int64[1] last = {1}>"
        "{ s = Gemm (x, w, b) p = Sigmoid (s) y = Squeeze (p, last) }",
        {"w": (4, 1), "b": (1,)},
    )
    head = transfer.new_head(model, 3)
    (y,) = run(head.model, {"x": RNG.normal(size=(5, 4)).astype(np.float32)})
    assert y.shape == (5, 3)
    np.testing.assert_allclose(y.sum(axis=1), 1.0, rtol=1e-5)


def test_a_shared_weight_stays_where_else_it_is_read() -> None:
    model = parsed(
        "g (int64[N] ids) => (float[N, 5] y) { e = Gather (w, ids) h = Tanh (e)"
        " y = Gemm <transB = 1> (h, w) }",
        {"w": (5, 6)},
    )
    head = transfer.new_head(model, 3)
    assert head.was_shared
    after = weights(head.model)
    assert np.array_equal(after["w"], weights(model)["w"])
    assert after[head.parameters[0]].shape == (3, 6)
    assert run(head.model, {"ids": np.array([1, 4])})[0].shape == (2, 3)


def test_a_weight_of_few_bits_is_replaced_by_floats() -> None:
    model = parsed(
        "g (float[N, 4] x) => (float[N, 5] y) <float scale = {0.1}>"
        "{ h = Tanh (x) w = DequantizeLinear (q, scale) y = MatMul (h, w) }",
        {},
    )
    codes = RNG.integers(-5, 5, (4, 5)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(codes, "q"))
    head = transfer.new_head(model, 3)
    assert "DequantizeLinear" not in {n.op_type for n in head.model.graph.node}
    assert run(head.model, {"x": np.ones((2, 4), np.float32)})[0].shape == (2, 3)


def test_a_half_precision_model_gets_a_classifier_of_float32() -> None:
    model = parsed(
        "g (float16[N, 4] x) => (float16[N, 5] y) { h = Relu (x) y = MatMul (h, w) }", {}
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 5), np.float16), "w"))
    head = transfer.new_head(model, 3)
    assert head.model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert run(head.model, {"x": np.ones((2, 4), np.float16)})[0].shape == (2, 3)


TWO = (
    "g (float[N, 4] x) => (float[N, 5] a, float[N, 2] b, float[N, 4] h)"
    "{ h = Tanh (x) a = Gemm (h, wa, ba) b = Gemm (h, wb, bb) }"
)


def test_one_of_several_outputs_is_chosen() -> None:
    model = parsed(TWO, {"wa": (4, 5), "ba": (5,), "wb": (4, 2), "bb": (2,)})
    with pytest.raises(ModelError, match=r"2 classifiers: 'a' has wa \(4 → 5\).*--loss-output a"):
        transfer.new_head(model, 3)
    head = transfer.new_head(model, 3, of="b")
    assert (head.output, head.dropped, head.layer) == ("b", ("a", "h"), "wb (4 → 2)")
    assert [o.name for o in head.model.graph.output] == ["b"]
    assert "wa" not in weights(head.model)
    with pytest.raises(UnknownNameError, match="no output named 'c'"):
        transfer.new_head(model, 3, of="c")
    with pytest.raises(ModelError, match=r"'h' comes from Tanh\."):
        transfer.new_head(model, 3, of="h")


@pytest.mark.parametrize(
    ("graph", "weights_of", "says"),
    [
        ("(float[N, 4] x) => (float[N, 4] y) { y = Relu (x) }", {}, "an input of the model"),
        (
            (
                "(float[N, 4] x) => (float[N, 5] y) { a = MatMul (x, u) b = MatMul (x, v)"
                " y = Add (a, b) }"
            ),
            {"u": (4, 5), "v": (4, 5)},
            r"comes from Add\.",
        ),
        (
            "(float[N, 4] x) => (int64[N] y) { a = MatMul (x, u) y = ArgMax <keepdims = 0> (a) }",
            {"u": (4, 5)},
            "is int64 and holds no scores",
        ),
        (
            (
                "(float[N, 4] x) => (float[N, 5] y) <float s = {0.1}, int8 z = {0}>"
                "{ a = MatMul (x, u) q = QuantizeLinear (a, s, z) y = DequantizeLinear (q, s, z) }"
            ),
            {"u": (4, 5)},
            r"DequantizeLinear \(quantised\)",
        ),
        (
            "(float[N, 4, 2, 2] x) => (float[N, 4, 2, 2] y){ y = Conv <group = 4> (x, u) }",
            {"u": (4, 1, 1, 1)},
            "a convolution of groups",
        ),
    ],
)
def test_without_a_classifier_the_error_says_what_there_is(graph, weights_of, says) -> None:
    with pytest.raises(ModelError, match=f"no classifier that can be replaced.*{says}"):
        transfer.new_head(parsed(f"g {graph}", weights_of), 3)


def test_one_class_is_too_few() -> None:
    with pytest.raises(ModelError, match="two classes or more, and there is 1"):
        transfer.new_head(gemm(), ["cat"])


def test_an_old_opset_is_refused() -> None:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])],
            [numpy_helper.from_array(np.ones((4, 5), np.float32), "w")],
        ),
        opset_imports=[helper.make_opsetid("", 6)], ir_version=3,
    )  # fmt: skip
    with pytest.raises(ModelError, match="needs opset 7"):
        transfer.new_head(model, 3)


# --- features -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_features_and_classifier_are_the_whole(name: str) -> None:
    model = with_constants(CASES[name].make())
    head = transfer.new_head(model, 3)
    given = feeds(model)
    features = transfer.Features(head)(given, batch_size=3)
    part = transfer.head_model(head, features.shape)
    assert [i.name for i in part.graph.input] == [head.features]
    assert set(head.parameters) <= set(weights(part))
    assert "c_w" not in weights(part)
    (want,), (got,) = run(head.model, given), run(part, {head.features: features})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_model_of_one_row_gives_features_of_many() -> None:
    model = parsed(
        "g (float[1, 4] x) => (float[1, 5] y) { h = Tanh (x) y = Gemm (h, w, b) }",
        {"w": (4, 5), "b": (5,)},
    )
    head = transfer.new_head(model, 3)
    x = RNG.normal(size=(5, 4)).astype(np.float32)
    extract = transfer.Features(head)
    assert extract.batch == 1
    np.testing.assert_allclose(extract({"x": x}), np.tanh(x), rtol=1e-5)


def test_features_that_change_are_not_computed_once() -> None:
    model = dropout()
    head = transfer.new_head(model, 3)  # the Dropout right before the classifier belongs to it
    assert transfer.Features(head)({"x": IMAGES}).shape == (4, 6)
    kinds = [n.op_type for n in transfer.head_model(head, (4, 6)).graph.node]
    assert "Dropout" in kinds
    model.graph.node[0].input[0] = "dropped"
    early = helper.make_node("Dropout", ["x", "ratio", "on"], ["dropped"], "early")
    model.graph.node.insert(0, early)
    with pytest.raises(ModelError, match="Dropout 'early' before the classifier"):
        transfer.Features(transfer.new_head(model, 3))


def test_training_on_features_is_training_the_head(tmp_path) -> None:
    """The same curve and the same model, with or without features computed once."""
    model = softmax()
    head = transfer.new_head(model, 3)
    x = RNG.normal(size=(24, 3, SIDE, SIDE)).astype(np.float32)
    y = np.arange(24) % 3
    x[y == 1] += 0.7
    features = transfer.Features(head)({"x": x})
    trained = []
    for folder, graph, data in (
        ("whole", head.model, x),
        ("part", transfer.head_model(head, features.shape), features),
    ):
        (tmp_path / folder).mkdir()
        artifacts.generate_artifacts(
            graph, requires_grad=list(head.parameters), loss=losses.CrossEntropyLoss(),
            loss_input_names=[head.scores], optimizer=artifacts.OptimType.AdamW,
            artifact_directory=tmp_path / folder,
        )  # fmt: skip
        trainer = Trainer.from_directory(tmp_path / folder, learning_rate=0.05)
        history = trainer.fit((data, y), 5, 8, progress=False)
        transfer.with_weights(head.model, trainer.state, tmp_path / f"{folder}.onnx")
        trained.append((history["loss"], onnx.load(tmp_path / f"{folder}.onnx")))
    (first, a), (second, b) = trained
    np.testing.assert_allclose(first, second, rtol=1e-4)
    assert first[-1] < first[0]
    np.testing.assert_allclose(run(a, {"x": x})[0], run(b, {"x": x})[0], rtol=1e-3, atol=1e-5)
    changed = {n for n, v in weights(a).items() if not np.array_equal(v, weights(head.model)[n])}
    assert changed == set(head.parameters)


# --- how images are scaled ------------------------------------------------------------------------


def front(nodes: str, size: str = "3, 8, 8", **constants: object) -> onnx.ModelProto:
    model = parsed(
        f"g (float[N, {size}] x) => (float[N, M] y) {{ {nodes} f = Flatten (n)"
        " y = MatMul (f, w) }",
        {"w": (192, 5)},
    )
    for name, value in constants.items():
        tensor = numpy_helper.from_array(np.array(value, np.float32), name)
        model.graph.initializer.append(tensor)
    return model


RGB = ((3, 1, 1), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def channels(values) -> np.ndarray:
    return np.array(values, np.float32).reshape(3, 1, 1)


@pytest.mark.parametrize(
    ("model", "white"),
    [
        (front("n = Identity (x)"), None),
        (front("n = Div (x, a)", a=255.0), 255),
        (front("n = Mul (x, a)", a=1 / 255), 255),
        (front("d = Div (x, a) n = Sub (d, b)", a=127.5, b=1.0), 255),
        (front("s = Sub (x, a) n = Div (s, b)", a=channels(RGB[1]), b=channels(RGB[2])), 1),
        (
            front(
                "z = Mul (x, c) s = Sub (z, a) n = Div (s, b)",
                a=channels(RGB[1]), b=channels(RGB[2]), c=1 / 255,
            ),
            255,
        ),
        (front("n = Sub (x, a)", a=channels([123.7, 116.8, 103.9])), 255),
        (front("m = Mul (x, a) n = Sub (m, b)", a=2.0, b=1.0), 1),
        (
            front(
                "m = Transpose <perm = [0, 3, 1, 2]> (x) n = Sub (m, a)", "8, 8, 3",
                a=channels([103.9, 116.8, 123.7]),
            ),
            255,
        ),
        (
            front(
                "n = BatchNormalization (x, s, b, m, v)",
                s=[1, 1, 1], b=[0, 0, 0], m=[120, 115, 110], v=[3600, 3600, 3600],
            ),
            255,
        ),
        (front("n = Mul (x, a)", a=1e-9), None),
        (front("n = Relu (x)"), None),
    ],
)  # fmt: skip
def test_what_a_model_does_to_its_images_itself(model: onnx.ModelProto, white: int | None) -> None:
    known = transfer.normalization(model)
    assert (None if known is None else known.white) == white


def test_the_numbers_of_a_front() -> None:
    model = front("d = Div (x, a) s = Sub (d, b) n = Div (s, c)", a=255.0, b=channels(RGB[1]),
                  c=channels(RGB[2]))  # fmt: skip
    known = transfer.normalization(model)
    np.testing.assert_allclose(known.scale, 1 / 255 / np.array(RGB[2]), rtol=1e-5)
    np.testing.assert_allclose(known.shift, -np.array(RGB[1]) / np.array(RGB[2]), rtol=1e-5)


def test_the_page_names_what_is_said() -> None:
    """The message for a model without a classifier ends with the remedy."""
    with pytest.raises(ModelError) as error:
        transfer.new_head(parsed("g (float[N, 4] x) => (float[N, 4] y) { y = Relu (x) }", {}), 3)
    assert re.search(r"--loss-output.*before it was cut, fused or quantised", str(error.value))
