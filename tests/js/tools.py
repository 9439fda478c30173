"""Node, npm packages and Chromium for the tests; what cannot be had is skipped, with the reason.

npm packages go into a cache outside the repository (``ONNXTRAIN_JS_CACHE``, by default below
``~/.cache``). With ``ONNXTRAIN_TEST_INSTALL=1`` missing system packages are installed with apt-get.
"""

import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "js" / "test"
STATIC = ROOT / "src" / "onnxtrain" / "serve" / "static"
LIBRARY = STATIC / "js" / "src"
PACKAGES = (
    "onnxruntime-node@1.30.0",
    "onnxruntime-web@1.30.0",
    "onnxruntime-common@1.30.0",
    "playwright-core@1.65.0",
    "typescript@5.9.3",
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@cache
def program(names: tuple[str, ...], package: str) -> str:
    """Path of the first program that is there; installs the package if that is wanted."""
    for attempt in range(2):
        found = next(filter(None, map(shutil.which, names)), None)
        if found is not None:
            return found
        if attempt or not _may_install():
            break
        command = ["apt-get", "install", "-y", "--no-install-recommends", *package.split()]
        subprocess.run(["apt-get", "update"], capture_output=True, check=False)
        subprocess.run(command, capture_output=True, check=False)
    pytest.skip(f"{names[0]} is not installed (ONNXTRAIN_TEST_INSTALL=1 installs it, as root)")


def _may_install() -> bool:
    wanted = os.environ.get("ONNXTRAIN_TEST_INSTALL") == "1"
    return wanted and shutil.which("apt-get") is not None and os.geteuid() == 0


def node() -> str:
    return program(("node",), "nodejs npm")


def chromium() -> str:
    return program(BROWSERS, "chromium")


@cache
def modules() -> Path:
    """A directory with the npm packages in its node_modules, installed when first needed."""
    npm = program(("npm",), "nodejs npm")
    default = Path.home() / ".cache" / "onnxtrain"
    base = Path(os.environ.get("ONNXTRAIN_JS_CACHE", default))
    target = base / "+".join(p.replace("@", "-") for p in PACKAGES)
    if not target.is_dir():
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=base) as made:
            folder = Path(made) / "npm"
            folder.mkdir()
            (folder / "package.json").write_text(json.dumps({"private": True}))
            command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", *PACKAGES]
            try:
                run = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
                )
            except subprocess.TimeoutExpired:
                pytest.skip("npm could not install the packages within 5 minutes")
            if run.returncode:
                pytest.skip(f"npm could not install the packages: {run.stderr.strip()[-300:]}")
            try:
                folder.rename(target)
            except OSError:  # another worker was faster
                assert target.is_dir()
    return target


def run_node(script: str, *arguments: object, **environment: str) -> list[dict]:
    """Run a script of js/test; gives the JSON objects it prints, one per line."""
    done = subprocess.run(
        [node(), str(SCRIPTS / script), *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.split("\n") if line.startswith("{")]
