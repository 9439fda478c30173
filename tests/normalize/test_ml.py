"""scikit-learn models converted by skl2onnx: the same before and after, and differentiable."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxtrain
from onnxtrain.errors import ModelError, UnreachableError

from .compare import assert_same, normalized, op_model, operators, run_ort

pytest.importorskip("skl2onnx")
pytest.importorskip("sklearn")

from skl2onnx import to_onnx
from sklearn.datasets import make_classification, make_regression
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, Normalizer, StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeRegressor

ML = "ai.onnx.ml"
XC, YC = make_classification(80, 6, n_informative=4, n_classes=3, random_state=0)
XR, YR = make_regression(80, 6, n_targets=2, random_state=0)
X2, Y2 = make_classification(80, 6, random_state=1)
XC, XR, X2 = (a.astype(np.float32) for a in (XC, XR, X2))
RNG = np.random.default_rng(2)


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def fitted(estimator: Any, x: np.ndarray, y: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(x, y)


ESTIMATORS = {
    "LinearRegression": (LinearRegression(), XR, YR),
    "Ridge, one target": (Ridge(), XR, YR[:, 0]),
    "LogisticRegression, binary": (LogisticRegression(), X2, Y2),
    "LogisticRegression, 3 classes": (LogisticRegression(), XC, YC),
    "LogisticRegression, strings": (LogisticRegression(), XC, np.array(["a", "b", "c"])[YC]),
    "MLPClassifier": (MLPClassifier(max_iter=5, random_state=0), XC, YC),
    "MLPClassifier, binary": (MLPClassifier(max_iter=5, random_state=0), X2, Y2),
    "MLPRegressor": (MLPRegressor(max_iter=5, random_state=0), XR, YR),
    "StandardScaler + LogisticRegression": (
        make_pipeline(StandardScaler(), LogisticRegression()), XC, YC,
    ),
    "MinMaxScaler + Normalizer + LinearRegression": (
        make_pipeline(MinMaxScaler(), Normalizer(), LinearRegression()), XR, YR,
    ),
}  # fmt: skip


@pytest.mark.parametrize("zipmap", [False, True])
@pytest.mark.parametrize("opset", [12, 15, 18])
@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_converted_estimators(name: str, opset: int, zipmap: bool) -> None:
    estimator, x, y = ESTIMATORS[name]
    estimator = fitted(estimator, x, y)
    last = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
    classifier = hasattr(last, "classes_")
    if zipmap and not classifier:
        pytest.skip("only classifiers have a ZipMap")
    options = {id(last): {"zipmap": zipmap}} if classifier else {}
    model = to_onnx(estimator, x[:1], options=options, target_opset={"": opset, ML: 3})
    after = normalized(model)
    assert not any(o.startswith(ML) for o in operators(after))
    if zipmap:
        plain = to_onnx(
            estimator, x[:1], options={id(last): {"zipmap": False}},
            target_opset={"": opset, ML: 3},
        )  # fmt: skip
        expected, got = run_ort(plain, {"X": x}), run_ort(after, {"X": x})
        np.testing.assert_array_equal(got[0], expected[0])
        np.testing.assert_allclose(got[1], expected[1], rtol=1e-4, atol=1e-5)
        return
    expected = run_ort(model, {"X": x})
    got = run_ort(after, {"X": x})
    for a, b in zip(got, expected):
        if a.dtype.kind in "OUS":
            assert a.tolist() == b.tolist()
        else:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_coefficients_are_trainable_and_have_the_right_gradient() -> None:
    estimator = fitted(LinearRegression(), XR, YR)
    model = to_onnx(estimator, XR[:1], target_opset={"": 18, ML: 3})
    gradient = onnxtrain.differentiate(model, vjp=True)
    names = [o.name for o in gradient.graph.output]
    node = next(n for n in model.graph.node if n.op_type == "LinearRegressor").name
    assert f"{node}.coefficients_grad" in names
    assert f"{node}.intercepts_grad" in names
    seed = f(*YR.shape)
    results = dict(zip(names, run_ort(gradient, {"X": XR, "variable_grad": seed})))
    np.testing.assert_allclose(results[f"{node}.coefficients_grad"], seed.T @ XR, rtol=1e-4)
    np.testing.assert_allclose(results[f"{node}.intercepts_grad"].ravel(), seed.sum(0), rtol=1e-4)


def test_coefficients_can_be_named() -> None:
    model = to_onnx(fitted(Ridge(), XR, YR), XR[:1], target_opset={"": 18, ML: 3})
    name = f"{model.graph.node[0].name}.coefficients"
    gradient = onnxtrain.differentiate(model, wrt=[name, "X"], vjp=True)
    assert [o.name for o in gradient.graph.output][1:] == [f"{name}_grad", "X_grad"]


@pytest.mark.parametrize("estimator", [DecisionTreeRegressor(max_depth=3), SVR()])
def test_what_has_a_gradient_for_its_input(estimator: Any) -> None:
    """A tree is a step function, a support vector machine is smooth."""
    model = to_onnx(fitted(estimator, XR, YR[:, 0]), XR[:1], target_opset={"": 18, ML: 3})
    x = XR[:2]
    if isinstance(estimator, SVR):
        onnxtrain.check_gradient(model, {"X": x}, wrt=["X"]).raise_if_wrong()
        return
    with pytest.raises(UnreachableError, match="X"):
        onnxtrain.differentiate(model, wrt=["X"], vjp=True)
    gradient = onnxtrain.differentiate(model, wrt=["X"], vjp=True, allow_unused=True)
    assert not run_ort(gradient, {"X": x, "variable_grad": f(2, 1)})[-1].any()


OPERATORS: list[tuple[str, list[np.ndarray], dict[str, Any], int]] = [
    ("LinearRegressor", [f(4, 3)], {"coefficients": [1.0, 2, 3], "intercepts": [0.5]}, 1),
    ("LinearRegressor", [f(4, 3)], {"coefficients": [1.0] * 6, "targets": 2}, 1),
    ("LinearClassifier", [f(4, 3)],
     {"coefficients": [1.0, -2, 3], "intercepts": [0.1], "classlabels_ints": [5, 7],
      "post_transform": "LOGISTIC"}, 2),
    ("LinearClassifier", [f(4, 3)],
     {"coefficients": [1.0, -2, 3, 3, 1, 0, 0, 1, 1], "intercepts": [0.1, 0.2, 0.3],
      "classlabels_ints": [5, 7, 9], "post_transform": "SOFTMAX", "multi_class": 1}, 2),
    ("LinearClassifier", [f(4, 3)],
     {"coefficients": [1.0, -2, 3, 3, 1, 0], "intercepts": [0.1, 0.2],
      "classlabels_ints": [0, 1], "post_transform": "NONE"}, 2),
    *(("LinearClassifier", [X2[:4, :3]],
       {"coefficients": [1.0, -2, 3], "intercepts": [0.1], "classlabels_ints": [5, 7],
        "post_transform": post}, 2)
      for post in ("NONE", "SOFTMAX", "SOFTMAX_ZERO")),
    *(("SVMRegressor", [f(4, 3)],
       {"coefficients": [0.5, -1.5], "kernel_params": [0.7, 0.2, 3.0], "kernel_type": kernel,
        "n_supports": 2, "rho": [0.3], "support_vectors": [1.0, -2, 3, 0.5, 1, 0],
        "one_class": one}, 1)
      for kernel, one in (("LINEAR", 0), ("POLY", 0), ("RBF", 0), ("SIGMOID", 0), ("RBF", 1))),
    ("SVMRegressor", [f(4, 3)],
     {"coefficients": [0.5, -1.5, 1.0], "kernel_params": [0.0, 0.0, 3.0],
      "kernel_type": "LINEAR", "rho": [0.3]}, 1),
    *(("SVMClassifier", [f(6, 3)],
       {"coefficients": f(5 * (len(vectors) - 1)).tolist(), "kernel_type": kernel,
        "kernel_params": [0.7, 0.2, 3.0], "rho": f(3).tolist(), "classlabels_ints": [5, 7, 9][:n],
        "support_vectors": f(15).tolist(), "vectors_per_class": vectors, "post_transform": post}
       | more, 2)
      for n, vectors, kernel, post, more in (
          (2, [2, 3], "RBF", "NONE", {}),
          (2, [2, 3], "POLY", "LOGISTIC", {}),
          (2, [2, 3], "LINEAR", "SOFTMAX", {}),
          (3, [2, 1, 2], "RBF", "NONE", {}),
          (3, [2, 1, 2], "SIGMOID", "LOGISTIC", {}))),
    *(("SVMClassifier", [f(6, 3)],
       {"coefficients": values, "rho": [-0.2], "kernel_params": [0.0, 0.0, 3.0],
        "classlabels_ints": [5, 7, 9][:len(values) // 3]}, 2)
      for values in ([0.5, -1, 0.2, 0.1, 1, -1], [0.5, 1, 0.2, 0.1, 1, 1], f(9).tolist())),
    ("Scaler", [f(4, 3)], {"offset": [1.0, 2, 3], "scale": [2.0, 3, 4]}, 1),
    ("Scaler", [f(4, 3)], {"offset": [1.0], "scale": [2.0]}, 1),
    ("Scaler", [np.arange(6).reshape(2, 3)], {"offset": [1.0, 2, 3], "scale": [2.0, 3, 4]}, 1),
    ("Normalizer", [f(4, 3)], {"norm": "L1"}, 1),
    ("Normalizer", [np.vstack([f(2, 3), np.zeros((1, 3), np.float32)])], {"norm": "L2"}, 1),
    ("Normalizer", [np.abs(f(4, 3))], {"norm": "MAX"}, 1),
    ("Imputer", [np.array([[1, np.nan], [np.nan, 2]], np.float32)],
     {"imputed_value_floats": [5.0, 6.0], "replaced_value_float": float("nan")}, 1),
    ("Imputer", [np.array([[1, 0], [0, 2]], np.float32)],
     {"imputed_value_floats": [5.0], "replaced_value_float": 0.0}, 1),
    ("FeatureVectorizer", [f(2, 3), f(2, 2)], {"inputdimensions": [3, 2]}, 1),
    ("ArrayFeatureExtractor", [f(4, 3), np.array([2, 0])], {}, 1),
    ("ArrayFeatureExtractor", [f(3), np.array([[2, 0]])], {}, 1),
    ("Binarizer", [f(4, 3)], {"threshold": 0.2}, 1),
]  # fmt: skip


def name_of(number: int, op: str, attributes: dict[str, Any]) -> str:
    """As in "LinearClassifier-2,2 classes,LOGISTIC"."""
    classes, post = attributes.get("classlabels_ints"), attributes.get("post_transform")
    return f"{op}-{number}" + (f",{len(classes)} classes,{post}" if classes else "")


@pytest.mark.parametrize(
    "case", OPERATORS, ids=[name_of(i, c[0], c[2]) for i, c in enumerate(OPERATORS)]
)
def test_operators(case: tuple[str, list[np.ndarray], dict[str, Any], int]) -> None:
    op, arrays, attributes, outputs = case
    model, feeds = op_model(
        op, arrays, opset=17, domain=ML, outputs=outputs, imports={ML: 3}, **attributes
    )
    after = normalized(model)
    assert not any(o.startswith(ML) for o in operators(after))
    assert_same(model, after, feeds, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["LinearClassifier", "SVMClassifier"])
def test_transforms_that_are_not_there_are_refused(op: str) -> None:
    """onnxruntime gives NaN there, for one score of two classes."""
    wanted = f"{op}-", "2 classes,LOGISTIC"
    cases = {name_of(0, c[0], c[2]): c[2] for c in OPERATORS}
    (attributes,) = [a for name, a in cases.items() if all(part in name for part in wanted)]
    model, _ = op_model(
        op, [X2[:4, :3]], opset=17, domain=ML, outputs=2, imports={ML: 3},
        **attributes | {"post_transform": "PROBIT"},
    )  # fmt: skip
    with pytest.raises(ModelError, match="PROBIT"):
        normalized(model)


PROBABILITIES = {
    "kernel_type": "RBF", "kernel_params": [0.7, 0.0, 3.0], "post_transform": "NONE",
    "support_vectors": f(15).tolist(),
}  # fmt: skip


def test_probabilities_of_two_classes() -> None:
    """onnxruntime iterates until nothing changes by 0.0025."""
    model, feeds = op_model(
        "SVMClassifier", [f(6, 3)], opset=17, domain=ML, outputs=2, imports={ML: 3},
        coefficients=f(5).tolist(), rho=[0.2], prob_a=[-0.8], prob_b=[0.3],
        classlabels_ints=[5, 7], vectors_per_class=[2, 3], **PROBABILITIES,
    )  # fmt: skip
    assert_same(model, normalized(model), feeds, rtol=0, atol=2.5e-3)


def test_probabilities_of_more_classes_are_refused() -> None:
    model, _ = op_model(
        "SVMClassifier", [f(6, 3)], opset=17, domain=ML, outputs=2, imports={ML: 3},
        coefficients=f(10).tolist(), rho=[0.2] * 3, prob_a=[-0.8] * 3, prob_b=[0.3] * 3,
        classlabels_ints=[5, 7, 9], vectors_per_class=[2, 1, 2], **PROBABILITIES,
    )  # fmt: skip
    with pytest.raises(ModelError, match="probability=False"):
        normalized(model)


@pytest.mark.filterwarnings("ignore:Attribute `prob:FutureWarning")  # skl2onnx reads them
@pytest.mark.parametrize("classes", [2, 3])
def test_support_vector_classifiers_have_gradients(classes: int) -> None:
    kinds = np.digitize(XR[:, 0], np.linspace(-0.5, 0.5, classes - 1))
    model = to_onnx(
        fitted(SVC(), XR, kinds), XR[:1], options={"zipmap": False}, target_opset={"": 18, ML: 3}
    )
    onnxtrain.check_gradient(model, {"X": XR[:3]}).raise_if_wrong()
    onnxtrain.check_gradient(model, {"X": XR[:3]}, wrt=["X"]).raise_if_wrong()


def test_a_zipmap_that_others_use_is_refused() -> None:
    nodes = [
        helper.make_node("ZipMap", ["x"], ["z"], domain=ML, classlabels_int64s=[0, 1], name="zip"),
        helper.make_node("SequenceLength", ["z"], ["n"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [2, 2])], [onnx.ValueInfoProto(name="n")]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    with pytest.raises(ModelError, match="zipmap"):
        normalized(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def test_trees_and_label_encoders_stay() -> None:
    model, _ = op_model(
        "LabelEncoder", [np.array([1, 2])], opset=18, domain=ML, imports={ML: 3},
        keys_int64s=[1, 2], values_floats=[0.5, 1.5],
    )  # fmt: skip
    assert operators(normalized(model)) == {f"{ML}.LabelEncoder"}
