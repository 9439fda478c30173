"""scikit-learn estimators: a batch that is no good ends the fit and changes nothing."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxtrain import optim
from onnxtrain.compat.onnxcustom.base import SelectionError
from onnxtrain.compat.onnxcustom.sgd_learning_penalty import ElasticLearningPenalty
from onnxtrain.compat.onnxcustom.sgd_learning_rate import (
    BaseLearningRate,
    LearningRateAdam,
    LearningRateSGD,
    LearningRateSGDNesterov,
)
from onnxtrain.sklearn import (
    ConvergenceError,
    ConvergenceWarning,
    OnnxRegressor,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
)

from . import models

RATES = {
    "sgd": LearningRateSGD(0.01, learning_rate="constant"),
    "nesterov": LearningRateSGDNesterov(0.01, learning_rate="constant"),
    "adam": LearningRateAdam(0.01),
}
GOOD = [models.good(seed) for seed in range(3)]
OVERFLOW = {"nan gradient": models.nan_gradient, "infinite loss": models.infinite_loss}


def rooted(dtype: str = "float") -> onnx.ModelProto:
    """A layer plus √(gain²·|x₀|): the gradient of `gain` is NaN where x₀ is zero."""
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g ({dtype}[N, 4] x) => ({dtype}[N, 1] out)
          <{dtype}[4, 1] W = {{0.5, -0.25, 0.125, 1}}, {dtype}[1] b = {{0.5}},
           {dtype}[1] gain = {{1}}, int64[1] first = {{0}}>
        {{
            z = MatMul(x, W)
            zb = Add(z, b)
            x0 = Gather <axis = 1> (x, first)
            size = Abs(x0)
            gain2 = Mul(gain, gain)
            scaled = Mul(size, gain2)
            root = Sqrt(scaled)
            out = Add(zb, root)
        }}"""
    )


def close(found, expected) -> None:
    """The order of the rows within a batch differs: sums are equal up to rounding."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.isfinite(found[name]).all(), name
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def one_graph(rate, use_numpy):
    made = OrtGradientOptimizer(
        models.network(),
        models.TRAINABLE,
        learning_rate=RATES[rate],
        training_optimizer_name="AdamOptimizer" if rate == "adam" else "SGDOptimizer",
        max_iter=2,
        batch_size=6,
        warm_start=True,
        random_state=0,
    )
    return made, lambda batch: made.fit(*batch, use_numpy=use_numpy)


@pytest.mark.parametrize("bad", models.BAD)
@pytest.mark.parametrize("use_numpy", [False, True])
@pytest.mark.parametrize("rate", RATES)
def test_first_api(rate, use_numpy, bad):
    (trained, fit), (twin, fit_twin) = (one_graph(rate, use_numpy) for _ in range(2))
    fit(GOOD[0])
    fit_twin(GOOD[0])
    before = trained.train_session_.get_state()
    with pytest.raises(ConvergenceError, match=r"rows 0 to 5 of iteration 0.*before that batch"):
        fit(models.BAD[bad]())
    models.assert_same(trained.train_session_.get_state(), before)
    models.assert_same(trained.trained_coef_, {n: before[n] for n in models.TRAINABLE})
    fit(GOOD[1])
    fit_twin(GOOD[1])
    close(trained.train_session_.get_state(), twin.train_session_.get_state())


@pytest.mark.parametrize("bad", models.BAD)
@pytest.mark.parametrize("penalty", [None, "l2"])
@pytest.mark.parametrize("rate", RATES)
def test_second_api(rate, penalty, bad):
    def make():
        return OrtGradientForwardBackwardOptimizer(
            rooted(),
            learning_rate=RATES[rate],
            training_optimizer_name="AdamOptimizer" if rate == "adam" else "SGDOptimizer",
            learning_penalty=penalty,
            max_iter=2,
            batch_size=6,
            warm_start=True,
            random_state=0,
        )

    trained, twin = make().fit(*GOOD[0]), make().fit(*GOOD[0])
    before = trained.get_full_state("all")
    with pytest.raises(ConvergenceError, match="rows 0 to 5 of iteration 0"):
        trained.fit(*models.BAD[bad]())
    after = trained.get_full_state("all")
    assert after["steps"] == before["steps"] == 2
    models.assert_same(after["weight"], before["weight"])
    for kind, values in before["moments"].items():
        models.assert_same(after["moments"][kind], values)
    trained.fit(*GOOD[1])
    twin.fit(*GOOD[1])
    close(trained.trained_coef_, twin.trained_coef_)


def test_second_api_warns_and_keeps_good_weights():
    trained = OrtGradientForwardBackwardOptimizer(
        rooted(), max_iter=3, batch_size=6, warm_start=True, exc=False, random_state=0
    ).fit(*GOOD[0])
    before = trained.trained_coef_
    with pytest.warns(ConvergenceWarning, match="The gradient of 'gain' is NaN"):
        trained.fit(*models.nan_gradient())
    models.assert_same(trained.trained_coef_, before)
    assert np.isnan(trained.train_losses_).tolist() == [True]


def test_the_batch_is_named_though_it_is_not_the_first():
    """Later batches of the same iteration are not trained on."""
    x = np.concatenate([b[0] for b in GOOD])
    y = np.concatenate([b[1] for b in GOOD])
    x[:, 0] = np.abs(x[:, 0]) + 1
    x[13, 0] = 0
    trained = OrtGradientForwardBackwardOptimizer(
        rooted(), max_iter=1, batch_size=4, warm_start=True, random_state=0
    )
    with pytest.raises(ConvergenceError, match=r"rows (\d+) to (\d+) of iteration 0") as caught:
        trained.fit(x, y)
    start = int(str(caught.value).split("rows ")[1].split(" ")[0])
    assert start % 4 == 0
    assert trained.engine_.steps == start // 4


@pytest.mark.parametrize("bad", OVERFLOW)
@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", optim.adam(clip=optim.ClipNorm(1.0))])
def test_estimator(optimizer, dtype, bad):
    def make():
        return OnnxRegressor(
            rooted(dtype), optimizer=optimizer, learning_rate=0.01, penalty=None, random_state=0
        )

    def fit(estimator, batch):
        x, y = batch
        scale = 1e150 if dtype == "double" and bad == "infinite loss" and y.max() > 1e20 else 1.0
        estimator.partial_fit(
            x.astype(dtype.replace("float", "float32")), y[:, 0].astype(np.float64) * scale
        )

    trained, twin = make(), make()
    fit(trained, GOOD[0])
    fit(twin, GOOD[0])
    before = trained._session.get_state()
    with pytest.raises(ConvergenceError, match=r"rows 0 to 5 of iteration 1.*changed nothing"):
        fit(trained, OVERFLOW[bad]())
    models.assert_same(trained._session.get_state(), before)
    assert trained.n_iter_ == 1
    fit(trained, GOOD[1])
    fit(twin, GOOD[1])
    close(trained._session.get_state(), twin._session.get_state())


# --- rates and penalties --------------------------------------------------------------------------

WRONG = [float("nan"), float("inf"), -0.1]


@pytest.mark.parametrize("value", WRONG)
def test_rates_are_refused(value):
    for kind in (LearningRateSGD, LearningRateSGDNesterov, LearningRateAdam):
        with pytest.raises(SelectionError, match="eta0 must be positive and finite"):
            kind(value)
    with pytest.raises(SelectionError, match="eta0"):
        BaseLearningRate.select(value)
    with pytest.raises(SelectionError, match="power_t"):
        LearningRateSGD(power_t=value if value != -0.1 else float("nan"))
    with pytest.raises(ValueError, match=r"betas\[0\]"):
        LearningRateAdam(beta_1=value).optimizer()
    with pytest.raises(SelectionError, match="l1"):
        ElasticLearningPenalty(value, 0.1)
    x, y = GOOD[0]
    for name in ("learning_rate", "alpha", "momentum"):
        with pytest.raises(SelectionError, match=name):
            OnnxRegressor(**{name: value}).fit(x, y[:, 0])
    with pytest.raises(SelectionError, match="eta0"):
        OrtGradientOptimizer(models.network(), models.TRAINABLE, learning_rate=value)
    with pytest.raises(SelectionError, match="eta0"):
        OrtGradientForwardBackwardOptimizer(rooted(), learning_rate=value)


def test_a_schedule_of_ones_own():
    class Falling(LearningRateSGD):
        def update_learning_rate(self, t):
            self.value_ = self.eta0 - t * self.eta0
            return self

    trained = OrtGradientForwardBackwardOptimizer(
        rooted(), learning_rate=Falling(0.01), max_iter=4, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SelectionError, match="The learning rate that Falling gives must be 0"):
            trained.fit(*GOOD[0])
    assert np.isfinite(trained.trained_coef_["W"]).all()
