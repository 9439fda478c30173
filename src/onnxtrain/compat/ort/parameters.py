"""`TrainingParameters`: what a `TrainingSession` trains, and how."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...errors import OnnxTrainError
from ...hyper import check_amount
from ...optim import Optimizer
from ...passes import Recompute, check_recompute
from .fields import Fields

ONE_PROCESS = {
    "world_size": 1,
    "world_rank": 0,
    "data_parallel_size": 1,
    "horizontal_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "num_pipeline_micro_batches": 1,
    "pipeline_cut_info_string": "",
    "deepspeed_zero_stage": 0,
    "enable_adasum": False,
    "sliced_schema": {},
    "sliced_axes": {},
    "sliced_tensor_names": [],
}
"""Fields that spread training over several processes, with the only value that works in one."""


class ParameterError(OnnxTrainError, ValueError):
    """A field of `TrainingParameters` has a value that cannot be honoured."""


class _Memory(Protocol):
    """What the predecessor's trainers have in common about memory."""

    recompute: Recompute
    attn_dropout_recompute: bool
    gelu_recompute: bool
    transformer_layer_recompute: bool
    number_recompute_layers: int


def what_to_recompute(options: _Memory) -> Recompute:
    """`recompute`, or what the older options mean."""
    if options.recompute is not None:
        return options.recompute
    if options.transformer_layer_recompute:
        return options.number_recompute_layers or "auto"
    return "cheap" if options.gelu_recompute or options.attn_dropout_recompute else None


@dataclass
class TrainingParameters(Fields):
    """The fields that a `TrainingSession` reads. A misspelt name is an AttributeError.

    Attributes:
        loss_output_name: the output that is minimised; the first output when empty.
        weights_to_train: initializers to train; when empty, what is trained by default: float
            initializers that the loss depends on, without running statistics and single numbers.
        weights_not_to_train: initializers that stay as they are.
        immutable_weights: constants that are no weights although they are float initializers:
            operator → pairs of input position and value, ``{"Div": [(1, 8.0)]}``.
        training_optimizer_name: "SGDOptimizer", "AdamOptimizer", "LambOptimizer", an optimizer made
            with `onnxtrain.optim`, or "" for a session that computes but does not update.
        lr_params_feed_name: name of the learning-rate input, FLOAT[1].
        optimizer_attributes_map: weight → float attributes of its optimizer: ``alpha``, ``beta``
            (rates of the two moments), ``lambda`` (weight decay), ``epsilon``, ``max_norm_clip``;
            for Lamb also ``ratio_min`` and ``ratio_max``; for SGD ``momentum`` and ``lambda``.
        optimizer_int_attributes_map: weight → integer attributes: ``do_bias_correction``, and for
            Adam ``weight_decay_mode`` (0: before the update as PyTorch does, 1: after it); for SGD
            ``nesterov``.
        gradient_accumulation_steps: the weights change at every n-th run, by the mean gradient.
        enable_grad_norm_clip: clip the norm of all gradients together to ``max_norm_clip``
            (1.0 unless an attribute says otherwise); Adam and Lamb only.
        set_gradients_as_graph_outputs: return ``<weight>_grad`` after the other outputs.
        use_mixed_precision: scale the loss, undo it in the gradients, and leave the weights alone
            when a gradient overflows. The arithmetic stays in the types of the model: a CPU
            gains nothing from half precision.
        loss_scale: a fixed loss scale; 0 makes it an input of the session.
        check_finite: raise `NonFiniteError` when a loss or a gradient is NaN or infinite. Such a
            run changes nothing: weights, moments, count and running statistics stay, and the
            gradients that were added up for the same update are dropped with it.
        recompute: what the backward half computes again instead of keeping it: a number of
            segments, "auto", "cheap", or names of the values to keep (see the guide on memory).
        transformer_layer_recompute: short for ``recompute=number_recompute_layers``, or "auto" when
            that is 0.
        gelu_recompute, attn_dropout_recompute: short for ``recompute="cheap"``.
        model_after_graph_transforms_path: file for the model as it is differentiated.
        model_with_gradient_graph_path: file for the model with its gradients.
        model_with_training_graph_path: file for the graph that one step runs.

    The remaining fields either mean nothing in one process on one device, and then any value other
    than the default is an error, or chose how much memory another runtime would use: these are
    accepted and do not change the numbers.
    """

    loss_output_name: str = ""
    weights_to_train: Collection[str] = field(default_factory=set)
    weights_not_to_train: Collection[str] = field(default_factory=set)
    immutable_weights: Mapping[str, Any] = field(default_factory=dict)
    training_optimizer_name: str | Optimizer = ""
    lr_params_feed_name: str = "Learning_Rate"
    optimizer_attributes_map: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    optimizer_int_attributes_map: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    gradient_accumulation_steps: int = 1
    enable_grad_norm_clip: bool = True
    set_gradients_as_graph_outputs: bool = False
    use_mixed_precision: bool = False
    use_fp16_moments: bool = False
    loss_scale: float = 0.0
    check_finite: bool = False
    recompute: Recompute = None
    model_after_graph_transforms_path: str = ""
    model_with_gradient_graph_path: str = ""
    model_with_training_graph_path: str = ""
    world_rank: int = 0
    world_size: int = 1
    data_parallel_size: int = 1
    horizontal_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    num_pipeline_micro_batches: int = 1
    pipeline_cut_info_string: str = ""
    deepspeed_zero_stage: int = 0
    enable_adasum: bool = False
    allreduce_post_accumulation: bool = False
    sliced_schema: Mapping[str, Any] = field(default_factory=dict)
    sliced_axes: Mapping[str, Any] = field(default_factory=dict)
    sliced_tensor_names: Sequence[str] = field(default_factory=list)
    use_memory_efficient_gradient: bool = False
    attn_dropout_recompute: bool = False
    gelu_recompute: bool = False
    transformer_layer_recompute: bool = False
    number_recompute_layers: int = 0
    propagate_cast_ops_level: int = 1
    propagate_cast_ops_allow: Sequence[str] = field(default_factory=list)
    optimizer_initial_state: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def set_optimizer_initial_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Start from these moments instead of zeros.

        Args:
            state: what `TrainingSession.get_optimizer_state` gave:
                ``{weight: {"Moment_1": …, "Moment_2": …, "Update_Count": …}}``.
        """
        self.optimizer_initial_state = state

    def what_to_recompute(self) -> Recompute:
        """`recompute`, or what the older fields mean."""
        return what_to_recompute(self)

    def check(self) -> None:
        """Raise for a value that cannot be honoured."""
        check_recompute(self.recompute)
        for name, only in ONE_PROCESS.items():
            value = getattr(self, name)
            if value != only and (value or not isinstance(only, (dict, list))):
                raise ParameterError(
                    f"TrainingParameters.{name} = {value!r} asks for several processes or devices "
                    f"inside one session, which stock onnxruntime does not have. Leave it at "
                    f"{only!r}; to train data-parallel, average the gradients of several sessions."
                )
        if self.use_fp16_moments:
            raise ParameterError(
                "TrainingParameters.use_fp16_moments cannot be honoured: moments are kept in the "
                "type of their weights. Leave it at False."
            )
        if self.gradient_accumulation_steps < 1:
            raise ParameterError(
                "TrainingParameters.gradient_accumulation_steps must be at least 1, not "
                f"{self.gradient_accumulation_steps}."
            )
        check_amount(self.loss_scale, "TrainingParameters.loss_scale", ParameterError)
