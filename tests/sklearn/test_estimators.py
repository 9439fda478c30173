"""OnnxClassifier and OnnxRegressor: starting models, weights, stopping, pipelines, searches."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain import optim
from onnxtrain.errors import OnnxTrainError
from onnxtrain.sklearn import ConvergenceError, OnnxClassifier, OnnxRegressor
from tests.sklearn.models import classes, linear, parse, regression

skl2onnx = pytest.importorskip("skl2onnx")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
X, Y = regression()
CX, CY = classes()
NAMES = np.array(["ash", "birch", "cedar"])[CY]


def converted(model: Any, features: Any, **options: Any) -> onnx.ModelProto:
    return skl2onnx.to_onnx(model, features[:1], options={id(model): options} if options else None)


# -- fitted scikit-learn models are trained on -----------------------------------------------------


@pytest.mark.parametrize("zipmap", [True, False])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("kind", ["logistic", "mlp"])
def test_a_fitted_classifier_is_trained_on(kind: str, count: int, zipmap: bool) -> None:
    features, labels = classes(count=count)
    if kind == "logistic":
        fitted: Any = LogisticRegression(max_iter=2).fit(features, labels)
    else:
        fitted = MLPClassifier((8,), max_iter=3, random_state=0).fit(features, labels)
    onx = converted(fitted, features, zipmap=zipmap)
    still = OnnxClassifier(onx, optimizer="sgd", learning_rate=1e-12, max_iter=1, penalty=None)
    still.fit(features, labels)
    np.testing.assert_allclose(
        still.predict_proba(features), fitted.predict_proba(features), rtol=1e-3, atol=1e-5
    )
    before = log_loss(labels, fitted.predict_proba(features))
    trained = OnnxClassifier(onx, learning_rate=0.02, max_iter=40, random_state=0)
    trained.fit(features, labels)
    assert log_loss(labels, trained.predict_proba(features)) < 0.8 * before
    onnx.checker.check_model(trained.onnx_model_)
    session = onnxruntime.InferenceSession(trained.onnx_model_.SerializeToString())
    (name,) = (i.name for i in session.get_inputs())
    assert session.run(None, {name: features}) is not None


def test_the_trained_model_predicts_what_the_estimator_predicts() -> None:
    fitted = MLPClassifier((8,), max_iter=3, random_state=0).fit(CX, NAMES)
    onx = converted(fitted, CX, zipmap=False)
    trained = OnnxClassifier(onx, learning_rate=0.02, max_iter=30, random_state=0).fit(CX, NAMES)
    session = onnxruntime.InferenceSession(trained.onnx_model_.SerializeToString())
    label, probabilities = session.run(None, {"X": CX})
    np.testing.assert_array_equal(label, trained.predict(CX))
    np.testing.assert_allclose(probabilities, trained.predict_proba(CX), rtol=1e-4, atol=1e-6)
    assert trained.score(CX, NAMES) > 0.9


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_a_fitted_regressor_is_trained_on(kind: str) -> None:
    half = len(X) // 10
    if kind == "linear":
        fitted: Any = LinearRegression().fit(X[:half], Y[:half] * 0.5)
    else:
        fitted = MLPRegressor(
            hidden_layer_sizes=(10,), max_iter=3, random_state=0
        ).fit(X, Y)  # fmt: skip
    onx = converted(fitted, X)
    still = OnnxRegressor(onx, optimizer="sgd", learning_rate=1e-12, max_iter=1).fit(X, Y)
    np.testing.assert_allclose(still.predict(X), fitted.predict(X), rtol=1e-3, atol=1e-4)
    trained = OnnxRegressor(onx, learning_rate=0.05, max_iter=200, random_state=0).fit(X, Y)
    assert trained.score(X, Y) > max(0.9, fitted.score(X, Y))
    session = onnxruntime.InferenceSession(trained.onnx_model_.SerializeToString())
    predicted = session.run(None, {"X": X})[-1].ravel()
    np.testing.assert_allclose(predicted, trained.predict(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["proto", "bytes", "path"])
def test_forms_of_a_model(form: str, tmp_path: Any) -> None:
    model: Any = linear()
    if form == "bytes":
        model = model.SerializeToString()
    elif form == "path":
        onnx.save(model, str(tmp_path / "model.onnx"))
        model = tmp_path / "model.onnx"
    trained = OnnxRegressor(
        model, optimizer="sgd", learning_rate=0.1, max_iter=200, penalty=None, tol=0.0
    )
    trained.fit(X, Y)
    reference = LinearRegression().fit(X, Y)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in trained.onnx_model_.graph.initializer}
    np.testing.assert_allclose(weights["zeta"].ravel(), reference.coef_, atol=1e-3)
    np.testing.assert_allclose(weights["alpha"], reference.intercept_, atol=1e-3)
    trained.save(tmp_path / "trained.onnx")
    assert onnx.load(tmp_path / "trained.onnx") == trained.onnx_model_


def test_only_some_weights_are_trained() -> None:
    trained = OnnxRegressor(linear(), weights_to_train=["alpha"], max_iter=5).fit(X, Y)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in trained.onnx_model_.graph.initializer}
    assert not weights["zeta"].any()
    assert weights["alpha"].any()


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer", ["sgd", "adam", "adamw", "lamb", "rmsprop", "adagrad", "lion", optim.sgd(0.5)]
)
def test_optimizers(optimizer: Any) -> None:
    trained = OnnxRegressor(
        linear(), optimizer=optimizer, learning_rate=0.05, max_iter=5, random_state=0
    ).fit(X, Y)
    assert trained.loss_curve_[-1] < trained.loss_curve_[0]


@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "huber"])
def test_losses(loss: str) -> None:
    trained = OnnxRegressor(
        linear(), loss=loss, optimizer="adam", learning_rate=0.05, max_iter=300, penalty=None,
        random_state=0,
    ).fit(X, Y)  # fmt: skip
    assert trained.score(X, Y) > 0.98


def test_a_penalty_shrinks_and_l1_silences() -> None:
    noise = np.random.default_rng(99).normal(size=(len(X), 3)).astype(np.float32)
    wide = np.hstack([X, noise])

    def weights(**options: Any) -> Any:
        trained = OnnxRegressor(
            linear(6), optimizer="sgd", momentum=0.0, learning_rate=0.05, max_iter=400, tol=0,
            random_state=0, **options,
        ).fit(wide, Y)  # fmt: skip
        return onnx.numpy_helper.to_array(trained.onnx_model_.graph.initializer[0]).ravel()

    free = weights(penalty=None)
    small = weights(penalty="l2", alpha=1.0)
    sparse = weights(penalty="l1", alpha=0.3)
    mixed = weights(penalty="elasticnet", alpha=0.3, l1_ratio=0.5)
    assert np.abs(small[:3]).sum() < 0.7 * np.abs(free[:3]).sum()
    assert np.abs(sparse[3:]).max() < 0.02
    assert np.abs(mixed).sum() < np.abs(free).sum()


def test_weights_of_rows_and_classes() -> None:
    rows, labels = classes(90, count=2, seed=3)
    rows = rows * 0.2  # close together: the weights decide
    labels[labels == 1] = (np.arange((labels == 1).sum()) % 5 == 0).astype(int)
    options: dict[str, Any] = {"max_iter": 60, "learning_rate": 0.02, "random_state": 0}
    plain = OnnxClassifier(**options).fit(rows, labels)
    balanced = OnnxClassifier(class_weight="balanced", **options).fit(rows, labels)
    heavy = OnnxClassifier(class_weight={0: 1, 1: 50}, **options).fit(rows, labels)
    same = OnnxClassifier(**options).fit(rows, labels, np.where(labels == 1, 50.0, 1.0))
    share = [m.predict_proba(rows)[:, 1].mean() for m in (plain, balanced, heavy)]
    assert share[0] < share[1] < share[2]
    np.testing.assert_allclose(same.predict_proba(rows), heavy.predict_proba(rows), rtol=1e-6)


def test_early_stopping_keeps_the_best_weights() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(80, 30))
    labels = (rows[:, 0] + rng.normal(size=80) > 0).astype(int)
    trained = OnnxClassifier(
        early_stopping=True, validation_fraction=0.3, n_iter_no_change=5, learning_rate=0.02,
        max_iter=400, random_state=0,
    ).fit(rows, labels)  # fmt: skip
    assert trained.n_iter_ < 400
    assert len(trained.validation_scores_) == trained.n_iter_ == len(trained.loss_curve_)
    assert trained.best_validation_score_ == max(trained.validation_scores_)
    regressor = OnnxRegressor(early_stopping=True, max_iter=10, random_state=0).fit(X, Y)
    assert len(regressor.validation_scores_) == 10


def test_stops_when_nothing_changes_and_warns_when_it_does_not() -> None:
    done = OnnxRegressor(linear(), learning_rate=0.1, max_iter=1000, random_state=0).fit(X, Y)
    assert done.n_iter_ < 1000
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        OnnxRegressor(max_iter=3).fit(X, Y)
    with pytest.warns(ConvergenceWarning, match="the loss grew from .* lower learning_rate"):
        OnnxRegressor(linear(), optimizer="sgd", learning_rate=2.0, max_iter=3).fit(X, Y)
    with pytest.raises(ConvergenceError, match="learning_rate"):
        OnnxRegressor(linear(), optimizer="sgd", learning_rate=1e9, max_iter=50).fit(X, Y)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_warm_start_and_partial_fit_go_on_exactly(optimizer: str) -> None:
    options: dict[str, Any] = {
        "optimizer": optimizer, "random_state": 0, "batch_size": 32, "schedule": "invscaling",
        "n_iter_no_change": 1000,
    }  # fmt: skip
    whole = OnnxRegressor(max_iter=8, **options).fit(X, Y)
    warm = OnnxRegressor(max_iter=4, warm_start=True, **options).fit(X, Y).fit(X, Y)
    np.testing.assert_array_equal(warm.loss_curve_, whole.loss_curve_)
    parts = OnnxRegressor(**options)
    for i in range(8):
        parts.partial_fit(X, Y)
        if i == 3:
            parts = pickle.loads(pickle.dumps(parts))
    np.testing.assert_array_equal(parts.loss_curve_, whole.loss_curve_)
    np.testing.assert_array_equal(parts.predict(X), whole.predict(X))


def test_partial_fit_of_a_classifier() -> None:
    model = OnnxClassifier(learning_rate=0.02, random_state=0)
    with pytest.raises(ValueError, match="classes"):
        model.partial_fit(CX, NAMES)
    for start in range(0, 150, 50):
        model.partial_fit(CX[start : start + 50], NAMES[start : start + 50], np.unique(NAMES))
    for _ in range(30):
        model.partial_fit(CX, NAMES)
    assert model.score(CX, NAMES) > 0.9
    with pytest.raises(ValueError, match="willow"):
        model.partial_fit(CX[:1], ["willow"])


# -- inside scikit-learn ---------------------------------------------------------------------------


def test_pipeline_search_and_cross_validation() -> None:
    pipeline = make_pipeline(StandardScaler(), OnnxClassifier(max_iter=30, random_state=0))
    search = GridSearchCV(
        pipeline, {"onnxclassifier__learning_rate": [1e-5, 0.02]}, cv=2, n_jobs=2
    ).fit(CX, NAMES)
    assert search.best_params_ == {"onnxclassifier__learning_rate": 0.02}
    assert search.predict_proba(CX).shape == (150, 3)
    scores = cross_val_score(OnnxRegressor(linear(), learning_rate=0.1), X, Y, cv=3)
    assert scores.min() > 0.9
    copy = clone(OnnxRegressor(linear(), alpha=0.5))
    assert copy.alpha == 0.5


def test_several_targets() -> None:
    targets = np.stack([Y, -Y], axis=1)
    trained = OnnxRegressor(learning_rate=0.02, max_iter=300, random_state=0).fit(X, targets)
    assert trained.predict(X).shape == (120, 2)
    assert trained.score(X, targets) > 0.95


def test_tables_with_names() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=["a", "b", "c"])
    trained = OnnxRegressor(linear(), learning_rate=0.1, max_iter=50).fit(table, Y)
    assert trained.feature_names_in_.tolist() == ["a", "b", "c"]
    trained.predict(table)
    with pytest.raises(ValueError, match="feature names"):
        trained.predict(table.rename(columns={"a": "z"}))


def test_features_that_are_no_tables() -> None:
    text = """g (float[N,1,2,2] X) => (float[N,2] S) {
        f = Flatten<axis=1>(X)  S = MatMul(f, w)
    }"""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(40, 1, 2, 2)).astype(np.float32)
    labels = (images[:, 0, 0, 0] > 0).astype(int)
    model = parse(text, {"w": np.zeros((4, 2), np.float32)})
    trained = OnnxClassifier(model, learning_rate=0.05, max_iter=80).fit(images, labels)
    assert trained.score(images, labels) > 0.9


# -- errors ----------------------------------------------------------------------------------------


def test_errors() -> None:
    with pytest.raises(NotFittedError):
        OnnxRegressor().predict(X)
    with pytest.raises(ValueError, match="3 columns"):
        OnnxClassifier(linear(4, 3)).fit(CX, CY % 2)
    with pytest.raises(ValueError, match="columns"):
        OnnxRegressor(linear(3, 2)).fit(X, Y)
    for options in (
        {"optimizer": "newton"},
        {"penalty": "l3"},
        {"loss": "hinge"},
        {"activation": "step"},
        {"dtype": "float16"},
        {"schedule": "never"},
        {"max_iter": 0},
        {"batch_size": 0},
        {"hidden_layer_sizes": (0,)},
        {"validation_fraction": 2.0, "early_stopping": True},
    ):
        with pytest.raises(OnnxTrainError):
            OnnxRegressor(**options).fit(X, Y)
    two = linear()
    two.graph.input.add().CopyFrom(two.graph.input[0])
    two.graph.input[-1].name = "Z"
    with pytest.raises(OnnxTrainError, match="one input"):
        OnnxRegressor(two).fit(X, Y)


def test_random_state_fixes_the_masks_of_dropout() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[N, 4] x) => (float[N, 1] y)
        <float ratio = {0.5}, bool on = {1}> {
            h = MatMul(x, w)  d = Dropout(h, ratio, on)  y = MatMul(d, v)
        }"""
    )
    rng = np.random.default_rng(0)
    for name, shape in {"w": (4, 16), "v": (16, 1)}.items():
        value = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    x, y = rng.normal(size=(60, 4)).astype(np.float32), rng.normal(size=60).astype(np.float32)

    def weights(seed: int) -> dict[str, Any]:
        made = OnnxRegressor(
            model, max_iter=3, batch_size=20, random_state=seed, shuffle=False,
            weights_to_train=["w", "v"],
        )  # fmt: skip
        return made.fit(x, y)._weights

    one, same, other = weights(1), weights(1), weights(2)
    assert all(np.array_equal(one[n], same[n]) for n in one)
    assert not np.array_equal(one["w"], other["w"])
