"""What else ORTModule must do as torch does: structures, autograd, the Module API, errors."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import logging
import math
import pickle
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import onnx
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from onnxtrain import preparing  # noqa: E402
from onnxtrain.autodiff import registry  # noqa: E402
from onnxtrain.errors import OnnxTrainError  # noqa: E402
from onnxtrain.torch import DebugOptions, FallbackPolicy, LogLevel, ORTModule  # noqa: E402
from onnxtrain.torch.fallback import (  # noqa: E402
    ORTModuleDeviceException,
    ORTModuleIOError,
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
    read_policy,
)
from tests.torch.test_ortmodule import TS, assert_same_gradients, mlp, pair  # noqa: E402

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Output:
    loss: Any
    logits: Any = None
    note: str = ""


def exports(module: ORTModule) -> int:
    return sum(map(len, module._graphs._traced.values()))


# --- arguments and results ------------------------------------------------------------------------


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(
        self, pair: Any, *, extra: Any = None, scale: float = 1.0, flip: bool = False
    ) -> Any:
        x, inner = pair
        y = self.a(x) * scale + self.b(inner["y"])
        if extra is not None:
            y = y + extra[0]
        if flip:
            y = -y
        return {"sum": y, "parts": [x * 2, (y.argmax(1), None, 3)], "point": Point(y.mean(), y > 0)}


def test_nested_arguments_and_results() -> None:
    ours, theirs = pair(Nested())
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    calls: list[dict[str, Any]] = [
        {},
        {"extra": [torch.ones(3)]},
        {"scale": 2.5},
        {"flip": True, "scale": 2.5},
        {},
    ]
    for kwargs in calls:
        mine = ours((x, {"y": y}), **kwargs)
        other = theirs((x, {"y": y}), **kwargs)
        assert type(mine) is dict
        assert list(mine) == list(other)
        assert isinstance(mine["point"], Point)
        assert mine["parts"][1][1:] == (None, 3)
        assert mine["point"].y.dtype == torch.bool
        torch.testing.assert_close(mine["sum"], other["sum"])
        assert torch.equal(mine["parts"][1][0], other["parts"][1][0])
        assert torch.equal(mine["point"].y, other["point"].y)
        assert not mine["parts"][1][0].requires_grad
        assert not mine["point"].y.requires_grad
        for module, result in ((ours, mine), (theirs, other)):
            module.zero_grad()
            (result["sum"].sum() + result["point"].x).backward()
        assert_same_gradients(ours, theirs)
    assert exports(ours) == 4


def test_dataclasses_and_mappings_come_back() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.layer(x)
            return OrderedDict(out=Output(y.sum(), y, "text"), first=y[0])

    ours, theirs = pair(Model())
    x = torch.randn(4, 3)
    mine, other = ours(x), theirs(x)
    assert type(mine) is OrderedDict
    assert type(mine["out"]) is Output
    assert mine["out"].note == "text"
    torch.testing.assert_close(mine["out"].logits, other["out"].logits)
    mine["out"].loss.backward()
    other["out"].loss.backward()
    assert_same_gradients(ours, theirs)


def test_arguments_by_name_in_any_order() -> None:
    class Model(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a - 2 * b

    ours = ORTModule(Model(), exporter=TS)
    a, b = torch.ones(2), torch.full((2,), 3.0)
    for result in (ours(a, b), ours(a, b=b), ours(a=a, b=b), ours(b=b, a=a)):
        assert result.tolist() == [-5.0, -5.0]
    assert exports(ours) == 3


def test_gradients_of_inputs_and_tensors_that_are_not_contiguous() -> None:
    ours, theirs = pair(nn.Linear(3, 2))
    base = torch.randn(3, 4)
    grads = []
    for module in (ours, theirs):
        x = base.clone().requires_grad_()
        module(x.t()).t().square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)
    assert_same_gradients(ours, theirs)


def test_a_type_that_no_graph_takes_is_named() -> None:
    ours, _ = pair(Nested())
    with pytest.raises(ORTModuleIOError, match="object"):
        ours((torch.ones(1, 3), {"y": object()}))


# --- autograd -------------------------------------------------------------------------------------


def test_several_forwards_before_backward_and_accumulation() -> None:
    ours, theirs = pair(mlp())
    batches = [torch.randn(4, 6), torch.randn(2, 6), torch.randn(4, 6)]
    for module in (ours, theirs):
        results = [module(x) for x in batches]
        (results[0].sum() * results[2].sum()).backward()
        results[1].square().sum().backward()
    assert_same_gradients(ours, theirs, 1e-4)


def test_a_module_called_twice_in_one_graph() -> None:
    ours, theirs = pair(nn.Linear(4, 4))
    x = torch.randn(3, 4)
    for module in (ours, theirs):
        module(module(x).tanh()).sum().backward()
    assert_same_gradients(ours, theirs)


def test_retain_graph_and_released_graphs() -> None:
    ours, theirs = pair(mlp())
    x = torch.randn(4, 6)
    for module in (ours, theirs):
        loss = module(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert_same_gradients(ours, theirs, 1e-4)
    loss = ours(x).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_weights_changed_before_backward_are_noticed() -> None:
    ours, _ = pair(mlp())
    loss = ours(torch.randn(4, 6)).sum()
    with torch.no_grad():
        ours.get_parameter("2.weight").mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_second_derivatives_are_refused() -> None:
    ours, _ = pair(mlp())
    x = torch.randn(4, 6, requires_grad=True)
    (grad,) = torch.autograd.grad(ours(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no derivative"):
        grad.sum().backward()


def test_only_some_results_are_used() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.unused = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> Any:
            return self.a(x), self.b(x).detach(), (x > 0).sum(), self.b(x)

    ours, theirs = pair(Two())
    x = torch.randn(4, 3)
    for module in (ours, theirs):
        results = module(x)
        assert [r.requires_grad for r in results] == [True, False, False, True]
        results[0].sum().backward()
    assert ours.get_parameter("unused.weight").grad is None
    assert torch.equal(ours.get_parameter("b.weight").grad, torch.zeros(2, 3))
    torch.testing.assert_close(
        ours.get_parameter("a.weight").grad, theirs.get_parameter("a.weight").grad
    )


class StraightThrough(nn.Module):
    """Gradients pass the rounding, but neither the target nor what no_grad computes."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.student(x)
        y = y + (y.round() - y).detach()
        with torch.no_grad():
            target = self.teacher(x).tanh() * 2
        return (y - target) * self.teacher(x).detach()


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_detach_and_no_grad_inside(exporter: str) -> None:
    module = StraightThrough()
    theirs, ours = copy.deepcopy(module), ORTModule(module, exporter=exporter)
    x = torch.randn(4, 3)
    mine, other = ours(x), theirs(x)
    torch.testing.assert_close(mine, other)
    mine.square().sum().backward()
    other.square().sum().backward()
    assert_same_gradients(ours, theirs)
    assert ours.teacher.weight.grad is None


def test_requires_grad_may_change() -> None:
    ours, theirs = pair(mlp())
    x = torch.randn(4, 6)
    ours(x).sum().backward()
    for module in (ours, theirs):
        module.zero_grad()
        module.get_parameter("0.weight").requires_grad_(False)
        module(x).sum().backward()
    assert_same_gradients(ours, theirs)
    assert ours.get_parameter("0.weight").grad is None
    for module in (ours, theirs):
        module.requires_grad_(False)
    assert not ours(x).requires_grad
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for module, given in zip((ours, theirs), inputs):
        module(given).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    assert exports(ours) == 1


def test_shared_parameters() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(tokens).tanh())

    ours, theirs = pair(Tied())
    tokens = torch.randint(0, 7, (3, 5))
    assert list(ours.state_dict()) == ["embed.weight", "head.weight"]
    assert len(list(ours.parameters())) == 1
    for module in (ours, theirs):
        module(tokens).square().sum().backward()
    assert_same_gradients(ours, theirs, 1e-4)


def test_new_memory_and_new_parameters_are_noticed() -> None:
    ours, theirs = pair(mlp())
    x = torch.randn(4, 6)
    ours(x)
    for module in (ours, theirs):
        torch.manual_seed(1)
        module.get_parameter("0.weight").data = torch.randn(16, 6)
        inner = module.module if module is ours else module
        inner[2] = nn.Linear(16, 8)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.01),
    ],
)
def test_data_loader_clipping_scheduler_and_any_optimizer(make: Any) -> None:
    torch.manual_seed(0)
    ours, theirs = pair(mlp())
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    curves = []
    for module in (ours, theirs):
        optimizer = make(module.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        losses = []
        for _ in range(3):
            for x, label in DataLoader(data, batch_size=8):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(module(x), label)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
                optimizer.step()
                losses.append(loss.item())
            scheduler.step()
        curves.append(torch.tensor(losses))
    torch.testing.assert_close(*curves, rtol=1e-4, atol=1e-4)
    assert exports(ours) == 1


# --- the Module API -------------------------------------------------------------------------------


def test_the_module_api_is_the_wrapped_modules() -> None:
    inner = nn.Sequential(OrderedDict(a=nn.Linear(2, 3), norm=nn.BatchNorm1d(3)))
    ours = ORTModule(inner, exporter=TS)
    assert ours.module is inner
    assert list(ours.state_dict()) == list(inner.state_dict())
    assert dict(ours.named_parameters()).keys() == dict(inner.named_parameters()).keys()
    assert [id(p) for p in ours.parameters()] == [id(p) for p in inner.parameters()]
    assert [id(b) for b in ours.buffers()] == [id(b) for b in inner.buffers()]
    assert list(ours.children()) == list(inner.children())
    assert dict(ours.named_children()) == dict(inner.named_children())
    assert list(ours.modules()) == list(inner.modules())
    assert dict(ours.named_modules()) == dict(inner.named_modules())
    assert ours.a is inner.a
    assert "a" in dir(ours)
    assert ours.eval() is ours
    assert not inner.norm.training
    assert ours.training is False
    assert ours.to(torch.float32) is ours
    state = {k: torch.zeros_like(v) for k, v in ours.state_dict().items()}
    assert ours.load_state_dict(state).missing_keys == []
    assert float(inner.a.weight.abs().sum().detach()) == 0.0
    ours.zero_grad()
    ours.apply(lambda part: setattr(part, "touched", True))
    assert inner.a.touched
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = ours.nothing_like_it


def test_as_a_part_of_another_module() -> None:
    inner = nn.Linear(2, 3)
    outer = nn.Sequential(ORTModule(inner, exporter=TS), nn.ReLU())
    plain = nn.Sequential(copy.deepcopy(inner), nn.ReLU())
    assert list(outer.state_dict()) == list(plain.state_dict())
    assert list(dict(outer.named_parameters())) == list(dict(plain.named_parameters()))
    outer.eval()
    assert not inner.training
    state = {k: torch.ones_like(v) for k, v in plain.state_dict().items()}
    outer.load_state_dict(state)
    assert inner.weight.detach().tolist() == [[1.0, 1.0]] * 3
    assert outer(torch.ones(1, 2)).tolist() == [[3.0, 3.0, 3.0]]


def test_attributes_are_passed_on_and_graphs_follow() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 2.0
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight * self.scale

        def describe(self) -> str:
            return f"scale {self.scale}"

    inner = Scaled()
    ours = ORTModule(inner, exporter=TS)
    assert ours(torch.ones(2)).tolist() == [2.0, 2.0]
    ours.scale = 2.0
    assert exports(ours) == 1
    ours.scale = 3.0
    assert inner.scale == 3.0
    assert ours.describe() == "scale 3.0"
    assert ours(torch.ones(2)).tolist() == [3.0, 3.0]
    inner.scale = 4.0
    ours.reset()
    assert ours(torch.ones(2)).tolist() == [4.0, 4.0]
    ours.weight = nn.Parameter(torch.full((1,), 10.0))
    assert ours(torch.ones(2)).tolist() == [40.0, 40.0]
    del ours.scale
    assert not hasattr(inner, "scale")


def test_pickle_and_copies() -> None:
    ours, _ = pair(mlp())
    x = torch.randn(4, 6)
    expected = ours(x)
    twin = copy.deepcopy(ours)
    assert exports(twin) == 1
    torch.testing.assert_close(twin(x), expected)
    with torch.no_grad():
        twin.get_parameter("0.weight").zero_()
    assert not torch.allclose(twin(x), expected)
    torch.testing.assert_close(ours(x), expected)
    again = pickle.loads(pickle.dumps(ours))
    assert type(again) is ORTModule
    torch.testing.assert_close(again(x), expected)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(x), expected)


def test_what_cannot_be_done() -> None:
    ours, _ = pair(mlp())
    with pytest.raises(NotImplementedError, match=r"cannot be added"):
        ours.add_module("more", nn.ReLU())
    with pytest.raises(NotImplementedError, match="DistributedDataParallel"):
        ORTModule(nn.DataParallel(mlp()))
    with pytest.raises(NotImplementedError, match="DistributedDataParallel"):
        ours._replicate_for_data_parallel()
    with pytest.raises(TypeError, match="already"):
        ORTModule(ours)
    with pytest.raises(TypeError, match="function"):
        ORTModule(lambda x: x)  # type: ignore[arg-type]


# --- errors and fallback --------------------------------------------------------------------------


class Undifferentiable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.det(self.layer(x))


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


def test_another_device_is_an_error_or_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    ours, _ = pair(mlp())
    ours.to("meta")
    x = torch.randn(4, 6, device="meta")
    with pytest.raises(ORTModuleDeviceException, match="'meta'"):
        ours(x)
    with pytest.raises(ORTModuleDeviceException, match="several devices"):
        ours(torch.randn(4, 6))
    policy = FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE
    allowed = ORTModule(mlp().to("meta"), fallback=policy)
    with caplog.at_level(logging.WARNING):
        assert allowed(x).shape == (4, 3)
    assert "meta" in caplog.text
    assert isinstance(allowed.fallback_reason, ORTModuleDeviceException)


@pytest.mark.parametrize("exporter", [TS, "dynamo"])
def test_an_argument_is_changed_in_place_as_torch_does(exporter: str) -> None:
    ours, x = ORTModule(InPlace(), exporter=exporter), torch.zeros(2)
    assert ours(x) is x
    assert x.tolist() == [1.0, 1.0]
    y = torch.tensor([3.0, 4.0], requires_grad=True)
    before = y * 2
    ours(before).square().sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [28.0, 36.0]
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        ours(y)


def test_errors_of_the_module_itself_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ORTModule(mlp(), exporter=TS, fallback=True)(torch.randn(4, 5))


def test_a_module_that_cannot_be_exported_says_why() -> None:
    class Dynamic(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvals(x).abs()

    x = torch.eye(3)
    with pytest.raises(ORTModuleTorchModelException, match=r"Dynamic|_Call|eig"):
        ORTModule(Dynamic(), exporter=TS)(x)
    assert ORTModule(Dynamic(), exporter=TS, fallback=True)(x).tolist() == [1.0] * 3


def test_a_missing_gradient_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry._RULES, ("", "Det"))
    with pytest.raises(ORTModuleONNXModelException, match=r"ai.onnx::Det .*layer.weight"):
        ORTModule(Undifferentiable(), exporter=TS)(torch.randn(3, 3))
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_UNSUPPORTED_ONNX_MODEL")
    allowed = ORTModule(Undifferentiable(), exporter=TS)
    allowed(torch.randn(3, 3)).backward()
    assert allowed.layer.weight.grad is not None


def test_forced_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 6)
    ours = ORTModule(mlp(), exporter=TS, fallback="FALLBACK_FORCE_TORCH_FORWARD")
    ours(x).sum().backward()
    assert exports(ours) == 0
    ours = ORTModule(mlp(), exporter=TS, fallback="FALLBACK_FORCE_TORCH_BACKWARD")
    ours(x).sum().backward()
    assert exports(ours) == 0
    with torch.no_grad():
        ours(x)
    assert exports(ours) == 1


def test_policies() -> None:
    assert read_policy(None) == FallbackPolicy.FALLBACK_DISABLE
    assert read_policy("UNSUPPORTED_DATA|FALLBACK_BAD_INITIALIZATION") == 16 | 128
    with pytest.raises(ValueError, match="no fallback policy 'WHATEVER'"):
        read_policy("WHATEVER")
    with pytest.raises(ValueError, match="cannot be combined"):
        read_policy(FallbackPolicy.FALLBACK_DISABLE | FallbackPolicy.FALLBACK_UNSUPPORTED_DATA)


# --- options --------------------------------------------------------------------------------------


def test_models_are_saved(tmp_path: Path) -> None:
    options = DebugOptions(save_onnx=True, onnx_prefix="mlp", save_path=tmp_path)
    ours, _ = pair(mlp(), debug_options=options)
    ours(torch.randn(4, 6)).sum().backward()
    ours.eval()
    ours(torch.randn(4, 6))
    names = sorted(p.name for p in tmp_path.iterdir())
    both = ("execution_model", "forward", "optimized", "torch_exported")
    expected = [f"mlp_{stage}_{mode}.onnx" for stage in both for mode in ("training", "inference")]
    expected += ["mlp_backward_training.onnx", "mlp_optimized_pre_grad_training.onnx"]
    assert names == sorted(expected)
    backward = onnx.load(tmp_path / "mlp_backward_training.onnx")
    onnx.checker.check_model(backward)
    assert {n.domain for n in backward.graph.node} <= {"", "ai.onnx"}


def test_debug_options_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="onnx_prefix"):
        DebugOptions(save_onnx=True)
    with pytest.raises(OSError, match="does not exist"):
        DebugOptions(save_onnx=True, onnx_prefix="a", save_path=tmp_path / "none")
    with pytest.raises(TypeError, match="onnx_prefix"):
        DebugOptions(onnx_prefix=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="log_level"):
        DebugOptions(log_level=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="DebugOptions"):
        ORTModule(mlp(), {})  # type: ignore[arg-type]
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "error")
    assert DebugOptions().log_level is LogLevel.ERROR
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "loud")
    with pytest.raises(OnnxTrainError, match="loud"):
        DebugOptions()


def test_autocast_gets_its_own_graph() -> None:
    ours, theirs = pair(nn.Linear(4, 4))
    x = torch.randn(3, 4)
    ours(x)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        torch.testing.assert_close(ours(x), theirs(x))
    assert exports(ours) == 1


# --- what the module inside looks like from outside ----------------------------------------------


class Methods(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, input_ids: torch.Tensor, labels: Any = None) -> Any:
        return self.fc(input_ids)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return self(x).sum()

    def described(self) -> str:
        return super().extra_repr() + "!"


def test_forward_has_the_signature_of_the_module_inside() -> None:
    module = Methods()
    ours = ORTModule(module, exporter=TS)
    assert inspect.signature(ours.forward) == inspect.signature(module.forward)
    assert list(inspect.signature(copy.deepcopy(ours).forward).parameters) == [
        "input_ids",
        "labels",
    ]
    x = torch.ones(1, 2)
    torch.testing.assert_close(ours.forward(x), module(x))
    torch.testing.assert_close(ours.forward.__func__(ours, input_ids=x), module(x))


def test_a_replaced_forward_is_called_instead() -> None:
    ours = ORTModule(Methods(), exporter=TS)
    inner = ours.forward
    ours.forward = lambda *args: inner(*args) * 0  # what accelerate does for mixed precision
    assert ours(torch.ones(1, 2)).abs().sum() == 0
    assert ours.module(torch.ones(1, 2)).abs().sum() > 0
    del ours.forward
    assert ours(torch.ones(1, 2)).abs().sum() > 0


def test_methods_of_the_module_run_in_onnxruntime() -> None:
    module = Methods()
    ours = ORTModule(module, exporter=TS)
    loss = ours.step(torch.ones(1, 2))
    loss.backward()
    assert exports(ours) == 1
    assert ours.step.__func__ is module.step.__func__
    assert ours.described() == "!"  # super() wants an object of its class
    ours.step = len
    assert ours.step is len
    assert module.step.__func__ is Methods.step


class Same(nn.Module):
    """Returns one value twice, an argument, and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.fc(x)
        return y, y, mask, self.fc.bias


@pytest.mark.parametrize("exporter", [TS, "dynamo"])
def test_values_that_are_returned_twice_or_as_they_came(exporter: str) -> None:
    ours, theirs = pair(Same())
    ours = ORTModule(ours.module, exporter=exporter)
    x, mask = torch.randn(3, 2), torch.zeros(4)
    for module in (ours, theirs):
        first, second, same, bias = module(x, mask)
        assert torch.equal(first, second)
        assert torch.equal(same, mask)
        assert not same.requires_grad
        (first.sum() + 2 * second.square().sum() + 3 * bias.sum()).backward()
    assert_same_gradients(ours, theirs, 1e-5)


class Views(nn.Module):
    """Results of any form that a function of one tensor gives."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


VIEWS: dict[str, Any] = {
    "flatten": lambda x: x.flatten(1),
    "transpose": lambda x: x.transpose(0, -1),
    "expand": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "split": lambda x: list(x.split([1, 3], -1)),
    "the argument": lambda x: x,
    "some": lambda x: {"row": x[0], "all": (x, x.permute(2, 0, 1))},
}
COPIES: dict[str, Any] = {
    "a reshape that copies": lambda x: x.transpose(0, 1).reshape(-1),
    "a changed argument": lambda x: x.add_(1).view(-1),
    "a product": lambda x: (x * 2).view(-1),
}


def tensors_of(result: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(result) if torch.is_tensor(t)]


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_an_argument_are_views_as_in_torch(name: str) -> None:
    ours, theirs = pair(Views(VIEWS[name]))
    for shape in ((2, 3, 4), (5, 6, 4), (3, 2, 4)):
        x = torch.randn(shape)
        values = []
        for module in (ours, theirs):
            argument = x.clone().requires_grad_()
            result = module(argument)
            tensors = tensors_of(result)
            sum(((i + 1) * t.square()).sum() for i, t in enumerate(tensors)).backward()
            places = [
                (t.storage_offset(), t.stride(), t.data_ptr() - argument.data_ptr())
                for t in tensors
            ]
            values.append((result, argument.grad, places))
        torch.testing.assert_close(*[v[0] for v in values])
        torch.testing.assert_close(*[v[1] for v in values], rtol=0, atol=0)
        assert values[0][2] == values[1][2]
        with torch.no_grad():
            first = tensors_of(ours(x))[0]
            assert first.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert exports(ours) == 0


@pytest.mark.parametrize("name", COPIES)
def test_what_is_no_view_in_torch_has_memory_of_its_own(name: str) -> None:
    ours, theirs = pair(Views(COPIES[name]))
    x = torch.randn(2, 3, 4)
    mine, other = ours(x.clone()), theirs(x.clone())
    torch.testing.assert_close(mine, other)
    argument = x.clone()
    for tensor in tensors_of(ours(argument)):
        assert tensor.untyped_storage().data_ptr() != argument.untyped_storage().data_ptr()


MOVEMENTS: dict[str, Any] = {
    "a view and a copy": lambda x: (x.view(-1), x.flatten(1).clone()),
    "rows": lambda x: torch.unbind_copy(x, 1),
    "a diagonal": lambda x: torch.diag_embed(x, 1),
    "a diagonal of axes apart": lambda x: torch.diag_embed(x, -1, 0, 2),
    "blocks": lambda x: torch.block_diag(x[0], x[-1]),
    "repeated": lambda x: [x.repeat_interleave(2, 1), x.tile(2, 1, 3)],
    "turned around": lambda x: nn.functional.pad(x.flip(0), (1, 0, -1, 2), value=0.5),
    "zeros": lambda x: (x.view(-1), torch.zeros(3)),
}
COMPUTED: dict[str, Any] = {
    "turned": lambda x: x.transpose(0, 1).clone(),
    "a sum": lambda x: x.flatten().sum(0),
    "noise": lambda x: (x.view(-1), torch.rand(2)),
}


@pytest.mark.parametrize("name", MOVEMENTS)
def test_torch_runs_what_only_puts_elements_elsewhere(name: str) -> None:
    ours, theirs = pair(Views(MOVEMENTS[name]))
    for shape in ((2, 3, 4), (5, 6, 4), (2, 3, 4)):
        values, x = [], torch.randn(shape)
        for module in (ours, theirs):
            argument = x.clone().requires_grad_()
            tensors = tensors_of(module(argument))
            graded = [t for t in tensors if t.requires_grad]
            sum(((i + 1) * t.square()).sum() for i, t in enumerate(graded)).backward()
            values.append((tensors, argument.grad))
        torch.testing.assert_close(*values, rtol=0, atol=0)
    assert exports(ours) == 0


@pytest.mark.parametrize("name", COMPUTED)
def test_what_computes_anything_is_a_graph(name: str) -> None:
    ours, _ = pair(Views(COMPUTED[name]))
    ours(torch.randn(2, 3, 4, requires_grad=True))
    assert exports(ours) == 1


def test_what_computes_at_some_sizes_only_is_a_graph_there() -> None:
    ours, theirs = pair(Views(lambda x: x.view(-1) if len(x) < 3 else x.view(-1) * 2))
    for rows, count in ((2, 0), (4, 1), (5, 1)):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(ours(x), theirs(x))
        assert exports(ours) == count


class IgnoresASize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Embedding(5, 4)

    def forward(self, index: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.scores(index).t()
        return nn.functional.cross_entropy(logits, labels, ignore_index=logits.size(1))


def test_the_label_to_ignore_may_be_a_size() -> None:
    theirs = IgnoresASize()
    ours = ORTModule(copy.deepcopy(theirs), exporter="dynamo")
    for size in (5, 3):
        index, labels = torch.arange(size) % 5, torch.tensor([0, size, 1, size])
        for module in (ours, theirs):
            module.zero_grad()
            module(index, labels).backward()
        assert_same_gradients(ours, theirs, 1e-5)


def test_constants_among_the_arguments_are_told(caplog: pytest.LogCaptureFixture) -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
            return x + len(name)

    ours = ORTModule(Named(), DebugOptions(LogLevel.INFO), exporter=TS)
    try:
        assert ours(torch.zeros(2), "ab").tolist() == [2.0, 2.0]
    finally:
        ORTModule(Named())  # as quiet as before
    assert "Received input of type <class 'str'> is treated as a constant" in caplog.text


@pytest.mark.parametrize(
    ("level", "own", "told"), [("1", "0", True), ("1", "1", False), ("2", "0", False)]
)
def test_the_memory_level_is_told(
    level: str,
    own: str,
    told: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
    monkeypatch.setenv("ORTMODULE_ALLOW_AUTOGRAD_CHECKPOINT", own)
    ORTModule(mlp(), DebugOptions(LogLevel.INFO))
    monkeypatch.undo()
    ORTModule(mlp())  # as quiet as before
    assert ("Layer-wise memory optimization is enabled" in caplog.text) is told


def test_the_exporter_reads_its_translations_once(monkeypatch: pytest.MonkeyPatch) -> None:
    registration = pytest.importorskip("torch.onnx._internal.exporter._registration")
    ORTModule(mlp(), exporter="dynamo")(torch.randn(2, 6))

    def read_again() -> Any:
        raise AssertionError("the table was read again")

    monkeypatch.setattr(registration.onnxscript_apis, "get_torchlib_ops", read_again)
    ORTModule(mlp(), exporter="dynamo")(torch.randn(2, 6))
    with pytest.raises(AssertionError):
        registration.ONNXRegistry.from_torchlib()


# --- types ----------------------------------------------------------------------------------------


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def small_conv() -> nn.Module:
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    return nn.Sequential(*layers)


TYPES = [
    # module, shape of the argument, its type, autocast, tolerance
    (small_net, (4, 6), torch.float64, None, 1e-9),
    (small_net, (4, 6), torch.float16, None, 2e-2),
    (small_net, (4, 6), torch.bfloat16, None, 1e-1),
    (small_conv, (2, 3, 8, 8), torch.bfloat16, None, 1e-1),
    (small_net, (4, 6), torch.float32, torch.bfloat16, 1e-1),
    (small_net, (4, 6), torch.float32, torch.float16, 2e-2),
    (small_conv, (2, 3, 8, 8), torch.float32, torch.bfloat16, 1e-1),
]


@pytest.mark.parametrize(("make", "shape", "dtype", "cast", "tolerance"), TYPES)
def test_other_types_than_float32(
    make: Any, shape: tuple[int, ...], dtype: Any, cast: Any, tolerance: float
) -> None:
    torch.manual_seed(0)
    ours, theirs = pair(make().to(dtype))
    results = []
    for module in (ours, theirs):
        x = torch.linspace(-1, 1, math.prod(shape)).reshape(shape).to(dtype).requires_grad_()
        with torch.autocast("cpu", dtype=cast, enabled=cast is not None):
            y = module(x)
        y.square().sum().backward()
        results.append([y, x.grad, *(p.grad for p in module.parameters())])
    for mine, other in zip(*results):
        assert mine.dtype is other.dtype
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


def test_what_onnxruntime_cannot_compute_in_a_type_is_told() -> None:
    ours = ORTModule(small_conv().double(), exporter=TS)
    with pytest.raises(ORTModuleONNXModelException, match="no kernel for Conv in float64"):
        ours(torch.randn(2, 3, 8, 8, dtype=torch.float64))


# --- pooling --------------------------------------------------------------------------------------

POOLS = [
    # layer, shape, exporters
    (nn.AdaptiveAvgPool1d(3), (2, 3, 8), [TS, "dynamo"]),
    (nn.AdaptiveAvgPool2d((5, 7)), (2, 3, 12, 9), [TS, "dynamo"]),
    (nn.AdaptiveAvgPool2d((None, 2)), (2, 3, 4, 6), [TS]),
    (nn.AdaptiveAvgPool3d((2, 1, 3)), (2, 3, 5, 4, 7), [TS]),
]


@pytest.mark.parametrize(
    ("layer", "shape", "exporter"), [(pool, shape, e) for pool, shape, es in POOLS for e in es]
)
def test_adaptive_averages_are_products(layer: Any, shape: tuple[int, ...], exporter: str) -> None:
    theirs = nn.Sequential(nn.Conv1d(3, 3, 1) if len(shape) == 3 else nn.Identity(), layer)
    ours = ORTModule(copy.deepcopy(theirs), exporter=exporter)
    for sizes in (shape, tuple(s + 1 for s in shape[:1]) + shape[1:-1] + (shape[-1] + 3,)):
        x = torch.randn(sizes, requires_grad=True)
        grads = []
        for module in (ours, theirs):
            y = module(x)
            (y * torch.arange(y.numel()).reshape(y.shape)).sum().backward()
            grads.append((y.detach(), x.grad))
            x.grad = None
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-4)
    operators = {
        n.op_type for n in next(iter(ours._graphs._kinds.values())).graphs.halves.forward.graph.node
    }
    assert "MatMul" in operators
    assert "Gather" not in operators


def test_the_maximum_of_a_window_is_the_one_that_torch_takes() -> None:
    """On equal values, ties included; after a convolution, rounding may decide otherwise."""
    x = torch.randint(0, 3, (2, 3, 12, 12)).float().requires_grad_()
    ours, theirs = pair(nn.MaxPool2d(3, 2, 1))
    grads = []
    for module in (ours, theirs):
        y = module(x)
        (y * torch.arange(y.numel()).reshape(y.shape)).sum().backward()
        grads.append(x.grad)
        x.grad = None
    assert torch.equal(grads[0], grads[1])


# --- functions with a backward of their own -------------------------------------------------------


class Tenfold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0].flip(-1) * 10


class OwnBackward(nn.Module):
    def __init__(self, *, with_weight: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2) if with_weight else nn.Identity()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": Tenfold.apply(self.fc(x)) + x}


@pytest.mark.parametrize("with_weight", [True, False])
def test_a_backward_of_its_own_is_not_lost(with_weight: bool) -> None:
    x = torch.ones(1, 2, requires_grad=True)
    with pytest.raises(ORTModuleTorchModelException, match="backward of its own in Tenfold"):
        ORTModule(OwnBackward(with_weight=with_weight))(x)
    allowed = ORTModule(OwnBackward(with_weight=False), fallback="UNSUPPORTED_TORCH_MODEL")
    allowed(x)["y"].sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[11.0, 11.0]]


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.a, self.b, self.reentrant = nn.Linear(2, 3), nn.Linear(3, 2), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(checkpoint(self.a, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize(("reentrant", "exporter"), [(True, TS), (True, "dynamo"), (False, TS)])
def test_gradients_pass_what_torch_would_checkpoint(reentrant: bool, exporter: str) -> None:
    theirs = Checkpointed(reentrant=reentrant)
    ours = ORTModule(copy.deepcopy(theirs), exporter=exporter)
    x = torch.randn(4, 2, requires_grad=True)
    for module in (ours, theirs):
        module(x).square().sum().backward()
    assert_same_gradients(ours, theirs, 1e-5)
    assert checkpoint(nn.Linear(2, 2), x, use_reentrant=True).requires_grad


class AtOnce:
    """A timer that does not wait."""

    def __init__(self, seconds: float, function) -> None:
        self.start = function

    def cancel(self) -> None:
        pass


def test_a_long_preparation_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = pair(mlp())
    monkeypatch.setenv("ONNXTRAIN_QUIET", "0")
    monkeypatch.setattr(preparing, "Timer", AtOnce)
    ours(torch.randn(2, 6))
    assert "Preparing Sequential for onnxruntime. This takes more than" in caplog.text
    assert "Preparing Sequential for onnxruntime: done after" in caplog.text
    caplog.clear()
    ours(torch.randn(2, 6))
    assert not caplog.text


def test_a_failed_export_names_the_module() -> None:
    ours = ORTModule(nn.AdaptiveMaxPool1d(3), exporter=TS)
    with pytest.raises(
        ORTModuleTorchModelException, match=r"^AdaptiveMaxPool1d cannot be exported to ONNX"
    ):
        ours(torch.randn(2, 3, 8))


# --- equal values ---------------------------------------------------------------------------------


class without_gradient:
    """The tensor, whose methods are called without a gradient."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return torch.no_grad()(getattr(self.tensor, name))


EXTREMES = {
    "max": lambda x: torch.max(x, dim=1)[0],
    "min": lambda x: x.min(-1, keepdim=True).values,
    "places": lambda x: torch.max(input=x, dim=0).values * x.argmax(0),
    "all": lambda x: x.max() * x.min(),
    "two": lambda x: torch.max(x, x.flip(0)),
    "amax": lambda x: x.amax(1),
    "constant": lambda x: x - without_gradient(x).max(1, keepdim=True).values,
    "largest": lambda x: x - without_gradient(x).topk(2).values.sum(),
}


class Extreme(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return EXTREMES[self.name](x)


@pytest.mark.parametrize("name", EXTREMES)
def test_equal_values_share_a_gradient_as_in_torch(name: str) -> None:
    x = torch.randint(0, 3, (4, 6)).float().requires_grad_()
    grads = []
    for module in pair(Extreme(name)):
        y = module(x)
        (y * torch.arange(1, y.numel() + 1).view(y.shape)).sum().backward()
        grads.append(x.grad)
        x.grad = None
    torch.testing.assert_close(grads[0], grads[1])


class Draws(nn.Module):
    def forward(self, weights: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(weights, 400, True)


@pytest.mark.parametrize(("exporter", "shape"), [(TS, (1, 4)), ("dynamo", (4,))])
def test_multinomial_draws_by_weight_and_again_after_the_same_seed(
    exporter: str, shape: tuple[int, ...]
) -> None:
    module, weights = ORTModule(Draws(), exporter=exporter), torch.tensor([0.1, 0.0, 0.2, 0.7])
    draws = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        draws.append(module(weights.reshape(shape)).flatten())
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    frequencies = torch.bincount(draws[0], minlength=4) / 400
    assert frequencies[1] == 0
    assert torch.allclose(frequencies, weights, atol=0.1)


class Einsum(nn.Module):
    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.einsum(self.equation, a, b)


@pytest.mark.parametrize("equation", ["sec,sm->ecm", "sec,ecm->sm", "ks,ksm->sm", "ij,jk->ki"])
def test_einsum_as_in_torch(equation: str) -> None:
    sizes = {"s": 3, "e": 2, "c": 4, "m": 5, "k": 2, "i": 3, "j": 4}
    left, right = equation.partition("->")[0].split(",")
    operands = [torch.randn([sizes[n] for n in names]) for names in (left, right)]
    results = []
    for module in (Einsum(equation), ORTModule(Einsum(equation), exporter=TS)):
        given = [t.clone().requires_grad_() for t in operands]
        result = module(*given)
        (result * torch.arange(result.numel()).reshape(result.shape)).sum().backward()
        results.append([result, *(t.grad for t in given)])
    for expected, actual in zip(*results):
        assert torch.allclose(expected, actual, atol=1e-4)
