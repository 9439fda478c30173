"""`ORTModule` under its old name, and what scripts of that time looked at inside it.

The predecessor kept a manager for each mode, with the models it had made. Here that is a view of
the graphs that the last call in that mode has used.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx
import torch

from ...errors import InputError
from ...torch import ortmodule as current
from ...torch.debug_options import DebugOptions, file_name
from ...torch.element_types import ONNX_TYPES
from ...torch.fallback import FallbackPolicy, read_policy
from .capi import (
    GradientNodeAttributeDefinition,
    GradientNodeDefinition,
    register_gradient_definition,
)

log = logging.getLogger(__name__)
INSIDE = "_torch_module"
FALLBACK_POLICY = read_policy(None)
"""The policy of modules that are given none, as it was when this was imported."""
GradientNode = tuple[Any, ...]
"""Operator (or (domain, operator)), inputs, outputs, and a dictionary of attributes if any."""


class ORTModule(current.ORTModule):
    """`onnxtrain.torch.ORTModule` with the private names of the predecessor's.

    Example:
        >>> import torch
        >>> from onnxtrain.compat.ort.ortmodule import ORTModule
        >>> model = ORTModule(torch.nn.Linear(3, 1), exporter="torchscript")
        >>> _ = model(torch.ones(2, 3))
        >>> manager = model._torch_module._execution_manager(model._is_training())
        >>> manager._device
        device(type='cpu')
    """

    own_names: ClassVar[frozenset[str]] = current.ORTModule.own_names | {INSIDE}

    def __init__(
        self, module: torch.nn.Module, debug_options: DebugOptions | None = None, **more: Any
    ) -> None:
        super().__init__(module, debug_options, **more)
        if hasattr(module, INSIDE):
            log.warning(
                "%s collides with ORTModule's attribute name. Use ORTModule.module for that of %s.",
                INSIDE,
                type(module).__name__,
            )

    @functools.cached_property
    def _torch_module(self) -> TorchModule:
        managers = [Manager(self, training=mode) for mode in (True, False)]
        return TorchModule(self, GraphExecutionManagerFactory(*managers))

    def _is_training(self) -> bool:
        return self.training

    def view(self, training: bool) -> current.Inside:
        """What there is to see of the graphs for one mode."""
        return self._inside(training)


class TorchModule:
    """The wrapped module, and the managers of its graphs."""

    def __init__(self, module: ORTModule, managers: GraphExecutionManagerFactory) -> None:
        self._flattened_module = module.module
        self._execution_manager = managers

    def is_training(self) -> bool:
        """The mode of the module."""
        return self._flattened_module.training


class GraphExecutionManagerFactory:
    """The managers of both modes: called with the mode, it gives the one for it."""

    def __init__(self, training: Manager, inference: Manager) -> None:
        self._training_manager, self._inference_manager = training, inference

    def __call__(self, is_training: bool) -> Manager:
        """The manager for training, or for inference."""
        return self._training_manager if is_training else self._inference_manager


@dataclass(frozen=True)
class OnnxModels:
    """Models of one mode: as exported, and as they run (with gradients when training)."""

    exported_model: onnx.ModelProto | None
    optimized_model: onnx.ModelProto | None


@dataclass(frozen=True)
class ModelInfo:
    """An exported model and what belongs to it."""

    exported_model: onnx.ModelProto | None
    module_forward_args_schema: Any
    module_forward_kwargs_schema: Any
    onnx_graph_input_names: Sequence[str]
    onnx_graph_input_names_require_grad: Sequence[str]


@dataclass(frozen=True)
class FallbackManager:
    """When torch may take over."""

    policy: FallbackPolicy


class Manager:
    """The graphs of a module in one mode."""

    def __init__(self, module: ORTModule, *, training: bool) -> None:
        self._module, self._training = module, training
        self._graph_transition_manager = TransitionManager(module, training=training)
        self._export_mode = "training" if training else "inference"

    @property
    def _device(self) -> torch.device:
        return self._module.view(self._training).device

    @property
    def _debug_options(self) -> DebugOptions:
        return self._module.view(self._training).options

    @property
    def _fallback_manager(self) -> FallbackManager:
        return FallbackManager(self._module.view(self._training).policy)

    @property
    def _onnx_models(self) -> OnnxModels:
        inside = self._module.view(self._training)
        return OnnxModels(inside.exported, inside.run)

    @property
    def _graph_builder(self) -> Any:
        """The graphs that were built for the last call."""
        return self._module.view(self._training).halves

    @property
    def _execution_agent(self) -> Any:
        """What runs them."""
        return self._module.view(self._training).agent

    @property
    def _onnx_model(self) -> onnx.ModelProto | None:
        return self._onnx_models.exported_model

    @_onnx_model.setter
    def _onnx_model(self, value: None) -> None:
        if value is not None:
            raise InputError("_onnx_model can be set to None only, to export the module again.")
        self._module.reset()


class TransitionManager:
    """How a module becomes a model."""

    def __init__(self, module: ORTModule, *, training: bool) -> None:
        self._module, self._training = module, training

    @property
    def _exported_model_info(self) -> ModelInfo:
        inside = self._module.view(self._training)
        args, kwargs = inside.arguments if inside.arguments is not None else ((), ())
        with_gradient = [n for n in inside.inputs if n in inside.differentiated]
        return ModelInfo(inside.exported, args, kwargs, inside.inputs, with_gradient)

    @property
    def _model_info_for_export(self) -> ModelInfo:
        return self._exported_model_info

    @property
    def _post_export_processed_model_info(self) -> ModelInfo:
        return self._exported_model_info

    @property
    def _original_model_has_changed(self) -> bool:
        """Whether graphs were dropped since the last call, because the module changed."""
        return self._module.view(self._training).stale

    @property
    def _export_extra_kwargs(self) -> dict[str, Any]:
        return self._module.view(self._training).export_options

    @_export_extra_kwargs.setter
    def _export_extra_kwargs(self, value: dict[str, Any]) -> None:
        options = self._module.view(self._training).export_options
        options.clear()
        options.update(value)
        self._module.reset()


# --- small functions of the package ---------------------------------------------------------------


def get_device_index(device: torch.device | str) -> int:
    """The number of a device; 0 where it has none."""
    return torch.device(device).index or 0


def get_device_str(device: torch.device | str) -> str:
    """A device with its number: ``"cuda:0"``; the CPU has none."""
    device = torch.device(device)
    if device.type == "cpu":
        return device.type
    index = device.index if device.index is not None else torch.cuda.current_device()
    return f"{device.type}:{index}"


def get_random_states() -> tuple[Any, Any, torch.Tensor]:
    """The states of the random generators of Python, numpy and torch."""
    legacy = np.random.get_state()  # noqa: NPY002 - what scripts of that time draw from
    return random.getstate(), legacy, torch.get_rng_state()


def set_random_states(states: tuple[Any, Any, torch.Tensor]) -> None:
    """Put back what `get_random_states` gave."""
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002 - as above
    torch.set_rng_state(states[2])


def defined_from_envvar(name: str, default: Any, *, warn: bool = True) -> Any:
    """An environment variable as a value of the default's type; the default where it is none."""
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return type(default)(text)
    except (TypeError, ValueError) as error:
        if warn:
            warnings.warn(
                f"Unable to overwrite constant {name!r} with {text!r}: {error}.", stacklevel=2
            )
        return default


def get_onnx_file_name(prefix: str, stage: str, mode: str) -> str:
    """The file that `DebugOptions` has a stage of a model written to."""
    return file_name(prefix, stage, mode)


def register_gradient(
    domain: str, name: str, *attributes: str
) -> Callable[[Callable[[], Sequence[GradientNode]]], Callable[[], Sequence[GradientNode]]]:
    """Decorates a function that gives the nodes of an operator's gradient.

    A node is ``(operator, inputs, outputs)`` or ``(operator, inputs, outputs, attributes)``, where
    the operator may be ``(domain, operator)`` and an attribute is
    ``{"value": …, "dtype": …, "is_tensor": …}``. Operands are ``GO(i)``, ``I(i)``, ``O(i)``,
    results ``GI(i)``.
    """

    def register(
        function: Callable[[], Sequence[GradientNode]],
    ) -> Callable[[], Sequence[GradientNode]]:
        key = f"{domain}::{name}:{':'.join(attributes)}"
        register_gradient_definition(key, [_node(node) for node in function()])
        return function

    return register


def _node(node: GradientNode) -> GradientNodeDefinition:
    operator, inputs, outputs, *rest = node
    domain, op_type = ("", operator) if isinstance(operator, str) else operator
    attributes = rest[0] if rest else {}
    return GradientNodeDefinition(
        op_type, domain, inputs, outputs, [_attribute(n, a) for n, a in attributes.items()]
    )


def _attribute(name: str, entry: dict[str, Any]) -> GradientNodeAttributeDefinition:
    value, is_tensor = entry["value"], bool(entry.get("is_tensor", False))
    return GradientNodeAttributeDefinition(
        name, json.dumps(value), entry.get("dtype", "float"), is_tensor
    )


# --- types ----------------------------------------------------------------------------------------


def pytorch_type_to_onnx_dtype(dtype: torch.dtype) -> int:
    """ONNX's number of a torch type."""
    if dtype not in ONNX_TYPES:
        raise InputError(f"ONNX has no type {dtype}.")
    return int(ONNX_TYPES[dtype])


def onnx_dtype_to_pytorch_dtype(number: int) -> torch.dtype:
    """The torch type with this number in ONNX."""
    for dtype, known in ONNX_TYPES.items():
        if known == number:
            return dtype
    raise InputError(f"torch has no type for ONNX's number {number}.")
