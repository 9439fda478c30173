"""``onnxtrain serve`` from the command line."""

import json
import os
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest

from onnxtrain.cli import main
from onnxtrain.cli import serve as cli_serve

SERVE = """
import signal, sys
from onnxtrain.cli import main
# A shell hands an ignored SIGINT to what it starts in the background, these tests included
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(["serve", "--port", "0"]))
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are sent in another way")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_serves_the_demo_until_it_gets_a_signal(tmp_path, number, code):
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        with urlopen(f"{url}info.json", timeout=30) as answer:
            assert json.load(answer)["name"] == "Digits demo"
        with urlopen(f"{url}artifacts/optimizer_model.onnx", timeout=30) as answer:
            assert len(answer.read()) > 1000
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == code
    assert "Traceback" not in said
    assert not list(tmp_path.glob("onnxtrain-*"))  # the artifacts of the demo are gone


def test_a_directory_without_artifacts_is_named(tmp_path, capsys):
    assert main(["serve", str(tmp_path)]) == 1
    assert "has no training_model.onnx" in capsys.readouterr().err


def test_a_run_is_served_with_its_own_checkpoint(tmp_path, monkeypatch):
    run, served = tmp_path / "digits", []
    (run / "artifacts").mkdir(parents=True)
    for name in ("training_model.onnx", "checkpoint"):
        (run / "artifacts" / name).write_bytes(b"first")
    (run / "checkpoint").write_bytes(b"trained")
    monkeypatch.setattr(cli_serve, "_serve", lambda site, *_: served.append(site))
    assert main(["serve", str(run), "--port", "0"]) == 0
    (site,) = served
    assert site.name == "digits"
    assert site.find("/artifacts/checkpoint").content == b"trained"
    assert site.find("/artifacts/training_model.onnx").content == b"first"
    (run / "checkpoint").unlink()
    (run / "checkpoint").symlink_to("/etc/hostname")
    assert site.find("/artifacts/checkpoint") is None
