"""What onnxruntime is spared while it creates a session, and what must not be lost by that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import onnxtrain
from onnxtrain.operators import IDLE_OPTIMIZERS
from onnxtrain.passes.idle import DUPLICATES, FOLDING, TRANSPOSING
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.session import cutting
from onnxtrain.runtime.session.devices import create_session, session_options
from onnxtrain.runtime.session.optimizers import NEEDS, OF_OTHER_DEVICES, SHARING
from onnxtrain.runtime.session.optimizers import idle_optimizers as idle_of

HEAD = '<ir_version: 9, opset_import: ["" : 18, "local" : 1]>'

PATTERNS = {
    "gelu": (
        "d = Div(x, r) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)",
        "Gelu",
    ),
    "layer norm": (
        """u = ReduceMean<keepdims = 1>(x, last) c = Sub(x, u) p = Pow(c, two)
        v = ReduceMean<keepdims = 1>(p, last) a = Add(v, eps) s = Sqrt(a) n = Div(c, s)
        g = Mul(n, scale) y = Add(g, bias)""",
        "LayerNormalization",
    ),
    "quick gelu": ("k = Mul(x, factor) s = Sigmoid(k) y = Mul(x, s)", "QuickGelu"),
    "transposed product": (
        "t = Transpose<perm = [1, 0]>(x) y = MatMul(t, x)",
        "FusedMatMul",
    ),
    "scaled product": ("m = MatMul(x, w) y = Mul(m, half)", "FusedMatMul"),
    "product with a bias": ("m = MatMul(x, w) y = Add(m, bias)", "Gemm"),
    "activation": (
        "i = Reshape(x, image) c = Conv(i, kernel) f = Relu(c) y = Identity(f)",
        "FusedConv",
    ),
    "quantised": (
        """q = QuantizeLinear(x, step, zero) d = DequantizeLinear(q, step, zero)
        f = DequantizeLinear(codes, step, zero) m = MatMul(d, f)
        o = QuantizeLinear(m, step, zero) y = DequantizeLinear(o, step, zero)""",
        "QLinearMatMul",
    ),
}
"""Bodies, and the operator that onnxruntime makes of each."""

CONSTANTS: dict[str, object] = {
    "r": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5), "two": np.float32(2),
    "eps": np.float32(1e-5), "factor": np.float32(1.702), "last": np.array([-1]),
    "scale": np.ones(8, np.float32), "bias": np.ones(8, np.float32),
    "row": np.ones((1, 8), np.float32), "w": np.ones((8, 8), np.float32),
    "image": np.array([1, 1, 8, 8]), "kernel": np.ones((1, 1, 3, 3), np.float32),
    "step": np.float32(0.1), "zero": np.uint8(128), "codes": np.ones((8, 8), np.uint8),
}  # fmt: skip


def idle_optimizers(content: bytes) -> list[str]:
    return idle_of(Outline.of(content))


def pattern(body: str) -> onnx.ModelProto:
    """A model of x [8, 8] with those constants that its body reads."""
    model = parser.parse_model(f"{HEAD} g (float[8, 8] x) => (y) {{ {body} }}")
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(CONSTANTS[n]), n)
        for n in sorted(read & CONSTANTS.keys())
    )
    return model


@pytest.mark.parametrize("name", PATTERNS)
def test_what_onnxruntime_fuses_it_still_fuses(name: str, tmp_path: Path) -> None:
    body, fused = PATTERNS[name]
    content = pattern(body).SerializeToString()
    target = tmp_path / "optimized.onnx"

    def options() -> onnxruntime.SessionOptions:
        options = session_options(threads=1, weights_change=True)
        options.optimized_model_filepath = str(target)
        return options

    onnxruntime.InferenceSession(content, options(), providers=["CPUExecutionProvider"])
    stock = [node.op_type for node in onnx.load(target).graph.node]
    create_session(content, options())
    assert [node.op_type for node in onnx.load(target).graph.node] == stock
    assert fused in stock
    assert len(idle_optimizers(content)) > 10


def test_optimizers_without_their_operators_are_left_out() -> None:
    idle = idle_optimizers(pattern("y = Add(x, x)").SerializeToString())
    assert set(idle) == {*NEEDS, SHARING, *OF_OTHER_DEVICES}
    with_norm = idle_optimizers(pattern(PATTERNS["layer norm"][0]).SerializeToString())
    assert "LayerNormFusionL1" not in with_norm
    assert "QDQSelectorActionTransformer" in with_norm


@pytest.mark.parametrize(
    ("body", "folds"),
    [
        ("y = MatMul(x, w)", False),  # its gradient reads w transposed
        ("e = Exp(w) y = MatMul(x, e)", True),
        ("y = Mul(x, w)", False),
    ],
)
def test_a_differentiated_model_says_what_is_done(body: str, folds: bool) -> None:
    model = pattern(body)
    assert not {DUPLICATES, FOLDING}.intersection(idle_optimizers(model.SerializeToString()))
    gradients = onnxtrain.differentiate(model, wrt=["x"], of="y", vjp=True)
    idle = idle_optimizers(gradients.SerializeToString())
    assert DUPLICATES in idle
    assert (FOLDING in idle) != folds


@pytest.mark.parametrize(("wrt", "moves"), [("kernel", False), ("x", True)])
def test_a_frozen_network_in_another_layout_has_its_transpositions_moved(
    wrt: str, moves: bool
) -> None:
    model = pattern(
        """i = Reshape(x, image) l = Transpose<perm = [0, 2, 3, 1]>(i) f = Relu(l)
        b = Transpose<perm = [0, 3, 1, 2]>(f) c = Conv(b, kernel) y = Tanh(c)"""
    )
    gradients = onnxtrain.differentiate(model, wrt=[wrt], of="y", vjp=True)
    idle = idle_optimizers(gradients.SerializeToString())
    assert set(TRANSPOSING).isdisjoint(idle) == moves


def test_a_branch_that_reads_constants_is_folded_by_onnxruntime() -> None:
    model = parser.parse_model(
        f"""{HEAD} g (bool b, float[9000] x) => (float[9000] y) {{
            c = If (b) <then_branch = t () => (float[9000] p) {{ p = Exp(k) }},
                        else_branch = e () => (float[9000] q) {{ q = Tanh(x) }}>
            y = Mul(x, c)
        }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(9000, np.float32), "k"))
    gradients = onnxtrain.differentiate(model, wrt=["x"], of="y", vjp=True)
    assert FOLDING not in idle_optimizers(gradients.SerializeToString())


def test_a_model_cannot_say_that_other_optimizers_are_idle() -> None:
    model = pattern(PATTERNS["gelu"][0])
    helper.set_model_props(model, {IDLE_OPTIMIZERS: f"GeluFusionL2;{FOLDING};nonsense"})
    idle = idle_optimizers(model.SerializeToString())
    assert FOLDING in idle
    assert not {"GeluFusionL2", "nonsense"}.intersection(idle)


def test_operators_of_inner_graphs_count() -> None:
    model = parser.parse_model(
        f"""{HEAD} g (bool b, float[2] x) => (float[2] y) {{
            y = If (b) <then_branch = t () => (float[2] p) {{ p = Erf(x) }},
                        else_branch = e () => (float[2] q) {{ q = Tanh(x) }}>
        }}"""
    )
    outline = Outline.of(model.SerializeToString())
    assert outline is not None
    assert outline.operators() >= {"If", "Erf", "Tanh"}
    assert len(outline.nodes) == 1


def test_a_model_with_functions_has_all_optimizers_of_patterns() -> None:
    model = parser.parse_model(
        f"""{HEAD} g (float[2] x) => (float[2] y) {{ y = local.f(x) }}
        <domain: "local", opset_import: ["" : 18]> f (a) => (b) {{ b = Erf(a) }}"""
    )
    assert idle_optimizers(model.SerializeToString()) == sorted([*OF_OTHER_DEVICES, SHARING])


@pytest.mark.parametrize(
    "content", [b"", b"\x3a", b"\x3a\xff\x01", b"\xff" * 40, b"\x3b\x01", b"ORTM"]
)
def test_damaged_bytes_have_no_outline(content: bytes) -> None:
    assert Outline.of(content) is None
    assert idle_optimizers(content) == []


def test_fields_of_all_kinds_are_passed_over() -> None:
    content = pattern("y = Add(x, x)").SerializeToString()
    extra = b"\xd0\x0f\xff\x01" + b"\xd1\x0f" + bytes(8) + b"\xd5\x0f" + bytes(4)  # field 250
    outline = Outline.of(extra + content)
    assert outline is not None
    assert outline.operators() == {"Add"}


def test_a_long_model_is_known_by_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    content = pattern("a = Add(x, x) b = Add(a, x) y = Add(b, w)").SerializeToString()
    monkeypatch.setattr(cutting, "MANY_NODES", 3)
    assert not cutting.may_be_long(Outline.of(content))
    monkeypatch.setattr(cutting, "MANY_NODES", 2)
    assert cutting.may_be_long(Outline.of(content))


def test_a_user_may_have_buffers_planned() -> None:
    options = onnxruntime.SessionOptions()
    assert options.enable_mem_reuse  # what onnxruntime does by itself
    assert not session_options().enable_mem_reuse
    assert not session_options(options).enable_mem_reuse
