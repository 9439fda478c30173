"""ORTTrainer with description objects and the optimizer's name."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from onnxtrain.compat.ort.orttrainer.descriptions import DescriptionError
from onnxtrain.errors import InputError, StateError, UnknownNameError
from onnxtrain.torch import (
    IODescription,
    LossScaler,
    ModelDescription,
    ORTTrainer,
    ORTTrainerV1,
    generate_sample,
    load_checkpoint,
    save_checkpoint,
)
from onnxtrain.torch.export import export

from .models import BATCH, LENGTH, WORDS, Lamb, Net, Statistics, Tied, batches, train_torch

RATE = IODescription("Learning_Rate", [1], torch.float32)


def description(batch: int | str = 12) -> ModelDescription:
    return ModelDescription(
        [IODescription("x", [batch, 5], torch.float32), IODescription("y", [batch], torch.int64)],
        [IODescription("loss", [], torch.float32), IODescription("out", [batch, 3])],
    )


def trainer(model, name="SGDOptimizer", attributes=None, batch: int | str = 12, **more):
    more = {"exporter": "torchscript", **more}  # the quicker one
    return ORTTrainer(
        model, nn.CrossEntropyLoss(), description(batch), name, attributes, RATE,
        torch.device("cpu"), **more,
    )  # fmt: skip


def losses(made, data, rate: float = 0.1) -> list[float]:
    return [made.train_step(x, y, torch.tensor([rate]))[0].item() for x, y in data]


# --- the seed's call ------------------------------------------------------------------------------


def test_the_getting_started_call_runs_as_written() -> None:
    """With its wrong types and shapes in the descriptions, which nobody checks."""
    bptt, batch_size, ntokens, lr = LENGTH, BATCH, WORDS, 5.0
    criterion = nn.CrossEntropyLoss()

    def loss_with_flat_output(output, target):
        output = output.view(-1, ntokens)
        return criterion(output, target)

    def model_description():
        input_desc = IODescription("src", [bptt, batch_size], torch.float32)
        label_desc = IODescription("label", [bptt, batch_size, ntokens], torch.int64)
        loss_desc = IODescription("loss", [], torch.float32)
        output_desc = IODescription("output", [bptt, batch_size, ntokens], torch.float32)
        return ModelDescription([input_desc, label_desc], [loss_desc, output_desc])

    def learning_rate_description():
        return IODescription("Learning_Rate", [lr], torch.float32)

    torch.manual_seed(0)
    model, device = Tied(dropout=0.2), torch.device("cpu")
    made = ORTTrainer(model, loss_with_flat_output, model_description(), "SGDOptimizer", None,
                      learning_rate_description(), device, _opset_version=12)  # fmt: skip
    assert isinstance(made, ORTTrainerV1)
    src, label = torch.randint(0, WORDS, (bptt, batch_size)), torch.randint(0, WORDS, (24,))
    first, output = made.train_step(src, label, torch.tensor([0.5]))
    assert output.shape == (bptt, batch_size, ntokens)
    for _ in range(30):
        loss, _ = made.train_step(src, label, torch.tensor([0.5]))
    assert loss < 0.6 * first


# --- trajectories ---------------------------------------------------------------------------------


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_sgd_follows_torch_for_100_steps(exporter: str) -> None:
    model = Net()
    reference = copy.deepcopy(model)
    expected = train_torch(reference, torch.optim.SGD(reference.parameters(), 0.1), batches(100))
    made = trainer(model, exporter=exporter)
    np.testing.assert_allclose(losses(made, batches(100)), expected, rtol=1e-4)
    assert made._core.exporter == exporter
    weights = made.state_dict(include_optimizer_state=False)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "attributes", "optimizer"),
    [
        (
            "AdamOptimizer",
            {"lambda": 0.01},
            lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.01),
        ),
        (
            "LambOptimizer",
            {"lambda": 0.01},
            lambda p: Lamb(p, 0.01, weight_decay=0.01, correct=False),
        ),
    ],
)
def test_adam_and_lamb_follow_torch_for_100_steps(name, attributes, optimizer) -> None:
    model = Net()
    reference = copy.deepcopy(model)
    expected = train_torch(reference, optimizer(reference.parameters()), batches(100), clip=1.0)
    made = trainer(model, name, lambda _: attributes)
    np.testing.assert_allclose(losses(made, batches(100), 0.01), expected, rtol=1e-4)


def test_clipping_can_be_switched_off_and_on() -> None:
    model = Net()
    for limit, enabled in ((0.05, True), (None, False)):
        reference = copy.deepcopy(model)
        expected = train_torch(
            reference, torch.optim.SGD(reference.parameters(), 0.5), batches(5), clip=limit
        )
        made = trainer(
            model, attributes=lambda _: {"max_norm_clip": 0.05}, enable_grad_norm_clip=enabled
        )
        np.testing.assert_allclose(losses(made, batches(5), 0.5), expected, rtol=1e-5)


def test_attributes_per_weight() -> None:
    model = Net()

    def attributes(name: str) -> dict[str, float]:
        own = {"lambda": 0.0, "alpha": 0.5} if name.endswith("bias") else {"lambda": 0.1}
        return {**own, "epsilon": 1e-8}

    reference = copy.deepcopy(model)
    biases = [p for n, p in reference.named_parameters() if n.endswith("bias")]
    others = [p for n, p in reference.named_parameters() if not n.endswith("bias")]
    optimizer = torch.optim.AdamW(
        [
            {"params": biases, "weight_decay": 0.0, "betas": (0.5, 0.999)},
            {"params": others, "weight_decay": 0.1},
        ],
        lr=0.01,
    )
    expected = train_torch(reference, optimizer, batches(20), clip=1.0)
    for more in ({}, {"use_mixed_precision": True, "loss_scaler": LossScaler("s", False, 1024.0)}):
        made = trainer(model, "AdamOptimizer", attributes, **more)
        np.testing.assert_allclose(losses(made, batches(20), 0.01), expected, rtol=1e-5)


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_batch_norm_statistics_are_torchs(exporter: str) -> None:
    """Variances of the sample, the count of batches: the state is the one torch would have."""
    model = Statistics()
    reference = copy.deepcopy(model)
    expected = train_torch(reference, torch.optim.SGD(reference.parameters(), 0.1), batches(10, 8))
    made = trainer(model, batch=8, exporter=exporter)
    np.testing.assert_allclose(losses(made, batches(10, 8)), expected, rtol=1e-4)
    torch.testing.assert_close(
        made.state_dict(), dict(reference.state_dict()), rtol=1e-4, atol=1e-5
    )
    x, y = next(batches(1, 8, seed=9))
    reference.eval()
    torch.testing.assert_close(made.eval_step(x, y)[1], reference(x).detach(), rtol=1e-3, atol=1e-4)
    again = trainer(Statistics(), batch=8, exporter=exporter)
    again.load_state_dict(made.state_dict())
    losses(again, batches(2, 8))
    assert again.state_dict()["bn1.num_batches_tracked"] == 12


def test_a_batch_norm_that_is_used_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.norm(self.norm(self.first(x)).relu() + 1))

    model = Twice()
    reference = copy.deepcopy(model)
    train_torch(reference, torch.optim.SGD(reference.parameters(), 0.1), batches(3, 8))
    made = trainer(model, batch=8)
    losses(made, batches(3, 8))
    for name in ("norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(
            made.state_dict()[name], reference.state_dict()[name], rtol=1e-4, atol=1e-5
        )


# --- what a step takes and gives ------------------------------------------------------------------


def test_onnxruntime_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    made = trainer(model)
    (x, y), *_ = batches(1)
    made.train_step(x, y, torch.tensor([0.1]))
    session = made._core.engine._step_for(("loss", "out")).session
    assert isinstance(session, onnxruntime.InferenceSession)
    names = {o.name for o in session.get_outputs()}
    assert {"fc1.weight.updated", "fc2.bias.updated", "loss"} <= names
    monkeypatch.setattr(nn.Module, "__call__", lambda *_: pytest.fail("torch was run"))
    before = made.state_dict()["fc1.weight"]
    made.train_step(x, y, torch.tensor([0.1]))
    made.eval_step(x, y)
    assert not torch.equal(made.state_dict()["fc1.weight"], before)


def test_inputs_by_name_and_fetches() -> None:
    model = Net()
    made = trainer(model)
    (x, y), *_ = batches(1)
    loss = made.train_step(x, y=y, Learning_Rate=torch.tensor([0.0]), fetches=["loss"])
    both = made.train_step(x=x, y=y, Learning_Rate=0.0)
    out = made.train_step(x, y, 0.0, fetches=["out"])
    assert loss.shape == ()
    assert loss == both[0]
    torch.testing.assert_close(out, both[1])
    torch.testing.assert_close(out, model(x).detach())
    assert made.global_step_ == 3


def test_fetches_train_the_same_weights() -> None:
    model = Net()
    plain, mixed = trainer(model), trainer(model)
    for i, (x, y) in enumerate(batches(9)):
        plain.train_step(x, y, 0.1)
        mixed.train_step(x, y, 0.1, fetches=[["loss"], ["out"], ["out", "loss"]][i % 3])
    expected = plain.state_dict()
    assert all(torch.equal(v, expected[n]) for n, v in mixed.state_dict().items())


def test_other_shapes_are_trained_too() -> None:
    model = Net()
    sizes = [12, 12, 7, 12, 3, 12]
    data = [next(batches(1, size, seed=i)) for i, size in enumerate(sizes)]
    reference = copy.deepcopy(model)
    expected = train_torch(reference, torch.optim.SGD(reference.parameters(), 0.1), data)
    made = trainer(model)
    np.testing.assert_allclose(losses(made, data), expected, rtol=1e-5)
    assert len(made._core._ready) == 2  # as described, and with dynamic sizes
    named = trainer(model, batch="batch")
    np.testing.assert_allclose(losses(named, data), expected, rtol=1e-5)
    assert len(named._core._ready) == 1


def test_eval_without_label_and_with_dropout_off() -> None:
    torch.manual_seed(3)
    model = Net(dropout=0.5)
    made = trainer(model)
    (x, y), *_ = batches(1)
    with pytest.raises(InputError, match="needs all inputs"):
        made.eval_step(x)
    loss, out = made.eval_step(x, y)
    model.eval()
    torch.testing.assert_close(out, model(x).detach())
    torch.testing.assert_close(made.eval_step(x), out)
    torch.testing.assert_close(made.eval()(x, y, fetches=["loss"]), loss)
    trained = [made.train_step(x, y, 0.0)[1] for _ in range(3)]
    assert not torch.allclose(trained[0], out)
    assert not torch.allclose(trained[0], trained[1])
    with pytest.raises(InputError, match=r"Missing input\(s\) \['y'\]"):
        made.eval_step(x, fetches=["loss"])


# --- learning rate, accumulation, frozen weights, loss scaling ------------------------------------


def test_get_lr_this_step_counts_updates() -> None:
    asked: list[int] = []

    def rate(step: int) -> float:
        asked.append(step)
        return 0.1 / (1 + step)

    model = Net()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(reference.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t))
    made = trainer(model, get_lr_this_step=rate, global_step=0)
    for x, y in batches(5):
        loss, _ = made.train_step(x, y)
        (expected,) = train_torch(reference, optimizer, [(x, y)])
        schedule.step()
        assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert asked == [0, 1, 2, 3, 4]


def test_accumulated_gradients_are_averaged() -> None:
    model = Net()
    data = list(batches(12))
    grouped = [
        (torch.cat([x for x, _ in data[i : i + 3]]), torch.cat([y for _, y in data[i : i + 3]]))
        for i in range(0, 12, 3)
    ]
    for name, make in (
        ("SGDOptimizer", lambda p: torch.optim.SGD(p, 0.2)),
        ("AdamOptimizer", lambda p: torch.optim.AdamW(p, 0.2, weight_decay=0.0)),
    ):
        reference = copy.deepcopy(model)
        clip = 1.0 if name == "AdamOptimizer" else None
        train_torch(reference, make(reference.parameters()), grouped, clip)
        made = trainer(model, name, gradient_accumulation_steps=3)
        losses(made, data, 0.2)
        assert made.global_step_ == 4
        weights = made.state_dict()
        for key, value in reference.state_dict().items():
            torch.testing.assert_close(weights[key], value, rtol=1e-4, atol=1e-4)


def test_weights_move_only_when_the_last_batch_has_come() -> None:
    made = trainer(Net(), gradient_accumulation_steps=2)
    data = list(batches(2))
    losses(made, data[:1])
    before = made.state_dict()
    assert torch.equal(before["fc1.weight"], made.model_.fc1.weight)
    losses(made, data[1:])
    assert not torch.equal(made.state_dict()["fc1.weight"], before["fc1.weight"])


def test_frozen_weights_do_not_move() -> None:
    model = Net()
    model.norm.bias.requires_grad_(False)
    start = {n: t.clone() for n, t in model.state_dict().items()}
    made = trainer(model, "AdamOptimizer", frozen_weights=["fc1.weight", "fc1.bias"])
    losses(made, batches(3))
    now = made.state_dict()
    for name in ("fc1.weight", "fc1.bias", "norm.bias"):
        assert torch.equal(now[name], start[name])
        assert f"Moment_1_{name}" not in now
    assert not torch.equal(now["fc2.weight"], start["fc2.weight"])
    with pytest.raises(UnknownNameError, match="fc9"):
        losses(trainer(model, frozen_weights=["fc9"]), batches(1))


def test_tied_weights_stay_tied() -> None:
    model = Tied()
    reference = copy.deepcopy(model)
    tokens, labels = torch.randint(0, WORDS, (LENGTH, BATCH)), torch.randint(0, WORDS, (24,))
    optimizer = torch.optim.SGD(reference.parameters(), 0.5)
    made = ORTTrainer(
        model, lambda out, y: nn.functional.cross_entropy(out.view(-1, WORDS), y),
        ModelDescription([IODescription("tokens", [LENGTH, BATCH]), IODescription("y", [24])],
                         [IODescription("loss", []), IODescription("out", [])]),
        "SGDOptimizer", None, RATE, "cpu",
    )  # fmt: skip
    for _ in range(5):
        loss, _ = made.train_step(tokens, labels, 0.5)
        optimizer.zero_grad()
        expected = nn.functional.cross_entropy(reference(tokens).view(-1, WORDS), labels)
        expected.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    state = made.state_dict()
    assert torch.equal(state["out.weight"], state["embed.weight"])
    assert set(state) == set(model.state_dict())
    model.load_state_dict(state)


class Overflow(nn.Module):
    """Its gradient is infinite when the input asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        return self.fc(x)


def test_static_and_dynamic_loss_scaling() -> None:
    model = Overflow()
    reference = copy.deepcopy(model)
    expected = train_torch(reference, torch.optim.SGD(reference.parameters(), 0.1), batches(4))
    made = trainer(model, use_mixed_precision=True)
    for (x, y), value in zip(batches(4), expected):
        loss, _, finite = made.train_step(x, y, torch.tensor([0.1]), torch.tensor([2048.0]))
        assert loss.item() == pytest.approx(value, rel=1e-5)
        assert finite.item()

    scaler = LossScaler("loss_scale", True, loss_scale=2.0**8, up_scale_window=2)
    made = trainer(model, use_mixed_precision=True, loss_scaler=scaler)
    data = list(batches(5))
    bad = (torch.full((12, 5), torch.inf), data[0][1])
    scales, steps = [], []
    for x, y in [data[0], data[1], bad, data[2], data[3], data[4]]:
        before = made.state_dict() if made._core.engine else None
        made.train_step(x, y, 0.1)
        scales.append(scaler.loss_scale_)
        steps.append(made.global_step_)
        if x is bad[0]:
            assert all(torch.equal(v, before[n]) for n, v in made.state_dict().items())
    assert scales == [256, 512, 256, 256, 512, 512]
    assert steps == [1, 2, 2, 3, 4, 5]
    scaler.reset()
    assert scaler.loss_scale_ == 256
    fixed = LossScaler("loss_scale", False, loss_scale=8.0)
    fixed.update_loss_scale(False)
    assert fixed.loss_scale_ == 8.0


# --- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SGDOptimizer", "AdamOptimizer", "LambOptimizer"])
def test_a_checkpoint_resumes_exactly(name: str, tmp_path) -> None:
    model, data = Net(), list(batches(8))
    made = trainer(model, name)
    losses(made, data[:4])
    save_checkpoint(made, tmp_path, checkpoint_state_dict={"epoch": 3})
    expected = losses(made, data[4:])
    other = trainer(Net(), name)
    assert load_checkpoint(other, tmp_path) == {"epoch": 3}
    assert losses(other, data[4:]) == expected
    assert other.global_step_ == made.global_step_ == 8
    running = trainer(Net(), name)
    losses(running, data[:2])
    load_checkpoint(running, tmp_path, strict=False)
    assert losses(running, data[4:]) == expected


def test_state_before_the_first_step_and_strictness() -> None:
    made = trainer(Net())
    with pytest.warns(UserWarning, match="no state before the first"):
        assert made.state_dict() == {}
    with pytest.raises(StateError, match="not created yet"):
        made.save_as_onnx("x.onnx")
    good = Net().state_dict()
    made.load_state_dict({**good, "extra": torch.ones(1)}, strict=True)
    with pytest.raises(StateError, match=r"unexpected .'extra'"):
        losses(made, batches(1))
    made = trainer(Net())
    made.load_state_dict(good)
    losses(made, batches(1), 0.0)
    assert all(torch.equal(v, good[n]) for n, v in made.state_dict().items())
    with pytest.raises(StateError, match="shape"):
        made.load_state_dict({"fc1.weight": torch.ones(2, 2)})


def test_frozen_and_buffer_values_can_be_loaded() -> None:
    made = trainer(Net(), frozen_weights=["fc2.bias"])
    (x, y), *_ = batches(1)
    before = made.train_step(x, y, 0.0)[1]
    made.load_state_dict({"fc2.bias": made.model_.fc2.bias.detach() + 1.0})
    torch.testing.assert_close(made.train_step(x, y, 0.0)[1], before + 1.0)
    torch.testing.assert_close(made.eval_step(x), before + 1.0)


def test_save_as_onnx(tmp_path) -> None:
    model = Net(dropout=0.3)
    made = trainer(model, batch="batch")
    losses(made, batches(3))
    made.save_as_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(
        tmp_path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    (x, y), *_ = batches(1, 4)
    loss, out = session.run(["loss", "out"], {"x": x.numpy(), "y": y.numpy()})
    model.load_state_dict(made.state_dict(include_optimizer_state=False))
    model.eval()
    torch.testing.assert_close(torch.from_numpy(out), model(x).detach())
    torch.testing.assert_close(torch.from_numpy(loss), made.eval_step(x, y)[0])


# --- ONNX models as input -------------------------------------------------------------------------


def exported_net(model: nn.Module) -> onnx.ModelProto:
    (x, y), *_ = batches(1)
    return export(
        model, (x, y), loss_fn=nn.CrossEntropyLoss(), input_names=["x", "y"],
        output_names=["loss", "out"],
    ).model  # fmt: skip


def test_an_onnx_model_is_trained() -> None:
    model = Net()
    proto = exported_net(model)
    expected = train_torch(model, torch.optim.SGD(model.parameters(), 0.1), batches(10))
    made = ORTTrainer(proto, None, description(), "SGDOptimizer", None, RATE, "cpu")
    np.testing.assert_allclose(losses(made, batches(10)), expected, rtol=1e-5)
    torch.testing.assert_close(
        made.state_dict()["fc1.weight"], model.fc1.weight.detach(), rtol=1e-4, atol=1e-6
    )


def test_the_first_output_of_an_onnx_model_must_be_a_float() -> None:
    proto = exported_net(Net())
    outputs = list(proto.graph.output)
    del proto.graph.output[:]
    proto.graph.output.extend(outputs[::-1])
    with pytest.raises(RuntimeError, match="must be a single float"):
        ORTTrainer(proto, None, description(), "SGDOptimizer", None, RATE, "cpu")


# --- errors ---------------------------------------------------------------------------------------


def test_errors_say_what_is_wrong() -> None:
    model = Net()
    with pytest.raises(UnknownNameError, match=r"'RMSOptimizer'.*'SGDOptimizer'"):
        trainer(model, "RMSOptimizer")
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        trainer(model, nonsense=1)
    with pytest.raises(InputError, match="deepspeed_zero_stage"):
        trainer(model, deepspeed_zero_stage=1)
    with pytest.raises(InputError, match="gradient_accumulation_steps"):
        trainer(model, gradient_accumulation_steps=0)
    with pytest.raises(InputError, match="needs a model description"):
        ORTTrainer(model, nn.CrossEntropyLoss())
    with pytest.raises(InputError, match=r"torch\.nn\.Module or an onnx\.ModelProto"):
        trainer("model")
    with pytest.raises(DescriptionError, match="has no output"):
        ORTTrainer(model, None, ModelDescription([], []), "SGDOptimizer", None, RATE, "cpu")
    (x, y), *_ = batches(1)
    made = trainer(model)
    with pytest.raises(InputError, match=r"misses \['Learning_Rate'\]"):
        made.train_step(x, y)
    with pytest.raises(InputError, match="4 values are given"):
        made.train_step(x, y, 0.1, 0.1)
    with pytest.raises(UnknownNameError, match="'other'"):
        made.train_step(x, y, 0.1, other=1)
    with pytest.raises(UnknownNameError, match=r"'logits'.*'loss'"):
        made.train_step(x, y, 0.1, fetches=["logits"])
    with pytest.raises(ValueError, match="no attribute 'gamma'"):
        trainer(model, attributes=lambda _: {"gamma": 1.0}).train_step(x, y, 0.1)
    with pytest.raises(ValueError, match="max_norm_clip"):
        trainer(model, attributes=lambda n: {"max_norm_clip": float(len(n))}).train_step(x, y, 0.1)


def test_samples_fit_their_description() -> None:
    sample = generate_sample(IODescription("x", ["batch", 4], torch.int64, num_classes=3))
    assert sample.shape == (1, 4)
    assert sample.dtype == torch.int64
    assert sample.max() < 3
    assert generate_sample(IODescription("x", [2, 3])).is_floating_point()
    assert generate_sample(IODescription("x", [2], torch.int64)).tolist() == [1, 1]
