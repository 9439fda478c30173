"""Export for training: names, tying, modes, dynamic sizes, and nothing left behind."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx.helper
import onnx.numpy_helper
import onnxruntime
import pytest
import torch
from torch import nn

import onnxtrain
from onnxtrain.torch import FixedValueWarning, ORTModule, repair
from onnxtrain.torch.export import ExportError, default_exporter, export

from .models import WORDS, Net, Statistics, Tied

EXPORTERS = ["dynamo", "torchscript"]


def run(exported, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # onnxruntime's own optimizer takes Dropout out where nobody reads its mask
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        exported.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(exported.outputs, feeds)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_every_parameter_is_its_own_initializer(exporter: str) -> None:
    model = Tied()
    tokens, labels = torch.randint(0, WORDS, (3, 4)), torch.randint(0, WORDS, (12,))
    exported = export(
        model,
        (tokens, labels),
        loss_fn=lambda out, y: nn.functional.cross_entropy(out.view(-1, WORDS), y),
        exporter=exporter,
    )
    found = {i.name for i in exported.model.graph.initializer}
    used = {n for n, _ in model.named_parameters() if not n.startswith("unused")}
    assert used <= found
    assert not any(n.startswith("unused") for n in found)
    assert exported.names["out.weight"] == exported.names["embed.weight"] == "embed.weight"
    assert "out.weight" not in found
    assert exported.names["norm1.weight"] != exported.names["norm2.weight"]
    assert exported.names["scale"] == "scale"
    assert (exported.inputs, exported.outputs) == (["tokens", "label"], ["loss", "output"])
    assert exported.exporter == exporter
    assert not exported.note


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_equal_parameters_stay_apart_in_eval_mode(exporter: str) -> None:
    model = Statistics()
    exported = export(model, (torch.randn(4, 5),), training=False, exporter=exporter)
    found = {i.name for i in exported.model.graph.initializer}
    assert {n for n, t in model.state_dict().items() if t.dim()} <= found
    assert not [n for n in exported.model.graph.node if n.op_type == "Identity" and
                n.input[0] in found]  # fmt: skip


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("training", [True, False])
def test_modes_are_those_asked_for(exporter: str, training: bool) -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
    exported = export(model, (torch.randn(4, 5),), training=training, exporter=exporter)
    nodes = {n.op_type: n for n in exported.model.graph.node}
    modes = {a.name: a.i for a in nodes["BatchNormalization"].attribute}
    assert bool(modes.get("training_mode", 0)) == training
    assert len(nodes["BatchNormalization"].output) == (3 if training else 1)
    assert ("Dropout" in nodes) == training


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_submodules_keep_their_mode(exporter: str) -> None:
    model = Statistics().train()
    model.bn2.eval()
    exported = export(model, (torch.randn(4, 5),), training=None, exporter=exporter)
    norms = [n for n in exported.model.graph.node if n.op_type == "BatchNormalization"]
    modes = {n.input[1]: any(a.name == "training_mode" and a.i for a in n.attribute) for n in norms}
    assert modes == {"bn1.weight": True, "bn2.weight": False}


class BatchStatistics(nn.Module):
    """The function, with statistics of the batch whatever the mode of the module."""

    def forward(self, x, mean, variance):
        return nn.functional.batch_norm(x, mean, variance, training=True)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_the_function_says_which_statistics_it_takes(exporter: str) -> None:
    x, mean, variance = torch.randn(4, 5), torch.randn(5), torch.rand(5)
    exported = export(
        BatchStatistics().eval(), (x, mean.clone(), variance.clone()), training=None,
        exporter=exporter,
    )  # fmt: skip
    names = [i.name for i in exported.model.graph.input]
    got = run(exported, dict(zip(names, (x.numpy(), mean.numpy(), variance.numpy()))))
    expected = BatchStatistics()(x, mean, variance)
    np.testing.assert_allclose(got[0], expected.numpy(), rtol=1e-4, atol=1e-5)


class CrossEntropy(nn.Module):
    def __init__(self, **settings) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, scores, target):
        return nn.functional.cross_entropy(scores, target, **self.settings)


LABELS = torch.tensor([0, 2, -100, 1])
SHARES = torch.tensor([[0.7, 0.2, 0.1], [0, 1, 0], [0.3, 0.3, 0.4], [0.9, 0, 0.1]])
WEIGHT = torch.tensor([0.5, 2.0, 1.0])


class EachLoss(nn.Module):
    """Losses of single samples, weighed by what has an axis more, and by class."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, scores, target, shares):
        losses = self.function(scores, target, WEIGHT, reduction="none")
        return shares * losses[:, None] + losses.mean()


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("function", [nn.functional.cross_entropy, nn.functional.nll_loss])
def test_losses_of_samples_may_be_weighed(function, exporter) -> None:
    args = torch.randn(4, 3).log_softmax(1), LABELS, torch.rand(4, 2)
    axes = {f"input_{i}": {0: "batch"} for i in range(3)}
    exported = export(
        EachLoss(function), args, training=None, exporter=exporter, dynamic_axes=axes,
        input_names=list(axes),
    )  # fmt: skip
    feeds = {name: value.numpy() for name, value in zip(axes, args, strict=True)}
    (got,) = run(exported, feeds)
    np.testing.assert_allclose(got, EachLoss(function)(*args).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    ("weight", "reduction"), [(None, "mean"), (WEIGHT, "mean"), (WEIGHT, "none"), (None, "sum")]
)
@pytest.mark.parametrize(("target", "smoothing"), [(LABELS, 0.3), (SHARES, 0.0), (SHARES, 0.3)])
def test_cross_entropy_is_torchs(target, smoothing, weight, reduction, exporter) -> None:
    """The dynamo exporter forgets `label_smoothing`; both take probabilities for labels."""
    module = CrossEntropy(weight=weight, reduction=reduction, label_smoothing=smoothing)
    scores = torch.linspace(-1, 1, 12).reshape(4, 3).sin().requires_grad_()
    exported = export(module, (scores, target), exporter=exporter)
    gradients = onnxtrain.differentiate(exported.model, wrt=["scores"], vjp=True)
    seed = torch.linspace(1, 2, 4) if reduction == "none" else torch.tensor(1.5)
    feeds = {"scores": scores.detach().numpy(), "target": target.numpy()}
    session = onnxruntime.InferenceSession(
        gradients.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    got = session.run(None, feeds | {f"{exported.outputs[0]}_grad": seed.numpy()})
    loss = module(scores, target)
    loss.backward(seed)
    np.testing.assert_allclose(got[0], loss.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(got[1], scores.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_cross_entropy_of_maps_with_smoothing(exporter: str) -> None:
    module = CrossEntropy(label_smoothing=0.2, weight=WEIGHT)
    scores, target = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))
    exported = export(module, (scores, target), exporter=exporter)
    got = run(exported, {"scores": scores.numpy(), "target": target.numpy()})
    np.testing.assert_allclose(got[0], module(scores, target).numpy(), rtol=1e-5)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    ("target", "settings"),
    [
        (torch.tensor(2), {}),
        (torch.tensor(1), {"reduction": "sum"}),
        (torch.tensor(1), {"reduction": "none", "weight": WEIGHT}),
        (torch.tensor(0), {"label_smoothing": 0.2}),
        (SHARES[0], {"reduction": "none"}),
    ],
)
def test_cross_entropy_of_one_sample(target, settings, exporter: str) -> None:
    """Its scores have one axis, which ONNX's operator does not take."""
    check_gradients(CrossEntropy(**settings), (torch.tensor([0.3, -1.0, 0.5]), target), exporter)


def check_gradients(module: nn.Module, inputs: tuple[Any, ...], exporter: str) -> None:
    """Value and gradient of the first input are those of torch."""
    x = inputs[0].clone().requires_grad_()
    y = module(x, *inputs[1:])
    seed = torch.linspace(1, 2, y.numel()).reshape(y.shape)
    y.backward(seed)
    exported = export(module, inputs, exporter=exporter)
    names = [i.name for i in exported.model.graph.input]
    gradients = onnxtrain.differentiate(exported.model, wrt=names[:1], vjp=True)
    session = onnxruntime.InferenceSession(
        gradients.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {name: value.numpy() for name, value in zip(names, inputs)}
    got = session.run(None, feeds | {f"{exported.outputs[0]}_grad": seed.numpy()})
    for found, wanted in zip(got, (y.detach(), x.grad)):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)


class Distances(nn.Module):
    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x, y):
        return torch.cdist(x, y, p=self.p, compute_mode=self.mode)


MODE = "use_mm_for_euclid_dist"


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("shapes", [((4, 3), (4, 3)), ((3, 1, 27, 2), (2, 5, 2))])
@pytest.mark.parametrize(
    ("p", "mode"),
    [
        (0.5, MODE), (1.0, MODE), (1.5, MODE), (3.0, MODE), (float("inf"), MODE),
        (2.0, MODE), (2.0, f"{MODE}_if_necessary"), (2.0, f"donot_{MODE}"),
    ],
)  # fmt: skip
def test_distances_are_torchs(p: float, mode: str, shapes, exporter: str) -> None:
    """Also of rows from themselves, where a distance of 0 has a gradient of 0."""
    first, second = (torch.arange(1.0, 1 + int(np.prod(s))).reshape(s) for s in shapes)
    x = (first * 1.7).sin()
    y = x.clone() if first.shape == second.shape else (second * 2.3).cos()
    if mode == MODE and first.shape == second.shape and p == 2:
        x = x.round()  # a product of fractions is not quite 0, in torch neither
        y = x.clone()
    check_gradients(Distances(p, mode), (x, y), exporter)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_distance_that_counts(exporter: str) -> None:
    """p = 0: how many coordinates differ."""
    x, y = torch.tensor([[1.0, 2, 3], [1, 1, 1]]), torch.tensor([[1.0, 2, 4]])
    feeds = {"x": x.numpy(), "y": y.numpy()}
    got = run(export(Distances(0.0, MODE), (x, y), exporter=exporter), feeds)
    assert np.asarray(got[0]).tolist() == [[1.0], [2.0]]


class Pool(nn.Module):
    def __init__(self, function, *settings, **more) -> None:
        super().__init__()
        self.function, self.settings, self.more = function, settings, more

    def forward(self, x):
        return self.function(x, *self.settings, **self.more)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    ("shape", "pool"),
    [
        ((1, 3, 9, 9), Pool(nn.functional.avg_pool2d, (4, 4), (2, 3), 1, True, False, 2)),
        ((2, 2, 7, 8), Pool(nn.functional.avg_pool2d, 3, divisor_override=5, padding=1)),
        (
            (1, 2, 4, 5, 4),
            Pool(nn.functional.avg_pool3d, 2, 3, ceil_mode=True, divisor_override=-2),
        ),
        ((1, 2, 6, 6), Pool(nn.functional.avg_pool2d, 2)),
    ],
)
def test_the_divisor_of_an_average_pool(shape, pool, exporter) -> None:
    x = torch.linspace(-1, 1, int(np.prod(shape))).reshape(shape).cos()
    got = run(export(pool, (x,), exporter=exporter), {"x": x.numpy()})
    np.testing.assert_allclose(got[0], pool(x).numpy(), rtol=1e-5, atol=1e-6)


class Unpooled(nn.Module):
    def __init__(self, axes: int, size: list[int]) -> None:
        super().__init__()
        self.pool = getattr(torch.nn.functional, f"max_pool{axes}d")
        self.undo = getattr(torch.nn.functional, f"max_unpool{axes}d")
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, places = self.pool(x.tanh(), 2, return_indices=True)
        return self.undo(y * y, places, 2, output_size=self.size).exp()


@pytest.mark.parametrize("shape", [(4, 2, 7), (3, 2, 6, 5), (2, 6, 5), (2, 3, 4, 6, 5)])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_pool_that_is_undone(shape: tuple[int, ...], is_open: bool) -> None:
    axes = min(len(shape) - 1, 2) if len(shape) < 5 else 3
    axes = 1 if len(shape) == 3 and shape[0] == 4 else axes
    module = Unpooled(axes, list(shape[-axes:]))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    model = export(
        module, (x,), exporter="dynamo", input_names=["x"], output_names=["y"],
        dynamic_axes={"x": {0: "N"}} if is_open else None,
    )  # fmt: skip
    if is_open:
        x = torch.cat([x, -x]).detach().requires_grad_()
    y = module(x)
    (expected,) = torch.autograd.grad(y.sum(), x)
    graded = onnxtrain.differentiate(model.model, wrt=["x"], vjp=True)
    session = onnxruntime.InferenceSession(graded.SerializeToString())
    feeds = {"x": x.detach().numpy(), "y_grad": np.ones(y.shape, np.float32)}
    values, gradient = session.run(["y", "x_grad"], feeds)
    np.testing.assert_allclose(values, y.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected.numpy(), rtol=1e-5, atol=1e-6)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, dropout=0.5)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("training", [True, False])
def test_attention_drops_out_in_training_only(exporter: str, training: bool) -> None:
    """Both exporters forget the mode of the dropout inside attention."""
    model, x = Attention(), torch.randn(6, 3, 8)
    exported = export(model, (x,), training=training, exporter=exporter)
    drawn = [run(exported, {"x": x.numpy()})[0] for _ in range(2)]
    expected = model.eval()(x).detach().numpy()
    assert np.allclose(drawn[0], expected, atol=1e-5) != training
    assert np.allclose(*drawn) != training


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_nothing_is_left_behind(exporter: str, capfd: pytest.CaptureFixture[str]) -> None:
    model = Statistics().train()
    model.bn2.eval()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    random = torch.get_rng_state()
    export(model, (torch.randn(4, 5),), training=True, exporter=exporter)
    torch.randn(20)
    torch.set_rng_state(random)
    export(model, (torch.zeros(4, 5),), training=True, exporter=exporter)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert model.training
    assert not model.bn2.training
    exported = export(model, (torch.ones(4, 5),), exporter=exporter)
    means = next(i for i in exported.model.graph.initializer if i.name == "bn1.running_mean")
    assert not onnx.numpy_helper.to_array(means).any()
    out = capfd.readouterr()
    assert not out.out
    assert not out.err


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_dynamic_sizes_and_their_names(exporter: str) -> None:
    model = Net()
    exported = export(
        model, (torch.randn(4, 5),), input_names=["x"], dynamic_axes={"x": {0: "batch"}},
        exporter=exporter,
    )  # fmt: skip
    dims = exported.model.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == ["batch", 5]
    x = torch.randn(9, 5)
    (result,) = run(exported, {"x": x.numpy()})
    np.testing.assert_allclose(result, model(x).detach(), atol=1e-6)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, pair, factor, *, more):
        y = self.fc(pair[0]) * factor + pair[1] + more["bias"]
        return {"y": y, "parts": (y.sum(), None, "text")}


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_nested_inputs_and_outputs(exporter: str) -> None:
    model = Nested()
    a, b, bias = torch.randn(2, 3), torch.randn(2, 3), torch.randn(3)
    exported = export(model, ((a, b), 2.0), {"more": {"bias": bias}}, exporter=exporter)
    assert exported.inputs == ["pair_0", "pair_1", "more_0"]
    results = run(exported, dict(zip(exported.inputs, (a.numpy(), b.numpy(), bias.numpy()))))
    rebuilt, expected = exported.rebuild(results), model((a, b), 2.0, more={"bias": bias})
    np.testing.assert_allclose(rebuilt["y"], expected["y"].detach(), atol=1e-6)
    np.testing.assert_allclose(rebuilt["parts"][0], expected["parts"][0].item(), rtol=1e-5)
    assert rebuilt["parts"][1:] == (None, "text")


class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return self.fc(x) if bool((x > 0).any()) else self.fc(x) * 2


@pytest.mark.skipif(default_exporter() != "dynamo", reason="an older torch")
def test_the_other_exporter_takes_over_and_says_why() -> None:
    with pytest.warns(FixedValueWarning, match=r"if bool\(\(x > 0\)"):
        exported = export(DataDependent(), (torch.ones(2, 3),))
    assert exported.exporter == "torchscript"
    assert "GuardOnDataDependent" in exported.note


def test_errors_name_both_reasons() -> None:
    class Impossible(nn.Module):
        def forward(self, x):
            if torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export():
                raise RuntimeError("out of luck")
            return x

    with pytest.raises(ExportError, match=r"dynamo: .*out of luck.*torchscript: .*out of luck"):
        export(Impossible(), (torch.ones(2),))
    with pytest.raises(ExportError, match=r"Net fails when it is called.*cannot be multiplied"):
        export(Net(), (torch.ones(2, 3),))
    with pytest.raises(ExportError, match="exporter is"):
        export(Net(), (torch.ones(2, 5),), exporter="other")
    with pytest.raises(ExportError, match="1 outputs, and 2 are described"):
        export(Net(), (torch.ones(2, 5),), output_names=["a", "b"])


class BiasedAttention(nn.Module):
    """Attention with a learned bias by distance, whose heads are put together by a view."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.bias = nn.Embedding(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.project(x).view(2, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        steps = torch.arange(4)
        bias = self.bias((steps[:, None] - steps).abs()).permute(2, 0, 1)[None]
        mixed = nn.functional.scaled_dot_product_attention(*heads, attn_mask=bias)
        return mixed.transpose(1, 2).contiguous().view(2, 4, 8)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_attention_with_a_learned_bias(exporter: str) -> None:
    """The layout that torch traces is the one that it decomposes attention into."""
    exported = export(BiasedAttention(), [torch.randn(2, 4, 8)], exporter=exporter)
    assert "bias.weight" in exported.names
    assert not {"Greater", "Where"} & {n.op_type for n in exported.model.graph.node}, "it is finite"


class AttentionOfAnyRank(nn.Module):
    """Attention with fewer axes and with more than four, with masks that are broadcast."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        attend = nn.functional.scaled_dot_product_attention
        three = x[:, 0, 0]
        lower = torch.ones(4, 4, dtype=torch.bool).tril()
        by_row = (x[..., :1] * x[..., :1].transpose(-1, -2)).mean(2, keepdim=True)
        return (
            attend(three, 2 * three, three.cos(), is_causal=True),
            attend(three, three, three, lower.expand(x.shape[0], 4, 4)),
            attend(three[0], three[0], three[0].cos()),
            attend(x, x.cos(), x, lower, scale=0.3),
            attend(x, x[:, :1], x.sin(), attn_mask=by_row),
            attend(x, x[:, :, :1], x[:, :, :1], enable_gqa=True),
        )


@pytest.mark.skipif(default_exporter() != "dynamo", reason="an older torch")
def test_attention_of_any_rank() -> None:
    """The dynamo exporter asserts that it has four axes."""
    module = AttentionOfAnyRank()
    axes = {"x": {0: "batch"}}
    exported = export(module, [torch.randn(2, 3, 2, 4, 8)], exporter="dynamo", dynamic_axes=axes)
    for rows in (2, 5):
        x = torch.randn(rows, 3, 2, 4, 8)
        for got, expected in zip(run(exported, {"x": x.numpy()}), module(x), strict=True):
            np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-6)


class MaskedAttention(nn.Module):
    """Attention by a mask of truth values and by one of minus infinities."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        heads = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        attend = nn.functional.scaled_dot_product_attention
        minus = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, -torch.inf)
        return attend(*heads, attn_mask=mask) + attend(*heads, attn_mask=minus).cos()


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_who_sees_nothing_gets_zeros(exporter: str) -> None:
    """As a row that is padded on the left; exporters give averages, or no number."""
    mask = torch.ones(2, 2, 4, 4, dtype=torch.bool).tril()
    mask[1, :, :2] = False
    x, reference = torch.randn(2, 4, 8), MaskedAttention()
    trained = ORTModule(copy.deepcopy(reference), exporter=exporter)
    for module in (reference, trained):
        module(x, mask).sum().backward()
    np.testing.assert_allclose(
        trained(x, mask).detach(), reference(x, mask).detach(), rtol=1e-4, atol=1e-6
    )
    for got, expected in zip(trained.parameters(), reference.parameters(), strict=True):
        np.testing.assert_allclose(got.grad, expected.grad, rtol=1e-4, atol=1e-5)


def test_a_failure_says_how_experts_can_be_exported() -> None:
    class Experts(nn.Module):
        def set_experts_implementation(self, name: str) -> None:
            """As models of transformers have it."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvals(x.reshape(2, 2)).real

    with pytest.raises(ExportError, match=r"set_experts_implementation\('batched_mm'\)"):
        export(Experts(), (torch.randn(4),), exporter="torchscript")


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_convolution_without_bias_has_none(rank: int, exporter: str) -> None:
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1](2, 3, 2, bias=False)
    x = torch.randn(1, 2, *(4,) * rank)
    exported = export(layer, (x,), exporter=exporter, input_names=["x"])
    assert [n.op_type for n in exported.model.graph.node] == ["Conv"]
    (got,) = run(exported, {"x": x.numpy()})
    np.testing.assert_allclose(got, layer(x).detach(), rtol=1e-5, atol=1e-6)


class Permuted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, -2, -1, 1) * 2


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_axes_may_be_counted_from_the_end(exporter: str) -> None:
    """As Mamba 2 permutes."""
    x = torch.randn(2, 3, 4, 5)
    (got,) = run(export(Permuted(), (x,), exporter=exporter, input_names=["x"]), {"x": x.numpy()})
    np.testing.assert_array_equal(got, Permuted()(x))


def test_zeros_that_others_read_stay() -> None:
    zero = onnx.numpy_helper.from_array(np.zeros((), np.float32))
    nodes = [
        onnx.helper.make_node("Constant", [], ["zero"], value=zero),
        onnx.helper.make_node("Constant", [], ["shape"], value_ints=[3]),
        onnx.helper.make_node("Expand", ["zero", "shape"], ["zeros"]),
        onnx.helper.make_node("Conv", ["x", "w", "zeros"], ["y"]),
        onnx.helper.make_node("Conv", ["x", "w", "b"], ["z"]),
    ]
    values = [onnx.helper.make_tensor_value_info(n, 1, None) for n in ("zeros", "y", "z")]
    proto = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], values))
    repair.drop_zero_biases(proto)
    assert [list(n.input) for n in proto.graph.node][-2:] == [["x", "w"], ["x", "w", "b"]]
    assert len(proto.graph.node) == 5
    del proto.graph.output[0]
    proto.graph.node[3].input.append("zeros")
    repair.drop_zero_biases(proto)
    assert [n.op_type for n in proto.graph.node] == ["Conv", "Conv"]


class Checked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all(x > -100.0)
        return x * 2


@pytest.mark.parametrize("options", [{}, {"custom_translation_table": {}}])
def test_checks_of_values_are_exported(options) -> None:
    exported = export(
        Checked(), (torch.ones(3),), exporter="dynamo", input_names=["x"], export_options=options
    )
    (got,) = run(exported, {"x": np.ones(3, np.float32)})
    np.testing.assert_array_equal(got, 2 * np.ones(3))
