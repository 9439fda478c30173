"""Makes tests/compat/data with the real onnxruntime-training 1.19.2.

Not a test. Run it with a python that has the predecessor, from this folder:

    python3.11 -m venv old && old/bin/pip install \
        onnxruntime-training-cpu==1.19.2 onnx==1.16.2 "numpy<2" torch cerberus h5py
    old/bin/python make_data.py [family …]

Per family: training_model.onnx, eval_model.onnx, optimizer_model.onnx, checkpoint, and data.npz
with the inputs, the losses of 20 steps, the first gradients and the last parameters.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from families import FAMILIES
from onnxruntime.training import artifacts, onnxblock
from onnxruntime.training.api import CheckpointState, Module, Optimizer
from torch_families import TORCH_FAMILIES

DATA = Path(__file__).parent / "data"
STEPS = 20


class Composite(onnxblock.Block):
    """The first output is the loss, or a mean of squares of all outputs."""

    def build(self, *names):
        total = None
        for name in names:
            square = onnxblock.blocks.Pow(2.0)(name)
            mean = onnxblock.blocks.ReduceMean(keepdims=False)(square)
            total = mean if total is None else onnxblock.blocks.Add()(total, mean)
        return total


def _loss(name):
    if name is None:
        return None
    if name == "MeanSquare":
        return Composite()
    return artifacts.LossType[name]


def _optimizer(described):
    name, options = described
    options = dict(options)
    clip = options.pop("clip", None)
    if clip is not None:
        options["clip_grad"] = onnxblock.optim.ClipGradNorm(clip)
    return getattr(onnxblock.optim, name)(**options)


def _from_text(family, rng):
    model = onnx.parser.parse_model(family["text"])
    for node in model.graph.node:  # the text format has no dots in names
        for i, operand in enumerate(node.input):
            node.input[i] = operand.replace("__", ".")
    weights = family["weights"](rng)
    for key, value in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, key))
    return model, weights


def make(name, family):
    folder = DATA / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(family.get("seed", 0))
    if "export" in family:
        model, weights = family["export"]()
    else:
        model, weights = _from_text(family, rng)
    frozen = list(family.get("frozen", ()))
    constants = set(family.get("constants", ()))
    trainable = [n for n in weights if n not in frozen and n not in constants]
    artifacts.generate_artifacts(
        model,
        requires_grad=trainable,
        frozen_params=frozen,
        loss=_loss(family["loss"]),
        optimizer=_optimizer(family["optimizer"]),
        artifact_directory=str(folder),
        additional_output_names=family.get("additional"),
    )
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state)
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(family["rate"])
    batches = [family["inputs"](rng) for _ in range(3)]
    accumulate = family.get("accumulate", 1)
    losses, recorded = [], {}
    for step in range(STEPS):
        outputs = module(*batches[step % len(batches)])
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        losses.append(float(outputs[0]))
        if step == 0:
            for key in trainable:
                recorded[f"grad/{key}"] = np.array(state.parameters[key].grad)
        if (step + 1) % accumulate == 0:
            optimizer.step()
            module.lazy_reset_grad()
    for key, parameter in state.parameters:
        recorded[f"last/{key}"] = np.array(parameter.data)
    for i, batch in enumerate(batches):
        for j, value in enumerate(batch):
            recorded[f"batch/{i}/{j}"] = value
    recorded["losses"] = np.array(losses, np.float64)
    settings = {"rate": family["rate"], "accumulate": accumulate, "names": module.input_names()}
    recorded["settings"] = np.frombuffer(json.dumps(settings).encode(), np.uint8)
    np.savez_compressed(folder / "data.npz", **recorded)
    CheckpointState.save_checkpoint(state, str(folder / "trained"), include_optimizer_state=True)
    if not family.get("keep_trained"):
        (folder / "trained").unlink()
    trained = onnx.load(str(folder / "training_model.onnx"))
    ops = sorted({f"{n.domain}::{n.op_type}" for n in trained.graph.node if n.domain})
    print(f"{name}: {losses[0]:.5f} -> {losses[-1]:.5f}", *ops, flush=True)


def main():
    known = {**FAMILIES, **TORCH_FAMILIES}
    chosen = sys.argv[1:] or list(known)
    failed = {}
    for name in chosen:
        try:
            make(name, known[name])
        except Exception as error:  # noqa: PERF203 - report all of them
            failed[name] = error
            print(f"{name}: FAILED {error}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
