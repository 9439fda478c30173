"""A transformer that reads bytes, as an ONNX graph in ONNX's own text form, with random weights."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

START = """
<ir_version: 8, opset_import: ["": 17]>
bytes (int64[batch, length] input_ids) => (float[batch, length, 256] logits)
<int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, float hidden = {{-1e9}},
 int64[4] split = {{0, 0, {heads}, {each}}}, int64[3] joined = {{0, 0, {size}}},
 float scale = {{{scale}}}> {{
    shape = Shape (input_ids)
    length = Slice (shape, one, two)
    places = Slice (position, zero, length, zero)
    letters = Gather (embedding, input_ids)
    h0 = Add (letters, places)
    square = Concat <axis = 0> (length, length)
    all = ConstantOfShape <value = float[1] {{1}}> (square)
    past = Trilu <upper = 0> (all)
    future = Sub (all, past)
    mask = Mul (future, hidden)
"""
LAYER = """
    n{i} = LayerNormalization <axis = -1> (h{i}, norm1_{i}, shift1_{i})
    q{i} = MatMul (n{i}, q_proj_{i})
    k{i} = MatMul (n{i}, k_proj_{i})
    v{i} = MatMul (n{i}, v_proj_{i})
    qs{i} = Reshape (q{i}, split)
    ks{i} = Reshape (k{i}, split)
    vs{i} = Reshape (v{i}, split)
    qt{i} = Transpose <perm = [0, 2, 1, 3]> (qs{i})
    kt{i} = Transpose <perm = [0, 2, 3, 1]> (ks{i})
    vt{i} = Transpose <perm = [0, 2, 1, 3]> (vs{i})
    qk{i} = MatMul (qt{i}, kt{i})
    scaled{i} = Mul (qk{i}, scale)
    masked{i} = Add (scaled{i}, mask)
    attention{i} = Softmax <axis = -1> (masked{i})
    read{i} = MatMul (attention{i}, vt{i})
    rows{i} = Transpose <perm = [0, 2, 1, 3]> (read{i})
    heads{i} = Reshape (rows{i}, joined)
    o{i} = MatMul (heads{i}, o_proj_{i})
    a{i} = Add (h{i}, o{i})
    m{i} = LayerNormalization <axis = -1> (a{i}, norm2_{i}, shift2_{i})
    up{i} = MatMul (m{i}, up_proj_{i})
    active{i} = Relu (up{i})
    down{i} = MatMul (active{i}, down_proj_{i})
    h{next} = Add (a{i}, down{i})
"""
END = """
    last = LayerNormalization <axis = -1> (h{layers}, norm, shift)
    logits = MatMul (last, head)
}}
"""


def byte_transformer(
    size: int, layers: int, context: int, heads: int = 8, seed: int = 0
) -> onnx.ModelProto:
    """``input_ids`` [batch, length], bytes, to ``logits`` [batch, length, 256].

    Args:
        size: of the hidden states.
        layers: of attention and feed-forward.
        context: the longest text.
        heads: of the attention.
        seed: of the weights.
    """
    sizes = {"heads": heads, "each": size // heads, "size": size, "scale": (size // heads) ** -0.5}
    text = START.format(**sizes)
    text += "".join(LAYER.format(i=i, next=i + 1) for i in range(layers))
    model = onnx.parser.parse_model(text + END.format(layers=layers))
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> None:
        value = rng.normal(0, 0.02, shape)
        if len(shape) == 1:
            value = np.full(shape, float(name.startswith("norm")))
        tensor = onnx.numpy_helper.from_array(value.astype(np.float32), name)
        model.graph.initializer.append(tensor)

    weight("embedding", 256, size)
    weight("position", context, size)
    for i in range(layers):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weight(f"{name}_{i}", size, size)
        weight(f"up_proj_{i}", size, 4 * size)
        weight(f"down_proj_{i}", 4 * size, size)
        for name in ("norm1", "shift1", "norm2", "shift2"):
            weight(f"{name}_{i}", size)
    weight("norm", size)
    weight("shift", size)
    weight("head", size, 256)
    onnx.checker.check_model(model, full_check=True)
    return model
