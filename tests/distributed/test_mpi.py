"""Several processes under mpiexec, on one machine."""

from __future__ import annotations

import time

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxtrain import artifacts, optim

from .conftest import launch, needs_mpi, results

pytestmark = needs_mpi

ADAMW = {"fit": {"epochs": 10, "batch_size": 24, "drop_last": True}}
SGD = {**ADAMW, "optimizer": "sgd.onnx"}
UNEVEN = {"fit": {"epochs": 2, "batch_size": 25}}  # parts differ by a row, the last batch too
FEW = {"fit": {"epochs": 1, "batch_size": 121}}  # the last batch has 3 rows: a rank gets none
GATHERED = {**UNEVEN, "options": {"accumulate": 2}, "no_statistics": True}
SHARDED = {**ADAMW, "options": {"shard_optimizer": True}}
SHARDED_SGD = {**SGD, "options": {"shard_optimizer": True}}
STOPPED = {"fit": {"epochs": 3, "batch_size": 24}, "stop": [0, 7]}
ALONE = {"fit": {"epochs": 1, "batch_size": 24}, "file_on_rank_0_only": True}
NAMES = ["adamw", "sgd", "uneven", "few", "gathered", "sharded", "sharded_sgd", "stopped", "alone"]
RUNS = [ADAMW, SGD, UNEVEN, FEW, GATHERED, SHARDED, SHARDED_SGD, STOPPED, ALONE]


@pytest.fixture(scope="module")
def found(folder, tmp_path_factory):
    """By number of ranks: what each rank ended with, in all runs."""
    where = tmp_path_factory.mktemp("found")
    groups = {}
    for ranks in (1, 2, 4):
        done = launch(ranks, folder, where / str(ranks), RUNS)
        assert done.returncode == 0, done.stderr
        groups[ranks] = results(where / str(ranks), ranks)
    return groups


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_any_number_of_ranks_gives_the_same_weights(found, ranks, name):
    index = NAMES.index(name)
    alone = {k: v for k, v in found[1][0].items() if k.startswith(f"{index}/")}
    if name in {"adamw", "sgd"}:
        assert alone[f"{index}/steps"] == 50
    for group in found[ranks]:
        for key, value in alone.items():
            if "state_bytes" not in key:
                np.testing.assert_allclose(group[key], value, rtol=1e-5, atol=1e-6, err_msg=key)
        for key, value in group.items():
            if key.startswith(f"{index}/param"):
                assert np.array_equal(value, found[ranks][0][key]), f"ranks differ in {key}"
                assert np.abs(value - alone[key]).max() < 1e-6, key


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_sharded_optimizer_is_the_same_with_a_part_of_the_memory(found, ranks):
    whole = int(found[1][0][f"{NAMES.index('sharded')}/state_bytes"])
    parts = [int(g[f"{NAMES.index('sharded')}/state_bytes"]) for g in found[ranks]]
    assert sum(parts) == whole == 2 * 4 * (32 + 16 + 32 + 16)  # moments, float32, cache lines
    assert max(parts) <= whole / ranks + 2 * 64
    for plain, sharded in (("adamw", "sharded"), ("sgd", "sharded_sgd")):
        a, b = NAMES.index(plain), NAMES.index(sharded)
        for key, value in found[ranks][0].items():
            if key.startswith(f"{a}/param"):
                np.testing.assert_allclose(found[ranks][0][f"{b}{key[1:]}"], value, atol=1e-6)


def test_batch_normalization_statistics_are_those_of_all_ranks(tmp_path):
    """Running statistics are the mean of what the ranks saw: the mean exactly that of one process,
    the variance without the part that lies between the ranks' own means."""
    rows, momentum = 24, 0.9
    x = batchnorm_artifacts(tmp_path, rows, momentum)
    step = {"fit": {"epochs": 1, "batch_size": rows, "shuffle": False}}
    for ranks in (1, 2, 4):
        done = launch(ranks, tmp_path, tmp_path / str(ranks), [step])
        assert done.returncode == 0, done.stderr
        groups = results(tmp_path / str(ranks), ranks)
        parts = np.split(x, ranks)
        means = np.mean([p.mean(axis=0) for p in parts], axis=0)
        variances = np.mean([p.var(axis=0) for p in parts], axis=0)
        for group in groups:
            assert np.array_equal(group["0/param/mean"], groups[0]["0/param/mean"])
            assert np.array_equal(group["0/param/var"], groups[0]["0/param/var"])
            expected = (1 - momentum) * means
            np.testing.assert_allclose(group["0/param/mean"], expected, rtol=1e-5, atol=1e-7)
            expected = momentum + (1 - momentum) * variances
            np.testing.assert_allclose(group["0/param/var"], expected, rtol=1e-5, atol=1e-7)


def batchnorm_artifacts(folder, rows, momentum):
    """A layer with BatchNormalization, and data whose ranks differ; gives the input."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[N, 4] x) => (float[N, 3] out) {{
            n, m, v = BatchNormalization <momentum = {momentum}, training_mode = 1>
                (x, scale, bias, mean, var)
            out = MatMul(n, w)
        }}"""
    )
    rng = np.random.default_rng(0)
    values = {n: np.full(4, v, np.float32) for n, v in
              {"scale": 1, "bias": 0, "mean": 0, "var": 1}.items()}  # fmt: skip
    values["w"] = rng.normal(size=(4, 3)).astype(np.float32)
    for name, value in values.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    artifacts.generate_artifacts(
        model,
        requires_grad=["scale", "bias", "w"],
        frozen_params=["mean", "var"],
        loss=artifacts.LossType.MSELoss,
        optimizer=optim.sgd(),
        artifact_directory=folder,
    )
    x = (rng.normal(size=(rows, 4)) + np.arange(rows)[:, None] / 4).astype(np.float32)
    y = rng.normal(size=(rows, 3)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=y, vx=x, vy=y)
    return x


def test_one_rank_can_stop_all(found):
    assert {int(g["7/steps"]) for g in found[4]} == {7}


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (1, 4)])
def test_resume_with_another_number_of_ranks(folder, tmp_path, found, before, after, sharded):
    """In the middle of an epoch, from the file that rank 0 wrote."""
    file = tmp_path / "run"
    options = {"options": {"shard_optimizer": sharded}}
    first = {**ADAMW, **options, "save": [file, 8], "stop": [0, 8]}
    done = launch(before, folder, tmp_path / "a", [first])
    assert done.returncode == 0, done.stderr
    fit = {**ADAMW["fit"], "resume": True}
    done = launch(after, folder, tmp_path / "b", [{**options, "fit": fit, "state": file}])
    assert done.returncode == 0, done.stderr
    for group in results(tmp_path / "b", after):
        assert group["0/steps"] == 50
        for key, value in found[1][0].items():
            if key.startswith("0/param") or key == "0/history/val_mse":
                np.testing.assert_allclose(group[key], value, rtol=1e-5, atol=1e-6, err_msg=key)


def dying(folder, tmp_path, how, run_options=None, **options):
    """Three ranks; rank 1 comes to grief after step 12, checkpoints were written until step 10."""
    run = {
        **ADAMW,
        "save": [tmp_path / "run", 5],
        "die": [1, 12, how],
        "options": run_options or {},
    }
    began = time.monotonic()
    done = launch(3, folder, tmp_path / "a", [run], **options)
    assert time.monotonic() - began < 60, "far beyond the time limit"
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_a_killed_rank_stops_the_others_and_the_run_resumes(folder, tmp_path, found):
    """Each rank below a shell that goes on: the launcher does not notice, so our watch must."""
    text = dying(folder, tmp_path, "kill", unnoticed=True, ONNXTRAIN_TIMEOUT="50")
    assert "rank 1 (process" in text
    assert "from the last checkpoint with resume=True" in text
    resumed = {"fit": {**ADAMW["fit"], "resume": True}, "state": tmp_path / "run"}
    done = launch(2, folder, tmp_path / "b", [resumed])
    assert done.returncode == 0, done.stderr
    for key, value in found[1][0].items():
        if key.startswith("0/param"):
            for group in results(tmp_path / "b", 2):
                np.testing.assert_allclose(group[key], value, atol=1e-6, err_msg=key)


def test_the_launcher_ends_the_others_when_it_notices(folder, tmp_path):
    assert "signal 9" in dying(folder, tmp_path, "kill", ONNXTRAIN_TIMEOUT="50")


def test_an_error_on_one_rank_ends_all(folder, tmp_path):
    text = dying(folder, tmp_path, "raise", ONNXTRAIN_TIMEOUT="50")
    assert "the disk of this rank is gone" in text
    assert "rank 1 ends the whole run" in text


def test_a_rank_that_hangs_is_left_behind(folder, tmp_path):
    text = dying(folder, tmp_path, "hang", ONNXTRAIN_TIMEOUT="6")
    assert "no answer from the other ranks for 6 s" in text
