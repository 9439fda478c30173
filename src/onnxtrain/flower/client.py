"""The client half: train and evaluate on data that stay where they are."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .local import LocalModel

Array = npt.NDArray[Any]
Data = Callable[[Context], tuple[Any, Any]]


def to_record(arrays: dict[str, Array]) -> ArrayRecord:
    """Arrays as Flower sends them."""
    return ArrayRecord({n: FlowerArray(np.ascontiguousarray(a)) for n, a in arrays.items()})


def from_record(record: ArrayRecord) -> dict[str, Array]:
    """Arrays as Flower received them, as float32."""
    return {n: a.numpy().astype(np.float32, copy=False) for n, a in record.items()}


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
        seed: from which the order of the rows follows, with round and client.
        mods: Flower's modifiers: `LocalDpMod`, `fixedclipping_mod`, `secaggplus_mod` …
    """
    app = ClientApp(mods=list(mods))
    key = (str(artifacts), prefix, tuple(metrics), named)

    def train(message: Message, context: Context) -> Message:
        from .secure import answer, question

        model = _model(*key, os.getpid())
        with model.state.lock:  # clients that share a process take turns
            arrays, config = question(message, model)
            model.set_arrays(arrays)
            training, _ = data(context)
            node = int(context.node_config.get("partition-id", 0))
            loss = model.train(
                training,
                epochs=int(config.get("epochs", epochs)),
                batch_size=int(config.get("batch-size", batch_size)),
                learning_rate=config.get("learning-rate", learning_rate),
                proximal_mu=float(config.get("proximal-mu", 0.0)),
                seed=seed + 1_000_003 * int(config.get("server-round", 0)) + node,
            )
            return answer(message, model, {"loss": loss, "num-examples": _rows(training)})

    def evaluate(message: Message, context: Context) -> Message:
        model = _model(*key, os.getpid())
        with model.state.lock:
            model.set_arrays(from_record(message.content.array_records["arrays"]))
            training, validation = data(context)
            chosen = training if validation is None else validation
            found: dict[str, Any] = {**model.evaluate(chosen), "num-examples": _rows(chosen)}
        return Message(RecordDict({"metrics": MetricRecord(found)}), reply_to=message)

    app.train()(train)
    app.evaluate()(evaluate)
    return app


def _rows(data: Any) -> int:
    """Number of rows: the weight of this client."""
    if isinstance(data, dict):
        data = next(iter(data.values()))
    elif isinstance(data, tuple):
        data = data[0]
    if hasattr(data, "shape"):
        return int(data.shape[0])
    return sum(len(batch[0]) for batch in data)
