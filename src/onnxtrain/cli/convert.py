"""``onnxtrain convert``: artifacts of onnxruntime-training, for the stock onnxruntime."""

from __future__ import annotations

from pathlib import Path

import click

from .app import common
from .output import UserError, current

EPILOG = """\b
Example:
  onnxtrain convert old_artifacts --output artifacts
"""


@click.command(epilog=EPILOG)
@click.argument("folder", type=click.Path())
@click.option("--output", required=True, type=click.Path(), help="Folder; made if missing.")
@click.option("--prefix", default="", help="Of the artifacts' names.")
@common
def command(folder: str, output: str, prefix: str) -> None:
    """Convert a FOLDER of artifacts that onnxruntime-training generated."""
    from ..compat import convert_artifacts

    if not Path(folder).is_dir():
        raise UserError(f"There is no folder {folder!r} with artifacts.")
    for name in convert_artifacts(folder, output, prefix=prefix):
        current().show(f"  {Path(output) / name}")
