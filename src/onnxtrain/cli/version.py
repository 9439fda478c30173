"""``onnxtrain version``: what is installed."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from .app import common
from .output import current

PACKAGES = {
    "numpy": "needed",
    "onnx": "needed",
    "onnx-ir": "needed",
    "onnxruntime": "needed",
    "numba": "faster updates",
    "torch": "extra 'torch'",
    "scikit-learn": "extra 'sklearn'",
    "pillow": "extra 'images'",
    "pyarrow": "extra 'parquet'",
    "tokenizers": "extra 'text'",
    "pyyaml": "extra 'yaml'",
    "tensorboardX": "extra 'tensorboard'",
    "mlflow-skinny": "extra 'mlflow'",
    "wandb": "extra 'wandb'",
    "optuna": "extra 'tune'",
    "model-signing": "extra 'sign'",
    "mpi4py": "extra 'mpi'",
    "ray": "extra 'ray'",
    "flwr": "extra 'flower'",
}


@click.command(epilog="\b\nExample:\n  onnxtrain version")
@common
def command() -> None:
    """Show the versions of onnxtrain and of what it works with."""
    from .. import __version__

    rows = [("onnxtrain", __version__, ""), ("python", platform.python_version(), "")]
    rows += [(name, _version(name), role) for name, role in PACKAGES.items()]
    current().table("", ("package", "version", "role"), rows)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
