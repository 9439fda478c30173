"""``onnxtrain qat``: train a model that rounds as its integers will, and write those."""

from __future__ import annotations

from typing import Any

import click

from .train import command as train
from .train import run_training

EPILOG = """\b
Examples:
  onnxtrain qat model.onnx --data train.npz --val val.npz --loss cross_entropy --lr 1e-4
  onnxtrain qat model.onnx --data images/ --loss cross_entropy --weight-bits 4 --eight-bits 'fc*'
  onnxtrain qat model.onnx --data train.npz --loss mse --observer percentile --percentile 99.9
  onnxtrain qat static.onnx --data train.npz --loss cross_entropy --epochs 2

\b
Ranges of activations begin with what the first rows of --data show; scales are trained with the
weights. A model that is quantised already (QDQ) goes on with its own scales.
The folder of the run gets what onnxtrain train writes; its model.onnx has integers (QDQ) and runs
in onnxruntime as it is. All other options are those of onnxtrain train.
"""
OPTIONS = [
    click.Option(
        ["--weight-bits"], type=int, default=8, show_default=True, help="Of each weight: 8 or 4."
    ),
    click.Option(
        ["--activation-bits"],
        type=int,
        default=8,
        show_default=True,
        help="Of each activation: 8, 16 or 4; 0 leaves them floats.",
    ),
    click.Option(
        ["--per-channel/--per-tensor"],
        default=True,
        show_default=True,
        help="A scale for each output of a weight, or one for all.",
    ),
    click.Option(
        ["--observer"],
        default="minmax",
        show_default=True,
        help="Of activations: minmax, percentile or entropy.",
    ),
    click.Option(
        ["--percentile"],
        type=float,
        default=99.99,
        show_default=True,
        help="Values in % that the observer percentile leaves inside.",
    ),
    click.Option(
        ["--calibration-rows"], type=int, default=256, show_default=True, help="Rows observed."
    ),
    click.Option(
        ["--learn-scales/--fixed-scales"],
        default=True,
        show_default=True,
        help="Train the scales, or leave them where they begin.",
    ),
    click.Option(["--exclude"], help="Layers that stay floats: patterns with commas between."),
    click.Option(["--eight-bits"], help="Layers whose weights have 8 bits, in the same form."),
]


@click.command(epilog=EPILOG)
@click.pass_context
def command(ctx: click.Context, /, config: str | None, **options: Any) -> None:
    """Train MODEL for integers: it learns with the rounding that it will have."""
    run_training(ctx, config, {**options, "qat": True})


command.params = [train.params[0], *OPTIONS, *train.params[1:]]
