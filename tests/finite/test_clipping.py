"""Clipping by the common norm, wherever it is done, with gradients whose squares overflow."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnxtrain import onnxblock, optim
from onnxtrain.api import CheckpointState, Module, Optimizer, Trainer
from onnxtrain.artifacts import updates
from onnxtrain.distributed.shard import ShardedOptimizer
from onnxtrain.runtime.step.finite import all_finite, global_norm, square_sum
from onnxtrain.runtime.step.update import load_optimizer
from tests.distributed.threads import together

from . import models

SIZES = [1e-30, 1.0, 1e18, 1e20, 1e30, 3e38]
SHAPES = {"a": (3, 4), "b": (4,), "s": ()}
CLIP = 0.5
CHAINS = {
    "sgd": optim.sgd,
    "momentum": lambda **o: optim.sgd(momentum=0.9, **o),
    "adamw": optim.adamw,
    "adam torch": lambda **o: optim.adamw(form="torch", **o),
    "lamb": optim.lamb,
    "adagrad": optim.adagrad,
    "rmsprop": optim.rmsprop,
    "rmsprop centered": lambda **o: optim.rmsprop(centered=True, **o),
    "adadelta": optim.adadelta,
    "lion": optim.lion,
    "adafactor": optim.adafactor,
}


def gradients(size: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    # no element larger than the size: all of them are finite numbers of single precision
    return {n: np.asarray(rng.uniform(-1, 1, s) * size, np.float32) for n, s in SHAPES.items()}


def start() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {n: np.asarray(rng.normal(size=s), np.float32) for n, s in SHAPES.items()}


def clipped(values: dict[str, np.ndarray], limit: float = CLIP) -> dict[str, np.ndarray]:
    norm = np.sqrt(sum((v.astype(np.float64) ** 2).sum() for v in values.values()))
    factor = min(1.0, limit / (norm + 1e-6))
    return {n: np.asarray(v * np.float64(factor), np.float32) for n, v in values.items()}


def tolerance(size: float) -> float:
    """A factor below 1.2e-38 is a denormal number, with fewer digits."""
    return 1e-5 if size < 1e38 else 1e-3


def run_sequence(optimizer, values):
    names = list(SHAPES)
    model = optim.sequence_model(optimizer, [(n, SHAPES[n]) for n in names])
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    feeds = {
        "learning_rate": np.array([0.1], np.float32),
        "step": np.array([1], np.int64),
        "params": list(start().values()),
        "gradients": [values[n] for n in names],
    }
    for entry in session.get_inputs():
        if entry.name not in feeds:
            shapes = [optimizer.state_shape(entry.name, SHAPES[n]) for n in names]
            feeds[entry.name] = [np.zeros(s, np.float32) for s in shapes]
    return dict(zip(names, session.run(["params.updated"], feeds)[0]))


def run_tensors(optimizer, values):
    model = optim.tensor_model(optimizer, list(SHAPES.items()))
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    feeds = {"learning_rate": np.array([0.1], np.float32), "step": np.array([1], np.int64)}
    feeds |= start() | {f"{n}_grad": v for n, v in values.items()}
    for name, shape in SHAPES.items():
        for state in optimizer.states:
            feeds[f"{name}.{state}"] = np.zeros(optimizer.state_shape(state, shape), np.float32)
    known = {i.name for i in session.get_inputs()}
    feeds = {n: v for n, v in feeds.items() if n in known}
    return dict(zip(SHAPES, session.run([f"{n}.updated" for n in SHAPES], feeds)))


def run_device(optimizer, values, doubles=True):
    """The update that JavaScript runs; without double it is the one for WebGPU."""
    model = optim.sequence_model(optimizer, list(SHAPES.items()))
    file = load_optimizer(ir.to_proto(model).SerializeToString())
    content, feeds, updated = updates.update(file, SHAPES, doubles=doubles)
    known = {f"param/{n}": v for n, v in start().items()}
    known |= {f"grad/{n}": v for n, v in values.items()}
    for name, shape in SHAPES.items():
        for state in optimizer.states:
            known[f"optim/{state}/{name}"] = np.zeros(
                optimizer.state_shape(state, shape), np.float32
            )
    limit = optimizer.clip.max_norm if optimizer.clip is not None else 3.4e38
    numbers = {"learning_rate": 0.1, "scale": 1.0, "clip_norm": limit}
    given = {name: np.array([number], np.float32) for name, number in numbers.items()}
    given |= {name: known[key] for name, key in feeds.items()} | {"step": np.array([1])}
    session = ort.InferenceSession(content)
    results = dict(zip(updated.values(), session.run([*updated], given)))
    return {n: results[f"param/{n}"] for n in SHAPES}


def run_webgpu(optimizer, values):
    return run_device(optimizer, values, doubles=False)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("run", [run_sequence, run_tensors, run_device, run_webgpu])
def test_in_the_graph(run, chain, size):
    """As without clipping, on gradients that were clipped in double precision before."""
    values = gradients(size)
    found = run(CHAINS[chain](clip=optim.ClipNorm(CLIP)), values)
    expected = run(CHAINS[chain](), clipped(values))
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, rtol=tolerance(size), atol=tolerance(size), err_msg=name
        )


@pytest.mark.parametrize("size", [1.0, 1e30])
@pytest.mark.parametrize("run", [run_device, run_webgpu])
def test_no_limit_on_a_device(run, size):
    values = gradients(size)
    for name, value in run(optim.sgd(), values).items():
        np.testing.assert_allclose(value, start()[name] - np.float32(0.1) * values[name], rtol=1e-5)


def test_one_more_node_and_not_one_per_gradient():
    """What is rare is inside one If; the graph that runs every time does not grow."""

    def model(**options):
        return ir.to_proto(optim.tensor_model(optim.sgd(**options), list(SHAPES.items()))).graph

    plain, limited = model(), model(clip=optim.ClipNorm(1.0))
    kinds = [n.op_type for n in limited.node]
    assert kinds.count("If") == 1
    assert kinds.count("ReduceSumSquare") == len(SHAPES)
    scalars = {"Sum", "Sqrt", "Add", "Div", "Greater", "If", "Min", "ReduceSumSquare", "Neg"}
    added = len(kinds) - len(plain.node)
    assert added <= len(SHAPES) + len(scalars)


@pytest.mark.parametrize("values", [[np.nan], [np.inf], [1e30, np.nan]])
@pytest.mark.parametrize("run", [run_sequence, run_tensors, run_device])
def test_what_is_not_finite_is_seen(run, values):
    """A NaN is not clipped away."""
    bad = gradients(1.0)
    bad["b"][: len(values)] = values
    found = run(optim.sgd(clip=optim.ClipNorm(CLIP)), bad)
    assert not all(np.isfinite(v).all() for v in found.values())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["clipped", "momentum"])
def test_module_and_optimizer(folders, update, name, size):
    limit = 0.5  # of the artifacts, or set here
    state = CheckpointState.load_checkpoint(folders(name) / "checkpoint")
    module = Module(folders(name) / "training_model.onnx", state, check_finite=True)
    optimizer = Optimizer(folders(name) / "optimizer_model.onnx", module)
    optimizer.clip_norm = None if name == "clipped" else limit
    rng = np.random.default_rng(0)
    values = {n: np.float32(rng.uniform(-size, size, s.shape)) for n, s in
              state.training_state.gradients.specs.items()}  # fmt: skip
    for n, value in values.items():
        state.training_state.gradients.view(n)[...] = value
    optimizer.step()
    moments = state.training_state.optimizer.states["first_order_moments"]
    share = 0.1 if name == "clipped" else 1.0
    for n, value in clipped(values, limit).items():
        np.testing.assert_allclose(
            moments.view(n), share * value, rtol=tolerance(size), atol=1e-30, err_msg=n
        )
    models.assert_same(models.everything(state), models.everything(state))  # and finite


def one_graph_step(folder, rate):
    """The first batch of the shared network with targets so far away that gradients are huge."""
    trainer = Trainer.from_directory(folder, learning_rate=rate)
    x, target = models.good(0)
    trainer.fit([(x, target - np.float32(1e30))], progress=False)
    return trainer


def test_one_graph_step(folders, monkeypatch):
    """Its loss overflows (to which nobody objects here), its gradients are about 1e30."""
    monkeypatch.setenv("ONNXTRAIN_NO_NUMBA", "1")
    trainer = one_graph_step(folders("clipped"), 0.1)
    moments = trainer.state.training_state.optimizer.states["first_order_moments"]
    norm = global_norm(moments)
    np.testing.assert_allclose(norm, 0.1 * 0.5, rtol=1e-5)
    assert trainer.step == 1


@pytest.mark.parametrize("size", SIZES)
def test_sharded(folders, size):
    def run(backend):
        state = CheckpointState.load_checkpoint(folders("momentum") / "checkpoint")
        module = Module(folders("momentum") / "training_model.onnx", state)
        optimizer = ShardedOptimizer(
            folders("momentum") / "optimizer_model.onnx", module, backend, CLIP
        )
        data = state.training_state.gradients.buffers["F32"].data
        data[...] = np.float32(np.random.default_rng(0).uniform(-size, size, data.size))
        optimizer.apply(1.0, optimizer.square(np.zeros(1, np.float32)))
        return data.copy(), {n: m.buffers["F32"].data for n, m in optimizer.moments.items()}

    found = together(2, run)
    expected = clipped({"all": found[0][0]})["all"]
    moments = np.concatenate([m["first_order_moments"] for _, m in found])
    np.testing.assert_allclose(moments, expected, rtol=tolerance(size), atol=1e-30)


@pytest.mark.parametrize("size", SIZES)
def test_block_on_a_sequence(size):
    class Forward(onnxblock.ForwardBlock):
        def build(self, *names):
            sequence = onnxblock.blocks.SequenceConstruct()(*names)
            return onnxblock.optim.ClipGradNorm(CLIP)(sequence)

    values = gradients(size)
    infos = [onnx.helper.make_tensor_value_info(n, 1, s) for n, s in SHAPES.items()]
    outs = [onnx.helper.make_tensor_value_info(f"{n}_out", 1, s) for n, s in SHAPES.items()]
    nodes = [onnx.helper.make_node("Identity", [n], [f"{n}_out"]) for n in SHAPES]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", infos, outs),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
        ir_version=8,
    )
    block = Forward()
    with onnxblock.base(model):
        block(*SHAPES)
    built = block.to_model_proto()
    onnx.checker.check_model(built, full_check=True)
    session = ort.InferenceSession(built.SerializeToString())
    (found,) = session.run([o.name for o in session.get_outputs()][:1], values)
    for got, value in zip(found, clipped(values).values(), strict=True):
        np.testing.assert_allclose(got, value, rtol=tolerance(size), atol=1e-30)


# --- the numbers behind it ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 7, 65536, 200_000])
def test_square_sum(count, kind):
    values = np.random.default_rng(0).normal(size=count).astype(kind)
    for factor in (1.0, 1e25):
        data = (values * kind(factor)).astype(kind)
        expected = float((data.astype(np.float64) ** 2).sum())
        assert square_sum(data) == pytest.approx(expected, rel=1e-5)
        assert all_finite(data)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 70_000, 199_999])
def test_one_bad_number_is_found_wherever_it_is(kind, bad, at):
    data = np.zeros(200_000, kind)
    data[5] = np.finfo(kind).max
    assert all_finite(data)
    data[at] = bad
    assert not all_finite(data)
    if kind != np.float16:
        assert not np.isfinite(square_sum(data))


def test_description_of_the_optimizer_stays_json(tmp_path):
    """A limit that JSON cannot hold never gets into a file."""
    with pytest.raises(optim.OptimizerError, match="left out for no limit"):
        optim.ClipNorm(float("inf"))
    described = optim.describe(optim.sgd(clip=optim.ClipNorm(2.0)))
    assert json.loads(json.dumps(described, allow_nan=False))["clip"] == {"norm": 2.0}


LONG_SHAPES = {"table": (4096, 1024), "b": (4,), "s": ()}


@pytest.mark.parametrize("run", [run_sequence, run_tensors, run_device])
def test_the_norm_of_millions_of_numbers_is_right(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime adds them up one after the other: five millionths of the norm were missing."""
    monkeypatch.setitem(globals(), "SHAPES", LONG_SHAPES)
    zeros = {n: np.zeros(shape, np.float32) for n, shape in LONG_SHAPES.items()}
    monkeypatch.setitem(globals(), "start", lambda: zeros)
    values = gradients(1.0)
    steps = run(optim.sgd(clip=optim.ClipNorm(CLIP)), values)
    exact = {n: -0.1 * v for n, v in clipped(values).items()}
    ratio = np.linalg.norm(steps["table"]) / np.linalg.norm(exact["table"])
    assert abs(ratio - 1) < 2e-6
