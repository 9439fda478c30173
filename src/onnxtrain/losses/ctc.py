"""Connectionist temporal classification: the loss of a label sequence without an alignment."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from .base import Loss
from .labels import largest

IMPOSSIBLE = -1e30
"""The logarithm of zero; finite, so that no difference of infinities makes a NaN."""
INT64 = ir.DataType.INT64
LAST = 2**31 - 1


class CTCLoss(Loss):
    """Connectionist temporal classification, as `torch.nn.functional.ctc_loss`.

    With the labels spread out as ∅ l₁ ∅ l₂ … ∅ and αₜ(s) the log probability of all alignments
    of the first t frames that end at position s:

        αₜ(s) = log p(t, l'ₛ) + logsumexp(αₜ₋₁(s), αₜ₋₁(s−1), αₜ₋₁(s−2) unless l'ₛ is ∅ or l'ₛ₋₂)

    which is a Scan over the frames; batch, frames and label lengths are dynamic.

    Args:
        blank: class of the blank ∅.
        reduction: "mean" (each loss over its number of labels, then the mean), "sum", "none".
        zero_infinity: 0 instead of infinity where no alignment fits (more labels than frames).
        log_softmax: the input is scores; apply LogSoftmax to them first.
        batch_first: the input is (N, T, C) instead of (T, N, C).
    """

    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
        *,
        log_softmax: bool = False,
        batch_first: bool = False,
    ) -> None:
        super().__init__(reduction)
        self._blank, self._zero_infinity = blank, zero_infinity
        self._log_softmax, self._batch_first = log_softmax, batch_first

    def build(
        self,
        loss_input_name: str,
        target_name: str = "target",
        input_lengths_name: str = "input_lengths",
        target_lengths_name: str = "target_lengths",
    ) -> str:
        """Append the loss.

        Targets are INT64[N, S], padded with anything; both lengths are INT64[N]. A target within
        its length that is no class fails the run.
        """
        op = self._builder
        op.require(13, "CTCLoss")
        x = op.value(loss_input_name)
        batch = x.dim(0 if self._batch_first else 1)
        target = op.input(target_name, INT64, [batch, f"{target_name}_size"])
        frames = op.input(input_lengths_name, INT64, [batch])
        labels = op.input(target_lengths_name, INT64, [batch])
        return op.append(self.loss(op, x, target, frames, labels))

    def loss(
        self, op: OpBuilder, x: Tensor, target: Tensor, frames: Tensor, labels: Tensor
    ) -> Tensor:
        """The reduced loss; "mean" divides each by its number of labels first."""
        loss = self.elements(op, x, target, frames, labels)
        if self._reduction == "mean":
            loss = loss / op.Cast(op.Max(labels, 1), to=loss.dtype)
        return self._reduce(op, loss)

    def elements(
        self, op: OpBuilder, x: Tensor, target: Tensor, frames: Tensor, labels: Tensor
    ) -> Tensor:
        """The loss of each sequence.

        Args:
            op: builder of the graph.
            x: log probabilities, or scores.
            target: INT64[N, S].
            frames: number of frames of each sequence.
            labels: number of labels of each sequence.
        """
        if self._batch_first:
            x = op.Transpose(x, perm=[1, 0, 2])
        if self._log_softmax:
            x = op.LogSoftmax(x, axis=2)
        zero = op.Unsqueeze(labels, [1]) * 0
        spread = self._spread(op, target, labels, zero)
        return self._last(op, self._scan(op, x, spread, frames, zero), labels)

    def _spread(self, op: OpBuilder, target: Tensor, labels: Tensor, zero: Tensor) -> Tensor:
        """Labels with blanks before, between and behind them: (N, 2S + 1)."""
        column = op.Unsqueeze(self._padded(op, target, labels), [2])
        pairs = op.Concat(column, column * 0 + self._blank, axis=2)
        return op.Concat(zero + self._blank, op.Reshape(pairs, [0, -1]), axis=1)

    def _padded(self, op: OpBuilder, target: Tensor, labels: Tensor) -> Tensor:
        """Targets, blank behind their number; a negative one as a number that is no index."""
        target = op.Where(op.Less(target, 0), op.const(largest(INT64)), target)
        size = op.Squeeze(op.Slice(op.Shape(target), [1], [2], [0]), [0])
        positions = op.Range(0, size, 1)
        inside = op.Less(op.Unsqueeze(positions, [0]), op.Unsqueeze(labels, [1]))
        return op.Where(inside, target, op.const(self._blank))

    def _scan(
        self, op: OpBuilder, x: Tensor, spread: Tensor, frames: Tensor, zero: Tensor
    ) -> Tensor:
        """α after each sequence's last frame: (N, 2S + 1)."""
        kind = x.dtype
        wall = op.Cast(zero, to=kind) + IMPOSSIBLE
        no_jump = op.Cast(self._no_jump(op, spread, zero), to=kind) * IMPOSSIBLE
        time = op.Slice(op.Shape(x), [0], [1], [0])
        size = op.Concat(time, op.Shape(spread), axis=0)
        scores = op.GatherElements(x, op.Expand(op.Unsqueeze(spread, [0]), size), axis=2)
        clock = op.Range(0, op.Squeeze(time, [0]), 1)
        running = op.Less(op.Unsqueeze(clock, [1]), op.Unsqueeze(frames, [0]))
        rest = op.Cast(op.Slice(spread, [1], [LAST], [1]), to=kind) * 0.0 + IMPOSSIBLE
        start = op.Concat(op.Cast(zero, to=kind), rest, axis=1)
        return self._recursion(op, start, scores, op.Unsqueeze(running, [2]), wall, no_jump)

    def _no_jump(self, op: OpBuilder, spread: Tensor, zero: Tensor) -> Tensor:
        """Where a blank, or the same label two places before, forbids skipping a place."""
        column = zero + self._blank
        earlier = op.Concat(column, column, op.Slice(spread, [0], [-2], [1]), axis=1)
        return op.Or(op.Equal(spread, earlier), op.Equal(spread, self._blank))

    @staticmethod
    def _recursion(
        op: OpBuilder, start: Tensor, scores: Tensor, running: Tensor, wall: Tensor, no_jump: Tensor
    ) -> Tensor:
        kind = scores.dtype
        alpha = op.body_input("alpha", kind, [None, None])
        score = op.body_input("score", kind, [None, None])
        runs = op.body_input("runs", ir.DataType.BOOL, [None, 1])

        def frame() -> Sequence[Tensor]:
            one = op.Concat(wall, op.Slice(alpha, [0], [-1], [1]), axis=1)
            two = op.Concat(wall, wall, op.Slice(alpha, [0], [-2], [1]), axis=1)
            ways = [op.Unsqueeze(way, [2]) for way in (alpha, one, two + no_jump)]
            total = op.ReduceLogSumExp(op.Concat(*ways, axis=2), [2], keepdims=0)
            return [op.Where(runs, total + score, alpha)]

        body = op.body("ctc_frame", [alpha, score, runs], frame)
        return op.Scan(start, scores, running, body=body, num_scan_inputs=2)

    def _last(self, op: OpBuilder, alpha: Tensor, labels: Tensor) -> Tensor:
        """−logsumexp of the two places where an alignment may end."""
        end = op.Unsqueeze(labels * 2, [1])
        ends = op.Concat(end, op.Max(end - 1, 0), axis=1)
        values = op.GatherElements(alpha, ends, axis=1)
        # without labels there is one place only: position 0 must not count twice
        penalty = op.Cast(op.Equal(end, 0), to=alpha.dtype) * IMPOSSIBLE
        values = values + op.Concat(penalty * 0.0, penalty, axis=1)
        loss = -op.ReduceLogSumExp(values, [1], keepdims=0)
        other = 0.0 if self._zero_infinity else float("inf")
        return op.Where(loss > -IMPOSSIBLE / 10, op.like(other, loss), loss)
