"""Small files that ask for much: time, memory, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

info = helper.make_tensor_value_info


def model(
    nodes: Iterable[onnx.NodeProto],
    *initializers: TensorProto,
    functions: Iterable[onnx.FunctionProto] = (),
    opset: int = 18,
) -> onnx.ModelProto:
    """A model from x: [n, 4] to a scalar, with nodes in front that make ``b``."""
    graph = helper.make_graph(
        [
            *nodes,
            helper.make_node("Mul", ["x", "w"], ["m"], name="times"),
            helper.make_node("ReduceSum", ["b"], ["s"], keepdims=0, name="sum_b"),
            helper.make_node("Mul", ["m", "s"], ["y"], name="both"),
            helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0, name="sum"),
        ],
        "g",
        [info("x", 1, ["n", 4])],
        [info("loss", 1, []), info("y", 1, ["n", 4])],
        [numpy_helper.from_array(np.ones(4, np.float32), "w"), *initializers],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    made = helper.make_model(graph, opset_imports=imports, ir_version=9)
    made.functions.extend(functions)
    return made


def _ints(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def doubling_functions(count: int = 30) -> onnx.ModelProto:
    """30 functions, each calling the last twice: 2³⁰ nodes when they are put in place."""
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    leaf = [helper.make_node("Neg", ["a"], ["b"])]
    functions = [helper.make_function("local", "f0", ["a"], ["b"], leaf, imports)]
    for n in range(1, count):
        calls = [
            helper.make_node(f"f{n - 1}", ["a"], ["h"], domain="local"),
            helper.make_node(f"f{n - 1}", ["h"], ["b"], domain="local"),
        ]
        functions.append(helper.make_function("local", f"f{n}", ["a"], ["b"], calls, imports))
    call = helper.make_node(f"f{count - 1}", ["w"], ["b"], domain="local")
    return model([call], functions=functions)


def recursive_function() -> onnx.ModelProto:
    """A function that calls itself."""
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    body = [helper.make_node("f", ["a"], ["b"], domain="local")]
    function = helper.make_function("local", "f", ["a"], ["b"], body, imports)
    return model([helper.make_node("f", ["w"], ["b"], domain="local")], functions=[function])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def nested_branches(depth: int = 1000) -> bytes:
    """If in If in If …, written by hand: the protobuf library refuses to."""
    inner = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["o"])], "leaf", [], [info("o", 1, [4])]
    ).SerializeToString()
    yes = numpy_helper.from_array(np.array(True), "yes")
    output = _field(12, info("o", 1, [4]).SerializeToString())
    kind = b"\xa0\x01\x05"
    other = _field(5, b"\x0a\x0belse_branch" + _field(6, inner) + kind)
    for _ in range(depth):
        branch = _field(5, b"\x0a\x0bthen_branch" + _field(6, inner) + kind)
        node = _field(1, b"yes") + _field(2, b"o") + _field(4, b"If") + branch + other
        inner = _field(1, node) + _field(2, b"g") + output
    graph = inner + _field(5, yes.SerializeToString())
    graph += _field(5, numpy_helper.from_array(np.ones(4, np.float32), "w").SerializeToString())
    return b"\x08\x09" + _field(8, b"\x0a\x00\x10\x12") + _field(7, graph)


def nested_types(depth: int = 1000) -> bytes:
    """An input that is a sequence of sequences of …"""
    kind = helper.make_tensor_type_proto(1, [4]).SerializeToString()
    for _ in range(depth):
        kind = _field(4, _field(1, kind))
    value = _field(11, _field(1, b"q") + _field(2, kind))
    made = model([helper.make_node("Neg", ["w"], ["b"])])
    graph = made.graph.SerializeToString() + value
    return b"\x08\x09" + _field(8, b"\x0a\x00\x10\x12") + _field(7, graph)


def huge_constant(kind: type = np.float32) -> onnx.ModelProto:
    """ConstantOfShape of terabytes."""
    value = numpy_helper.from_array(np.ones(1, kind))
    node = helper.make_node("ConstantOfShape", ["size"], ["c"], value=value, name="huge")
    cast = helper.make_node("Cast", ["c"], ["b"], to=1, name="cast")
    return model([node, cast], _ints("size", 2**20, 2**20))


def huge_constant_of_integers() -> onnx.ModelProto:
    return huge_constant(np.int64)


def huge_einsum() -> onnx.ModelProto:
    """An outer product of outer products."""
    letters = "abcdefgh"
    equation = ",".join(letters) + "->" + letters
    node = helper.make_node("Einsum", ["v"] * len(letters), ["b"], equation=equation, name="huge")
    return model([node], numpy_helper.from_array(np.ones(64, np.float32), "v"))


def huge_resize() -> onnx.ModelProto:
    scales = numpy_helper.from_array(np.array([1, 1, 1e6, 1e6], np.float32), "scales")
    image = numpy_helper.from_array(np.ones((1, 1, 2, 2), np.float32), "image")
    node = helper.make_node("Resize", ["image", "", "scales"], ["b"], name="huge")
    return model([node], scales, image)


def huge_expand() -> onnx.ModelProto:
    node = helper.make_node("Expand", ["w", "size"], ["b"], name="huge")
    return model([node], _ints("size", 2**40, 4))


def huge_tile_of_integers() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Tile", ["i", "size"], ["c"], name="huge"),
        helper.make_node("Cast", ["c"], ["b"], to=1, name="cast"),
    ]
    return model(nodes, _ints("i", 1, 2), _ints("size", 2**40))


def huge_range() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Range", ["zero", "end", "one"], ["c"], name="huge"),
        helper.make_node("Cast", ["c"], ["b"], to=1, name="cast"),
    ]
    scalars = {"zero": 0, "end": 2**42, "one": 1}
    return model(nodes, *(numpy_helper.from_array(np.int64(v), n) for n, v in scalars.items()))


def doubling_concat(count: int = 45) -> onnx.ModelProto:
    """Each node puts the last value together with itself, beside a long vector."""
    nodes = [
        helper.make_node("Concat", [f"c{n}", f"c{n}"], [f"c{n + 1}"], axis=0, name=f"double{n}")
        for n in range(count)
    ]
    nodes += [
        helper.make_node("Cast", [f"c{count}"], ["d"], to=1, name="cast"),
        helper.make_node("Slice", ["d", "start", "end"], ["e"], name="slice"),
        helper.make_node("ReduceSum", ["e"], ["f"], keepdims=0, name="sum_e"),
        helper.make_node("Mul", ["f", "long"], ["b"], name="with_long"),
    ]
    long = numpy_helper.from_array(np.ones(5000, np.float32), "long")
    return model(nodes, _ints("c0", 1, 2), _ints("start", 0), _ints("end", 1), long)


def broadcast_integers() -> onnx.ModelProto:
    """[100,000, 1] + [1, 100,000], beside a long vector."""
    column = numpy_helper.from_array(np.ones((100_000, 1), np.int64), "column")
    row = numpy_helper.from_array(np.ones((1, 100_000), np.int64), "row")
    nodes = [
        helper.make_node("Add", ["column", "row"], ["c"], name="huge"),
        helper.make_node("Cast", ["c"], ["b"], to=1, name="cast"),
    ]
    return model(nodes, column, row, numpy_helper.from_array(np.ones(5000, np.float32), "long"))


def negative_dimension() -> onnx.ModelProto:
    made = model([helper.make_node("Neg", ["bad"], ["b"], name="negate")])
    bad = TensorProto(name="bad", data_type=1, dims=[-4], raw_data=bytes(16))
    made.graph.initializer.append(bad)
    return made


def impossible_shape() -> onnx.ModelProto:
    """No elements at all, and a size that cannot be counted."""
    made = model([helper.make_node("Neg", ["bad"], ["b"], name="negate")])
    made.graph.initializer.append(TensorProto(name="bad", data_type=1, dims=[0, 2**62, 2**62]))
    return made


def too_many_dimensions() -> onnx.ModelProto:
    made = model([helper.make_node("Neg", ["bad"], ["b"], name="negate")])
    made.graph.initializer.append(
        TensorProto(name="bad", data_type=1, dims=[1] * 65, raw_data=bytes(4))
    )
    return made


def two_kinds_of_data() -> onnx.ModelProto:
    made = model([helper.make_node("Neg", ["bad"], ["b"], name="negate")])
    bad = TensorProto(name="bad", data_type=1, dims=[4], raw_data=bytes(16), float_data=[1] * 4)
    made.graph.initializer.append(bad)
    return made


def too_little_data() -> onnx.ModelProto:
    made = model([helper.make_node("Neg", ["bad"], ["b"], name="negate")])
    made.graph.initializer.append(
        TensorProto(name="bad", data_type=1, dims=[2**40], raw_data=bytes(16))
    )
    return made


def sparse_of_terabytes() -> onnx.ModelProto:
    made = model([helper.make_node("Neg", ["bad"], ["b"], name="negate")])
    values = numpy_helper.from_array(np.ones(1, np.float32), "bad")
    sparse = helper.make_sparse_tensor(values, _ints("", 5), [2**42])
    made.graph.sparse_initializer.append(sparse)
    return made


def sparse_out_of_range() -> onnx.ModelProto:
    made = model([helper.make_node("Neg", ["bad"], ["b"], name="negate")])
    values = numpy_helper.from_array(np.ones(1, np.float32), "bad")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, _ints("", 50), [4]))
    return made


def two_dropouts() -> onnx.ModelProto:
    """Two Dropouts that feed each other."""
    nodes = [
        helper.make_node("Dropout", ["d2"], ["d1"], name="first"),
        helper.make_node("Dropout", ["d1"], ["d2"], name="second"),
        helper.make_node("Add", ["d1", "w"], ["b"], name="add"),
    ]
    return model(nodes)


def long_names() -> onnx.ModelProto:
    """Names of a million letters, for messages to quote: CVE-2024-27319."""
    name = "n" * 10**6
    return model([helper.make_node(name, ["w"], ["b"], name=name)])


def long_varint() -> bytes:
    """A field that says it has 10¹⁵ bytes."""
    return b"\x08\x09" + _varint(7 << 3 | 2) + _varint(10**15) + bytes(100)


def many_empty_fields() -> bytes:
    """Two million empty messages in four megabytes."""
    return _varint(14 << 3 | 2) + b"\x00" + b"\x72\x00" * 2_000_000


BOMBS: dict[str, Callable[[], onnx.ModelProto | bytes]] = {
    f.__name__.replace("_", " "): f
    for f in (
        doubling_functions, recursive_function, nested_branches, nested_types, huge_constant,
        huge_constant_of_integers, huge_einsum, huge_resize, huge_expand, huge_tile_of_integers,
        huge_range, doubling_concat, broadcast_integers, negative_dimension, impossible_shape,
        too_many_dimensions, two_kinds_of_data,
        too_little_data, sparse_of_terabytes, sparse_out_of_range, two_dropouts, long_names,
        long_varint,
        many_empty_fields,
    )
}  # fmt: skip


def content(name: str) -> bytes:
    made = BOMBS[name]()
    return made if isinstance(made, bytes) else made.SerializeToString()
