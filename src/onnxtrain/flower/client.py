"""The client half: train and evaluate on data that stay where they are."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ..errors import InputError
from ..hyper import check_amount, check_rate
from .local import LocalModel
from .records import from_record

Data = Callable[[Context], tuple[Any, Any]]


@functools.lru_cache(maxsize=4)
def _model(
    artifacts: str, prefix: str, metrics: tuple[str, ...], named: bool, process: int
) -> LocalModel:  # sessions take long to make; a process serves many clients and rounds
    del process  # a forked one makes its own
    return LocalModel(artifacts, prefix, metrics=metrics, named=named)


def client_app(
    artifacts: str | os.PathLike[str],
    data: Data,
    *,
    prefix: str = "",
    epochs: int = 1,
    batch_size: int = 32,
    learning_rate: float | None = None,
    metrics: Sequence[str] = (),
    named: bool = False,
    seed: int = 0,
    max_epochs: int = 1000,
    mods: Sequence[Any] = (),
) -> ClientApp:
    """A Flower ClientApp over a folder of artifacts.

    A client that cannot train, or whose result is not finite, answers with an error; the round goes
    on without it. The server may override `epochs`, `batch-size` and `learning-rate` by
    its train configuration, and sets `proximal-mu` with FedProx.

    Args:
        artifacts: folder that `generate_artifacts` wrote, the same on all clients.
        data: called with Flower's context (``context.node_config["partition-id"]``); gives training
            and validation data, each as for `Trainer.fit`. The latter may be None.
        prefix: of the artifacts' names.
        epochs: passes over the client's data per round.
        batch_size: rows per step.
        learning_rate: by default that of the checkpoint.
        metrics: what the evaluation computes besides the loss.
        named: exchange arrays by parameter name instead of one flat array; server alike.
        seed: from which the order of the rows, and masks of Dropout, follow, with round and client.
        max_epochs: what the server may ask for at most.
        mods: Flower's modifiers: `LocalDpMod`, `fixedclipping_mod`, `secaggplus_mod` …
    """
    app = ClientApp(mods=list(mods))
    key = (str(artifacts), prefix, tuple(metrics), named)

    def train(message: Message, context: Context) -> Message:
        from .secure import fit_reply, fit_request

        model = _model(*key, os.getpid())
        with model.state.lock:  # clients that share a process take turns
            arrays, config = fit_request(message, model)
            model.set_arrays(arrays)
            training, _ = data(context)
            node = int(context.node_config.get("partition-id", 0))
            loss = model.train(
                training,
                epochs=_count(config, "epochs", epochs, max_epochs),
                batch_size=_count(config, "batch-size", batch_size),
                learning_rate=_rate(config, learning_rate),
                proximal_mu=check_amount(
                    config.get("proximal-mu", 0.0), "The server's proximal-mu"
                ),
                seed=seed + 1_000_003 * _count(config, "server-round", 0, least=0) + node,
            )
            return fit_reply(message, model, {"loss": loss, "num-examples": _rows(training)})

    def evaluate(message: Message, context: Context) -> Message:
        model = _model(*key, os.getpid())
        with model.state.lock:
            model.set_arrays(from_record(sent_arrays(message), model.arrays()))
            training, validation = data(context)
            chosen = training if validation is None else validation
            results: dict[str, Any] = {**model.evaluate(chosen), "num-examples": _rows(chosen)}
        return Message(RecordDict({"metrics": MetricRecord(results)}), reply_to=message)

    app.train()(train)
    app.evaluate()(evaluate)
    return app


def sent_arrays(message: Message) -> Any:
    """The record of arrays that the server sent."""
    records = message.content.array_records
    if "arrays" not in records:
        raise InputError(f"The server sent no record 'arrays' but {list(records)[:20]}.")
    return records["arrays"]


def _count(
    config: Mapping[str, Any], name: str, default: int, most: int = 2**31, least: int = 1
) -> int:
    """A whole number that the server may set."""
    value = config.get(name, default)
    if not isinstance(value, int) or not least <= value <= most:
        raise InputError(
            f"The server asks for {name}={value!r}; it must be from {least} to {most}."
        )
    return value


def _rate(config: Mapping[str, Any], default: float | None) -> float | None:
    if "learning-rate" not in config:
        return default
    return check_rate(config["learning-rate"], "The server's learning-rate")


def _rows(data: Any) -> int:
    """Number of rows: the weight of this client."""
    if isinstance(data, dict):
        data = next(iter(data.values()))
    elif isinstance(data, tuple):
        data = data[0]
    if hasattr(data, "shape"):
        return int(data.shape[0])
    return sum(len(batch[0]) for batch in data)
