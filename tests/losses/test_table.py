"""One table of losses: every row is a class, every class has a row; the command line reads it."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxtrain import losses, onnxblock
from onnxtrain.cli import recipes
from onnxtrain.graph import OpBuilder
from onnxtrain.graph.builder import Constants, Names
from tests.onnxblock.harness import run

HOME = Path(losses.__file__).parent


def test_every_class_has_a_row_and_every_row_a_class():
    defined = {
        (node.name, path.stem)
        for path in HOME.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Loss") and node.name != "Loss"
    }
    assert defined == {(row.name, row.module) for row in losses.LOSSES}
    for row in losses.LOSSES:
        assert issubclass(getattr(losses, row.name), losses.Loss)
        assert getattr(onnxblock.loss, row.name) is getattr(losses, row.name)
        assert row.name in losses.__all__


def test_the_command_line_reads_the_table():
    assert list(recipes.LOSSES) == [row.short for row in losses.LOSSES if row.short]
    for name, recipe in recipes.LOSSES.items():
        assert type(recipes.loss_block(name)).__name__ == recipe.block


def test_the_table_alone_needs_no_onnx():
    code = (
        "import sys, onnxtrain.losses as l; assert l.LOSSES; "
        "print({'onnx', 'onnx_ir'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("loss", "want"),
    [
        (losses.MSELoss("sum"), lambda d: (d * d).sum()),
        (losses.L1Loss(), lambda d: np.abs(d).mean()),
        (losses.HuberLoss("none"), lambda d: np.where(np.abs(d) < 1, d * d / 2, np.abs(d) - 0.5)),
    ],
)
def test_a_formula_in_a_graph_of_ones_own(loss, want):
    """Without blocks and contexts: on a plain op builder."""
    names = Names(["x", "t"])
    op = OpBuilder(names, Constants(names), 21)
    x, t = (
        ir.Value(name=n, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", 3]))
        for n in ("x", "t")
    )
    result = loss.loss(op, op.tensor(x), op.tensor(t))
    graph = ir.Graph([x, t], [result.value], nodes=[], opset_imports={"": 21}, name="g")
    op.attach(graph)
    a, b = (np.random.default_rng(i).normal(size=(4, 3)).astype(np.float32) for i in range(2))
    (got,) = run(ir.to_proto(ir.Model(graph, ir_version=10)), {"x": a, "t": b})
    np.testing.assert_allclose(got, want(a - b), rtol=1e-5)


def test_an_unknown_loss_is_an_attribute_error():
    with pytest.raises(AttributeError, match="NoLoss"):
        losses.NoLoss  # noqa: B018
