"""The other side of the round trip: runs in a python that has onnxruntime-training 1.19.2.

    python old_side.py folder checkpoint_in checkpoint_out steps rate data.npz

loads a checkpoint, trains, saves, and prints a JSON line with what it saw.
"""

import json
import sys
from pathlib import Path

import numpy as np
from onnxruntime.training.api import CheckpointState, Module, Optimizer


def main(folder, source, target, steps, rate, data):
    folder = Path(folder)
    state = CheckpointState.load_checkpoint(source)
    module = Module(str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"))
    with np.load(data) as stored:
        batch = [stored["batch/0/0"], stored["batch/0/1"]]
        values = stored.get("values")
    if values is not None:  # a nominal checkpoint: values come from a buffer
        from onnxruntime import OrtValue

        module.copy_buffer_to_parameters(
            OrtValue.ortvalue_from_numpy(values)._ortvalue, trainable_only=False
        )
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(float(rate))
    losses = []
    for _ in range(int(steps)):
        result = module(*batch)
        losses.append(float(result[0] if isinstance(result, tuple) else result))
        optimizer.step()
        module.lazy_reset_grad()
    seen = dict(state.properties)
    state.properties["there"] = "been"
    CheckpointState.save_checkpoint(state, target, include_optimizer_state=True)
    print(json.dumps({"losses": losses, "properties": seen}))


if __name__ == "__main__":
    main(*sys.argv[1:])
