"""A strategy around a strategy that lets only sound updates through."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from ..errors import OnnxTrainError
from .client import from_record
from .local import check_arrays

log = logging.getLogger("onnxtrain.flower")


class Guard(Strategy):  # type: ignore[misc, unused-ignore]
    """Refuses updates that are not finite or do not fit, then lets the inner strategy aggregate.

    A refused update counts as none: the round goes on with the others, and with fewer
    than `min_replies` sound ones the model stays as it was. Clients that are lost or slower
    than the time limit of the round never get this far.

    Args:
        inner: any of Flower's strategies, also its differential privacy wrappers.
        min_replies: sound updates that a round needs to change the model.
    """

    def __init__(self, inner: Strategy, min_replies: int = 1) -> None:
        self.inner, self.min_replies = inner, min_replies
        self.refused: list[tuple[int, int, str]] = []
        """What was refused: round, node, reason."""
        self._sent: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the inner strategy does."""
        self._sent = arrays
        messages: Iterable[Message]
        messages = self.inner.configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Filter, then as the inner strategy does."""
        kept = [r for r in replies if r.has_error() or self._sound(server_round, r)]
        sound = sum(not r.has_error() for r in kept)
        for reply in kept:
            if reply.has_error():
                node, reason = reply.metadata.src_node_id, reply.error.reason
                log.warning("round %d: node %d failed: %s", server_round, node, reason)
        if sound < max(self.min_replies, 1):
            log.warning(
                "round %d: %d sound updates, %d are needed; the model stays as it was",
                server_round, sound, max(self.min_replies, 1),
            )  # fmt: skip
            return None, None
        found: tuple[ArrayRecord | None, MetricRecord | None]
        found = self.inner.aggregate_train(server_round, kept)
        return found

    def _sound(self, server_round: int, reply: Message) -> bool:
        assert self._sent is not None
        try:
            if len(reply.content.array_records) != 1 or len(reply.content.metric_records) != 1:
                raise OnnxTrainError("it has not one record of arrays and one of metrics")
            (record,) = reply.content.array_records.values()
            (metrics,) = reply.content.metric_records.values()
            check_arrays(from_record(record), from_record(self._sent))
            _check_metrics(metrics)
        except OnnxTrainError as error:
            node = reply.metadata.src_node_id
            self.refused.append((server_round, node, str(error)))
            log.warning("round %d: update of node %d refused: %s", server_round, node, error)
            return False
        return True

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
        """As the inner strategy does."""
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """As the inner strategy does."""
        self.inner.summary()


def _check_metrics(metrics: Any) -> None:
    weight = metrics.get("num-examples", 0)
    if not isinstance(weight, int | float) or not math.isfinite(weight) or weight <= 0:
        raise OnnxTrainError(f"num-examples is {weight!r}, not a positive number")
    for name, value in metrics.items():
        if not isinstance(value, list) and not math.isfinite(value):
            raise OnnxTrainError(f"metric {name!r} is {value}")
