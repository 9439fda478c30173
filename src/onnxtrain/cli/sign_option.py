"""``--sign``: the option, and what comes of it."""

from __future__ import annotations

from pathlib import Path

import click

from ..signing import check_signer, sign

sign_option = click.option(
    "--sign",
    metavar="KEY",
    help="Sign what is written, with a private key in PEM or sigstore; see onnxtrain sign.",
)


def check(key: str | None) -> None:
    """Refuse a key that cannot sign before there is anything to sign."""
    if key is not None:
        check_signer(key)


def signed(path: Path, key: str | None) -> list[Path]:
    """Sign a file or a folder if that is asked for; gives the signature."""
    return [] if key is None else [sign(path, key)]
