"""onnxruntime's contrib operators against their lowering, both on onnxruntime."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxtrain
from onnxtrain.compile import weights_of
from onnxtrain.errors import ModelError
from onnxtrain.normalize import few_bits as few_bits_module

from .compare import assert_same, normalized, op_model, operators, run_ort

RNG = np.random.default_rng(1)
MS = "com.microsoft"


def f(*shape: int, low: float = -1, high: float = 1) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


def ints(*shape: int, high: int = 4) -> np.ndarray:
    return RNG.integers(0, high, shape).astype(np.int64)


@dataclasses.dataclass
class Contrib:
    op: str
    inputs: tuple
    attrs: dict
    outputs: int = 1
    constants: tuple = ()
    domain: str = MS
    dynamic: bool = True
    label: str = ""
    keep: tuple = (0,)

    @property
    def id(self) -> str:
        attrs = ",".join(f"{k}={v}" for k, v in self.attrs.items()).replace(" ", "")
        shapes = ",".join("-" if a is None else "x".join(map(str, a.shape)) for a in self.inputs)
        return f"{self.op}({shapes};{attrs}){self.label}"


def contrib(op: str, *inputs: Any, **kw: Any) -> Contrib:
    options = {k[1:]: kw.pop(k) for k in list(kw) if k.startswith("_")}
    return Contrib(op, inputs, kw, **options)


B, S, H, N = 2, 5, 8, 2
HIDDEN = f(B, S, H)
CONV = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
IDS = np.arange(S, dtype=np.int64)[None].repeat(B, 0)
MASK2 = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
LENGTHS = np.array([3, 5], np.int32)
PAST = f(2, B, N, 3, 4)
KV = (f(B, 4, H), f(B, 4, H))


def packed(n: int, k: int, block: int, bits: int) -> tuple[np.ndarray, ...]:
    blocks = -(-k // block)
    return (
        RNG.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8),
        f(n * blocks, low=0.1),
        RNG.integers(0, 256, n * -(-blocks * bits // 8)).astype(np.uint8),
    )


B4, S4, Z4 = packed(6, 32, 16, 4)
B8, S8, Z8 = packed(6, 32, 16, 8)


def bytes_of(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def experts(inner: int, first: int, last: bool = True) -> tuple:
    """Tokens, scores, and four experts' two layers."""
    return (f(2, 3, 8), f(6, 4, low=-3, high=3), f(4, first, 8), f(4, first), f(4, 8, inner),
            f(4, 8) if last else None)  # fmt: skip


def few_bits(bits: int, block: int) -> tuple:
    """Tokens, scores, and four experts with integer weights: (…, 32) to 32 to (…, 32)."""
    scale = (32 // block,) if block else ()
    pack = 8 // bits
    return (f(6, 32), f(6, 4, low=-3, high=3), bytes_of(4, 64, 32 // pack),
            f(4, 64, *scale, low=0.01, high=0.05), f(4, 64), bytes_of(4, 32, 32 // pack),
            f(4, 32, *scale, low=0.01, high=0.05), f(4, 32))  # fmt: skip


GLU = {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 2}
GROUPS = {"num_heads": 4, "kv_num_heads": 2}
PROMPT = (f(B, S, 32), f(B, S, 16), f(B, S, 16), None, None, np.full(B, S - 1, np.int32),
          np.array(S, np.int32), None, None, None)  # fmt: skip

CASES = [
    contrib("Gelu", f(2, 3, low=-3, high=3)),
    contrib("FastGelu", f(2, 3, low=-3, high=3)),
    contrib("FastGelu", f(2, 3), f(3)),
    contrib("QuickGelu", f(2, 3)),
    contrib("QuickGelu", f(2, 3), alpha=1.0),
    contrib("BiasGelu", f(2, 3), f(3)),
    contrib("FusedMatMul", f(2, 3), f(3, 4), alpha=0.5),
    contrib("FusedMatMul", f(3, 2), f(3, 4), transA=1),
    contrib("FusedMatMul", f(5, 2, 3), f(5, 4, 3), transB=1),
    contrib("FusedMatMul", f(3, 2), f(4, 3), transA=1, transB=1, alpha=2.0),
    contrib("FusedMatMul", f(2, 5, 3), f(5, 3, 4), transBatchA=1),
    contrib("FusedMatMul", f(3, 5, 2), f(3, 5, 4), transA=1, transBatchA=1, transBatchB=1),
    contrib("TransposeMatMul", f(3, 2), f(3, 4), transA=1),
    contrib("FusedGemm", f(2, 3), f(3, 4), f(4), activation="Relu"),
    contrib("FusedGemm", f(2, 3), f(4, 3), f(4), activation="LeakyRelu", activation_alpha=0.2,
            transB=1),
    contrib("FusedConv", f(1, 2, 5, 5), f(3, 2, 3, 3), f(3), activation="Relu", **CONV),
    contrib("FusedConv", f(1, 2, 5, 5), f(3, 2, 3, 3), activation="Tanh", **CONV),
    contrib("FusedConv", f(1, 2, 5, 5), f(3, 2, 3, 3), f(3), activation="LeakyRelu",
            activation_params=[0.3], **CONV),
    contrib("FusedConv", f(1, 2, 5, 5), f(3, 2, 3, 3), f(3), activation="Clip",
            activation_params=[-0.1, 0.4], **CONV),
    contrib("FusedConv", f(1, 2, 5, 5), f(3, 2, 3, 3), f(3), activation="HardSigmoid",
            activation_params=[0.3, 0.4], **CONV),
    contrib("FusedConv", f(1, 2, 5, 5), f(3, 2, 3, 3), f(3), f(1, 3, 5, 5), activation="Relu",
            **CONV),
    contrib("SkipLayerNormalization", HIDDEN, f(B, S, H), f(H), f(H), epsilon=1e-5),
    contrib("SkipLayerNormalization", HIDDEN, f(B, S, H), f(H), f(H), f(H), _outputs=4,
            _keep=(0, 3)),
    contrib("SkipLayerNormalization", HIDDEN, f(B, S, H), f(H)),
    contrib("SkipSimplifiedLayerNormalization", HIDDEN, f(B, S, H), f(H), _outputs=4,
            _keep=(0, 3), epsilon=1e-6),
    contrib("SkipSimplifiedLayerNormalization", HIDDEN, f(B, S, H), f(H), f(H)),
    contrib("SimplifiedLayerNormalization", HIDDEN, f(H), _domain="", axis=-1),
    contrib("EmbedLayerNormalization", ints(B, S).astype(np.int32), ints(B, S, high=2).astype(
            np.int32), f(4, H), f(8, H), f(2, H), f(H), f(H), MASK2, _outputs=2, _keep=(0, 1),
            _dynamic=False),
    contrib("EmbedLayerNormalization", ints(B, S).astype(np.int32), None, f(4, H), f(8, H), None,
            f(H), f(H), _outputs=2, _dynamic=False),
    contrib("Attention", HIDDEN, f(H, 3 * H), f(3 * H), num_heads=N),
    contrib("Attention", HIDDEN, f(H, 3 * H), f(3 * H), LENGTHS, num_heads=N, _label="lengths"),
    contrib("Attention", HIDDEN, f(H, 3 * H), f(3 * H), MASK2, num_heads=N, _label="mask2"),
    contrib("Attention", HIDDEN, f(H, 3 * H), f(3 * H), np.tril(np.ones((B, S, S), np.int32)),
            num_heads=N, _label="mask3"),
    contrib("Attention", HIDDEN, f(H, 3 * H), f(3 * H), num_heads=N, unidirectional=1),
    contrib("Attention", HIDDEN, f(H, 3 * H), f(3 * H), None, PAST, num_heads=N,
            unidirectional=1, _outputs=2, _keep=(0, 1)),
    contrib("Attention", HIDDEN, f(H, 3 * H), f(3 * H), None, None, f(B, N, S, S), num_heads=N),
    contrib("Attention", HIDDEN, f(H, 3 * H), f(3 * H), num_heads=N, scale=0.7),
    contrib("Attention", HIDDEN, f(H, 2 * H + 4), f(2 * H + 4), num_heads=N,
            qkv_hidden_sizes=[H, H, 4]),
    contrib("MultiHeadAttention", HIDDEN, f(B, S, H), f(B, S, H), num_heads=N),
    contrib("MultiHeadAttention", HIDDEN, *KV, num_heads=N),
    contrib("MultiHeadAttention", HIDDEN, *KV, f(3 * H), num_heads=N, scale=0.5),
    contrib("MultiHeadAttention", HIDDEN, *KV, None, np.array([[1, 1, 0, 0], [1, 1, 1, 1]],
            np.int32), num_heads=N),
    contrib("MultiHeadAttention", HIDDEN, *KV, None, None, f(1, N, S, 4), num_heads=N),
    contrib("MultiHeadAttention", HIDDEN, f(B, S, H), f(B, S, H), num_heads=N,
            unidirectional=1, _label="causal"),
    contrib("MultiHeadAttention", HIDDEN, f(B, S, H), f(B, S, H), None, None, None,
            f(B, N, 3, 4), f(B, N, 3, 4), num_heads=N, _outputs=3, _keep=(0, 1, 2)),
    contrib("MultiHeadAttention", HIDDEN, f(B, N, 4, 4), f(B, N, 4, 4), num_heads=N),
    contrib("GroupQueryAttention", f(B, S, 32), f(B, S, 16), f(B, S, 16), None, None,
            np.full(B, S - 1, np.int32), np.array(S, np.int32), num_heads=4, kv_num_heads=2,
            _outputs=3, _keep=(0, 1, 2)),
    contrib("GroupQueryAttention", f(B, S, 64), f(B, S, 32), f(B, S, 32), None, None,
            np.full(B, S - 1, np.int32), np.array(S, np.int32), f(9, 8), f(9, 8), num_heads=4,
            kv_num_heads=2, do_rotary=1, softcap=5.0, scale=0.3, _outputs=3),
    contrib("GroupQueryAttention", f(B, S, 64), f(B, S, 32), f(B, S, 32), None, None,
            np.full(B, S - 1, np.int32), np.array(S, np.int32), num_heads=4,
            kv_num_heads=2, local_window_size=2, _outputs=3, _label="window"),
    contrib("GroupQueryAttention", f(1, 1, 64), f(1, 1, 32), f(1, 1, 32), f(1, 2, 3, 16),
            f(1, 2, 3, 16), np.full(1, 3, np.int32), np.array(4, np.int32), f(9, 8), f(9, 8),
            num_heads=4, kv_num_heads=2, do_rotary=1, _outputs=3, _keep=(0, 1, 2),
            _label="past"),
    # rows of unequal length, one token more each; several tokens; a prompt that ignores the cache
    *(
        contrib("GroupQueryAttention", f(b, new, 64), f(b, new, 32), f(b, new, 32),
                f(b, 2, room, 16), f(b, 2, room, 16), np.array(lengths, np.int32) - 1,
                np.array(total, np.int32), f(9, 8), f(9, 8), num_heads=4, kv_num_heads=2,
                _outputs=3, _label=f"{label} {attributes}", **attributes)
        for label, b, new, room, lengths, total in (
            ("token", 3, 1, 4, [2, 5, 3], 5), ("roomy", 3, 1, 7, [2, 5, 3], 5),
            ("tokens", 1, 2, 4, [6], 6), ("prompt", 3, 4, 6, [4, 4, 4], 4),
        )
        for attributes in ({}, {"do_rotary": 1}, {"local_window_size": 2})
    ),
    contrib("GroupQueryAttention", *PROMPT, None, f(4), _outputs=3, _label="sink", **GROUPS),
    contrib("GroupQueryAttention", *PROMPT, f(B, 1, S, S), _outputs=3, _label="bias", **GROUPS),
    contrib("GroupQueryAttention", *PROMPT, _outputs=3, smooth_softmax=1, **GROUPS),
    contrib("GroupQueryAttention", *PROMPT, _outputs=3, causal=0, **GROUPS),
    contrib("CausalConvWithState", f(2, 3, 5), f(3, 1, 4), _outputs=2, _keep=(0, 1),
            _constants=(1,)),
    contrib("CausalConvWithState", f(2, 3, 5), f(3, 1, 4), f(3), f(2, 3, 3), activation="silu",
            _outputs=2, _keep=(0, 1), _constants=(1,)),
    contrib("GatherBlockQuantized", bytes_of(6, 16), ints(2, 3), f(6, 2, low=0.1), bits=4,
            block_size=16, _constants=(0, 2)),
    contrib("GatherBlockQuantized", bytes_of(6, 16), ints(2, 3), f(6, 2, low=0.1), bytes_of(6, 1),
            bits=4, block_size=16, _constants=(0, 2, 3)),
    contrib("GatherBlockQuantized", bytes_of(6, 32), ints(3), f(6, 2, low=0.1), bits=8,
            block_size=16, _constants=(0, 2)),
    contrib("MoE", *experts(5, 5), k=1, activation_type="relu", _constants=(2, 3, 4, 5)),
    contrib("MoE", *experts(5, 5), k=2, activation_type="silu", normalize_routing_weights=1,
            _constants=(2, 3, 4, 5)),
    contrib("MoE", *experts(5, 5, False), k=3, activation_type="gelu", _constants=(2, 3, 4)),
    contrib("MoE", *experts(5, 10), activation_alpha=1.702, activation_beta=1.0, swiglu_limit=0.7,
            _constants=(2, 3, 4, 5), **GLU),
    contrib("QMoE", *few_bits(4, 0), expert_weight_bits=4, _constants=(2, 3, 4, 5, 6, 7), **GLU),
    contrib("QMoE", *few_bits(8, 0), expert_weight_bits=8, _constants=(2, 3, 4, 5, 6, 7), **GLU),
    contrib("QMoE", *few_bits(4, 32), expert_weight_bits=4, block_size=32,
            _constants=(2, 3, 4, 5, 6, 7), **GLU),
    contrib("RotaryEmbedding", f(B, N, S, 4), IDS, f(9, 2), f(9, 2)),
    contrib("RotaryEmbedding", f(B, N, S, 4), IDS, f(9, 2), f(9, 2), interleaved=1),
    contrib("RotaryEmbedding", HIDDEN, IDS, f(9, 2), f(9, 2), num_heads=2, _label="3d"),
    contrib("RotaryEmbedding", HIDDEN, np.array([2]), f(9, 4), f(9, 4), _label="offset",
            _dynamic=False),
    contrib("RotaryEmbedding", f(B, N, S, 8), IDS, f(9, 2), f(9, 2), num_heads=N,
            rotary_embedding_dim=4),
    contrib("MatMulNBits", f(3, 32), B4, S4, K=32, N=6, bits=4, block_size=16,
            _constants=(1, 2)),
    contrib("MatMulNBits", f(2, 3, 32), B4, S4, Z4, K=32, N=6, bits=4, block_size=16,
            _constants=(1, 2, 3)),
    contrib("MatMulNBits", f(3, 32), B4, S4, None, None, f(6), K=32, N=6, bits=4, block_size=16,
            _constants=(1, 2, 5)),
    contrib("MatMulNBits", f(3, 30), *packed(6, 30, 16, 4)[:2], K=30, N=6, bits=4, block_size=16,
            _constants=(1, 2)),
    contrib("MatMulNBits", f(3, 32), B8, S8, Z8, K=32, N=6, bits=8, block_size=16,
            _constants=(1, 2, 3)),
    contrib("Trilu", f(4, 4), np.array(1), upper=0),
    contrib("GatherND", f(3, 4), ints(2, 1, high=3)),
]  # fmt: skip


def contrib_model(case: Contrib, dynamic: bool, opset: int = 18) -> tuple[onnx.ModelProto, dict]:
    model, feeds = op_model(
        case.op, list(case.inputs), opset=opset, outputs=case.outputs, domain=case.domain,
        constants=case.constants, dynamic=dynamic, output_types=(1,) * case.outputs,
        imports={MS: 1}, **case.attrs,
    )  # fmt: skip
    types = {"EmbedLayerNormalization": (1, TensorProto.INT32)}.get(case.op, (1,) * 9)
    for i, output in enumerate(model.graph.output):
        output.type.tensor_type.elem_type = types[i]
    kept = [model.graph.output[i] for i in case.keep]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    for i in range(case.outputs):
        if i not in case.keep and case.op.startswith("Skip"):
            model.graph.node[0].output[i] = ""
    return model, feeds


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES, ids=[c.id for c in CASES])
def test_same_as_the_contrib_operator(case: Contrib, dynamic: bool) -> None:
    model, feeds = contrib_model(case, dynamic and case.dynamic)
    after = normalized(model)
    assert not any(o.startswith(MS) for o in operators(after))
    assert_same(model, after, feeds, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("inner", "shape"), [(1, (2, 1, 1, 5)), (0, (4, 5))])
def test_bias_softmax(inner: int, shape: tuple[int, ...]) -> None:
    """There is no CPU kernel to compare with."""
    x, bias = f(2, 3, 4, 5), f(*shape)
    model, feeds = op_model(
        "BiasSoftmax", [x, bias], opset=18, domain=MS, output_types=(1,), axis=3,
        is_inner_broadcast=inner,
    )  # fmt: skip
    (y,) = run_ort(normalized(model), feeds)
    expected = np.exp(x + bias) / np.exp(x + bias).sum(-1, keepdims=True)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_a_chain_in_an_old_opset() -> None:
    """Types and ranks must get past operators that onnx does not know."""
    names = iter(range(100))
    weights = {"w": f(8, 8), "gamma": f(8), "beta": f(8), "qkv": f(8, 24), "b": f(24)}

    def node(op: str, *inputs: str, domain: str = MS, **attrs: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [f"v{next(names)}"], domain=domain, name=op, **attrs)

    nodes = [node("Attention", "x", "qkv", "b", num_heads=2)]
    nodes.append(
        node("SkipLayerNormalization", nodes[-1].output[0], "x", "gamma", "beta", epsilon=1e-5)
    )
    nodes.append(node("FusedMatMul", nodes[-1].output[0], "w", transB=1))
    nodes.append(node("Softmax", nodes[-1].output[0], domain="", axis=2))
    nodes.append(node("FastGelu", nodes[-1].output[0]))
    nodes.append(node("ReduceMean", nodes[-1].output[0], domain="", axes=[1], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["batch", "length", 8])],
        [helper.make_tensor_value_info(nodes[-1].output[0], 1, None)],
        [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    opsets = [helper.make_opsetid("", 12), helper.make_opsetid(MS, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=7)
    after = normalized(model)
    assert_same(model, after, {"x": f(2, 5, 8)}, rtol=1e-4, atol=1e-5)
    assert [t.name for t in after.graph.initializer][:5] == list(weights)


def test_half_precision_stays_half_precision() -> None:
    x, skip, gamma = (a.astype(np.float16) for a in (f(2, 3, 8), f(2, 3, 8), f(8)))
    model, feeds = op_model(
        "SkipLayerNormalization", [x, skip, gamma], opset=17, domain=MS, output_types=(10,)
    )
    after = normalized(model)
    (y,) = run_ort(after, feeds)
    assert y.dtype == np.float16
    assert_same(model, after, feeds, rtol=5e-3, atol=5e-3)


def test_gradient_of_a_quantized_product_flows_to_the_activation() -> None:
    case = next(c for c in CASES if c.op == "MatMulNBits")
    model, feeds = contrib_model(case, dynamic=False)
    gradient = onnxtrain.differentiate(model, wrt=["x0"], of="y0", vjp=True)
    seed = f(3, 6)
    weight = run_ort(model, {"x0": np.eye(32, dtype=np.float32)[:3]})[0]
    dx = run_ort(gradient, {**feeds, "y0_grad": seed})[-1]
    np.testing.assert_allclose(dx[:, :3], seed @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", [c for c in CASES if c.op == "MatMulNBits"], ids=lambda c: c.id)
def test_small_weights_of_a_few_bits_are_floats_at_once(
    case: Contrib, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, feeds = contrib_model(case, dynamic=False)
    small = normalized(model)
    assert operators(small) <= {"Add", "MatMul"}
    monkeypatch.setattr(few_bits_module, "SMALL_BYTES", 0)
    stored = normalized(model)
    assert "Reshape" in operators(stored)
    for after in (small, stored):
        assert_same(model, after, feeds, rtol=1e-4, atol=1e-4)


def test_scales_of_a_few_bits_are_trained_when_they_are_named() -> None:
    case = next(c for c in CASES if c.op == "MatMulNBits")
    model, feeds = contrib_model(case, dynamic=False)
    (scales,) = (i.name for i in model.graph.initializer if i.data_type == TensorProto.FLOAT)
    assert weights_of(model, ["y0"]) == []
    gradient = onnxtrain.differentiate(model, wrt=[scales], of="y0", vjp=True)
    (dscales,) = run_ort(gradient, {**feeds, "y0_grad": f(3, 6)})[1:]
    assert dscales.any()


def test_an_attribute_that_is_not_understood_is_an_error() -> None:
    model, _ = op_model("Gelu", [f(2)], opset=18, domain=MS, output_types=(1,), surprise=1)
    with pytest.raises(ModelError, match="'surprise'"):
        normalized(model)


def test_blocked_layouts_are_refused_with_a_hint() -> None:
    model, _ = op_model(
        "Conv", [f(1, 8, 4, 4), f(8, 8, 1, 1)], opset=18, domain="com.microsoft.nchwc"
    )
    with pytest.raises(ModelError, match="ORT_ENABLE_EXTENDED"):
        normalized(model)


def test_unknown_custom_operators_stay() -> None:
    model, _ = op_model("Mystery", [f(2)], opset=18, domain="my.domain", output_types=(1,))
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 2
    assert operators(normalized(model)) == {"my.domain.Mystery"}


def test_a_cache_whose_rows_have_unequal_lengths() -> None:
    """New keys go behind each row's own; the gradient reaches what a row really has."""
    lengths, room = np.array([2, 5, 3]), 4
    given = [f(3, 1, 16), f(3, 1, 8), f(3, 1, 8), f(3, 2, room, 4), f(3, 2, room, 4)]
    model, feeds = op_model(
        "GroupQueryAttention", [*given, (lengths - 1).astype(np.int32), np.array(5, np.int32)],
        opset=18, outputs=3, domain=MS, output_types=(1, 1, 1), imports={MS: 1}, num_heads=4,
        kv_num_heads=2,
    )  # fmt: skip
    _, keys, _ = run_ort(normalized(model), feeds)
    for row, length in enumerate(lengths):
        new = given[1][row].reshape(1, 2, 4).transpose(1, 0, 2)
        expected = np.concatenate([given[3][row, :, : length - 1], new], axis=1)
        np.testing.assert_array_equal(keys[row, :, :length], expected)
    names = [i.name for i in model.graph.input][:5]
    report = onnxtrain.check_gradient(model, wrt=names, inputs=feeds)
    report.raise_if_wrong()
    gradient = onnxtrain.differentiate(model, wrt=names, of=model.graph.output[0].name, vjp=True)
    seed = {f"{model.graph.output[0].name}_grad": f(3, 1, 16)}
    past = run_ort(gradient, {**feeds, **seed})[-2]
    assert [bool(past[0, :, j].any()) for j in range(room)] == [True, False, False, False]
