"""Makes data/v1_15 and data/v1_17: artifacts and checkpoints of earlier releases.

Not a test. Run with a python that has onnxruntime-training 1.15.1 (directories of protobuf
sequences) or onnxruntime-training-cpu 1.17.3 (flatbuffers, version 1):

    python make_earlier.py data/v1_15
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from families import FAMILIES
from onnxruntime.training import artifacts
from onnxruntime.training.api import CheckpointState, Module, Optimizer


def _model(rng):
    family = FAMILIES["frozen"]
    model = onnx.parser.parse_model(family["text"].replace("17]", "14]"))
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = name.replace("__", ".")
    for name, value in family["weights"](rng).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def main(folder):
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        _model(rng),
        requires_grad=["head.weight", "head.bias"],
        frozen_params=["base.weight", "base.bias"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=str(folder),
    )
    path = str(folder / "optimizer_model.onnx")
    optimizer_model = onnx.load(path)  # these releases stamp it with versions they do not read
    optimizer_model.ir_version = 8
    for entry in optimizer_model.opset_import:
        entry.version = 14 if not entry.domain else entry.version
    onnx.save(optimizer_model, path)
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"))
    optimizer = Optimizer(path, module)
    optimizer.set_learning_rate(0.05)
    batch = FAMILIES["frozen"]["inputs"](rng)

    def steps(count):
        losses = []
        for _ in range(count):
            losses.append(float(np.asarray(module(*batch)).reshape(())))
            optimizer.step()
            module.lazy_reset_grad()
        return losses

    losses = steps(6)
    properties = getattr(state, "properties", state)
    properties["epoch"], properties["best"], properties["name"] = 7, 0.25, "hello"
    CheckpointState.save_checkpoint(state, str(folder / "trained"), include_optimizer_state=True)
    np.savez(folder / "steps.npz", x=batch[0], y=batch[1], losses=losses, more=steps(3))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
