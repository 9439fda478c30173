"""``onnxtrain convert``: artifacts of onnxruntime-training, for the stock onnxruntime."""

from __future__ import annotations

from pathlib import Path

import click

from .app import common
from .output import UserError, current

EPILOG = """\b
Example:
  onnxtrain convert old_artifacts artifacts
"""


@click.command(epilog=EPILOG)
@click.argument("folder", type=click.Path())
@click.argument("target", type=click.Path(), required=False)
@click.option(
    "-o", "--output", type=click.Path(), help="Folder; made if missing. The same as TARGET."
)
@click.option("--prefix", default="", help="Of the artifacts' names.")
@common
def command(folder: str, target: str | None, output: str | None, prefix: str) -> None:
    """Convert a FOLDER of artifacts that onnxruntime-training generated, into TARGET."""
    from ..compat import convert_artifacts

    if not Path(folder).is_dir():
        raise UserError(f"There is no folder {folder!r} with artifacts.")
    where = target or output
    if where is None:
        raise UserError("Where to? Name a second folder: onnxtrain convert old_artifacts artifacts")
    for name in convert_artifacts(folder, where, prefix=prefix):
        current().show(f"  {Path(where) / name}")
