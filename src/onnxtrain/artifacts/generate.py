"""`generate_artifacts`: from a forward model to everything a device needs to train it."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from .. import losses, onnxblock, optim
from ..compile import Plan
from ..compile import step_model as build_step_model
from ..graph import to_proto
from ..graph.accessor import ModelAccessor
from ..graph.block import Block
from ..graph.io import read_proto, save
from ..graph.moves import Moves
from ..losses.labels import IGNORED
from ..normalize import MIN_OPSET
from ..onnxblock.checkpoint_utils import save_checkpoint
from ..onnxblock.optim import OptimizerBlock
from ..onnxblock.optim.optim import shapes_of
from ..passes import Recompute
from ..preparing import preparing
from ..runtime.files.readfile import PROTOBUF_LIMIT, file_name
from ..runtime.session.sharing import GlobalLock
from ..runtime.step.loss_scale import LOSS_SCALE
from .choose import ArtifactError, Choice, check_apart, choose
from .device import write_device_file
from .opset import at_opset
from .write import all_or_nothing

log = logging.getLogger(__name__)
_quiet = GlobalLock()
"""Held while stdout and the filters of warnings, which all threads share, are others."""


class LossType(Enum):
    """Losses that can be asked for by name; each is the block of the same name, with defaults."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4
    HuberLoss = 5
    SmoothL1Loss = 6
    NLLLoss = 7
    BCELoss = 8
    KLDivLoss = 9
    HingeLoss = 10
    CausalLMLoss = 11


WITH_LABELS = (LossType.CrossEntropyLoss, LossType.NLLLoss, LossType.CausalLMLoss)


class OptimType(Enum):
    """Optimizers that can be asked for by name; each is the block of that name, with defaults."""

    AdamW = 1
    SGD = 2
    Adam = 3
    Lamb = 4
    Adagrad = 5
    RMSprop = 6
    Adadelta = 7
    Lion = 8
    Adafactor = 9


class OptimizerTypeError(ArtifactError, TypeError):
    """The optimizer is of a type that cannot be used."""


@preparing("generating training artifacts")
def generate_artifacts(
    model: onnx.ModelProto | str | os.PathLike[str],
    requires_grad: Choice = None,
    frozen_params: Choice = None,
    loss: LossType | Block | None = None,
    optimizer: OptimType | Block | optim.Optimizer | None = None,
    artifact_directory: str | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | os.PathLike[str] | None = None,
    additional_output_names: list[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: list[str] | None = None,
    *,
    step_model: bool = False,
    training_mode: str = "preserve",
    no_gradient: Collection[str] = (),
    recompute: Recompute = None,
    ignore_index: int | None = IGNORED,
    browser: bool = False,
) -> None:
    """Write the artifacts for training a model on a device.

    The files are ``training_model.onnx``, ``eval_model.onnx``, ``checkpoint`` and, when asked for,
    ``optimizer_model.onnx``, ``nominal_checkpoint`` and ``step_model.onnx``. They hold standard
    operators only, at the opset of the model where that can be. Either all of them are written or,
    on an error, none.

    Args:
        model: the forward model, or the path of its file. Above 2 GiB pass the path: weights then
            stay on disk.
        requires_grad: what is trained: names, patterns (``"encoder.*"``), or a function of the
            name. By default what `differentiate` takes gradients of: every float initializer of
            the model that the loss depends on, but for running statistics and single numbers, and
            without `frozen_params`. Initializers in neither list stay constants inside the graph.
        frozen_params: parameters that are not trained but stay exchangeable, likewise.
            When both are empty lists, all initializers become inputs and the checkpoint is empty.
        loss: a `LossType`, a loss block, or None when the first output of the model is the loss.
        optimizer: an `OptimType`, an optimizer block, an `onnxtrain.optim` optimizer, or None.
        artifact_directory: a folder, which is made if the one around it exists; by default the
            current one.
        prefix: put before every file name.
        ort_format: also write each model in the ``.ort`` format, which `Module` and `Optimizer`
            read too.
        custom_op_library: library of custom operators that the model uses.
        additional_output_names: values that training and eval model return after the loss.
        nominal_checkpoint: also write a checkpoint without values.
        loss_input_names: values that the loss block is called with, by default all outputs.
        step_model: also write one graph that does loss, gradients and update in a single run; not
            with moments of fewer bits, which are updated by themselves.
        training_mode: "preserve" trains BatchNormalization and Dropout as the model says (export
            with ``training=TrainingMode.TRAINING`` for training mode); "auto" switches every
            BatchNormalization whose scale or bias is trained to batch statistics; "train" switches
            all BatchNormalization and Dropout nodes to training.
        no_gradient: names of nodes, or operators, whose outputs count as constants.
        recompute: what the backward half computes again instead of keeping it, which needs less
            memory and more time: a number of segments, "auto", "cheap", or the names (or patterns)
            of the values to keep. See the guide on memory.
        ignore_index: with `LossType.CrossEntropyLoss` and `LossType.NLLLoss`: the label whose
            elements do not count, in addition to the classes; None if there is none. A loss block
            says so itself.
        browser: also write ``device.json``, with which JavaScript trains. ``onnxtrain serve`` and
            ``python -m onnxtrain.artifacts.device DIR`` make it for artifacts that have none.

    Example:
        >>> import onnx, tempfile, os
        >>> from onnxtrain import artifacts
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N, 2] x) => (float[N, 1] y) <float[2, 1] w = {1, 2}> { y = MatMul(x, w) }
        ... ''')
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     artifacts.generate_artifacts(
        ...         model, loss=artifacts.LossType.MSELoss,
        ...         optimizer=artifacts.OptimType.AdamW, artifact_directory=folder)
        ...     print(*sorted(os.listdir(folder)))
        checkpoint eval_model.onnx optimizer_model.onnx training_model.onnx
    """
    loaded, path = _load(model)
    directory = _directory(artifact_directory)
    loss_block = _loss_block(loss, ignore_index)
    optimizer_block = _optimizer_block(optimizer)
    if additional_output_names is not None and not isinstance(additional_output_names, list):
        raise ArtifactError(
            "additional_output_names must be a list of names, not "
            f"{type(additional_output_names).__name__}."
        )
    block = _Training(loss_block, additional_output_names or [], training_mode, no_gradient)
    block.recompute = recompute
    has_loss = loss is not None or optimizer is not None or _ends_in_a_scalar(loaded)
    block.mark(loaded, requires_grad, frozen_params, has_loss)
    names = loss_input_names or [o.name for o in loaded.graph.output]
    with _library(custom_op_library), onnxblock.base(loaded, path) as accessor:
        block(*names)
        base_dir = accessor.base_dir
    assert block.built is not None
    training = at_opset(block.built.training, block.built.eval.opset_imports[""])
    block.built = replace(block.built, training=training)
    optimizer_model = _optimizer_model(optimizer_block, block)
    moves = Moves()
    with all_or_nothing(directory) as folder:
        save(block.built.training, folder / f"{prefix}training_model.onnx", moves=moves)
        save(block.built.eval, folder / f"{prefix}eval_model.onnx", moves=moves)
        if optimizer_model is not None:
            onnx.save(optimizer_model, folder / f"{prefix}optimizer_model.onnx")
        if step_model and not _needs_parts(optimizer_block, loaded):
            step = _step_model(optimizer_block, block)
            save(step, folder / f"{prefix}step_model.onnx", moves=moves)
        if ort_format:
            _convert_to_ort(folder, custom_op_library)
        parameters = block.parameters()
        save_checkpoint(parameters, folder / f"{prefix}checkpoint", base_dir=base_dir)
        if nominal_checkpoint:
            save_checkpoint(parameters, folder / f"{prefix}nominal_checkpoint", True)
        if browser:
            write_device_file(folder, prefix)
    if requires_grad is None and not block.parameters()[0]:
        log.warning(
            "Nothing is trained by the artifacts in %s: the model's first output is no loss, or "
            "depends on no parameter. Give a loss, or name parameters in requires_grad.",
            directory,
        )
    log.info("Artifacts written to %s", directory)


class _Training(onnxblock.TrainingBlock):
    """The user's loss, with the outputs that are wanted besides."""

    _accumulating = False

    def __init__(
        self,
        loss: Block,
        additional: Sequence[str],
        training_mode: str,
        no_gradient: Collection[str],
    ) -> None:
        super().__init__()
        self._loss, self._additional = loss, additional
        self._training_mode, self._no_gradient = training_mode, no_gradient

    def mark(
        self, model: onnx.ModelProto, requires_grad: Choice, frozen_params: Choice, has_loss: bool
    ) -> None:
        """Note what is trained and what is frozen; without a choice it is found out later."""
        trainable = choose(model, requires_grad, "requires_grad", inputs=True)
        frozen = choose(model, frozen_params, "frozen_params")
        check_apart(trainable, frozen)
        if requires_grad is None and has_loss:
            self._among = {t.name for t in model.graph.initializer}.difference(frozen)
        for name in trainable:
            self.requires_grad(name)
        if _scales_loss(model):  # the scale changes while the model is trained
            frozen = [*frozen, LOSS_SCALE]
        for name in frozen:
            self.requires_grad(name, False)

    def build(self, *names: str) -> tuple[str, ...]:
        """The loss, then what else is wanted."""
        output = self._loss(*names)
        outputs = (output,) if isinstance(output, str) else tuple(output)
        return (*outputs, *(n for n in self._additional if n not in outputs))

    def _make_plan(
        self,
        accessor: ModelAccessor,
        outputs: Sequence[str],
        model_outputs: Sequence[str],
    ) -> Plan:
        plan = super()._make_plan(accessor, outputs, model_outputs)
        if self._among is not None:
            trained = ", ".join(plan.trainable) or "nothing"
            log.info("Trained, as requires_grad is not given: %s", trained)
        return plan


def _ends_in_a_scalar(model: onnx.ModelProto) -> bool:
    """Whether the first output may be a loss: a number, or a tensor of one."""
    outputs = model.graph.output
    return bool(outputs) and all(d.dim_value == 1 for d in outputs[0].type.tensor_type.shape.dim)


def _load(model: Any) -> tuple[onnx.ModelProto, str | None]:
    if isinstance(model, onnx.ModelProto):
        if model.ByteSize() > PROTOBUF_LIMIT:
            raise ArtifactError(
                "The model is larger than 2 GiB, which one protobuf message cannot hold. Save it "
                "with external data and pass in a path."
            )
        return model, None
    if not isinstance(model, (str, os.PathLike)):
        raise ArtifactError(
            f"The model is an onnx.ModelProto or a path, not {type(model).__name__}."
        )
    path = os.fspath(model)
    return read_proto(path), path


def _directory(artifact_directory: str | os.PathLike[str] | None) -> Path:
    directory = Path.cwd() if artifact_directory is None else Path(file_name(artifact_directory))
    if not directory.is_dir() and (directory.exists() or not directory.absolute().parent.is_dir()):
        raise FileNotFoundError(
            f"The artifact directory {str(directory)!r} does not exist, nor the folder that it "
            "would be made in. Create it first."
        )
    return directory


def _loss_block(loss: Any, ignore_index: int | None) -> Block:
    if loss in WITH_LABELS:
        return getattr(losses, loss.name)(ignore_index=ignore_index)  # type: ignore[no-any-return]
    if ignore_index != IGNORED:
        raise ArtifactError(
            f"ignore_index={ignore_index} goes with a loss from labels by name, "
            f"{', '.join(f'LossType.{kind.name}' for kind in WITH_LABELS)}. Tell a loss block "
            "when it is made: onnxblock.loss.CrossEntropyLoss(ignore_index=...)."
        )
    if loss is None:
        log.info("No loss: the first output of the model is taken as the loss.")
        return onnxblock.blocks.PassThrough()
    if isinstance(loss, LossType):
        block: Block = getattr(losses, loss.name)()
        return block
    if isinstance(loss, Block):
        return loss
    raise ArtifactError(
        f"Unknown loss provided {loss!r}. Expected a LossType or an instance of onnxblock.Block."
    )


def _optimizer_block(optimizer: Any) -> Block | None:
    if optimizer is None:
        return None
    if isinstance(optimizer, OptimType):
        block: Block = getattr(onnxblock.optim, optimizer.name)()
        return block
    if isinstance(optimizer, optim.Optimizer):
        return OptimizerBlock(optimizer)
    if isinstance(optimizer, Block):
        return optimizer
    raise OptimizerTypeError(
        f"Unknown optimizer provided {optimizer!r}. Expected an OptimType, an optimizer of "
        "onnxtrain.optim or an instance of onnxblock.Block."
    )


def _library(path: str | os.PathLike[str] | None) -> Any:
    return contextlib.nullcontext() if path is None else onnxblock.custom_op_library(path)


def _optimizer_model(
    optimizer: Block | None, block: onnxblock.TrainingBlock
) -> onnx.ModelProto | None:
    if optimizer is None:
        return None
    if not block.parameters()[0]:
        raise ArtifactError(
            "An optimizer needs at least one trainable parameter. Name parameters in requires_grad."
        )
    assert block.built is not None
    opset = block.built.training.opset_imports[""]
    if isinstance(optimizer, OptimizerBlock):
        shapes = shapes_of(block.parameters()[0])
        model = optim.flat_model(optimizer.optimizer, max(opset, MIN_OPSET), shapes)
        return to_proto(at_opset(model, opset))
    with onnxblock.empty_base(opset) as accessor:
        optimizer(block.parameters())
        return accessor.model


def _needs_parts(optimizer: Block | None, model: onnx.ModelProto) -> bool:
    """Whether one graph cannot do it: moments of fewer bits, or a loss whose scale changes."""
    if isinstance(optimizer, OptimizerBlock) and optimizer.optimizer.moments != "float32":
        return True
    return _scales_loss(model)


def _scales_loss(model: onnx.ModelProto) -> bool:
    return any(tensor.name == LOSS_SCALE for tensor in model.graph.initializer)


def _step_model(optimizer: Block | None, block: onnxblock.TrainingBlock) -> ir.Model:
    if not isinstance(optimizer, OptimizerBlock):
        raise ArtifactError(
            "step_model=True needs an optimizer: an OptimType, an optimizer block of "
            "onnxtrain.onnxblock.optim or an optimizer of onnxtrain.optim."
        )
    assert block.built is not None
    return build_step_model(block.built.plan, optimizer.optimizer)


def _convert_to_ort(folder: Path, custom_op_library: str | os.PathLike[str] | None) -> None:
    from onnxruntime.tools import convert_onnx_models_to_ort as converter

    printed = io.StringIO()
    with _quiet, warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore", ResourceWarning)  # the tool leaves its files to the gc
        converter.convert_onnx_models_to_ort(
            folder,
            optimization_styles=[converter.OptimizationStyle.Fixed],
            custom_op_library_path=None if custom_op_library is None else Path(custom_op_library),
        )
    log.debug("%s", printed.getvalue())
    for extra in folder.glob("*.config"):
        extra.unlink()  # the list of operators for custom builds
