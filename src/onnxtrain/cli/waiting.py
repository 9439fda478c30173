"""What is being prepared, for as long as it takes: a spinner on a terminal, a line elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.status import Status

from ..drawing.inert import inert
from ..preparing import LOGGER
from .output import Output


class Waiting(logging.Handler):
    """Shows what `onnxtrain.preparing` says.

    Args:
        output: of the command; nothing is shown with ``--quiet``.
    """

    def __init__(self, output: Output) -> None:
        super().__init__()
        self.output = output
        self.status: Status | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Show the message, or stop to show the last one."""
        text = getattr(record, "preparing", record.getMessage())
        self.stop()
        if text and not self.output.quiet and not self._spin(text):
            self.output.say(f"{text} …")

    def _spin(self, text: str) -> bool:
        console = self.output.err
        if self.output.live is not None or not console.is_terminal:
            return False
        self.status = Status(inert(text), console=console)
        self.status.start()
        return True

    def stop(self) -> None:
        """Take the spinner off the screen."""
        if self.status is not None:
            self.status.stop()
            self.status = None


@contextmanager
def preparations_shown(output: Output) -> Iterator[None]:
    """Show on the screen, not in the log, what takes long."""
    handler, propagates = Waiting(output), LOGGER.propagate
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    try:
        yield
    finally:
        handler.stop()
        LOGGER.removeHandler(handler)
        LOGGER.propagate = propagates
