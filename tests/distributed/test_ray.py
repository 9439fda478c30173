"""Ray Train with two workers of a cluster on this machine, one of which is lost."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from onnxtrain.errors import MissingPackageError
from tests.streams.shards import write_parquet

from . import elastic
from .conftest import needs_torch
from .test_elastic import ROWS, make, weights
from .threads import parameters, together

SCRIPT = """
    import json, sys, time
    from pathlib import Path

    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from tests.distributed import elastic

    def start_cluster(attempts):
        # Ray gives its own processes 30 s to start, which is not enough where others compute too.
        for left in reversed(range(attempts)):
            try:
                return ray.init(num_cpus=3, include_dashboard=False, log_to_driver=True)
            except Exception as error:
                if not left:
                    raise
                print(f"Ray did not start: {error}", file=sys.stderr, flush=True)
                ray.shutdown()
                time.sleep(5)

    def train_loop(config):
        import ray.train
        from onnxtrain.api import Trainer
        from onnxtrain.distributed.ray_train import ReportToRay, latest_checkpoint

        folder = Path(config["folder"])
        with latest_checkpoint() as latest:
            trainer = Trainer.from_directory(
                config["artifacts"], latest=latest, distributed="auto", overlap=False,
                step_model=None,
            )
        if trainer.group.is_main:
            with (folder / "starts.txt").open("a") as file:
                file.write(f"{trainer.step} {trainer.group.size}\\n")

        class KillOnceKept(elastic.KillOnce):
            # Not before Ray has written down a checkpoint: it asks its workers now and then.
            def on_step_end(self, trainer, logs):
                if trainer.group.rank == 1 and trainer.step == elastic.KILLED:
                    while not [*folder.rglob("checkpoint_manager_snapshot.json")]:
                        time.sleep(0.1)
                super().on_step_end(trainer, logs)

        hooks = [ReportToRay(elastic.SAVED), KillOnceKept(folder / "killed")]
        elastic.fit(trainer, config["pattern"], hooks)

    artifacts, pattern, folder = sys.argv[1:]
    start_cluster(attempts=8)
    result = TorchTrainer(
        train_loop,
        train_loop_config={"artifacts": artifacts, "pattern": pattern, "folder": folder},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run", storage_path=folder, failure_config=FailureConfig(max_failures=3)
        ),
    ).fit()
    with result.checkpoint.as_directory() as kept:
        (Path(folder) / "last").write_bytes((Path(kept) / "checkpoint").read_bytes())
    (Path(folder) / "metrics.json").write_text(json.dumps(result.metrics))
"""


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    from onnxtrain.distributed.ray_train import ReportToRay

    with pytest.raises(MissingPackageError, match=r"onnxtrain\[ray\]"):
        ReportToRay()


PATIENCE = {
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_gcs_server_request_timeout_seconds": "300",
    "RAY_health_check_initial_delay_ms": "300000",
    "RAY_health_check_timeout_ms": "120000",
}
"""Limits of Ray's own, for a machine on which it is not alone."""
MOST_SECONDS = 1000
EPOCH = -(-ROWS // elastic.BATCH)
"""Steps of one."""


@pytest.mark.slow
@pytest.mark.timeout(MOST_SECONDS + 120)
@needs_torch
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
@pytest.mark.skipif(
    "ONNXTRAIN_RAY" not in os.environ, reason="set ONNXTRAIN_RAY=1: it starts a cluster of Ray"
)
def test_ray_starts_the_workers_again(folder, tmp_path):
    pattern = write_parquet(tmp_path, ROWS)
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    code = run_alone([str(script), str(folder), pattern, str(tmp_path)], tmp_path / "output.txt")
    assert code == 0, (tmp_path / "output.txt").read_text()[-9000:]
    starts = (tmp_path / "starts.txt").read_text().split("\n")[:-1]
    assert starts[0] == "0 2"
    kept = {*range(elastic.SAVED, elastic.KILLED, elastic.SAVED), EPOCH}
    assert starts[1] in {f"{step} 2" for step in kept}, "a checkpoint that Ray had taken in"
    steps = elastic.EPOCHS * EPOCH
    assert json.loads((tmp_path / "metrics.json").read_text())["step"] == steps
    expected = together(2, lambda b: parameters(elastic.fit(make(folder, b), pattern)))[0]
    for name, value in weights(tmp_path / "last").items():
        assert np.array_equal(value, expected[name]), name


def run_alone(arguments: list[str], output: Path) -> int:
    """Run a script with everything that it starts; after too long all of that is ended."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")])
    variables = {
        "PYTHONPATH": paths,
        "RAY_TRAIN_V2_ENABLED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        **PATIENCE,
    }
    with output.open("w") as file:  # a pipe would stay open in what Ray has started
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **variables}, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(MOST_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
