"""docs/cli.md is what the commands say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_the_command_line_is_fresh():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "gen_cli.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
