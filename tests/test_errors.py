"""Errors go from process to process: launchers, pools and Ray pickle them."""

from __future__ import annotations

import copy
import pickle

import pytest

from onnxtrain import errors
from onnxtrain.cli.output import UserError

BLOCKER = errors.Blocker("n", "Foo", "", 18, ("w",), ("loss", "n"), "no rule")
SAMPLES = [
    errors.OnnxTrainError("plain"),
    errors.ModelError("a model"),
    errors.MissingFileError("no file"),
    errors.UnknownNameError("parameter", "x", ["y"]),
    errors.NoGradientError([BLOCKER]),
    errors.UnreachableError(["w"], "loss"),
    errors.DataError("a row"),
    errors.NonFiniteError("nan", "clip"),
    errors.MissingPackageError("ray", "Training", "ray"),
    errors.RankLostError("all_reduce", 1, 2, "gone"),
    errors.MissingParameterError("x", ["y"]),
    UserError("a mistake"),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_is_the_same_in_another_process(error):
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
        assert again.args == error.args
