"""No test may wait for ever."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from .conftest import LONG

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
HANGING = """
    import threading

    def test_waits():
        threading.Event().wait()

    def test_is_reached():
        pass
"""


def test_every_test_has_a_limit(request):
    config = request.config
    assert 0 < float(config.getini("timeout")) < LONG < float(config.getini("faulthandler_timeout"))
    assert config.getini("faulthandler_exit_on_timeout")


def test_a_test_that_hangs_fails_and_the_others_run(tmp_path):
    (tmp_path / "test_hanging.py").write_text(textwrap.dedent(HANGING))
    options = ["-c", str(PYPROJECT), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    options += ["-o", "addopts=", "-o", "timeout=1"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Timeout (>1.0s)" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
