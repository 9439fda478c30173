"""``onnxtrain demo``: from an untrained model to a trained, exported one, in seconds."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .app import common
from .output import Output, UserError, current

if TYPE_CHECKING:
    from .match import Dataset
    from .run import Run

EPILOG = """\b
Examples:
  onnxtrain demo
  onnxtrain demo --output /tmp/digits --epochs 5

The digits come with the package: 1797 images of 8×8 pixels from "Optical Recognition of
Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI, CC BY 4.0), as scikit-learn has them.
"""


@click.command(epilog=EPILOG)
@click.option(
    "-o", "--output", default=None, help="Folder for the results; by default runs/digits."
)
@click.option("--epochs", default=15, show_default=True, help="Passes over the training data.")
@click.option("--seed", default=0, show_default=True, help="Of the weights, split and order.")
@click.option("--overwrite", is_flag=True, help="Throw away a run that is in the folder.")
@common
def command(output: str | None, epochs: int, seed: int, overwrite: bool) -> None:
    """Train a small convolutional digits classifier end to end.

    Builds the model, trains it on bundled data, shows loss curve, accuracy and confusion matrix,
    and exports the trained model. Needs nothing but onnxtrain itself.
    """
    import onnx

    from .demo_model import digits_network
    from .run import train_on
    from .settings import Settings

    if output is not None and Path(output, "run.json").exists() and not overwrite:
        raise UserError(
            f"{output} holds a run already. Throw it away (--overwrite) or choose another --output."
        )
    screen = current()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "digits.onnx"
        onnx.save(digits_network(seed), model)
        settings = Settings(
            str(model), "bundled digits", "cross_entropy", epochs=epochs, seed=seed, lr=2e-3,
            batch_size=32, schedule="cosine", output=output, overwrite=overwrite,
        )  # fmt: skip
        settings.check()
        from .match import Task
        from .plan import make_plan

        plan = make_plan(settings)
        task = Task(plan.summary.inputs, plan.output, plan.loss)
        training, test = split(seed)
        screen.say(
            f"{training.rows} images to train, {test.rows} to test; {len(plan.trainable)} "
            f"parameters with {sum(p.elements for p in plan.summary.parameters):,} numbers"
        )
        run = train_on(settings, plan, task, training, test, screen)
    _show(run, time.monotonic() - started, screen)


def split(seed: int) -> tuple[Dataset, Dataset]:
    """Four fifths of the digits to train, one to test, each class alike."""
    import numpy as np

    from ..data import digits
    from .match import Dataset

    images, labels = digits()
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    tested = np.sort(order[::5])
    trained = np.setdiff1d(order, tested)
    where = "the bundled digits"
    return (
        Dataset({"image": images[trained], "labels": labels[trained]}, where=where),
        Dataset({"image": images[tested], "labels": labels[tested]}, where=where),
    )


def _show(run: Run, seconds: float, screen: Output) -> None:
    from .charts import confusion, sparkline
    from .report import confusion_matrix

    confusions = confusion_matrix(run)
    assert confusions is not None
    matrix, names = confusions
    run.files += confusion(matrix, names, "Digits: true and predicted").write(
        run.folder / "confusion"
    )
    losses = run.history["loss"]
    screen.show(f"loss      {sparkline(losses)}  {losses[0]:.3f} → {losses[-1]:.4f}")
    accuracy = run.history["val_accuracy"]
    screen.show(f"accuracy  {sparkline(accuracy)}  {accuracy[0]:.1%} → {accuracy[-1]:.1%}")
    screen.show("")
    _show_matrix(matrix.tolist(), names, screen)
    screen.show(f"\nTest accuracy {accuracy[-1]:.2%} after {seconds:.0f} s. Written:")
    for file in run.files:
        screen.show(f"  {file}")


def _show_matrix(matrix: list[list[int]], names: list[str], screen: Output) -> None:
    from rich.text import Text

    console = screen.out
    head = "".join(f"{n:>5}" for n in names)
    console.print(f"true \\ predicted\n    {head}", markup=False, highlight=False)
    for i, row in enumerate(matrix):
        line = Text(f"{names[i]:>4}")
        for j, number in enumerate(row):
            style = "dim" if not number else "bold green" if i == j else "bold red"
            line.append(f"{number or '·':>5}", style=style)
        console.print(line)
