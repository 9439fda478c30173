"""Table cases for gradient rules: one line per case, three oracles, one random direction.

    case("Softmax", x(3, 4), axis=-1)

builds ``loss = sum(r * Softmax(x))`` with random fixed ``r`` and checks, in this order:
1. float64: the gradient graph, run by `onnx.reference`, against central differences of the
   forward graph along one random direction (also run by `onnx.reference`);
2. float32 on onnxruntime with static shapes against 1, element by element;
3. float32 on onnxruntime with every dimension symbolic against 1.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import onnxtrain
from onnxtrain.graph.evaluate import evaluator

IR_VERSION = 10


@dataclasses.dataclass
class Spec:
    """An input: a random float tensor to differentiate, or a fixed one (`grad=False`)."""

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    array: Any = None
    grad: bool = True
    constant: bool = False
    spread: bool = False
    keep: bool = False  # keeps its element type, whatever type the case is run in

    def follows(self, array: np.ndarray) -> bool:
        """Whether the element type is the one the case is run in."""
        return self.grad or (array.dtype.kind == "f" and not self.keep)

    def make(self, rng: np.random.Generator) -> np.ndarray:
        if self.array is not None:
            return np.asarray(self.array)
        if self.spread:  # distinct, well separated values: no ties, no kinks within a difference
            size = int(np.prod(self.shape))
            grid = np.linspace(self.low, self.high, size) if size else np.zeros(0)
            return rng.permutation(grid).reshape(self.shape)
        return rng.uniform(self.low, self.high, self.shape)


def x(*shape: int, low: float = -1.0, high: float = 1.0, **kw: Any) -> Spec:
    """A random float input that is differentiated."""
    return Spec(tuple(shape), low, high, **kw)


def fixed(array: Any, dtype: Any = np.int64) -> Spec:
    """An input with given values, fed at run time, not differentiated."""
    array = np.asarray(array, dtype)
    return Spec(array.shape, array=array, grad=False)


def const(array: Any, dtype: Any = np.int64, *, keep: bool = False) -> Spec:
    """An input with given values, stored as an initializer, not differentiated."""
    array = np.asarray(array, dtype)
    return Spec(array.shape, array=array, grad=False, constant=True, keep=keep)


@dataclasses.dataclass
class Case:
    """One line of a table; see `case`."""

    op: str
    inputs: tuple[Spec | None, ...]
    attrs: dict[str, Any]
    opset: int
    outputs: int | tuple[bool, ...]
    domain: str
    rtol: float
    atol: float
    step: float
    dynamic: bool
    reference: bool
    label: str
    build: Callable[[Case, dict[str, int]], onnx.ModelProto] | None = None

    @property
    def id(self) -> str:
        attrs = ",".join(f"{k}={_short(v)}" for k, v in self.attrs.items())
        shapes = ",".join("-" if s is None else "x".join(map(str, s.shape)) for s in self.inputs)
        return f"{self.op}-{self.opset}({shapes}{';' if attrs else ''}{attrs}){self.label}"


def _short(value: Any) -> str:
    return str(value).replace(" ", "") if not isinstance(value, (bytes, onnx.GraphProto)) else "…"


def case(
    op: str,
    *inputs: Spec | None,
    _opset: int = 18,
    _outputs: int | tuple[bool, ...] = 1,
    _domain: str = "",
    _rtol: float = 2e-3,
    _atol: float = 1e-4,
    _step: float = 1e-5,
    _dynamic: bool = True,
    _reference: bool = True,
    _label: str = "",
    **attrs: Any,
) -> Case:
    """One case. Options start with an underscore, the rest are attributes of the operator.

    `_outputs`: number of outputs, or a tuple telling which are requested and enter the loss.
    `_dynamic=False`: do not repeat with symbolic dimensions. `_reference=False`: the operator
    has no (correct) `onnx.reference` implementation; oracle 1 is skipped and central differences
    are taken on onnxruntime in float32 with a wide step instead.
    """
    return Case(
        op, inputs, attrs, _opset, _outputs, _domain, _rtol, _atol, _step, _dynamic, _reference,
        _label,
    )  # fmt: skip


def arrays_of(c: Case) -> list[np.ndarray | None]:
    rng = np.random.default_rng(zlib.crc32(c.id.encode()))
    return [None if s is None else s.make(rng) for s in c.inputs]


_ONNX_TYPE = {np.dtype("float64"): TensorProto.DOUBLE, np.dtype("float32"): TensorProto.FLOAT}


def forward_model(
    c: Case,
    arrays: list[np.ndarray | None],
    dtype: Any,
    weights: list | None,
    dynamic: bool,
    cast: bool = False,
) -> onnx.ModelProto:
    """The operator alone (weights None: all outputs), or with the weighted sum as the loss.

    With `cast` the outputs are cast to `dtype` first: operators that change the element type.
    """
    inputs, initializers, names = [], [], []
    for i, (spec, array) in enumerate(zip(c.inputs, arrays)):
        if spec is None or array is None:
            names.append("")
            continue
        name = f"x{i}"
        names.append(name)
        data = array.astype(dtype) if spec.follows(array) else array
        if spec.constant:
            initializers.append(numpy_helper.from_array(data, name))
            continue
        kind = helper.np_dtype_to_tensor_dtype(data.dtype)
        shape = [f"{name}_d{a}" for a in range(data.ndim)] if dynamic else list(data.shape)
        inputs.append(helper.make_tensor_value_info(name, kind, shape))
    wanted = (True,) * c.outputs if isinstance(c.outputs, int) else c.outputs
    outputs = [f"y{i}" if w else "" for i, w in enumerate(wanted)]
    node = helper.make_node(c.op, names, outputs, name="node", domain=c.domain, **c.attrs)
    nodes, results = [node], [o for o in outputs if o]
    if weights is not None:
        terms = []
        kind = _ONNX_TYPE[np.dtype(dtype)]
        for o, r in zip(results, weights):
            if r is None:
                continue
            initializers.append(numpy_helper.from_array(np.asarray(r, dtype), f"r_{o}"))
            term = o
            if cast:
                term = f"{o}_cast"
                nodes.append(helper.make_node("Cast", [o], [term], name=f"cast_{o}", to=kind))
            nodes.append(helper.make_node("Mul", [term, f"r_{o}"], [f"p_{o}"], name=f"mul_{o}"))
            nodes.append(
                helper.make_node("ReduceSum", [f"p_{o}"], [f"s_{o}"], keepdims=0, name=f"sum_{o}")
            )
            terms.append(f"s_{o}")
        nodes.append(helper.make_node("Sum", terms, ["loss"], name="total"))
        outs = [helper.make_tensor_value_info("loss", kind, [])]
    else:
        outs = [onnx.ValueInfoProto(name=o) for o in results]
    graph = helper.make_graph(nodes, "case", inputs, outs, initializers)
    opsets = [helper.make_opsetid("", c.opset)]
    if c.domain:
        opsets.append(helper.make_opsetid(c.domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def feeds_of(c: Case, arrays: list[np.ndarray | None], dtype: Any) -> dict[str, np.ndarray]:
    return {
        f"x{i}": np.asarray(a, dtype if s.follows(a) else None)  # a difference may be a scalar
        for i, (s, a) in enumerate(zip(c.inputs, arrays))
        if s is not None and a is not None and not s.constant
    }


def run_reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return list(evaluator(model).run(None, feeds))


def run_ort(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def check(c: Case) -> None:
    """Run one case through all oracles."""
    rng = np.random.default_rng(zlib.crc32(c.id.encode()) + 1)
    arrays = arrays_of(c)
    run = run_reference if c.reference else run_ort
    exact = np.float64 if c.reference else np.float32
    plain = run(forward_model(c, arrays, exact, None, False), feeds_of(c, arrays, exact))
    plain = [np.asarray(o) for o in plain]
    only_integers = all(o.dtype.kind != "f" for o in plain)
    changes_type = c.op in ("Cast", "CastLike")
    cast = only_integers or changes_type
    weights = [
        rng.uniform(0.5, 1.5, o.shape) * rng.choice([-1, 1], o.shape)
        if only_integers or o.dtype.kind == "f"
        else None
        for o in plain
    ]
    wrt = [f"x{i}" for i, s in enumerate(c.inputs) if s is not None and s.grad]
    model = forward_model(c, arrays, exact, weights, False, cast)
    gradient_model = onnxtrain.differentiate(model, wrt=wrt, of="loss", allow_unused=True)
    onnx.checker.check_model(gradient_model, full_check=True)
    _only_standard_operators(gradient_model)
    exact_grads = run(gradient_model, feeds_of(c, arrays, exact))[1:]
    direction = {n: rng.uniform(-1, 1, arrays[int(n[1:])].shape) for n in wrt}
    analytic = sum(float(np.sum(g * direction[n])) for n, g in zip(wrt, exact_grads))
    numeric = _difference(c, model, arrays, direction, run, exact)
    tolerance = 1e-5 if c.reference else 2e-2
    np.testing.assert_allclose(
        analytic, numeric, rtol=tolerance, atol=tolerance, err_msg=f"{c.id}: central differences"
    )
    for name, g in zip(wrt, exact_grads):
        assert g.shape == arrays[int(name[1:])].shape, f"{c.id}: shape of {name}_grad"
    for dynamic in (False, True) if c.dynamic else (False,):
        model32 = forward_model(c, arrays, np.float32, weights, dynamic, cast)
        graph32 = onnxtrain.differentiate(model32, wrt=wrt, of="loss", allow_unused=True)
        got = run_ort(graph32, feeds_of(c, arrays, np.float32))[1:]
        for name, a, b in zip(wrt, got, exact_grads):
            assert a.dtype == np.float32
            np.testing.assert_allclose(
                a, b, rtol=c.rtol, atol=c.atol,
                err_msg=f"{c.id}: {name}_grad, onnxruntime, dynamic={dynamic}",
            )  # fmt: skip


def _difference(
    c: Case, model: onnx.ModelProto, arrays: list, direction: dict, run: Callable, dtype: Any
) -> float:
    """Central difference of the loss along `direction`."""
    step = c.step if dtype == np.float64 else 1e-2
    values = []
    for sign in (1, -1):
        moved = [
            a if a is None or f"x{i}" not in direction else a + sign * step * direction[f"x{i}"]
            for i, a in enumerate(arrays)
        ]
        values.append(float(run(model, feeds_of(c, moved, dtype))[0]))
    return (values[0] - values[1]) / (2 * step)


def _only_standard_operators(model: onnx.ModelProto) -> None:
    assert all(n.domain in ("", "ai.onnx") for n in model.graph.node)
    assert {o.domain: o.version for o in model.opset_import}[""] in range(18, 22)
    assert model.ir_version <= 10
