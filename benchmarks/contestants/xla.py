"""jax: the whole step, optimizer included, as one compiled function on the CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .base import THREADS, Cannot, Clock, Loop

MODELS = {
    "mlp_sgd": "mlp", "mlp_adamw": "mlp", "mlp_small": "mlp", "cnn": "cnn", "encoder": "encoder",
    "transformer_lm": "transformer_lm", "resnet18": "resnet18", "resnet18_head": "resnet18_head",
    "lstm": "lstm", "unet": "unet", "optimizer_25m": "many_tensors",
    "token_encoder": "token_encoder", "gpt2": "gpt2", "vit": "vit", "llama": "llama",
}  # fmt: skip
"""By workload, the function of `benchmarks.jax_models`."""


def start(folder: Path, spec: dict[str, Any], clock: Clock) -> Loop:
    if spec["name"] not in MODELS:
        raise Cannot("the model has not been written for it")
    os.environ["JAX_PLATFORMS"] = "cpu"
    if hasattr(os, "sched_setaffinity"):  # its thread pool has as many threads as it has cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks import jax_models

    clock.lap("import")
    model = getattr(jax_models, MODELS[spec["name"]])
    with np.load(folder / "weights.npz") as data:
        weights = {name: jnp.asarray(data[name]) for name in data.files}
    trained = {name: weights[name] for name in spec["trainable"]}
    rest = {name: value for name, value in weights.items() if name not in trained}

    def loss_of(trained: Any, x: Any, y: Any, key: Any) -> Any:
        output = model({**rest, **trained}, x, key)
        if spec["loss"] == "mse":
            return jnp.mean((output - y) ** 2)
        chances = jax.nn.log_softmax(output, axis=1)
        return -jnp.take_along_axis(chances, jnp.expand_dims(y, 1), 1).mean()

    def step(state: Any, x: Any, y: Any) -> Any:
        trained, moments, count = state
        key = jax.random.fold_in(jax.random.key(0), count)
        loss, gradients = jax.value_and_grad(loss_of)(trained, x, y, key)
        trained, moments = update(spec["optimizer"], trained, gradients, moments, count + 1)
        return (trained, moments, count + 1), loss

    names = {"sgd": ("m",) if spec["optimizer"].get("momentum") else ()}
    moments = {
        kind: jax.tree.map(jnp.zeros_like, trained)
        for kind in names.get(spec["optimizer"]["name"], ("m", "v"))
    }
    compiled = jax.jit(step, donate_argnums=0)
    state = [(trained, moments, jnp.int32(0))]
    clock.lap("session")

    def run(x: Any, y: Any) -> float:
        state[0], loss = compiled(state[0], x, y.astype(np.int32) if y.dtype == np.int64 else y)
        return float(loss)

    return Loop(run)


def update(options: dict[str, Any], params: Any, gradients: Any, moments: Any, count: Any) -> Any:
    """One step of SGD, Adam or AdamW as torch defines them."""
    import jax
    import jax.numpy as jnp

    rate, each = options["lr"], jax.tree.map
    if options.get("clip"):
        squares = each(lambda g: jnp.sum(g * g), gradients)
        norm = jnp.sqrt(sum(jax.tree.leaves(squares)))
        scale = jnp.minimum(1.0, options["clip"] / (norm + 1e-6))
        gradients = each(lambda g: g * scale, gradients)
    if options["name"] == "sgd":
        if moments:
            moments = {"m": each(lambda m, g: options["momentum"] * m + g, moments["m"], gradients)}
        way = moments["m"] if moments else gradients
        return each(lambda p, d: p - rate * d, params, way), moments
    m = each(lambda m, g: 0.9 * m + 0.1 * g, moments["m"], gradients)
    v = each(lambda v, g: 0.999 * v + 0.001 * g * g, moments["v"], gradients)
    first, second = 1 - 0.9**count, 1 - 0.999**count
    kept = 1 - rate * 0.01 if options["name"] == "adamw" else 1.0

    def new(p: Any, m: Any, v: Any) -> Any:
        return kept * p - rate * (m / first) / (jnp.sqrt(v / second) + 1e-8)

    return each(new, params, m, v), {"m": m, "v": v}
