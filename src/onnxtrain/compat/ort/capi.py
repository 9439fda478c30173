"""Functions that the training builds had in `onnxruntime.capi._pybind_state`."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ...autodiff import registry
from ...errors import ModelError
from ...graph import OpBuilder, Tensor, load, to_proto
from ...graph import parameters as params
from ...normalize import normalize
from ...onnxblock.checkpoint_utils import load_checkpoint_to_model
from ...onnxblock.checkpoint_utils import save_checkpoint as save_tensors
from ...runtime.state.checkpoint_state import CheckpointState

ONNXCUSTOM_VERSION = "0.4.344"
"""The last release of onnxcustom, whose names these are."""

Path = str | os.PathLike[str]


def is_ortmodule_available() -> bool:
    """Whether `ORTModule` can be used: it needs PyTorch and nothing compiled."""
    return importlib.util.find_spec("torch") is not None


def is_torch_interop_default_on() -> bool:
    """False: nothing calls from a graph back into PyTorch."""
    return False


def is_triton_enabled() -> bool:
    """False: there are no Triton kernels."""
    return False


def get_optimized_model(
    serialized: bytes, names_requiring_grad: Collection[str] = (), session_options: Any = None
) -> bytes:
    """The forward model as the gradient is built from it: one opset, standard operators."""
    model = load(serialized)
    params.to_inputs(model, [n for n in names_requiring_grad if n in model.graph.initializers])
    model = normalize(model)
    params.to_initializers(model)
    content: bytes = to_proto(model).SerializeToString()
    return content


# --- checkpoints --------------------------------------------------------------------------------


def save_checkpoint(first: Any, second: Any, third: Any = False, fourth: Any = False) -> None:
    """Both forms: ``(state, path, include_optimizer_state)``, ``(trained, frozen, path, nominal)``.

    In the second, parameters are TensorProtos or their bytes.
    """
    if isinstance(first, CheckpointState):
        CheckpointState.save_checkpoint(first, second, bool(third))
        return
    trained, frozen = ([_tensor(t) for t in tensors] for tensors in (first, second))
    save_tensors((trained, frozen), third, bool(fourth))


def _tensor(tensor: bytes | onnx.TensorProto) -> onnx.TensorProto:
    return onnx.TensorProto.FromString(tensor) if isinstance(tensor, bytes) else tensor


def load_checkpoint(path: Path) -> CheckpointState:
    """Read a checkpoint."""
    return CheckpointState.load_checkpoint(path)


def get_model_after_loading_checkpoint(path: Path, model: bytes | onnx.ModelProto) -> bytes:
    """The model with the parameters of a checkpoint."""
    proto = onnx.load_from_string(model) if isinstance(model, bytes) else model
    load_checkpoint_to_model(path, proto)
    content: bytes = proto.SerializeToString()
    return content


# --- gradients of custom operators --------------------------------------------------------------


@dataclass
class GradientNodeAttributeDefinition:
    """An attribute of a node in a gradient: its value as JSON, and the element type."""

    name: str
    value_json: str
    dtype: str = "float"
    is_tensor: bool = False

    def value(self) -> Any:
        """The value for the node."""
        value = json.loads(self.value_json)
        if not self.is_tensor:
            return value
        kind = {"float": np.float32, "int": np.int64, "bool": np.bool_}.get(self.dtype, self.dtype)
        return ir.tensor(np.array(value, kind))


@dataclass
class GradientNodeDefinition:
    """A node of a gradient. Operands are ``GO(i)``, ``I(i)``, ``O(i)``, results ``GI(i)``."""

    op_type: str
    domain: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Sequence[GradientNodeAttributeDefinition] = field(default_factory=list)


_stops: dict[str, frozenset[int]] = {}


def _split(key: str) -> tuple[str, str]:
    """``domain::operator:overload`` → domain and operator."""
    domain, separator, rest = key.partition("::")
    if not separator:
        raise ModelError(f"{key!r} does not name an operator: write 'domain::operator:'.")
    return domain, rest.partition(":")[0]


def register_gradient_definition(key: str, definitions: Sequence[GradientNodeDefinition]) -> None:
    """Register the gradient of an operator, given as a list of nodes."""
    domain, op_type = _split(key)
    nodes = list(definitions)

    def rule(
        op: OpBuilder,
        dys: tuple[Tensor | None, ...],
        ys: tuple[Tensor, ...],
        *inputs: Tensor | None,
        **attributes: Any,
    ) -> tuple[Any, ...]:
        known: dict[str, Any] = {f"GO({i})": dy for i, dy in enumerate(dys)}
        known.update((f"O({i})", y) for i, y in enumerate(ys))
        known.update((f"I({i})", x) for i, x in enumerate(inputs))
        for node in nodes:
            operands = [known[name] if name else None for name in node.inputs]
            settings = {a.name: a.value() for a in node.attributes}
            results = op.emit(
                node.op_type, operands, len(node.outputs), domain=node.domain, **settings
            )
            known.update(zip(node.outputs, results))
        return tuple(known.get(f"GI({i})") for i in range(len(inputs)))

    registry.register(
        [op_type], rule, kind="multi", domain=domain, stops=_stops.get(key, ()), replace=True
    )


def register_custom_stop_gradient_edges(key: str, edges: Collection[int]) -> None:
    """Say which inputs of an operator have no gradient; before or after its definition."""
    domain, op_type = _split(key)
    _stops[key] = frozenset(edges)
    known = registry.lookup(domain, op_type)
    if known is not None:
        registry.register(
            [op_type], known.function, kind=known.kind, domain=domain, stops=edges, replace=True
        )
