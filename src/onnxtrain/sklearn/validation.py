"""Checked features and targets, with any scikit-learn from 1.5 on."""

from __future__ import annotations

from typing import Any

import numpy as np


def validated(
    estimator: Any, X: Any, *, reset: bool, dtype: Any, nd: bool = False, **y: Any
) -> Any:
    """Arrays from whatever scikit-learn accepts; notes the names and number of features.

    Args:
        estimator: whose `feature_names_in_` and `n_features_in_` are set or compared.
        X: features.
        reset: set them instead of comparing.
        dtype: type of the features.
        nd: the model takes something else than a table.
        y: targets, and how to check them.
    """
    options = {"reset": reset, "dtype": dtype, "allow_nd": nd, "order": "C", **y}
    try:
        from sklearn.utils.validation import validate_data
    except ImportError:  # before scikit-learn 1.6
        return estimator._validate_data(X, **options)
    return validate_data(estimator, X, **options)


def is_single(X: Any) -> bool:
    """Whether features are float32, in an array or in all columns of a table."""
    kinds = getattr(X, "dtypes", None)
    if kinds is not None and hasattr(kinds, "__iter__"):
        return all(k == np.float32 for k in kinds)
    return bool(getattr(X, "dtype", None) == np.float32)
