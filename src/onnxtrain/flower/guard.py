"""A strategy around a strategy that lets only sound updates through."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from ..errors import OnnxTrainError
from ..hyper import LARGEST
from .local import check_arrays
from .records import from_record

Array = npt.NDArray[Any]

log = logging.getLogger("onnxtrain.flower")


Shape = tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, int], ...]]
"""Names of the records, and of the metrics with their lengths (-1 for a number)."""


class Guard(Strategy):  # type: ignore[misc, unused-ignore]
    """Refuses updates that are not finite or do not fit, then lets the inner strategy aggregate.

    A refused update counts as none: the round goes on with the others, and with fewer
    than `min_replies` sound ones the model stays as it was. Clients that are lost or slower
    than the time limit of the round never get this far.

    Args:
        inner: any of Flower's strategies, also its differential privacy wrappers.
        min_replies: sound updates that a round needs to change the model.
        max_examples: rows that a client may say it has, since updates are weighted by them.
        max_change: no value may be farther from what was sent than this many times one plus the
            largest value sent. Against nonsense such as 1e38; a robust strategy is for the rest.
    """

    def __init__(
        self,
        inner: Strategy,
        min_replies: int = 1,
        *,
        max_examples: int = 10_000_000,
        max_change: float = 1e6,
    ) -> None:
        self.inner, self.min_replies = inner, min_replies
        self.max_examples, self.max_change = max_examples, max_change
        self.refused: list[tuple[int, int, str]] = []
        """What was refused: round, node, reason."""
        self._sent: dict[str, Array] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the inner strategy does."""
        self._sent = {name: array.numpy() for name, array in arrays.items()}
        messages: Iterable[Message]
        messages = self.inner.configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Filter, then as the inner strategy does."""
        answered = []
        for reply in replies:
            if reply.has_error():
                node, reason = reply.metadata.src_node_id, reply.error.reason
                log.warning("round %d: node %d failed: %s", server_round, node, reason)
            elif self._accepts(server_round, reply, self._check_update):
                answered.append(reply)
        agreeing = self._agreeing(server_round, answered)
        sound = len(agreeing)
        if sound < max(self.min_replies, 1):
            log.warning(
                "round %d: %d sound updates, %d are needed; the model stays as it was",
                server_round, sound, max(self.min_replies, 1),
            )  # fmt: skip
            return None, None
        aggregate: tuple[ArrayRecord | None, MetricRecord | None]
        aggregate = self.inner.aggregate_train(server_round, agreeing)
        return aggregate

    def _accepts(self, server_round: int, reply: Message, check: Callable[[Message], None]) -> bool:
        try:
            check(reply)
        except OnnxTrainError as error:
            self._refuse(server_round, reply, str(error))
            return False
        return True

    def _refuse(self, server_round: int, reply: Message, reason: str) -> None:
        node = reply.metadata.src_node_id
        self.refused.append((server_round, node, reason))
        log.warning("round %d: reply of node %d refused: %s", server_round, node, reason)

    def _check_update(self, reply: Message) -> None:
        if len(reply.content.array_records) != 1:
            raise OnnxTrainError("it has not one record of arrays")
        (record,) = reply.content.array_records.values()
        arrays = from_record(record, self._sent)
        check_arrays(arrays, self._sent)
        for name, sent in self._sent.items():
            _check_change(name, arrays[name], sent, self.max_change)
        self._check_metrics(reply)

    def _check_metrics(self, reply: Message) -> None:
        if len(reply.content.metric_records) != 1:
            raise OnnxTrainError("it has not one record of metrics")
        (metrics,) = reply.content.metric_records.values()
        weight = metrics.get("num-examples", 0)
        if not isinstance(weight, int | float) or not 0 < weight <= self.max_examples:
            raise OnnxTrainError(
                f"num-examples is {weight!r}, not a positive number up to {self.max_examples} "
                "(max_examples of Guard)"
            )
        for name, value in metrics.items():
            values = value if isinstance(value, list) else [value]
            if not all(abs(v) <= LARGEST for v in values):
                raise OnnxTrainError(f"metric {name!r} is {str(value)[:80]}")

    def _agreeing(self, server_round: int, replies: list[Message]) -> list[Message]:
        """The replies that name the same records and metrics as most do.

        Flower ends the whole run when two replies differ in that.
        """
        if not replies:
            return []
        shapes = [_shape(reply) for reply in replies]
        usual = max(shapes, key=lambda shape: (shapes.count(shape), shape[0] == ("arrays",)))
        for reply, shape in zip(replies, shapes):
            if shape != usual:
                reason = f"it has records and metrics {shape}, most replies {usual}"
                self._refuse(server_round, reply, reason)
        return [reply for reply, shape in zip(replies, shapes) if shape == usual]

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the inner strategy does."""
        messages: Iterable[Message]
        messages = self.inner.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Filter, then as the inner strategy does."""
        answered = [
            reply
            for reply in replies
            if not reply.has_error() and self._accepts(server_round, reply, self._check_metrics)
        ]
        agreeing = self._agreeing(server_round, answered)
        return self.inner.aggregate_evaluate(server_round, agreeing) if agreeing else None

    def summary(self) -> None:
        """As the inner strategy does."""
        self.inner.summary()


def _check_change(name: str, update: Array, sent: Array, times: float) -> None:
    if not update.size:
        return
    limit = times * (1.0 + float(np.abs(sent).max()))
    change = float(np.abs(update.astype(np.float64) - sent).max())
    if change > limit:
        raise OnnxTrainError(
            f"array {name!r} is up to {change:.3g} away from what was sent, more than {limit:.3g} "
            "(max_change of Guard)"
        )


def _shape(reply: Message) -> Shape:
    (metrics,) = reply.content.metric_records.values()
    lengths = sorted((n, len(v) if isinstance(v, list) else -1) for n, v in metrics.items())
    return tuple(reply.content.array_records), tuple(reply.content.metric_records), tuple(lengths)
