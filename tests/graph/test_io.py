"""Models in and out: what is accepted, what is refused, and where the weights go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain
from onnxtrain.errors import ExternalDataError, MissingFileError, ModelError
from onnxtrain.graph import load, to_proto
from onnxtrain.graph.io import save

RNG = np.random.default_rng(5)


def small_model() -> onnx.ModelProto:
    weight = RNG.uniform(-1, 1, (4, 3)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["h"], name="product"),
        helper.make_node("ReduceSum", ["h"], ["loss"], keepdims=0, name="sum"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, ["n", 4])], [info("loss", 1, [])],
        [numpy_helper.from_array(weight, "weight")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def external(folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    onnx.save(
        small_model(), path, save_as_external_data=True, location=f"{name}.data", size_threshold=0
    )
    return path


def run(path: Path, x: np.ndarray) -> list[np.ndarray]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def test_every_form_of_a_model_gives_the_same(tmp_path: Path) -> None:
    model = small_model()
    onnx.save(model, tmp_path / "m.onnx")
    forms = [model, model.SerializeToString(), str(tmp_path / "m.onnx"), tmp_path / "m.onnx",
             ir.from_proto(model)]  # fmt: skip
    for form in forms:
        result = onnxtrain.differentiate(form)
        assert [o.name for o in result.graph.output] == ["loss", "weight_grad"]
    assert model.SerializeToString() == forms[1]


def test_what_is_not_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.onnx"):
        load(tmp_path / "missing.onnx")
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(ModelError, match="empty file"):
        load(tmp_path / "empty.onnx")
    (tmp_path / "text.onnx").write_text("this is not a model at all")
    with pytest.raises(ModelError, match="not an ONNX model"):
        load(tmp_path / "text.onnx")
    with pytest.raises(ModelError, match="holds no graph"):
        load(b"")
    with pytest.raises(ModelError, match="These bytes"):
        load(b"\xff\xff\xff\xff")
    with pytest.raises(ModelError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(ModelError, match="not int"):
        load(3)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="holds no graph"):
        load(onnx.ModelProto())
    with (tmp_path / "huge.onnx").open("wb") as file:
        file.truncate(3 * 2**30)
    with pytest.raises(ModelError, match="2 GiB"):
        load(tmp_path / "huge.onnx")


def test_external_data_must_be_there_and_whole(tmp_path: Path) -> None:
    path = external(tmp_path)
    data = tmp_path / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:10])
    with pytest.raises(ModelError, match=r"'weight'.*truncated"):
        load(path)
    data.unlink()
    with pytest.raises(MissingFileError, match=r"'weight'.*model\.onnx\.data"):
        load(path)
    with pytest.raises(ExternalDataError, match="Give the model as a path"):
        load(onnx.load(path, load_external_data=False))


def test_a_proto_is_self_contained(tmp_path: Path) -> None:
    result = onnxtrain.differentiate(external(tmp_path))
    assert not any(t.data_location == TensorProto.EXTERNAL for t in result.graph.initializer)
    onnx.checker.check_model(result, full_check=True)


def test_weights_beside_the_output_are_referred_to(tmp_path: Path) -> None:
    path = external(tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())
    result = onnxtrain.differentiate(path, output=tmp_path / "out.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*before, "out.onnx"])
    (weight,) = [t for t in result.graph.initializer if t.name == "weight"]
    assert {e.key: e.value for e in weight.external_data}["location"] == "model.onnx.data"
    x = RNG.uniform(-1, 1, (2, 4)).astype(np.float32)
    loss, gradient = run(tmp_path / "out.onnx", x)
    np.testing.assert_allclose(loss, run(path, x)[0], rtol=1e-6)
    np.testing.assert_allclose(gradient, np.repeat(x.sum(0)[:, None], 3, 1), rtol=1e-5)


def test_weights_elsewhere_are_copied(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    path = external(tmp_path / "a")
    onnxtrain.differentiate(path, output=tmp_path / "b" / "out.onnx")
    (tmp_path / "a" / "model.onnx.data").unlink()
    assert (tmp_path / "b" / "out.onnx.data").is_file()
    run(tmp_path / "b" / "out.onnx", np.ones((1, 4), np.float32))


def test_writing_over_the_model_itself(tmp_path: Path) -> None:
    path = external(tmp_path)
    x = RNG.uniform(-1, 1, (2, 4)).astype(np.float32)
    (expected,) = run(path, x)
    onnxtrain.differentiate(path, output=path)
    np.testing.assert_allclose(run(path, x)[0], expected, rtol=1e-6)


def test_weights_in_memory_can_be_written_as_external_data(tmp_path: Path) -> None:
    path = external(tmp_path)
    model = load(path)
    extra = ir.tensor(np.ones(3, np.float32), name="extra")
    model.graph.initializers["extra"] = ir.Value(name="extra", const_value=extra)
    data = (tmp_path / "model.onnx.data").read_bytes()
    save(model, path, external_data=True)
    assert (tmp_path / "model.onnx.data").read_bytes() == data
    tensors = {t.name: t for t in onnx.load(path).graph.initializer}
    np.testing.assert_array_equal(numpy_helper.to_array(tensors["extra"]), np.ones(3))


@pytest.mark.parametrize("is_beside", [True, False], ids=["same folder", "another one"])
def test_large_weights_in_memory_join_those_in_files(tmp_path: Path, is_beside: bool) -> None:
    """Small ones stay; and so do all where nothing is in a file, or where the caller says so."""
    source = tmp_path if is_beside else tmp_path / "source"
    source.mkdir(exist_ok=True)
    arrays = {"first": np.ones((8, 4), np.float32), "large": np.ones((256, 256), np.float32)}
    arrays["small"] = np.ones(4, np.float32)
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in arrays]
    outputs = [helper.make_tensor_value_info(f"{n}_out", TensorProto.FLOAT, None) for n in arrays]
    graph = helper.make_graph(nodes, "g", [], outputs, tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    for name, expected in (("first", {"first", "large"}), ("", set())):
        onnx.save(proto, source / "model.onnx")
        model = load(source / "model.onnx")
        if name:
            (source / "first.bin").write_bytes(arrays[name].tobytes())
            model.graph.initializers[name].const_value = ir.ExternalTensor(
                "first.bin", 0, arrays[name].nbytes, ir.DataType.FLOAT,
                shape=ir.Shape(arrays[name].shape), name=name, base_dir=source,
            )  # fmt: skip
        save(model, tmp_path / "out.onnx")
        written = onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer
        assert {t.name for t in written if t.data_location == TensorProto.EXTERNAL} == expected
        results = ort.InferenceSession(tmp_path / "out.onnx").run(None, {})
        for result, array in zip(results, arrays.values(), strict=True):
            np.testing.assert_array_equal(result, array)


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="folder"):
        save(load(small_model()), tmp_path / "none" / "m.onnx")


def test_sparse_initializers_become_dense() -> None:
    model = small_model()
    del model.graph.initializer[:]
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            helper.make_tensor("weight", TensorProto.FLOAT, [2], [2.0, 3.0]),
            helper.make_tensor("i", TensorProto.INT64, [2, 2], [0, 1, 3, 2]),
            [4, 3],
        )
    )
    proto = to_proto(load(model))
    expected = np.zeros((4, 3), np.float32)
    expected[0, 1], expected[3, 2] = 2, 3
    np.testing.assert_array_equal(numpy_helper.to_array(proto.graph.initializer[0]), expected)
    assert len(model.graph.sparse_initializer) == 1


HUGE = """
import resource, sys
import onnxtrain
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = onnxtrain.differentiate(sys.argv[1], wrt=["w0", "x"], output=sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)
"""


def huge_model(path: Path) -> None:
    """3 GiB of weights in a file that takes no room: a hole."""
    width, layers = 16384, 3
    info = helper.make_tensor_value_info
    nodes, weights = [], []
    for i in range(layers):
        source = f"h{i}" if i else "x"
        nodes.append(helper.make_node("MatMul", [source, f"w{i}"], [f"h{i + 1}"], name=f"m{i}"))
        tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[width, width])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", "huge.data"), ("offset", i * width * width * 4),
            ("length", width * width * 4),
        ):  # fmt: skip
            tensor.external_data.add(key=key, value=str(value))
        weights.append(tensor)
    nodes.append(helper.make_node("ReduceSum", [f"h{layers}"], ["loss"], keepdims=0, name="sum"))
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, ["n", width])], [info("loss", 1, [])], weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    with (path.parent / "huge.data").open("wb") as file:
        file.truncate(layers * width * width * 4)


@pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files and getrusage in KiB")
def test_three_gigabytes_by_path_cost_next_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    huge_model(path)
    output = tmp_path / "out.onnx"
    done = subprocess.run(
        [sys.executable, "-c", HUGE, str(path), str(output)],
        check=True, capture_output=True, text=True, env=os.environ,
    )  # fmt: skip
    assert int(done.stdout) < 300 * 1024  # KiB, of 3 GiB; most of it are the imports
    result = onnx.load(output, load_external_data=False)
    assert [o.name for o in result.graph.output] == ["loss", "w0_grad", "x_grad"]
    assert {e.value for t in result.graph.initializer for e in t.external_data
            if e.key == "location"} == {"huge.data"}  # fmt: skip
    with pytest.raises(ModelError, match="output path"):
        onnxtrain.differentiate(path, wrt=["w0"])


def test_a_sparse_tensor_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[4] x) => (float[4] y) { y = Add(x, s) }'
    )
    values = onnx.numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = onnx.TensorProto(data_type=onnx.TensorProto.INT64, dims=[4])
    strange = onnx.TensorProto(data_type=39, dims=[1])
    for damaged in (indices, onnx.TensorProto(dims=[1]), strange):
        model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, damaged, [4]))
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(ModelError, match="file is damaged"):
            load(tmp_path / "m.onnx")
        del model.graph.sparse_initializer[:]
