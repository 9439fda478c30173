"""A model is tried in a bounded number of forms, and the error that is shown is its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from onnxtrain.graph import load, to_proto
from onnxtrain.graph.infer import infer_shapes
from onnxtrain.passes.idle import note_idle_optimizers
from onnxtrain.passes.transposed import mark_transposed
from onnxtrain.runtime.files import outline
from onnxtrain.runtime.session import devices, few_bits
from onnxtrain.runtime.session.devices import open_session, session_options

from .test_few_bits import gradient_of, nbits

Tried = list[tuple[set[str], Any]]
HEAD = '<ir_version: 9, opset_import: ["" : 18]>'


def marked() -> bytes:
    """A model with a product that reads a transposed operand."""
    body = "t = Transpose<perm = [1, 0]>(x) y = MatMul(t, x)"
    model = parser.parse_model(f"{HEAD} g (float[8, 8] x) => (float[8, 8] y) {{ {body} }}")
    return to_proto(
        note_idle_optimizers(mark_transposed(infer_shapes(load(model))))
    ).SerializeToString()


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[set[str]], None]], Tried]:
    """Lets a function judge the operators of each form; what was tried, with which options."""

    def judged_by(judge: Callable[[set[str]], None]) -> Tried:
        seen: Tried = []
        stock = onnxruntime.InferenceSession

        def make(content: bytes, options: Any, *rest: Any, **more: Any) -> Any:
            operators = {node.op_type for node in onnx.ModelProto.FromString(content).graph.node}
            seen.append((operators, options))
            judge(operators)
            return stock(content, options, *rest, **more)

        monkeypatch.setattr(onnxruntime, "InferenceSession", make)
        return seen

    return judged_by


def refuses(*operators: str, error: type[Exception] = devices.ort.NotImplemented) -> Any:
    """A build without some operators."""

    def judge(found: set[str]) -> None:
        if found.intersection(operators):
            raise error(f"no kernel for {sorted(found.intersection(operators))}")

    return judge


def test_the_fastest_form_comes_first(tried: Any) -> None:
    seen = tried(refuses())
    open_session(gradient_of(nbits(512, 520, zeros=True)[0]))
    open_session(marked())
    assert [bool(ops & {"MatMulNBits", "FusedMatMul"}) for ops, _ in seen] == [True, True]


@pytest.mark.parametrize("error", devices.REFUSALS)
def test_a_build_without_a_kernel_gets_what_it_has(tried: Any, error: type[Exception]) -> None:
    seen = tried(refuses("MatMulNBits", "FusedMatMul", error=error))
    open_session(gradient_of(nbits(512, 520)[0]))
    assert not seen[-1][0] & {"MatMulNBits", "FusedMatMul"}
    assert len(seen) <= 4


def test_a_refused_model_is_tried_at_most_once_for_each_form_and_shows_its_own_error(
    tried: Any,
) -> None:
    def judge(operators: set[str]) -> None:
        raise devices.ort.Fail(f"refused with {sorted(operators)}")

    given = onnxruntime.SessionOptions()
    for model, most in ((gradient_of(nbits(512, 520)[0]), 5), (marked(), 3)):
        seen = tried(judge)
        with pytest.raises(devices.ort.Fail, match="refused with") as caught:
            open_session(model, session_options(given))
        assert len(seen) <= most
        assert seen[-1][1] is given, "the last word is that of the user's own object"
        assert "FusedMatMul" not in str(caught.value)
        assert "MatMulNBits" not in str(caught.value)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, devices.ort.NoSuchFile])
def test_what_is_no_refusal_is_raised_at_once(tried: Any, error: type[BaseException]) -> None:
    def judge(operators: set[str]) -> None:
        raise error("at once")

    seen = tried(judge)
    with pytest.raises(error, match="at once"):
        open_session(marked(), session_options(onnxruntime.SessionOptions()))
    assert len(seen) == 1


def test_the_bytes_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    stock = outline.Outline.of.__func__

    def of(cls: Any, model: bytes) -> Any:
        looked.append(len(model))
        return stock(cls, model)

    monkeypatch.setattr(outline.Outline, "of", classmethod(of))
    session = open_session(marked())
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x.T @ x, rtol=1e-5)
    assert len(looked) == 1


def test_a_model_without_weights_of_four_bits_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"
    model = parser.parse_model(
        f"{HEAD} g (float[8, 8] x) => (float[8, 8] y) "
        f"<float s = {{0.1}}, uint8 z = {{128}}> {{ {body} }}"
    )

    def parse(content: bytes) -> Any:
        raise AssertionError("the whole model was read")

    monkeypatch.setattr(few_bits.Message, "parse", parse)
    open_session(model.SerializeToString())
