"""ORTTrainer of the second generation: description and options as dictionaries."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from ....errors import InputError
from ....runtime.session.sharing import exclusive
from ....torch.export import LossFunction
from ..parameters import what_to_recompute
from . import checkpoint
from . import checkpoint_storage as storage
from .amp import DynamicLossScaler, LossScaler
from .base import ORTTrainer
from .core import Core, Settings
from .descriptions import DescriptionError
from .engine import SCALE_INPUT
from .model_desc_validation import ALL_FINITE_IO_DESCRIPTION_NAME, TrainerDescription
from .optim import ConfigError, _OptimizerConfig
from .options import ORTTrainerOptions
from .state import Loaded, check_keys, random_of
from .trainer_v1 import _bind
from .training_session import MOMENTS, TrainerSession
from .training_utils import dtype_onnx_to_torch

SECTIONS = ("model", "optimizer", "train_step_info")


class StepInfoError(InputError, AssertionError):
    """A `TrainStepInfo` that cannot be."""


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
            raise StepInfoError("optimizer_config must be an optimizer configuration of optim.")
        if not isinstance(self.all_finite, bool):
            raise StepInfoError("all_finite must be a boolean.")
        if not isinstance(self.fetches, list) or not all(isinstance(f, str) for f in self.fetches):
            raise StepInfoError("fetches must be a list of names.")
        for name in ("optimization_step", "step"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise StepInfoError(f"{name} must be a number from 0 on, not {value!r}.")


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
        self.model_desc = TrainerDescription(model_desc)
        (inputs, outputs), loss = self.model_desc.described, self.model_desc.loss
        if loss is None:
            raise DescriptionError(
                "Invalid model_desc: {'outputs': ['one output must be the loss: "
                "(name, shape, True)']}"
            )
        self.options: ORTTrainerOptions = (
            options if isinstance(options, ORTTrainerOptions) else ORTTrainerOptions(options)
        )
        self.optim_config, self.loss_fn = optim_config, loss_fn
        self._model = model
        self._training_session: TrainerSession | None = None
        self._load_state_dict: Callable[[], None] | None = None
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
            on_start=self._start,
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
            "deepspeed_zero_optimization": distributed.world_size > 1
            and distributed.deepspeed_zero_optimization.stage > 0,
            "enable_adasum": distributed.enable_adasum,
        }
        wrong = [name for name, asked in refused.items() if asked]
        if wrong:
            raise InputError(
                f"{', '.join(wrong)} is not available: processes train on their own data and "
                "exchange whole gradients (distributed.world_size), nothing else is divided."
            )

    def _start(self) -> None:
        """There is an engine now: complete the description, take over the state that waits."""
        engine = self._core.need_engine("train_step()")
        types = {
            v.name: dtype_onnx_to_torch(v.type.tensor_type.elem_type)
            for v in (*engine.base.graph.input, *engine.base.graph.output)
        }
        desc = self.model_desc
        for index, described in enumerate(desc.inputs):
            if types.get(described.name) is not None:  # the export leaves unused inputs out
                desc.add_type_to_input_description(index, types[described.name])
        for index, output in enumerate(desc.outputs):
            desc.add_type_to_output_description(index, types[output.name])
        if self._scaled:
            desc.loss_scale_input = SCALE_INPUT
            desc.all_finite = ALL_FINITE_IO_DESCRIPTION_NAME
        self.__dict__.pop("_onnx_model", None)
        lamb = self.optim_config.name == "LambOptimizer"
        self._training_session = TrainerSession(self._core, shared_step=lamb)
        try:
            if self._load_state_dict is not None:
                self._load_state_dict()
        except BaseException:
            self._training_session = None
            raise

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
        session = self._training_session
        if session is None:
            warnings.warn(
                "ONNX Runtime training session is not initialized yet. Please run train_step or "
                "eval_step at least once before calling ORTTrainer.state_dict().",
                stacklevel=3,
            )
            return {}
        weights = {kind: dict(arrays) for kind, arrays in session.get_model_state().items()}
        if pytorch_format:
            return {n: torch.from_numpy(a) for n, a in weights["full_precision"].items()}
        state: dict[str, Any] = {"model": weights, "optimizer": session.get_optimizer_state()}
        distributed, info = self.options.distributed, self._train_step_info
        stage = distributed.deepspeed_zero_optimization.stage
        state["trainer_options"] = {
            "mixed_precision": self._scaled,
            "zero_stage": stage,
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
        if stage > 0:
            state["partition_info"] = session.get_partition_info_map()
        engine = self._core.engine
        if engine is not None and engine.random is not None:
            state["random"] = list(engine.random)
        if self._scaler is not None:
            state["loss_scaler"] = self._scaler.state_dict()
        return state

    @exclusive
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Take over what `state_dict` gave; before the first batch it is kept until then.

        Args:
            state_dict: in either of its formats.
            strict: names must be those of the model and its optimizer, no more and no less. A whole
                section that is missing is a warning: a state saved without the optimizer's, say.
        """
        sections = _sections(state_dict)
        self._check_optimizer(sections)
        if self._training_session is None:
            self._load_state_dict = partial(self._load_tensors, state_dict, strict)
        else:
            self._load_tensors(state_dict, strict)
        self._load_progress(sections)  # at once: the schedule asks for it before the first batch

    def _load_tensors(self, state_dict: Mapping[str, Any], strict: bool) -> None:
        sections = _sections(state_dict)
        if strict:
            check_keys(self.state_dict(), sections)
        for key in SECTIONS if sections is state_dict else ():
            if key not in sections:
                warnings.warn(f"Missing key: {key} in state_dict", stacklevel=4)
        self._core.load(_loaded(sections, strict=strict and "model" in sections))
        self._load_state_dict = None

    def _load_progress(self, sections: Mapping[str, Any]) -> None:
        info, steps = sections.get("train_step_info", {}), self._train_step_info
        steps.optimization_step = int(info.get("optimization_step", steps.optimization_step))
        steps.step = int(info.get("step", steps.step))
        if self._scaler is not None and "loss_scaler" in sections:
            self._scaler.load_state_dict(dict(sections["loss_scaler"]))

    def _check_optimizer(self, state_dict: Mapping[str, Any]) -> None:
        written = state_dict.get("trainer_options", {})
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
            user_dict: numbers, strings, lists, dictionaries, arrays and tensors of your own.
            include_optimizer_states: needed to continue exactly.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the warning is about is an error here
            state = self.state_dict()
        if not state:
            self._core.need_engine("save_checkpoint()")
        if not include_optimizer_states:
            del state["optimizer"]
        if user_dict:
            state["user_dict"] = storage.to_serialized_hex(user_dict)
        storage.save(state, path)

    @exclusive
    def load_checkpoint(
        self, *paths: str | os.PathLike[str], strict: bool = True
    ) -> dict[str, Any]:
        """Read a checkpoint, or those that several processes wrote; gives the user's dictionary."""
        if not paths:
            raise InputError("load_checkpoint needs the path of at least one checkpoint.")
        options = storage.load(paths[0], key="trainer_options")
        if len(paths) > 1 or checkpoint.is_divided(options):
            state = checkpoint.aggregate_checkpoints(paths, pytorch_format=False)
        else:
            state = storage.load(paths[0])
        text = state.pop("user_dict") if "user_dict" in state else None
        self.load_state_dict(state, strict=strict)
        return {} if text is None else storage.from_serialized_hex(text)

    @exclusive
    def save_as_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the model with its loss and current weights, in inference mode."""
        self._core.need_engine("save_as_onnx()").save_onnx(path)
        if "_onnx_model" in self.__dict__:  # who has looked at it sees what was saved
            self._onnx_model = onnx.load(path)

    @cached_property
    def _onnx_model(self) -> onnx.ModelProto | None:
        """The model as `save_as_onnx` would write it when it is first asked for.

        From then on it changes when the model is saved. Before the first batch it is the model that
        was given in ONNX, or None.
        """
        engine = self._core.engine
        if engine is None:
            return self._model if isinstance(self._model, onnx.ModelProto) else None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            engine.save_onnx(path)
            return onnx.load(path)


def _sections(state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """A whole state as it is; weights alone, as torch has them, become one."""
    if any(isinstance(state_dict.get(key), Mapping) for key in SECTIONS):
        return state_dict
    return {"model": {"full_precision": state_dict}}


def _loaded(sections: Mapping[str, Any], *, strict: bool) -> Loaded:
    """What a state dictionary has for the engine."""
    weights = sections.get("model", {}).get("full_precision", {})
    loaded = Loaded(weights={n: np.asarray(a) for n, a in weights.items()}, strict=strict)
    for name, entry in sections.get("optimizer", {}).items():
        for key, kind in MOMENTS.items():
            if key in entry:
                loaded.moments.setdefault(kind, {})[name] = np.asarray(entry[key])
        counts = [entry[key] for key in ("Update_Count", "step", "Step") if key in entry]
        if counts:
            loaded.updates = int(np.asarray(counts[0]).reshape(-1)[0]) - 1
    if "random" in sections:
        loaded.random = random_of(sections["random"])
    return loaded
