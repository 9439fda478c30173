"""What is different on a terminal: colours and a moving bar."""

from __future__ import annotations

import os
import sys

import pytest

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """Everything that a command writes to its terminal."""
    child, terminal = pty.fork()
    if not child:
        os.environ.update({"TERM": "xterm-256color", "COLUMNS": "140", **environment})
        os.execv(sys.executable, [sys.executable, "-m", "onnxtrain", *arguments])
    written = b""
    try:
        while data := os.read(terminal, 65536):
            written += data
    except OSError:  # Linux says so when the other side is closed
        pass
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, written
    return written.decode()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_bar_and_colours():
    shown = on_a_terminal("demo", "--epochs", "2", "--output", "out")
    assert "samples/s" in shown
    assert "val_accuracy" in shown.split("epoch 2/2")[1]
    assert "\x1b[1;32m" in shown  # the diagonal of the matrix


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_no_colours_when_not_wanted():
    shown = on_a_terminal("demo", "--epochs", "1", "--output", "out", "--quiet", NO_COLOR="1")
    assert "\x1b[1;32m" not in shown
    assert "\x1b[32m" not in shown
    assert "samples/s" not in shown
