"""ORTTrainer of the second generation: description and options as dictionaries."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import torch

from ....errors import InputError
from ....runtime.session.sharing import exclusive
from ....torch.export import LossFunction
from ..parameters import what_to_recompute
from . import checkpoint
from .amp import DynamicLossScaler, LossScaler
from .base import ORTTrainer
from .core import Core, Settings
from .descriptions import DescriptionError, from_dict
from .engine import SCALE_INPUT
from .optim import ConfigError, _OptimizerConfig
from .options import ORTTrainerOptions
from .state import Loaded, random_of
from .trainer_v1 import MOMENTS, _bind


@dataclass
class TrainStepInfo:
    """Where the training is, for schedules and loss scalers.

    Attributes:
        optimizer_config: the optimizer's configuration.
        all_finite: whether the gradients of the last step were finite.
        fetches: outputs that the next `train_step` or `eval_step` returns; empty for all.
        optimization_step: number of updates so far.
        step: number of batches so far.
    """

    optimizer_config: _OptimizerConfig
    all_finite: bool = True
    fetches: list[str] = field(default_factory=list)
    optimization_step: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.optimizer_config, _OptimizerConfig):
            raise InputError("optimizer_config must be an optimizer configuration of optim.")
        if not isinstance(self.all_finite, bool):
            raise InputError("all_finite must be a boolean.")
        if not isinstance(self.fetches, list) or not all(isinstance(f, str) for f in self.fetches):
            raise InputError("fetches must be a list of names.")
        for name in ("optimization_step", "step"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise InputError(f"{name} must be a number from 0 on, not {value!r}.")


class ORTTrainerV2(ORTTrainer):
    """Trains a torch module or an ONNX model; see `ORTTrainer` for the call.

    Args:
        model: a torch module, or an ONNX model whose outputs include the loss.
        model_desc: ``{"inputs": [(name, [dims])…], "outputs": [(name, [dims][, is_loss])…]}``.
            Inputs have the names of the parameters of `forward`; with `loss_fn` the label is the
            last input and the loss the first output. Dimensions given as strings may change.
        optim_config: an `optim.SGDConfig`, `optim.AdamConfig` or `optim.LambConfig`.
        loss_fn: ``loss_fn(prediction, label)``; None if the model computes its loss itself.
        options: an `ORTTrainerOptions`, or a dictionary for one.

    Example:
        >>> from onnxtrain.torch import ORTTrainer, optim
        >>> desc = {"inputs": [("input", ["batch", 4]), ("label", ["batch"])],
        ...         "outputs": [("loss", [], True), ("output", ["batch", 3])]}
        >>> trainer = ORTTrainer(torch.nn.Linear(4, 3), desc, optim.SGDConfig(lr=0.1),
        ...                      loss_fn=torch.nn.CrossEntropyLoss())
        >>> x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
        >>> losses = [float(trainer.train_step(x, y)[0]) for _ in range(5)]
        >>> losses[4] < losses[0]
        True
    """

    def __init__(
        self,
        model: torch.nn.Module | onnx.ModelProto,
        model_desc: Mapping[str, Any],
        optim_config: _OptimizerConfig,
        loss_fn: LossFunction | None = None,
        options: ORTTrainerOptions | Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(optim_config, _OptimizerConfig):
            raise ConfigError("'optim_config' is required and must be any of 'AdamConfig', "
                              "'LambConfig' or 'SGDConfig'")  # fmt: skip
        if loss_fn is not None and not callable(loss_fn):
            raise InputError("'loss_fn' must be a function or a torch.nn.Module.")
        inputs, outputs, loss = from_dict(model_desc)
        if loss is None:
            raise DescriptionError(
                "Invalid model_desc: {'outputs': ['one output must be the loss: "
                "(name, shape, True)']}"
            )
        self.options: ORTTrainerOptions = (
            options if isinstance(options, ORTTrainerOptions) else ORTTrainerOptions(options)
        )
        self.model_desc, self.optim_config, self.loss_fn = model_desc, optim_config, loss_fn
        self._model = model
        self._check_distribution()
        scaler = self.options.mixed_precision.loss_scaler
        if self.options.mixed_precision.enabled and scaler is None:
            scaler = DynamicLossScaler()
        self._scaler: LossScaler | None = scaler if self._scaled else None
        if self._scaler is not None:
            self._scaler.input_name = SCALE_INPUT
        postprocess = self.options._internal_use.extra_postprocess
        self._share()
        self._core = Core(
            model,
            loss_fn,
            inputs,
            outputs,
            loss,
            Settings(
                lambda names: optim_config.build(names, clip=self.options.utils.grad_norm_clip),
                frozen=self.options.utils.frozen_weights,
                accumulate=self.options.batch.gradient_accumulation_steps,
                scaled=self._scaled,
                device=self.options.device.id,
                session_options=self.options.session_options,
                exporter=self.options.exporter,
                opset=self.options._internal_use.onnx_opset_version,
                world_size=self.options.distributed.world_size,
                world_rank=self.options.distributed.world_rank,
                by_name=True,
                postprocess=[postprocess] if postprocess is not None else [],
                graph_paths=vars(self.options.debug.graph_save_paths),
                check_export=self.options.debug.check_model_export,
                check_finite=self.options.utils.check_finite,
                recompute=what_to_recompute(self.options.graph_transformer),
                fixed_values=self.options.debug.fixed_values,
            ),
        )
        self._train_step_info = TrainStepInfo(optim_config)

    @property
    def _scaled(self) -> bool:
        return bool(self.options.mixed_precision.enabled)

    def _check_distribution(self) -> None:
        distributed = self.options.distributed
        refused = {
            "horizontal_parallel_size": distributed.horizontal_parallel_size > 1,
            "pipeline_parallel": distributed.pipeline_parallel.pipeline_parallel_size > 1,
            "deepspeed_zero_optimization": distributed.deepspeed_zero_optimization.stage > 0,
            "enable_adasum": distributed.enable_adasum,
        }
        wrong = [name for name, asked in refused.items() if asked]
        if wrong:
            raise InputError(
                f"{', '.join(wrong)} is not available: processes train on their own data and "
                "exchange whole gradients (distributed.world_size), nothing else is divided."
            )

    # --- steps -----------------------------------------------------------------------------------

    @exclusive
    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch: inputs and label in order, or by name.

        Returns:
            One tensor, or a list with the described outputs (those in `TrainStepInfo.fetches`).
        """
        info, scheduler = self._train_step_info, self.options.lr_scheduler
        values = self._values(args, kwargs)
        if scheduler is not None:
            scheduler._step(info)
            rate = scheduler.get_last_lr()[0]
        else:
            rate = self.optim_config.lr
        scale = self._scaler.loss_scale if self._scaler is not None else 1.0
        result = self._core.train(values, rate, info.fetches or None, scale)
        info.step += 1
        info.optimization_step += result.updated
        if self._scaler is not None and self._core.pending == 0:
            info.all_finite = result.all_finite
            self._scaler.update(info)
        return result.outputs[0] if len(result.outputs) == 1 else result.outputs

    @exclusive
    def eval_step(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs on one batch in inference mode; without a label, those that need none."""
        values = _bind(self._core.input_names, args, kwargs)
        outputs = self._core.evaluate(values, self._train_step_info.fetches or None)
        return outputs[0] if len(outputs) == 1 else outputs

    def _values(self, args: Any, kwargs: Any) -> dict[str, Any]:
        values = _bind(self._core.input_names, args, kwargs)
        missing = [n for n in self._core.input_names if n not in values]
        if missing:
            raise InputError(f"Missing input(s) {missing}; described are {self._core.input_names}.")
        return values

    # --- state -----------------------------------------------------------------------------------

    @exclusive
    def state_dict(self, pytorch_format: bool = False) -> dict[str, Any]:
        """All weights, the optimizer's state and where the training is.

        Args:
            pytorch_format: only the weights, as ``{name: tensor}``, which the module loads.
        """
        engine = self._core.engine
        if engine is None:
            warnings.warn(
                "ORTTrainer has no state before the first train_step or eval_step: an empty "
                "dictionary is returned.",
                stacklevel=3,
            )
            return {}
        weights = {n: np.array(a) for n, a in self._core.weights().items()}
        if pytorch_format:
            return {n: torch.from_numpy(a) for n, a in weights.items()}
        state: dict[str, Any] = {"model": {"full_precision": weights}}
        moments, count = engine.moments(), np.array([engine.updates + 1], np.int64)
        lamb = self.optim_config.name == "LambOptimizer"
        state["optimizer"] = {}
        for name in self._core.trained() if moments else []:
            entry = {k: moments[kind][name].copy() for k, kind in MOMENTS.items()}
            state["optimizer"][name] = entry if lamb else {**entry, "Update_Count": count.copy()}
        if lamb:
            state["optimizer"]["shared_optimizer_state"] = {"step": count}
        distributed, info = self.options.distributed, self._train_step_info
        state["trainer_options"] = {
            "mixed_precision": self._scaled,
            "zero_stage": distributed.deepspeed_zero_optimization.stage,
            "world_rank": distributed.world_rank,
            "world_size": distributed.world_size,
            "optimizer_name": self.optim_config.name,
            "data_parallel_size": distributed.data_parallel_size,
            "horizontal_parallel_size": distributed.horizontal_parallel_size,
        }
        state["train_step_info"] = {
            "optimization_step": info.optimization_step,
            "step": info.step,
        }
        if engine.random is not None:
            state["random"] = list(engine.random)
        if self._scaler is not None:
            state["loss_scaler"] = self._scaler.state_dict()
        return state

    @exclusive
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Take over what `state_dict` gave; before the first batch it is kept until then.

        Args:
            state_dict: in either of its formats.
            strict: names must be those of the model, no more and no less.
        """
        weights = state_dict.get("model", {}).get("full_precision") if "model" in state_dict else (
            state_dict
        )  # fmt: skip
        loaded = Loaded(
            weights={n: np.asarray(a) for n, a in (weights or {}).items()}, strict=strict
        )
        optimizer = state_dict.get("optimizer", {}) if "model" in state_dict else {}
        for name, entry in optimizer.items():
            if name == "shared_optimizer_state":
                loaded.updates = int(np.asarray(entry["step"]).reshape(-1)[0]) - 1
                continue
            for key, kind in MOMENTS.items():
                if key in entry:
                    loaded.moments.setdefault(kind, {})[name] = np.asarray(entry[key])
            if "Update_Count" in entry:
                loaded.updates = int(np.asarray(entry["Update_Count"]).reshape(-1)[0]) - 1
        if "model" in state_dict and "random" in state_dict:
            loaded.random = random_of(state_dict["random"])
        self._check_optimizer(state_dict)
        self._core.load(loaded)
        info = state_dict.get("train_step_info", {}) if "model" in state_dict else {}
        self._train_step_info.optimization_step = int(
            info.get("optimization_step", self._train_step_info.optimization_step)
        )
        self._train_step_info.step = int(info.get("step", self._train_step_info.step))
        if self._scaler is not None and "loss_scaler" in state_dict:
            self._scaler.load_state_dict(dict(state_dict["loss_scaler"]))

    def _check_optimizer(self, state_dict: Mapping[str, Any]) -> None:
        written = state_dict.get("trainer_options", {}) if "model" in state_dict else {}
        name = written.get("optimizer_name", self.optim_config.name)
        if name != self.optim_config.name and state_dict.get("optimizer"):
            raise InputError(
                f"The state is that of {name}, this trainer has {self.optim_config.name}. Save it "
                "with include_optimizer_states=False, or leave 'optimizer' out of it."
            )

    @exclusive
    def save_checkpoint(
        self,
        path: str | os.PathLike[str],
        user_dict: Mapping[str, Any] | None = None,
        include_optimizer_states: bool = True,
    ) -> None:
        """Write the state to a file (safetensors), atomically.

        Args:
            path: the file.
            user_dict: numbers, strings, lists and dictionaries of your own.
            include_optimizer_states: needed to continue exactly.
        """
        self._core.need_engine("save_checkpoint()")
        state = self.state_dict()
        if not include_optimizer_states:
            state["optimizer"] = {}
        checkpoint.write(path, state, user_dict or {})

    @exclusive
    def load_checkpoint(
        self, *paths: str | os.PathLike[str], strict: bool = True
    ) -> dict[str, Any]:
        """Read a checkpoint, or those that several processes wrote; gives the user's dictionary."""
        if not paths:
            raise InputError("load_checkpoint needs the path of at least one checkpoint.")
        states = [checkpoint.read(p) for p in paths]
        state, user_dict = states[0]
        if len(states) > 1:
            state = checkpoint.merge([s for s, _ in states])
        self.load_state_dict(state, strict=strict)
        return user_dict

    @exclusive
    def save_as_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the model with its loss and current weights, in inference mode."""
        self._core.need_engine("save_as_onnx()").save_onnx(path)
