"""The workloads' models in plain `jax.numpy`, with the weights of the torch modules.

A model is a function of the parameters (a dictionary with the names of torch's `state_dict`), the
input and a random key (for dropout), and returns the output. Layouts are torch's.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Params = dict[str, Any]


def dense(p: Params, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def conv(p: Params, name: str, x: Any, stride: int = 1, pad: int = 0) -> Any:
    y = lax.conv_general_dilated(
        x, p[f"{name}.weight"], (stride, stride), [(pad, pad)] * 2,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
    )  # fmt: skip
    bias = p.get(f"{name}.bias")
    return y if bias is None else y + bias[:, None, None]


def max_pool(x: Any, size: int, stride: int, pad: int = 0) -> Any:
    window, strides = (1, 1, size, size), (1, 1, stride, stride)
    padding = [(0, 0), (0, 0), (pad, pad), (pad, pad)]
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)


def batch_norm(p: Params, name: str, x: Any) -> Any:
    """In training mode; the running statistics, which the loss does not depend on, are left out."""
    mean = x.mean((0, 2, 3), keepdims=True)
    scaled = (x - mean) * lax.rsqrt(x.var((0, 2, 3), keepdims=True) + 1e-5)
    return scaled * p[f"{name}.weight"][:, None, None] + p[f"{name}.bias"][:, None, None]


def frozen_batch_norm(p: Params, name: str, x: Any) -> Any:
    scale = p[f"{name}.weight"] * lax.rsqrt(p[f"{name}.running_var"] + 1e-5)
    shift = p[f"{name}.bias"] - p[f"{name}.running_mean"] * scale
    return x * scale[:, None, None] + shift[:, None, None]


def layer_norm(p: Params, name: str, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    scaled = (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def dropout(x: Any, key: Any, rate: float = 0.2) -> Any:
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0.0)


# --- models ------------------------------------------------------------------------------------


def mlp(p: Params, x: Any, key: Any) -> Any:
    layers = sorted({int(name.split(".")[0]) for name in p})
    for layer in layers[:-1]:
        x = jax.nn.relu(dense(p, str(layer), x))
    return dense(p, str(layers[-1]), x)


def cnn(p: Params, x: Any, key: Any) -> Any:
    x = max_pool(jax.nn.relu(conv(p, "conv1", x)), 2, 2)
    x = max_pool(jax.nn.relu(conv(p, "conv2", x)), 2, 2)
    return dense(p, "fc2", jax.nn.relu(dense(p, "fc1", x.reshape(len(x), -1))))


def transformer_lm(p: Params, tokens: Any, key: Any) -> Any:
    """As `torch_models.TransformerLM`: post-norm layers, (length, batch, width), causal mask."""
    width, heads, layers = p["encoder.weight"].shape[1], 2, 2
    keys = iter(jax.random.split(key, 1 + 4 * layers))
    x = p["encoder.weight"][tokens] * math.sqrt(width) + p["positions"]
    x = dropout(x, next(keys))
    for i in range(layers):
        name = f"transformer_encoder.layers.{i}"
        x = layer_norm(p, f"{name}.norm1", x + _attention(p, name, x, heads, keys))
        h = dropout(jax.nn.relu(dense(p, f"{name}.linear1", x)), next(keys))
        x = layer_norm(p, f"{name}.norm2", x + dropout(dense(p, f"{name}.linear2", h), next(keys)))
    return dense(p, "decoder", x).reshape(-1, len(p["encoder.weight"]))


def _attention(p: Params, name: str, x: Any, heads: int, keys: Any) -> Any:
    length, batch, width = x.shape
    projected = x @ p[f"{name}.self_attn.in_proj_weight"].T + p[f"{name}.self_attn.in_proj_bias"]
    q, k, v = (t.reshape(length, batch, heads, -1) for t in jnp.split(projected, 3, -1))
    scores = jnp.einsum("ibhd,jbhd->bhij", q, k) / math.sqrt(width // heads) + p["mask"]
    weights = dropout(jax.nn.softmax(scores), next(keys))
    mixed = jnp.einsum("bhij,jbhd->ibhd", weights, v).reshape(length, batch, width)
    return dropout(dense(p, f"{name}.self_attn.out_proj", mixed), next(keys))


def encoder(p: Params, tokens: Any, key: Any) -> Any:
    return dense(p, "head", encoded(p, tokens)[:, 0])


def token_encoder(p: Params, tokens: Any, key: Any) -> Any:
    return dense(p, "head", encoded(p, tokens)).reshape(tokens.size, -1)


def encoded(p: Params, tokens: Any, heads: int = 4) -> Any:
    """Post-norm blocks over tokens: all positions."""
    batch, length = tokens.shape
    x = layer_norm(p, "norm", p["embed.weight"][tokens] + p["position"][:, :length])
    for name in blocks(p):
        q, k, v = (dense(p, f"{name}.{c}", x).reshape(batch, length, heads, -1) for c in "qkv")
        x = layer_norm(p, f"{name}.norm1", x + dense(p, f"{name}.o", attention(q, k, v)))
        h = jax.nn.gelu(dense(p, f"{name}.up", x), approximate=False)
        x = layer_norm(p, f"{name}.norm2", x + dense(p, f"{name}.down", h))
    return x


def blocks(p: Params) -> list[str]:
    """The names of the transformer's blocks."""
    count = 1 + max(int(name.split(".")[1]) for name in p if name.startswith("blocks."))
    return [f"blocks.{i}" for i in range(count)]


def attention(q: Any, k: Any, v: Any, mask: Any = 0.0) -> Any:
    """Heads in the third axis; the result has them side by side again."""
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1]) + mask
    return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(scores), v).reshape(*q.shape[:2], -1)


def pre_norm(p: Params, name: str, x: Any, heads: int, tanh: bool, mask: Any = 0.0) -> Any:
    """The block of GPT-2 and ViT."""
    projected = dense(p, f"{name}.qkv", layer_norm(p, f"{name}.norm1", x))
    q, k, v = (t.reshape(*x.shape[:2], heads, -1) for t in jnp.split(projected, 3, -1))
    x = x + dense(p, f"{name}.out", attention(q, k, v, mask))
    h = jax.nn.gelu(dense(p, f"{name}.up", layer_norm(p, f"{name}.norm2", x)), approximate=tanh)
    return x + dense(p, f"{name}.down", h)


def gpt2(p: Params, tokens: Any, key: Any) -> Any:
    x = p["embed.weight"][tokens] + p["position.weight"][p["places"]]
    for name in blocks(p):
        x = pre_norm(p, name, x, 12, True, p["mask"])
    return (layer_norm(p, "norm", x) @ p["embed.weight"].T).reshape(tokens.size, -1)


def vit(p: Params, images: Any, key: Any) -> Any:
    x = conv(p, "patches", images, p["patches.weight"].shape[-1])
    x = x.reshape(*x.shape[:2], -1).transpose(0, 2, 1)
    first = jnp.broadcast_to(p["token"], (len(x), 1, x.shape[-1]))
    x = jnp.concatenate([first, x], 1) + p["position"]
    for name in blocks(p):
        x = pre_norm(p, name, x, 3, False)
    return dense(p, "head", layer_norm(p, "norm", x)[:, 0])


def llama(p: Params, tokens: Any, key: Any, heads: int = 8, groups: int = 2) -> Any:
    def linear(name: str, x: Any) -> Any:
        return x @ p[f"{name}.weight"].T

    def rms_norm(name: str, x: Any) -> Any:
        tiny = jnp.finfo(x.dtype).eps
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + tiny) * p[f"{name}.weight"]

    def rotated(x: Any) -> Any:
        a, b = jnp.split(x, 2, -1)
        cos, sin = (p[table][:, None] for table in ("cos", "sin"))
        return x * cos + jnp.concatenate([-b, a], -1) * sin

    x = p["embed.weight"][tokens]
    for name in blocks(p):
        h = rms_norm(f"{name}.norm1", x)
        q, k, v = (
            linear(f"{name}.{c}", h).reshape(*x.shape[:2], n, -1)
            for c, n in (("q", heads), ("k", groups), ("v", groups))
        )
        q, k = rotated(q), rotated(k)
        k, v = (jnp.repeat(t, heads // groups, 2) for t in (k, v))
        x = x + linear(f"{name}.o", attention(q, k, v, p["mask"]))
        h = rms_norm(f"{name}.norm2", x)
        gated = jax.nn.silu(linear(f"{name}.gate", h)) * linear(f"{name}.up", h)
        x = x + linear(f"{name}.down", gated)
    return linear("head", rms_norm("norm", x)).reshape(tokens.size, -1)


def resnet18(p: Params, x: Any, key: Any, norm: Any = batch_norm) -> Any:
    x = max_pool(jax.nn.relu(norm(p, "bn1", conv(p, "conv1", x, 2, 3))), 3, 2, 1)
    for i in range(8):
        name, stride = f"layers.{i}", 2 if i in (2, 4, 6) else 1
        y = jax.nn.relu(norm(p, f"{name}.bn1", conv(p, f"{name}.conv1", x, stride, 1)))
        y = norm(p, f"{name}.bn2", conv(p, f"{name}.conv2", y, 1, 1))
        if f"{name}.downsample.0.weight" in p:
            x = norm(p, f"{name}.downsample.1", conv(p, f"{name}.downsample.0", x, stride))
        x = jax.nn.relu(y + x)
    return dense(p, "fc", x.mean((2, 3)))


def resnet18_head(p: Params, x: Any, key: Any) -> Any:
    return resnet18(p, x, key, frozen_batch_norm)


def lstm(p: Params, x: Any, key: Any) -> Any:
    for layer in range(2):
        w, r = p[f"lstm.weight_ih_l{layer}"], p[f"lstm.weight_hh_l{layer}"]
        projected = x @ w.T + (p[f"lstm.bias_ih_l{layer}"] + p[f"lstm.bias_hh_l{layer}"])
        recurrent = r.T

        def cell(state: Any, now: Any, recurrent: Any = recurrent) -> Any:
            h, c = state
            i, f, g, o = jnp.split(now + h @ recurrent, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((x.shape[1], r.shape[1]))
        x = lax.scan(cell, (zero, zero), projected)[1]
    return dense(p, "head", x[-1])


def unet(p: Params, x: Any, key: Any) -> Any:
    def twice(name: str, x: Any) -> Any:
        x = jax.nn.relu(conv(p, f"{name}.0", x, 1, 1))
        return jax.nn.relu(conv(p, f"{name}.2", x, 1, 1))

    a = twice("down1", x)
    b = twice("down2", max_pool(a, 2, 2))
    c = twice("bottom", max_pool(b, 2, 2))
    n, _, height, width = c.shape
    up = jnp.einsum("nchw,cdij->ndhiwj", c, p["up2.weight"])  # kernel 2, stride 2: no overlap
    up = up.reshape(n, -1, 2 * height, 2 * width) + p["up2.bias"][:, None, None]
    y = twice("merge2", jnp.concatenate([up, b], 1))
    y = jax.image.resize(y, (*y.shape[:2], *a.shape[2:]), "bilinear")
    return conv(p, "last", twice("merge1", jnp.concatenate([y, a], 1)))


def many_tensors(p: Params, x: Any, key: Any) -> Any:
    return x + sum(part[:1] for part in p.values())
