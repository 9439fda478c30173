"""Artifacts, batches and the losses that Python gets with them; JavaScript must get the same."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onnxtrain import optim
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.artifacts import LossType, generate_artifacts
from onnxtrain.runtime.files import tensorfile

STEPS, ROWS, DISTINCT = 50, 16, 8


def mlp():
    weights = {"w1": (64, 32), "b1": (32,), "w2": (32, 10), "b2": (10,)}
    text = """g (float[N, 64] x) => (float[N, 10] y) {
        a = Gemm (x, w1, b1)
        h = Tanh (a)
        y = Gemm (h, w2, b2)
    }"""
    return text, weights, ((64,), None), {}


def dropout():
    weights = {"w1": (64, 32), "b1": (32,), "w2": (32, 10)}
    text = """g (float[N, 64] x) => (float[N, 10] y)
        <float ratio = {0.3}, bool training = {1}> {
        a = Gemm (x, w1, b1)
        h = Relu (a)
        [drop] d = Dropout (h, ratio, training)
        y = MatMul (d, w2)
    }"""
    return text, weights, ((64,), None), {}


def cnn():
    weights = {
        "k1": (8, 1, 3, 3), "scale": (8,), "shift": (8,), "mean": (8,), "var": (8,),
        "k2": (8, 8, 3, 3), "w": (128, 10), "b": (10,),
    }  # fmt: skip
    text = """g (float[N, 1, 8, 8] x) => (float[N, 10] y) {
        c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, k1)
        n, m, v = BatchNormalization <training_mode = 1> (c, scale, shift, mean, var)
        r = Relu (n)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
        c2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (p, k2)
        r2 = Relu (c2)
        f = Flatten (r2)
        y = Gemm (f, w, b)
    }"""
    return text, weights, ((1, 8, 8), None), {"frozen_params": ["mean", "var"]}


def transformer():
    d, inner, vocabulary = 16, 32, 20
    weights = {
        "embedding": (vocabulary, d), "position": (12, d), "wq": (d, d), "wk": (d, d),
        "wv": (d, d), "wo": (d, d), "scale1": (d,), "shift1": (d,), "scale2": (d,), "shift2": (d,),
        "w1": (d, inner), "b1": (inner,), "w2": (inner, d), "b2": (d,), "head": (d, 10),
    }  # fmt: skip
    text = f"""g (int64[N, 12] x) => (float[N, 10] y)
        <int64[4] split = {{0, 0, 2, {d // 2}}},
         int64[3] merge = {{0, 0, {d}}}, float root = {{{(d / 2) ** -0.5}}},
         int64[1] axis = {{1}}> {{
        e = Gather (embedding, x)
        t = Add (e, position)
        n1 = LayerNormalization (t, scale1, shift1)
        q = MatMul (n1, wq)
        k = MatMul (n1, wk)
        v = MatMul (n1, wv)
        q4 = Reshape (q, split)
        k4 = Reshape (k, split)
        v4 = Reshape (v, split)
        qh = Transpose <perm = [0, 2, 1, 3]> (q4)
        kh = Transpose <perm = [0, 2, 3, 1]> (k4)
        vh = Transpose <perm = [0, 2, 1, 3]> (v4)
        s = MatMul (qh, kh)
        ss = Mul (s, root)
        a = Softmax <axis = -1> (ss)
        c = MatMul (a, vh)
        ct = Transpose <perm = [0, 2, 1, 3]> (c)
        cm = Reshape (ct, merge)
        o = MatMul (cm, wo)
        t2 = Add (t, o)
        n2 = LayerNormalization (t2, scale2, shift2)
        h = MatMul (n2, w1)
        hb = Add (h, b1)
        hr = Relu (hb)
        f = MatMul (hr, w2)
        fb = Add (f, b2)
        t3 = Add (t2, fb)
        mean = ReduceMean <keepdims = 0> (t3, axis)
        y = MatMul (mean, head)
    }}"""
    return text, weights, ((12,), vocabulary), {}


NO_DECAY = optim.Group(["b*", "shift*"], weight_decay=0.0, lr_scale=0.5)
CASES = {
    "mlp": (mlp, optim.adamw(weight_decay=0.05, clip=optim.ClipNorm(0.5), groups=[NO_DECAY]), 1),
    "cnn": (cnn, optim.sgd(0.9, weight_decay=0.01), 1),
    "transformer": (transformer, optim.adamw(clip=optim.ClipNorm(1.0)), 1),
    "accumulate": (mlp, optim.adam(clip=optim.ClipNorm(0.7)), 3),
    "lamb": (mlp, optim.lamb(weight_decay=0.01), 1),
    "adafactor": (mlp, optim.adafactor(), 1),
    "dropout": (dropout, optim.sgd(0.5), 1),
    "ignored": (mlp, optim.sgd(), 1),
}
RATE = {"cnn": 0.02, "dropout": 0.05}


def forward(make):
    """The forward model with random weights."""
    text, weights, (shape, vocabulary), options = make()
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    rng = np.random.default_rng(1)
    for name, size in weights.items():
        fan_in = np.prod(size[1:]) if len(size) > 2 else size[0]
        value = rng.standard_normal(size) / np.sqrt(fan_in)
        if name.startswith("scale") or name == "var":
            value = np.ones(size)
        elif name.startswith("shift") or name == "mean":
            value = np.zeros(size)
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    trainable = [n for n in weights if n not in options.get("frozen_params", [])]
    return model, trainable, shape, vocabulary, options


def batches(shape, vocabulary):
    rng = np.random.default_rng(2)
    made = {}
    for i in range(DISTINCT):
        if vocabulary is None:
            made[f"{i}/0"] = rng.standard_normal((ROWS, *shape)).astype(np.float32)
        else:
            made[f"{i}/0"] = rng.integers(0, vocabulary, (ROWS, *shape))
        made[f"{i}/1"] = rng.integers(0, 10, ROWS)
    return made


def write(name: str, folder: Path, steps: int = STEPS) -> dict:
    """Write the artifacts, batches and plan of a case; give what Python gets."""
    make, optimizer, accumulate = CASES[name]
    folder.mkdir()
    model, trainable, shape, vocabulary, options = forward(make)
    generate_artifacts(
        model, requires_grad=trainable, loss=LossType.CrossEntropyLoss, optimizer=optimizer,
        artifact_directory=folder, browser=True, **options,
    )  # fmt: skip
    data = batches(shape, vocabulary)
    if name == "ignored":
        for i in range(DISTINCT):
            data[f"{i}/1"][i::3] = -100
    tensorfile.write(folder / "batches", data, {})
    plan = {
        "steps": steps, "distinct": DISTINCT, "accumulate": accumulate,
        "rate": RATE.get(name, 0.005),
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(plan))
    return python_run(folder, data, plan)


def python_run(folder: Path, data: dict, plan: dict) -> dict:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(plan["rate"])
    losses = []
    for step in range(plan["steps"]):
        for k in range(plan["accumulate"]):
            i = (step * plan["accumulate"] + k) % plan["distinct"]
            losses.append(float(module(data[f"{i}/0"], data[f"{i}/1"])))
        optimizer.apply(1 / plan["accumulate"])
        module.lazy_reset_grad()
    final = float(module.eval()(data["0/0"], data["0/1"]))
    module.train()
    vector = module.get_contiguous_parameters()
    parameters = vector.numpy().copy()
    return {"losses": losses, "eval": final, "parameters": parameters, "data": data, "plan": plan}
