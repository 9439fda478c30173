"""The small graphs of the second API: losses with their gradients, penalties, updates.

A function of vectors is a few lines of ONNX text, in which ``T`` stands for the element type and
``T[]`` for a tensor of any rank; losses and penalties are made from `formulas`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

from ...errors import ModelError, UnknownNameError
from . import formulas
from .formulas import LossFunction, PenaltyFunction

DEFAULT_OPSET = 18
TYPES = {"float32": ("float", 1), "float64": ("double", 11)}
Text = str
Maker = Callable[[ir.DataType, int], onnx.ModelProto]
"""Makes a graph for a type and an opset."""
_FUNCTIONS: dict[str, Callable[..., Text | Maker]] = {}


def _function(build: Callable[..., Any]) -> Callable[..., Any]:
    _FUNCTIONS[build.__name__.strip("_")] = build
    return build


def get_supported_functions() -> dict[str, str]:
    """Names of the functions that `function_onnx_graph` makes, with what they compute."""
    return {name: inspect.getdoc(build) or "" for name, build in sorted(_FUNCTIONS.items())}


def function_onnx_graph(
    name: str,
    target_opset: int | None = None,
    dtype: Any = np.float32,
    weight_name: str | None = None,
    **kwargs: Any,
) -> onnx.ModelProto:
    """A small model that computes one of the known functions.

    Args:
        name: see `get_supported_functions`.
        target_opset: version of ai.onnx, 18 by default.
        dtype: float32 or float64.
        weight_name: name of an input with one weight per observation, for losses.
        kwargs: constants of the function (``l1_weight``, ``l2_weight``, ``eps`` …).

    Example:
        >>> import numpy as np, onnxruntime
        >>> model = function_onnx_graph("axpy")
        >>> session = onnxruntime.InferenceSession(model.SerializeToString())
        >>> one, half = np.ones(2, np.float32), np.array([0.5], np.float32)
        >>> session.run(None, {"X1": one, "X2": one, "alpha": half})[0]
        array([1.5, 1.5], dtype=float32)
    """
    if name not in _FUNCTIONS:
        raise UnknownNameError("function", name, sorted(_FUNCTIONS))
    kind = np.dtype(dtype).name
    if kind not in TYPES:
        raise ModelError(f"dtype is float32 or float64, not {kind}.")
    build = _FUNCTIONS[name]
    accepted = set(inspect.signature(build).parameters)
    if weight_name is not None:
        if "weight" not in accepted:
            raise ModelError(f"Function {name!r} has no weights per observation.")
        kwargs["weight"] = weight_name
    unknown = set(kwargs) - accepted
    if unknown:
        raise ModelError(
            f"Function {name!r} has no parameter {sorted(unknown)[0]!r}; "
            f"it has {', '.join(sorted(accepted)) or 'none'}."
        )
    opset = DEFAULT_OPSET if target_opset is None else target_opset
    source = build(**kwargs)
    if isinstance(source, str):
        return _parsed(name, source, kind, opset)
    model = source(ir.DataType(TYPES[kind][1]), opset)
    model.graph.name = name
    return model


def _parsed(name: str, text: Text, kind: str, opset: int) -> onnx.ModelProto:
    word, code = TYPES[kind]
    text = re.sub(r"\bT\b", word, text).replace("TO", str(code))
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {name} {text}')


# -- vectors ---------------------------------------------------------------------------------------


@_function
def _axpy() -> Text:
    """Y = X1·alpha + X2."""
    return "(T[] X1, T[] X2, T[1] alpha) => (T[] Y) { s = Mul(X1, alpha) Y = Add(s, X2) }"


@_function
def _axpyw() -> Text:
    """Momentum: Z = beta·G + alpha·X1, Y = Z + X2."""
    return """(T[] X1, T[] X2, T[] G, T[1] alpha, T[1] beta) => (T[] Y, T[] Z) {
        s = Mul(X1, alpha) k = Mul(G, beta) Z = Add(k, s) Y = Add(Z, X2) }"""


@_function
def _axpyw2() -> Text:
    """Nesterov: Z = beta·G + alpha·X1, Y = beta·Z + alpha·X1 + X2."""
    return """(T[] X1, T[] X2, T[] G, T[1] alpha, T[1] beta) => (T[] Y, T[] Z) {
        s = Mul(X1, alpha) k = Mul(G, beta) Z = Add(k, s)
        b = Mul(Z, beta) u = Add(b, s) Y = Add(u, X2) }"""


@_function
def _copy() -> Text:
    """Y = X."""
    return "(T[] X) => (T[] Y) { Y = Identity(X) }"


@_function
def _zero() -> Text:
    """Y = 0 with the shape of X."""
    return """(T[] X) => (T[] Y) {
        s = Shape(X) zero = Constant<value_float = 0.0>() z = Cast<to = TO>(zero)
        Y = Expand(z, s) }"""


@_function
def _linear_regression() -> Text:
    """Y = X·A + B."""
    return "(T[N, D] X, T[D, M] A, T[M] B) => (T[N, M] Y) { p = MatMul(X, A) Y = Add(p, B) }"


# -- losses: X1 is expected, X2 is predicted, Y the loss, Z its gradient in X2 ---------------------


@_function
def _square_error(weight: str | None = None) -> Maker:
    """Y = Σ w·(X1 − X2)²."""
    return partial(LossFunction(formulas.square()).value, weight=weight)


@_function
def _grad_square_error(weight: str | None = None) -> Maker:
    """Z = −2·w·(X1 − X2), the gradient of `square_error` in X2."""
    return partial(LossFunction(formulas.square()).slope, weight=weight)


@_function
def _grad_loss_square_error(weight: str | None = None) -> Maker:
    """Y = ½·Σ w·(X1 − X2)², Z = w·(X2 − X1)."""
    return partial(LossFunction(formulas.square(), 0.5).both, weight=weight)


@_function
def _grad_loss_absolute_error(weight: str | None = None) -> Maker:
    """Y = Σ w·|X1 − X2|, Z = w·sign(X2 − X1)."""
    return partial(LossFunction(formulas.absolute()).both, weight=weight)


@_function
def _grad_loss_elastic_error(
    l1_weight: float = 0.01, l2_weight: float = 0.01, weight: str | None = None
) -> Maker:
    """Y = Σ w·(l1·|X1 − X2| + l2·(X1 − X2)²), Z its gradient in X2."""
    return partial(LossFunction(formulas.elastic(l1_weight, l2_weight)).both, weight=weight)


@_function
def _grad_sigmoid_neg_log_loss_error(eps: float = 1e-5, weight: str | None = None) -> Maker:
    """Y = −Σ w·(X1·log p + (1 − X1)·log(1 − p)) with p = sigmoid(X2), Z = w·(p − X1)."""
    loss = LossFunction(formulas.sigmoid_log, classes=True, **formulas.limits(eps))
    return partial(loss.both, weight=weight)


@_function
def _grad_softmax_neg_log_loss_error(eps: float = 1e-5, weight: str | None = None) -> Maker:
    """Y = −Σ w·log p(X1) with p = softmax(X2) and X1 the number of the class; Z = w·(p − 1(X1))."""
    loss = LossFunction(formulas.softmax_log, classes=True, **formulas.limits(eps))
    return partial(loss.both, weight=weight)


# -- penalties -------------------------------------------------------------------------------------


@_function
def _grad_penalty_elastic_error(l1_weight: float = 0.01, l2_weight: float = 0.01) -> Maker:
    """Y = l1·Σ|X| + l2·Σ X², Z = l1·sign(X) + 2·l2·X."""
    return partial(
        PenaltyFunction(l1_weight, l2_weight).both, finish=lambda op, x, y, z: {"Y": y, "Z": z}
    )


@_function
def _n_penalty_elastic_error(
    n_tensors: int = 1, l1_weight: float = 0.01, l2_weight: float = 0.01
) -> Maker:
    """Y = loss + Σᵢ (l1·Σ|Wᵢ| + l2·Σ Wᵢ²)."""
    return partial(formulas.penalized, n_tensors, l1_weight, l2_weight)


@_function
def _update_penalty_elastic_error(l1_weight: float = 0.01, l2_weight: float = 0.01) -> Maker:
    """Y = X − alpha·(l1·sign(X) + 2·l2·X): one step of length alpha down the penalty."""
    step = PenaltyFunction(l1_weight, l2_weight, {"alpha": (1,)}, "alpha")
    return partial(step.both, finish=lambda op, x, y, z: {"Y": x["X"] - z})


@_function
def _add_grad_penalty_elastic_error(l1_weight: float = 0.01, l2_weight: float = 0.01) -> Maker:
    """Y = l1·Σ|X| + l2·Σ X², Z = G + scale·(l1·sign(X) + 2·l2·X)."""
    others = {"G": ("N", "M"), "scale": (1,)}
    added = PenaltyFunction(l1_weight, l2_weight, others, "scale")
    return partial(added.both, finish=lambda op, x, y, z: {"Y": y, "Z": x["G"] + z})
