"""scikit-learn's own checks of an estimator."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from onnxtrain.sklearn import OnnxClassifier, OnnxRegressor


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([OnnxClassifier(), OnnxRegressor()])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
