"""Labels that are no classes fail a run, whoever runs it; those that are ignored do not count."""

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper

import onnxtrain
from onnxtrain import onnxblock
from tests.onnxblock.harness import only_standard, run
from tests.onnxblock.test_losses import build

pytestmark = pytest.mark.slow

L = onnxblock.loss
RNG = np.random.default_rng(5)
X = RNG.normal(size=(4, 5)).astype(np.float32)
GOOD = np.array([0, 4, -100, 2])
LOWEST = -(2**63)
BAD = {"-1": -1, "last wrapped": -5, "too large": 5, "far": 10**12, "NaN as integer": LOWEST}

FORMS = {
    "cross entropy": (L.CrossEntropyLoss, {}),
    "cross entropy, none ignored": (L.CrossEntropyLoss, {"ignore_index": None}),
    "weights": (L.CrossEntropyLoss, {"weight": np.arange(1, 6, dtype=np.float32)}),
    "smoothing": (L.CrossEntropyLoss, {"label_smoothing": 0.1}),
    "last axis": (L.CrossEntropyLoss, {"class_axis": -1, "label_smoothing": 0.1}),
    "sum": (L.CrossEntropyLoss, {"reduction": "sum"}),
    "none": (L.CrossEntropyLoss, {"reduction": "none"}),
    "nll": (L.NLLLoss, {}),
    "nll, none ignored": (L.NLLLoss, {"ignore_index": None}),
    "multi margin": (L.MultiMarginLoss, {}),
}


def gradient_model(name, opset=18):
    cls, arguments = FORMS[name]
    model, _ = build(cls, arguments, [X], ["labels"], opset=opset)
    if arguments.get("reduction") == "none":
        return onnxtrain.differentiate(model, wrt=["x0"], vjp=True)
    return onnxtrain.differentiate(model, wrt=["x0"])


def feeds_of(model, labels):
    feeds = {"x0": X, "labels": labels}
    for value in model.graph.input:
        if value.name.endswith("_grad"):
            feeds[value.name] = np.ones(4, np.float32)
    return feeds


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", FORMS)
def test_what_is_no_class_fails_the_run(name, bad):
    """Plain onnxruntime runs the graph, so nobody has looked at the labels before."""
    model = gradient_model(name)
    assert only_standard(model)
    run(model, feeds_of(model, np.array([0, 4, 3, 2])))
    with pytest.raises(Exception, match=r"[Oo]ut of"):
        run(model, feeds_of(model, np.array([0, 4, BAD[bad], 2])))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("opset", [7, 9, 11, 13])
def test_composed_losses_fail_at_every_opset(opset, bad):
    model, _ = build(L.NLLLoss, {}, [X], ["labels"], opset=opset)
    run(model, {"x0": X, "labels": GOOD})
    with pytest.raises(Exception, match=r"[Oo]ut of"):
        run(model, {"x0": X, "labels": np.array([0, 4, BAD[bad], 2])})


@pytest.mark.parametrize("name", [n for n in FORMS if "none ignored" not in n])
def test_all_ignored(name):
    """The mean of nothing is NaN, as in PyTorch; a sum is 0; no gradient is anything but 0."""
    model = gradient_model(name)
    outputs = run(model, feeds_of(model, np.full(4, -100)))
    reduction = FORMS[name][1].get("reduction", "mean")
    assert np.isnan(outputs[0]).all() if reduction == "mean" else not outputs[0].any()
    np.testing.assert_array_equal(outputs[-1], np.zeros_like(X))


@pytest.mark.parametrize("value", [1.5, "a", True])
def test_ignore_index_is_a_whole_number(value):
    with pytest.raises(RuntimeError, match="ignore_index is a whole number or None"):
        L.CrossEntropyLoss(ignore_index=value)


def test_probabilities_have_no_label_to_ignore():
    L.CrossEntropyLoss(probabilities=True)
    with pytest.raises(RuntimeError, match="no label to ignore"):
        L.CrossEntropyLoss(probabilities=True, ignore_index=3)


# --- operators in graphs made by hand -----------------------------------------------------------


def by_hand(op, ignore_index, kind=TensorProto.INT64, classes=5, before=(), reduction="mean"):
    """A loss operator on x·w; `before` are nodes from the input `given` to the labels `t`."""
    attributes = {} if ignore_index is None else {"ignore_index": ignore_index}
    name = "given" if before else "t"
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["s"]),
        *before,
        helper.make_node("LogSoftmax", ["s"], ["scores"], axis=1),
        helper.make_node(op, ["scores", "t"], ["loss"], reduction=reduction, **attributes),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 5]),
         helper.make_tensor_value_info("w", TensorProto.FLOAT, [5, classes]),
         helper.make_tensor_value_info(name, kind, ["N"])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [onnx.numpy_helper.from_array(np.array(1), "one")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return onnxtrain.differentiate(model, wrt=["x", "w"])


OPERATORS = ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"]
W = RNG.normal(size=(5, 5)).astype(np.float32)


def expected(labels, ignore_index, reduction="mean"):
    x, w = (torch.tensor(a, requires_grad=True) for a in (X, W))
    loss = F.cross_entropy(
        x @ w, torch.tensor(labels),
        ignore_index=-12345 if ignore_index is None else ignore_index, reduction=reduction,
    )  # fmt: skip
    loss.backward()
    return [loss.detach().numpy(), x.grad.numpy(), w.grad.numpy()]


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("ignore_index", [None, -100, -1, -5, 2, 5])
@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32])
@pytest.mark.parametrize("classes", [5, "C"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_by_hand(op, ignore_index, kind, classes, reduction):
    """Loss and gradient are PyTorch's for every label that is allowed, and an error for others."""
    model = by_hand(op, ignore_index, kind, classes, reduction=reduction)
    dtype = np.int64 if kind == TensorProto.INT64 else np.int32
    labels = np.array([0, 4, 3 if ignore_index is None else ignore_index, 1])
    got = run(model, {"x": X, "w": W, "t": labels.astype(dtype)})
    for g, want in zip(got, expected(labels, ignore_index, reduction), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-4, atol=1e-6)
    for bad in (-1, -2, -5, -100, 5, np.iinfo(dtype).min, np.iinfo(dtype).max):
        if bad == ignore_index:
            continue
        labels[1] = bad
        with pytest.raises(Exception, match="Out of range"):
            run(model, {"x": X, "w": W, "t": labels.astype(dtype)})


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("ignore_index", [None, -100])
def test_labels_that_the_graph_computes(op, ignore_index):
    """Labels from 1 on, made from 0 on by the graph: a 0 becomes -1, which must not be class 4."""
    model = by_hand(op, ignore_index, before=[helper.make_node("Sub", ["given", "one"], ["t"])])
    got = run(model, {"x": X, "w": W, "given": np.array([1, 5, 3, 2])})
    for g, want in zip(got, expected(np.array([0, 4, 2, 1]), ignore_index), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-4, atol=1e-6)
    with pytest.raises(Exception, match="Out of range"):
        run(model, {"x": X, "w": W, "given": np.array([1, 0, 3, 2])})


def test_labels_given_as_floats():
    cast = helper.make_node("Cast", ["given"], ["t"], to=TensorProto.INT64)
    model = by_hand("SoftmaxCrossEntropyLoss", -100, TensorProto.FLOAT, before=[cast])
    run(model, {"x": X, "w": W, "given": np.array([0, 1, 2, -100], np.float32)})
    for bad in (-1.0, np.nan):
        with pytest.raises(Exception, match="Out of range"):
            run(model, {"x": X, "w": W, "given": np.array([0, 1, 2, bad], np.float32)})


def test_second_output_is_read():
    """With its log-probabilities in use the operator stays whole, and its labels are guarded."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 5] x, int64[N] t) => (float loss) {
            l, p = SoftmaxCrossEntropyLoss <ignore_index = -100> (x, t)
            q = ReduceSum <keepdims = 0> (p)
            loss = Add (l, q)
        }"""
    )
    gradient = onnxtrain.differentiate(model, wrt=["x"])
    x = torch.tensor(X, requires_grad=True)
    want = F.cross_entropy(x, torch.tensor(GOOD)) + F.log_softmax(x, 1).sum()
    want.backward()
    loss, dx = run(gradient, {"x": X, "t": GOOD})
    np.testing.assert_allclose(loss, want.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-4, atol=1e-6)
    with pytest.raises(Exception, match="Out of range"):
        run(gradient, {"x": X, "t": np.array([0, 1, 2, -1])})


@pytest.mark.parametrize(
    "text",
    ["{", "{}", "3", '["x"]', '[{"value": 1}]', '[{"value": "y"}]', "[" * 100_000,
     '[{"value": "y", "classes": "3", "ignore_index": -100}]',
     '[{"value": "y", "classes": 3, "ignore_index": -100, "skip": 0.5}]'],
)  # fmt: skip
def test_what_a_file_says_of_its_labels_is_not_trusted(text):
    from onnxtrain.errors import ModelError
    from onnxtrain.graph.labels import declared

    with pytest.raises(ModelError, match=r"onnxtrain\.labels"):
        declared(text)
