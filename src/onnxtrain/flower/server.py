"""The server half: rounds of sending, training, aggregating, evaluating."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, Result, Strategy

from ..errors import InputError
from ..runtime.state.checkpoint_state import CheckpointState
from .guard import Guard
from .local import LocalModel
from .records import from_record, to_record

STRATEGIES: dict[str, type[Strategy]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedadam": FedAdam,
    "fedavgm": FedAvgM,
}


def make_strategy(name: str, **options: Any) -> Strategy:
    """One of Flower's strategies by its name.

    ``fedavg``, ``fedprox`` (``proximal_mu=``), ``fedadam`` (``eta=``), ``fedavgm``
    (``server_momentum=``).

    Args:
        name: which.
        options: as Flower takes them: ``fraction_train``, ``min_train_nodes``,
            ``min_available_nodes``, ``eta`` …
    """
    if name not in STRATEGIES:
        raise InputError(
            f"Unknown strategy {name!r}; known: {', '.join(STRATEGIES)}. Any other of Flower's "
            "can be given as an object."
        )
    return STRATEGIES[name](**options)


def server_app(
    artifacts: str | os.PathLike[str],
    strategy: str | Strategy = "fedavg",
    *,
    rounds: int = 3,
    prefix: str = "",
    validation_data: Any = None,
    metrics: Sequence[str] = (),
    named: bool = False,
    round_timeout: float = 600.0,
    min_replies: int = 1,
    train_config: dict[str, Any] | None = None,
    save: str | os.PathLike[str] | None = None,
    on_result: Callable[[Result], object] | None = None,
) -> ServerApp:
    """A Flower ServerApp that starts from the checkpoint of a folder of artifacts.

    Args:
        artifacts: the folder, the same files as on the clients.
        strategy: a name as for `make_strategy`, or a strategy object of Flower (wrapped for
            differential privacy, say). It is put into a `Guard`.
        rounds: how many.
        prefix: of the artifacts' names.
        validation_data: if given, the server evaluates the model on them after every round.
        metrics: what that evaluation computes besides the loss.
        named: as for `client_app`.
        round_timeout: seconds after which a round goes on without the clients that are missing.
        min_replies: sound updates that a round needs to change the model.
        train_config: sent to the clients: ``epochs``, ``batch-size``, ``learning-rate``.
        save: write the final checkpoint here.
        on_result: called with Flower's result at the end.
    """
    chosen = make_strategy(strategy) if isinstance(strategy, str) else strategy
    guard = chosen if isinstance(chosen, Guard) else Guard(chosen, min_replies)
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        del context
        model = LocalModel(artifacts, prefix, metrics=metrics, named=named)

        def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            del server_round
            model.set_arrays(from_record(arrays, model.arrays()))
            return MetricRecord(dict(model.evaluate(validation_data)))

        result = guard.start(
            grid=grid,
            initial_arrays=to_record(model.arrays()),
            num_rounds=rounds,
            timeout=round_timeout,
            train_config=ConfigRecord(dict(train_config or {})),
            evaluate_fn=evaluated if validation_data is not None else None,
        )
        if len(result.arrays):
            model.set_arrays(from_record(result.arrays, model.arrays()))
        if save is not None:
            CheckpointState.save_checkpoint(model.state, save)
        if on_result is not None:
            on_result(result)

    app.main()(main)
    return app
