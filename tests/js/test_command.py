"""``onnxtrain serve`` from the command line."""

import json
import signal
import subprocess
import sys
from urllib.request import urlopen

from onnxtrain.cli import main


def test_serves_the_demo_until_interrupted():
    command = [sys.executable, "-m", "onnxtrain", "serve", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            with urlopen(f"{url}info.json") as answer:
                assert json.load(answer)["name"] == "Digits demo"
            with urlopen(f"{url}artifacts/optimizer_model.onnx") as answer:
                assert len(answer.read()) > 1000
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in process.stderr.read()


def test_a_directory_without_artifacts_is_named(tmp_path, capsys):
    assert main(["serve", str(tmp_path)]) == 1
    assert "has no training_model.onnx" in capsys.readouterr().err
