"""Connectionist temporal classification: the loss of a label sequence without an alignment."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from .._graph_utils import node_arg_exists
from ..emit import Emitter
from .common import INT64, Loss, largest

IMPOSSIBLE = -1e30
"""The logarithm of zero; finite, so that no difference of infinities makes a NaN."""


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
        emit = self._emit
        emit.require(13, "CTCLoss")
        x = loss_input_name
        batch = emit.dims(x)[0 if self._batch_first else 1]
        target = _input(emit, target_name, [batch, f"{target_name}_size"])
        frames = _input(emit, input_lengths_name, [batch])
        labels = _input(emit, target_lengths_name, [batch])
        if self._batch_first:
            x = emit.node("Transpose", x, perm=[1, 0, 2])
        if self._log_softmax:
            x = emit.node("LogSoftmax", x, axis=2)
        kind = emit.dtype(loss_input_name)
        zero = emit.mul(emit.unsqueeze(labels, 1), emit.constant(np.array(0)))
        spread = self._spread(emit, target, labels, zero)
        alpha = self._scan(emit, x, spread, frames, zero, kind)
        loss = self._last(emit, alpha, labels, kind)
        if self._reduction == "mean":
            count = emit.cast(emit.node("Max", labels, emit.constant(np.array(1))), kind)
            loss = emit.div(loss, count)
        return self._reduce(emit, loss)

    def _spread(self, emit: Emitter, target: str, labels: str, zero: str) -> str:
        """Labels with blanks before, between and behind them: (N, 2S + 1)."""
        blank = emit.constant(np.array(self._blank))
        column = emit.unsqueeze(self._padded(emit, target, labels, blank), 2)
        nothing = emit.add(emit.mul(column, emit.constant(np.array(0))), blank)
        pairs = emit.node("Concat", column, nothing, axis=2)
        flat = emit.node("Reshape", pairs, emit.constant(np.array([0, -1])))
        return emit.node("Concat", emit.add(zero, blank), flat, axis=1)

    @staticmethod
    def _padded(emit: Emitter, target: str, labels: str, blank: str) -> str:
        """Targets, blank behind their number; a negative one as a number that is no index."""
        negative = emit.node("Less", target, _zero(emit))
        target = emit.node("Where", negative, emit.constant(np.array(largest(INT64))), target)
        size = emit.squeeze(emit.node("Slice", emit.node("Shape", target), *_range(emit, 1, 2)), 0)
        places = emit.node("Range", _zero(emit), size, emit.constant(np.array(1)))
        inside = emit.node("Less", emit.unsqueeze(places, 0), emit.unsqueeze(labels, 1))
        return emit.node("Where", inside, target, blank)

    def _scan(self, emit: Emitter, x: str, spread: str, frames: str, zero: str, kind: int) -> str:
        """α after each sequence's last frame: (N, 2S + 1)."""
        impossible = emit.constant(np.array(IMPOSSIBLE), kind)
        wall = emit.add(emit.cast(zero, kind), impossible)
        no_jump = emit.mul(emit.cast(self._no_jump(emit, spread, zero), kind), impossible)
        time = emit.node("Slice", emit.node("Shape", x), *_range(emit, 0, 1))
        size = emit.node("Concat", time, emit.node("Shape", spread), axis=0)
        index = emit.node("Expand", emit.unsqueeze(spread, 0), size)
        scores = emit.node("GatherElements", x, index, axis=2)
        clock = emit.node(
            "Range", emit.constant(np.array(0)), emit.squeeze(time, 0), emit.constant(np.array(1))
        )
        running = emit.node("Less", emit.unsqueeze(clock, 1), emit.unsqueeze(frames, 0))
        rest = emit.cast(emit.node("Slice", spread, *_range(emit, 1, 2**31 - 1, 1)), kind)
        rest = emit.mul(rest, emit.number(0.0, x))
        start = emit.node("Concat", emit.cast(zero, kind), emit.add(rest, impossible), axis=1)
        return self._recursion(emit, start, scores, emit.unsqueeze(running, 2), wall, no_jump, kind)

    def _no_jump(self, emit: Emitter, spread: str, zero: str) -> str:
        """Where a blank, or the same label two places before, forbids skipping a place."""
        blank = emit.constant(np.array(self._blank))
        column = emit.add(zero, blank)
        earlier = emit.node("Slice", spread, *_range(emit, 0, -2, 1))
        earlier = emit.node("Concat", column, column, earlier, axis=1)
        same = emit.node("Equal", spread, earlier)
        return emit.node("Or", same, emit.node("Equal", spread, blank))

    @staticmethod
    def _recursion(
        emit: Emitter, start: str, scores: str, running: str, wall: str, no_jump: str, kind: int
    ) -> str:
        alpha, score, runs = (emit.name(t) for t in ("alpha", "score", "runs"))
        back = {k: _range(emit, 0, -k, 1) for k in (1, 2)}
        axis = emit.constant(np.array([2]))
        with emit.body() as nodes:
            one = emit.node("Concat", wall, emit.node("Slice", alpha, *back[1]), axis=1)
            two = emit.node("Concat", wall, wall, emit.node("Slice", alpha, *back[2]), axis=1)
            ways = [emit.node("Unsqueeze", w, axis) for w in (alpha, one, emit.add(two, no_jump))]
            together = emit.node("Concat", *ways, axis=2)
            if emit.opset >= 18:
                total = emit.node("ReduceLogSumExp", together, axis, keepdims=0)
            else:
                total = emit.node("ReduceLogSumExp", together, axes=[2], keepdims=0)
            following = emit.node("Where", runs, emit.add(total, score), alpha)
        bool_ = onnx.TensorProto.BOOL
        inputs = [
            helper.make_tensor_value_info(alpha, kind, [None, None]),
            helper.make_tensor_value_info(score, kind, [None, None]),
            helper.make_tensor_value_info(runs, bool_, [None, 1]),
        ]
        output = helper.make_tensor_value_info(following, kind, [None, None])
        graph = helper.make_graph(nodes, "ctc_frame", inputs, [output])
        return emit.node("Scan", start, scores, running, body=graph, num_scan_inputs=2)

    def _last(self, emit: Emitter, alpha: str, labels: str, kind: int) -> str:
        """−logsumexp of the two places where an alignment may end."""
        end = emit.unsqueeze(emit.mul(labels, emit.constant(np.array(2))), 1)
        before = emit.node("Max", emit.sub(end, emit.constant(np.array(1))), _zero(emit))
        ends = emit.node("Concat", end, before, axis=1)
        values = emit.node("GatherElements", alpha, ends, axis=1)
        # without labels there is one place only: position 0 must not count twice
        empty = emit.cast(emit.node("Equal", end, _zero(emit)), kind)
        penalty = emit.mul(empty, emit.constant(np.array(IMPOSSIBLE), kind))
        nothing = emit.mul(penalty, emit.constant(np.array(0.0), kind))
        values = emit.add(values, emit.node("Concat", nothing, penalty, axis=1))
        loss = emit.node("Neg", emit.reduce("ReduceLogSumExp", values, [1]))
        limit = emit.constant(np.array(-IMPOSSIBLE / 10), kind)
        other = emit.constant(np.array(0.0 if self._zero_infinity else np.inf), kind)
        return emit.node("Where", emit.node("Greater", loss, limit), other, loss)


def _input(emit: Emitter, name: str, dims: list[int | str | None]) -> str:
    return name if node_arg_exists(emit.model, name) else emit.input(name, INT64, dims)


def _zero(emit: Emitter) -> str:
    return emit.constant(np.array(0))


def _range(emit: Emitter, start: int, end: int, axis: int | None = None) -> list[str]:
    """The operands of a Slice along one axis, by default the first."""
    parts = [start, end, 0 if axis is None else axis]
    return [emit.constant(np.array([p])) for p in parts]
