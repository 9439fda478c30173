"""ORTModule against plain PyTorch: values, gradients, trajectories, and who did the work."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_models import Encoder, LSTMClassifier  # noqa: E402
from torch import nn  # noqa: E402

from onnxtrain.torch import DebugOptions, ORTModule  # noqa: E402
from onnxtrain.torch._ortmodule_run import Graphs  # noqa: E402

TS = "torchscript"


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(36, 3),
    )  # fmt: skip


def encoder() -> nn.Module:
    return Encoder(vocabulary=40, width=16, heads=2, layers=2, length=8, classes=3)


def lstm() -> nn.Module:
    return LSTMClassifier(inside=5, width=8, classes=3)


def batch_of(make: Any, size: int = 6) -> torch.Tensor:
    if make is mlp:
        return torch.randn(size, 6)
    if make is cnn:
        return torch.randn(size, 1, 8, 8)
    if make is encoder:
        return torch.randint(0, 40, (size, 8))
    return torch.randn(7, size, 5)


MODELS = [mlp, cnn, encoder, lstm]


def pair(module: nn.Module, **options: Any) -> tuple[ORTModule, nn.Module]:
    """A wrapped module and a plain twin."""
    twin = copy.deepcopy(module)
    return ORTModule(module, exporter=TS, **options), twin


def assert_same_gradients(left: nn.Module, right: nn.Module, tolerance: float = 1e-5) -> None:
    theirs = dict(right.named_parameters())
    for name, parameter in left.named_parameters():
        assert (parameter.grad is None) == (theirs[name].grad is None), name
        if parameter.grad is not None:
            torch.testing.assert_close(
                parameter.grad, theirs[name].grad, rtol=1e-4, atol=tolerance, msg=name
            )


@pytest.mark.parametrize("make", MODELS)
def test_hundred_steps_like_torch(make: Any) -> None:
    torch.manual_seed(0)
    ours, theirs = pair(make())
    batches = [(batch_of(make), torch.randint(0, 3, (6,))) for _ in range(3)]
    curves = []
    for module in (ours, theirs):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for step in range(100):
            x, label = batches[step % 3]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x), label)
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
        curves.append(torch.tensor(losses))
    assert curves[1][-3:].mean() < curves[1][:3].mean()
    torch.testing.assert_close(curves[0], curves[1], rtol=1e-4, atol=1e-4)
    for (name, mine), other in zip(ours.named_buffers(), theirs.buffers()):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("make", MODELS)
def test_gradients_for_changing_sizes_without_another_export(make: Any) -> None:
    ours, theirs = pair(make())
    for size in (6, 3, 5):
        x = batch_of(make, size)
        mine, other = ours(x), theirs(x)
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
        for module, result in ((ours, mine), (theirs, other)):
            module.zero_grad()
            result.square().sum().backward()
        assert_same_gradients(ours, theirs, 1e-4)
    assert sum(map(len, ours._graphs._traced.values())) == 1


@pytest.mark.parametrize("make", [mlp, cnn])
def test_the_exporter_that_torch_maintains(make: Any) -> None:
    module = make()
    theirs, ours = copy.deepcopy(module), ORTModule(module)
    for size in (6, 4):
        x = batch_of(make, size)
        mine, other = ours(x), theirs(x)
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
        for one, result in ((ours, mine), (theirs, other)):
            one.zero_grad()
            result.square().sum().backward()
        assert_same_gradients(ours, theirs, 1e-4)
    for (name, mine), other in zip(ours.named_buffers(), theirs.named_buffers()):
        torch.testing.assert_close(mine, other[1], rtol=1e-4, atol=1e-5, msg=name)
    (traced,) = next(iter(ours._graphs._traced.values()))
    assert traced.exporter == "dynamo"


# --- who did the work -----------------------------------------------------------------------------


def test_onnxruntime_runs_both_directions(tmp_path: Path) -> None:
    options = DebugOptions(config={"profile_file_prefix": str(tmp_path / "run")})
    ours, _ = pair(mlp(), debug_options=options)
    for _ in range(3):
        ours(torch.randn(4, 6)).sum().backward()
    (kind,) = ours._graphs._kinds.values()
    counts = []
    for session in (kind.graphs.forward_session, kind.graphs.backward_session):
        events = json.loads(Path(session.end_profiling()).read_text())
        nodes = [e["args"]["op_name"] for e in events if e["name"].endswith("kernel_time")]
        counts.append(sum("Gemm" in n for n in nodes))
    assert counts == [3 * 3, 5 * 3]


def test_torch_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = pair(mlp())
    x = torch.randn(4, 6)
    ours(x).sum().backward()

    def refuse(*args: Any) -> Any:
        raise AssertionError("torch ran the module")

    for part in ours.module.modules():
        monkeypatch.setattr(type(part), "forward", refuse)
    ours(x).sum().backward()
    with torch.no_grad():
        ours(x)


def test_memory_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = pair(nn.Linear(3, 2))
    x = torch.randn(4, 3, requires_grad=True)
    fed, given = [], []
    run_forward, run_backward = Graphs.run_forward, Graphs.run_backward

    def forward(self: Graphs, feeds: Any, outputs: Any, *, save: bool) -> Any:
        made = run_forward(self, feeds, outputs, save=save)
        fed.extend(v.data_ptr() for v in feeds)
        given.append(made[0].data_ptr())
        return made

    def backward(self: Graphs, values: Any) -> Any:
        made = run_backward(self, values)
        given.extend(t.data_ptr() for t in made)
        return made

    monkeypatch.setattr(Graphs, "run_forward", forward)
    monkeypatch.setattr(Graphs, "run_backward", backward)
    y = ours(x)
    assert {x.data_ptr(), ours.weight.data_ptr(), ours.bias.data_ptr()} == set(fed)
    assert y.data_ptr() == given[0]
    y.backward(torch.ones(4, 2))
    assert {ours.weight.grad.data_ptr(), ours.bias.grad.data_ptr()} <= set(given[1:])


# --- modes ----------------------------------------------------------------------------------------


def test_eval_is_inference_and_has_gradients_when_asked() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    ours, theirs = pair(module)
    x = torch.randn(5, 4)
    ours(x)
    theirs(x)
    ours.eval()
    theirs.eval()
    mine, other = ours(x), theirs(x)
    torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    assert torch.equal(mine, ours(x))
    assert mine.requires_grad
    eval_kinds = [k for k in ours._graphs._kinds.values() if not k.graphs.differentiable]
    assert len(eval_kinds) == 1
    mine.square().sum().backward()
    other.square().sum().backward()
    assert_same_gradients(ours, theirs)
    assert ours.train() is ours
    assert ours.module.training


def test_dropout_drops_in_training_and_is_repeatable() -> None:
    def run() -> torch.Tensor:
        torch.manual_seed(3)
        ours = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), exporter=TS)
        x = torch.ones(200, 4)
        return torch.stack([ours(x), ours(x)])

    first = run()
    zeros = (first == 0).float().mean((1, 2))
    assert ((zeros > 0.4) & (zeros < 0.6)).all()
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first, run())


def test_dropout_gradient_uses_the_mask_that_was_drawn() -> None:
    ours, _ = pair(nn.Dropout(0.5))
    x = torch.ones(1000, requires_grad=True)
    y = ours(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


def test_parts_of_a_module_can_be_in_eval_mode() -> None:
    ours, theirs = pair(cnn())
    for module in (ours, theirs):
        module.train()
        module.get_submodule("1").eval()
    x = batch_of(cnn)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(ours.get_buffer("1.running_mean"), torch.zeros(4))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: Any) -> None:
    ours, theirs = pair(mlp())
    x = torch.randn(4, 6)
    with mode():
        y = ours(x)
        assert not y.requires_grad
        torch.testing.assert_close(y, theirs(x))
        z = torch.randn(4, 6)  # an inference tensor in inference mode
        torch.testing.assert_close(ours(z), theirs(z))
    assert ours(x).requires_grad


def test_average_over_all_batches() -> None:
    ours, theirs = pair(nn.Sequential(nn.BatchNorm1d(3, momentum=None)))
    for _ in range(4):
        x = torch.randn(5, 3)
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    for mine, other in zip(ours.buffers(), theirs.buffers()):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_buffers_that_forward_changes() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += x.detach().sum(0)
            return self.layer(x) + self.seen

    ours, theirs = pair(Counting())
    for _ in range(3):
        x = torch.randn(4, 2)
        torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.seen, theirs.seen)


def test_small_graphs_get_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waking up another takes longer than the work of a small step."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    for width, threads in ((10, 1), (2000, 2)):
        model = ORTModule(nn.Linear(width, 100), exporter="torchscript")
        model(torch.randn(20, width)).sum().backward()
        (kind,) = model._graphs._kinds.values()
        for session in (kind.graphs.forward_session, kind.graphs.backward_session):
            assert session.get_session_options().intra_op_num_threads == threads


def test_a_module_trained_in_eval_mode_runs_forward_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first backward pass has to run it again; from then on what it needs is kept."""
    forward, calls = Graphs.run_forward, list[bool]()

    def counted(self: Graphs, feeds: Any, outputs: Any, *, save: bool) -> Any:
        calls.append(save)
        return forward(self, feeds, outputs, save=save)

    monkeypatch.setattr(Graphs, "run_forward", counted)
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5)).eval()
    ours = ORTModule(copy.deepcopy(theirs))
    x = torch.randn(3, 4)
    for expected in ([False, True], [True], [True]):
        calls.clear()
        for module in (ours, theirs):
            module.zero_grad()
            module(x).square().sum().backward()
        assert calls == expected
        for mine, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, wanted.grad)
    calls.clear()
    with torch.no_grad():
        ours(x)
    assert calls == [False]
