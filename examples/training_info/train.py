"""A model file that says itself how it is trained: written, read, run, stopped and gone on with."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime

from onnxtrain import losses, optim, training_info
from onnxtrain.cli.demo_model import digits_network
from onnxtrain.data import digits

Batch = dict[str, np.ndarray]
BY_HAND = """
<ir_version: 8, opset_import: ["": 18, "ai.onnx.preview.training": 1]>
line (float[N, 2] x) => (float[N, 1] y) <float[2, 1] w = {0, 0}, float[1] b = {0}> {
    product = MatMul (x, w)
    y = Add (product, b)
}
"""
STEP = """
step (float[N, 1] target) => (float loss, float[2, 1] w_new, float[2, 1] h_new, float[1] b_new,
                              float[1] g_new, int64 t_new)
<float rate = {0.5}, int64 t = {0}, int64 one = {1}, float[2, 1] h = {0, 0}, float[1] g = {0}> {
    error = Sub (y, target)
    squared = Mul (error, error)
    loss = ReduceMean <keepdims = 0> (squared)
    dw, db = ai.onnx.preview.training.Gradient <xs = ["w", "b"], zs = ["x", "target"], y = "loss">
        (w, b, x, target)
    w_new, b_new, h_new, g_new = ai.onnx.preview.training.Adagrad
        <epsilon = 1e-6> (rate, t, w, b, dw, db, h, g)
    t_new = Add (t, one)
}
"""
UPDATES = {"w": "w_new", "b": "b_new", "h": "h_new", "g": "g_new", "t": "t_new"}


def batches(images: np.ndarray, labels: np.ndarray, size: int = 32) -> Iterator[Batch]:
    """Rows in their order."""
    for start in range(0, len(labels), size):
        rows = slice(start, start + size)
        yield {"image": images[rows], "labels": labels[rows]}


def describe(path: Path) -> None:
    """What a file says about its training, as anybody can read it."""
    info = onnx.load(path).training_info[0]
    nodes = [node.op_type for node in info.algorithm.node]
    preview = [n.op_type for n in info.algorithm.node if n.domain]
    fed = ", ".join(value.name for value in info.algorithm.input)
    print(f"{path.name}: a step has {len(nodes)} nodes, of these {', '.join(preview)}; it is fed")
    print(f"  {fed} beside the network's inputs, and replaces {len(info.update_binding)} tensors")


def digits_as_the_file_says(folder: Path, epochs: int) -> None:
    """Loss and Adam go into the file; who trains it needs nothing else."""
    images, labels = digits()
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order], labels[order].astype(np.int64)
    rows, new = (images[:1300], labels[:1300]), (images[1300:], labels[1300:])

    path = folder / "digits.onnx"
    network = digits_network()
    described = training_info.add(
        network, losses.CrossEntropyLoss(), optim.adam(), learning_rate=2e-3
    )
    onnx.save(described, path)
    describe(path)

    training = training_info.Training(path)
    for epoch in range(epochs):
        loss = [float(training.step(batch)["loss"]) for batch in batches(*rows)]
        print(f"epoch {epoch + 1}: loss {np.mean(loss):.3f}")
        training.save(folder / f"epoch_{epoch + 1}.onnx")

    trained = folder / f"epoch_{epochs}.onnx"
    session = onnxruntime.InferenceSession(str(trained))  # it sees the network alone
    right = (session.run(None, {"image": new[0]})[0].argmax(1) == new[1]).mean()
    print(f"onnxruntime with {trained.name}, new images right: {right:.3f}")

    again = training_info.Training(folder / f"epoch_{epochs - 1}.onnx")  # moments and count too
    for batch in batches(*rows):
        again.step(batch)
    same = all(np.array_equal(again.state[n], v) for n, v in training.state.items())
    print(f"stopped one epoch before the end and gone on, the same to the bit: {same}")


def line_by_hand(folder: Path, steps: int) -> None:
    """The standard's own Gradient and Adagrad, beside their formulas in numpy."""
    model = onnx.parser.parse_model(BY_HAND)
    info = model.training_info.add()
    info.algorithm.CopyFrom(onnx.parser.parse_graph(STEP))
    for name, result in UPDATES.items():
        info.update_binding.add(key=name, value=result)
    path = folder / "line.onnx"
    onnx.save(model, path)
    describe(path)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 2)).astype(np.float32)
    target = (x @ np.array([[3.0], [-2.0]]) + 1).astype(np.float32)
    training = training_info.Training(path)
    w, b, h, g = np.zeros((2, 1)), np.zeros(1), np.zeros((2, 1)), np.zeros(1)
    for _ in range(steps):
        loss = float(training.step({"x": x, "target": target})["loss"])
        error = 2 * (x @ w + b - target) / len(x)
        dw, db = x.T @ error, error.sum(0)
        h, g = h + dw**2, g + db**2
        w, b = w - 0.5 * dw / (np.sqrt(h) + 1e-6), b - 0.5 * db / (np.sqrt(g) + 1e-6)
    apart = max(np.abs(training.state["w"] - w).max(), np.abs(training.state["b"] - b).max())
    numbers = ", ".join(f"{v:.2f}" for v in (*training.state["w"].ravel(), *training.state["b"]))
    print(f"after {steps} steps: loss {loss:.5f}, weights {numbers}; {apart:.0e} from numpy's")


def refused(folder: Path) -> None:
    """What onnxruntime says of the same step: it has no such operators."""
    model = onnx.load(folder / "line.onnx")
    algorithm = model.training_info[0].algorithm
    for field in ("node", "initializer", "input", "output"):
        getattr(model.graph, field).extend(getattr(algorithm, field))
    del model.training_info[:]
    try:
        onnxruntime.InferenceSession(model.SerializeToString())
    except Exception as error:  # a class of its own for each kind of failure
        print("onnxruntime alone:", str(error).splitlines()[0][:100])
    rewritten = training_info.expand(model)
    session = onnxruntime.InferenceSession(rewritten.SerializeToString())
    domains = {node.domain or "ai.onnx" for node in rewritten.graph.node}
    print(f"after training_info.expand: {len(session.get_outputs())} outputs, {', '.join(domains)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("described"), help="folder for all files")
    parser.add_argument("--quick", action="store_true", help="few epochs: only to see it run")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    digits_as_the_file_says(options.out, 3 if options.quick else options.epochs)
    line_by_hand(options.out, 60 if options.quick else 300)
    refused(options.out)


if __name__ == "__main__":
    main()
