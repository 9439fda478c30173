"""CTCLoss against torch: values and gradients, dynamic lengths, edge cases."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import onnxtrain
from onnxtrain import onnxblock
from tests.onnxblock.harness import identity_model, inputs_of, only_standard, run

pytestmark = pytest.mark.slow


def build(opset=18, batch_first=False, **options):
    x = np.zeros((3, 2, 4) if batch_first else (7, 3, 4), np.float32)
    model = identity_model(opset=opset, x=x)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for values in (model.graph.input, model.graph.output):
        for dim, name in zip(values[0].type.tensor_type.shape.dim, ("T", "N")):
            dim.dim_param = name
    assert len(dims) == 3

    class Forward(onnxblock.ForwardBlock):
        def build(self):
            return onnxblock.loss.CTCLoss(batch_first=batch_first, **options)("x_out")

    forward = Forward()
    with onnxblock.base(model):
        forward()
    built = forward.to_model_proto()
    assert only_standard(built)
    assert inputs_of(built) == ["x", "target", "input_lengths", "target_lengths"]
    return built


def data(frames=9, batch=4, size=3, classes=4, seed=0, blank=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(frames, batch, classes)).astype(np.float32)
    labels = [c for c in range(classes) if c != blank]
    target = rng.choice(labels, size=(batch, size)).astype(np.int64)
    target[0] = labels[0]  # the same label again and again needs blanks between
    lengths = rng.integers(2 * size, frames + 1, batch).astype(np.int64)
    lengths[0] = frames
    counts = rng.integers(1, size + 1, batch).astype(np.int64)
    counts[0] = size
    return x, target, lengths, counts


def reference(x, target, lengths, counts, **options):
    t = torch.tensor(x, requires_grad=True)
    loss = F.ctc_loss(
        F.log_softmax(t, 2), torch.tensor(target), torch.tensor(lengths), torch.tensor(counts),
        **options,
    )  # fmt: skip
    loss.sum().backward()
    return loss.detach().numpy(), t.grad.numpy()


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_values(opset, reduction):
    x, target, lengths, counts = data()
    model = build(opset, reduction=reduction, log_softmax=True)
    feeds = {"x": x, "target": target, "input_lengths": lengths, "target_lengths": counts}
    want, _ = reference(x, target, lengths, counts, reduction=reduction)
    np.testing.assert_allclose(run(model, feeds)[0], want, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("blank", [0, 3])
def test_gradients(seed, blank):
    x, target, lengths, counts = data(frames=8 + seed, size=2 + seed, seed=seed, blank=blank)
    counts[1] = 0
    model = onnxtrain.differentiate(build(log_softmax=True, blank=blank), wrt=["x"])
    assert only_standard(model)
    feeds = {"x": x, "target": target, "input_lengths": lengths, "target_lengths": counts}
    loss, gradient = run(model, feeds)
    want, of_x = reference(x, target, lengths, counts, blank=blank)
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    np.testing.assert_allclose(gradient, of_x, rtol=1e-3, atol=1e-6)


def test_too_many_labels():
    x, target, lengths, counts = data(frames=6)
    lengths[0] = 3  # three equal labels need five frames
    feeds = {"x": x, "target": target, "input_lengths": lengths, "target_lengths": counts}
    got = run(build(reduction="none", log_softmax=True), feeds)[0]
    assert np.isinf(got[0])
    assert np.isfinite(got[1:]).all()
    model = build(zero_infinity=True, log_softmax=True)
    want, of_x = reference(x, target, lengths, counts, zero_infinity=True)
    loss, gradient = run(onnxtrain.differentiate(model, wrt=["x"]), feeds)
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    np.testing.assert_allclose(gradient, of_x, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("padding", [-1, 0, 999, -(2**63)])
def test_batch_first_and_padding(padding):
    x, target, lengths, counts = data()
    padded = target.copy()
    for row, count in zip(padded, counts):
        row[count:] = padding
    feeds = {"input_lengths": lengths, "target_lengths": counts}
    model = build(batch_first=True, log_softmax=True)
    got = run(model, {"x": x.transpose(1, 0, 2), "target": padded, **feeds})[0]
    want, _ = reference(x, target, lengths, counts)
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("bad", [-1, -4, 4, -(2**63)])
def test_target_that_is_no_class(bad):
    """Within its length a target is not padding: it must be a class."""
    x, target, lengths, counts = data()
    target[0, 1] = bad
    feeds = {"x": x, "target": target, "input_lengths": lengths, "target_lengths": counts}
    model = onnxtrain.differentiate(build(log_softmax=True), wrt=["x"])
    with pytest.raises(Exception, match="Out of range"):
        run(model, feeds)


def test_old_opset():
    with pytest.raises(ValueError, match="opset 13"):
        build(opset=11)
