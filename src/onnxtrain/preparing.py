"""Says what is being prepared when it takes longer than two seconds.

Exporting, differentiating and making a session happen once, before the first step, and take seconds
for a large model. Such work is done inside `preparing`, which says what goes on, on the logger
``onnxtrain.preparing`` and at a level that is seen without any set-up. No step passes here.

``ONNXTRAIN_QUIET=1`` turns it off, and so does that logger's level:
``logging.getLogger("onnxtrain.preparing").setLevel("ERROR")``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SECONDS = 2.0
"""After which a user begins to wonder."""

LOGGER = logging.getLogger(__name__)
Timer = threading.Timer
clock = time.monotonic
Nodes = int | Callable[[], int] | None


@dataclass
class _Task:
    """What one thread prepares: stages inside each other, the innermost last."""

    log: logging.Logger
    stages: list[tuple[str, Nodes]]
    began: float
    was_said: bool = False

    def tell(self) -> None:
        """Say what goes on. A timer calls this, so another thread."""
        stages = list(self.stages)
        if not stages:  # ready in the meantime
            return
        outer, inner = stages[0], stages[-1]
        text = _described(*outer)
        if inner is not outer:
            text += f": {_described(*inner)}"
        self.was_said = True
        self.log.warning(
            "%s. This takes more than %g seconds and happens once; later steps do not wait for it. "
            "(ONNXTRAIN_QUIET=1 turns this message off.)",
            _sentence(text),
            SECONDS,
            extra={"preparing": _sentence(text)},
        )

    def finish(self) -> None:
        """Say that it is over, if anything was said."""
        if self.was_said:
            what, seconds = _sentence(self.stages[0][0]), clock() - self.began
            self.log.warning("%s: done after %.1f s.", what, seconds, extra={"preparing": ""})


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _described(what: str, nodes: Nodes) -> str:
    try:
        count = nodes() if callable(nodes) else nodes
    except Exception:  # a file that whoever prepares it refuses in a moment
        count = None
    return what if count is None else f"{what} ({count:,} nodes)"


class _Current(threading.local):
    """The task of each thread."""

    task: _Task | None = None


_current = _Current()


def is_quiet(log: logging.Logger) -> bool:
    """Whether the user wants no such messages."""
    asked = os.environ.get("ONNXTRAIN_QUIET", "") not in {"", "0"}
    return asked or not log.isEnabledFor(logging.WARNING)


@contextmanager
def preparing(what: str, nodes: Nodes = None, logger: logging.Logger = LOGGER) -> Iterator[None]:
    """Work that happens once and may take long; also a decorator.

    Inside another `preparing` it is a stage of that one: the seconds count from the outermost on.

    Args:
        what: what is done, without a capital: "making a session of onnxruntime".
        nodes: how many nodes the graph has, or a function that counts them when they are told.
        logger: who says it.
    """
    task = _current.task
    if task is not None:
        task.stages.append((what, nodes))
        try:
            yield
        finally:
            task.stages.pop()
    elif is_quiet(logger):
        yield
    else:
        with _timed(_Task(logger, [(what, nodes)], clock())):
            yield


@contextmanager
def _timed(task: _Task) -> Iterator[None]:
    """Let a task speak when its time has come."""
    _current.task = task
    timer = Timer(SECONDS, task.tell)
    timer.daemon = True
    timer.start()
    try:
        yield
        task.finish()
    finally:
        task.stages.clear()
        _current.task = None
        timer.cancel()
