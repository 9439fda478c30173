"""``onnxtrain verify``: whether a model or a folder is what was signed."""

from __future__ import annotations

import click

from .app import common
from .output import current

EPILOG = """\b
Examples:
  onnxtrain verify model.onnx --key public.pem
  onnxtrain verify runs/model --key public.pem --signature elsewhere/model.sig
  onnxtrain verify model.onnx --identity me@example.org --issuer https://accounts.example.org

\b
Exit code 0 if all files are what was signed, 1 if not; the message names those that differ.
"""


@click.command(epilog=EPILOG)
@click.argument("path", type=click.Path())
@click.option("--key", type=click.Path(), help="Public key in PEM.")
@click.option("--signature", type=click.Path(), help="File of the signature.")
@click.option("--identity", help="Who signed with Sigstore, instead of a key.")
@click.option("--issuer", help="Of that identity.")
@common
def command(
    path: str, key: str | None, signature: str | None, identity: str | None, issuer: str | None
) -> None:
    """Check the signature of PATH: a model file, or all files of a folder."""
    from ..signing import verify

    verify(path, key, signature, identity=identity, issuer=issuer)
    current().show(f"{path}: signed, and unchanged since.")
