"""What is tried of a case: from an exporter to three steps of training, a row each."""

from __future__ import annotations

import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from .cases import Case, OnnxCase, TorchCase
from .results import Row

Say = Callable[[Row], None]
FIGURES = (
    "forward_session_s",
    "session_s",
    "build_s",
    "forward",
    "gradients_error",
    "second_error",
)


class EndOfCase(Exception):  # noqa: N818 - not always an error
    """The case ends here.

    Args:
        outcome: one of `results.OUTCOMES`.
        reason: what happened.
    """

    def __init__(self, outcome: str, reason: object) -> None:
        super().__init__(outcome, reason)
        self.outcome, self.reason = outcome, shortened(reason)


class Stages:
    """Tells which stage a case is in, and turns what a stage raises into an outcome."""

    def __init__(self, say: Say, family: str, exporter: str) -> None:
        self._say, self._family, self._exporter = say, family, exporter

    def run(self, stage: str, outcome: str, work: Callable[[], Any]) -> Any:
        """Do the work of a stage; what it raises ends the case with an outcome."""
        self._say({"stage": stage, "family": self._family, "exporter": self._exporter})
        try:
            return work()
        except EndOfCase:
            raise
        except Exception as error:
            raise EndOfCase(outcome_of(error, outcome), error) from error


def check(
    name: str, case: Case, say: Say = lambda _: None, only_exporter: str = ""
) -> Iterator[Row]:
    """One row per exporter, or of one alone, or of the first that exports."""
    if isinstance(case, OnnxCase):
        from .onnx_check import OnnxTrial

        yield _row(name, case.family, case.exporter, OnnxTrial(case), say)
        return
    from .torch_check import TorchTrial

    labels = [e if isinstance(e, str) else e.__name__ for e in case.exporters]
    tried = [pair for pair in zip(labels, case.exporters) if only_exporter in ("", pair[0])]
    for label, exporter in tried:
        row = _row(name, case.family, label, TorchTrial(case, exporter), say)
        if not case.first_that_exports:
            yield row
        elif row["outcome"] != "not exported" or label == tried[-1][0]:
            yield row
            return


def _row(name: str, family: str, exporter: str, trial: Any, say: Say) -> Row:
    row: Row = {"name": name, "family": family, "exporter": exporter, "outcome": "", "reason": ""}
    started = time.perf_counter()
    try:
        trial.run(Stages(say, family, exporter), row)
    except EndOfCase as stop:
        row.update(outcome=stop.outcome, reason=stop.reason)
    except Exception as error:
        traceback.print_exc()
        row.update(outcome="crash", reason=f"in the check itself: {shortened(error)}")
    if trial.case.timing:
        row["seconds"] = time.perf_counter() - started
        row["peak_mb"] = peak_megabytes()
    else:  # of a single operator nobody wants to know
        row = {k: v for k, v in row.items() if k not in FIGURES}
    return row


def outcome_of(error: Exception, otherwise: str) -> str:
    """A refusal is an error of onnxtrain's that says what cannot be done; the rest are faults."""
    from onnxtrain.errors import OnnxTrainError

    is_fault = "please report it" in str(error) or "GradientRuleError" in type(error).__name__
    return "refused" if isinstance(error, OnnxTrainError) and not is_fault else otherwise


def shortened(reason: object, length: int = 240) -> str:
    """One line, without addresses and paths that differ from run to run."""
    text = f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason)
    text = re.sub(r"0x[0-9a-f]{6,}", "0x…", " ".join(text.split()))
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/[\w.+-]+", "…", text)
    text = re.sub(r"(?:/[\w.+-]+){3,}/", "…/", text)
    begin = length // 2  # the end says what is wrong, after onnxruntime's long signatures
    return text if len(text) <= length else f"{text[:begin]}…{text[begin + 1 - length :]}"


def peak_megabytes() -> float | None:
    """What this process needed at most so far."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


__all__ = ["EndOfCase", "OnnxCase", "Stages", "TorchCase", "check", "shortened"]
