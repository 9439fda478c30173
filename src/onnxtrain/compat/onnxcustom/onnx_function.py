"""The small graphs of the second API: losses with their gradients, penalties, updates.

Each function is a few lines of ONNX text, so that what is computed can be read here. ``T`` stands
for the element type and ``T[]`` for a tensor of any rank.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser

from ...errors import ModelError, UnknownNameError

DEFAULT_OPSET = 18
TYPES = {"float32": ("float", 1), "float64": ("double", 11)}
Text = str
_FUNCTIONS: dict[str, Callable[..., Text]] = {}


def _function(build: Callable[..., Text]) -> Callable[..., Text]:
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
    word, code = TYPES[kind]
    text = re.sub(r"\bT\b", word, build(**kwargs)).replace("TO", str(code))
    opset = DEFAULT_OPSET if target_opset is None else target_opset
    header = f'<ir_version: 8, opset_import: ["": {opset}]>'
    return onnx.parser.parse_model(f"{header} {name} {text}")


def _weighted(weight: str | None, *pairs: tuple[str, str]) -> tuple[str, str]:
    """An input for the weights, and lines that multiply values by them."""
    if weight is None:
        return "", "".join(f"{new} = Identity({old}) " for old, new in pairs)
    lines = "column = Constant<value_ints = [1]>() row_weight = Unsqueeze(" + weight + ", column) "
    return f", T[N] {weight}", lines + "".join(
        f"{new} = Mul({old}, row_weight) " for old, new in pairs
    )


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
def _square_error(weight: str | None = None) -> Text:
    """Y = Σ w·(X1 − X2)²."""
    extra, lines = _weighted(weight, ("q", "r"))
    return f"""(T[] X1, T[] X2{extra}) => (T Y) {{
        d = Sub(X1, X2) q = Mul(d, d) {lines} Y = ReduceSum<keepdims = 0>(r) }}"""


@_function
def _grad_square_error(weight: str | None = None) -> Text:
    """Z = −2·w·(X1 − X2), the gradient of `square_error` in X2."""
    extra, lines = _weighted(weight, ("e", "Z"))
    return f"""(T[] X1, T[] X2{extra}) => (T[] Z) <T two = {{2}}> {{
        d = Sub(X2, X1) e = Mul(d, two) {lines} }}"""


@_function
def _grad_loss_square_error(weight: str | None = None) -> Text:
    """Y = ½·Σ w·(X1 − X2)², Z = w·(X2 − X1)."""
    extra, lines = _weighted(weight, ("d", "Z"))
    return f"""(T[] X1, T[] X2{extra}) => (T Y, T[] Z) <T half = {{0.5}}> {{
        d = Sub(X2, X1) {lines} q = Mul(d, Z) s = ReduceSum<keepdims = 0>(q) Y = Mul(s, half) }}"""


@_function
def _grad_loss_absolute_error(weight: str | None = None) -> Text:
    """Y = Σ w·|X1 − X2|, Z = w·sign(X2 − X1)."""
    extra, lines = _weighted(weight, ("g", "Z"))
    return f"""(T[] X1, T[] X2{extra}) => (T Y, T[] Z) {{
        d = Sub(X2, X1) g = Sign(d) {lines} a = Mul(d, Z) Y = ReduceSum<keepdims = 0>(a) }}"""


@_function
def _grad_loss_elastic_error(
    l1_weight: float = 0.01, l2_weight: float = 0.01, weight: str | None = None
) -> Text:
    """Y = Σ w·(l1·|X1 − X2| + l2·(X1 − X2)²), Z its gradient in X2."""
    extra, lines = _weighted(weight, ("g", "Z"), ("l", "r"))
    return f"""(T[] X1, T[] X2{extra}) => (T Y, T[] Z)
        <T l1 = {{{l1_weight!r}}}, T l2 = {{{l2_weight!r}}}, T two_l2 = {{{2 * l2_weight!r}}}> {{
        d = Sub(X2, X1) sign = Sign(d) g1 = Mul(sign, l1) g2 = Mul(d, two_l2) g = Add(g1, g2)
        a = Mul(d, g1) h = Mul(d, l2) b = Mul(d, h) l = Add(a, b)
        {lines} Y = ReduceSum<keepdims = 0>(r) }}"""


def _limits(eps: float) -> tuple[str, str]:
    """The smallest and the largest loss of a probability kept between eps and 1 − eps."""
    if eps <= 0:
        return "", "l = Identity(raw)"
    low, high = -float(np.log1p(-eps)), -float(np.log(eps))
    return f"<T low = {{{low!r}}}, T high = {{{high!r}}}>", "l = Clip(raw, low, high)"


@_function
def _grad_sigmoid_neg_log_loss_error(eps: float = 1e-5, weight: str | None = None) -> Text:
    """Y = −Σ w·(X1·log p + (1 − X1)·log(1 − p)) with p = sigmoid(X2), Z = w·(p − X1)."""
    extra, lines = _weighted(weight, ("g", "Z"), ("l", "r"))
    constants, clip = _limits(eps)
    return f"""(int64[] X1, T[] X2{extra}) => (T Y, T[] Z) {constants} {{
        t = Cast<to = TO>(X1) p = Sigmoid(X2) g = Sub(p, t)
        pos = Relu(X2) zt = Mul(X2, t) linear = Sub(pos, zt)
        a = Abs(X2) n = Neg(a) e = Exp(n) one = Constant<value_float = 1.0>()
        unit = Cast<to = TO>(one) e1 = Add(e, unit) soft = Log(e1) raw = Add(linear, soft)
        {clip} {lines} Y = ReduceSum<keepdims = 0>(r) }}"""


@_function
def _grad_softmax_neg_log_loss_error(eps: float = 1e-5, weight: str | None = None) -> Text:
    """Y = −Σ w·log p(X1) with p = softmax(X2) and X1 the number of the class; Z = w·(p − 1(X1))."""
    extra, lines = _weighted(weight, ("g", "Z"), ("l", "r"))
    constants, clip = _limits(eps)
    return f"""(int64[] X1, T[N, C] X2{extra}) => (T Y, T[N, C] Z) {constants} {{
        one_column = Constant<value_ints = [-1, 1]>() labels = Reshape(X1, one_column)
        shape = Shape<start = 1>(X2) scalar = Constant<value_ints = [0]>()
        count = Squeeze(shape, scalar) first = Constant<value_int = 0>()
        step = Constant<value_int = 1>() numbers = Range(first, count, step)
        hit = Equal(labels, numbers) t = Cast<to = TO>(hit)
        logp = LogSoftmax<axis = 1>(X2) p = Exp(logp) g = Sub(p, t)
        picked = Mul(logp, t) axis = Constant<value_ints = [1]>()
        s = ReduceSum<keepdims = 1>(picked, axis) raw = Neg(s)
        {clip} {lines} Y = ReduceSum<keepdims = 0>(r) }}"""


# -- penalties -------------------------------------------------------------------------------------


@_function
def _grad_penalty_elastic_error(l1_weight: float = 0.01, l2_weight: float = 0.01) -> Text:
    """Y = l1·Σ|X| + l2·Σ X², Z = l1·sign(X) + 2·l2·X."""
    return f"""(T[] X) => (T Y, T[] Z)
        <T l1 = {{{l1_weight!r}}}, T l2 = {{{l2_weight!r}}}, T two_l2 = {{{2 * l2_weight!r}}}> {{
        sign = Sign(X) g1 = Mul(sign, l1) g2 = Mul(X, two_l2) Z = Add(g1, g2)
        a = ReduceL1<keepdims = 0>(X) b = ReduceSumSquare<keepdims = 0>(X)
        pa = Mul(a, l1) pb = Mul(b, l2) Y = Add(pa, pb) }}"""


@_function
def _n_penalty_elastic_error(
    n_tensors: int = 1, l1_weight: float = 0.01, l2_weight: float = 0.01
) -> Text:
    """Y = loss + Σᵢ (l1·Σ|Wᵢ| + l2·Σ Wᵢ²)."""
    inputs = "".join(f", T[] W{i}" for i in range(n_tensors))
    lines = "".join(
        f"a{i} = ReduceL1<keepdims = 0>(W{i}) b{i} = ReduceSumSquare<keepdims = 0>(W{i}) "
        f"pa{i} = Mul(a{i}, l1) pb{i} = Mul(b{i}, l2) "
        for i in range(n_tensors)
    )
    terms = "".join(f", pa{i}, pb{i}" for i in range(n_tensors))
    return f"""(T loss{inputs}) => (T Y)
        <T l1 = {{{l1_weight!r}}}, T l2 = {{{l2_weight!r}}}> {{
        {lines} Y = Sum(loss{terms}) }}"""


@_function
def _update_penalty_elastic_error(l1_weight: float = 0.01, l2_weight: float = 0.01) -> Text:
    """Y = X − alpha·(l1·sign(X) + 2·l2·X): one step of length alpha down the penalty."""
    return f"""(T[] X, T[1] alpha) => (T[] Y)
        <T l1 = {{{l1_weight!r}}}, T two_l2 = {{{2 * l2_weight!r}}}> {{
        sign = Sign(X) g1 = Mul(sign, l1) g2 = Mul(X, two_l2) g = Add(g1, g2)
        s = Mul(g, alpha) Y = Sub(X, s) }}"""


@_function
def _add_grad_penalty_elastic_error(l1_weight: float = 0.01, l2_weight: float = 0.01) -> Text:
    """Y = l1·Σ|X| + l2·Σ X², Z = G + scale·(l1·sign(X) + 2·l2·X)."""
    parts, loss = [], []
    if l1_weight:
        parts.append("sign = Sign(X) g1 = Mul(sign, l1)")
        loss.append("a = ReduceL1<keepdims = 0>(X) p1 = Mul(a, l1)")
    if l2_weight:
        parts.append("g2 = Mul(X, two_l2)")
        loss.append("b = ReduceSumSquare<keepdims = 0>(X) p2 = Mul(b, l2)")
    both = bool(l1_weight) and bool(l2_weight)
    one = "1" if l1_weight else "2"
    gradient = "g = Add(g1, g2)" if both else f"g = Identity(g{one})"
    total = "Y = Add(p1, p2)" if both else f"Y = Identity(p{one})"
    return f"""(T[] X, T[] G, T[1] scale) => (T Y, T[] Z)
        <T l1 = {{{l1_weight!r}}}, T l2 = {{{l2_weight!r}}}, T two_l2 = {{{2 * l2_weight!r}}}> {{
        {" ".join(parts)} {gradient} s = Mul(g, scale) Z = Add(G, s)
        {" ".join(loss)} {total} }}"""
