"""Replies and questions that are junk: left out by the server, refused by the client."""

from __future__ import annotations

import io

import numpy as np
import pytest

pytest.importorskip("flwr", reason='flwr is not installed (pip install "onnxtrain[flower]")')

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from onnxtrain.errors import InputError, NonFiniteError
from onnxtrain.flower import Guard, LocalModel, client_app, make_strategy
from onnxtrain.flower.records import to_record

from .grid import LocalGrid
from .test_apps import ALL, by_hand, data_of, run


def raw(data: bytes, stype: str = "numpy.ndarray") -> Array:
    return Array("float32", (1,), stype, data)


def npy(values) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def claims(shape: str, dtype: str = "<f4") -> bytes:
    """A header that promises more than follows."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 8


def first_array(make):
    """Put something else into the place of the first array."""

    def change(reply):
        record = reply.content["arrays"]
        values = record["parameters"].numpy()
        record["parameters"] = make(values)

    return change


def replace(name, record):
    def change(reply):
        reply.content[name] = record

    return change


def metric(name, value):
    def change(reply):
        reply.content["metrics"][name] = value

    return change


def renamed(reply):
    reply.content["other"] = reply.content.pop("arrays")


def twice(reply):
    reply.content["again"] = reply.content["arrays"]


def nothing(reply):
    reply.content.clear()


def npz(values) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, values)
    return stream.getvalue()


JUNK = {
    "no record": nothing,
    "no array": replace("arrays", ArrayRecord({})),
    "another name": replace("arrays", to_record({"x": np.zeros(3, np.float32)})),
    "record renamed": renamed,
    "record twice": twice,
    "no bytes": first_array(lambda v: raw(b"")),
    "noise": first_array(lambda v: raw(bytes(range(256)))),
    "text": first_array(lambda v: raw(b"{'a': 1}")),
    "cut": first_array(lambda v: raw(npy(v)[:-5])),
    "too long": first_array(lambda v: raw(npy(v) + b"\0")),
    "terabytes": first_array(lambda v: raw(claims("(10**13,)"))),
    "terabytes claimed": first_array(lambda v: raw(claims("(10000000000000,)"))),
    "negative size": first_array(lambda v: raw(claims("(-1,)"))),
    "nested header": first_array(lambda v: raw(claims("(" * 3000 + ")" * 3000))),
    "a zip": first_array(lambda v: raw(npz(v))),
    "a pickle": first_array(lambda v: raw(claims("(1,)", "|O"))),
    "another format": first_array(lambda v: raw(npy(v), "torch.tensor")),
    "complex": first_array(lambda v: raw(npy(v.astype(np.complex64)))),
    "integers": first_array(lambda v: raw(npy(v.astype(np.int32)))),
    "strings": first_array(lambda v: raw(npy(v.astype(str)))),
    "another shape": first_array(lambda v: raw(npy(v.reshape(1, -1)))),
    "NaN": first_array(lambda v: raw(npy(v * np.nan))),
    "1e38": first_array(lambda v: raw(npy(np.full_like(v, 1e38)))),
    "beyond single": first_array(lambda v: raw(npy(np.full(v.shape, 1e300)))),
    "no metrics": replace("metrics", MetricRecord({})),
    "1e18 rows": metric("num-examples", 10**18),
    "0 rows": metric("num-examples", 0),
    "list of rows": metric("num-examples", [1, 2]),
    "infinite metric": metric("loss", float("inf")),
    "infinite in a list": metric("more", [1.0, float("nan")]),
    "one metric more": metric("extra", 1.0),
    "another length": metric("loss", [0.5, 0.5]),
}


def from_node(node, change, kind="train"):
    def mod(message, context, call_next):
        reply = call_next(message, context)
        if context.node_id == node and message.metadata.message_type == kind:
            change(reply)
        return reply

    return mod


@pytest.fixture(scope="module")
def without_second(artifacts):
    return by_hand(artifacts, 1, left_out=[1])


FIRST = [("record renamed", 1), ("one metric more", 1), ("cut", 1)]
"""From the node whose reply Flower takes as the pattern for the others."""


@pytest.mark.parametrize(("name", "node"), [*((name, 2) for name in JUNK), *FIRST])
def test_a_junk_reply_is_left_out_and_the_round_goes_on(artifacts, without_second, name, node):
    guard = Guard(make_strategy("fedavg", **ALL))
    _, _, arrays = run(artifacts, guard, mods=[from_node(node, JUNK[name])], rounds=1)
    assert [(r, n) for r, n, _ in guard.refused] == [(1, node)]
    if node == 2:
        for key, value in without_second.items():
            np.testing.assert_allclose(arrays[key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["no record", "1e18 rows", "infinite metric", "one metric more"])
def test_a_junk_evaluation_is_left_out(artifacts, name):
    guard = Guard(make_strategy("fedavg", **ALL))
    mods = [from_node(3, JUNK[name], "evaluate")]
    result, _, _ = run(artifacts, guard, mods=mods, rounds=1)
    assert [n for _, n, _ in guard.refused] == [3]
    assert np.isfinite(result.evaluate_metrics_clientapp[1]["loss"])


def test_all_replies_junk(artifacts):
    guard = Guard(make_strategy("fedavg", **ALL))
    mods = [from_node(node, JUNK["noise"]) for node in range(1, 5)]
    result, _, _ = run(artifacts, guard, mods=mods)
    assert len(guard.refused) == 8
    assert not result.arrays, "nothing was averaged"


# --- what a server may send ----------------------------------------------------------------------

QUESTIONS = {
    "no arrays": (None, {}, InputError, "no record 'arrays'"),
    "noise": (lambda a: raw(b"junk"), {}, InputError, "not in numpy's format"),
    "terabytes": (lambda a: raw(claims("(10000000000000,)")), {}, InputError, "of shape"),
    "cut": (lambda a: raw(npy(a)[:-1]), {}, InputError, "bytes of values"),
    "NaN": (lambda a: raw(npy(a * np.nan)), {}, NonFiniteError, "not finite"),
    "epochs": (lambda a: raw(npy(a)), {"epochs": 10**9}, InputError, "from 1 to 1000"),
    "no epochs": (lambda a: raw(npy(a)), {"epochs": 0}, InputError, "epochs=0"),
    "batch": (lambda a: raw(npy(a)), {"batch-size": -1}, InputError, "batch-size=-1"),
    "rate": (lambda a: raw(npy(a)), {"learning-rate": float("nan")}, InputError, "learning-rate"),
    "text": (lambda a: raw(npy(a)), {"learning-rate": "fast"}, InputError, "must be a number"),
    "mu": (lambda a: raw(npy(a)), {"proximal-mu": -1.0}, InputError, "proximal-mu"),
    "round": (lambda a: raw(npy(a)), {"server-round": "one"}, InputError, "server-round='one'"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_hostile_question_is_refused_by_the_client(artifacts, name):
    make, config, error, message = QUESTIONS[name]
    app = client_app(artifacts, data_of)
    grid = LocalGrid(app, 1)
    content = RecordDict({"config": ConfigRecord(config)})
    if make is not None:
        arrays = LocalModel(artifacts).arrays()
        content["arrays"] = ArrayRecord({n: make(a) for n, a in arrays.items()})
    with pytest.raises(error, match=message):
        app(Message(content, dst_node_id=1, message_type="train"), grid.contexts[1])
