"""Secure aggregation."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr", reason='flwr is not installed (pip install "onnxtrain[flower]")')

from onnxtrain.flower import client_app, secure_server_app

from .grid import LocalGrid
from .test_apps import NODES, RATE, by_hand, data_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's own module


def secured(artifacts, **options):
    """One round; gives the final arrays and what the clients sent."""
    from flwr.client.mod import secaggplus_mod

    clients = client_app(artifacts, data_of, learning_rate=RATE, mods=[secaggplus_mod])
    grid = LocalGrid(clients, NODES, **options)
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
    return found[0], sent


def close(found, expected, nodes):
    """To the rounding of the masked integers, times max_weight, which is undone at the end."""
    rounding = 2 * 8.0 / 2**22 * len(nodes) * 1000 / sum(12 + 4 * n for n in nodes)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, atol=rounding)


def test_secure_aggregation_gives_the_average_that_nobody_sees(artifacts):
    found, sent = secured(artifacts)
    close(found, by_hand(artifacts, 1), range(NODES))
    assert all(not len(record) for c in sent for record in c.array_records.values()), "masked only"


def test_a_client_lost_between_its_promise_and_its_update_is_left_out(artifacts):
    """It took part in the first two of the four stages: its masks must come off the sum."""
    found, _ = secured(artifacts, lost={4: 2})
    close(found, by_hand(artifacts, 1, left_out=[3]), range(NODES - 1))
