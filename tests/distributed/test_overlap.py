"""Gradients that travel while others are computed: the same weights, and one decision for all."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from onnxtrain.api import Callback, CheckpointState, Module, Trainer
from onnxtrain.distributed import Backend, DataParallel, Single
from onnxtrain.distributed import overlap as overlap_module
from onnxtrain.distributed.overlap import GAIN, PATIENCE, ROUNDS, SHARE, Choice, Sender
from onnxtrain.errors import InputError, RankLostError
from onnxtrain.runtime.state.checkpoint_state import RandomState
from onnxtrain.runtime.state.seeds import key_of
from tests.runtime import test_real_artifacts as convolutional

from .conftest import launch, needs_mpi, results
from .test_mpi import batchnorm_artifacts, dying
from .threads import parameters, together
from .worker import data_of

TINY = 1e-4
"""Megabytes per bucket: a hundred bytes, three buckets of the handmade model."""

# --- ranks that are threads ----------------------------------------------------------------------

FIFTY = {"epochs": 10, "batch_size": 24, "drop_last": True}
CASES = {
    "adamw": ({}, FIFTY),
    "sgd": ({"optimizer_model": "sgd.onnx"}, FIFTY),
    "uneven": ({}, {"epochs": 2, "batch_size": 25}),  # parts differ by a row
    "few": ({}, {"epochs": 1, "batch_size": 121}),  # the last batch has 3 rows: a rank gets none
    "gathered": ({"accumulate": 3}, {"epochs": 3, "batch_size": 25}),  # 5 batches: 3, then 2
    "gathered few": ({"accumulate": 2}, {"epochs": 2, "batch_size": 121}),
    "sharded": ({"shard_optimizer": True}, FIFTY),
    "sharded sgd": ({"optimizer_model": "sgd.onnx", "shard_optimizer": True}, FIFTY),
    "sharded few": ({"shard_optimizer": True}, {"epochs": 1, "batch_size": 121}),
    "clipped": ({"clip_norm": 0.01}, FIFTY),
}


def trained(folder, backend, fit, **options):
    """Train on one rank; gives the trainer, its parameters and the sizes of its messages."""
    optimizer = options.pop("optimizer_model", "optimizer_model.onnx")
    trainer = Trainer(
        folder / "training_model.onnx",
        folder / optimizer,
        folder / "checkpoint",
        distributed=backend,
        **options,
    )
    data = data_of(folder)
    before = len(getattr(backend, "calls", []))
    history = trainer.fit((data["x"], data["y"]), progress=False, **fit)
    calls = getattr(backend, "calls", [])[before:]
    return trainer, parameters(trainer), history["loss"], calls


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("case", CASES)
def test_overlap_gives_the_same_weights(folder, case, ranks):
    options, fit = CASES[case]

    def run(**more):
        return together(ranks, lambda backend: trained(folder, backend, fit, **options, **more))

    plain, overlapped = run(overlap=False), run(overlap=True, bucket_mb=TINY)
    for rank in range(ranks):
        trainer, weights, losses, calls = overlapped[rank]
        assert trainer._engine.overlap.on
        assert not plain[rank][0]._engine.overlap.on
        assert len(calls) > len(plain[rank][3]), "several messages per update"
        np.testing.assert_allclose(losses, plain[rank][2], rtol=1e-5)
        for name, value in plain[rank][1].items():
            assert np.abs(weights[name] - value).max() < 1e-6, name
            assert np.array_equal(weights[name], overlapped[0][1][name]), "ranks agree"


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_batch_normalization_and_dropout(tmp_path, ranks, dropout):
    convolutional.generate(tmp_path, dropout=dropout)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=rng.integers(0, 10, 60))
    fit = {"epochs": 3, "batch_size": 13}

    def run(**more):
        return together(ranks, lambda backend: trained(tmp_path, backend, fit, **more))

    plain, overlapped = run(overlap=False), run(overlap=True, bucket_mb=TINY)
    for one, other in zip(plain, overlapped, strict=True):
        assert other[0]._engine.overlap.on
        for name, value in one[1].items():
            np.testing.assert_allclose(other[1][name], value, rtol=1e-5, atol=2e-6, err_msg=name)
    start = Trainer.from_directory(tmp_path).state.parameters["bn.mean"].data
    assert np.abs(plain[0][1]["bn.mean"] - start).max() > 1e-3, "statistics moved"


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("ranks", [2, 4])
def test_dropout_on_ranks_goes_on_exactly(tmp_path, ranks, accumulate):
    """Each rank has masks of its own, and a rank without rows goes on with the same number."""
    convolutional.generate(tmp_path, dropout=True)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(27, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 27)

    def work(backend):
        def fit(epochs, checkpoint="checkpoint", **more):
            trainer = Trainer(
                tmp_path / "training_model.onnx", tmp_path / "optimizer_model.onnx",
                tmp_path / checkpoint, distributed=backend, accumulate=accumulate, overlap=False,
            )  # fmt: skip
            # three batches: the last one has 3 rows, one for each of the first ranks
            trainer.fit((x, y), epochs=epochs, batch_size=12, progress=False, **more)
            return trainer

        whole = fit(4)
        fit(2).save(tmp_path / "run")
        backend.barrier()
        again = fit(4, "run", resume=True)
        return (
            parameters(whole),
            parameters(again),
            whole.state.training_state.random,
            again.state.training_state.random,
        )

    found = together(ranks, work)
    for rank, (whole, again, one, other) in enumerate(found):
        assert one == other == RandomState(counter=12)
        assert (one.rank, other.rank) == (rank, rank)
        for name, value in whole.items():
            assert np.array_equal(value, again[name]), name


def test_ranks_draw_masks_of_their_own(tmp_path):
    assert len({key_of(RandomState(seed=5, rank=rank)) for rank in range(100)}) == 100
    assert key_of(RandomState(seed=5)) == 5
    assert key_of(RandomState(seed=2**64 - 1)) == -1
    convolutional.generate(tmp_path, dropout=True)
    batch = convolutional.batch()
    losses = set()
    for rank in range(3):
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        state.training_state.random.rank = rank
        losses.add(float(Module(tmp_path / "training_model.onnx", state)(*batch)))
    assert len(losses) == 3


def test_buckets_travel_while_others_are_computed(folder):
    """The first message is under way before the last piece has run, and it is waited for."""
    events = []

    class Slow(Single):
        def all_reduce(self, array):
            if threading.current_thread() is not threading.main_thread():
                events.append("sent")
                time.sleep(0.02)
                events.append("there")

    trainer = Trainer.from_directory(
        folder, distributed=Slow(), overlap=True, bucket_mb=TINY, step_model=None
    )
    pieces = trainer._engine.overlap._pieces

    class Noted:
        def __init__(self, index, core):
            self.index, self.core = index, core

        def run_with_iobinding(self, binding, options):
            if self.index:
                deadline = time.monotonic() + 30
                while "sent" not in events and time.monotonic() < deadline:
                    time.sleep(0.001)
            self.core.run_with_iobinding(binding, options)
            events.append(f"piece {self.index}")

    pieces.session.cores[:] = [Noted(i, core) for i, core in enumerate(pieces.session.cores)]
    real_apply = trainer._engine.optimizer.apply

    def apply(scale):
        events.append("update")
        real_apply(scale)

    trainer._engine.optimizer.apply = apply
    data = data_of(folder)
    trainer.fit((data["x"][:8], data["y"][:8]), batch_size=8, progress=False)
    messages = sum(len(r) for r in pieces.ranges)
    assert events.index("sent") < events.index("piece 1")
    assert events.count("there") == messages > 1
    assert events[-1] == "update", "after all messages"


def test_a_lost_rank_is_reported_by_the_main_thread(folder):
    class Quits(Callback):
        def on_step_end(self, trainer, logs):
            if trainer.group.rank == 1 and trainer.step == 3:
                trainer.group.backend.leave()
                raise OSError("gone")

    seen = {}

    def work(backend):
        trainer = Trainer.from_directory(
            folder, distributed=backend, overlap=True, bucket_mb=TINY, step_model=None
        )
        data = data_of(folder)
        try:
            trainer.fit((data["x"], data["y"]), callbacks=[Quits()], progress=False)
        except Exception as error:
            seen[backend.rank] = error

    together(2, work)
    assert isinstance(seen[1], OSError)
    assert isinstance(seen[0], RankLostError)


# --- options -------------------------------------------------------------------------------------


def test_one_bucket_runs_whole(folder):
    trainer = trained(folder, Single(), {"epochs": 1}, overlap=True)[0]
    assert trainer._engine.overlap.decided
    assert not trainer._engine.overlap.on, "a small model has one bucket"
    assert trainer._engine.module.gradient_step.pieces is None
    trainer = trained(folder, Single(), {"epochs": 1}, overlap="auto", bucket_mb=TINY)[0]
    assert trainer._engine.overlap.decided
    assert not trainer._engine.overlap.on, "alone there is nobody to send to"


def test_wrong_options(folder):
    for wrong in ({"overlap": "yes"}, {"overlap": None}, {"bucket_mb": 0}, {"bucket_mb": "1"}):
        with pytest.raises((ValueError, TypeError), match=r"overlap|bucket_mb|not supported"):
            Trainer.from_directory(folder, distributed="single", **wrong)
    with pytest.raises(ValueError, match="overlap=True needs several processes"):
        Trainer.from_directory(folder, overlap=True)
    old = Single()
    old.other_threads = False
    with pytest.raises(InputError, match="MPI_THREAD_MULTIPLE"):
        Trainer.from_directory(folder, distributed=old, overlap=True, step_model=None)
    group = DataParallel(old, bucket_mb=TINY)
    assert group.overlap == "auto"
    assert not trained(folder, old, {"epochs": 1}, bucket_mb=TINY)[0]._engine.overlap.on


# --- the thread ----------------------------------------------------------------------------------


def test_calls_are_made_in_order_and_errors_reach_who_waits():
    sender, seen = Sender(), []
    for number in range(20):
        sender.put(lambda number=number: seen.append(number))
    sender.wait()
    assert seen == list(range(20))

    def fails():
        raise RankLostError("all_reduce", 0, 2, "rank 1 has ended")

    sender.put(fails)
    sender.put(lambda: seen.append("too late"))
    with pytest.raises(RankLostError, match="rank 1 has ended"):
        sender.wait()
    with pytest.raises(RankLostError):
        sender.wait()
    assert "too late" not in seen


def test_the_thread_ends_with_its_owner():
    def threads():
        return [t for t in threading.enumerate() if t.name == "onnxtrain-exchange"]

    before = set(threads())
    sender = Sender()
    new = [t for t in threads() if t not in before]
    assert len(new) == 1
    del sender
    new[0].join(30)
    assert not new[0].is_alive()


# --- the decision --------------------------------------------------------------------------------


class Told(Backend):
    """A group whose other ranks have numbers that differ from this one's by known factors."""

    def __init__(self, factors):
        self.factors, self.size, self.asked = factors, len(factors), 0

    def gather(self, values):
        self.asked += 1
        return [values * f for f in self.factors]


def decide(choice, plain, overlapped, exchange, batches=1, rows=8):
    """Feed a choice with updates until it has decided; gives the ways that were taken."""
    ways = []
    while choice.overlaps is None:
        way = choice.next()
        ways.append(way)
        choice.note(way, batches, rows, overlapped if way else plain, exchange)
    return ways


@pytest.mark.parametrize(
    ("plain", "overlapped", "exchange", "answer"),
    [
        (1.0, 0.8, 0.3, True),
        (1.0, GAIN + 0.001, 0.3, False),
        (1.0, 1.5, 0.9, False),
        (1.0, 0.1, SHARE / 2, False),
    ],
)
def test_the_faster_way_is_kept(plain, overlapped, exchange, answer):
    choice = Choice(Told([1.0]))
    ways = decide(choice, plain, overlapped, exchange)
    assert choice.overlaps is answer
    if exchange < SHARE * plain:
        assert not any(ways), "not even tried"
    else:
        assert ways.count(True) == ways.count(False) == ROUNDS + 1


def test_the_slowest_rank_counts():
    """Every rank sees the table of all, and so decides alike."""
    for factors in ([1.0, 3.0], [3.0, 1.0]):
        choice = Choice(Told(factors))
        decide(choice, 1.0, 0.9, 0.5)
        assert choice.overlaps is True
        assert choice.backend.asked == 3
    choice = Choice(Told([1.0, 0.01]))  # rank 1 hardly waits: the exchange itself is fast
    decide(choice, 1.0, 0.5, 0.5)
    assert choice.overlaps is False


def test_updates_that_differ_are_not_compared():
    choice = Choice(Told([1.0]))
    for number in range(PATIENCE):
        assert choice.overlaps is None
        choice.note(choice.next(), 1, number, 1.0, 0.5)
    assert choice.overlaps is False


def test_both_ways_see_equally_many_batches():
    """So the masks of Dropout after the decision do not depend on it."""
    choice, seen, pattern = Choice(Told([1.0])), [0, 0], [4, 2]  # an epoch of 6, 4 gathered
    turn = 0
    while choice.overlaps is None:
        way, batches = choice.next(), pattern[turn % 2]
        seen[way] += batches
        choice.note(way, batches, 8 * batches, 0.5 if way else 1.0, 0.3)
        turn += 1
    assert choice.overlaps is True
    assert seen[0] == seen[1]


@pytest.mark.parametrize("pays", [False, True])
def test_auto_trains_right_and_decides_alike(folder, monkeypatch, pays):
    """The clock is whatever it is; the threshold is set so that the answer is known."""
    monkeypatch.setattr(overlap_module, "SHARE", 0.0)
    monkeypatch.setattr(overlap_module, "GAIN", 1e9 if pays else 0.0)
    plain = together(2, lambda backend: trained(folder, backend, FIFTY, overlap=False))
    found = together(2, lambda backend: trained(folder, backend, FIFTY, bucket_mb=TINY))
    for rank, (trainer, weights, losses, _) in enumerate(found):
        overlap, train = trainer._engine.overlap, trainer._engine.module.gradient_step
        assert overlap.decided
        assert overlap.on is pays
        assert (train.pieces is not None) is pays
        assert (train.sessions._usual is None) is pays, "the other way's session is let go"
        np.testing.assert_allclose(losses, plain[rank][2], rtol=1e-5)
        for name, value in plain[rank][1].items():
            assert np.abs(weights[name] - value).max() < 1e-6, name


# --- MPI -----------------------------------------------------------------------------------------

FORCED = {"overlap": True, "bucket_mb": TINY}
RUNS = [
    {"fit": FIFTY, "options": {"overlap": False}},
    {"fit": FIFTY, "options": FORCED},
    {"fit": FIFTY, "optimizer": "sgd.onnx", "options": {"overlap": False}},
    {"fit": FIFTY, "optimizer": "sgd.onnx", "options": FORCED},
    {"fit": FIFTY, "options": {**FORCED, "shard_optimizer": True}},
    {"fit": FIFTY, "options": {"overlap": "auto", "bucket_mb": TINY}},
]
SAME = {1: 0, 3: 2, 4: 0, 5: 0}
"""Run → the plain run with the same result."""


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_under_mpi(folder, tmp_path, ranks):
    done = launch(ranks, folder, tmp_path / "x", RUNS)
    assert done.returncode == 0, done.stderr
    groups = results(tmp_path / "x", ranks)
    for group in groups:
        assert all(group[f"{run}/overlapped"][0] for run in range(len(RUNS))), "decided"
        ways = [bool(group[f"{run}/overlapped"][1]) for run in range(len(RUNS))]
        assert ways[:5] == [False, True, False, True, True]
        assert ways[5] == bool(groups[0]["5/overlapped"][1]), "one decision for all"
        for run, plain in SAME.items():
            for key in [k for k in group if k.startswith(f"{run}/param")]:
                other = group[f"{plain}{key[1:]}"]
                assert np.abs(group[key] - other).max() < 1e-6, key
                assert np.array_equal(group[key], groups[0][key]), f"ranks differ in {key}"


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_batch_normalization_under_mpi(tmp_path, ranks):
    batchnorm_artifacts(tmp_path, 24, 0.9)
    fit = {"epochs": 10, "batch_size": 12}
    runs = [{"fit": fit, "options": {"overlap": False}}, {"fit": fit, "options": FORCED}]
    runs[1]["options"] = {"overlap": True, "bucket_mb": 2e-5}
    done = launch(ranks, tmp_path, tmp_path / "x", runs)
    assert done.returncode == 0, done.stderr
    for group in results(tmp_path / "x", ranks):
        assert group["1/overlapped"].all()
        for key in [k for k in group if k.startswith("0/param")]:
            np.testing.assert_allclose(group[f"1{key[1:]}"], group[key], rtol=1e-5, atol=1e-6)


@needs_mpi
def test_a_killed_rank_stops_the_others(folder, tmp_path):
    more = {"unnoticed": True, "ONNXTRAIN_TIMEOUT": "50"}
    text = dying(folder, tmp_path, "kill", run_options=FORCED, **more)
    assert "rank 1 (process" in text
    assert "from the last checkpoint with resume=True" in text


@needs_mpi
def test_a_rank_that_hangs_is_left_behind(folder, tmp_path):
    text = dying(folder, tmp_path, "hang", run_options=FORCED, ONNXTRAIN_TIMEOUT="6")
    assert "no answer from the other ranks for 6 s" in text


@needs_mpi
def test_an_error_on_one_rank_ends_all(folder, tmp_path):
    text = dying(folder, tmp_path, "raise", run_options=FORCED, ONNXTRAIN_TIMEOUT="50")
    assert "the disk of this rank is gone" in text
    assert "rank 1 ends the whole run" in text
