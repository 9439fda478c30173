"""Constants that a model computes from its constants: what they become is known before they are."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxtrain.errors import ModelFileError
from onnxtrain.runtime.files.growth import MAX_ELEMENTS
from onnxtrain.runtime.files.onnxfile import ModelFile
from tests.js import tools

from . import bombs

HEAD = '<ir_version: 9, opset_import: ["": 18, "local": 1]> g (float[N, 4] x) => (y)'
INTEGERS = "int64[2] c0 = {1, 2}"


def repeated(line: str, count: int = 45, initializers: str = INTEGERS, more: str = "") -> str:
    """A node again and again, each on the result of the last: ``{a}`` and ``{b}``."""
    nodes = "\n".join(line.format(a=f"c{n}", b=f"c{n + 1}") for n in range(count))
    return f"{HEAD} <{initializers}> {{ {nodes} y = Identity(c{count}) {more} }}"


GROWING = {
    "Concat": repeated("{b} = Concat <axis = 0> ({a}, {a})"),
    "Concat on the last axis": repeated("{b} = Concat <axis = -1> ({a}, {a})"),
    "Tile": repeated("{b} = Tile ({a}, two)", initializers=f"{INTEGERS}, int64[1] two = {{2}}"),
    "a sum of a column and a row": repeated(
        "{a}r = Reshape ({a}, flat) {a}c = Unsqueeze ({a}r, one) {b} = Add ({a}c, {a}r)", 6,
        "float[4] c0 = {1, 2, 3, 4}, int64[1] flat = {-1}, int64[1] one = {-1}",
    ),
    "an outer product": repeated(
        "{a}c = Reshape ({a}, column) {a}r = Transpose <perm = [1, 0]> ({a}c)"
        " {b} = MatMul ({a}c, {a}r)", 6,
        "float[4] c0 = {1, 2, 3, 4}, int64[2] column = {-1, 1}",
    ),
    "Expand": f"{HEAD} <float[1] v = {{1}}, int64[2] size = {{65536, 65536}}>"
    " { y = Expand (v, size) }",
    "a size that is put together": f"{HEAD} <int64[1] size = {{65536}}>"
    " { both = Concat <axis = 0> (size, size) y = ConstantOfShape (both) }",
    "constants in nodes": repeated(
        "{b} = Concat <axis = 0> ({a}, {a})", initializers="int64[1] unused = {1}",
    ).replace("{ c1 =", "{ c0 = Constant <value_ints = [1, 2]> () c1 ="),
    "a Constant of a tensor": repeated(
        "{b} = Concat <axis = 0> ({a}, {a})", initializers="int64[1] unused = {1}",
    ).replace("{ c1 =", "{ c0 = Constant <value = int64[2] {1, 2}> () c1 ="),
    "in a branch": f"{HEAD} <{INTEGERS}, bool yes = {{1}}> {{ y = If (yes) <"
    " then_branch = a () => (t) { "
    + " ".join(f"c{n + 1} = Concat <axis = 0> (c{n}, c{n})" for n in range(45))
    + " t = Identity (c45) }, else_branch = b () => (e) { e = Identity (c0) }> }",
}  # fmt: skip
FINE = {
    "a mask of 32,768 × 32,768": f"{HEAD} <float[1] v = {{1}}, int64[2] size = {{32768, 32768}}>"
    " { m = Expand (v, size) y = Trilu (m) }",
    "what an input decides": repeated(
        "{b} = Concat <axis = 0> ({a}, {a})", initializers="int64[1] unused = {1}",
    ).replace("c0", "x"),
    "one element of each": repeated(
        "{a}d = Concat <axis = 0> ({a}, {a}) {b} = Gather <axis = 0> ({a}d, first)",
        initializers=f"{INTEGERS}, int64[2] first = {{0, 1}}",
    ),
    "a reshape that does not fit": f"{HEAD} <{INTEGERS}, int64[2] size = {{65536, 65536}}>"
    " { y = Reshape (c0, size) }",
    "operators of others": repeated("{b} = local.Concat <axis = 0> ({a}, {a})"),
    "names of every object": f"{HEAD} <{INTEGERS}>"
    " { a = constructor (c0) b = __proto__ (a) y = toString (b) }",
}  # fmt: skip


def in_functions(count: int = 45) -> onnx.ModelProto:
    """One function that puts its argument together with itself, called again and again."""
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    body = [helper.make_node("Concat", ["a", "a"], ["b"], axis=0, name="double")]
    function = helper.make_function("local", "Twice", ["a"], ["b"], body, imports)
    names = ["w", *(f"t{n}" for n in range(count - 1)), "b"]
    calls = [
        helper.make_node("Twice", [a], [b], domain="local") for a, b in itertools.pairwise(names)
    ]
    return bombs.model(calls, functions=[function])


def contents(table: dict[str, str]) -> dict[str, bytes]:
    return {n: onnx.parser.parse_model(t).SerializeToString() for n, t in table.items()}


def all_growing() -> dict[str, bytes]:
    return {**contents(GROWING), "in functions": in_functions().SerializeToString()}


@pytest.mark.parametrize("name", [*GROWING, "in functions"])
def test_refused_by_name(name: str) -> None:
    with pytest.raises(ModelFileError, match="makes a constant of") as error:
        ModelFile.load(all_growing()[name])
    assert f"{MAX_ELEMENTS} are the most" in str(error.value)


@pytest.mark.parametrize("name", FINE)
def test_others_are_left_to_onnxruntime(name: str) -> None:
    ModelFile.load(contents(FINE)[name])


def test_sizes_stay_numbers_of_a_few_bytes() -> None:
    """Without any element nothing is large; the sizes beside the 0 may not grow without end."""
    nodes = [
        helper.make_node("Tile", [f"c{n}", "many"], [f"c{n + 1}"], name=f"n{n}") for n in range(9)
    ]
    nodes.append(helper.make_node("Cast", ["c9"], ["b"], to=1))
    empty = numpy_helper.from_array(np.zeros((0, 1), np.float32), "c0")
    many = numpy_helper.from_array(np.array([1, 2**40]), "many")
    with pytest.raises(ModelFileError, match="makes a constant of 0 × 1099511627776"):
        ModelFile.load(bombs.model(nodes, empty, many).SerializeToString())


def test_javascript_agrees(tmp_path: Path) -> None:
    models = {**all_growing(), **contents(FINE)}
    paths = [tmp_path / f"{n}.onnx" for n in range(len(models))]
    for path, content in zip(paths, models.values()):
        path.write_bytes(content)
    said = tools.run_node("growth.mjs", tools.LIBRARY, *paths)
    refused = {n for n, told in zip(models, said, strict=True) if told["message"]}
    assert refused == {*GROWING, "in functions"}
    assert all("makes a constant of" in told["message"] for told in said if told["message"])
