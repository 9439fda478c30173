"""``onnxtrain serve`` from the command line."""

import json
import os
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest

from onnxtrain.cli import main

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
