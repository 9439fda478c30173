"""An MLP trained by scikit-learn and by both APIs, in turns, on the workload of onnxcustom.

1,000 × 100 features, hidden layers (50, 10), batches of 15, 5,000 steps (75 passes of 67 batches).

    python -m benchmarks.sklearn_mlp [--rounds 5] [--steps 5000]

The last column is the share of the time that is not spent inside onnxruntime: the same runs are
repeated with every call into onnxruntime timed.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import make_regression
from sklearn.neural_network import MLPRegressor

from onnxtrain.compat.onnxcustom.data_loader import OrtDataLoader
from onnxtrain.sklearn import (
    LearningRateSGD,
    LearningRateSGDNesterov,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    add_loss_output,
    get_train_initializer,
)
from onnxtrain.sklearn.networks import mlp

ROWS, FEATURES, HIDDEN, BATCH = 1000, 100, (50, 10), 15
STEPS_PER_PASS = -(-ROWS // BATCH)
Contender = Callable[[int], tuple[float, Any]]


class Clock:
    """Notes when calls begin and end."""

    def __init__(self) -> None:
        self.begins: list[float] = []
        self.ends: list[float] = []

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        now, begins, ends = time.perf_counter, self.begins.append, self.ends.append

        def inner(*args: Any) -> Any:
            begins(now())
            result = call(*args)
            ends(now())
            return result

        return inner

    def outside(self, calls: int, shuffle: float) -> float:
        """Share of a step outside the calls: medians, so that other processes do not count.

        Args:
            calls: calls per step.
            shuffle: seconds per step for the order of a pass.
        """
        begins, ends = np.array(self.begins), np.array(self.ends)
        inside = (ends - begins).reshape(-1, calls).sum(axis=1)
        steps = np.diff(begins.reshape(-1, calls)[:, 0])
        idle = Clock()
        nothing = idle.timed(lambda: None)
        for _ in range(5000):
            nothing()
        cost = np.median(np.diff(idle.begins)) - np.median(np.subtract(idle.ends, idle.begins))
        whole = float(np.median(steps)) - calls * float(cost) + shuffle
        return max(0.0, 1 - float(np.median(inside)) / whole)


def shuffling(loader: Any) -> float:
    """Seconds per step that the random order of a pass costs."""
    seconds = []
    for _ in range(30):
        start = time.perf_counter()
        loader.epoch()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) / STEPS_PER_PASS


def data() -> tuple[Any, Any]:
    X, y = make_regression(ROWS, FEATURES, noise=1.0, random_state=0)
    return X.astype(np.float32), (y / y.std()).astype(np.float32)


def model() -> Any:
    rng = np.random.RandomState(0)
    return mlp(FEATURES, 1, HIDDEN, "relu", "", np.float32, rng)


def scikit_learn(momentum: float) -> Contender:
    X, y = data()

    def run(passes: int) -> tuple[float, Any]:
        network = MLPRegressor(
            hidden_layer_sizes=HIDDEN,
            solver="sgd",
            batch_size=BATCH,
            max_iter=passes,
            learning_rate_init=1e-3,
            momentum=momentum,
            alpha=0.0,
            n_iter_no_change=10**6,
            random_state=0,
        )
        start = time.perf_counter()
        network.fit(X, y)
        return time.perf_counter() - start, network.loss_

    return run


def first_api(momentum: float) -> Contender:
    X, y = data()
    onx = model()
    trainer = OrtGradientOptimizer(
        add_loss_output(onx),
        list(get_train_initializer(onx)),
        batch_size=BATCH,
        learning_rate=rate(5e-4, momentum),
        warm_start=True,
        random_state=0,
    )
    return timed_fit(trainer, X, y, 0.5)


def second_api(momentum: float) -> Contender:
    X, y = data()
    trainer = OrtGradientForwardBackwardOptimizer(
        model(), batch_size=BATCH, learning_rate=rate(1e-3, momentum), random_state=0
    )
    return timed_fit(trainer, X, y, 1.0)


def rate(eta0: float, momentum: float) -> LearningRateSGD:
    if momentum:
        return LearningRateSGDNesterov(eta0, learning_rate="constant", momentum=momentum)
    return LearningRateSGD(eta0, learning_rate="constant")


def timed_fit(trainer: Any, X: Any, y: Any, scale: float) -> Contender:
    """`fit` as a whole: building the graphs and the sessions included."""

    def run(passes: int) -> tuple[float, Any]:
        trainer.set_params(max_iter=passes)
        for name in ("_state", "learning_rate_"):
            trainer.__dict__.pop(name, None)
        start = time.perf_counter()
        trainer.fit(X, y)
        return time.perf_counter() - start, trainer.train_losses_[-1] * scale

    return run


def outside_first(momentum: float, passes: int) -> float:
    """Share of an iteration of the first API that is spent outside onnxruntime."""
    X, y = data()
    onx = model()
    trainer = OrtGradientOptimizer(
        add_loss_output(onx), list(get_train_initializer(onx)), batch_size=BATCH, max_iter=1,
        learning_rate=rate(5e-4, momentum), warm_start=True,
    )  # fmt: skip
    trainer.fit(X, y)
    loader = OrtDataLoader(X, y, batch_size=BATCH)
    session, clock = trainer.train_session_, Clock()

    class Timed:
        def __init__(self, core: Any) -> None:
            self._core, self.run_with_iobinding = core, clock.timed(core.run_with_iobinding)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._core, name)

    core = session.sessions[True]
    core._sess = Timed(core._sess)
    for _ in range(passes):
        trainer._iteration(loader, trainer._bound_steps)
    return clock.outside(1, shuffling(loader))


def outside_second(momentum: float, passes: int) -> float:
    """The same for the second API."""
    X, y = data()
    trainer = OrtGradientForwardBackwardOptimizer(
        model(), batch_size=BATCH, learning_rate=rate(1e-3, momentum), max_iter=1
    ).fit(X, y)
    loader = trainer._loader(X, y, None)
    engine, clock = trainer.engine_, Clock()
    for side in engine._sides.values():
        side._runs = [(clock.timed(run), binding) for run, binding in side._runs]
    for _ in range(passes):
        trainer._iteration(engine, loader)
    return clock.outside(len(side._runs), shuffling(loader))


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5000)
    options = parser.parse_args()
    passes = max(1, options.steps // STEPS_PER_PASS)
    contenders: dict[str, Contender] = {}
    shares: dict[str, Callable[[], float]] = {}
    for momentum, label in ((0.0, "SGD"), (0.9, "Nesterov")):
        contenders[f"scikit-learn MLPRegressor, {label}"] = scikit_learn(momentum)
        contenders[f"first API, {label}"] = first_api(momentum)
        contenders[f"second API, {label}"] = second_api(momentum)
        shares[f"first API, {label}"] = lambda m=momentum: outside_first(m, passes)
        shares[f"second API, {label}"] = lambda m=momentum: outside_second(m, passes)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    losses: dict[str, float] = {}
    for _ in range(options.rounds):
        for name, run in contenders.items():
            seconds, losses[name] = run(passes)
            times[name].append(seconds)
    print(
        f"{passes * STEPS_PER_PASS} steps, median and best of {options.rounds} rounds, in turns\n"
    )
    print(f"| {'':36} | median s | best s | µs/step | speed-up | loss    | outside |")
    print(f"|{'-' * 38}|---------:|-------:|--------:|---------:|--------:|--------:|")
    for name, values in times.items():
        median, best = statistics.median(values), min(values)
        reference = statistics.median(
            times[f"scikit-learn MLPRegressor, {name.rpartition(', ')[2]}"]
        )
        outside = f"{100 * shares[name]():.0f} %" if name in shares else ""
        micro, faster = 1e6 * median / (passes * STEPS_PER_PASS), reference / median
        print(
            f"| {name:36} | {median:8.2f} | {best:6.2f} | {micro:7.0f} | {faster:7.1f}x "
            f"| {losses[name]:7.4f} | {outside:>7} |"
        )


if __name__ == "__main__":
    main()
