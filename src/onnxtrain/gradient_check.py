"""Check a gradient graph against finite differences: the test that the rules pass, for users."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from .compile import differentiate
from .errors import ModelError, OnnxTrainError, model_errors
from .graph import ModelLike, load, to_proto
from .graph import parameters as params
from .graph.evaluate import evaluator
from .graph.retype import to_float64
from .graph.tensor import dims_of
from .normalize import normalize
from .runtime.session.devices import create_session

Array = np.ndarray[Any, Any]


class GradientMismatchError(OnnxTrainError, AssertionError):
    """A gradient differs from the finite difference."""


@dataclass(frozen=True)
class Check:
    """The derivative along one random unit direction of one parameter or input."""

    name: str
    shape: tuple[int, ...]
    analytic: float
    numeric: float
    error: float
    ok: bool


@dataclass(frozen=True)
class GradientReport:
    """All checks of one model; prints as a table."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every gradient agrees."""
        return all(c.ok for c in self.checks)

    def raise_if_wrong(self) -> GradientReport:
        """Raise `GradientMismatchError` when a gradient disagrees, else return the report."""
        if not self.ok:
            raise GradientMismatchError(f"Gradients disagree with finite differences:\n{self}")
        return self

    def __str__(self) -> str:
        width = max([len(c.name) for c in self.checks] + [4])
        head = f"{'name':<{width}}  {'analytic':>13}  {'numeric':>13}  {'error':>9}"
        rows = [
            f"{c.name:<{width}}  {c.analytic:>13.6e}  {c.numeric:>13.6e}  {c.error:>9.1e}"
            f"  {'ok' if c.ok else 'WRONG'}"
            for c in self.checks
        ]
        return "\n".join([head, *rows])


def check_gradient(
    model: ModelLike,
    inputs: Mapping[str, Any] | None = None,
    wrt: Sequence[str] | None = None,
    of: str | Sequence[str] | None = None,
    *,
    rtol: float = 2e-3,
    atol: float = 1e-5,
    step: float = 1e-6,
    seed: int = 0,
) -> GradientReport:
    """Compare each gradient with a central difference along one random direction.

    The forward model runs in float64 on `onnx.reference`, twice per name; the gradient graph runs
    as it is on onnxruntime. The function that is differentiated is a weighted sum of the outputs
    with fixed random weights, so outputs of any shape can be checked.

    Args:
        model: the model to check.
        inputs: arrays by input name; by default random ones (symbolic dimensions become 2,
            integer inputs zeros).
        wrt: names to check, by default all float initializers that outputs depend on.
        of: outputs to include, by default all float outputs.
        rtol: tolerance relative to the derivative's size.
        atol: absolute tolerance.
        step: half the distance of the central difference.
        seed: of the directions, the weights and the default inputs.

    Returns:
        A report; ``report.ok`` tells whether all agree, ``print(report)`` shows the numbers.

    Raises:
        ModelError: the forward model cannot be evaluated by `onnx.reference`.
    """
    rng = np.random.default_rng(seed)
    loaded = normalize(load(model))
    feeds = _feeds(loaded, inputs, rng)
    gradient_model = differentiate(to_proto(loaded), wrt=wrt, of=of, vjp=True)
    names, targets = _names(gradient_model)
    weights = _weights(loaded, names)
    exact = to_float64(loaded)
    params.to_inputs(exact, weights)
    session = evaluator(to_proto(exact))

    def run(moved: Mapping[str, Array]) -> dict[str, Array]:
        point = {**weights, **feeds, **moved}
        wide = {k: v.astype(np.float64) if v.dtype.kind in "fV" else v for k, v in point.items()}
        try:
            with np.errstate(all="ignore"):
                values = session.run(targets, wide)
        except Exception as error:
            raise ModelError(
                f"onnx.reference cannot evaluate the forward model ({error}); "
                "give `inputs` that fit it, or check the gradient against another framework."
            ) from error
        return dict(zip(targets, map(np.asarray, values)))

    seeds = {t: np.asarray(rng.uniform(-1, 1, v.shape)) for t, v in run({}).items()}
    gradients = _gradients(gradient_model, feeds, seeds, names)
    start = {**weights, **feeds}
    checks = []
    for name in names:
        direction = rng.standard_normal(start[name].shape)
        direction /= max(float(np.linalg.norm(direction)), 1e-30)
        base = start[name].astype(np.float64)
        ends = [run({name: base + s * step * direction}) for s in (1, -1)]
        total = [sum(float(np.sum(seeds[t] * end[t])) for t in targets) for end in ends]
        numeric = (total[0] - total[1]) / (2 * step)
        gradient = gradients[name].astype(np.float64)
        analytic = float(np.sum(gradient * direction))
        error = abs(analytic - numeric)
        scale = max(abs(numeric), float(np.linalg.norm(gradient)) / max(gradient.size, 1) ** 0.5)
        ok = bool(error <= atol + rtol * scale)
        checks.append(Check(name, tuple(start[name].shape), analytic, numeric, error, ok))
    return GradientReport(tuple(checks))


def _weights(model: ir.Model, names: Collection[str]) -> dict[str, Array]:
    """Values of the initializers among the names."""
    values = model.graph.initializers
    tensors = {n: values[n].const_value for n in names if n in values}
    return {n: t.numpy() for n, t in tensors.items() if t is not None}


def _names(gradient_model: onnx.ModelProto) -> tuple[list[str], list[str]]:
    """What was differentiated, and the outputs whose gradients are inputs."""
    meta = {p.key: p.value for p in gradient_model.metadata_props}
    names = list(json.loads(meta["onnxtrain.gradients"]))
    inputs = {i.name for i in gradient_model.graph.input}
    outputs = [o.name for o in gradient_model.graph.output]
    return names, [o for o in outputs if f"{o}_grad" in inputs]


def _feeds(
    model: ir.Model, inputs: Mapping[str, Any] | None, rng: np.random.Generator
) -> dict[str, Array]:
    feeds: dict[str, Array] = {}
    for value in model.graph.inputs:
        assert value.name is not None
        if inputs is not None and value.name in inputs:
            feeds[value.name] = np.asarray(inputs[value.name])
            continue
        shape = dims_of(value)
        if shape is None or value.dtype is None:
            raise ModelError(f"Give an array for input {value.name!r}: its shape is not known.")
        size = tuple(d if isinstance(d, int) else 2 for d in shape)
        dtype = value.dtype.numpy()
        floating = value.dtype.is_floating_point()
        feeds[value.name] = (rng.uniform(-1, 1, size) if floating else np.zeros(size)).astype(dtype)
    return feeds


@model_errors("Running the model with its gradients")
def _gradients(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    seeds: Mapping[str, Array],
    names: Sequence[str],
) -> dict[str, Array]:
    session = create_session(model.SerializeToString())
    types = {i.name: i.type for i in session.get_inputs()}
    point = dict(feeds)
    for target, seed in seeds.items():
        point[f"{target}_grad"] = seed.astype(_NUMPY_TYPE[types[f"{target}_grad"]])
    point = {k: v for k, v in point.items() if k in types}
    outputs = [o.name for o in session.get_outputs()][-len(names) :]
    return dict(zip(names, session.run(outputs, point)))


_NUMPY_TYPE = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
}
