"""The ONNX byte editor against the onnx package."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from onnxtrain.errors import ModelFileError, UnknownNameError
from onnxtrain.runtime.files.onnxfile import ModelFile
from onnxtrain.runtime.files.wire import Message

from . import handmade


@pytest.fixture
def model():
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 4] x, bool c, float[2] unused) => (float[N, 4] y)
          <float[4] k = {1, 2, 3, 4}, float[1] dead = {1}>
        {
            a = Mul(x, k)
            d = Add(x, dead)
            inner = Neg(k)
            y = If (c) <then_branch = t () => (float[N, 4] tb) { tb = Add(a, inner) },
                        else_branch = e () => (float[N, 4] eb) { eb = Identity(a) }>
        }"""
    )
    helper.set_model_props(made, {"a": "1", "b": "2"})
    return made


def test_reads_what_onnx_wrote(model):
    file = ModelFile.load(model.SerializeToString())
    assert [v.name for v in file.inputs] == ["x", "c", "unused"]
    assert file.inputs[0].shape == ("N", 4)
    assert (file.inputs[0].elem_type, file.inputs[1].elem_type) == (1, 9)
    assert file.metadata == {"a": "1", "b": "2"}
    assert file.initializer_names == ["k", "dead"]
    assert file.opset == 18
    assert [n.op_type for n in file.nodes] == ["Mul", "Add", "Neg", "If"]
    assert [n.op_type for n in file.all_nodes()] == ["Mul", "Add", "Neg", "If", "Add", "Identity"]


def test_unchanged_bytes_round_trip(model):
    data = model.SerializeToString()
    file = ModelFile.load(data)
    list(file.all_nodes())
    assert file.encode() == data
    assert file.message.size() == len(data)


def test_prune_keeps_what_subgraphs_capture(model):
    file = ModelFile.load(model.SerializeToString())
    file.prune()
    file.keep_inputs(lambda n: n in file.used_names())
    pruned = onnx.load_from_string(file.encode())
    onnx.checker.check_model(pruned, full_check=True)
    assert [n.op_type for n in pruned.graph.node] == ["Mul", "Neg", "If"]
    assert [i.name for i in pruned.graph.initializer] == ["k"]
    assert [i.name for i in pruned.graph.input] == ["x", "c"]


def test_outputs_attributes_initializers(model):
    file = ModelFile.load(model.SerializeToString())
    file.set_outputs(["d", "a"], like={"d": "x"})
    file.prune()
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    file.add_initializer("new", 1, (2, 3), values.tobytes())
    node = file.nodes[0]
    node.set_attribute("seed", 7)
    node.set_attribute("seed", -3)
    node.set_attribute("alpha", 0.5)
    changed = onnx.load_from_string(file.encode())
    assert [o.name for o in changed.graph.output] == ["d", "a"]
    assert changed.graph.output[0].type.tensor_type.elem_type == 1
    attributes = {a.name: helper.get_attribute_value(a) for a in changed.graph.node[0].attribute}
    assert attributes == {"seed": -3, "alpha": 0.5}
    assert np.array_equal(numpy_helper.to_array(changed.graph.initializer[-1]), values)
    with pytest.raises(UnknownNameError, match="nothing"):
        file.set_outputs(["nothing"])


def test_settling_lets_go_of_the_file(model):
    model.graph.initializer.append(numpy_helper.from_array(np.ones(5000, np.float32), "large"))
    data = bytearray(model.SerializeToString())
    file = ModelFile.load(data)
    assert "large" in file.initializer_names
    with pytest.raises(BufferError):
        data.clear()  # views of it are held
    encoded = file.consolidate()
    data.clear()
    assert encoded == file.encode()
    file.keep_inputs(lambda name: name != "unused")
    assert [v.name for v in onnx.load_from_string(file.encode()).graph.input] == ["x", "c"]


def test_forgotten_values(model):
    model.graph.initializer.append(numpy_helper.from_array(np.ones(5000, np.float32), "large"))
    data = bytearray(model.SerializeToString())
    file = ModelFile.load(data)
    file.forget_values()
    data.clear()
    assert file.initializer_names == ["k", "dead", "large"]
    kept = onnx.load_from_string(file.encode()).graph.initializer[2]
    assert (list(kept.dims), kept.data_type, kept.raw_data) == ([5000], 1, b"")


def test_not_a_model(tmp_path):
    for data in (b"", b"\x00", b"hello, this is no model", bytes(100)):
        with pytest.raises(ModelFileError):
            ModelFile.load(data)
    with pytest.raises(FileNotFoundError, match="no model file"):
        ModelFile.load(tmp_path / "missing.onnx")
    with pytest.raises(IsADirectoryError, match="directory"):
        ModelFile.load(tmp_path)


def test_deep_nesting_is_refused():
    graph = Message()
    for _ in range(200):
        attribute = Message().add(1, "body").add(6, graph).add(20, 5)
        graph = Message().add(1, Message().add(4, "If").add(5, attribute))
    data = Message().add(7, graph).add(8, Message().add(2, 18)).encode()
    with pytest.raises(ModelFileError, match="nested"):
        list(ModelFile.load(data).all_nodes())


def test_damaged_bytes_never_crash():
    """Truncation and random damage give a clear error, or a model that can be walked."""
    data = handmade.training_model(dropout=True).SerializeToString()
    rng = np.random.default_rng(0)
    damaged = [data[:n] for n in rng.integers(0, len(data), 150)]
    for _ in range(300):
        copy = bytearray(data)
        for at in rng.integers(0, len(copy), rng.integers(1, 5)):
            copy[at] = rng.integers(0, 256)
        damaged.append(bytes(copy))
    assert sum(not readable(bad) for bad in damaged) > 150


def readable(data):
    try:
        file = ModelFile.load(data)
        list(file.all_nodes())
        file.prune()
        list(map(len, (file.inputs, file.outputs, file.metadata, file.encode())))
    except ModelFileError:
        return False
    return True
