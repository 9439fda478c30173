"""The torch.distributed backend: two processes over gloo on the loopback interface."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from .conftest import LIMIT, WORKER, needs_torch, results

pytestmark = needs_torch
RUNS = [
    {"fit": {"epochs": 2, "batch_size": 25}},
    {"fit": {"epochs": 2, "batch_size": 25}, "options": {"shard_optimizer": True}},
    {"fit": {"epochs": 2, "batch_size": 25}, "options": {"overlap": True, "bucket_mb": 1e-4}},
]


def torchrun(ranks, folder, result, runs):
    """As torchrun does: the same variables, one process per rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    task = json.dumps({"backend": "torch", "runs": runs})
    command = [sys.executable, str(WORKER), str(folder), str(result), task]
    common = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ONNXTRAIN_TIMEOUT": "60",
    }
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        return [(p.communicate(timeout=LIMIT)[1], p.returncode) for p in processes]
    finally:
        for process in processes:
            process.kill()


def test_two_ranks_give_the_weights_of_one(folder, tmp_path):
    for ranks in (1, 2):
        for error, code in torchrun(ranks, folder, tmp_path / str(ranks), RUNS):
            assert code == 0, error
    alone, together = results(tmp_path / "1", 1)[0], results(tmp_path / "2", 2)
    for group in together:
        for key, value in alone.items():
            if "state_bytes" not in key:
                np.testing.assert_allclose(group[key], value, rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("run", [RUNS[0], RUNS[2]], ids=["plain", "overlapped"])
def test_a_killed_rank_is_noticed(folder, tmp_path, run):
    run = {**run, "die": [1, 4, "kill"]}
    (text, code), (_, killed) = torchrun(2, folder, tmp_path / "x", [run])
    assert killed == -9
    assert code not in (0, -9)
    assert "Rank 0 of 2 stops in" in text
    assert "resume=True" in text
