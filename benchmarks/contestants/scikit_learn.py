"""scikit-learn's MLPClassifier and MLPRegressor, for the workloads that are such networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .base import Batches, Cannot, Clock, Loop


class FitLoop(Loop):
    """`fit` over all batches, which costs least per step; the first steps by `partial_fit`."""

    def __init__(self, network: Any, step: Any, remark: str) -> None:
        super().__init__(step, remark)
        self._network, self._data = network, None

    def many(self, batches: Batches, count: int) -> int:
        import numpy as np

        if self._data is None:
            x, y = (np.concatenate(part) for part in zip(*batches))
            self._data = x, y.ravel()
        passes = max(1, count // len(batches))
        self._network.set_params(max_iter=passes, shuffle=False)
        self._network.fit(*self._data)
        return passes * len(batches)


def start(folder: Path, spec: dict[str, Any], clock: Clock) -> Loop:
    import numpy as np

    layers = [name.removesuffix(".weight") for name in spec["trainable"] if ".weight" in name]
    if not layers or not all(name.isdecimal() for name in layers):
        raise Cannot("it has fully connected networks only")
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    clock.lap("import")
    with np.load(folder / "weights.npz") as data:
        weights = {name: data[name] for name in data.files}
    options = spec["optimizer"]
    classifies = spec["loss"] == "ce"
    sizes = tuple(len(weights[f"{name}.weight"]) for name in layers)
    with np.load(folder / "batches.npz") as data:
        x, y = data["x0"], data["y0"]
    scale = 1.0 if classifies else 2.0  # it halves the squared error, and so the gradient
    rate = options["lr"] * (scale if options["name"] == "sgd" else 1.0)
    network = (MLPClassifier if classifies else MLPRegressor)(
        hidden_layer_sizes=sizes[:-1], solver="sgd" if options["name"] == "sgd" else "adam",
        alpha=0.0, batch_size=len(x), learning_rate_init=rate, momentum=0.0,
        nesterovs_momentum=False, warm_start=True, n_iter_no_change=10**9, tol=0.0, random_state=0,
    )  # fmt: skip

    def step(x: Any, y: Any) -> float:
        network.partial_fit(x, y if classifies else y.ravel())
        return scale * float(network.loss_)

    # The first call initializes; then its weights are replaced and its optimizer starts anew.
    more = {"classes": np.arange(sizes[-1])} if classifies else {}
    network.partial_fit(x, y if classifies else y.ravel(), **more)
    for name, matrix, bias in zip(layers, network.coefs_, network.intercepts_):
        matrix[...] = weights[f"{name}.weight"].T
        bias[...] = weights[f"{name}.bias"]
    del network._optimizer
    clock.lap("session")
    remark = "Adam without weight decay" if options["name"] == "adamw" else ""
    return FitLoop(network, step, remark)
