# ruff: noqa: E501  a case is a line
"""Every loss against torch.nn.functional: values, and gradients with respect to the inputs."""

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F

import onnxtrain
from onnxtrain import onnxblock
from tests.onnxblock.harness import identity_model, inputs_of, only_standard, run

L = onnxblock.loss
# PyTorch announces another meaning of "mean" for kl_div
pytestmark = pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
RNG = np.random.default_rng(3)


def normal(*shape, scale=1.0):
    return (RNG.normal(size=shape) * scale).astype(np.float32)


def uniform(*shape):
    return RNG.uniform(0.05, 0.95, size=shape).astype(np.float32)


def classes(count, *shape):
    return RNG.integers(0, count, size=shape).astype(np.int64)


def signs(*shape):
    return (RNG.integers(0, 2, size=shape) * 2 - 1).astype(np.int64)


def log_probabilities(*shape):
    return F.log_softmax(torch.tensor(normal(*shape)), 1).numpy()


def ignoring(labels, value):
    labels = labels.copy()
    labels.reshape(-1)[::3] = value
    return labels


W4 = np.array([0.2, 1.5, 1.0, 0.7], np.float32)
X, X2 = normal(6, 4, scale=3), normal(5, 4, 2, 3, scale=2)
LAST = np.moveaxis(X2, 1, -1).copy()
Y, Y2 = classes(4, 6), classes(4, 5, 2, 3)
ALL = ("mean", "sum", "none")


MASKED = np.where(np.arange(24).reshape(6, 4) % 4 == 0, -np.inf, X).astype(np.float32)


def margin_of_counted(x, y, reduction, **kw):
    """PyTorch's multi-margin loss has no label to ignore: leave the rows out, and put zeros back."""
    losses = torch.zeros(len(y))
    losses[y >= 0] = F.multi_margin_loss(x[y >= 0], y[y >= 0], reduction="none", **kw)
    return {"mean": losses.sum() / (y >= 0).sum(), "sum": losses.sum(), "none": losses}[reduction]


def last_axis(x, y, **kw):
    return F.cross_entropy(x.movedim(-1, 1), y, **kw)


def next_token(x, y, reduction, ignore_index=-100, **kw):
    return F.cross_entropy(
        x[:, :-1].movedim(-1, 1), y[:, 1:], reduction=reduction, ignore_index=ignore_index, **kw
    )


SCORES, TOKENS = normal(3, 5, 7, scale=2), classes(7, 3, 5)

# name: (block class, its arguments, inputs, targets {name: array}, torch function, its arguments)
CASES = {
    "mse": (L.MSELoss, {}, [X], {"target": normal(6, 4)}, F.mse_loss, {}),
    "l1": (L.L1Loss, {}, [X], {"target": normal(6, 4)}, F.l1_loss, {}),
    "l1 at zero": (L.L1Loss, {}, [X], {"target": X.copy()}, F.l1_loss, {}),
    "huber": (L.HuberLoss, {"delta": 0.7}, [X], {"target": normal(6, 4)}, F.huber_loss, {"delta": 0.7}),
    "smooth l1": (L.SmoothL1Loss, {"beta": 2.0}, [X], {"target": normal(6, 4)}, F.smooth_l1_loss, {"beta": 2.0}),
    "smooth l1 0": (L.SmoothL1Loss, {"beta": 0.0}, [X], {"target": normal(6, 4)}, F.smooth_l1_loss, {"beta": 0.0}),
    "poisson": (L.PoissonNLLLoss, {}, [normal(5, 3)], {"target": classes(9, 5, 3).astype(np.float32)}, F.poisson_nll_loss, {}),
    "poisson full": (
        L.PoissonNLLLoss, {"log_input": False, "full": True}, [uniform(5, 3) * 4], {"target": classes(9, 5, 3).astype(np.float32)},
        F.poisson_nll_loss, {"log_input": False, "full": True},
    ),
    "gaussian": (
        L.GaussianNLLLoss, {"full": True}, [normal(5, 3), uniform(5, 3)], {"target": normal(5, 3)},
        lambda x, v, t, **k: F.gaussian_nll_loss(x, t, v, full=True, **k), {},
    ),
    "ce": (L.CrossEntropyLoss, {}, [X], {"labels": Y}, F.cross_entropy, {}),
    "causal lm": (L.CausalLMLoss, {}, [SCORES], {"labels": ignoring(TOKENS, -100)}, next_token, {}),
    "causal lm ignoring 3": (L.CausalLMLoss, {"ignore_index": 3}, [SCORES], {"labels": TOKENS}, next_token, {"ignore_index": 3}),
    "causal lm smoothed": (L.CausalLMLoss, {"label_smoothing": 0.2}, [SCORES], {"labels": ignoring(TOKENS, -100)}, next_token, {"label_smoothing": 0.2}),
    "causal lm shifted before": (L.CausalLMLoss, {"shift": False}, [SCORES], {"labels": TOKENS}, last_axis, {}),
    "ce weight": (L.CrossEntropyLoss, {"weight": W4}, [X], {"labels": Y}, F.cross_entropy, {"weight": torch.tensor(W4)}),
    "ce ignore": (L.CrossEntropyLoss, {"ignore_index": -100}, [X], {"labels": ignoring(Y, -100)}, F.cross_entropy, {}),
    "ce ignore class": (
        L.CrossEntropyLoss, {"ignore_index": 2, "weight": W4, "label_smoothing": 0.2}, [X], {"labels": ignoring(Y, 2)},
        F.cross_entropy, {"ignore_index": 2, "weight": torch.tensor(W4), "label_smoothing": 0.2},
    ),
    "ce smoothing": (L.CrossEntropyLoss, {"label_smoothing": 0.1}, [X], {"labels": Y}, F.cross_entropy, {"label_smoothing": 0.1}),
    "ce smoothing ignore": (
        L.CrossEntropyLoss, {"label_smoothing": 0.1, "ignore_index": -1}, [X2], {"labels": ignoring(Y2, -1)},
        F.cross_entropy, {"label_smoothing": 0.1, "ignore_index": -1},
    ),
    "ce 4d": (
        L.CrossEntropyLoss, {"weight": W4, "ignore_index": -100}, [X2], {"labels": ignoring(Y2, -100)},
        F.cross_entropy, {"weight": torch.tensor(W4)},
    ),
    "ce class axis last": (
        L.CrossEntropyLoss, {"class_axis": -1, "ignore_index": -100}, [LAST], {"labels": ignoring(Y2, -100)}, last_axis, {},
    ),
    "ce probabilities": (
        L.CrossEntropyLoss, {"probabilities": True, "weight": W4, "label_smoothing": 0.1}, [X], {"labels": uniform(6, 4)},
        F.cross_entropy, {"weight": torch.tensor(W4), "label_smoothing": 0.1},
    ),
    "nll": (
        L.NLLLoss, {"weight": W4, "ignore_index": -100}, [log_probabilities(6, 4)], {"labels": ignoring(Y, -100)},
        F.nll_loss, {"weight": torch.tensor(W4)},
    ),
    "nll 4d": (L.NLLLoss, {}, [log_probabilities(5, 4, 2, 3)], {"labels": Y2}, F.nll_loss, {}),
    "bce logits": (
        L.BCEWithLogitsLoss, {}, [np.array([[0.0, 100, -100], [1, 0, -2]], np.float32)], {"target": uniform(2, 3)},
        F.binary_cross_entropy_with_logits, {},
    ),
    "bce logits weights": (
        L.BCEWithLogitsLoss, {"weight": W4, "pos_weight": W4 + 1}, [X], {"target": uniform(6, 4)},
        F.binary_cross_entropy_with_logits, {"weight": torch.tensor(W4), "pos_weight": torch.tensor(W4 + 1)},
    ),
    "bce": (L.BCELoss, {"weight": W4}, [uniform(6, 4)], {"target": uniform(6, 4)}, F.binary_cross_entropy, {"weight": torch.tensor(W4)}),
    "kl": (L.KLDivLoss, {}, [log_probabilities(6, 4)], {"target": uniform(6, 4) * (RNG.random((6, 4)) > 0.3)}, F.kl_div, {}),
    "kl log": (L.KLDivLoss, {"log_target": True}, [log_probabilities(6, 4)], {"target": log_probabilities(6, 4)}, F.kl_div, {"log_target": True}),
    "cosine": (
        L.CosineEmbeddingLoss, {"margin": 0.1}, [normal(8, 5), normal(8, 5)], {"target": signs(8)},
        F.cosine_embedding_loss, {"margin": 0.1},
    ),
    "triplet": (L.TripletMarginLoss, {}, [normal(6, 5), normal(6, 5), normal(6, 5)], {}, F.triplet_margin_loss, {}),
    "triplet swap": (
        L.TripletMarginLoss, {"swap": True, "margin": 2.0, "p": 3}, [normal(6, 5), normal(6, 5), normal(6, 5)], {},
        F.triplet_margin_loss, {"swap": True, "margin": 2.0, "p": 3},
    ),
    "triplet p1": (L.TripletMarginLoss, {"p": 1}, [normal(6, 5), normal(6, 5), normal(6, 5)], {}, F.triplet_margin_loss, {"p": 1}),
    "hinge embedding": (
        L.HingeEmbeddingLoss, {"margin": 1.2}, [normal(6, 3)], {"target": signs(6, 3).astype(np.float32)},
        F.hinge_embedding_loss, {"margin": 1.2},
    ),
    "ce usual": (L.CrossEntropyLoss, {}, [X], {"labels": ignoring(Y, -100)}, F.cross_entropy, {}),
    "ce usual weight": (
        L.CrossEntropyLoss, {"weight": W4}, [X], {"labels": ignoring(Y, -100)}, F.cross_entropy, {"weight": torch.tensor(W4)},
    ),
    "ce usual 4d": (L.CrossEntropyLoss, {}, [X2], {"labels": ignoring(Y2, -100)}, F.cross_entropy, {}),
    "ce usual smoothing": (
        L.CrossEntropyLoss, {"label_smoothing": 0.3, "weight": W4}, [X], {"labels": ignoring(Y, -100)},
        F.cross_entropy, {"label_smoothing": 0.3, "weight": torch.tensor(W4)},
    ),
    "ce usual axis last": (L.CrossEntropyLoss, {"class_axis": -1}, [LAST], {"labels": ignoring(Y2, -100)}, last_axis, {}),
    "ce vector": (L.CrossEntropyLoss, {}, [X[0]], {"labels": Y[:1].reshape(())}, F.cross_entropy, {}),
    "ce none ignored": (L.CrossEntropyLoss, {"ignore_index": None}, [X], {"labels": Y}, F.cross_entropy, {}),
    "ce masked scores": (L.CrossEntropyLoss, {}, [MASKED], {"labels": np.array([-100, 1, 2, -100, 3, 1])}, F.cross_entropy, {}),
    "nll usual": (L.NLLLoss, {}, [log_probabilities(6, 4)], {"labels": ignoring(Y, -100)}, F.nll_loss, {}),
    "nll masked": (
        L.NLLLoss, {}, [F.log_softmax(torch.tensor(MASKED), 1).numpy()], {"labels": np.array([-100, 1, 2, -100, 3, 1])}, F.nll_loss, {},
    ),
    "multi margin ignore": (
        L.MultiMarginLoss, {"weight": W4, "p": 2}, [X], {"labels": ignoring(Y, -100)}, margin_of_counted, {"p": 2, "weight": torch.tensor(W4)},
    ),
    "multi margin": (L.MultiMarginLoss, {}, [X], {"labels": Y}, F.multi_margin_loss, {}),
    "multi margin 2": (
        L.MultiMarginLoss, {"p": 2, "margin": 0.6, "weight": W4}, [X], {"labels": Y},
        F.multi_margin_loss, {"p": 2, "margin": 0.6, "weight": torch.tensor(W4)},
    ),
    "hinge": (
        L.HingeLoss, {"margin": 0.8}, [X], {"target": signs(6, 4).astype(np.float32)},
        lambda x, t, reduction: {"mean": torch.mean, "sum": torch.sum, "none": lambda v: v}[reduction](torch.relu(0.8 - x * t)), {},
    ),
}  # fmt: skip


def build(cls, arguments, inputs, target_names, opset=18, **kw):
    arrays = {f"x{i}": a for i, a in enumerate(inputs)}
    model = identity_model(opset=opset, ir_version=8 if opset > 8 else 3, **arrays)

    class Forward(onnxblock.ForwardBlock):
        def build(self):
            return cls(**arguments, **kw)(*(f"{n}_out" for n in arrays))

    block = Forward()
    with onnxblock.base(model):
        name = block()
    built = block.to_model_proto()
    assert only_standard(built)
    assert built.opset_import[0].version == opset
    assert inputs_of(built) == [*arrays, *target_names]
    assert name.startswith("onnx::")
    return built, arrays


def reference(inputs, targets, function, arguments, reduction):
    xs = [torch.tensor(x, requires_grad=True) for x in inputs]
    ts = [torch.tensor(np.asarray(t)) for t in targets.values()]
    loss = function(*xs, *ts, reduction=reduction, **arguments)
    loss.sum().backward()
    return loss.detach().numpy(), [x.grad.numpy() for x in xs]


@pytest.mark.parametrize("reduction", ALL)
@pytest.mark.parametrize("name", CASES)
def test_values_equal_torch(name, reduction):
    cls, arguments, inputs, targets, function, theirs = CASES[name]
    model, arrays = build(cls, arguments, inputs, targets, reduction=reduction)
    (got,) = run(model, {**arrays, **targets})
    want, _ = reference(inputs, targets, function, theirs, reduction)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_torch(name, reduction):
    cls, arguments, inputs, targets, function, theirs = CASES[name]
    model, arrays = build(cls, arguments, inputs, targets, reduction=reduction)
    gradient = onnxtrain.differentiate(model, wrt=list(arrays))
    assert only_standard(gradient)
    got = run(gradient, {**arrays, **targets})[1:]
    _, want = reference(inputs, targets, function, theirs, reduction)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-6)


OLD = ["mse", "l1", "huber", "ce", "ce weight", "ce ignore", "ce smoothing ignore", "nll",
       "ce usual", "ce usual weight", "nll usual", "multi margin ignore",
       "bce logits weights", "kl", "cosine", "hinge embedding", "multi margin", "triplet"]  # fmt: skip


PLACES = [(name, opset) for name in OLD for opset in (7, 9, 11, 12, 13, 17, 21)]
PLACES += [(name, opset) for name in ("causal lm", "causal lm smoothed") for opset in (11, 13, 21)]


@pytest.mark.parametrize(("name", "opset"), PLACES)
def test_at_the_opset_of_the_model(name, opset):
    cls, arguments, inputs, targets, function, theirs = CASES[name]
    model, arrays = build(cls, arguments, inputs, targets, opset=opset)
    onnx.checker.check_model(model, full_check=True)
    (got,) = run(model, {**arrays, **targets})
    want, _ = reference(inputs, targets, function, theirs, "mean")
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_kl_batchmean():
    x, t = log_probabilities(6, 4), uniform(6, 4)
    model, arrays = build(L.KLDivLoss, {"reduction": "batchmean"}, [x], ["target"])
    want = F.kl_div(torch.tensor(x), torch.tensor(t), reduction="batchmean").numpy()
    np.testing.assert_allclose(run(model, {**arrays, "target": t})[0], want, rtol=1e-5)


def test_extreme_logits_stay_finite():
    x = np.array([[1e4, -1e4], [-1e4, 1e4]], np.float32)
    model, arrays = build(L.BCEWithLogitsLoss, {}, [x], ["target"])
    target = np.array([[1, 0], [1, 0]], np.float32)
    gradient = onnxtrain.differentiate(model, wrt=["x0"])
    loss, dx = run(gradient, {**arrays, "target": target})
    np.testing.assert_allclose(loss, 5000.0)
    np.testing.assert_allclose(dx, [[0, 0], [-0.25, 0.25]])


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: L.MSELoss("median"), "Reduction 'median' not supported"),
        (lambda: L.CrossEntropyLoss(reduction="batchmean"), "not supported"),
        (lambda: L.CrossEntropyLoss(label_smoothing=2.0), "label_smoothing"),
        (lambda: L.HuberLoss(delta=0), "delta"),
        (lambda: L.MultiMarginLoss(p=3), "p is 1 or 2"),
    ],
)
def test_wrong_arguments(make, part):
    with pytest.raises(RuntimeError, match=part):
        make()


def test_wrong_number_of_class_weights():
    with pytest.raises(RuntimeError, match="4 classes"):
        build(L.CrossEntropyLoss, {"weight": W4[:3]}, [X], ["labels"])


def test_cross_entropy_is_one_operator_in_the_model_for_evaluation():
    """What is run to evaluate is what scripts look for; the training model has it taken apart."""

    class Trained(onnxblock.TrainingBlock):
        def build(self, scores):
            return onnxblock.loss.CrossEntropyLoss()(scores)

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] x) => (float[N, 2] y)'
        "<float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"
    )
    block = Trained()
    block.requires_grad("w")
    with onnxblock.base(model):
        block("y")
    _, evaluation = block.to_model_proto()
    assert [n.op_type for n in evaluation.graph.node] == ["MatMul", "SoftmaxCrossEntropyLoss"]
