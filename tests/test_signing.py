"""Signatures by the real package; without it, the error names it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from onnxtrain.cli import main
from onnxtrain.errors import MissingPackageError, SignatureError
from onnxtrain.signing import sign, verify
from tests.cli.models import blobs, classifier


def keys(folder: Path, password: bytes | None = None) -> tuple[Path, Path]:
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    hidden = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, hidden)
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "key.pem").write_bytes(private)
    (folder / "public.pem").write_bytes(public)
    return folder / "key.pem", folder / "public.pem"


def test_the_missing_package_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "model_signing", None)
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(b"x")
    with pytest.raises(MissingPackageError, match=r"onnxtrain\[sign\]"):
        sign("m.onnx", "key.pem")
    classifier()
    x, labels = blobs(24)
    np.savez("train.npz", x=x, labels=labels)
    train = ["train", "model.onnx", "--data", "train.npz", "--loss", "cross_entropy"]
    assert main([*train, "--sign", "key.pem"]) == 1
    assert "onnxtrain[sign]" in " ".join(capsys.readouterr().err.split())
    assert not Path("runs").exists(), "before anything is trained"


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return pytest.importorskip("model_signing")


def test_a_file(package, tmp_path):
    private, public = keys(tmp_path)
    Path("m.onnx").write_bytes(b"model")
    assert sign("m.onnx", private) == Path("m.onnx.sig")
    verify("m.onnx", public)
    Path("m.onnx").write_bytes(b"another")
    with pytest.raises(SignatureError, match="not what was signed"):
        verify("m.onnx", public)
    Path("m.onnx").write_bytes(b"model")
    (tmp_path / "other").mkdir()
    _, other = keys(tmp_path / "other")
    with pytest.raises(SignatureError, match="not what was signed"):
        verify("m.onnx", other)


def test_an_encrypted_key(package, tmp_path, monkeypatch):
    private, public = keys(tmp_path, b"secret")
    Path("m.onnx").write_bytes(b"model")
    with pytest.raises(SignatureError, match="no private key"):
        sign("m.onnx", private)
    monkeypatch.setenv("ONNXTRAIN_KEY_PASSWORD", "secret")
    sign("m.onnx", private)
    verify("m.onnx", public)


def test_a_run_and_an_export(package, tmp_path, capsys):
    keys(tmp_path)
    classifier()
    x, labels = blobs(24)
    np.savez("train.npz", x=x, labels=labels)
    train = ["train", "model.onnx", "--data", "train.npz", "--loss", "cross_entropy"]
    assert main([*train, "--output", "run", "--epochs", "1", "--sign", "key.pem"]) == 0
    assert "run/model.sig" in capsys.readouterr().out
    check = ["verify", "run", "--key", "public.pem"]
    assert main(check) == 0
    assert main([*train, "--output", "run", "--epochs", "2", "--resume", "--sign", "key.pem"]) == 0
    assert main(check) == 0, "signed again"
    (Path("run") / "history.json").write_text("{}")
    assert main(check) == 1
    assert "history.json" in capsys.readouterr().err
    assert main(["export", "run", "-o", "out.onnx", "--sign", "key.pem"]) == 0
    assert main(["verify", "out.onnx", "--key", "public.pem"]) == 0


MISTAKES = {
    "no private key that can be used": lambda: sign("m.onnx", "m.onnx"),
    "There is no 'none.pem'": lambda: sign("m.onnx", "none.pem"),
    "There is no 'none.onnx'": lambda: sign("none.onnx", "m.onnx"),
    "There is no signature": lambda: verify("m.onnx", "m.onnx"),
    "no public key": lambda: verify("m.onnx", "m.onnx", "m.onnx"),
    "an identity and its issuer": lambda: verify("m.onnx", signature="m.onnx"),
}


@pytest.mark.parametrize("reason", MISTAKES)
def test_mistakes(package, reason):
    Path("m.onnx").write_bytes(b"x")
    with pytest.raises(SignatureError, match=reason):
        MISTAKES[reason]()
