"""Flower's real machinery: its simulation, and a SuperLink with SuperNodes on the loopback."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import numpy as np
import onnxruntime
import pytest

pytest.importorskip("flwr", reason='flwr is not installed (pip install "onnxtrain[flower]")')

from onnxtrain.flower import LocalModel

from .conftest import client_data, federated_average
from .programs import ROOT, Program, logs, tail

EXAMPLE = ROOT / "examples" / "federated_digits"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def task():
    """The example's data and settings, as its programs see them with seed 0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        patch.delenv("SEED", raising=False)
        from federated_digits import task as found

        yield found
    for name in [n for n in sys.modules if n.split(".")[0] == "federated_digits"]:
        del sys.modules[name]


def accuracy(model, digits):
    """Of an exported model, in a plain session."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    images, labels = digits
    (scores,) = session.run(None, {session.get_inputs()[0].name: images})
    return float((scores.argmax(axis=1) == labels).mean())


def test_ten_different_clients_come_within_two_points_of_one_place(task, tmp_path):
    run = tmp_path / "run"
    program = Program(tmp_path, FEDERATED_DIGITS=str(run), SEED="0")
    done = program.python(EXAMPLE / "simulate.py", timeout=400)
    assert done.returncode == 0, tail(done.stdout)
    found = json.loads((run / "accuracies.json").read_text())
    rounds = json.loads((run / "result.json").read_text())["rounds"]
    assert len(rounds) == task.ROUNDS + 1
    assert found["federated"] >= found["central"] - 0.02, found
    # it is not won for nothing: neither by the start, nor by one round, nor by any client alone
    assert rounds[0] < 0.3
    assert rounds[1] < found["central"] - 0.02
    assert found["alone"] < found["federated"] - 0.1
    exported = accuracy(run / "digits.onnx", task.split().test)
    assert exported == pytest.approx(found["federated"], abs=1e-6)
    assert not program.outside(), "telemetry, or another call to somebody else's machine"
    assert not program.left, "processes that outlive the simulation"


def test_the_clients_of_the_example_are_not_identically_distributed(task):
    train, validation, test = task.split()
    together = np.bincount(train[1], minlength=10) / len(train[1])
    distances = []
    for number in range(task.CLIENTS):
        _, labels = task.client_data(number)
        shares = np.bincount(labels, minlength=10) / len(labels)
        distances.append(0.5 * np.abs(shares - together).sum())
    assert min(distances) > 0.2, "total variation: 0 would be the same digits for all"
    assert np.mean(distances) > 0.35
    rows = [len(task.client_data(n)[1]) for n in range(task.CLIENTS)]
    assert sum(rows) == len(train[1]), "every digit has one owner"
    images = [{i.tobytes() for i in part[0]} for part in (train, validation, test)]
    assert sum(map(len, images)) == len(set.union(*images)), "no digit in two parts"


def test_a_superlink_and_two_supernodes_on_loopback(task, tmp_path):
    run, rounds = tmp_path / "run", 2
    program = Program(tmp_path, FEDERATED_DIGITS=str(run), SEED="0", ROUNDS=str(rounds))
    done = program.python(EXAMPLE / "loopback.py", timeout=400)
    assert done.returncode == 0, tail(done.stdout) + logs(sorted(run.glob("*.log")))
    result = json.loads((run / "result.json").read_text())
    assert len(result["rounds"]) == rounds + 1
    assert result["test"] > 0.8
    model = LocalModel(task.make_artifacts(tmp_path / "again", 0), metrics=["accuracy"])
    options = {"epochs": task.EPOCHS, "batch_size": task.BATCH, "learning_rate": task.RATE}
    clients = [task.client_data(n, 2) for n in range(2)]
    model.set_arrays(federated_average(model, clients, rounds, **options))
    expected = model.evaluate(task.split().test)["accuracy"]
    assert result["test"] == pytest.approx(expected, abs=2 / 360)  # a digit may be on the edge
    exported = accuracy(run / "digits.onnx", task.split().test)
    assert exported == pytest.approx(result["test"], abs=1e-6)
    assert not program.outside(), "telemetry, or another call to somebody else's machine"
    assert not program.left, "processes that outlive the run"


TROUBLE = """
import os, signal, sys, time
from pathlib import Path

import numpy as np
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from onnxtrain.flower import Guard, client_app, make_strategy, server_app
from onnxtrain.flower.records import to_record
from tests.flower.conftest import client_data

FOLDER, OVER, NODES = sys.argv[1], Path("over"), 5

def data(context):
    return client_data(int(context.node_config["partition-id"])), None

def trouble(message, context, call_next):
    node = context.node_config["partition-id"]
    troubled = bool(message.content["config"].get("trouble"))
    if troubled and node == 0:  # slow: it answers when everything is over
        while not OVER.exists():
            time.sleep(0.1)
    reply = call_next(message, context)
    if troubled and node == 1:  # lost in the middle: trained, and gone before it could answer
        os.kill(os.getpid(), signal.SIGKILL)
    if troubled and node == 2:
        arrays = {n: a.numpy().copy() for n, a in reply.content["arrays"].items()}
        arrays["parameters"][5] = np.nan
        reply.content["arrays"] = to_record(arrays)
    return reply

def strategy():
    return Guard(make_strategy("fedavg", min_train_nodes=NODES, min_available_nodes=NODES,
                               fraction_evaluate=0.0))

def done(result):
    np.savez("result.npz", refused=[n for _, n, why in guard.refused if "not finite" in why],
             **{n: a.numpy() for n, a in result.arrays.items()})
    OVER.touch()

warm, guard = strategy(), strategy()  # the first run is there until all clients have started
first = server_app(FOLDER, warm, rounds=1, round_timeout=200.0)
second = server_app(FOLDER, guard, rounds=1, round_timeout=10.0, on_result=done,
                    train_config={"trouble": 1})
app = ServerApp()

@app.main()
def main(grid, context):
    first(grid, context)
    second(grid, context)

run_simulation(app, client_app(FOLDER, data, learning_rate=0.02, mods=[trouble]), NODES,
               backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                               "init_args": {"num_cpus": NODES}})
"""


def test_simulation_goes_on_without_a_slow_a_killed_and_a_nan_client(artifacts, tmp_path):
    program = Program(tmp_path)
    done = program.python("-c", TROUBLE, artifacts, timeout=400)
    assert (tmp_path / "result.npz").exists(), tail(done.stdout)
    with np.load(tmp_path / "result.npz") as file:
        found = dict(file)
    assert len(found.pop("refused")) == 1
    model = LocalModel(artifacts)
    sound = {3: client_data(3), 4: client_data(4)}
    expected = federated_average(model, sound, 1, learning_rate=0.02)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    assert not program.outside(), "telemetry, or another call to somebody else's machine"


TELEMETRY = (
    "flwr.supercore.telemetry" if find_spec("flwr.supercore.telemetry") else "flwr.common.telemetry"
)
"""Flower has moved it."""


@pytest.mark.parametrize("before", ["", f"import {TELEMETRY}\n"])
def test_telemetry_is_off_and_the_witness_would_tell(tmp_path, before):
    """Even if Flower was imported first; with the variable set by hand it is on, as asked."""
    script = (
        before + "import onnxtrain.flower\n"
        f"from {TELEMETRY} import EventType, event\n"
        "print(event(EventType.PING).result())\n"
        "from ray._common.usage.usage_lib import usage_stats_enabled\n"
        "print(usage_stats_enabled())\n"
    )
    pytest.importorskip("ray")
    (tmp_path / "off").mkdir()
    off = Program(tmp_path / "off")
    done = off.python("-c", script, timeout=120)
    assert done.stdout.split()[-2:] == ["disabled", "False"], done.stdout
    assert off.outside() == []
    (tmp_path / "on").mkdir()
    on = Program(tmp_path / "on", FLWR_TELEMETRY_ENABLED="1", RAY_USAGE_STATS_ENABLED="1")
    done = on.python("-c", script, timeout=120)
    assert "True" in done.stdout
    assert any("telemetry.flower.ai" in line for line in on.outside())
