"""The environments of the benchmark, made from nothing but Python ≥ 3.10.

Two of them, under `.venv-bench` beside the repository's own: `main` has stock onnxruntime, torch
and the other peers; `old` has onnxruntime-training 1.19.2, for which Python 3.11 at most will do.
Environments that exist already are named by `--python` and `--old-python`, or by the variables
`ONNXTRAIN_BENCH_PYTHON` and `ONNXTRAIN_OLD_PYTHON`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-bench"
MAIN = [
    "-e", ".[torch,sklearn]", "onnxruntime==1.31.1", "torch==2.13.0", "onnxsim==0.8.1", "jax",
    "matplotlib>=3.8",
]  # fmt: skip
"""What `pip install onnxtrain` brings, and the peers: nothing that would make ours faster."""
OLD = [
    "onnxruntime-training-cpu==1.19.2", "onnx==1.16.2", "numpy<2", "torch==2.13.0",
    "cerberus", "h5py", "setuptools",
]  # fmt: skip
OLD_VERSIONS = ((3, 11), (3, 10))
"""Where both onnxruntime-training 1.19.2 and torch 2.13.0 have packages."""


def main_python(given: str = "") -> str:
    """Python of the environment with everything but the predecessor; made when not given."""
    given = given or os.environ.get("ONNXTRAIN_BENCH_PYTHON", "")
    return given or environment("main", sys.executable, MAIN)


def old_python(given: str = "") -> tuple[str, str]:
    """Python of the predecessor's environment, or "" and the reason why there is none."""
    given = given or os.environ.get("ONNXTRAIN_OLD_PYTHON", "")
    if given:
        return given, ""
    base = _base_for_old()
    if not base:
        return "", "no Python 3.10 or 3.11 found, which onnxruntime-training 1.19.2 needs"
    try:
        return environment("old", base, OLD), ""
    except subprocess.CalledProcessError:
        return "", "onnxruntime-training 1.19.2 could not be installed here"


def _base_for_old() -> str:
    names = [sys.executable, *(f"python{major}.{minor}" for major, minor in OLD_VERSIONS)]
    for name in names:
        path = shutil.which(name)
        if path and _version(path) in OLD_VERSIONS:
            return path
    return ""


def _version(python: str) -> tuple[int, ...]:
    """Its version, () when it does not start (a version manager's stand-in, say)."""
    code = "import sys, venv; print(*sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


def environment(name: str, base: str, packages: list[str]) -> str:
    """Python of an environment under `FOLDER`; made again when what it should hold has changed."""
    folder = FOLDER / name
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = "\n".join([*packages, (ROOT / "pyproject.toml").read_text()])
    digest = hashlib.sha256(wanted.encode()).hexdigest()
    stamp = folder / ".complete"
    if stamp.is_file() and stamp.read_text() == digest:
        return str(python)
    print(f"setting up {folder} (some 2 GB) …", flush=True)
    if not python.is_file():
        if base == sys.executable:
            venv.create(folder, with_pip=True)
        else:
            subprocess.check_call([base, "-m", "venv", str(folder)])
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.check_call([*install, *packages], cwd=ROOT)
    stamp.write_text(digest)
    return str(python)
