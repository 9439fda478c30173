"""Options of the trainer: nested dictionaries, completed with defaults and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from ....errors import OnnxTrainError
from ....passes import RecomputeError, check_recompute
from ....torch.value_reads import CHOICES
from ..graph_builder import PropagateCastOpsStrategy
from .amp import LossScaler
from .lr_scheduler import _LRScheduler


class OptionsError(OnnxTrainError, ValueError):
    """An option that does not exist or has a wrong value."""


@dataclass(frozen=True)
class Option:
    """One option: its type in words, how to check it, its default.

    Attributes:
        is_new: whether the predecessor did not have it.
    """

    kind: str
    accepts: Callable[[Any], bool]
    default: Any
    rule: str = ""
    fits: Callable[[Any], bool] = lambda _: True
    is_new: bool = False

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value."""
        if not self.accepts(value):
            return f"must be of {self.kind} type"
        return None if self.fits(value) else self.rule.format(value)


Schema = Mapping[str, "Option | Schema"]


def _boolean(default: bool) -> Option:
    return Option("boolean", lambda v: isinstance(v, bool), default)


def _integer(default: int, low: int, high: int | None = None) -> Option:
    rule = f"min value is {low}" if high is None else f"must be from {low} to {high}"

    def fits(value: int) -> bool:
        return value >= low and (high is None or value <= high)

    return Option(
        "integer", lambda v: isinstance(v, int) and not isinstance(v, bool), default, rule, fits
    )


def _string(default: str) -> Option:
    return Option("string", lambda v: isinstance(v, str), default)


def _list(default: tuple[Any, ...] = (), of: type = str) -> Option:
    def accepts(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and all(isinstance(v, of) for v in value)

    return Option(f"list of {of.__name__}", accepts, list(default))


def _choice(default: Any, *values: Any) -> Option:
    return Option("allowed", lambda _: True, default, "unallowed value {}", lambda v: v in values)


def _instance(kind: type) -> Option:
    return Option(kind.__name__.strip("_"), lambda v: v is None or isinstance(v, kind), None)


def _function() -> Option:
    return Option("callable", lambda v: v is None or callable(v), None)


def _any(default: Any = None) -> Option:
    return Option("any", lambda _: True, default)


def _recompute() -> Option:
    def accepts(value: Any) -> bool:
        try:
            check_recompute(value)
        except RecomputeError:
            return False
        return True

    kind = "recompute (None, 'auto', 'cheap', a number of segments or names of values)"
    return Option(kind, accepts, None)


def _new(option: Option) -> Option:
    return replace(option, is_new=True)


SCHEMA: Schema = {
    "batch": {"gradient_accumulation_steps": _integer(1, 1)},
    "device": {"id": _string("cpu"), "mem_limit": _integer(0, 0)},
    "distributed": {
        "world_rank": _integer(0, 0),
        "world_size": _integer(1, 1),
        "local_rank": _integer(0, 0),
        "data_parallel_size": _integer(1, 1),
        "horizontal_parallel_size": _integer(1, 1),
        "pipeline_parallel": {
            "pipeline_parallel_size": _integer(1, 1),
            "num_pipeline_micro_batches": _integer(1, 1),
            "pipeline_cut_info_string": _string(""),
            "sliced_schema": _any({}),
            "sliced_axes": _any({}),
            "sliced_tensor_names": _list(),
        },
        "allreduce_post_accumulation": _boolean(False),
        "deepspeed_zero_optimization": {"stage": _choice(0, 0, 1)},
        "enable_adasum": _boolean(False),
    },
    "lr_scheduler": _instance(_LRScheduler),
    "mixed_precision": {"enabled": _boolean(False), "loss_scaler": _instance(LossScaler)},
    "graph_transformer": {
        "attn_dropout_recompute": _boolean(False),
        "gelu_recompute": _boolean(False),
        "transformer_layer_recompute": _boolean(False),
        "number_recompute_layers": _integer(0, 0),
        "recompute": _new(_recompute()),
        "propagate_cast_ops_config": {
            "strategy": _any(PropagateCastOpsStrategy.FLOOD_FILL),
            "level": _integer(1, -1),
            "allow": _list(),
        },
    },
    "utils": {
        "frozen_weights": _list(),
        "grad_norm_clip": _boolean(True),
        "memory_efficient_gradient": _boolean(False),
        "run_symbolic_shape_infer": _boolean(False),
        "check_finite": _new(_boolean(False)),
    },
    "debug": {
        "deterministic_compute": _boolean(False),
        "check_model_export": _boolean(False),
        "fixed_values": _new(_choice(None, None, *CHOICES)),
        "graph_save_paths": {
            "model_after_graph_transforms_path": _string(""),
            "model_with_gradient_graph_path": _string(""),
            "model_with_training_graph_path": _string(""),
            "model_with_training_graph_after_optimization_path": _string(""),
        },
    },
    "_internal_use": {
        "enable_internal_postprocess": _boolean(True),
        "extra_postprocess": _function(),
        "onnx_opset_version": _integer(14, 12, 21),
        "enable_onnx_contrib_ops": _boolean(True),
    },
    "provider_options": _any({}),
    "session_options": _any(),
    "exporter": _new(_choice(None, None, "dynamo", "torchscript")),
}


class Section:
    """Options of one section as attributes."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, Section(value) if isinstance(value, _Nested) else value)

    def __repr__(self) -> str:
        return repr(self.__dict__)


class _Nested(dict[str, Any]):
    """A section, as opposed to a dictionary that is a value."""


class ORTTrainerOptions:
    """How a trainer works, section by section; unknown keys and wrong types are refused.

    Args:
        options: nested dictionaries; what is not given has its default. Sections: ``batch``
            (gradient_accumulation_steps), ``device`` (id), ``distributed``, ``lr_scheduler``,
            ``mixed_precision`` (enabled, loss_scaler), ``graph_transformer`` (``recompute``: what
            the backward half computes again instead of keeping it, see the guide on memory;
            transformer_layer_recompute, number_recompute_layers, gelu_recompute and
            attn_dropout_recompute are older words for it), ``utils``
            (frozen_weights, grad_norm_clip, check_finite: raise `NonFiniteError`, and change
            nothing, when a loss or a gradient is NaN or infinite, …), ``debug`` (``fixed_values``:
            what to do when the export fixes a value that the module reads in Python),
            ``_internal_use``,
            ``provider_options``, ``session_options``, and ``exporter``.

    Example:
        >>> options = ORTTrainerOptions({"batch": {"gradient_accumulation_steps": 4}})
        >>> options.batch.gradient_accumulation_steps, options.utils.grad_norm_clip
        (4, True)
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        settings = {} if options is None else options
        if not isinstance(settings, Mapping):
            raise OptionsError(
                f"Invalid options: a dictionary is needed, not {type(settings).__name__}."
            )
        values, errors = _complete(SCHEMA, settings)
        if errors:
            raise OptionsError(f"Invalid options: {errors}")
        self._original_opts = dict(settings)
        self._validated_opts = _without_new(SCHEMA, values)
        for name, value in values.items():
            setattr(self, name, Section(value) if isinstance(value, _Nested) else value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"There is no option {name!r}; there are {', '.join(SCHEMA)}.")

    def __repr__(self) -> str:
        return f"ORTTrainerOptions({self._original_opts!r})"


def _without_new(schema: Schema, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the predecessor had too, as plain dictionaries."""
    return {
        key: values[key] if isinstance(option, Option) else _without_new(option, values[key])
        for key, option in schema.items()
        if not (isinstance(option, Option) and option.is_new)
    }


def _complete(schema: Schema, settings: Mapping[str, Any]) -> tuple[_Nested, dict[str, Any]]:
    """Values with defaults, and what is wrong, nested like the schema."""
    values, errors = _Nested(), dict[str, Any]()
    for key in settings:
        if key not in schema:
            errors[key] = ["unknown field"]
    for key, option in schema.items():
        if isinstance(option, Option):
            value = settings.get(key, option.default)
            problem = option.problem(value) if key in settings else None
            if problem is not None:
                errors[key] = [problem]
            values[key] = copy(value) if isinstance(value, (list, dict)) else value
            continue
        inner = settings.get(key, {})
        if not isinstance(inner, Mapping):
            errors[key] = ["must be of dict type"]
            continue
        values[key], wrong = _complete(option, inner)
        if wrong:
            errors[key] = [wrong]
    return values, errors
