"""``onnxtrain sign``: a signature of a model or of a folder."""

from __future__ import annotations

import click

from .app import common
from .output import current

EPILOG = """\b
A key, and what others need to check its signatures:
  openssl ecparam -name prime256v1 -genkey -noout -out key.pem
  openssl ec -in key.pem -pubout -out public.pem
ONNXTRAIN_KEY_PASSWORD has the password of a key that is encrypted.

\b
Examples:
  onnxtrain sign model.onnx --key key.pem            writes model.onnx.sig
  onnxtrain sign runs/model --key key.pem            writes runs/model/model.sig, for all its files
  onnxtrain train model.onnx --data train.npz --loss cross_entropy --sign key.pem
  onnxtrain verify runs/model --key public.pem

\b
Needs pip install "onnxtrain[sign]". The signatures are those of OpenSSF model signing: its own
command, model_signing verify key, checks them too.
"""


@click.command(epilog=EPILOG)
@click.argument("path", type=click.Path())
@click.option("--key", required=True, help="Private key in PEM, or sigstore for an identity there.")
@click.option("--signature", type=click.Path(), help="File to write.")
@common
def command(path: str, key: str, signature: str | None) -> None:
    """Sign PATH: a model file, or all files of a folder."""
    from ..signing import sign

    current().show(str(sign(path, key, signature)))
