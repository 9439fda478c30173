"""How long until the first step of a long model is done, through every way in.

`python -m benchmarks.readiness [--nodes 1250 5000 20000] [way ...]`. The model is a chain of layers
(product, addition, tanh); its nodes are counted before gradients and updates are added. Each
measurement is a process of its own, its processor time counts: that of a busy machine says the
same. What torch's exporter takes is taken off where it can be told apart (ORTModule).
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh

WIDTH, ROWS = 8, 4
RATE = 0.01


def chain(layers: int) -> tuple[onnx.ModelProto, list[str]]:
    """Forward model with its loss, and the names of the weights."""
    rng = np.random.default_rng(0)
    nodes, values, at = [], {}, "x"
    for i in range(layers):
        values[f"w{i}"] = rng.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5
        values[f"b{i}"] = np.zeros(WIDTH, np.float32) + i * 1e-6
        nodes += [
            oh.make_node("MatMul", [at, f"w{i}"], [f"p{i}"]),
            oh.make_node("Add", [f"p{i}", f"b{i}"], [f"s{i}"]),
            oh.make_node("Tanh", [f"s{i}"], [f"h{i}"]),
        ]
        at = f"h{i}"
    nodes += [
        oh.make_node("Sub", [at, "y"], ["difference"]),
        oh.make_node("Mul", ["difference", "difference"], ["square"]),
        oh.make_node("ReduceMean", ["square"], ["loss"], keepdims=0),
    ]
    sides = [oh.make_tensor_value_info(n, 1, ["n", WIDTH]) for n in ("x", "y")]
    outputs = [oh.make_tensor_value_info("loss", 1, []), oh.make_tensor_value_info(at, 1, None)]
    weights = [onnx.numpy_helper.from_array(a, n) for n, a in values.items()]
    graph = oh.make_graph(nodes, "chain", sides, outputs, weights)
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9)
    return model, list(values)


def batch() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return (
        rng.standard_normal((ROWS, WIDTH), np.float32),
        rng.standard_normal((ROWS, WIDTH), np.float32),
    )


def by_differentiate(layers: int) -> float:
    import onnxtrain

    model, names = chain(layers)
    onnxtrain.differentiate(model, wrt=names)
    return 0.0


def by_module(layers: int) -> float:
    from onnxtrain import optim
    from onnxtrain.api import CheckpointState, Module, Optimizer
    from onnxtrain.artifacts import generate_artifacts

    model, names = chain(layers)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        generate_artifacts(
            model, names, optimizer=optim.adamw(), artifact_directory=folder,
            loss_input_names=["loss"],
        )  # fmt: skip
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state)
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        module(*batch())
        optimizer.step()
    return 0.0


def by_session(layers: int) -> float:
    from onnxtrain.training import TrainingParameters, TrainingSession

    model, names = chain(layers)
    options = TrainingParameters()
    options.loss_output_name, options.weights_to_train = "loss", set(names)
    options.training_optimizer_name = "AdamOptimizer"
    session = TrainingSession(model.SerializeToString(), options)
    x, y = batch()
    session.run(None, {"x": x, "y": y, "Learning_Rate": np.array([RATE], np.float32)})
    return 0.0


def by_ort_trainer(layers: int) -> float:
    import torch
    from onnxtrain.torch.optim import AdamConfig

    from onnxtrain.torch import ORTTrainer

    model, _ = chain(layers)
    described = {
        "inputs": [("x", ["n", WIDTH]), ("y", ["n", WIDTH])],
        "outputs": [("loss", [], True), (model.graph.output[1].name, ["n", WIDTH])],
    }
    trainer = ORTTrainer(model, described, AdamConfig(lr=RATE))
    trainer.train_step(*map(torch.from_numpy, batch()))
    return 0.0


def by_ort_module(layers: int) -> float:
    """Gives the time that torch's exporter took, which is not ours."""
    import torch
    from torch import nn

    from onnxtrain.torch import ORTModule, _ortmodule_cache

    parts = [p for _ in range(layers) for p in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    spent, real = [0.0], _ortmodule_cache.trace

    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.process_time()
        try:
            return real(*arguments, **options)
        finally:
            spent[0] += time.process_time() - began

    _ortmodule_cache.trace = timed
    module = ORTModule(nn.Sequential(*parts), exporter="torchscript")
    x, y = map(torch.from_numpy, batch())
    (module(x) - y).square().mean().backward()
    return spent[0]


WAYS = {
    "differentiate": by_differentiate,
    "Module": by_module,
    "TrainingSession": by_session,
    "ORTTrainer": by_ort_trainer,
    "ORTModule": by_ort_module,
}


def measure(way: str, nodes: int) -> tuple[float, float]:
    """Seconds of processor time, and those of them that are torch's exporter's."""
    import onnxtrain.artifacts

    if way.startswith("ORT"):
        import onnxtrain.torch  # noqa: F401
    began = time.process_time()
    export = WAYS[way](nodes // 3)
    return time.process_time() - began - export, export


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ways", nargs="*", help=", ".join(WAYS))
    parser.add_argument("--nodes", type=int, nargs="+", default=[1250, 5000, 20000])
    options = parser.parse_args()
    print("| way | " + " | ".join(f"{n:,} nodes" for n in options.nodes) + " | growth |")
    print("|---|" + "---|" * (len(options.nodes) + 1))
    for way in options.ways or WAYS:
        seconds = []
        for nodes in options.nodes:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                seconds.append(pool.apply(measure, (way, nodes))[0])
        growth = seconds[-1] / seconds[0] / (options.nodes[-1] / options.nodes[0])
        cells = " | ".join(f"{s:.1f} s" for s in seconds)
        print(f"| {way} | {cells} | {growth:.2f} |", flush=True)


if __name__ == "__main__":
    main()
