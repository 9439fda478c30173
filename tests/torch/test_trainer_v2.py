"""ORTTrainer with dictionaries: description, options, configurations, schedules, checkpoints."""

from __future__ import annotations

import copy
import math
import sys

import numpy as np
import pytest
import torch
from torch import nn

from onnxtrain.compat.ort.orttrainer import amp, optim
from onnxtrain.errors import CheckpointError, InputError, StateError, UnknownNameError
from onnxtrain.runtime.step import engines
from onnxtrain.torch import (
    ORTTrainer,
    ORTTrainerOptions,
    ORTTrainerV2,
    TrainStepInfo,
    aggregate_checkpoints,
)
from onnxtrain.torch.export import export

from .models import Lamb, Net, batches, train_torch

DESC = {
    "inputs": [("x", ["batch", 5]), ("label", ["batch"])],
    "outputs": [("loss", [], True), ("out", ["batch", 3])],
}


def trainer(model, config=None, options=None, desc=DESC, loss_fn=nn.functional.cross_entropy):
    options = {"exporter": "torchscript", **(options or {})}
    return ORTTrainer(model, desc, config or optim.SGDConfig(lr=0.1), loss_fn, options)


def losses(made, data) -> list[float]:
    return [made.train_step(x, y)[0].item() for x, y in data]


# --- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "optimizer", "clip"),
    [
        (optim.SGDConfig(lr=0.1), lambda p: torch.optim.SGD(p, 0.1), None),
        (
            optim.AdamConfig(lr=0.01, lambda_coef=0.02),
            lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.02),
            1.0,
        ),
        (
            optim.LambConfig(lr=0.01, lambda_coef=0.02, max_norm_clip=0.5),
            lambda p: Lamb(p, 0.01, weight_decay=0.02, correct=False),
            0.5,
        ),
    ],
    ids=["sgd", "adam", "lamb"],
)
def test_trajectories_follow_torch_for_100_steps(config, optimizer, clip) -> None:
    model = Net()
    reference = copy.deepcopy(model)
    expected = train_torch(reference, optimizer(reference.parameters()), batches(100), clip)
    made = trainer(model, config)
    assert isinstance(made, ORTTrainerV2)
    np.testing.assert_allclose(losses(made, batches(100)), expected, rtol=1e-4)
    assert made._train_step_info.optimization_step == made._train_step_info.step == 100


def test_decay_after_the_update() -> None:
    """Hugging Face's form, against its equations."""
    model = Net()
    lr, decay = 0.01, 0.1
    config = optim.AdamConfig(
        lr=lr, lambda_coef=decay, weight_decay_mode=optim.DecayMode.AFTER_WEIGHT_UPDATE,
        max_norm_clip=1e6,
    )  # fmt: skip
    made = trainer(model, config)
    m, v = {}, {}
    for t, (x, y) in enumerate(batches(4), start=1):
        made.train_step(x, y)
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for n, p in model.named_parameters():
                m[n] = 0.9 * m.get(n, 0) + 0.1 * p.grad
                v[n] = 0.999 * v.get(n, 0) + 0.001 * p.grad**2
                rate = lr * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
                p -= rate * m[n] / (v[n].sqrt() + 1e-8)
                p -= lr * decay * p
    for name, value in made.state_dict(pytorch_format=True).items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_groups_and_the_ratio_limits_of_lamb() -> None:
    model = Net()
    config = optim.LambConfig(
        params=[{"params": ["fc1.bias"], "ratio_min": 2.0, "ratio_max": 2.0}],
        lr=0.01, ratio_max=0.0, max_norm_clip=1e6,
    )  # fmt: skip
    made = trainer(model, config)
    start = {n: t.clone() for n, t in model.state_dict().items()}
    losses(made, batches(1))
    moved = [n for n, a in made.state_dict(True).items() if not torch.equal(a, start[n])]
    # a ratio of 0 holds all others, except where it has no meaning: a weight of norm 0
    assert moved == ["fc1.bias", "norm.bias"]
    with pytest.raises(UnknownNameError, match="fc9"):
        losses(trainer(model, optim.AdamConfig(params=[{"params": ["fc9"]}])), batches(1))


GROUP = [{"params": ["fc1.bias", "norm.bias"], "alpha": 0.5, "lambda_coef": 0.0}]


@pytest.mark.parametrize(
    "config",
    [
        lambda: optim.SGDConfig(lr=0.1, max_norm_clip=0.5),
        lambda: optim.AdamConfig(lr=0.01, lambda_coef=0.1, params=GROUP),
        lambda: optim.LambConfig(lr=0.01, lambda_coef=0.1, params=GROUP),
    ],
    ids=["sgd", "adam", "lamb"],
)
def test_one_graph_and_the_flat_update_train_alike(
    config, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few weights are updated in the graph of the step, many as a vector; groups in both."""
    model = Net()
    one = trainer(copy.deepcopy(model), config())
    first = losses(one, batches(3))
    monkeypatch.setattr(engines, "FEW_NODES", {"elementwise": 0, "tensor": 0})
    flat = trainer(model, config())
    np.testing.assert_allclose(losses(flat, batches(3)), first, rtol=1e-5)
    ways = [made._core.engine.is_one_graph for made in (one, flat)]
    assert ways == [True, False]
    wanted, found = one.state_dict(), flat.state_dict()
    assert str(wanted.keys()) == str(found.keys())
    for section in ("model", "optimizer"):
        assert_close(found[section], wanted[section])
    one.save_checkpoint(str(tmp_path / "c"))
    flat.load_checkpoint(str(tmp_path / "c"))
    np.testing.assert_allclose(losses(flat, batches(2)), losses(one, batches(2)), rtol=1e-5)


def assert_close(found, wanted) -> None:
    """The same names in the same order, and values to rounding."""
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            assert_close(found[name], value)
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_group_is_one_run_over_the_flat_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "FEW_NODES", {"elementwise": 0, "tensor": 0})
    made = trainer(Net(), optim.AdamConfig(params=GROUP))
    losses(made, batches(1))
    engine = made._core.engine
    assert [chunk.group for chunk in engine._update.chunks] == [0, 1]
    names = ["fc1.weight", "fc1.bias", "norm.weight", "norm.bias", "fc2.weight", "fc2.bias"]
    assert list(engine.state.trainable) == names
    assert engine.state.trainable.layout[:2] == GROUP[0]["params"]


def test_accumulation_scheduler_and_frozen_weights() -> None:
    model, data = Net(), list(batches(8))
    schedule = optim.lr_scheduler.LinearWarmup(total_steps=4, warmup=0.5)
    made = trainer(
        model,
        optim.SGDConfig(lr=0.2),
        {
            "batch": {"gradient_accumulation_steps": 2},
            "lr_scheduler": schedule,
            "utils": {"frozen_weights": ["fc1.weight"]},
        },
    )
    rates = []
    for x, y in data:
        made.train_step(x, y)
        rates.append(schedule.get_last_lr()[0])
    assert rates == pytest.approx([0, 0, 0.1, 0.1, 0.2, 0.2, 0.1, 0.1])
    assert (made._train_step_info.step, made._train_step_info.optimization_step) == (8, 4)
    reference = copy.deepcopy(model)
    reference.fc1.weight.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in reference.parameters() if p.requires_grad], 0.2)
    for i in range(4):
        optimizer.param_groups[0]["lr"] = rates[2 * i]
        (x1, y1), (x2, y2) = data[2 * i : 2 * i + 2]
        train_torch(reference, optimizer, [(torch.cat([x1, x2]), torch.cat([y1, y2]))])
    for name, value in made.state_dict(pytorch_format=True).items():
        torch.testing.assert_close(value, reference.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_inputs_by_name_in_any_order_and_fetches() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(5, 3)

        def forward(self, a, b):
            return self.fc(a) + 2 * b

    model = Two()
    desc = {
        "inputs": [("b", ["n", 3]), ("a", ["n", 5]), ("label", ["n"])],
        "outputs": [("loss", [], True), ("out", ["n", 3])],
    }
    made = trainer(model, optim.SGDConfig(lr=0.0), desc=desc)
    a, b, y = torch.randn(4, 5), torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    _, out = made.train_step(b, a, y)
    torch.testing.assert_close(out, model(a, b).detach())
    torch.testing.assert_close(made.train_step(label=y, a=a, b=b)[1], out)
    made._train_step_info.fetches = ["out"]
    torch.testing.assert_close(made.train_step(b, a, y), out)
    torch.testing.assert_close(made.eval_step(b, a), out)
    with pytest.raises(InputError, match=r"Missing input\(s\) \['label'\]"):
        made.train_step(b, a)
    wrong = {**desc, "inputs": [("c", ["n", 3]), *desc["inputs"][1:]]}
    with pytest.raises(ValueError, match=r"Invalid model_desc: \['c'\].*forward"):
        trainer(model, desc=wrong).train_step(b, a, y)


def test_a_model_with_its_own_loss_in_any_place() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x, label):
            out = self.net(x)
            return out, nn.functional.cross_entropy(out, label)

    model = Whole()
    reference = copy.deepcopy(model.net)
    expected = train_torch(reference, torch.optim.SGD(reference.parameters(), 0.1), batches(5))
    desc = {**DESC, "outputs": [("out", ["batch", 3]), ("loss", [], True)]}
    made = trainer(model, desc=desc, loss_fn=None)
    found = [made.train_step(x, y)[1].item() for x, y in batches(5)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_an_onnx_model_as_input() -> None:
    model = Net()
    (x, y), *_ = batches(1)
    proto = export(
        model, (x, y), loss_fn=nn.CrossEntropyLoss(), input_names=["x", "label"],
        output_names=["loss", "out"], exporter="torchscript",
    ).model  # fmt: skip
    expected = train_torch(model, torch.optim.SGD(model.parameters(), 0.1), batches(5))
    made = trainer(proto, loss_fn=None)
    np.testing.assert_allclose(losses(made, batches(5)), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="loss_fn cannot be combined"):
        trainer(proto)


def test_mixed_precision_skips_infinite_gradients() -> None:
    scaler = amp.DynamicLossScaler(loss_scale=64.0, up_scale_window=2)
    options = {"mixed_precision": {"enabled": True, "loss_scaler": scaler}}
    model = nn.Linear(5, 3)
    desc = {**DESC, "inputs": [("input", ["batch", 5]), ("label", ["batch"])]}
    made = trainer(model, options=options, desc=desc)
    data = list(batches(3))
    bad = torch.full((12, 5), torch.inf), data[0][1]
    seen = []
    for x, y in (data[0], bad, data[1], data[2]):
        made.train_step(x, y)
        info = made._train_step_info
        seen.append((info.all_finite, info.optimization_step, scaler.loss_scale))
    assert seen == [(True, 1, 64), (False, 1, 32), (True, 2, 32), (True, 3, 64)]
    reference = train_torch(model, torch.optim.SGD(model.parameters(), 0.1), data)
    assert math.isfinite(reference[-1])
    torch.testing.assert_close(made.state_dict(True)["weight"], model.weight.detach())


# --- options, descriptions, configurations --------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bath": {}}, "{'bath': ['unknown field']}"),
        ({"batch": {"size": 1}}, "{'batch': [{'size': ['unknown field']}]}"),
        (
            {"mixed_precision": {"enabled": 1}},
            "{'mixed_precision': [{'enabled': ['must be of boolean type']}]}",
        ),
        (
            {"batch": {"gradient_accumulation_steps": 0}},
            "{'batch': [{'gradient_accumulation_steps': ['min value is 1']}]}",
        ),
        ({"device": "cpu"}, "{'device': ['must be of dict type']}"),
        (
            {"distributed": {"deepspeed_zero_optimization": {"stage": 3}}},
            (
                "{'distributed': [{'deepspeed_zero_optimization': "
                "[{'stage': ['unallowed value 3']}]}]}"
            ),
        ),
        (
            {"_internal_use": {"onnx_opset_version": 11}},
            "{'_internal_use': [{'onnx_opset_version': ['must be from 12 to 21']}]}",
        ),
        ({"lr_scheduler": 1}, "{'lr_scheduler': ['must be of LRScheduler type']}"),
        (
            {"utils": {"frozen_weights": "fc1"}},
            "{'utils': [{'frozen_weights': ['must be of list of str type']}]}",
        ),
    ],
)
def test_invalid_options(options, message) -> None:
    with pytest.raises(ValueError, match="Invalid options") as caught:
        ORTTrainerOptions(options)
    assert str(caught.value) == f"Invalid options: {message}"


def test_options_have_defaults_and_attributes() -> None:
    options = ORTTrainerOptions({"debug": {"graph_save_paths": {}}})
    assert options.utils.grad_norm_clip is True
    assert options.distributed.pipeline_parallel.num_pipeline_micro_batches == 1
    assert options._internal_use.onnx_opset_version == 14
    assert options.lr_scheduler is None
    with pytest.raises(AttributeError, match="no option 'nonsense'"):
        _ = options.nonsense
    ORTTrainerOptions().utils.frozen_weights.append("x")
    assert ORTTrainerOptions().utils.frozen_weights == []
    with pytest.raises(InputError, match="enable_adasum"):
        trainer(Net(), options={"distributed": {"enable_adasum": True}})


NAME = "the first element of the tuple (aka name) must be a string"
SHAPE = "the second element of the tuple (aka shape) must be a list"
DIM = "each shape must be either a string or integer"
IS_LOSS = "the third element of the tuple (aka is_loss) must be a boolean"


@pytest.mark.parametrize(
    ("desc", "message"),
    [
        ({"inputs": [(True, [])], "outputs": [("o", [], True)]}, {"inputs": [{0: [NAME]}]}),
        ({"inputs": [("x", None)], "outputs": [("o", [], True)]}, {"inputs": [{0: [SHAPE]}]}),
        ({"inputs": [("x", [])], "outputs": [("o", [], 1)]}, {"outputs": [{0: [IS_LOSS]}]}),
        ({"inputs": [("x", [1.5])], "outputs": [("o", [True])]},
         {"inputs": [{0: [DIM]}], "outputs": [{0: [DIM]}]}),
        ({"inputs": [("x", [])], "outputs": [("o", [], True), ("p", [], True)]},
         {"outputs": [{1: ["only one is_loss can bet set to True"]}]}),
        ({"inputz": [("x", [])], "outputs": [("o", [], True)]},
         {"inputs": ["required field"], "inputz": ["unknown field"]}),
    ],
)  # fmt: skip
def test_invalid_descriptions(desc, message) -> None:
    with pytest.raises(ValueError, match="Invalid model_desc") as caught:
        trainer(Net(), desc=desc)
    assert str(caught.value) == f"Invalid model_desc: {message}"


def test_invalid_configurations() -> None:
    with pytest.raises(AssertionError, match="'params' must be an empty list for SGD"):
        optim.SGDConfig(params=[{"params": ["a"]}])
    with pytest.raises(ValueError, match="'lr' is not supported inside params"):
        optim.AdamConfig(params=[{"params": ["a"], "lr": 0.1}])
    with pytest.raises(ValueError, match="does not have"):
        optim.AdamConfig(params=[{"params": ["a"], "ratio_min": 0.1}])
    with pytest.raises(ValueError, match="list of names under 'params'"):
        optim.LambConfig(params=[{"alpha": 1.0}])
    with pytest.raises(ValueError, match="'lr' must be a positive number"):
        optim.AdamConfig(lr=-1.0)
    with pytest.raises(ValueError, match="'optim_config' is required"):
        ORTTrainer(Net(), DESC, "SGD")
    with pytest.raises(ValueError, match="one output must be the loss"):
        trainer(Net(), desc={**DESC, "outputs": [("loss", [])]})


# --- schedules ------------------------------------------------------------------------------------


def rates(schedule, steps, lr: float = 2.0) -> list[float]:
    found = []
    for step in steps:
        info = TrainStepInfo(optim.SGDConfig(lr=lr), optimization_step=step)
        schedule._step(info)
        found += schedule.get_last_lr()
    return found


def test_schedules_follow_their_formulas() -> None:
    made = optim.lr_scheduler
    steps = [0, 5, 10, 55, 100, 120]
    assert rates(made.ConstantWarmup(100, warmup=0.1), steps) == [0, 1, 2, 2, 2, 2]
    linear = rates(made.LinearWarmup(100, warmup=0.1), steps)
    assert linear == pytest.approx([0, 1, 2, 1, 0, 0])
    cosine = rates(made.CosineWarmup(100, warmup=0.1), [0, 5, 10, 40, 55, 100])
    expected = [0, 1, 2, 1 + math.cos(math.pi / 3), 1, 0]
    assert cosine == pytest.approx(expected)
    cycles = rates(made.CosineWarmup(100, cycles=1.0, warmup=0.1), [55, 100])
    assert cycles == pytest.approx([0, 2])
    poly = rates(made.PolyWarmup(100, lr_end=0.5, power=2.0, warmup=0.1), steps)
    assert poly == pytest.approx([0, 1, 2, 1.5 * 0.25 + 0.5, 0.5, 0.5])
    assert made.PolyWarmup(10).get_last_lr() == []


def test_schedules_refuse_nonsense() -> None:
    made = optim.lr_scheduler
    for wrong in (lambda: made.LinearWarmup(0), lambda: made.LinearWarmup(5, warmup=1.0),
                  lambda: made.CosineWarmup(5, cycles=0),
                  lambda: made.PolyWarmup(5, lr_end=-1)):  # fmt: skip
        with pytest.raises(InputError):
            wrong()
    with pytest.raises(InputError, match="below the learning rate"):
        rates(made.PolyWarmup(10, lr_end=3.0), [5])
    with pytest.raises(InputError, match="TrainStepInfo"):
        made.LinearWarmup(5)._step("info")
    with pytest.raises(InputError, match="optimization_step"):
        TrainStepInfo(optim.SGDConfig(), optimization_step=-1)


# --- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [optim.SGDConfig(lr=0.1), optim.AdamConfig(), optim.LambConfig()]
)
def test_a_checkpoint_resumes_exactly(config, tmp_path) -> None:
    data = list(batches(8))
    options = {"lr_scheduler": optim.lr_scheduler.CosineWarmup(8, warmup=0.3)}
    made = trainer(Net(), config, options)
    losses(made, data[:4])
    made.save_checkpoint(tmp_path / "c.ort", {"epoch": 2, "note": "x"})
    expected = losses(made, data[4:])
    other = trainer(Net(), config, options)
    assert other.load_checkpoint(tmp_path / "c.ort") == {"epoch": 2, "note": "x"}
    assert losses(other, data[4:]) == expected
    assert other._train_step_info == made._train_step_info
    weights = aggregate_checkpoints([tmp_path / "c.ort"])
    assert set(weights) == set(Net().state_dict())
    assert all(isinstance(v, torch.Tensor) for v in weights.values())
    whole = aggregate_checkpoints([tmp_path / "c.ort"] * 2, pytorch_format=False)
    assert whole["train_step_info"] == {"optimization_step": 4, "step": 4}


def test_the_schema_of_a_state() -> None:
    made = trainer(Net(), optim.AdamConfig())
    with pytest.warns(UserWarning, match="not initialized yet"):
        assert made.state_dict() == {}
    losses(made, batches(3))
    state = made.state_dict()
    assert list(state) == ["model", "optimizer", "trainer_options", "train_step_info"]
    entry = state["optimizer"]["fc1.weight"]
    assert {k: v.shape for k, v in entry.items()} == {
        "Moment_1": (16, 5), "Moment_2": (16, 5), "Update_Count": (1,),
    }  # fmt: skip
    assert entry["Update_Count"] == 4
    assert state["trainer_options"]["optimizer_name"] == "AdamOptimizer"
    assert state["train_step_info"] == {"optimization_step": 3, "step": 3}
    lamb = trainer(Net(), optim.LambConfig())
    losses(lamb, batches(3))
    assert lamb.state_dict()["optimizer"]["shared_optimizer_state"]["step"] == 4
    Net().load_state_dict(made.state_dict(pytorch_format=True))
    with pytest.raises(InputError, match="AdamOptimizer, this trainer has LambOptimizer"):
        lamb.load_state_dict(state)
    with pytest.raises(StateError, match=r"missing \['fc1.weight'"):
        made.load_state_dict({"model": {"full_precision": {}}})


def test_checkpoint_errors(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(Net())
    with pytest.raises(StateError, match="not created yet"):
        made.save_checkpoint(tmp_path / "c")
    losses(made, batches(1))
    with pytest.raises(InputError, match="user_dict can hold"):
        made.save_checkpoint(tmp_path / "c", {"f": object()})
    with pytest.raises(FileNotFoundError):
        made.load_checkpoint(tmp_path / "c")
    with pytest.raises(InputError, match="at least one"):
        made.load_checkpoint()
    (tmp_path / "h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(CheckpointError, match="Install h5py"):
        made.load_checkpoint(tmp_path / "h5")
    (tmp_path / "bad").write_bytes(b"no checkpoint at all")
    with pytest.raises(CheckpointError):
        made.load_checkpoint(tmp_path / "bad")


class _Group(dict):
    """Enough of an h5py group: names, and datasets read with an empty index."""

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass


class _Dataset:
    def __init__(self, value) -> None:
        self.value = value

    def __getitem__(self, index):
        assert index == ()
        return self.value


def test_hdf5_checkpoints_are_read(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = trainer(Net(), optim.AdamConfig())
    losses(source, batches(3))
    state = source.state_dict()

    def as_hdf5(value):
        if isinstance(value, dict):
            return _Group({k: as_hdf5(v) for k, v in value.items()})
        return _Dataset(value.encode() if isinstance(value, str) else value)

    fake = type(sys)("h5py")
    fake.File = lambda *_: as_hdf5({**state, "user_dict": "pickled"})
    monkeypatch.setitem(sys.modules, "h5py", fake)
    (tmp_path / "old").write_bytes(b"\x89HDF\r\n\x1a\n")
    made = trainer(Net(), optim.AdamConfig())
    assert made.load_checkpoint(tmp_path / "old") == {}
    data = list(batches(5))[3:]
    assert losses(made, data) == losses(source, data)


def test_graphs_can_be_written_and_the_export_checked(tmp_path) -> None:
    import onnx

    names = (
        "model_after_graph_transforms_path",
        "model_with_gradient_graph_path",
        "model_with_training_graph_path",
    )
    paths = {n: str(tmp_path / n) for n in names}
    options = {"debug": {"graph_save_paths": paths, "check_model_export": True}}
    made = trainer(Net(dropout=0.5), options=options)
    losses(made, batches(1))
    outputs = [[o.name for o in onnx.load(p).graph.output] for p in paths.values()]
    assert outputs[0] == ["loss", "out"]
    assert "fc1.weight_grad" in outputs[1]
    assert "fc1.weight.updated" in outputs[2]
    wrong = trainer(Net(), options={**options, "_internal_use": {"extra_postprocess": _spoil}})
    with pytest.raises(RuntimeError, match="The exported model's loss"):
        losses(wrong, batches(1))


def _spoil(model) -> None:
    """Another loss than the one that was exported."""
    for node in model.graph.node:
        if node.op_type == "Tanh":
            node.op_type = "Sigmoid"


def _train_in_process(rank: int, meeting: str, out: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2
    )
    torch.manual_seed(0)
    made = trainer(Net(), options={"distributed": {"world_rank": rank, "world_size": 2}})
    losses(made, list(batches(6))[rank::2])
    torch.save(made.state_dict(True), f"{out}{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_average_their_gradients(tmp_path) -> None:
    torch.multiprocessing.spawn(
        _train_in_process, (str(tmp_path / "meeting"), str(tmp_path / "weights")), nprocs=2
    )
    first, second = (torch.load(tmp_path / f"weights{rank}") for rank in (0, 1))
    torch.manual_seed(0)
    model, data = Net(), list(batches(6))
    pairs = [
        (torch.cat([a, b]), torch.cat([x, y])) for (a, x), (b, y) in zip(data[::2], data[1::2])
    ]
    train_torch(model, torch.optim.SGD(model.parameters(), 0.1), pairs)
    for name, value in model.state_dict().items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], value)


def test_processes_must_be_started_first() -> None:
    made = trainer(Net(), options={"distributed": {"world_size": 2}})
    with pytest.raises(RuntimeError, match="init_process_group"):
        losses(made, batches(1))
