"""Parameter groups with a rule of their own: the flat update against named tensors."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onnxtrain import optim
from onnxtrain.artifacts import updates
from onnxtrain.errors import ModelFileError
from onnxtrain.optim.recipes import from_operator
from onnxtrain.runtime.session.devices import Device
from onnxtrain.runtime.state.buffers import TensorStore
from onnxtrain.runtime.state.training_state import TrainingState
from onnxtrain.runtime.step import kernels
from onnxtrain.runtime.step.optimizer import attach
from onnxtrain.runtime.step.update import OptimizerFile, Update, load_optimizer

Array = np.ndarray[Any, Any]
SHAPES = {"w1": (5, 3), "b1": (5,), "w2": (4, 5), "b2": (4,)}
BIASES = ("b1", "b2")


def adam_with_groups() -> optim.Optimizer:
    main = from_operator("AdamOptimizer", {"lambda": 0.1, "max_norm_clip": None})
    own = from_operator("AdamOptimizer", {"alpha": 0.5, "epsilon": 1e-3, "weight_decay_mode": 1})
    group = optim.Group(list(BIASES), 0.5, 0.02, own.transforms, own.hyper)
    return main.replace(groups=(group,))


def lamb_with_groups() -> optim.Optimizer:
    main = from_operator("LambOptimizer", {"lambda": 0.1, "max_norm_clip": None})
    own = from_operator("LambOptimizer", {"do_bias_correction": 1, "ratio_max": 0.5})
    return main.replace(groups=(optim.Group(list(BIASES), 1.0, 0.0, own.transforms),))


OPTIMIZERS = {"Adam": adam_with_groups, "Lamb": lamb_with_groups}


def flat_file(optimizer: optim.Optimizer) -> OptimizerFile:
    model = optim.flat_model(optimizer, params=list(SHAPES.items()))
    return load_optimizer(ir.to_proto(model).SerializeToString())


def arrays(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}


def by_named_tensors(optimizer: optim.Optimizer, steps: int) -> dict[str, Array]:
    """The reference: every parameter has its update in one graph."""
    proto = ir.to_proto(optim.tensor_model(optimizer, list(SHAPES.items())))
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    values = arrays(0)
    for name, shape in SHAPES.items():
        values.update({f"{name}.{s}": np.zeros(shape, np.float32) for s in optimizer.states})
    for step in range(1, steps + 1):
        feeds = {**values, **{f"{n}_grad": g for n, g in arrays(step).items()}}
        feeds |= {"learning_rate": np.array([0.1], np.float32), "step": np.array([step])}
        known = {i.name for i in session.get_inputs()}
        names = [f"{n}.updated" for n in values]
        results = session.run(names, {n: v for n, v in feeds.items() if n in known})
        values = dict(zip(values, results))
    return values


def by_flat_update(
    file: OptimizerFile, steps: int, layout: list[str] | None = None
) -> tuple[dict[str, Array], Update]:
    state = TrainingState(TensorStore.from_arrays(arrays(0), layout))
    memory = attach(state, file)
    update = Update(file, state, Device("cpu"))
    for step in range(1, steps + 1):
        for name, gradient in arrays(step).items():
            state.need_gradients().view(name)[...] = gradient
        update.run(step, 0.1, 1.0)
    values = {n: state.trainable.view(n) for n in SHAPES}
    for kind, store in memory.states.items():
        values.update({f"{n}.{kind}": store.view(n) for n in SHAPES})
    return values, update


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_flat_update_is_that_of_named_tensors(name: str) -> None:
    optimizer = OPTIMIZERS[name]()
    found, _ = by_flat_update(flat_file(optimizer), 3)
    wanted = by_named_tensors(optimizer, 3)
    assert wanted.keys() == found.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=2e-5, atol=1e-7, err_msg=key)


def test_groups_side_by_side_are_one_run_each() -> None:
    """The order in memory is free: names, values and results are the same."""
    file = flat_file(adam_with_groups())
    alternating, update = by_flat_update(file, 2)
    assert len(update.chunks) == 4
    layout = ["w1", "w2", "b1", "b2"]
    contiguous, update = by_flat_update(file, 2, layout)
    assert len(update.chunks) == 2
    assert list(update.params) == list(SHAPES)
    assert update.params.layout == update.states[0].layout == update.gradients.layout == layout
    for key, value in alternating.items():
        np.testing.assert_array_equal(contiguous[key], value)


def test_kernels_know_the_rule_of_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    file = flat_file(adam_with_groups())
    by_graph, update = by_flat_update(file, 2)
    assert update.is_session
    monkeypatch.setattr(kernels, "COMPILED_PARAMETERS", 0)
    by_kernel, update = by_flat_update(file, 2)
    assert not update.is_session
    for key, value in by_graph.items():
        np.testing.assert_allclose(by_kernel[key], value, rtol=1e-5, atol=1e-7, err_msg=key)


def test_without_hyperparameters_of_the_group_there_is_no_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The chain alone does not tell a kernel what to compute."""
    monkeypatch.setattr(kernels, "COMPILED_PARAMETERS", 0)
    optimizer = adam_with_groups()
    groups = tuple(
        optim.Group(g.params, g.lr_scale, g.weight_decay, g.transforms) for g in optimizer.groups
    )
    _, update = by_flat_update(flat_file(optimizer.replace(groups=groups)), 1)
    assert update.is_session


def test_the_browser_gets_a_function_per_rule() -> None:
    optimizer = adam_with_groups()
    encoded, feeds, updated = updates.update(flat_file(optimizer), SHAPES)
    model = onnx.load_from_string(encoded)
    assert [f.name for f in model.functions] == ["Update", "Update0"]
    called = {n.output[0].rpartition("/")[2]: n.op_type for n in model.graph.node if n.domain}
    assert called == {"0": "Update", "1": "Update0", "2": "Update", "3": "Update0"}
    values = {f"param/{n}": a for n, a in arrays(0).items()}
    values |= {f"grad/{n}": a for n, a in arrays(1).items()}
    for state in optimizer.states:
        values |= {f"optim/{state}/{n}": np.zeros(s, np.float32) for n, s in SHAPES.items()}
    numbers = {"learning_rate": 0.1, "scale": 1.0, "clip_norm": np.inf}
    given = {name: values[key] for name, key in feeds.items()}
    given |= {n: np.array([v], np.float32) for n, v in numbers.items()}
    given["step"] = np.array([1])
    session = onnxruntime.InferenceSession(encoded)
    names = [o.name for o in session.get_outputs()]
    results = dict(zip(names, session.run(names, given)))
    wanted = by_named_tensors(optimizer, 1)
    for name, key in updated.items():
        kind, _, parameter = key.rpartition("/")
        stem = parameter if kind == "param" else f"{parameter}.{kind.removeprefix('optim/')}"
        np.testing.assert_allclose(results[name], wanted[stem], rtol=2e-5, atol=1e-7)


def changed(file: OptimizerFile, group: dict[str, Any]) -> bytes:
    model = onnx.load_from_string(file.model)
    entry = next(e for e in model.metadata_props if e.key == "onnxtrain.optimizer")
    described = json.loads(entry.value)
    described["groups"][0].update(group)
    entry.value = json.dumps(described)
    return model.SerializeToString()


def test_damaged_rules_are_refused() -> None:
    file = flat_file(adam_with_groups())
    with pytest.raises(ModelFileError, match="damaged"):
        load_optimizer(changed(file, {"flat": "?"}))
    with pytest.raises(ModelFileError, match="groups"):
        load_optimizer(changed(file, {"flat": 7}))
    other = base64.b64encode(flat_file(optim.sgd()).model).decode("ascii")
    with pytest.raises(ModelFileError, match="states"):
        load_optimizer(changed(file, {"flat": other}))
