"""``onnxtrain artifacts``: the files that a device trains with."""

from __future__ import annotations

from pathlib import Path

import click

from .app import common
from .output import UserError, current, size
from .recipes import IGNORED, OPTIMIZERS

DEFAULT_RATE = 1e-3
EPILOG = """\b
Examples:
  onnxtrain artifacts model.onnx --loss cross_entropy --output artifacts
  onnxtrain artifacts model.onnx --loss mse --optimizer sgd --momentum 0.9 --freeze 'encoder.*' \\
      --output artifacts --step-model
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(), help="Folder; made if missing.")
@click.option("--loss", required=True, help="As for onnxtrain train.")
@click.option(
    "--optimizer", default="adamw", show_default=True, help=f"One of {', '.join(OPTIMIZERS)}."
)
@click.option("--freeze", multiple=True, help="Parameters not to train, e.g. 'encoder.*'.")
@click.option("--train", multiple=True, help="Parameters to train, instead of all.")
@click.option(
    "--loss-output",
    help="Output, or value inside the model, that the loss compares; by default the first output.",
)
@click.option(
    "--ignore-index",
    type=int,
    default=IGNORED,
    show_default=True,
    help="Label that does not count, beside the class numbers.",
)
@click.option("--clip-norm", type=float, help="Limit of the gradient's global norm.")
@click.option("--weight-decay", type=float, help="Of the optimizer, where it has one.")
@click.option("--momentum", type=float, help="Of sgd and rmsprop.")
@click.option("--prefix", default="", help="Put before every file name.")
@click.option("--step-model", is_flag=True, help="Also one graph for loss, gradient and update.")
@click.option(
    "--training-info",
    is_flag=True,
    help="Also training_info.onnx: the model with ONNX's own description of its training.",
)
@click.option("--learning-rate", type=float, help="In training_info.onnx, which has one.")
@click.option("--ort-format", is_flag=True, help="Also write .ort files.")
@click.option("--nominal-checkpoint", is_flag=True, help="Also a checkpoint without values.")
@click.option("--training-mode", default="auto", show_default=True, help="auto, preserve, train.")
@click.option("--recompute", help="Save memory: auto, cheap, a number of segments, or names.")
@common
def command(
    model: str,
    output: str,
    loss: str,
    optimizer: str,
    freeze: tuple[str, ...],
    train: tuple[str, ...],
    loss_output: str | None,
    ignore_index: int,
    clip_norm: float | None,
    weight_decay: float | None,
    momentum: float | None,
    prefix: str,
    step_model: bool,
    training_info: bool,
    learning_rate: float | None,
    ort_format: bool,
    nominal_checkpoint: bool,
    training_mode: str,
    recompute: str | None,
) -> None:
    """Write the training artifacts of MODEL: training, eval and optimizer model, checkpoint."""
    from ..artifacts import generate_artifacts
    from ..runtime.files.atomic import write_atomically
    from ..training_info import add as add_training_info
    from .output import one_of
    from .plan import make_plan, matches
    from .recipes import loss_block, make_optimizer
    from .settings import Settings, read_recompute

    if learning_rate is not None and not training_info:
        raise UserError(
            "--learning-rate goes with --training-info; artifacts have none: Optimizer and "
            "onnxtrain train set it."
        )
    one_of(training_mode, ("auto", "preserve", "train"), "--training-mode")
    settings = Settings(
        model, loss=loss, optimizer=optimizer, freeze=freeze, train=train, clip_norm=clip_norm,
        loss_output=loss_output, training_mode=training_mode, weight_decay=weight_decay,
        momentum=momentum, ignore_index=ignore_index,
    )  # fmt: skip
    settings.check()
    plan = make_plan(settings)
    recipe = make_optimizer(
        optimizer, weight_decay=weight_decay, momentum=momentum, clip_norm=clip_norm
    )
    folder = Path(output)
    existed = folder.is_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {folder} cannot be made: {error.strerror}.") from error
    try:
        generate_artifacts(
            model,
            requires_grad=plan.trainable,
            frozen_params=[n for n in plan.frozen if matches(n, freeze)] or None,
            loss=loss_block(loss, ignore_index),
            optimizer=recipe,
            artifact_directory=folder,
            prefix=prefix,
            ort_format=ort_format,
            nominal_checkpoint=nominal_checkpoint,
            loss_input_names=[plan.output.name],
            step_model=step_model,
            training_mode=training_mode,
            recompute=read_recompute(recompute),
            browser=True,
        )
        if training_info:
            described = add_training_info(
                model,
                loss_block(loss, ignore_index),
                recipe,
                learning_rate=DEFAULT_RATE if learning_rate is None else learning_rate,
                trainable=plan.trainable,
                loss_input_names=[plan.output.name],
            )
            content = described.SerializeToString()
            write_atomically(folder / f"{prefix}training_info.onnx", [content])
    except BaseException:
        if not existed:
            folder.rmdir()
        raise
    screen = current()
    screen.show(f"{len(plan.trainable)} parameters are trained, {len(plan.frozen)} are not")
    for file in sorted(folder.glob(f"{prefix}*")):
        screen.show(f"  {file}  {size(file.stat().st_size)}")
