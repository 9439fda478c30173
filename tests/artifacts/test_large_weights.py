"""Weights larger than what the process may hold beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxtrain.api import CheckpointState
from onnxtrain.runtime.files.checkpoint import save_arrays

WIDTH, LAYERS = 4096, 6
SIZE = WIDTH * WIDTH * 4
GENERATE = """
import sys
from pathlib import Path
from onnxtrain import losses
from onnxtrain.artifacts import generate_artifacts

def peak():
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1])

before = peak()
names = [f"w{i}" for i in range(int(sys.argv[3]))]
generate_artifacts(sys.argv[1], requires_grad=names, loss=losses.MSELoss(),
                   artifact_directory=sys.argv[2])
print(peak() - before)
"""


def layers_in_a_file(folder: Path) -> Path:
    """400 MB of weights in a file that takes no room: a hole."""
    nodes, weights = [], []
    for i in range(LAYERS):
        nodes.append(helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]))
        tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.data"), ("offset", i * SIZE), ("length", SIZE)):
            tensor.external_data.add(key=key, value=str(value))
        weights.append(tensor)
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH])
        for name in ("h0", f"h{LAYERS}")
    )
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with (folder / "w.data").open("wb") as file:
        file.truncate(LAYERS * SIZE)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files and /proc")
def test_artifacts_never_hold_all_weights(tmp_path: Path) -> None:
    """They go from the file of the model to the checkpoint one after the other."""
    model, target = layers_in_a_file(tmp_path), tmp_path / "artifacts"
    target.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", GENERATE, str(model), str(target), str(LAYERS)],
        check=True, capture_output=True, text=True, env={**os.environ, "ONNXTRAIN_QUIET": "1"},
    )  # fmt: skip
    assert int(done.stdout) * 1024 < 4 * SIZE  # two of the six, and what a small model takes
    assert (target / "checkpoint").stat().st_size > LAYERS * SIZE
    training = onnx.load(target / "training_model.onnx", load_external_data=False)
    assert sum(len(t.raw_data) for t in training.graph.initializer) < SIZE


def test_the_checkpoint_is_that_of_arrays(tmp_path: Path) -> None:
    """Bit for bit, whichever way it was written."""
    rng = np.random.default_rng(0)
    trained = {"w": rng.standard_normal((3, 2)).astype(np.float32), "n": np.arange(3)}
    frozen = {"b": np.zeros(0, np.float16), "s": np.float64(2)[...]}
    CheckpointState.save_checkpoint(
        CheckpointState.from_arrays(trained, frozen), tmp_path / "of a state"
    )
    save_arrays(tmp_path / "of arrays", trained, frozen)
    assert (tmp_path / "of arrays").read_bytes() == (tmp_path / "of a state").read_bytes()
