"""The errors that all parts share: what happened, where, and what to do about it.

A part that needs one of its own derives it from these.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


class OnnxTrainError(Exception):
    """Base class of every exception that onnxtrain defines."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by what it holds: launchers and pools send errors from process to process."""
        return _rebuilt, (type(self), self.args, vars(self))


def _rebuilt(kind: type[OnnxTrainError], args: tuple[Any, ...], fields: Any) -> OnnxTrainError:
    """An error as it was, without calling its ``__init__``, which takes other arguments."""
    new = OSError.__new__ if issubclass(kind, OSError) else Exception.__new__
    error = new(kind)
    error.args = args
    vars(error).update(fields)
    return error


class ModelError(OnnxTrainError, ValueError):
    """The model that was handed in is not valid or not usable as it is."""


def outside_level(*packages: str) -> int:
    """The `stacklevel` with which a warning points to the first caller outside onnxtrain.

    Args:
        packages: others whose lines are not the user's either; contextlib's never are.
    """
    inside = {__name__.split(".")[0], "contextlib", *packages}
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in inside:
        level, frame = level + 1, frame.f_back
    return level


@contextlib.contextmanager
def model_errors(stage: str) -> Iterator[None]:
    """What fails unforeseen while a model is worked on becomes a `ModelError`; also a decorator.

    A model from outside can contradict itself in more ways than can be checked one by one.

    Args:
        stage: what is done, for the message: "Normalizing the model".
    """
    try:
        yield
    except (OnnxTrainError, MemoryError):
        raise
    except Exception as error:
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        message = " ".join(str(root).split())[:300]
        raise ModelError(
            f"{stage} failed ({type(root).__name__}: {message}). Most likely the model contradicts "
            "itself: onnx.checker.check_model(model, full_check=True) tells where. If that "
            "accepts it, please report it with the model."
        ) from error


class MissingFileError(ModelError, FileNotFoundError):
    """A model file, a folder, or a file with a model's external data does not exist."""


class ShapeInferenceError(ModelError):
    """Types or shapes of the model contradict each other."""


class UnknownNameError(OnnxTrainError, LookupError):
    """A name that was asked for does not exist in the model."""

    def __init__(self, kind: str, name: str, known: Sequence[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        shown = ", ".join(repr(n) for n in self.known[:12]) or "none"
        more = f" and {len(self.known) - 12} more" if len(self.known) > 12 else ""
        super().__init__(f"There is no {kind} named {name!r}. Known: {shown}{more}.")


class UnknownRankError(ModelError):
    """A gradient needs the number of dimensions of a value, and it is not known."""


@dataclass(frozen=True)
class Blocker:
    """One node that no gradient can pass."""

    node: str
    op_type: str
    domain: str
    opset: int
    parameters: tuple[str, ...]
    path: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        domain = self.domain or "ai.onnx"
        shown = ", ".join(self.parameters[:4]) + ("…" if len(self.parameters) > 4 else "")
        way = " → ".join(self.path)
        return (
            f"node {self.node!r}: operator {domain}::{self.op_type} (opset {self.opset}): "
            f"{self.reason}; it blocks the gradient of {shown}; path from the loss: {way}"
        )


class NoGradientError(OnnxTrainError, NotImplementedError):
    """The gradient cannot be computed; lists every blocking node at once."""

    def __init__(self, blockers: Sequence[Blocker]) -> None:
        self.blockers = tuple(blockers)
        lines = "\n".join(f"  - {b}" for b in self.blockers)
        count = len(self.blockers)
        super().__init__(
            f"The gradient is blocked by {count} node{'s' * (count != 1)}:\n{lines}\n"
            "What to do: leave the blocked parameters out of `wrt` (freeze them), name the "
            "node or operator in `no_gradient` to treat its output as a constant, or register "
            "a rule with `onnxtrain.extend.gradient`."
        )


class UnreachableError(OnnxTrainError, ValueError):
    """The loss does not depend on a value whose gradient was asked for."""

    def __init__(self, names: Sequence[str], of: str) -> None:
        self.names = tuple(names)
        super().__init__(
            f"Cannot compute the partial derivative of {of!r} for {', '.join(map(repr, names))}: "
            f"no differentiable path leads from there to {of!r}. "
            "Remove the names from `wrt`, or ask for zeros with `allow_unused=True`."
        )


class AdapterError(OnnxTrainError, ValueError):
    """An adapter, or what is asked of one, does not fit the model."""


class QuantizationError(OnnxTrainError, ValueError):
    """A model, or data, that cannot be quantised as it was asked for."""


class TextError(OnnxTrainError, ValueError):
    """A text file, a tokenizer or a language model's inputs are not what they must be."""


class GradientRuleError(OnnxTrainError, RuntimeError):
    """A gradient rule failed or returned the wrong thing while it handled a node."""


class OnnxTrainWarning(UserWarning):
    """Base class of all warnings of onnxtrain: what was asked for is done, and it looks wrong."""


class LossInputWarning(OnnxTrainWarning):
    """A loss is computed from something that it is not meant for: probabilities, say."""


class OldRuntimeWarning(OnnxTrainWarning):
    """The installed onnxruntime is known to compute an operator of the model wrongly."""


# --- the device half: files, states, inputs -------------------------------------------------------


class ModelFileError(ModelError):
    """The bytes are not an ONNX model, or not one that onnxtrain wrote for this purpose."""


class ExternalDataError(ModelFileError):
    """A model names a file for the data of a tensor that may not be read, or is too short."""


class CheckpointError(OnnxTrainError, ValueError):
    """A checkpoint file is damaged, truncated, hostile, or does not fit the model."""


class StateError(OnnxTrainError, RuntimeError):
    """An object is not yet, or no longer, in the state that the call needs."""


class SharingError(OnnxTrainError, RuntimeError, TypeError):
    """An object is used in a process or by a thread that it cannot be shared with."""


class InputError(OnnxTrainError, ValueError, RuntimeError):
    """A value handed to a model has the wrong name, number, type, rank or shape."""


class DataError(InputError):
    """A data file is damaged, or does not hold what the model takes."""


class LabelError(InputError):
    """A label is neither a class nor the label to ignore."""


class DeviceError(OnnxTrainError, RuntimeError):
    """The device or execution provider that was asked for is not there."""


class NonFiniteError(OnnxTrainError, FloatingPointError):
    """A loss or gradient is NaN or infinite, and the caller asked to be told.

    Args:
        reason: what was found, and where; also an attribute.
        advice: what to do about it.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}. {advice}" if advice else reason)


class ExecutionError(OnnxTrainError, RuntimeError):
    """A forward or backward pass of a `TrainingAgent` failed."""


class RunError(OnnxTrainError, RuntimeError):
    """onnxruntime failed while it ran a model."""


class SignatureError(OnnxTrainError, ValueError):
    """A model cannot be signed, or is not what was signed."""


class MissingPackageError(OnnxTrainError, ImportError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs {package}, which is not installed. Install it with: "
            f'pip install "onnxtrain[{extra}]"'
        )


class RankLostError(OnnxTrainError, ConnectionError):
    """Another process of a distributed training has ended or does not answer any more."""

    def __init__(self, call: str, rank: int, size: int, reason: str) -> None:
        self.call, self.rank, self.size, self.reason = call, rank, size, reason
        super().__init__(
            f"Rank {rank} of {size} stops in {call}: {reason}. Start the run again, with any "
            "number of ranks, from the last checkpoint with resume=True (SaveCheckpoint writes "
            "them). If all ranks live and one is only slow, raise the time limit: "
            "ONNXTRAIN_TIMEOUT, in seconds."
        )


class MissingParameterError(UnknownNameError, KeyError):
    """A parameter that was asked for does not exist."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__("parameter", name, known)
        self.args = (f"Parameter {name!r} not found. {self.args[0]}",)

    def __str__(self) -> str:  # that of KeyError would add quotes
        return str(self.args[0])
