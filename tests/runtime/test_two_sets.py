"""Two sets of buffers: reading one, writing the other, and coming back to the first."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from onnxtrain.compat.ort import runner
from onnxtrain.runtime.session.binding import Binding
from onnxtrain.runtime.session.devices import Device
from onnxtrain.runtime.state.buffers import TensorStore
from onnxtrain.runtime.step import one_graph
from onnxtrain.runtime.step.two_sets import Place, TwoSets

DOUBLE = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]>
    g (float[3] a, float[2] s) => (float[3] new_a, float[2] new_s) {
        new_a = Add(a, a)  new_s = Sum(s, s, s)
    }
""").SerializeToString()
A, S = Place("values", "a"), Place("sums", "s")
READS = {"a": A, "s": S}
WRITES = {"new_a": A, "new_s": S}


@pytest.fixture
def buffers() -> TwoSets:
    values = TensorStore.from_arrays({"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)})
    sums = TensorStore.from_arrays({"s": np.ones(2, np.float32)})
    second = values.like()
    second.copy_from(values)
    both = {"sums": sums}
    return TwoSets({"values": values, **both}, {"values": second, **both}, Device("cpu"))


def bindings(buffers: TwoSets) -> list[Binding]:
    device = Device("cpu")
    session = device.session(DOUBLE)
    found = [Binding(session, device) for _ in (0, 1)]
    for turn, binding in enumerate(found):
        buffers.bind(binding, turn, READS, WRITES)
    return found


def value(buffers: TwoSets) -> float:
    return float(buffers.source()["values"].view("a")[0])


def test_steps_go_back_and_forth(buffers: TwoSets) -> None:
    steps = bindings(buffers)
    first = buffers.source()
    for count in range(1, 6):
        steps[buffers.turn].run()
        buffers.swap()
        assert value(buffers) == 2.0**count
        assert first["sums"].view("s")[0] == 3.0**count  # one store in both sets: in place
    assert buffers.source() is not first
    buffers.write_back()
    assert buffers.source() is first
    assert value(buffers) == 32.0
    buffers.write_back()  # nothing to do
    assert value(buffers) == 32.0


def test_a_step_that_is_not_taken_over_changes_nothing(buffers: TwoSets) -> None:
    bindings(buffers)[0].run()
    assert value(buffers) == 1.0
    buffers.take_over([A])
    assert value(buffers) == 2.0


def test_only_what_was_written_is_looked_at(buffers: TwoSets) -> None:
    step = bindings(buffers)[0]
    step.run()
    assert buffers.first_not_finite(WRITES.values()) == ""
    buffers.target()["values"].view("b")[0] = np.nan  # left by a step that was refused, say
    assert buffers.first_not_finite(WRITES.values()) == ""
    buffers.source()["values"].view("a")[1] = np.inf
    step.run()
    assert buffers.first_not_finite(WRITES.values()) == "a"
    assert [v.size for v in buffers.vectors(WRITES)] == [3, 16]


def test_there_is_one_such_class() -> None:
    assert one_graph.TwoSets is runner.TwoSets is TwoSets
