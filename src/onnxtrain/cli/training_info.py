"""``onnxtrain training-info``: train a model as its own file says, or show what it says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .app import common
from .output import UserError, count, current

if TYPE_CHECKING:
    from ..summary import ValueSummary
    from ..training_info import Training
    from .match import Task

EPILOG = """\b
Examples:
  onnxtrain artifacts model.onnx --loss mse --output made --training-info    writes such a file
  onnxtrain training-info made/training_info.onnx
  onnxtrain training-info made/training_info.onnx --data train.npz --epochs 5 -o trained.onnx
  onnxtrain training-info trained.onnx --data more.npz -o trained.onnx       goes on
  onnxtrain training-info houses.onnx --data houses.csv --target price -o trained.onnx

\b
The loss, the optimizer and its learning rate are in the file (ONNX's TrainingInfoProto). Data are
an .npz file with arrays named after the inputs, .npy files in their order with commas between, a
.csv or .parquet file, a folder with one folder of images per class, or module:function.
The file that is written after every epoch has the new weights and the state of the optimizer, and
the same training information; other programs see the network alone.
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path())
@click.option("--data", help="Training data; without them the file is only described.")
@click.option("-o", "--output", type=click.Path(), help="File of the trained model.")
@click.option("--epochs", type=int, default=1, show_default=True, help="Passes over the data.")
@click.option("--batch-size", type=int, default=32, show_default=True, help="Rows per step.")
@click.option("--drop-last", is_flag=True, help="Leave out a last, smaller batch of each epoch.")
@click.option("--target", help="Column or array that holds the targets.")
@click.option("--features", help="Columns of a table that are the input, separated by commas.")
@click.option(
    "--index", type=int, default=0, show_default=True, help="Which algorithm, if there are several."
)
@click.option("--initialize", is_flag=True, help="Begin with fresh values, as the file says.")
@click.option(
    "--check-finite/--no-check-finite",
    default=True,
    show_default=True,
    help="Stop before a batch that makes anything NaN or infinite changes anything.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of the rows.")
@common
def command(
    model: str,
    data: str | None,
    output: str | None,
    epochs: int,
    batch_size: int,
    drop_last: bool,
    target: str | None,
    features: str | None,
    index: int,
    initialize: bool,
    check_finite: bool,
    seed: int,
) -> None:
    """Train MODEL as the training information in its file says."""
    from ..training_info import Training
    from .settings import Settings

    Settings(model, epochs=epochs, batch_size=batch_size, seed=seed).check()
    _check_places(data, output)
    training = Training(model, index)
    if initialize:
        training.initialize()
    if data is None or output is None:
        _describe(model, training, index)
        return
    rows = read_data(data, training, target, features)
    writer = _Writer(training, Path(output), epochs)
    try:
        training.fit(
            rows,
            epochs,
            batch_size,
            seed=seed,
            drop_last=drop_last,
            check_finite=check_finite,
            on_epoch=writer.write,
        )
    except BaseException:
        writer.say_where_it_stopped()
        raise
    current().show(f"  {output}")


def _check_places(data: str | None, output: str | None) -> None:
    """What belongs together, before anything is read."""
    if (data is None) != (output is None):
        raise click.UsageError(
            "--data needs -o, the file of the trained model."
            if output is None
            else "-o is the file of the trained model, and there are no --data to train it on."
        )
    target = Path(output or "trained.onnx")
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise UserError(f"-o {output}: give the name of a file in a folder that exists.")


class _Writer:
    """Writes the model after every epoch, and says what it has come to."""

    def __init__(self, training: Training, path: Path, epochs: int) -> None:
        self.training, self.path, self.epochs = training, path, epochs
        self._written = 0

    def write(self, epoch: int, means: Mapping[str, float]) -> None:
        """Save, and print a line."""
        self.training.save(self.path)
        self._written = epoch
        shown = "  ".join(f"{name} {value:.4g}" for name, value in means.items())
        current().say(f"epoch {epoch}/{self.epochs}  {shown}")

    def say_where_it_stopped(self) -> None:
        """After an interruption or an error."""
        if self._written:
            epochs = count(self._written, "epoch")
            current().say(f"{self.path} has the model after {epochs}; training goes on from it.")


def _describe(model: str, training: Training, index: int) -> None:
    """What the file says, as tables."""
    from .inspect import shown

    algorithm, output = training.algorithm, current()
    output.show(f"{model}: algorithm {index} of its training information\n")
    rows = [
        (v.name, v.dtype, shown(v.shape), "target" if v.name in algorithm.targets else "input")
        for v in _inputs(training)
    ]
    output.table("A step takes", ("name", "type", "shape", ""), rows)
    output.show(f"\nIt gives {', '.join(algorithm.outputs)}.\n")
    replaced = [(n, str(a.dtype), shown(a.shape)) for n, a in training.state.items()]
    output.table("It replaces", ("name", "type", "shape"), replaced)
    fresh = ", ".join(algorithm.resets)
    output.show(
        f"\n--initialize sets back {fresh}." if fresh else "\nThe file has no initialization."
    )


def _inputs(training: Training) -> list[ValueSummary]:
    from ..graph import load
    from ..summary import value_summary

    values = {v.name: v for v in load(training.algorithm.step).graph.inputs}
    return [value_summary(values[name]) for name in training.algorithm.inputs]


def read_data(
    where: str, training: Training, target: str | None = None, features: str | None = None
) -> Any:
    """Arrays in the names, types and shapes of a step; or batches, as they are."""
    from .match import assign, fit_input
    from .output import names_in
    from .sources import Batches, Columns, Named, Ordered, read

    source, values = read(where), _inputs(training)
    if isinstance(source, Batches):
        return source.source
    targets = training.algorithm.targets
    if len(targets) == 1:
        arrays, last = assign(source, _task(training, values, target, names_in(features)))
        arrays = {**arrays, targets[0]: last}
    elif target is not None or features is not None:
        raise UserError(
            f"--target and --features are for files with one target; this one has "
            f"{', '.join(targets) or 'none'}. Name columns and arrays as the inputs: "
            f"{', '.join(v.name for v in values)}."
        )
    elif isinstance(source, Ordered):
        arrays = _in_order(source, values)
    elif isinstance(source, Named | Columns):
        arrays = _by_name(source, values)
    else:
        raise UserError(f"{where} gives images and classes; the file takes other inputs.")
    return {v.name: fit_input(v, arrays[v.name], source.where) for v in values}


def _task(
    training: Training, values: list[ValueSummary], target: str | None, features: list[str]
) -> Task:
    """For a step with one target: data are assigned as for any training."""
    from ..summary import ValueSummary
    from .match import Task
    from .recipes import LossRecipe

    (name,) = training.algorithm.targets
    (dtype,) = (v.dtype for v in values if v.name == name)
    loss = LossRecipe("", name, "number" if dtype.startswith("float") else "class")
    return Task(values, ValueSummary("", dtype, None), loss, target, features)


def _in_order(source: Any, values: list[ValueSummary]) -> dict[str, Any]:
    names = [v.name for v in values]
    if len(source.arrays) != len(names):
        raise UserError(
            f"{source.where} has {len(source.arrays)} arrays; a step takes {len(names)}: "
            f"{', '.join(names)}."
        )
    return dict(zip(names, source.arrays))


def _by_name(source: Any, values: list[ValueSummary]) -> dict[str, Any]:
    from .sources import Named

    arrays = source.arrays if isinstance(source, Named) else source.columns
    missing = [v.name for v in values if v.name not in arrays]
    if missing:
        raise UserError(
            f"{source.where} has no {missing[0]!r}, which a step takes. It holds "
            f"{', '.join(map(repr, list(arrays)[:12]))}; name them as the inputs: "
            f"{', '.join(v.name for v in values)}."
        )
    return {v.name: arrays[v.name] for v in values}
