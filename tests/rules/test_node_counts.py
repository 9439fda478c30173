"""How many nodes a gradient takes: networks of hundreds of layers make sessions of them."""

from __future__ import annotations

import onnx.parser
import pytest

import onnxtrain


def nodes_after(shapes: str, body: str, wrt: list[str], constants: str = "") -> int:
    stored = f"<{constants}>" if constants else ""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g ({shapes}) => (float loss) {stored} {{ {body} loss = ReduceSum<keepdims = 0>(t) }}""")
    return len(onnxtrain.differentiate(model, wrt=wrt, of="loss").graph.node)


def depthwise(kernel: int, batch: str) -> int:
    pads = [kernel // 2] * 4
    image = f"float[{batch}, 24, 20, 20]"
    return nodes_after(
        f"{image} x, float[24, 1, {kernel}, {kernel}] k, float[24] b, {image} w",
        f"y = Conv<group = 24, pads = {pads}>(x, k, b) t = Mul(y, w)",
        ["x", "k", "b"],
    )


@pytest.mark.parametrize("batch", ["2", "N"])
def test_a_depthwise_convolution_does_not_grow_with_its_kernel(batch: str) -> None:
    """A form with a node per position of the kernel had hundreds."""
    nodes = max(depthwise(kernel, batch) for kernel in (3, 7, 11))
    assert nodes <= 25  # with an open batch the sum that is differentiated is two nodes


@pytest.mark.parametrize(
    ("channels", "kernel", "stride"), [(1, 400, 160), (8, 101, 1), (8, 400, 160)]
)
@pytest.mark.parametrize("length", ["3200", "L"])
def test_a_long_kernel_of_a_sound(channels: int, kernel: int, stride: int, length: str) -> None:
    """Spectrograms that are convolutions had a thousand nodes, one per position of the kernel."""
    count = nodes_after(
        f"float[N, {channels}, {length}] x, float[16, {channels}, {kernel}] k, float[1, 16, 1] w",
        f"y = Conv<strides = [{stride}]>(x, k) m = ReduceMean(y, axes) t = Mul(m, w)",
        ["k"],
        "int64[2] axes = {0, 2}",
    )
    assert count <= 40


def test_a_batch_normalization_in_training_mode() -> None:
    image = "float[2, 3, 8, 8]"
    count = nodes_after(
        f"{image} x, float[3] s, float[3] b, float[3] m, float[3] v, {image} w",
        "y, m2, v2 = BatchNormalization<training_mode = 1>(x, s, b, m, v) t = Mul(y, w)",
        ["x", "s", "b"],
    )
    assert count <= 29


def test_attention_with_a_cache_knows_its_sizes() -> None:
    """Where they are open, every product with the rotary tables asks what was broadcast: 333."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
        g (float[B, S, 96] x, float[B, 2, P, 12] past_k, float[B, 2, P, 12] past_v,
           int32[B] lengths, int32 total, float[64, 6] cos, float[64, 6] sin) => (float loss) {
            y, k, v = com.microsoft.GroupQueryAttention<
                num_heads = 4, kv_num_heads = 2, do_rotary = 1
            >(x, , , past_k, past_v, lengths, total, cos, sin)
            loss = ReduceSum<keepdims = 0>(y)
        }""")
    assert len(onnxtrain.differentiate(model, wrt=["x"], of="loss").graph.node) <= 150


@pytest.mark.parametrize(
    ("body", "constants", "most"),
    [
        # Nothing is missing behind a slice of all of an axis.
        (
            "y = Slice(x, back, front, axis, back) t = Mul(y, x)",
            "int64[1] back = {-1}, int64[1] front = {-9223372036854775807}, int64[1] axis = {1}",
            9,
        ),
        ("y = Gather<axis = 1>(x, i) t = Mul(y, y)", "int64[3] i = {3, 0, 3}", 8),
        ("y = Gather<axis = 1>(x, i) t = Mul(y, y)", "int64[3] i = {1, 2, 3}", 8),
        (
            "y = Gather<axis = 1>(x, i) p = ReduceProd(y, a) t = Mul(p, p)",
            "int64[2] i = {3, 0}, int64[1] a = {1}",
            11,
        ),
        ("y = ReduceMean(x, a) t = Mul(y, y)", "int64[1] a = {0}", 10),
    ],
)
def test_positions_that_are_known(body: str, constants: str, most: int) -> None:
    assert nodes_after("float[N, 4] x", body, ["x"], constants) <= most


def test_an_embedding_of_a_few_tokens() -> None:
    """Sorting them took 32 nodes, two branches included."""
    count = nodes_after(
        "float[100, 16] x, int64[2, 8] i, float[2, 8, 16] w",
        "y = Gather(x, i) t = Mul(y, w)",
        ["x"],
    )
    assert count <= 11
