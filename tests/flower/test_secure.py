"""Secure aggregation, and a small run in Flower's real simulation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason='flwr is not installed (pip install "onnxtrain[flower]")')

from onnxtrain.flower import client_app, secure_server_app

from .grid import LocalGrid
from .test_apps import NODES, RATE, by_hand, data_of

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_secure_aggregation_gives_the_average_that_nobody_sees(artifacts):
    from flwr.client.mod import secaggplus_mod

    clients = client_app(artifacts, data_of, learning_rate=RATE, mods=[secaggplus_mod])
    grid = LocalGrid(clients, NODES)
    sent = []
    receive = grid.send_and_receive

    def listening(messages, **options):
        replies = receive(messages, **options)
        sent.extend(r.content for r in replies if not r.has_error())
        return replies

    grid.send_and_receive = listening
    found = []
    app = secure_server_app(artifacts, rounds=1, min_nodes=NODES, on_arrays=found.append)
    app(grid, next(iter(grid.contexts.values())))
    rounding = 2 * 8.0 / 2**22
    for key, value in by_hand(artifacts, 1).items():
        weight = NODES * 1000 / sum(12 + 4 * n for n in range(NODES))  # of max_weight, undone
        np.testing.assert_allclose(found[0][key], value, atol=rounding * weight)
    assert all(not len(record) for c in sent for record in c.array_records.values()), "masked only"


SLOW = """
import sys, time
sys.path.insert(0, sys.argv[1])
from onnxtrain.flower import client_app, make_strategy, server_app
from flwr.simulation import run_simulation
from tests.flower.conftest import client_data

FOLDER, SLOW = sys.argv[2], 60.0

def data(context):
    number = int(context.node_config["partition-id"])
    if number == 0:
        time.sleep(SLOW)
    if number == 1:
        raise OSError("this client is lost")
    x, y = client_data(number)
    return (x, y), None

def done(result):
    values = result.arrays["parameters"].numpy()
    print("RESULT", len(result.train_metrics_clientapp), bool((values == values).all()), flush=True)

strategy = make_strategy("fedavg", min_train_nodes=4, min_available_nodes=4, fraction_evaluate=0.0)
server = server_app(FOLDER, strategy, rounds=2, round_timeout=45.0, on_result=done)
run_simulation(server, client_app(FOLDER, data), 4,
               backend_config={"client_resources": {"num_cpus": 0.5, "num_gpus": 0.0}})
"""


@pytest.mark.slow
def test_simulation_goes_on_without_a_slow_and_a_lost_client(artifacts):
    done = subprocess.run(
        [sys.executable, "-c", SLOW, str(ROOT), str(artifacts)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)},
    )
    # the first round may pass while the simulation itself is still starting
    told = re.search(r"RESULT [12] True", done.stdout)
    assert told, done.stdout[-3000:] + done.stderr[-3000:]
    assert "this client is lost" in done.stderr
