"""One time step of LSTM, GRU and RNN in columns, and the gradient of that step.

The gradient of a step scales gradients and multiplies them with weights. What it scales with, the
factors, is computed for all steps at once, by all threads, while an operator of a step is too small
for more than one. It is written with products that the step has anyway: i·(1 − i)·g is ig − ig·i.

A sequence that has ended keeps its states, and h of the steps that it does not have is 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..graph import OpBuilder, Tensor
from .bodies import Slices

MASK, KEEP = "mask", "keep"
"""Slices that tell which sequences have a step, [1, batch]: 1 and 0 where they do, 0 and 1 else."""

Results: TypeAlias = tuple[list[Tensor], dict[str, Tensor]]
"""States, and what is to be stacked."""

Pair: TypeAlias = tuple[Tensor, Tensor]
"""An operand and its gradient."""


@dataclass(frozen=True)
class Product:
    """Weights of input and state side by side, times columns, and a bias.

    Attributes:
        name: of the product; `source` is that of the stack of its columns.
        w: weights of the input, [rows, input size].
        r: weights of the state, [rows, hidden size].
        bias: [rows].
        weights: both weights side by side.
        column: the bias as a column.
        result: name of the stack of gradients of its results; two products whose results are
            added share one.
    """

    name: str
    w: Tensor | None
    r: Tensor | None
    bias: Tensor | None
    weights: Tensor
    column: Tensor | None
    result: str

    @classmethod
    def of(
        cls,
        op: OpBuilder,
        name: str,
        w: Tensor | None,
        r: Tensor | None,
        bias: Tensor | None,
        result: str | None = None,
    ) -> Product:
        """Of these weights."""
        parts = [p for p in (w, r) if p is not None]
        whole = op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]
        column = None if bias is None else op.Unsqueeze(bias, [1])
        return cls(name, w, r, bias, whole, column, result or name)

    @property
    def source(self) -> str:
        """Name of the stack of columns."""
        return f"into {self.name}"

    def times(self, op: OpBuilder, columns: Tensor) -> Tensor:
        """The product of a step."""
        return op.Gemm(self.weights, columns, self.column)

    def turned(self, op: OpBuilder, *, with_input: bool) -> tuple[Tensor | None, Tensor | None]:
        """The transposed weights of input and state.

        Both are parts of one where both are needed: of a Transpose that is read by one product
        alone onnxruntime would make a slower product.
        """
        if self.w is not None and self.r is not None and with_input:
            w, r = self._split(op, op.transpose(self.weights, 1, 0), axis=0)
            return w, r
        of_input = op.transpose(self.w, 1, 0) if self.w is not None and with_input else None
        return of_input, None if self.r is None else op.transpose(self.r, 1, 0)

    def gradients(self, op: OpBuilder, dz: Tensor, columns: Tensor) -> list[Pair]:
        """Gradients of the weights and the bias, from those of the results of all steps."""
        parts = self._split(op, op.Gemm(dz, columns, transB=1), axis=1)
        pairs = list(zip([t for t in (self.w, self.r) if t is not None], parts))
        if self.bias is not None:
            pairs.append((self.bias, op.ReduceSum(dz, [1], keepdims=0)))
        return pairs

    def _split(self, op: OpBuilder, whole: Tensor, axis: int) -> Sequence[Tensor]:
        """The parts that belong to input and state."""
        if self.w is None or self.r is None:
            return [whole]
        known = [d for d in (self.w.dim(1), self.r.dim(1)) if isinstance(d, int)]
        sizes = op.const(known)
        if len(known) < 2:
            sizes = op.Concat(op.dim_of(self.w, 1), op.dim_of(self.r, 1), axis=0)
        return op.many("Split", whole, sizes, outputs=2, axis=axis)


class Cell(ABC):
    """What a loop over time computes in a step, and how that is differentiated.

    Args:
        products: all products with weights.

    Attributes:
        sliced: results of `before` that a step reads.
    """

    sliced: Sequence[str] = ()

    def __init__(self, products: Sequence[Product]) -> None:
        self.products = list(products)

    def before(self, op: OpBuilder, x: Tensor) -> dict[str, Tensor]:
        """What is computed for all steps before the loop."""
        return {}

    @abstractmethod
    def forward(self, op: OpBuilder, states: Sequence[Tensor], now: Slices) -> Results:
        """The states after a step, and its stacks, among which "y" is h."""

    @abstractmethod
    def factors(self, op: OpBuilder, stacks: Slices) -> dict[str, Tensor]:
        """What `backward` scales gradients with, for all steps."""

    def joined(self, op: OpBuilder, turned: Slices) -> Slices:
        """Transposed weights of the state by product, as `backward` wants them."""
        return turned

    @abstractmethod
    def backward(
        self, op: OpBuilder, grads: Sequence[Tensor], now: Slices, turned: Slices
    ) -> Results:
        """Gradients of the states before a step, and of the results of products.

        Args:
            op: builder of the body.
            grads: gradients of the states after the step.
            now: factors, and "dy" if h is read.
            turned: what `joined` gave.
        """

    def further_gradients(self, op: OpBuilder, dzs: Slices, stacks: Slices) -> list[Pair]:
        """Gradients of operands that are not in a product."""
        return []

    def _of_all_inputs(self, op: OpBuilder, product: Product, x: Tensor) -> dict[str, Tensor]:
        """A product of the input alone, for all steps."""
        results = op.MatMul(product.weights, x)
        if product.column is not None:
            results = op.Add(results, product.column)
        return {product.source: x, "x·w": results}


Slope: TypeAlias = Callable[[OpBuilder, Tensor], Tensor]


SLOPES: dict[str, tuple[str, Slope]] = {
    "tanh": ("Tanh", lambda op, y: op.Sub(op.like(1.0, y), op.Mul(y, y))),
    "sigmoid": ("Sigmoid", lambda op, y: op.Sub(y, op.Mul(y, y))),
    "relu": ("Relu", lambda op, y: op.Cast(op.Greater(y, op.like(0.0, y)), to=y.dtype)),
}
"""Activations with their operator, and their slope as a function of their result."""


class RnnCell(Cell):
    """h = f(W·x + R·h⁻ + b), and the gradient of what goes into f is ḣ·f′."""

    sliced = ("x·w",)

    def __init__(self, of_x: Product, of_h: Product, activation: str) -> None:
        super().__init__([of_x, of_h])
        self._operator, self._slope = SLOPES[activation]

    def before(self, op: OpBuilder, x: Tensor) -> dict[str, Tensor]:
        """W·x of all steps."""
        return self._of_all_inputs(op, self.products[0], x)

    def forward(self, op: OpBuilder, states: Sequence[Tensor], now: Slices) -> Results:
        """The state after a step."""
        product = self.products[1]
        z = op.Add(product.times(op, states[0]), now["x·w"])
        (h,) = op.emit(self._operator, [z], 1)
        y = op.Mul(h, now[MASK]) if MASK in now else h
        return [_or_old(op, y, states[0], now)], {"y": y, product.source: states[0]}

    def factors(self, op: OpBuilder, stacks: Slices) -> dict[str, Tensor]:
        """The slope, 0 where a sequence has ended."""
        slope = self._slope(op, stacks["y"])
        return {"slope": op.Mul(slope, stacks[MASK]) if MASK in stacks else slope}

    def backward(
        self, op: OpBuilder, grads: Sequence[Tensor], now: Slices, turned: Slices
    ) -> Results:
        """One product."""
        product = self.products[1]
        dz = op.Mul(_with_result(op, grads[0], now), now["slope"])
        return [_product_or_old(op, turned[product.name], dz, grads[0], now)], {product.result: dz}


class LstmCell(Cell):
    """Gates i, f, o, a candidate g and a cell state: c = f·c⁻ + i·g, h = o·tanh(c).

    With the gradients ḣ and ċ of h and c, those of what goes into the gates are

        ċ += ḣ·(o − h·tanh c),   i: ċ·(ig − ig·i),   f: ċ·(fc⁻ − fc⁻·f),   g: ċ·(i − ig·g),
        o: ḣ·(h − h·o),          ċ⁻ = ċ·f

    With peepholes (i and f see p·c⁻, o sees p·c) the factors of ċ and ċ⁻ have more terms, and the
    gradient of a step is the same. Where a sequence has ended, i and o are 0 and f is 1: then c
    stays, h is 0, and so are all factors but f.

    Args:
        product: of all gates, [4 · hidden size] rows.
        order: of the gates, which are blocks of rows: a permutation of "iofg".
        peepholes: by gate, [hidden size] each.
        columns: the same as columns.
        is_narrow: whether a step takes its time for the number of its operators, and not for what
            they compute: then gates are scaled together.
    """

    def __init__(
        self,
        product: Product,
        order: str,
        peepholes: Mapping[str, Tensor],
        columns: Mapping[str, Tensor],
        *,
        is_narrow: bool = False,
    ) -> None:
        super().__init__([product])
        self._product, self._order, self._is_narrow = product, order, is_narrow
        self._peepholes, self._p = peepholes, columns

    def forward(self, op: OpBuilder, states: Sequence[Tensor], now: Slices) -> Results:
        """Gates, then states."""
        (h, c), product = states, self._product
        columns = op.Concat(now["x"], h, axis=0)
        blocks = op.many("Split", product.times(op, columns), outputs=4, axis=0, num_outputs=4)
        z = dict(zip(self._order, blocks))
        i, f = (op.Sigmoid(self._seen(op, k, z[k], c)) for k in "if")
        if MASK in now:
            i, f = op.Mul(i, now[MASK]), op.Max(f, now[KEEP])
        g = op.Tanh(z["g"])
        fc, ig = op.Mul(f, c), op.Mul(i, g)
        new = op.Add(fc, ig)
        o = op.Sigmoid(self._seen(op, "o", z["o"], new))
        if MASK in now:
            o = op.Mul(o, now[MASK])
        tanh_c = op.Tanh(new)
        y = op.Mul(o, tanh_c)
        stacks = {"y": y, product.source: columns}
        stacks |= {"i": i, "f": f, "o": o, "g": g, "ig": ig, "fc": fc, "tanh c": tanh_c}
        if self._p:
            stacks |= {"seen by i": c, "seen by f": c, "seen by o": new}
        return [_or_old(op, y, h, now), new], stacks

    def _seen(self, op: OpBuilder, gate: str, z: Tensor, c: Tensor) -> Tensor:
        """What goes into a gate, with what it sees of a cell state."""
        return op.Add(z, op.Mul(c, self._p[gate])) if self._p else z

    def factors(self, op: OpBuilder, stacks: Slices) -> dict[str, Tensor]:
        """See the formulas above."""
        i, f, o, g, ig, fc = (stacks[k] for k in ("i", "f", "o", "g", "ig", "fc"))
        h, tanh_c = stacks["y"], stacks["tanh c"]
        factors = {
            "f": f,
            "c": op.Sub(o, op.Mul(h, tanh_c)),
            "to i": op.Sub(ig, op.Mul(ig, i)),
            "to f": op.Sub(fc, op.Mul(fc, f)),
            "to g": op.Sub(i, op.Mul(ig, g)),
            "to o": op.Sub(h, op.Mul(h, o)),
        }
        if self._p:
            factors["c"] = op.Add(factors["c"], op.Mul(factors["to o"], self._p["o"]))
            for k in "if":
                factors["f"] = op.Add(factors["f"], op.Mul(factors[f"to {k}"], self._p[k]))
        if self._is_narrow:
            parts = [factors.pop(f"to {k}") for k in self._order]
            factors["to all"] = op.Concat(*parts, axis=1)
        return factors

    def backward(
        self, op: OpBuilder, grads: Sequence[Tensor], now: Slices, turned: Slices
    ) -> Results:
        """One product; the rest is scaling."""
        name, dh = self._product.name, _with_result(op, grads[0], now)
        dc = op.Add(grads[1], op.Mul(dh, now["c"]))
        parts = [dh if k == "o" else dc for k in self._order]
        if self._is_narrow:
            dz = op.Mul(op.Concat(*parts, axis=0), now["to all"])
        else:
            scaled = [op.Mul(part, now[f"to {k}"]) for part, k in zip(parts, self._order)]
            dz = op.Concat(*scaled, axis=0)
        before = _product_or_old(op, turned[name], dz, grads[0], now)
        return [before, op.Mul(dc, now["f"])], {self._product.result: dz}

    def further_gradients(self, op: OpBuilder, dzs: Slices, stacks: Slices) -> list[Pair]:
        """Those of peepholes."""
        if not self._peepholes:
            return []
        whole = dzs[self._product.result]
        dz = dict(zip(self._order, op.many("Split", whole, outputs=4, axis=1, num_outputs=4)))
        return [
            (p, op.ReduceSum(op.Mul(dz[k], stacks[f"seen by {k}"]), [0, 2], keepdims=0))
            for k, p in self._peepholes.items()
        ]


class GruCell(Cell):
    """Gates u (update) and r (reset), and a candidate n: h = u·h⁻ + (1 − u)·n.

    The candidate sees the state reset, R·(r·h⁻), or resets what it sees, r·q with q = R·h⁻ + b.
    With the gradient ḣ of h, those of what goes into candidate and gates are

        n: ḣ·(1 − u)·(1 − n²),   u: ḣ·(1 − u)·u·(h⁻ − n),   and ḣ⁻ = ḣ·u + …

    and that of r follows from the candidate's. Where a sequence has ended, u is 1: then h stays,
    and all factors but u are 0.

    Args:
        gates: the product of u and r; `order` is that of their blocks.
        new: the products of the candidate: one of input and reset state, or one of each.
    """

    def __init__(self, gates: Product, new: Sequence[Product], order: str) -> None:
        super().__init__([gates, *new])
        self._gates, self._new, self._order = gates, list(new), order
        self._resets_after = len(new) == 2
        self.sliced = ["x·w"] if self._resets_after else []

    def before(self, op: OpBuilder, x: Tensor) -> dict[str, Tensor]:
        """What a candidate that resets what it sees of the state has of the input."""
        return self._of_all_inputs(op, self._new[0], x) if self._resets_after else {}

    def forward(self, op: OpBuilder, states: Sequence[Tensor], now: Slices) -> Results:
        """Gates, then the candidate, then the state."""
        (h,), x, gates = states, now["x"], self._gates
        columns = op.Concat(x, h, axis=0)
        both = op.Sigmoid(gates.times(op, columns))
        blocks = op.many("Split", both, outputs=2, axis=0, num_outputs=2)
        u, r = (blocks[self._order.index(k)] for k in "ur")
        if MASK in now:
            u = op.Max(u, now[KEEP])
        product = self._new[-1]
        if self._resets_after:
            seen = h
            reset = op.Mul(r, product.times(op, seen))
            n = op.Tanh(op.Add(now["x·w"], reset))
        else:
            reset = op.Mul(r, h)
            seen = op.Concat(x, reset, axis=0)
            n = op.Tanh(product.times(op, seen))
        if MASK in now:  # exact where u is 1
            part = op.Mul(u, h)
            h = op.Add(part, op.Mul(op.Sub(op.like(1.0, u), u), n))
            toward = op.Sub(part, op.Mul(u, n))
        else:
            toward = op.Mul(u, op.Sub(h, n))
            h = op.Add(n, toward)
        y = op.Mul(h, now[MASK]) if MASK in now else h
        stacks = {"y": y, gates.source: columns, product.source: seen}
        return [h], {**stacks, "u": u, "r": r, "n": n, "reset": reset, "toward": toward}

    def factors(self, op: OpBuilder, stacks: Slices) -> dict[str, Tensor]:
        """See the formulas above."""
        u, r, n, reset = (stacks[k] for k in ("u", "r", "n", "reset"))
        rest = op.Sub(op.like(1.0, u), u)
        to_n = op.Mul(rest, op.Sub(op.like(1.0, n), op.Mul(n, n)))
        factors = {"u": u, "to n": to_n, "to u": op.Mul(stacks["toward"], rest)}
        if self._resets_after:
            factors["to q"] = op.Mul(to_n, r)
            reset = op.Mul(to_n, reset)
        else:
            factors["r"] = r
        return {**factors, "to r": op.Sub(reset, op.Mul(reset, r))}

    def joined(self, op: OpBuilder, turned: Slices) -> Slices:
        """Gates and candidate side by side, where one product serves both."""
        if not self._resets_after:
            return turned
        weights = [turned[p.name] for p in self.products if p.r is not None]
        return {self._gates.name: op.Concat(*weights, axis=1)}

    def backward(
        self, op: OpBuilder, grads: Sequence[Tensor], now: Slices, turned: Slices
    ) -> Results:
        """One product, or two where the candidate sees the state reset."""
        dh, names = _with_result(op, grads[0], now), [p.name for p in self._new]
        dn, du, before = (op.Mul(dh, now[k]) for k in ("to n", "to u", "u"))
        if self._resets_after:
            dr, dq = (op.Mul(dh, now[k]) for k in ("to r", "to q"))
        else:
            d_reset = op.MatMul(turned[names[0]], dn)
            dr = op.Mul(d_reset, now["to r"])
            before = op.Add(before, op.Mul(d_reset, now["r"]))
        dz = op.Concat(*((du, dr) if self._order == "ur" else (dr, du)), axis=0)
        dzs, into_state = {self._gates.name: dz, names[0]: dn}, dz
        if self._resets_after:
            dzs[names[1]] = dq
            into_state = op.Concat(dz, dq, axis=0)
        return [op.Gemm(turned[self._gates.name], into_state, before)], dzs


def _or_old(op: OpBuilder, new: Tensor, old: Tensor, now: Slices) -> Tensor:
    """A state, or its gradient, that is 0 where a sequence has ended: there the old one."""
    return op.Add(new, op.Mul(old, now[KEEP])) if KEEP in now else new


def _product_or_old(op: OpBuilder, weights: Tensor, dz: Tensor, old: Tensor, now: Slices) -> Tensor:
    """The gradient of a state by a product; the old one where a sequence has ended."""
    if KEEP in now:
        return op.Gemm(weights, dz, op.Mul(old, now[KEEP]))
    return op.MatMul(weights, dz)


def _with_result(op: OpBuilder, dh: Tensor, now: Slices) -> Tensor:
    """The gradient of h as state and as result."""
    return op.Add(dh, now["dy"]) if "dy" in now else dh
