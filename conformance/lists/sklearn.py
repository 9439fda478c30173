"""Every estimator of scikit-learn that skl2onnx converts, fitted on a few rows.

Classifiers return probabilities as a tensor (`zipmap=False`). What a tree or a nearest neighbour
gives is a step function of its input: its derivative is zero, and differences say the same.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..cases import OnnxCase

PACKAGES = ["scikit-learn", "skl2onnx"]
BATCH = 20

ROWS, COLUMNS = 40, 5
SKIPPED = {
    "CategoricalNB", "CountVectorizer", "TfidfVectorizer", "HashingVectorizer", "FeatureHasher",
    "LabelEncoder", "LabelBinarizer", "MultiLabelBinarizer", "OneHotEncoder", "OrdinalEncoder",
    "TargetEncoder", "PatchExtractor", "DictVectorizer", "ClassifierChain", "RegressorChain",
}  # fmt: skip
"""Estimators of text, of classes or of other things than a matrix of floats."""
WITHOUT_ZIPMAP = {"LinearSVC", "MultiOutputClassifier", "RFE", "RFECV"}
TWO_CLASSES = {
    "FixedThresholdClassifier", "GaussianProcessClassifier", "TunedThresholdClassifierCV",
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "MLPClassifier": {"hidden_layer_sizes": (6,), "max_iter": 50},
    "MLPRegressor": {"hidden_layer_sizes": (6,), "max_iter": 50},
    "SVC": {"probability": False},
    "NearestNeighbors": {"radius": None},
    "NuSVC": {"probability": False, "nu": 0.2},
    "GaussianMixture": {"n_components": 2},
    "BayesianGaussianMixture": {"n_components": 2},
    "KMeans": {"n_clusters": 3, "n_init": 1},
    "MiniBatchKMeans": {"n_clusters": 3, "n_init": 1},
    "GaussianProcessRegressor": {"optimizer": None, "alpha": 0.1},
    "LocalOutlierFactor": {"novelty": True},
    "RANSACRegressor": {"min_samples": 0.5},
    "RadiusNeighborsClassifier": {"radius": 6.0},
    "RadiusNeighborsRegressor": {"radius": 6.0},
    "IsolationForest": {"n_estimators": 3},
    "RandomTreesEmbedding": {"n_estimators": 3, "sparse_output": False},
    "GaussianRandomProjection": {"n_components": 3},
    "PLSRegression": {"n_components": 2},
    "TruncatedSVD": {"n_components": 2},
    "PolynomialFeatures": {"degree": 2},
    "KBinsDiscretizer": {"n_bins": 3, "encode": "ordinal"},
    "RandomForestClassifier": {"n_estimators": 3},
    "RandomForestRegressor": {"n_estimators": 3},
    "ExtraTreesClassifier": {"n_estimators": 3},
    "ExtraTreesRegressor": {"n_estimators": 3},
    "GradientBoostingClassifier": {"n_estimators": 3},
    "GradientBoostingRegressor": {"n_estimators": 3},
    "HistGradientBoostingClassifier": {"max_iter": 3},
    "HistGradientBoostingRegressor": {"max_iter": 3},
    "AdaBoostClassifier": {"n_estimators": 3},
    "AdaBoostRegressor": {"n_estimators": 3},
    "BaggingClassifier": {"n_estimators": 3},
    "BaggingRegressor": {"n_estimators": 3},
}


def names() -> list[str]:
    """Names of estimators that skl2onnx has a converter for."""
    from skl2onnx._supported_operators import sklearn_operator_name_map

    known = {kind.__name__ for kind in sklearn_operator_name_map}
    return sorted(n for n in _estimators() if n in known and n not in SKIPPED)


def case(name: str) -> OnnxCase:
    """The converted estimator and rows that it has not seen."""
    from skl2onnx import to_onnx
    from sklearn.base import is_classifier

    rng = np.random.default_rng(0)
    x = rng.uniform(0.1, 2.0, (ROWS, COLUMNS)).astype(np.float32)
    if name == "KernelCenterer":
        x = x @ x.T
    estimator = _made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(x, _target(name, x, is_classifier(estimator)))
        plain = is_classifier(estimator) and name not in WITHOUT_ZIPMAP
        options = {id(estimator): {"zipmap": False}} if plain else None
        model = to_onnx(estimator, x[:1], target_opset={"": 18, "ai.onnx.ml": 3}, options=options)
    feeds = {"X": rng.uniform(0.1, 2.0, (6, x.shape[1])).astype(np.float32)}
    return OnnxCase(model, feeds, family=_family(estimator), exporter="skl2onnx")


def _estimators() -> dict[str, Any]:
    from sklearn.utils import all_estimators

    return dict(all_estimators())


def _made(name: str) -> Any:
    """An estimator with small settings; one around others gets linear ones."""
    from sklearn.linear_model import LogisticRegression, Ridge

    kind = _estimators()[name]
    settings = dict(SETTINGS.get(name, {}))
    inner = Ridge() if "Regress" in name else LogisticRegression()
    wanted = inspect.signature(kind).parameters
    if name in {"VotingClassifier", "VotingRegressor", "StackingClassifier", "StackingRegressor"}:
        settings["estimators"] = [("first", inner), ("second", type(inner)())]
        if name == "VotingClassifier":
            settings |= {"voting": "soft", "flatten_transform": False}
    elif name in AROUND:
        settings |= AROUND[name](inner)
    elif "estimator" in wanted and name not in SETTINGS:
        settings["estimator"] = inner
    if "random_state" in wanted:
        settings["random_state"] = 0
    return kind(**settings)


def _steps(inner: Any) -> list[tuple[str, Any]]:
    from sklearn.preprocessing import StandardScaler

    return [("scale", StandardScaler()), ("model", inner)]


AROUND: dict[str, Callable[[Any], dict[str, Any]]] = {
    "Pipeline": lambda inner: {"steps": _steps(inner)},
    "ColumnTransformer": lambda inner: {"transformers": [("scale", _steps(inner)[0][1], [0, 2])]},
    "FeatureUnion": lambda inner: {"transformer_list": _steps(inner)[:1]},
    "GridSearchCV": lambda inner: {"estimator": inner, "param_grid": {"C": [0.5, 1.0]}},
}


def _target(name: str, x: np.ndarray[Any, Any], classes: bool) -> np.ndarray[Any, Any]:
    score = x @ np.linspace(-1, 1, COLUMNS)
    labels = np.digitize(score, np.quantile(score, [0.33, 0.66]))
    if name in TWO_CLASSES:
        return (labels > 0).astype(np.int64)
    if name == "MultiOutputClassifier":
        return np.stack([labels, labels[::-1]], axis=1)
    if classes or "Bin" in name or "Select" in name or name == "NeighborhoodComponentsAnalysis":
        return labels
    if name.startswith("MultiTask") or name in {"MultiOutputRegressor"}:
        return np.stack([score, np.sin(score)], axis=1)
    return score - score.min() + 1.0


def _family(estimator: Any) -> str:
    return str(type(estimator).__module__.split(".")[1])
