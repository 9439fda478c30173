"""ClientApp and ServerApp under Flower's own strategies, in one process."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason='flwr is not installed (pip install "onnxtrain[flower]")')

from onnxtrain.errors import InputError
from onnxtrain.flower import Guard, LocalModel, client_app, make_strategy, server_app
from onnxtrain.runtime.state.checkpoint_state import CheckpointState
from tests.sharing import together

from .conftest import client_data, federated_average
from .grid import LocalGrid

NODES = 4
RATE = 0.02
ALL = {"min_train_nodes": NODES, "min_evaluate_nodes": NODES, "min_available_nodes": NODES}


def data_of(context):
    number = int(context.node_config["partition-id"])
    return client_data(number), None


def run(artifacts, strategy, data=data_of, *, lost=(), mods=(), client=None, **options):
    """A whole run; gives Flower's result, the grid and the final arrays by their names."""
    results = []
    clients = client_app(artifacts, data, learning_rate=RATE, mods=mods, **(client or {}))
    grid = LocalGrid(clients, NODES, lost)
    app = server_app(artifacts, strategy, on_result=results.append, **{"rounds": 2, **options})
    app(grid, next(iter(grid.contexts.values())))
    return results[0], grid, {n: a.numpy() for n, a in results[0].arrays.items()}


def by_hand(artifacts, rounds, mu=0.0, left_out=(), momentum=0.0):
    """What averaging strategies must give."""
    clients = [client_data(node) for node in range(NODES)]
    options = {"left_out": left_out, "learning_rate": RATE, "proximal_mu": mu}
    options["momentum"] = momentum
    return federated_average(LocalModel(artifacts), clients, rounds, **options)


@pytest.mark.parametrize(("name", "mu"), [("fedavg", 0.0), ("fedprox", 0.5)])
def test_averaging_strategies_average(artifacts, name, mu):
    options = {"proximal_mu": mu} if mu else {}
    _, _, arrays = run(artifacts, make_strategy(name, **ALL, **options))
    expected = by_hand(artifacts, 2, mu)
    assert list(arrays) == ["parameters", "statistics"]
    for key, value in expected.items():
        np.testing.assert_allclose(arrays[key], value, rtol=1e-4, atol=1e-6, err_msg=key)


def test_clients_of_one_process_take_turns_with_the_model(artifacts, monkeypatch):
    """A grid that calls all clients at once; each trains from the arrays that it was sent."""
    answer = LocalGrid.send_and_receive

    def at_once(grid, messages, *, timeout=None):
        found = {}

        def ask(index, message):
            found[index] = answer(grid, [message], timeout=timeout)

        together(*(lambda i=i, m=m: ask(i, m) for i, m in enumerate(messages)))
        return [reply for index in sorted(found) for reply in found[index]]

    monkeypatch.setattr(LocalGrid, "send_and_receive", at_once)
    _, _, found = run(artifacts, make_strategy("fedavg", **ALL), client={"epochs": 20})
    clients = [client_data(node) for node in range(NODES)]
    options = {"learning_rate": RATE, "epochs": 20}
    for name, value in federated_average(LocalModel(artifacts), clients, 2, **options).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_fedavgm_moves_on(artifacts):
    _, _, arrays = run(artifacts, make_strategy("fedavgm", server_momentum=0.6, **ALL), rounds=3)
    for key, value in by_hand(artifacts, 3, momentum=0.6).items():
        np.testing.assert_allclose(arrays[key], value, rtol=1e-4, atol=1e-6, err_msg=key)


def test_fedprox_differs_from_fedavg(artifacts):
    """With several local steps the term pulls the clients back."""
    client = {"batch_size": 4, "epochs": 3}
    _, _, plain = run(artifacts, make_strategy("fedavg", **ALL), client=client)
    _, _, prox = run(artifacts, make_strategy("fedprox", proximal_mu=2.0, **ALL), client=client)
    assert np.abs(plain["parameters"] - prox["parameters"]).max() > 1e-3


@pytest.mark.parametrize("named", [False, True])
def test_fedadam_learns_and_the_checkpoint_is_written(artifacts, tmp_path, named):
    held_out = client_data(2)
    result, _, arrays = run(
        artifacts,
        make_strategy("fedadam", eta=0.05, **ALL),
        rounds=12,
        validation_data=held_out,
        metrics=["mse"],
        named=named,
        client={"named": named},
        save=tmp_path / "final",
    )
    losses = [m["loss"] for m in result.evaluate_metrics_serverapp.values()]
    assert len(losses) == 13
    assert losses[-1] < 0.8 * losses[0]
    assert result.evaluate_metrics_serverapp[12]["mse"] == pytest.approx(losses[-1], rel=1e-5)
    saved = CheckpointState.load_checkpoint(tmp_path / "final")
    first = saved.parameters["W1"].data
    flat = arrays["W1"] if named else arrays["parameters"][: first.size].reshape(first.shape)
    np.testing.assert_allclose(first, flat.astype(np.float32))


# --- trouble -------------------------------------------------------------------------------------


def spoil(node, how):
    """A modifier that changes what one client sends, as broken or hostile ones do."""
    from onnxtrain.flower.records import to_record

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if context.node_id == node and message.metadata.message_type == "train":
            record = reply.content["arrays"]
            arrays = {n: a.numpy().copy() for n, a in record.items()}
            how(arrays, reply.content["metrics"])
            reply.content["arrays"] = to_record(arrays)
        return reply

    return mod


def nan(arrays, metrics):
    arrays["parameters"][3] = np.nan


def infinite(arrays, metrics):
    arrays["statistics"][0] = np.inf


def short(arrays, metrics):
    arrays["parameters"] = arrays["parameters"][:1]


def weightless(arrays, metrics):
    metrics["num-examples"] = -5


def no_loss(arrays, metrics):
    metrics["loss"] = float("nan")


@pytest.mark.parametrize("how", [nan, infinite, short, weightless, no_loss])
def test_a_broken_update_is_refused_and_the_aggregate_is_clean(artifacts, how):
    guard = Guard(make_strategy("fedavg", **ALL))
    _, _, arrays = run(artifacts, guard, mods=[spoil(2, how)])
    assert [(r, n) for r, n, _ in guard.refused] == [(1, 2), (2, 2)]
    for key, value in by_hand(artifacts, 2, left_out=[1]).items():
        np.testing.assert_allclose(arrays[key], value, rtol=1e-4, atol=1e-6)


def test_a_lost_client_and_one_with_nan_data(artifacts):
    def data(context):
        (x, y), rest = data_of(context)
        bad = context.node_config["partition-id"] == 0
        return ((x * np.nan if bad else x), y), rest

    _, grid, arrays = run(
        artifacts, make_strategy("fedavg", **ALL), data, lost=[4], round_timeout=7.0
    )
    assert set(grid.calls) == {7.0}, "each wait of a round has the time limit"
    for key, value in by_hand(artifacts, 2, left_out=[0, 3]).items():
        np.testing.assert_allclose(arrays[key], value, rtol=1e-4, atol=1e-6)


def test_too_few_sound_updates_leave_the_model_as_it_was(artifacts, tmp_path):
    guard = Guard(make_strategy("fedavg", **ALL), min_replies=3)
    result, _, _ = run(artifacts, guard, lost=[3, 4], save=tmp_path / "same")
    assert not result.arrays
    saved = CheckpointState.load_checkpoint(tmp_path / "same")
    start = CheckpointState.load_checkpoint(artifacts / "checkpoint")
    for name, value in start.parameters:
        assert np.array_equal(value.data, saved.parameters[name].data)


def test_unknown_strategy():
    with pytest.raises(InputError, match="fedavg, fedprox, fedadam, fedavgm"):
        make_strategy("fedmagic")


# --- privacy -------------------------------------------------------------------------------------


def test_differential_privacy_of_flower(artifacts):
    from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
    from flwr.serverapp.strategy import (
        DifferentialPrivacyClientSideFixedClipping,
        DifferentialPrivacyServerSideFixedClipping,
    )

    def private(kind, norm, noise, mods=()):
        inner = make_strategy("fedavg", **ALL)
        strategy = kind(inner, noise, norm, NODES)
        return run(artifacts, strategy, rounds=1, mods=mods)[2]["parameters"]

    start = LocalModel(artifacts).arrays()["parameters"]
    for kind, mods in (
        (DifferentialPrivacyServerSideFixedClipping, []),
        (DifferentialPrivacyClientSideFixedClipping, [fixedclipping_mod]),
    ):
        clipped = private(kind, 0.01, 0.0, mods)
        moved = np.linalg.norm(clipped - start)
        assert 0 < moved <= 0.0101, "no update is longer than the clipping norm"
        noisy = private(kind, 0.01, 10.0, mods)
        assert np.linalg.norm(noisy - clipped) > 0.01
    local = LocalDpMod(clipping_norm=0.01, sensitivity=0.01, epsilon=1.0, delta=1e-5)
    noisy = run(artifacts, make_strategy("fedavg", **ALL), rounds=1, mods=[local])[2]
    assert np.isfinite(noisy["parameters"]).all()
    assert not np.array_equal(noisy["parameters"], start)
