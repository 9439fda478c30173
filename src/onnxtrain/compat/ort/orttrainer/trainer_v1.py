"""ORTTrainer of the first generation: descriptions as objects, the optimizer by its name."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from ....errors import InputError, UnknownNameError
from ....graph.contract import RANDOM_INPUT
from ....passes import Recompute
from ....runtime.session.sharing import exclusive
from ....torch.export import LossFunction
from ....torch.value_reads import FixedValues, check_choice
from . import optim
from .amp import DynamicLossScaler
from .base import ORTTrainer
from .core import Core, Settings
from .descriptions import (
    DescriptionError,
    IODescription,
    ModelDescription,
    from_objects,
)
from .state import Loaded, random_of
from .training_session import MOMENTS, TrainerSession


class LossScaler:
    """The loss scale of a mixed-precision training, fixed or adapting itself.

    Args:
        loss_scale_input_name: name of the loss-scale input.
        is_dynamic_scale: halve on overflow, double after `up_scale_window` good steps.
        loss_scale: to start with.
        up_scale_window: see above.
        min_loss_scale: it never falls below.
        max_loss_scale: it never rises above.
    """

    def __init__(
        self,
        loss_scale_input_name: str,
        is_dynamic_scale: bool,
        loss_scale: float = float(1 << 16),
        up_scale_window: int = 2000,
        min_loss_scale: float = 1.0,
        max_loss_scale: float = float(1 << 24),
    ) -> None:
        self.loss_scale_input_name = loss_scale_input_name
        self.is_dynamic_scale_ = is_dynamic_scale
        self._scaler = DynamicLossScaler(
            True, loss_scale, up_scale_window, min_loss_scale, max_loss_scale
        )

    @property
    def loss_scale_(self) -> float:
        """The factor of the coming step."""
        return self._scaler.loss_scale

    @property
    def up_scale_window_(self) -> int:
        """Good steps until the scale is doubled."""
        return self._scaler.up_scale_window

    @property
    def min_loss_scale_(self) -> float:
        """The scale never falls below."""
        return self._scaler.min_loss_scale

    @property
    def max_loss_scale_(self) -> float:
        """The scale never rises above."""
        return self._scaler.max_loss_scale

    @property
    def stable_steps_(self) -> int:
        """Good steps since the scale was changed last."""
        return self._scaler.stable_steps

    def update_loss_scale(self, is_all_finite: bool) -> None:
        """Adapt the scale to whether the step had finite gradients."""
        if self.is_dynamic_scale_:
            self._scaler.adapt(bool(is_all_finite))

    def reset(self) -> None:
        """Start again with the initial scale."""
        self._scaler.reset()


class ORTTrainerV1(ORTTrainer):
    """Trains a torch module or an ONNX model; see `ORTTrainer` for the call.

    Args:
        model: a torch module, or an ONNX model whose first output is the loss.
        loss_fn: ``loss_fn(prediction, label)``; None if the model computes its loss itself.
        model_desc: inputs (the label last) and outputs (the loss first). Dimensions given as
            strings may change; numbers are a hint, and an input of another size leads to a second
            export. Types are those of the first batch.
        training_optimizer_name: "SGDOptimizer", "AdamOptimizer" or "LambOptimizer".
        map_optimizer_attributes: hyperparameters of a weight, by its name (see
            `onnxtrain.compat.ort.orttrainer.optim.make`), or None.
        learning_rate_description: name of the learning rate in `train_step`.
        device: "cpu", or what onnxruntime has an execution provider for.
        gradient_accumulation_steps: batches per update; gradients are averaged.
        postprocess_model: function that changes the exported ONNX model in place.
        world_rank: number of this process.
        world_size: processes that train together, through `torch.distributed`.
        use_mixed_precision: scale the loss and skip updates with infinite gradients. Arithmetic
            stays in single precision on a CPU.
        allreduce_post_accumulation: accepted; gradients are always exchanged once per update.
        global_step: number of the first update.
        get_lr_this_step: gives the learning rate for a step number.
        loss_scaler: takes care of the scale; without it, scale is an argument of `train_step`.
        enable_grad_norm_clip: clip by global norm (Adam and Lamb: at 1.0 unless their
            attribute ``max_norm_clip`` says otherwise; SGD: only if it has that attribute).
        frozen_weights: names of weights that are not trained.
        _opset_version: least opset of the exported model.
        exporter: "dynamo" or "torchscript" instead of the default of the installed torch.
        session_options: onnxruntime's session options.
        recompute: what the backward half computes again instead of keeping it, which needs less
            memory: a number of segments, "auto", "cheap", or names of the values to keep.
        check_finite: raise `NonFiniteError`, and change nothing, when a loss or a gradient is NaN
            or infinite.
        fixed_values: what to do when the export fixes a value that the module reads in Python:
            "warn", "error" or "ignore", by default ``ORTMODULE_FIXED_VALUES`` or a warning.
        **ignored: options of the predecessor that need no counterpart here.
    """

    def __init__(
        self,
        model: torch.nn.Module | onnx.ModelProto,
        loss_fn: LossFunction | None,
        model_desc: ModelDescription,
        training_optimizer_name: str,
        map_optimizer_attributes: Callable[[str], Mapping[str, Any]] | None,
        learning_rate_description: IODescription,
        device: Any = "cpu",
        gradient_accumulation_steps: int = 1,
        world_rank: int = 0,
        world_size: int = 1,
        use_mixed_precision: bool = False,
        allreduce_post_accumulation: bool = False,
        global_step: int = 0,
        get_lr_this_step: Callable[[int], float] | None = None,
        loss_scaler: LossScaler | None = None,
        enable_grad_norm_clip: bool = True,
        frozen_weights: Sequence[str] = (),
        _opset_version: int = 18,
        *,
        postprocess_model: Callable[[onnx.ModelProto], object] | None = None,
        exporter: str | None = None,
        session_options: Any = None,
        recompute: Recompute = None,
        check_finite: bool = False,
        fixed_values: FixedValues | None = None,
        **ignored: Any,
    ) -> None:
        _check_ignored(ignored)
        if not isinstance(gradient_accumulation_steps, int) or gradient_accumulation_steps < 1:
            raise InputError(
                f"gradient_accumulation_steps must be at least 1: {gradient_accumulation_steps!r}."
            )
        optim.check_name(training_optimizer_name)
        if not model_desc.outputs_:
            raise DescriptionError("The model description has no output; the first is the loss.")
        self._shared_step = training_optimizer_name == optim.LAMB
        attributes = map_optimizer_attributes or (lambda _: {})
        hooks = [f for f in (postprocess_model, ignored.get("_extra_postprocess")) if f]
        self._share()
        self.session: TrainerSession | None = None
        self._core = Core(
            model,
            loss_fn,
            from_objects(model_desc.inputs_),
            from_objects(model_desc.outputs_),
            _loss_name(model, model_desc),
            Settings(
                lambda names: optim.make(
                    training_optimizer_name, names, attributes, clip=enable_grad_norm_clip
                ),
                frozen=list(frozen_weights),
                accumulate=gradient_accumulation_steps,
                scaled=use_mixed_precision,
                device=str(device),
                session_options=session_options,
                exporter=exporter,
                opset=_opset_version,
                world_size=world_size,
                world_rank=world_rank,
                postprocess=hooks,
                recompute=recompute,
                check_finite=check_finite,
                fixed_values=check_choice(fixed_values),
            ),
            on_start=self._start,
        )
        self.model_desc_ = model_desc
        self.model_ = model
        self.loss_fn_ = loss_fn
        self.device_ = device
        self.world_rank, self.world_size = world_rank, world_size
        self.global_step_ = global_step
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.use_mixed_precision = use_mixed_precision
        self.get_lr_this_step_ = get_lr_this_step
        self.loss_scaler_ = loss_scaler
        self.learning_rate_description_ = learning_rate_description
        self._training = True

    # --- steps -----------------------------------------------------------------------------------

    @exclusive
    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch.

        Args:
            args: inputs, label, then the learning rate as a tensor of one element (unless
                `get_lr_this_step` is set) and, for mixed precision without a scaler, the loss
                scale.
            kwargs: the same by name; ``fetches`` names the outputs to return.

        Returns:
            One tensor, or a list with all described outputs; for mixed precision without a scaler
            also whether all gradients were finite.
        """
        fetches = kwargs.pop("fetches", None)
        names = list(self._core.input_names)
        rate_name = self.learning_rate_description_.name_
        needs_rate = self.get_lr_this_step_ is None
        needs_scale = self.use_mixed_precision and self.loss_scaler_ is None
        extra = [rate_name] * needs_rate + ["loss_scale"] * needs_scale
        values = _bind([*names, *extra], args, kwargs)
        missing = [n for n in (*names, *extra) if n not in values]
        if missing:
            raise InputError(f"train_step misses {missing}; it takes {[*names, *extra]}.")
        rate = (
            float(self.get_lr_this_step_(self.global_step_))
            if self.get_lr_this_step_ is not None
            else _number(rate_name, values.pop(rate_name))
        )
        scale = 1.0
        if needs_scale:
            scale = _number("loss_scale", values.pop("loss_scale"))
        elif self.use_mixed_precision and self.loss_scaler_ is not None:
            scale = self.loss_scaler_.loss_scale_
        result = self._core.train(values, rate, fetches, scale)
        self.global_step_ += result.updated
        if self._core.pending == 0 and self.use_mixed_precision and self.loss_scaler_ is not None:
            self.loss_scaler_.update_loss_scale(result.all_finite)
        outputs: list[Any] = list(result.outputs)
        if needs_scale and fetches is None:
            outputs.append(torch.tensor([result.all_finite]))
        return outputs[0] if len(outputs) == 1 else outputs

    def _start(self) -> None:
        self.session = TrainerSession(self._core, shared_step=self._shared_step)

    @exclusive
    def eval_step(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs on one batch in inference mode; without a label, those that need none."""
        fetches = kwargs.pop("fetches", None)
        values = _bind(self._core.input_names, args, kwargs)
        outputs = self._core.evaluate(values, fetches)
        return outputs[0] if len(outputs) == 1 else outputs

    @exclusive
    def train(self, mode: bool = True) -> ORTTrainerV1:
        """Let a call of the trainer be `train_step`."""
        self._training = bool(mode)
        return self

    def eval(self) -> ORTTrainerV1:
        """Let a call of the trainer be `eval_step`."""
        return self.train(False)

    @exclusive
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`train_step` or `eval_step`, as `train` and `eval` have set it."""
        return (self.train_step if self._training else self.eval_step)(*args, **kwargs)

    # --- state -----------------------------------------------------------------------------------

    @exclusive
    def state_dict(self, include_optimizer_state: bool = True) -> dict[str, torch.Tensor]:
        """Copies of all weights and, as ``Moment_1_<weight>`` …, of the optimizer's state.

        Of a model with Dropout also ``onnxtrain.random``, from which its masks follow.
        """
        engine = self._core.engine
        if engine is None:
            warnings.warn(
                "ORTTrainer has no state before the first train_step or eval_step: an empty "
                "dictionary is returned.",
                stacklevel=3,
            )
            return {}
        state = {n: torch.tensor(np.asarray(a)) for n, a in self._core.weights().items()}
        if include_optimizer_state:
            moments = engine.moments()
            for prefix, kind in MOMENTS.items():
                for name, array in moments.get(kind, {}).items():
                    state[f"{prefix}_{name}"] = torch.tensor(array)
            if moments:
                count = engine.updates + 1
                state.update(
                    (f"Update_Count_{n}", torch.tensor([count])) for n in self._core.trained()
                )
            if engine.random is not None:
                state[RANDOM_INPUT] = torch.tensor(engine.random)
        return state

    @exclusive
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = False) -> None:
        """Take over what `state_dict` gave; before the first batch it is kept until then."""
        loaded = Loaded(strict=strict, moments={kind: {} for kind in MOMENTS.values()})
        for name, value in state_dict.items():
            array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
            prefix = next((p for p in MOMENTS if name.startswith(f"{p}_")), None)
            if prefix is not None:
                loaded.moments[MOMENTS[prefix]][name.removeprefix(f"{prefix}_")] = array
            elif name.startswith("Update_Count_"):
                loaded.updates = int(np.asarray(array).reshape(-1)[0]) - 1
            elif name == RANDOM_INPUT:
                loaded.random = random_of(np.asarray(array).tolist())
            else:
                loaded.weights[name] = np.asarray(array)
        self._core.load(loaded)

    @exclusive
    def save_as_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the model with its loss and current weights, in inference mode."""
        self._core.need_engine("save_as_onnx()").save_onnx(path)


def _check_ignored(options: Mapping[str, Any]) -> None:
    """Options that change nothing here are accepted, those that would are refused."""
    harmless = {
        "_enable_internal_postprocess", "_extra_postprocess", "_use_deterministic_compute",
        "use_memory_efficient_gradient", "run_symbolic_shape_infer", "optimized_model_filepath",
        "partition_optimizer", "deepspeed_zero_stage", "enable_adasum",
    }  # fmt: skip
    for name, value in options.items():
        if name not in harmless:
            raise TypeError(f"ORTTrainer got an unexpected keyword argument {name!r}.")
        if value and name in {"partition_optimizer", "deepspeed_zero_stage", "enable_adasum"}:
            raise InputError(
                f"{name}={value!r} is not available: processes exchange whole gradients "
                "(world_size), nothing is partitioned."
            )


def _loss_name(model: Any, description: ModelDescription) -> str:
    """The first output; of an ONNX model the first it has."""
    if isinstance(model, onnx.ModelProto) and model.graph.output:
        first = model.graph.output[0].name
        if first in [o.name_ for o in description.outputs_]:
            return str(first)
    return description.outputs_[0].name_


def _bind(names: Sequence[str], args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    if len(args) > len(names):
        raise InputError(f"{len(args)} values are given for the {len(names)} inputs {list(names)}.")
    values = dict(zip(names, args))
    for name, value in named.items():
        if name not in names:
            raise UnknownNameError("input", name, list(names))
        if name in values:
            raise InputError(f"Input {name!r} is given twice.")
        values[name] = value
    return values


def _number(name: str, value: Any) -> float:
    array = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    if array.size != 1:
        raise InputError(f"{name!r} must be one number, not an array of shape {array.shape}.")
    return float(array.reshape(-1)[0])


# --- files ----------------------------------------------------------------------------------------


def save_checkpoint(
    model: ORTTrainerV1,
    checkpoint_dir: str | os.PathLike[str],
    checkpoint_prefix: str = "ORT_checkpoint",
    checkpoint_state_dict: Mapping[str, Any] | None = None,
) -> None:
    """Write a trainer's state, and what you add to it, with `torch.save`."""
    folder = Path(checkpoint_dir)
    if not folder.is_dir():
        raise FileNotFoundError(f"checkpoint_dir {str(folder)!r} is not an existing folder.")
    content = dict(checkpoint_state_dict or {})
    with model.lock:
        content["model"] = model.state_dict()
        content["global_step"] = model.global_step_
    target = folder / f"{checkpoint_prefix}.ort.pt"
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        torch.save(content, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(
    model: ORTTrainerV1,
    checkpoint_dir: str | os.PathLike[str],
    checkpoint_prefix: str = "ORT_checkpoint",
    strict: bool = False,
) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote into a trainer; gives what was added to it."""
    path = Path(checkpoint_dir) / f"{checkpoint_prefix}.ort.pt"
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint {str(path)!r}.")
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(content.pop("model"), strict=strict)
    model.global_step_ = int(content.pop("global_step", model.global_step_))
    return content
