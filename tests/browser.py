"""A headless Chromium for tests that look at pages; None where there is none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def browse(address: str, folder: Path, *arguments: str) -> str:
    """Open a page, with a profile in `folder`; gives what the browser prints."""
    profile = folder / f"profile{len(list(folder.iterdir()))}"
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={profile}", *arguments, address]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    return out.stdout


def in_dark() -> str:
    """The argument with which a page finds that its reader wants dark pages."""
    return "--blink-settings=preferredColorScheme=0"
