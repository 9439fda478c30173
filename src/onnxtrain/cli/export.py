"""``onnxtrain export``: an inference model from a checkpoint and artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .app import common
from .output import UserError, current, names_in, size
from .sign_option import check, sign_option, signed

if TYPE_CHECKING:
    from ..runtime.state.training_state import TrainingState

EPILOG = """\b
Examples:
  onnxtrain export runs/model/checkpoint --artifacts runs/model/artifacts -o trained.onnx
  onnxtrain export runs/model -o trained.onnx
  onnxtrain export runs/model -o features.onnx --outputs embedding
"""


@click.command(epilog=EPILOG)
@click.argument("checkpoint", type=click.Path())
@click.option("--artifacts", type=click.Path(), help="Folder of the artifacts.")
@click.option("--prefix", default="", help="Of the artifacts' names.")
@click.option("--outputs", help="Outputs to keep, separated by commas; by default the model's.")
@click.option("-o", "--output", required=True, type=click.Path(), help="File to write.")
@sign_option
@common
def command(
    checkpoint: str,
    artifacts: str | None,
    prefix: str,
    outputs: str | None,
    output: str,
    sign: str | None,
) -> None:
    """Write an inference model with the parameters of CHECKPOINT.

    CHECKPOINT is a checkpoint file, or the folder of a run or of artifacts.
    """
    from ..runtime.state.checkpoint_state import CheckpointState
    from ..runtime.step.export import export

    check(sign)
    file, folder = _find(Path(checkpoint), artifacts, prefix)
    model = folder / f"{prefix}eval_model.onnx"
    if not model.is_file():
        raise UserError(
            f"There is no {model}. Name the folder with {prefix}eval_model.onnx with --artifacts."
        )
    target = Path(output)
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise UserError(f"-o {output}: give the name of a file in a folder that exists.")
    state = CheckpointState.load_checkpoint(file).training_state
    names = names_in(outputs)
    export(str(model), state, target, names or _predictions(model, state))
    for written in [target, *signed(target, sign)]:
        current().show(f"{written}  {size(written.stat().st_size)}")


def _predictions(model: Path, state: TrainingState) -> list[str]:
    """Outputs of the model that the artifacts were made from."""
    from ..runtime.step.artifact import load_artifact

    outputs = load_artifact(str(model), "eval", state).model_outputs
    if not outputs:
        raise UserError(
            f"{model} does not say which of its values are predictions (old artifacts do not). "
            "Name them with --outputs; onnxtrain draw shows their names."
        )
    return outputs


def _find(checkpoint: Path, artifacts: str | None, prefix: str) -> tuple[Path, Path]:
    """The checkpoint file and the folder of the artifacts."""
    if not checkpoint.exists():
        raise UserError(f"There is no checkpoint {str(checkpoint)!r}.")
    file = checkpoint / f"{prefix}checkpoint" if checkpoint.is_dir() else checkpoint
    if not file.is_file():
        raise UserError(f"There is no checkpoint in the folder {str(checkpoint)!r}.")
    if artifacts is not None:
        return file, Path(artifacts)
    beside = file.parent / "artifacts"
    return file, beside if beside.is_dir() else file.parent
