"""``onnxtrain quantize``: weights of a few bits, as the base for adapters."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from .adapting import targets_of
from .app import common
from .output import UserError, current, size

EPILOG = """\b
Examples:
  onnxtrain quantize model.onnx --bits 4 --block-size 32 -o base.onnx
  onnxtrain quantize model.onnx --bits 8 --exclude lm_head -o base.onnx
  onnxtrain quantize model.onnx --dtype bfloat16 -o base.onnx
  onnxtrain lora base.onnx --data train.npz --loss cross_entropy

\b
The layers become MatMulNBits of onnxruntime, by its own tool. onnxtrain lora trains adapters beside
them; the weights stay in their few bits, in memory too. With --dtype they are numbers of 16 bits,
cast to float32 where they are read: onnxruntime's CPU kernels compute in float32.
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path())
@click.option("--bits", type=int, default=4, show_default=True, help="Of each weight: 4 or 8.")
@click.option(
    "--block-size", type=int, default=32, show_default=True, help="Weights that share a scale."
)
@click.option(
    "--dtype",
    type=click.Choice(["float16", "bfloat16"]),
    help="Numbers of half precision, instead of --bits.",
)
@click.option("--targets", help="Layers: an expression, or patterns with commas between them.")
@click.option("--exclude", help="Layers that stay as they are, in the same form.")
@click.option("--embeddings", is_flag=True, help="Tables of embeddings too (4 bits only).")
@click.option("--zero-points", is_flag=True, help="A zero point for each block: a little nearer.")
@click.option("-o", "--output", required=True, type=click.Path(), help="File to write.")
@common
def command(
    model: str,
    bits: int,
    block_size: int,
    dtype: str | None,
    targets: str | None,
    exclude: str | None,
    embeddings: bool,
    zero_points: bool,
    output: str,
) -> None:
    """Store the weights of MODEL's linear layers in a few bits, or in half precision."""
    from ..quant import half_weights, quantize

    target = Path(output)
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise UserError(f"-o {output}: give the name of a file in a folder that exists.")
    layers = None if targets is None else targets_of(targets)
    others = () if exclude is None else targets_of(exclude)
    if dtype is not None:
        _refuse_beside_dtype()
        result = half_weights(model, dtype, targets=layers, exclude=others, output=target)
    else:
        result = quantize(
            model,
            bits,
            block_size,
            targets=layers,
            exclude=others,
            embeddings=embeddings,
            symmetric=not zero_points,
            output=target,
        )
    current().show(
        f"{target}  {len(result.layers)} layers, {size(result.bytes_before)} → "
        f"{size(result.bytes_after)}"
    )


def _refuse_beside_dtype() -> None:
    """Half precision has no blocks, and takes tables of embeddings along by itself."""
    context = click.get_current_context()
    for name in ("bits", "block_size", "embeddings", "zero_points"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} is for weights of a few bits; leave it or --dtype out.")
