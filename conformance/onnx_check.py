"""An ONNX model against float64 differences of itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import onnx

from onnxtrain.compile import weights_of
from onnxtrain.graph import load, to_proto
from onnxtrain.graph import parameters as params
from onnxtrain.graph.retype import to_float64
from onnxtrain.normalize import normalize

from .cases import Array, OnnxCase
from .check import EndOfCase, Stages
from .everywhere import are_same, not_excused, with_kernels_everywhere
from .results import Row
from .sessions import Session, cpu_times
from .twin import Twin, in_float64, widened
from .verdicts import (
    COARSE,
    NOTHING,
    ROUNDING,
    STEPS,
    Verdict,
    distance,
    judge_alone,
    judge_together,
    largest_of,
    worst,
)
from .weighted import LOSS, differentiate, gradient_names, weight_of, with_loss

FLOATS = (np.float16, np.float32, np.float64)
FORWARD_TOLERANCE = 2e-3
WIDE_STEPS = (3e-2, 1e-2, 3e-3)
WIDE_TOLERANCE = 3e-2
SECONDS = 60.0
"""What differences of every gradient may take of the processor; otherwise all are compared
together."""
LOST = 1e-3
"""Of the largest gradient of a model: below it float32 may hide a wrong factor."""
STANDS_FOR_INFINITY = 1e30
"""Masks add the lowest number there is: what is added to that is lost, and has no differences."""
Evaluate = Callable[[Mapping[str, Array]], float]


class OnnxTrial:
    """One model, stage by stage; figures go into the row."""

    def __init__(self, case: OnnxCase) -> None:
        self.case = case
        model = case.model
        self.model = onnx.load(model) if isinstance(model, (str, os.PathLike)) else model
        self.feeds: dict[str, Array] = dict(case.feeds)

    def run(self, stages: Stages, row: Row) -> None:
        """All stages; raises `EndOfCase` where one ends the case."""
        stages.run("forward", "not run forward", partial(self._forward, row))
        stages.run("differentiate", "crash", partial(self._differentiate, row))
        stages.run("session", "crash", partial(self._make_session, row))
        ours = stages.run("gradients", "crash", self._run)
        found = stages.run("differences", "crash", partial(self._judge, row, ours))
        if self.session.kernels:
            found = [self._not_excused(worst(found), ours)]
        everywhere = partial(self._with_kernels_everywhere, row, ours)
        found += stages.run("kernels everywhere", "crash", everywhere)
        if self.case.timing:
            stages.run("timing", "crash", partial(self._timing, row))
        final = worst(found)
        row["gradients"] = final.word
        row["gradients_error"] = max((v.error for v in found if np.isfinite(v.error)), default=0.0)
        row["outcome"] = "right" if final.word in ("right", "kink", "rounding") else "wrong"
        row["reason"] = "" if final.word == "right" else f"{final.word}: {final.note}"

    def _forward(self, row: Row) -> None:
        self.forward = Session(self.model, whole=True)
        row["forward_session_s"] = self.forward.seconds
        got = self.forward.run(self.feeds)
        self.values = {
            n: v for n, v in got.items() if isinstance(v, np.ndarray) and v.dtype in FLOATS
        }
        known = {n: v for n, v in self.case.expected.items() if n in self.values}
        error = max((distance(self.values[n], v, 0.0) for n, v in known.items()), default=0.0)
        row["forward"] = error
        if error > FORWARD_TOLERANCE:
            raise EndOfCase("not run forward", f"onnxruntime's outputs differ by {error:.2g}")
        if self.case.of is not None:
            self.values = {n: v for n, v in self.values.items() if n in self.case.of}
        if not self.values:
            raise EndOfCase("no gradient", "no output of the model is a float tensor")
        if any(v.size for v in self.values.values()) and not any(
            np.isfinite(v).any() for v in self.values.values()
        ):
            raise EndOfCase("no gradient", "no output of the model is a finite number")

    def _differentiate(self, row: Row) -> None:
        rng = np.random.default_rng(0)
        self.loss_model = with_loss(self.model, self.values)
        for output, value in self.values.items():
            counts = np.abs(value) < STANDS_FOR_INFINITY  # false where it is no number
            weight = np.where(counts, rng.uniform(-1, 1, value.shape), 0.0)
            self.feeds[weight_of(LOSS, output)] = weight.astype(value.dtype)
        started = time.process_time()
        self.wrt = list(self.case.wrt) if self.case.wrt is not None else self._everything()
        if not self.wrt:
            raise EndOfCase("no gradient", "no float input or initializer to differentiate")
        self.gradient_model = self._gradient_model()
        row["build_s"] = time.process_time() - started
        row["nodes"] = len(self.model.graph.node)
        row["nodes_after"] = len(self.gradient_model.graph.node)

    def _everything(self) -> list[str]:
        stored = {i.name for i in self.model.graph.initializer}
        weights = [n for n in weights_of(self.loss_model, [LOSS]) if n in stored]
        inputs = [n for n, v in self.case.feeds.items() if getattr(v, "dtype", None) in FLOATS]
        return [*weights, *inputs]

    def _make_session(self, row: Row) -> None:
        self.session = Session(self.gradient_model)
        row["session_s"], row["kernels"] = self.session.seconds, self.session.kernels

    def _gradient_model(self) -> onnx.ModelProto:
        return differentiate(self.loss_model, self.wrt, LOSS)

    def _run(self) -> dict[str, Array]:
        return self._gradients_of(self.session, self.gradient_model)

    def _gradients_of(self, session: Session, model: onnx.ModelProto) -> dict[str, Array]:
        got = session.run(self.feeds)
        names = gradient_names(model)
        return {n: got[names[n]] for n in self.wrt}

    def _with_kernels_everywhere(self, row: Row, ours: dict[str, Array]) -> list[Verdict]:
        everywhere = with_kernels_everywhere(self._gradient_model, self.session)
        if everywhere is None:
            return []
        model, session = everywhere
        row["kernels_everywhere"] = session.kernels
        others = self._gradients_of(session, model)
        if are_same(ours, others, self._largest(ours)):
            row["everywhere"] = "right"
            return []
        decided = self._not_excused(worst(self._judge(row, others)), others)
        row["everywhere"] = decided.word
        return [replace(decided, note=f"with kernels everywhere, {decided.note}")]

    def _not_excused(self, verdict: Verdict, kernels: dict[str, Array]) -> Verdict:
        """A verdict about gradients of kernels, not less strict than about standard operators."""
        if verdict.word != "rounding":
            return verdict
        session = Session(self.gradient_model, own_kernels=False, creations=1)
        standard = self._gradients_of(session, self.gradient_model)
        return not_excused(verdict, kernels, standard, self._exact_gradients)

    def _largest(self, ours: Mapping[str, Array]) -> float:
        """The largest of all gradients.

        Those of the outputs count too: what cancels to zero leaves rounding of their size.
        """
        outer = {n: self.feeds[weight_of(LOSS, n)] for n in self.values}
        return largest_of({**ours, **outer})

    def _judge(self, row: Row, ours: dict[str, Array]) -> list[Verdict]:
        start = self._start()
        evaluate, steps, tolerance = self._evaluator(row)
        if not all(np.isfinite(v).all() for v in self.values.values()):
            ours, start = _where_defined(ours, start)
        started = time.process_time()
        evaluate({})
        each = 4 * (2 * len(steps) + 1) * (time.process_time() - started)
        if each * len(self.wrt) > SECONDS:
            row["compared"] = "together"
            chosen = steps if each < SECONDS else steps[len(steps) // 2 :]

            def together(gradients: Mapping[str, Array]) -> Verdict:
                return judge_together(gradients, evaluate, start, tolerance=tolerance, steps=chosen)

            verdict = together(ours)
            is_doubted = verdict.word in ("wrong", "undecided") and steps is STEPS
            exact = self._exact_gradients if is_doubted else {}
            if exact and together(exact).word == "right":
                verdict = _rounded(verdict)
            return [self._or_formula(verdict, self.wrt) if steps is not STEPS else verdict]
        largest = self._largest(ours)
        found = []
        for name in self.wrt:

            def judged(
                gradient: Array, floor: float = largest, tolerance: float = tolerance,
                name: str = name,
            ) -> Verdict:  # fmt: skip
                return judge_alone(
                    gradient, lambda moved: evaluate({name: moved}), start[name],
                    largest=floor, tolerance=tolerance, steps=steps,
                )  # fmt: skip

            verdict = judged(ours[name])
            if steps is STEPS:
                verdict = self._with_float64(name, ours[name], verdict, judged, largest)
            else:
                verdict = self._or_formula(verdict, [name])
            found.append(Verdict(verdict.word, verdict.error, f"{name}: {verdict.note}"))
        return found

    def _with_float64(
        self, name: str, ours: Array, verdict: Verdict, judged: Callable[..., Verdict],
        largest: float,
    ) -> Verdict:  # fmt: skip
        """What the gradient graph computes in float64 decides where float32 cannot.

        If that is right, a gradient that seems wrong is off by rounding. A gradient that is lost
        beside the largest one must be right by itself there: rounding of the others does not
        excuse a wrong factor.
        """
        seems_wrong = verdict.word in ("wrong", "undecided")
        is_lost = verdict.word == "right" and 0 < largest_of({name: ours}) < LOST * largest
        exact = self._exact_gradients.get(name) if seems_wrong or is_lost else None
        if exact is None:
            return verdict
        if seems_wrong and judged(exact).word == "right":
            return _rounded(verdict)
        if is_lost:
            alone = judged(exact, largest * NOTHING / ROUNDING, COARSE)
            return verdict if alone.word == "right" else alone
        return verdict

    def _or_formula(self, verdict: Verdict, names: list[str]) -> Verdict:
        """Where differences in float32 say that gradients are wrong, the formula may be right.

        A mask that adds −1e10 to a whole row leaves nothing of the row in float32, and all of it
        in float64: two functions. The gradient follows the graph, as PyTorch's does, and is that
        of the second.
        """
        if verdict.word not in ("wrong", "undecided"):
            return verdict
        try:
            evaluate, exact = self._in_float64(), self._exact_gradients
            there = {n: exact[n] for n in names}
        except Exception:  # onnx's evaluator does not know every operator
            return verdict
        start = {n: widened(a) for n, a in self._start().items() if n in there}
        if not all(np.isfinite(a).all() for a in there.values()):
            return verdict
        formula = judge_together(there, evaluate, start, tolerance=self.case.tolerance, steps=STEPS)
        return _rounded(verdict) if formula.word in ("right", "kink") else verdict

    @cached_property
    def _exact_gradients(self) -> dict[str, Array]:
        """What the gradient graph computes in float64; nothing where that cannot be told."""
        outputs = in_float64(self.gradient_model, self.feeds)
        names = gradient_names(self.gradient_model)
        return {n: outputs[names[n]] for n in self.wrt} if outputs else {}

    def _start(self) -> dict[str, Array]:
        stored = {i.name: i for i in self.model.graph.initializer}
        return {
            n: self.feeds[n] if n in self.feeds else onnx.numpy_helper.to_array(stored[n])
            for n in self.wrt
        }

    def _evaluator(self, row: Row) -> tuple[Evaluate, tuple[float, ...], float]:
        """What computes the loss, if need be on onnxruntime in float32 with wide steps."""
        if self.case.differences_on == "float64":
            try:
                evaluate = self._in_float64()
                exact, there = evaluate({}), self._in_float32()({})
                if abs(exact - there) <= 1e-2 * max(abs(there), 1.0) or not np.isfinite(there):
                    return evaluate, STEPS, self.case.tolerance
                row["differences"] = "float32: the float64 twin differs"
            except Exception as error:  # onnx's evaluator does not know every operator
                row["differences"] = f"float32: {type(error).__name__} in float64"
        else:
            row["differences"] = "float32"
        return self._in_float32(), WIDE_STEPS, max(self.case.tolerance, WIDE_TOLERANCE)

    def _in_float64(self) -> Evaluate:
        exact = to_float64(normalize(load(self.loss_model)))
        stored = [n for n in self.wrt if n in exact.graph.initializers]
        values = {n: a for n, a in self._start().items() if n in stored}
        at = {n: widened(a) for n, a in {**values, **self.feeds}.items()}
        params.to_inputs(exact, stored)
        twin = Twin(to_proto(exact))

        def evaluate(moved: Mapping[str, Array]) -> float:
            try:
                outputs = twin.run({**at, **moved})
            except Exception:
                if not moved:
                    raise
                return np.nan  # there the outputs have other shapes: a jump
            return self._total(outputs)

        return evaluate

    def _in_float32(self) -> Evaluate:
        model = load(self.model)
        stored = [n for n in self.wrt if n in model.graph.initializers]
        values = {n: a for n, a in self._start().items() if n in stored}
        params.to_inputs(model, stored)
        proto = to_proto(model)
        # Optimized, some products of weights with few bits round what they are multiplied with.
        session = Session(proto, whole=True, optimized=False)

        def evaluate(moved: Mapping[str, Array]) -> float:
            point = {**values, **self.feeds}
            point |= {n: np.asarray(a, point[n].dtype) for n, a in moved.items()}
            return self._total(session.run(point))

        return evaluate

    def _total(self, outputs: Mapping[str, Array]) -> float:
        """The loss, without what is not finite."""
        with np.errstate(all="ignore"):
            products = [
                np.asarray(outputs[n], np.float64) * self.feeds[weight_of(LOSS, n)]
                for n in self.values
            ]
        return float(sum(p[np.isfinite(p)].sum() for p in products))

    def _timing(self, row: Row) -> None:
        ours, theirs = cpu_times(
            lambda: self.session.run(self.feeds), lambda: self.forward.run(self.feeds)
        )
        row["step_ms"] = ours * 1e3
        row["to_forward"] = ours / theirs if theirs else None


def _where_defined(
    ours: dict[str, Array], start: dict[str, Array]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Leave out what a gradient is NaN for, as √x below zero, by a point that nothing moves."""
    defined = {n: np.isfinite(g) for n, g in ours.items() if g.shape == start[n].shape}
    return (
        {n: np.where(defined[n], g, 0) if n in defined else g for n, g in ours.items()},
        {n: np.where(defined[n], x, np.nan) if n in defined else x for n, x in start.items()},
    )


def _rounded(verdict: Verdict) -> Verdict:
    return Verdict("rounding", verdict.error, f"float32 alone: {verdict.note}")
