"""The same artifacts and batches: the same losses as in Python, wherever they run."""

import base64

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.serve import Server, Site

from . import cases, tools


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What Python gets, made when it is asked for."""
    folder, made = tmp_path_factory.mktemp("cases"), {}

    def get(names, steps=cases.STEPS):
        for name in names:
            if (name, steps) not in made:
                place = folder / f"{name}-{steps}"
                made[name, steps] = (place, cases.write(name, place, steps))
        return {n: made[n, steps] for n in names}

    return get


def check(results, wanted, tolerance):
    assert len(results) == len(wanted)
    for (name, (folder, want)), got in zip(wanted.items(), results):
        np.testing.assert_allclose(got["losses"], want["losses"], atol=tolerance, err_msg=name)
        np.testing.assert_allclose(got["eval"], want["eval"], atol=tolerance, err_msg=name)
        np.testing.assert_allclose(
            got["parameters"], want["parameters"], atol=10 * tolerance, err_msg=name
        )
        check_files(folder, got, want)


def check_files(folder, got, want):
    """The exported model and the checkpoint, used in Python."""
    x = want["data"]["0/0"]
    model = onnx.load_from_string(base64.b64decode(got["model"]))
    onnx.checker.check_model(model, full_check=True)
    assert not [n for n in model.graph.node if n.op_type == "Dropout"]
    session = ort.InferenceSession(model.SerializeToString())
    assert [i.name for i in session.get_inputs()] == ["x"]
    (scores,) = session.run(None, {"x": x})
    np.testing.assert_allclose(scores.ravel(), got["scores"], atol=2e-4)
    file = folder / "from_javascript"
    file.write_bytes(base64.b64decode(got["checkpoint"]))
    state = CheckpointState.load_checkpoint(file)
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    assert optimizer.step_count == want["plan"]["steps"]
    assert optimizer.get_learning_rate() == want["plan"]["rate"]
    loss = module.eval()(x, want["data"]["0/1"])
    np.testing.assert_allclose(loss, got["eval"], atol=1e-5)


def test_node(expected):
    wanted = expected(cases.CASES)
    folders = [folder for folder, _ in wanted.values()]
    results = tools.run_node("node.mjs", tools.LIBRARY, tools.modules(), "node", *folders)
    check(results, wanted, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "names", "steps", "tolerance"),
    [
        ("wasm", list(cases.CASES), cases.STEPS, 1e-5),
        ("webgpu", ["mlp", "cnn", "transformer"], 10, 1e-4),  # emulated: seconds a step
    ],
)
def test_chromium(expected, backend, names, steps, tolerance):
    wanted = expected(names, steps)
    folders = [folder for folder, _ in wanted.values()]
    dist = tools.modules() / "node_modules" / "onnxruntime-web" / "dist"
    site = Site(folders[0], runtime=dist if backend == "webgpu" else None)
    with Server(site) as server:
        results = tools.run_node(
            "browser.mjs", tools.modules(), tools.chromium(), server.url, backend, *folders
        )
    if "skip" in results[0]:
        pytest.skip(results[0]["skip"])
    assert all(r["isolated"] for r in results)  # else there are no threads
    assert {r["location"] for r in results} == {"gpu-buffer" if backend == "webgpu" else "cpu"}
    check(results, wanted, tolerance)
