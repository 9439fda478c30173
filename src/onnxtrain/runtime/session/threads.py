"""When one thread is faster than several, and when threads may wait busily.

A step of a small network takes some twenty microseconds, and waking up a second thread for each of
its products takes longer than the products do. So such steps run in a session with one thread.

In a step of a millisecond, waking the threads up takes a twentieth of the time. They may go on
spinning between steps as long as nobody else wants the cores: while there is one training session
in the process, whose update runs on one thread (or inside it).
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from ..step.artifact import Artifact, specs_of, weights_change
from . import cutting
from .devices import Device, session_options
from .options import is_left_alone, may_be_exchanged
from .sharing import GlobalLock

T = TypeVar("T")

LIMIT = 1_000_000
"""Multiplications of a forward pass up to which one thread is used: about 0.1 ms of work."""

TYPICAL_ROWS = 32
"""What is taken for the size of a batch where a session is made before the first one is seen."""

FEW_NODES = 2000
"""Of a model that gets a second session: of more it takes seconds to make, and gains little."""

HEAVY = {"Conv", "ConvTranspose", "DeformConv", "GRU", "LSTM", "Loop", "RNN", "Scan"}
"""Operators whose work does not follow from the number of weights and rows."""


def is_small(weights: int, times: int = TYPICAL_ROWS) -> bool:
    """Whether one thread is faster: every place that makes a session asks here.

    Args:
        weights: how many numbers are multiplied with each row.
        times: how many rows there are, see `applications`.
    """
    return weights * times <= LIMIT


class SmallSteps:
    """Which batches of a model are for one thread.

    Args:
        artifact: the model.
        device: where it runs; only the host's processor is concerned.
        options: the user's session options; a number of threads in them is never overruled.
    """

    def __init__(self, artifact: Artifact, device: Device, options: Any) -> None:
        self._weights = sum(s.size for s in specs_of(artifact).values())
        self._folder, self._options = artifact.folder, options
        self._possible = (
            is_left_alone(options, "intra_op_num_threads")
            and may_be_exchanged(options)
            and device.provider == "CPUExecutionProvider"
            and not artifact.random_nodes  # two sessions would be two streams of random numbers
            and is_small(self._weights, 1)
            and len(artifact.model.nodes) <= min(FEW_NODES, cutting.MANY_NODES)
            and not any(node.op_type in HEAVY for node in artifact.model.all_nodes())
        )

    def has(self, arrays: Sequence[Any]) -> bool:
        """Whether a step on these inputs is small."""
        if not self._possible or not all(hasattr(a, "dtype") for a in arrays):
            return False
        times = [applications(a.shape, indices=a.dtype.kind in "iu") for a in arrays]
        return is_small(self._weights, max(times, default=1))

    def options(self) -> Any:
        """Session options with one thread."""
        return session_options(self._options, folder=self._folder, weights_change=True, threads=1)


def applications(shape: Sequence[int], *, indices: bool) -> int:
    """How many times an input of this shape has the weights applied: per row, or per index."""
    return max(1, int(math.prod(shape if indices else shape[:-1])))


class SessionChoice(Generic[T]):
    """Which session runs a step: the one with all threads, or one with a single thread.

    Each is made when it is first needed. The threads of the first spin between steps until
    somebody else wants the cores: then `must_rest` is set, by any thread, and the owner calls
    `rest` before its next step.

    Args:
        make: a session with these options, and what the owner binds to it.
        small: which batches are for a single thread.
        options: of the session with all threads; takes whether they spin.
        can_spin: whether threads may spin if there is no other training.

    Attributes:
        current: what runs the next step.
        spins: whether the threads of `usual` spin.
        must_rest: whether they were asked not to.
    """

    def __init__(
        self,
        make: Callable[[Any], T],
        small: SmallSteps,
        options: Callable[[bool], Any],
        can_spin: Callable[[], bool],
    ) -> None:
        self._make, self._small, self._options = make, small, options
        self.must_rest = False
        self.spins = is_alone(self) and can_spin()
        self._usual: T | None = None
        self._single: T | None = None
        self.current: T = self.usual

    @property
    def usual(self) -> T:
        """The one with all threads, or as many as the user's options say."""
        if self._usual is None:
            self._usual = self._make(self._options(self.spins))
        return self._usual

    @property
    def single(self) -> T:
        """The one with a single thread."""
        if self._single is None:
            self._single = self._make(self._small.options())
        return self._single

    def choose(self, arrays: Sequence[Any]) -> None:
        """The one for a batch."""
        self.current = self.single if self._small.has(arrays) else self.usual

    def release(self) -> None:
        """Let both go; what is `current` stays."""
        self._usual = self._single = None

    def stop_spinning(self) -> None:
        """Ask for threads that sleep from the next step on; any thread may call this."""
        self.must_rest = True

    def rest(self) -> None:
        """Do what `stop_spinning` asked for, between two steps."""
        before, spun = self._usual, self.spins
        self.must_rest = self.spins = False
        if spun and before is not None:
            self._usual = None
            if self.current is before:
                self.current = self.usual


def training_options(artifact: Artifact, options: Any, *, spin: bool = False) -> Any:
    """Options for the session of a training or step model."""
    return session_options(
        options,
        folder=artifact.folder,
        constants=artifact.model.external_size,
        weights_change=weights_change(artifact),
        pattern=False,
        spin=spin,
    )


_training: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = GlobalLock()


def is_alone(owner: SessionChoice[Any]) -> bool:
    """Note who trains; whether nobody else does. If somebody does, none of them spins any more.

    Where torch is loaded its threads may want the cores as well.
    """
    with _lock:
        others = [other for other in _training if other is not owner]
        _training.add(owner)
    for other in others:
        other.stop_spinning()
    return not others and "torch" not in sys.modules
