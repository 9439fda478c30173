"""What is in a model, what of it can be trained, and what stands in the way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx_ir as ir

from .autodiff import walk_between
from .autodiff.registry import lookup
from .compile import NO_FLOATS, SINGLE, untrained_by_default
from .compile import UNREACHABLE as UNREACHABLE
from .errors import Blocker, OnnxTrainError, model_errors
from .graph import FLOATS, ModelLike, load
from .graph.endings import Ending, ending, producer_in
from .graph.tensor import dims_of
from .normalize import normalize
from .passes import with_rules

Dim = int | str | None
BLOCKED = "its gradient is blocked"


@dataclass(frozen=True)
class ValueSummary:
    """An input or output."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None


@dataclass(frozen=True)
class ParameterSummary:
    """An initializer; `reason` says why it is not trained by default."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    trainable: bool
    reason: str = ""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class OperatorSummary:
    """An operator of the model, as the file has it."""

    domain: str
    op_type: str
    count: int
    gradient: str


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that training takes, roughly: activations are all kept, nothing is reused."""

    batch: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class ModelSummary:
    """The result of `summarize`."""

    opset: int
    ir_version: int
    producer: str
    inputs: tuple[ValueSummary, ...]
    outputs: tuple[ValueSummary, ...]
    inner: tuple[ValueSummary, ...]
    """Values asked for that are no outputs of the model."""
    parameters: tuple[ParameterSummary, ...]
    operators: tuple[OperatorSummary, ...]
    blockers: tuple[Blocker, ...]
    problem: str
    memory: MemoryEstimate
    endings: tuple[Ending, ...]
    """Outputs that are probabilities, or their logarithms, and the scores behind them."""
    metadata: dict[str, str]
    """What the file says about itself (metadata_props)."""
    normalized: ir.Model | None = field(repr=False, compare=False)

    @property
    def trainable(self) -> list[str]:
        """Names of the parameters that are trained by default."""
        return [p.name for p in self.parameters if p.trainable]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        plain = {k: v for k, v in self.__dict__.items() if k != "normalized"}
        for key in ("inputs", "outputs", "inner", "parameters", "operators", "blockers", "endings"):
            plain[key] = [asdict(item) for item in plain[key]]
        plain["memory"] = {**asdict(self.memory), "total": self.memory.total}
        return plain


@model_errors("Reading the model")
def summarize(
    model: ModelLike, of: str | Sequence[str] | None = None, *, batch: int = 32
) -> ModelSummary:
    """Look at a model without changing it.

    Trained by default are the float initializers from which a differentiable path leads to an
    output, without running statistics of BatchNormalization and without single
    numbers (which are constants of a formula more often than parameters).

    Args:
        model: path, bytes, ModelProto or `onnx_ir.Model`.
        of: outputs, or other values, that the loss will depend on; by default all float outputs.
        batch: size that symbolic first dimensions get in the memory estimate.

    Example:
        >>> import onnx.parser
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N, 2] x) => (float[N, 1] y) <float[2, 1] w = {1, 2}> { y = MatMul(x, w) }
        ... ''')
        >>> summarize(model).trainable
        ['w']
    """
    loaded = load(model)
    outputs = _outputs(loaded, of)
    endings = _endings(loaded)
    own = [o.name for o in loaded.graph.outputs]
    loaded = _with_outputs(loaded, outputs)
    normalized, problem = _normalized(loaded)
    reasons, blockers = _untrained(normalized, outputs) if normalized is not None else ({}, ())
    present = () if normalized is None else normalized.graph.initializers
    parameters = tuple(
        _parameter(v, reasons.get(n, "" if n in present else UNREACHABLE))
        for n, v in loaded.graph.initializers.items()
        if v.const_value is not None
    )
    typed = _typed_outputs(loaded, normalized)
    return ModelSummary(
        opset=loaded.opset_imports.get("", 0),
        ir_version=loaded.ir_version,
        producer=" ".join(p for p in (loaded.producer_name, loaded.producer_version) if p),
        metadata=dict(loaded.metadata_props),
        inputs=tuple(value_summary(v) for v in loaded.graph.inputs if not v.is_initializer()),
        outputs=tuple(v for v in typed if v.name in own),
        inner=tuple(v for v in typed if v.name not in own),
        parameters=parameters,
        operators=_operators(loaded, blockers),
        blockers=blockers,
        problem=problem,
        memory=_memory(normalized or loaded, parameters, batch),
        endings=endings,
        normalized=normalized,
    )


def _outputs(model: ir.Model, of: str | Sequence[str] | None) -> list[str]:
    if of is not None:
        return [of] if isinstance(of, str) else list(of)
    return [o.name or "" for o in model.graph.outputs]


def _endings(model: ir.Model) -> tuple[Ending, ...]:
    producer = producer_in(model.graph)
    endings = [ending(o.name or "", producer) for o in model.graph.outputs]
    return tuple(e for e in endings if e is not None)


def _with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """The model with values from inside the graph as outputs, behind those there are."""
    missing = set(names) - {o.name for o in model.graph.outputs}
    if not missing:
        return model
    model = model.clone()
    values = [o for node in model.graph for o in node.outputs if o.name in missing]
    model.graph.outputs.extend(values)
    return model


def _normalized(model: ir.Model) -> tuple[ir.Model | None, str]:
    try:
        return normalize(load(model)), ""
    except OnnxTrainError as error:
        return None, str(error)


def _untrained(model: ir.Model, outputs: list[str]) -> tuple[dict[str, str], tuple[Blocker, ...]]:
    """Why initializers are not trained by default, and nodes without a gradient."""
    present = {o.name: o for o in model.graph.outputs}
    float_outputs = [n for n in outputs if n in present and present[n].dtype in FLOATS]
    reasons = untrained_by_default(model, float_outputs)
    reached = [n for n in model.graph.initializers if reasons.get(n, SINGLE) == SINGLE]
    model = with_rules(model.clone(), reached, float_outputs, ())
    walk, targets = walk_between(model, reached, float_outputs)
    blockers = walk.blockers(targets, dict(model.opset_imports))
    for name in {n for b in blockers for n in b.parameters}:
        reasons.setdefault(name, BLOCKED)
    return reasons, tuple(blockers)


def _parameter(value: ir.Value, reason: str) -> ParameterSummary:
    tensor = value.const_value
    assert tensor is not None
    if tensor.dtype not in FLOATS:
        reason = NO_FLOATS
    shape = tuple(tensor.shape.numpy())
    return ParameterSummary(
        value.name or "", _type(tensor.dtype), shape, tensor.nbytes, not reason, reason
    )


def value_summary(value: ir.Value) -> ValueSummary:
    """Name, type and shape of a value."""
    shape = dims_of(value)
    dtype = _type(value.dtype) if value.dtype is not None else "unknown"
    return ValueSummary(value.name or "", dtype, None if shape is None else tuple(shape))


def _typed_outputs(model: ir.Model, normalized: ir.Model | None) -> tuple[ValueSummary, ...]:
    """Outputs with the shapes that the normalizing stage inferred, where the file says less."""
    better = {o.name: o for o in normalized.graph.outputs} if normalized is not None else {}
    return tuple(value_summary(better.get(o.name, o)) for o in model.graph.outputs)


def _type(dtype: ir.DataType) -> str:
    return "float32" if dtype == ir.DataType.FLOAT else dtype.name.lower()


def _operators(model: ir.Model, blockers: Sequence[Blocker]) -> tuple[OperatorSummary, ...]:
    counted = Counter((n.domain, n.op_type) for n in model.graph.all_nodes())
    blocked = {b.op_type for b in blockers}
    return tuple(
        OperatorSummary(domain, op, number, _gradient(domain, op, blocked))
        for (domain, op), number in counted.most_common()
    )


def _gradient(domain: str, op_type: str, blocked: set[str]) -> str:
    if op_type in blocked:
        return "none: it blocks"
    rule = lookup("" if domain == "ai.onnx" else domain, op_type)
    if rule is None:
        return "by rewriting it, or not needed"
    return "zero" if rule.kind == "zero" else "rule"


def _memory(model: ir.Model, parameters: Sequence[ParameterSummary], batch: int) -> MemoryEstimate:
    trained = sum(p.bytes for p in parameters if p.trainable)
    activations = 0
    for node in model.graph:
        for value in node.outputs:
            shape = dims_of(value)
            if shape is None or value.dtype in {None, ir.DataType.STRING}:
                continue
            dims = [
                d if isinstance(d, int) else batch if i == 0 else 1 for i, d in enumerate(shape)
            ]
            activations += math.ceil(math.prod(dims) * value.dtype.bitwidth / 8)
    return MemoryEstimate(
        batch, sum(p.bytes for p in parameters), trained, 2 * trained, activations
    )
