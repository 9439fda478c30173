"""`recompute` in ORTModule and both generations of ORTTrainer: same numbers, less is kept."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import onnx
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from onnxtrain.compat.ort.orttrainer.options import OptionsError  # noqa: E402
from onnxtrain.passes import RecomputeError  # noqa: E402
from onnxtrain.torch import (  # noqa: E402
    IODescription,
    ModelDescription,
    ORTModule,
    ORTTrainer,
    ORTTrainerOptions,
    optim,
)

TS = "torchscript"
WIDTH, BATCH = 64, 128


def deep() -> nn.Module:
    """Eight layers whose activations are worth something."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 3))


def kept_bytes(module: ORTModule) -> int:
    """What the forward graphs hand over to the backward graphs."""
    total = 0
    for kind in module._graphs._kinds.values():
        halves = kind.graphs.halves
        sizes = {v.name: v.type.tensor_type for v in halves.forward.graph.output}
        for name in halves.saved:
            width = onnx.helper.tensor_dtype_to_np_dtype(sizes[name].elem_type).itemsize
            total += width * math.prod(d.dim_value for d in sizes[name].shape.dim)
    return total


def gradients(module: nn.Module, x: Any) -> list[Any]:
    module.zero_grad()
    module(x).square().mean().backward()
    return [p.grad.clone() for p in module.parameters()]


@pytest.mark.parametrize("how", [2, 4, "auto", "cheap"])
def test_ortmodule_keeps_less(how: Any) -> None:
    module, x = deep(), torch.randn(BATCH, WIDTH)
    plain = ORTModule(copy.deepcopy(module), exporter=TS)
    saving = ORTModule(copy.deepcopy(module), exporter=TS, recompute=how)
    for a, b, c in zip(gradients(plain, x), gradients(saving, x), gradients(module, x)):
        assert torch.equal(a, b)  # the same arithmetic, later
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-6)
    assert kept_bytes(saving) < (0.9 if how == "cheap" else 0.7) * kept_bytes(plain)


def test_ortmodule_with_dropout_repeats_the_mask() -> None:
    """A dropped element is 0 in the result, and so is its gradient."""
    torch.manual_seed(0)
    module = nn.Sequential(*[nn.Dropout(0.5), nn.Tanh()] * 4, nn.Identity())
    ours = ORTModule(module, exporter=TS, recompute=4)
    x = torch.randn(BATCH, WIDTH, requires_grad=True)
    y = ours(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad[y == 0], torch.zeros_like(x.grad[y == 0]))
    assert (x.grad[y != 0] > 0).all()


def test_ortmodule_takes_other_sizes_and_copies() -> None:
    module, x = deep(), torch.randn(BATCH, WIDTH)
    ours = ORTModule(copy.deepcopy(module), exporter=TS, recompute="auto")
    for batch in (BATCH, 32, 16):
        for a, b in zip(gradients(ours, x[:batch]), gradients(module, x[:batch])):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        gradients(other, x)
        assert kept_bytes(other) == kept_bytes(ours)


def test_the_predecessors_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = deep(), torch.randn(BATCH, WIDTH)
    plain = ORTModule(copy.deepcopy(module), exporter=TS)
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    saving = ORTModule(module, exporter=TS)
    for made in (plain, saving):
        gradients(made, x)
    assert kept_bytes(saving) < 0.7 * kept_bytes(plain)
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "much")
    with pytest.raises(TypeError, match="ORTMODULE_MEMORY_OPT_LEVEL is 0, 1 or 2"):
        ORTModule(deep())


def test_bad_values_are_refused() -> None:
    with pytest.raises(RecomputeError, match="recompute='much'"):
        ORTModule(deep(), recompute="much")
    with pytest.raises(RecomputeError, match="recompute=0"):
        trainer_v1(recompute=0)
    with pytest.raises(OptionsError, match="must be of recompute"):
        ORTTrainerOptions({"graph_transformer": {"recompute": True}})


# --- trainers -------------------------------------------------------------------------------------


def trainer_v1(**options: Any) -> Any:
    desc = ModelDescription(
        [
            IODescription("x", [BATCH, WIDTH], torch.float32),
            IODescription("label", [BATCH], torch.int64, num_classes=3),
        ],
        [
            IODescription("loss", [], torch.float32),
            IODescription("output", [BATCH, 3], torch.float32),
        ],
    )
    rate = IODescription("Learning_Rate", [1], torch.float32)
    return ORTTrainer(
        deep(), nn.CrossEntropyLoss(), desc, "SGDOptimizer", None, rate, "cpu",
        exporter=TS, **options,
    )  # fmt: skip


def trainer_v2(**transformer: Any) -> Any:
    desc = {
        "inputs": [("input", [BATCH, WIDTH]), ("label", [BATCH])],
        "outputs": [("loss", [], True), ("output", [BATCH, 3])],
    }
    options = {"exporter": TS, "graph_transformer": transformer}
    return ORTTrainer(
        deep(), desc, optim.SGDConfig(lr=0.1), loss_fn=nn.CrossEntropyLoss(), options=options
    )


def batches(count: int = 3) -> list[tuple[Any, Any]]:
    torch.manual_seed(1)
    return [(torch.randn(BATCH, WIDTH), torch.randint(0, 3, (BATCH,))) for _ in range(count)]


def repeated(trainer: Any) -> int:
    """How many nodes of the step are there a second time."""
    step = onnx.load_model_from_string(trainer._core.engine._step_bytes)
    return sum("_again" in node.name for node in step.graph.node)


def losses(trainer: Any, *rate: Any) -> list[float]:
    return [float(trainer.train_step(x, y, *rate)[0]) for x, y in batches()]


@pytest.mark.parametrize("how", [3, "auto"])
def test_trainer_of_the_first_generation(how: Any) -> None:
    rate = torch.tensor([0.1])
    plain, saving = trainer_v1(), trainer_v1(recompute=how)
    assert losses(plain, rate) == losses(saving, rate)
    assert repeated(plain) == 0
    assert repeated(saving) > 0


@pytest.mark.parametrize(
    "flags",
    [
        {"recompute": 3},
        {"transformer_layer_recompute": True},
        {"transformer_layer_recompute": True, "number_recompute_layers": 3},
        {"gelu_recompute": True},
    ],
    ids=str,
)
def test_trainer_of_the_second_generation(flags: dict[str, Any]) -> None:
    plain, saving = trainer_v2(), trainer_v2(**flags)
    assert losses(plain) == losses(saving)
    assert repeated(plain) == 0
    assert repeated(saving) > 0


def test_older_flags_mean_recompute() -> None:
    as_number = trainer_v2(recompute=3)
    as_flags = trainer_v2(transformer_layer_recompute=True, number_recompute_layers=3)
    for trainer in (as_number, as_flags):
        losses(trainer)
    assert repeated(as_number) == repeated(as_flags)
