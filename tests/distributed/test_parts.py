"""What needs no second process: sampler, slices, detection, start, the group of one."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain.api import CheckpointState, Trainer
from onnxtrain.distributed import Backend, ShardedBatches, Single, connect, detect, share
from onnxtrain.distributed import peers as peers_module
from onnxtrain.distributed.shard import slices, window
from onnxtrain.distributed.start import check_same_models, shared_state
from onnxtrain.errors import InputError, MissingPackageError, RankLostError
from onnxtrain.runtime.loop.batches import make_batches
from onnxtrain.runtime.loop.metrics import R2, Accuracy, Metric
from tests.runtime import handmade

from .worker import data_of

# --- sampler -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("rows", [0, 1, 3, 8, 25])
def test_shares_cover_all_rows_once_and_are_almost_equal(rows, size):
    parts = [share(rows, rank, size) for rank in range(size)]
    assert [r for a, b in parts for r in range(a, b)] == list(range(rows))
    lengths = [b - a for a, b in parts]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("form", ["arrays", "batches"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("rows", "batch", "size"), [(53, 8, 3), (10, 4, 4), (5, 5, 8), (1, 9, 2)])
def test_every_row_is_seen_once_in_the_order_of_one_process(rows, batch, size, shuffle, form):
    data = np.arange(rows)[:, None]
    arrays = make_batches((data, data * 2), ["x", "y"], batch, shuffle=shuffle, seed=5)
    epoch = 3
    expected = [[a.copy() for a in values] for values in arrays.epoch(epoch)]
    source = arrays if form == "arrays" else make_batches(expected, ["x", "y"], batch)
    ranks = [list(ShardedBatches(source, r, size).epoch(epoch)) for r in range(size)]
    assert all(len(parts) == len(expected) for parts in ranks)
    for index, (x, y) in enumerate(expected):
        parts = [parts[index] for parts in ranks]
        assert np.array_equal(np.concatenate([p[0] for p in parts]), x)
        assert np.array_equal(np.concatenate([p[1] for p in parts]), y)
        assert {p.total for p in parts} == {len(x)}
        assert [len(p[0]) for p in parts] == [p.rows for p in parts]
    seen = np.concatenate([p[0] for parts in ranks for p in parts]).ravel()
    assert sorted(seen) == list(range(rows))
    late = ShardedBatches(source, 0, size).epoch(epoch, skip=1)
    assert [p.total for p in late] == [len(x) for x, _ in expected[1:]]


# --- slices of the optimizer's state -------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [16, 96, 1000, 1024])
def test_slices_cover_the_vector_on_cache_lines(size, count):
    parts = slices(size, count)
    assert len(parts) == count
    assert [i for a, b in parts for i in range(a, b)] == list(range(size))
    assert all(a % 16 == 0 for a, b in parts if a < b)


def test_windows_put_together_are_the_store():
    state = CheckpointState.from_arrays(
        {n: v for n, v in handmade.values().items() if n in handmade.TRAINABLE}
    )
    store = state.training_state.trainable
    data = store.buffers["F32"].data
    parts = [window(store, a, b) for a, b in slices(data.size, 3)]
    for name in store:
        whole = np.concatenate([p.view(name) for p in parts])
        assert np.array_equal(whole, store.view(name).ravel())
    parts[1].buffers["F32"].data[:] = 7.0
    assert (data == 7.0).sum() == parts[1].buffers["F32"].data.size, "a window is a view"


# --- connecting ----------------------------------------------------------------------------------


def test_launchers_are_recognised():
    torch = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for environment, name in (
        ({"PMI_SIZE": "4", "PMI_RANK": "0"}, "mpi"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpi"),
        ({"PMI_SIZE": "1"}, None),
        (torch, "torch"),
        ({**torch, "WORLD_SIZE": "1"}, None),
        ({"RANK": "0"}, None),
        ({}, None),
    ):
        assert detect(environment) == name, environment


def test_connect(monkeypatch):
    single = Single()
    assert connect(single) is single
    assert connect(None) is None
    assert isinstance(connect("single"), Single)
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert connect("auto") is None
    with pytest.raises(InputError, match="'mpi', 'torch'"):
        connect("smoke signals")


def test_time_limit_from_the_environment(monkeypatch):
    from onnxtrain.distributed.connect import _seconds

    monkeypatch.setenv("ONNXTRAIN_TIMEOUT", "7.5")
    assert _seconds(None) == 7.5
    assert _seconds(3.0) == 3.0
    for wrong in ("soon", "-1", "0", "nan"):
        monkeypatch.setenv("ONNXTRAIN_TIMEOUT", wrong)
        with pytest.raises(InputError, match="ONNXTRAIN_TIMEOUT"):
            _seconds(None)


def test_a_missing_library_is_named(monkeypatch):
    import sys

    from onnxtrain.distributed.mpi import MPIBackend

    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingPackageError, match=r"onnxtrain\[mpi\]"):
        MPIBackend()


def test_a_process_that_is_gone_is_noticed():
    import subprocess
    import sys

    own = peers_module.Peer.own(0)
    if not own.alive():
        pytest.skip("there is no /proc here: only the time limit tells")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        other = peers_module.Peer(1, child.pid, own.home)
        elsewhere = peers_module.Peer(2, 2**22 + 1, "another machine")
        near = peers_module.Neighbours(own, [own, other, elsewhere])
        assert near.count == 2
        assert near.gone() is None
        child.kill()
        for _ in range(500):  # a zombie until somebody waits for it; that must count as gone
            if near.gone() is not None:
                break
            import time

            time.sleep(0.01)
        assert near.gone() == other
    finally:
        child.kill()
        child.communicate()


# --- a group of one, and of make-believe ranks ---------------------------------------------------


def trained(folder, **options):
    trainer = Trainer.from_directory(folder, step_model=None, metrics=["mse"], **options)
    data = data_of(folder)
    history = trainer.fit(
        (data["x"], data["y"]),
        epochs=2,
        batch_size=25,
        validation_data=(data["vx"], data["vy"]),
        progress=False,
    )
    return trainer, history


def test_one_process_is_the_same_as_none(folder, tmp_path):
    plain, expected = trained(folder)
    for options in ({}, {"shard_optimizer": True}):
        alone, history = trained(folder, distributed="single", **options)
        for name, parameter in plain.state.parameters:
            other = alone.state.parameters[name].data
            np.testing.assert_allclose(other, parameter.data, rtol=1e-6, atol=1e-7)
        for name in expected:
            assert history[name] == pytest.approx(expected[name], rel=1e-6), name
        alone.save(tmp_path / "saved")
        again = CheckpointState.load_checkpoint(tmp_path / "saved")
        for kind, store in plain.state.training_state.optimizer.states.items():
            for name in store:
                np.testing.assert_allclose(
                    again.training_state.optimizer.states[kind].view(name),
                    store.view(name),
                    atol=1e-6,
                )


def test_only_float32_is_exchanged(folder):
    """A gradient of another type would stay each rank's own."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    state.training_state.trainable.buffers["F64"] = state.training_state.trainable.buffers["F32"]
    files = [folder / name for name in ("training_model.onnx", "optimizer_model.onnx")]
    with pytest.raises(InputError, match="of type F32, F64"):
        Trainer(*files, state, distributed="single")


def test_wrong_options(folder):
    with pytest.raises(ValueError, match="give distributed too"):
        Trainer.from_directory(folder, shard_optimizer=True)
    with pytest.raises(InputError, match="works on whole tensors"):
        Trainer(
            folder / "training_model.onnx",
            folder / "lamb.onnx",
            folder / "checkpoint",
            distributed="single",
            shard_optimizer=True,
        )
    with pytest.raises(FileNotFoundError):
        shared_state(Single(), folder / "nothing")


class Echo(Backend):
    """Plays rank 1 of 2: whatever is broadcast, rank 0 has sent `said`."""

    rank, size = 1, 2

    def __init__(self, said):
        self.said = list(said)

    def broadcast(self, array, root=0):
        array[:] = self.said.pop(0)

    def all_reduce(self, array):
        if array.ndim == 2:  # the table of `gather`: rank 0 adds its row
            array[0] = self.said.pop(0)
        else:
            array += 0


def test_other_ranks_hear_of_rank_0s_error(folder):
    text = np.frombuffer(b'{"error": "damaged"}', np.uint8)
    with pytest.raises(InputError, match="Rank 0 stopped: damaged"):
        shared_state(Echo([[text.size], text]), folder / "checkpoint")


def test_different_models_are_refused(folder):
    with pytest.raises(InputError, match="Rank 1 has another training_model than rank 0"):
        check_same_models(Echo([[5.0]]), training_model=b"123")


def test_metrics_of_parts_merge():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    targets = rng.normal(size=(60, 3)) * 4 + 50
    for make, target in ((Accuracy, labels), (R2, targets)):
        whole, merged = make(), make()
        whole.update(scores, target, 0.0)
        states = []
        for part in (slice(0, 13), slice(13, 60)):
            metric = make()
            metric.update(scores[part], target[part], 0.0)
            states.append(metric.state())
        states.append(np.zeros_like(states[0]))  # a rank without rows
        merged.merge(states)
        assert merged.result() == pytest.approx(whole.result(), rel=1e-12)


def test_a_metric_that_cannot_merge_sees_all_rows(folder):
    class Rows(Metric):
        name = "rows"

        def reset(self):
            self.count = 0

        def update(self, prediction, target, loss):
            self.count += len(target)

        def result(self):
            return self.count

    from onnxtrain.distributed import DataParallel

    data = data_of(folder)
    group = DataParallel(Single())
    group.rank, group.size = 1, 4
    source = make_batches((data["vx"], data["vy"]), ["x", "target"], 8)

    def rows(metrics):
        return sum(len(v[0]) for v in group.evaluated(source, metrics))

    assert rows([Rows()]) == 21
    assert rows([Accuracy()]) == 5  # 2 of 8, 2 of 8, 1 of 5
    assert group.merge(3.0, 21, [Rows()]) == (3.0, 21)


def test_a_lost_rank_reads_well():
    text = str(RankLostError("all_reduce", 0, 4, "rank 2 (process 7) has ended"))
    assert text.startswith("Rank 0 of 4 stops in all_reduce: rank 2 (process 7) has ended.")
    assert isinstance(RankLostError("x", 0, 1, "y"), ConnectionError)
