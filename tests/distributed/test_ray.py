"""Ray Train with two workers of a cluster on this machine, one of which is lost."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxtrain.errors import MissingPackageError
from tests.streams.shards import write_parquet

from . import elastic
from .conftest import LIMIT, needs_torch
from .test_elastic import ROWS, make, weights
from .threads import parameters, together

SCRIPT = """
    import json, sys
    from pathlib import Path

    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from tests.distributed import elastic

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
        hooks = [ReportToRay(elastic.SAVED), elastic.KillOnce(folder / "killed")]
        elastic.fit(trainer, config["pattern"], hooks)

    artifacts, pattern, folder = sys.argv[1:]
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=True)
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


@pytest.mark.slow
@needs_torch
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
@pytest.mark.skipif(
    "ONNXTRAIN_RAY" not in os.environ, reason="set ONNXTRAIN_RAY=1: it starts a cluster of Ray"
)
def test_ray_starts_the_workers_again(folder, tmp_path):
    import textwrap

    pattern = write_parquet(tmp_path, ROWS)
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([root, os.path.join(root, "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(script), str(folder), pattern, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths, "RAY_TRAIN_V2_ENABLED": "1",
             "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
        capture_output=True, text=True, timeout=3 * LIMIT, check=False,
    )  # fmt: skip
    if done.returncode and "timed out during startup" in done.stderr:
        pytest.skip("Ray gives its own processes 30 s to start, and this machine is too busy")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    starts = (tmp_path / "starts.txt").read_text().split("\n")[:-1]
    assert starts == ["0 2", "12 2"]
    assert json.loads((tmp_path / "metrics.json").read_text())["step"] == 33
    expected = together(2, lambda b: parameters(elastic.fit(make(folder, b), pattern)))[0]
    for name, value in weights(tmp_path / "last").items():
        assert np.array_equal(value, expected[name]), name
