"""Small artifacts that follow the contract, made without the offline half."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper

import onnxtrain
from onnxtrain.optim import build
from onnxtrain.runtime.state.checkpoint_state import CheckpointState

TRAINABLE = ["W1", "b1", "W2", "b2"]
FROZEN = ["offset", "running_mean"]
SHAPES = {"W1": (4, 8), "b1": (8,), "W2": (8, 3), "b2": (3,), "offset": (4,), "running_mean": (4,)}
ORDER = ["W1", "b1", "offset", "W2", "b2", "running_mean"]


@dataclass
class Artifacts:
    """Paths of a set of artifacts."""

    directory: Path

    @property
    def train(self) -> str:
        return str(self.directory / "training_model.onnx")

    @property
    def eval(self) -> str:
        return str(self.directory / "eval_model.onnx")

    @property
    def optimizer(self) -> str:
        return str(self.directory / "optimizer_model.onnx")

    @property
    def step(self) -> str:
        return str(self.directory / "step_model.onnx")

    @property
    def checkpoint(self) -> str:
        return str(self.directory / "checkpoint")

    def state(self) -> CheckpointState:
        return CheckpointState.load_checkpoint(self.checkpoint)


def values(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: rng.normal(size=s).astype(np.float32) * 0.5 for n, s in SHAPES.items()}


def batch(seed: int = 1, size: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(size, 4)).astype(np.float32),
        rng.normal(size=(size, 3)).astype(np.float32),
    )


def forward(dropout: bool, training: bool) -> onnx.ModelProto:
    drop = "hd, mask = Dropout <seed = 1> (h, ratio, on)" if dropout else "hd = Identity(h)"

    statistics = (
        """
        mean = ReduceMean <keepdims = 0> (x, axis0)
        old = Mul(running_mean, keep)
        new = Mul(mean, share)
        "running_mean.updated" = Add(old, new)
        """
        if training
        else ""
    )
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 4] x, float[N, 3] target, float[4, 8] W1, float[8] b1, float[4] offset,
           float[8, 3] W2, float[3] b2, float[4] running_mean)
          => (float loss, float[N, 3] out)
          <float ratio = {{0.5}}, bool on = {{{int(training)}}}, int64[1] axis0 = {{0}},
           float keep = {{0.9}}, float share = {{0.1}}>
        {{
            shifted = Sub(x, offset)
            centred = Sub(shifted, running_mean)
            a = MatMul(centred, W1)
            ab = Add(a, b1)
            h = Relu(ab)
            {drop}
            c = MatMul(hd, W2)
            out = Add(c, b2)
            diff = Sub(out, target)
            square = Mul(diff, diff)
            loss = ReduceMean <keepdims = 0> (square)
            {statistics}
        }}"""
    )

    for node in model.graph.node:
        if node.op_type == "Dropout":
            node.name = "dropout1"
    return model


def write(
    directory: Path, *, dropout: bool = False, optimizer: object = None, step: bool = False
) -> Artifacts:
    made = Artifacts(directory)
    onnx.save(training_model(dropout), made.train)
    evaluation = forward(dropout, training=False)
    describe(evaluation, "eval", model_outputs=["out"])
    helper.set_model_props(
        evaluation, {**{p.key: p.value for p in evaluation.metadata_props}, "author": "someone"}
    )
    onnx.save(evaluation, made.eval)
    if optimizer is not None:
        named = [(n, SHAPES[n]) for n in TRAINABLE]
        onnx.save(proto(build.sequence_model(optimizer, named)), made.optimizer)
    start = values()
    state = CheckpointState.from_arrays(
        {n: start[n] for n in TRAINABLE}, {n: start[n] for n in FROZEN}
    )
    CheckpointState.save_checkpoint(state, made.checkpoint)
    if step:
        onnx.save(step_model(dropout, optimizer), made.step)
    return made


def proto(model: object) -> onnx.ModelProto:
    import onnx_ir as ir

    return ir.to_proto(model)


def describe(model: onnx.ModelProto, kind: str, **more: object) -> None:
    described = {
        "version": 1,
        "kind": kind,
        "user_inputs": ["x", "target"],
        "user_outputs": ["loss", "out"],
        "trainable": TRAINABLE,
        "frozen": FROZEN,
        **more,
    }
    helper.set_model_props(model, {"onnxtrain.artifact": json.dumps(described)})


def gradient_model(dropout: bool) -> onnx.ModelProto:
    """Loss, output, running mean and gradients, parameters as inputs."""
    model = forward(dropout, training=True)
    model = onnxtrain.differentiate(model, wrt=TRAINABLE, of="loss")
    existing = {o.name for o in model.graph.output}
    assert {f"{n}_grad" for n in TRAINABLE} <= existing
    if "running_mean.updated" not in {o for n in model.graph.node for o in n.output}:
        for node in forward(dropout, training=True).graph.node:
            if node.output[0] in {"mean", "old", "new", "running_mean.updated"}:
                model.graph.node.append(node)
        for name, value in {
            "axis0": np.array([0], np.int64),
            "keep": np.array(0.9, np.float32),
            "share": np.array(0.1, np.float32),
        }.items():
            if name not in {i.name for i in model.graph.initializer}:
                model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    del model.metadata_props[:]
    return model


def training_model(dropout: bool = False) -> onnx.ModelProto:
    model = gradient_model(dropout)
    graph = model.graph
    random = []
    for node in graph.node:
        if node.op_type == "Dropout":
            node.name = node.name or "dropout1"
            random.append(node.name)
    del graph.output[2:]
    reset = helper.make_tensor_value_info("lazy_reset_grad", TensorProto.BOOL, [1])
    for name in TRAINABLE:
        kind = helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPES[name])
        buffer, out = f"{name}_grad.accumulation.buffer", f"{name}_grad.accumulation.out"
        graph.input.append(helper.make_tensor_value_info(buffer, 1, SHAPES[name]))
        graph.output.append(helper.make_tensor_value_info(out, 1, SHAPES[name]))
        label = f"onnxtrain.accumulate/{name}"
        graph.node.extend(
            [
                helper.make_node("Add", [buffer, f"{name}_grad"], [f"{name}.sum"], label + "/add"),
                helper.make_node(
                    "Where", ["lazy_reset_grad", f"{name}_grad", f"{name}.sum"], [out], label
                ),
            ]
        )
        assert kind.name == name
    graph.input.append(reset)
    graph.output.append(helper.make_tensor_value_info("running_mean.updated", 1, [4]))
    describe(
        model,
        "training",
        gradients={n: f"{n}_grad" for n in TRAINABLE},
        states={"running_mean": "running_mean.updated"},
        random_nodes=random,
    )
    onnx.checker.check_model(model)
    return model


def step_model(dropout: bool, optimizer: object) -> onnx.ModelProto:
    """Loss, gradients and update in one graph, from the parts."""
    model = gradient_model(dropout)
    graph = model.graph
    del graph.output[2:]
    update = proto(
        build.sequence_model(optimizer, [(n, SHAPES[n]) for n in TRAINABLE], opset=18)
    ).graph
    names = {"learning_rate": "learning_rate", "step": "step"}
    states = [
        i.name
        for i in update.input
        if i.name not in {"learning_rate", "step", "params", "gradients"}
    ]
    if not optimizer.states:
        states = []
    for kind in ["params", "gradients", *states]:
        items = {
            "params": TRAINABLE,
            "gradients": [f"{n}_grad" for n in TRAINABLE],
        }.get(kind, [f"{n}.{kind}" for n in TRAINABLE])
        graph.node.append(helper.make_node("SequenceConstruct", items, [f"seq/{kind}"]))
        names[kind] = f"seq/{kind}"
    for kind in ["params", *states]:
        names[f"{kind}.updated"] = f"seq/{kind}.updated"

    def renamed(name: str) -> str:
        return names.get(name, f"update/{name}") if name else ""

    def rename(node: onnx.NodeProto) -> None:
        node.input[:] = [renamed(n) for n in node.input]
        node.output[:] = [renamed(n) for n in node.output]
        node.name = f"update/{node.name}"
        for branch in (a.g for a in node.attribute if a.HasField("g")):
            for inner in branch.node:
                rename(inner)
            for result in branch.output:
                result.name = renamed(result.name)

    for node in update.node:
        graph.node.append(node)
        rename(graph.node[-1])
    for constant in update.initializer:
        copy = onnx.TensorProto()
        copy.CopyFrom(constant)
        copy.name = renamed(constant.name)
        graph.initializer.append(copy)
    for kind in states:
        for name in TRAINABLE:
            graph.input.append(helper.make_tensor_value_info(f"{name}.{kind}", 1, SHAPES[name]))
    graph.input.append(helper.make_tensor_value_info("learning_rate", 1, [1]))
    graph.input.append(helper.make_tensor_value_info("step", TensorProto.INT64, [1]))
    for kind in ["params", *states]:
        for index, name in enumerate(TRAINABLE):
            out = f"{name}.updated" if kind == "params" else f"{name}.{kind}.updated"
            position = f"position/{index}"
            if position not in {i.name for i in graph.initializer}:
                graph.initializer.append(
                    onnx.numpy_helper.from_array(np.array(index, np.int64), position)
                )
            graph.node.append(
                helper.make_node("SequenceAt", [names[f"{kind}.updated"], position], [out])
            )
            graph.output.append(helper.make_tensor_value_info(out, 1, SHAPES[name]))
    graph.output.append(helper.make_tensor_value_info("running_mean.updated", 1, [4]))
    random = [n.name for n in graph.node if n.op_type == "Dropout"]
    describe(
        model,
        "step",
        states={"running_mean": "running_mean.updated"},
        random_nodes=random,
        optimizer=build.describe(optimizer, [(n, SHAPES[n]) for n in TRAINABLE]),
    )
    onnx.checker.check_model(model)
    return model
