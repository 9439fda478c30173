"""A torch module, exported, against autograd."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx
import torch
from torch.utils import _pytree as pytree

from onnxtrain.errors import OnnxTrainError
from onnxtrain.torch.export import Exported

from .cases import Array, TorchCase
from .check import EndOfCase, Stages
from .everywhere import are_same, not_excused, with_kernels_everywhere
from .exporters import EXPORTERS
from .results import Row
from .sessions import Session, cpu_times
from .steps import compare_steps
from .torch_function import OtherSizes, TorchFunction, arrays, in_float32, random_weights
from .twin import in_float64
from .verdicts import (
    Verdict,
    compare,
    distance,
    judge,
    judge_by_differences,
    largest_of,
    or_rounding,
    worst,
)
from .weighted import LOSS, differentiate, gradient_names, weight_of, with_loss

FORWARD_TOLERANCE = 2e-3
SECOND = "conformance_second"
BY_THEMSELVES, AXES = 3, 40
"""How many gradients that differ from torch's are judged one by one, and along how many axes."""
LARGE, BY_THEMSELVES_LARGE, AXES_LARGE = 2_000_000, 1, 6
"""Elements from which on a network takes long to compute, and fewer differences are taken."""
FINE = ("right", "rounding", "kink", "torch wrong")


class TorchTrial:
    """One module and one exporter, stage by stage; figures go into the row."""

    def __init__(self, case: TorchCase, exporter: str | Callable[[TorchCase], Exported]) -> None:
        torch.set_num_threads(1)
        # Some samples are float64 whatever is asked for.
        inputs, kwargs = pytree.tree_map(in_float32, (case.inputs, case.kwargs))
        self.case = case = replace(case, inputs=inputs, kwargs=kwargs)
        self._export = EXPORTERS[exporter] if isinstance(exporter, str) else exporter
        self.function = TorchFunction(case)
        self.verdicts: list[Verdict] = []

    def run(self, stages: Stages, row: Row) -> None:
        """All stages; raises `EndOfCase` where one ends the case."""
        stages.run("torch", "not exported", self._call_torch)
        self.exported = stages.run("export", "not exported", self._exported)
        stages.run("forward", "not run forward", partial(self._forward, row))
        stages.run("differentiate", "crash", partial(self._differentiate, row))
        stages.run("session", "crash", partial(self._make_session, row))
        stages.run("gradients", "crash", partial(self._gradients, row))
        everywhere = partial(self._with_kernels_everywhere, row)
        stages.run("kernels everywhere", "crash", everywhere)
        if self.case.second_order:
            stages.run("second order", "crash", partial(self._second_order, row))
        if self.case.steps and self.parameters:
            stages.run("steps", "crash", partial(self._steps, row))
        if self.case.timing:
            stages.run("timing", "crash", partial(self._timing, row))
        final = worst(self.verdicts)
        row["outcome"] = "right" if final.word in FINE else "wrong"
        row["reason"] = "" if final.word == "right" else f"{final.word}: {final.note}"

    # --- the module in torch ----------------------------------------------------------------------

    def _call_torch(self) -> None:
        outputs = self.function.outputs(self.function.point())
        self.function.weights = random_weights(outputs)
        self.expected = [o.detach().numpy(force=True) for o in outputs]
        if not any(w.size for w in self.function.weights):
            raise EndOfCase("no gradient", "no output of the module has a gradient in torch")
        if not any(w.any() for w in self.function.weights):
            raise EndOfCase("no gradient", "no output of the module is a finite number")
        self.gradients32 = arrays(self.function.gradients(self.function.point()))

    @cached_property
    def exact(self) -> TorchFunction:
        """The module in float64."""
        function = TorchFunction(self.case, torch.float64)
        function.weights = self.function.weights
        return function

    @cached_property
    def gradients64(self) -> dict[str, Array]:
        """Autograd's, in float64."""
        return arrays(self.exact.gradients(self.exact.point()))

    # --- the model --------------------------------------------------------------------------------

    def _exported(self) -> Exported:
        module = copy.deepcopy(self.case.module)  # calls may leave tensors in it, with a history
        try:
            return self._export(replace(self.case, module=module))
        except OnnxTrainError as error:
            theirs = "cannot be exported to ONNX" in str(error)
            raise EndOfCase("not exported" if theirs else "refused", error) from error

    def _forward(self, row: Row) -> None:
        session = Session(self.exported.model, whole=True)
        row["forward_session_s"] = session.seconds
        self.feeds: dict[str, Array] = arrays(self.function.inputs)
        got = session.run(self.feeds)
        error = self._forward_error(got)
        if error > FORWARD_TOLERANCE:
            # BatchNormalization in training mode loses the outputs that nobody reads, and with them
            # its mode, when onnxruntime optimizes the graph.
            got = Session(self.exported.model, whole=True, optimized=False).run(self.feeds)
            error = self._forward_error(got)
        row["forward"] = error
        if error > FORWARD_TOLERANCE:
            reason = f"onnxruntime's outputs differ from torch's: {error:.2g}"
            raise EndOfCase("not run forward", reason)
        counted = [bool(w.size) for w in self.function.weights]
        self.values = {n: got[n] for n, c in zip(self.exported.outputs, counted) if c}

    def _forward_error(self, got: dict[str, Array]) -> float:
        values = [got[n] for n in self.exported.outputs]
        if len(values) != len(self.expected):
            reason = f"{len(values)} outputs, torch has {len(self.expected)}"
            raise EndOfCase("not run forward", reason)
        return max(_apart(v, e) for v, e in zip(values, self.expected))

    def _differentiate(self, row: Row) -> None:
        inputs = {i.name for i in self.exported.model.graph.input}
        self.parameters = {
            n: self.exported.names[n] for n in self.function.point() if n in self.exported.names
        }
        floats = {n: n for n in self.function.point() if n in self.function.inputs and n in inputs}
        self.wrt = {**self.parameters, **floats}
        if not self.wrt:
            raise EndOfCase("no gradient", "the graph has no float input and no parameter")
        self.model = with_loss(self.exported.model, self.values)
        weights = [w for w in self.function.weights if w.size]
        for (output, value), weight in zip(self.values.items(), weights):
            self.feeds[weight_of(LOSS, output)] = weight.astype(value.dtype)
        started = time.thread_time()
        self.gradient_model = self._gradient_model()
        row["build_s"] = time.thread_time() - started
        row["nodes"] = len(self.exported.model.graph.node)
        row["nodes_after"] = len(self.gradient_model.graph.node)

    def _gradient_model(self) -> onnx.ModelProto:
        return differentiate(self.model, list(self.wrt.values()), LOSS, self.exported.barriers)

    def _make_session(self, row: Row) -> None:
        self.session = Session(self.gradient_model)
        row["session_s"], row["kernels"] = self.session.seconds, self.session.kernels

    def _gradients(self, row: Row) -> None:
        got = self.session.run(self.feeds)
        self.ours = self._ours(got, self.gradient_model)
        largest = largest_of(self.gradients32)
        found = self._judge_all(self.ours, largest)
        found += [
            Verdict("wrong", 1.0, f"{n} is not in the graph, and torch has a gradient")
            for n, g in self.gradients32.items()
            if n not in self.wrt and np.abs(g).max(initial=0) > 1e-6 * largest
        ]
        if self._forward_error(got) > FORWARD_TOLERANCE:
            found.append(Verdict("wrong", 1.0, "outputs of the graph with gradients are others"))
        self._note(row, "gradients", found)

    def _ours(self, got: Mapping[str, Array], model: onnx.ModelProto) -> dict[str, Array]:
        """Of outputs the gradients, by torch's names."""
        names = gradient_names(model)
        return {n: got[names[v]] for n, v in self.wrt.items()}

    def _with_kernels_everywhere(self, row: Row) -> None:
        if self.session.kernels and self.verdicts[0].word == "rounding":
            decided = self._not_excused(self.verdicts[0], self.ours)
            row["gradients"], self.verdicts[0] = decided.word, decided
        everywhere = with_kernels_everywhere(self._gradient_model, self.session)
        if everywhere is None:
            return
        model, session = everywhere
        row["kernels_everywhere"] = session.kernels
        got = session.run(self.feeds)
        others, largest = self._ours(got, model), largest_of(self.gradients32)
        if are_same(self.ours, others, largest):
            row["everywhere"] = "right"
            return
        found = self._judge_all(others, largest)
        if self._forward_error(got) > FORWARD_TOLERANCE:
            found.append(Verdict("wrong", 1.0, "outputs are others with kernels everywhere"))
        decided = self._not_excused(worst(found), others)
        row["everywhere"] = decided.word
        self.verdicts.append(replace(decided, note=f"with kernels everywhere, {decided.note}"))

    def _not_excused(self, verdict: Verdict, kernels: dict[str, Array]) -> Verdict:
        """A verdict about gradients of kernels, not less strict than about standard operators."""
        if verdict.word != "rounding":
            return verdict
        standard = Session(self.gradient_model, own_kernels=False, creations=1).run(self.feeds)
        return not_excused(
            verdict, kernels, self._ours(standard, self.gradient_model), self.twin or {}
        )

    def _judge_all(self, ours: dict[str, Array], largest: float) -> list[Verdict]:
        """All that differ from torch's are judged: the worst by themselves, the rest together.

        At a kink the gradients of everything before it differ, and one would be looked at like
        the other.
        """
        compared = {n: self._compare(n, ours[n], largest) for n in self.wrt}
        differ = [n for n in self.wrt if compared[n].word == "undecided"]
        differ.sort(key=lambda n: -compared[n].error)
        alone = BY_THEMSELVES_LARGE if self._is_large else BY_THEMSELVES
        groups = [[n] for n in differ[:alone]]
        groups += [differ[alone:]] if len(differ) > alone else []
        judged = [self._judge(names, ours, largest) for names in groups]
        return [v for v in compared.values() if v.word != "undecided"] + judged

    def _compare(self, name: str, ours: Array, largest: float) -> Verdict:
        verdict = compare(
            ours, self.gradients32[name], lambda: self.gradients64[name],
            largest=largest, tolerance=self.case.tolerance,
        )  # fmt: skip
        return Verdict(verdict.word, verdict.error, f"{name}: {verdict.note}")

    def _judge(self, names: list[str], ours: dict[str, Array], largest: float) -> Verdict:
        """About some gradients as if they were one."""
        at = arrays(self.function.point())
        ends = np.cumsum([at[n].size for n in names])[:-1]

        def flat(values: Mapping[str, Array]) -> Array:
            return np.concatenate([values[n].ravel() for n in names])

        def function(moved: Array) -> float:
            parts = zip(names, np.split(moved, ends))
            return self.exact.value({n: part.reshape(at[n].shape) for n, part in parts})

        exact = flat(self.gradients64)
        verdict = judge_by_differences(
            flat(ours), exact, function, flat(at), largest=largest, tolerance=self.case.tolerance,
            axes=AXES_LARGE if self._is_large else AXES,
        )  # fmt: skip
        if verdict.word in ("wrong", "undecided") and self.twin is not None:
            verdict = or_rounding(verdict, flat(self.twin), exact, largest, flat(ours))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return Verdict(verdict.word, verdict.error, f"{names[0]}{more}: {verdict.note}")

    @cached_property
    def _is_large(self) -> bool:
        return sum(p.numel() for p in self.case.module.parameters()) > LARGE

    @cached_property
    def twin(self) -> dict[str, Array] | None:
        """The gradients that our graph has in float64; None where it cannot be computed so."""
        outputs = in_float64(self.gradient_model, self.feeds)
        names = gradient_names(self.gradient_model)
        return {n: outputs[names[v]] for n, v in self.wrt.items()} if outputs else None

    def _note(self, row: Row, what: str, found: list[Verdict]) -> None:
        decided = worst(found)
        row[what] = decided.word
        row[f"{what}_error"] = max((v.error for v in found if np.isfinite(v.error)), default=0.0)
        self.verdicts.append(decided)

    # --- the gradient of the gradient -------------------------------------------------------------

    def _second_order(self, row: Row) -> None:
        rng = np.random.default_rng(1)
        point = self.function.point()
        along = {n: rng.uniform(-1, 1, tuple(point[n].shape)).astype(np.float32) for n in self.wrt}
        try:
            expected = arrays(self.function.second_gradients(point, along))
        except (RuntimeError, NotImplementedError) as error:
            row["second"] = f"torch has none: {str(error).splitlines()[0][:60]}"
            return
        feeds = dict(self.feeds)
        outputs = gradient_names(self.gradient_model)
        values = {outputs[v]: along[n] for n, v in self.wrt.items()}
        feeds |= {weight_of(SECOND, output): array for output, array in values.items()}
        try:
            first = with_loss(self.gradient_model, values, SECOND)
            model = differentiate(first, list(self.wrt.values()), SECOND, self.exported.barriers)
        except OnnxTrainError as error:
            row["second"] = f"refused: {str(error).splitlines()[0][:120]}"
            return
        got = Session(model).run(feeds)
        names = gradient_names(model)
        largest = max(largest_of(expected), largest_of(self.gradients32) * 1e-3)
        found = []
        for name, value in self.wrt.items():
            judged = self._judge_second(name, got[names[value]], expected[name], along, largest)
            if judged.word in ("wrong", "undecided"):
                exact = arrays(self.exact.second_gradients(self.exact.point(), along))[name]
                ours64 = in_float64(model, feeds).get(names[value])
                judged = or_rounding(judged, ours64, exact, largest, got[names[value]])
            found.append(judged)
        self._note(row, "second", found)

    def _judge_second(
        self, name: str, ours: Array, expected: Array, along: dict[str, Array], largest: float
    ) -> Verdict:
        def exact() -> Array:
            return arrays(self.exact.second_gradients(self.exact.point(), along))[name]

        def function(moved: Array) -> float:
            return self.exact.second_value({name: moved}, along)

        at = arrays(self.function.point())[name]
        verdict = judge(
            ours, expected, exact, function, at, largest=largest, tolerance=self.case.tolerance
        )
        return Verdict(verdict.word, verdict.error, f"second order, {name}: {verdict.note}")

    # --- training and time ------------------------------------------------------------------------

    def _steps(self, row: Row) -> None:
        if not any(g.any() for n, g in self.gradients32.items() if n in self.parameters):
            return
        if self.verdicts[0].word != "right":
            row["steps"] = "not compared: gradients differ from torch's"
            return
        # A parameter that nothing leads to from the loss cannot be asked to be trained.
        moved = {n: v for n, v in self.parameters.items() if self.gradients32[n].any()}
        try:
            verdict = compare_steps(
                self.model, self.feeds, moved, self.function, self.case, self.exported.barriers
            )
        except OtherSizes as sizes:  # speech whose durations the network itself predicts
            row["steps"] = f"not compared: after a step torch's outputs have other sizes, {sizes}"
            return
        row["steps"] = verdict.word
        self.verdicts.append(verdict)

    def _timing(self, row: Row) -> None:
        ours, theirs = cpu_times(lambda: self.session.run(self.feeds), self.function.eager_step)
        row["step_ms"] = ours * 1e3
        row["to_eager"] = ours / theirs if theirs else None


def _apart(got: Any, expected: Array) -> float:
    got = np.asarray(got)
    if got.shape != expected.shape:
        return np.inf
    if expected.dtype.kind not in "fc":
        return 0.0 if np.array_equal(got, expected) else np.inf
    return distance(got, expected, 0.0)
