"""scikit-learn's own checks of an estimator."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from onnxtrain.sklearn import OnnxClassifier, OnnxRegressor

CHECKS = parametrize_with_checks([OnnxClassifier(), OnnxRegressor()])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(  # scikit-learn 1.5 gives a generator, which pytest no longer takes
    CHECKS.args[0], list(CHECKS.args[1]), **CHECKS.kwargs
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
