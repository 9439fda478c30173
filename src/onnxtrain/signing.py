"""Signatures of models and runs, by OpenSSF model signing (the package ``model-signing``).

A signature is a Sigstore bundle with the digests of all files: who has the public key can tell
whether a model, or any file of a folder, is what was signed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import MissingPackageError, SignatureError

PathLike = str | os.PathLike[str]
SIGSTORE = "sigstore"
"""Instead of a key: an identity of Sigstore, which needs its servers."""
NAME = "model.sig"
"""Signature in a folder that is signed; that of a file stands beside it, as ``file.sig``."""
PASSWORD = "ONNXTRAIN_KEY_PASSWORD"
"""Variable with the password of an encrypted key."""
LEFT_OUT = ("wandb",)
"""What is in a run and not a part of it: the client's own files, with links among them."""


def signature_path(path: PathLike) -> Path:
    """Where the signature of a file or folder is, unless somebody says otherwise."""
    path = Path(path)
    return path / NAME if path.is_dir() else path.with_name(f"{path.name}.sig")


def check_signer(key: PathLike) -> None:
    """Raise what `sign` would raise about the package or the key."""
    _signer(key)


def sign(path: PathLike, key: PathLike, signature: PathLike | None = None) -> Path:
    """Sign a model file, or all files of a folder.

    Args:
        path: what is signed.
        key: private key in PEM, on the curve P-256, P-384 or P-521; if it is encrypted, the
            environment variable ``ONNXTRAIN_KEY_PASSWORD`` has its password. Or ``"sigstore"`` for
            an identity of Sigstore, which needs its servers and has not been run here.
        signature: file to write; by default ``FILE.sig``, or ``model.sig`` in a folder.

    Returns:
        The file of the signature.
    """
    path = _existing(path)
    target = Path(signature) if signature is not None else signature_path(path)
    signer = _signer(key)
    if path.is_dir():
        ignored = [target, *(path / name for name in LEFT_OUT)]
        inside = [p.resolve() for p in ignored if path.resolve() in p.resolve().parents]
        config = _package().hashing.Config().set_ignored_paths(paths=inside)
        signer.set_hashing_config(config)
        target.unlink(missing_ok=True)
        path = path.resolve()
    if key == SIGSTORE:
        signer.use_sigstore_signer(use_ambient_credentials=True)
    _run(lambda: signer.sign(path, target), f"{path} cannot be signed")
    return target


def verify(
    path: PathLike,
    key: PathLike | None = None,
    signature: PathLike | None = None,
    *,
    identity: str | None = None,
    issuer: str | None = None,
) -> None:
    """Raise `SignatureError` unless a file or folder is what was signed.

    Args:
        path: what was signed.
        key: public key in PEM.
        signature: its file; by default where `sign` puts it.
        identity: who signed with Sigstore, instead of a key.
        issuer: of that identity, an address.
    """
    path = _existing(path)
    file = Path(signature) if signature is not None else signature_path(path)
    if not file.is_file():
        raise SignatureError(f"There is no signature {str(file)!r}: name it, or sign first.")
    config = _package().verifying.Config()
    if key is not None:
        _run(
            lambda: config.use_elliptic_key_verifier(public_key=os.fspath(_existing(key))),
            f"{os.fspath(key)!r} is no public key that can be used",
        )
    elif identity is not None and issuer is not None:
        _run(
            lambda: config.use_sigstore_verifier(identity=identity, oidc_issuer=issuer),
            "Sigstore cannot be asked",
        )
    else:
        raise SignatureError("To verify takes a public key, or an identity and its issuer.")
    _run(lambda: config.verify(path.resolve(), file), f"{path} is not what was signed")


def _package() -> Any:
    try:
        import model_signing
        import model_signing.hashing
        import model_signing.signing
        import model_signing.verifying
    except ImportError:
        raise MissingPackageError("model-signing", "Signing models", "sign") from None
    return model_signing


def _signer(key: PathLike) -> Any:
    config = _package().signing.Config()
    if key == SIGSTORE:
        return config
    path = _existing(key)
    password = os.environ.get(PASSWORD)
    return _run(
        lambda: config.use_elliptic_key_signer(
            private_key=path, password=password.encode() if password else None
        ),
        f"{str(path)!r} is no private key that can be used; openssl ecparam -name prime256v1 "
        "-genkey -noout -out key.pem makes one",
    )


def _existing(path: PathLike) -> Path:
    if not Path(path).exists():
        raise SignatureError(f"There is no {os.fspath(path)!r}.")
    return Path(path)


def _run(call: Callable[[], Any], problem: str) -> Any:
    """Call the package, whose errors are of many kinds."""
    try:
        return call()
    except Exception as error:
        reason = " ".join(str(error).split())[:500] or type(error).__name__
        raise SignatureError(f"{problem}: {reason}") from error
