"""`onnxtrain quantize`, and the adapters on what it wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from .models import classifier, write_npz

pytest.importorskip(
    "onnxruntime.quantization.matmul_nbits_quantizer", reason="onnxruntime is older than 1.22"
)


def test_a_quantised_base_is_adapted(run):
    classifier()
    write_npz()
    result = run("quantize", "model.onnx", "--block-size", "16", "-o", "base.onnx")
    assert result.code == 0, result.err
    assert "layers" in result.out
    assert "MatMulNBits" in {n.op_type for n in onnx.load("base.onnx").graph.node}
    data = ("--data", "train.npz", "--loss", "cross_entropy", "--epochs", "1")
    adapted = run("lora", "base.onnx", *data, "--rank", "2", "--output", "run")
    assert adapted.code == 0, adapted.err
    assert Path("run/adapter.onnx_adapter").is_file()


def test_the_tool_does_not_turn_logging_on(folder):
    """In a program of its own: it does so when it is imported."""
    classifier()
    code = "import sys, logging; from onnxtrain.cli import main; c = main(sys.argv[1:]); "
    code += "sys.exit(c or len(logging.getLogger().handlers))"
    arguments = ["quantize", "model.onnx", "--block-size", "16", "-o", "base.onnx"]
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


@pytest.mark.parametrize(("dtype", "element"), [("float16", 10), ("bfloat16", 16)])
def test_a_base_of_half_precision_is_adapted(run, dtype, element):
    classifier()
    write_npz()
    result = run("quantize", "model.onnx", "--dtype", dtype, "-o", "base.onnx")
    assert result.code == 0, result.err
    assert element in {tensor.data_type for tensor in onnx.load("base.onnx").graph.initializer}
    data = ("--data", "train.npz", "--loss", "cross_entropy", "--epochs", "1")
    adapted = run("lora", "base.onnx", *data, "--rank", "2", "--output", "run")
    assert adapted.code == 0, adapted.err
    assert Path("run/adapter.onnx_adapter").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "base.onnx", "--bits", "3"), "4 or 8 bits"),
        (("-o", "base.onnx", "--block-size", "7"), "choose 16"),
        (("-o", "base.onnx", "--targets", "encw"), "Near: enc_w"),
        (("-o", "base.onnx", "--exclude", "lm_head"), "exclude='lm_head' match none"),
        (("-o", "nowhere/base.onnx"), "folder that exists"),
        (("-o", "base.onnx", "--dtype", "float16", "--bits", "4"), "leave it or --dtype out"),
        (("-o", "base.onnx", "--dtype", "float16", "--zero-points"), "--zero-points is for"),
        ((), "Missing option"),
    ],
)
def test_mistakes_are_told(run, arguments, said):
    classifier()
    result = run("quantize", "model.onnx", *arguments)
    assert result.code in (1, 2)
    assert said in " ".join(result.err.split())
    assert not Path("base.onnx").exists()
