"""``onnxtrain quantize``: weights of a few bits, as the base for adapters."""

from __future__ import annotations

from pathlib import Path

import click

from .adapting import targets_of
from .app import common
from .output import UserError, current, size

EPILOG = """\b
Examples:
  onnxtrain quantize model.onnx --bits 4 --block-size 32 -o base.onnx
  onnxtrain quantize model.onnx --bits 8 --exclude lm_head -o base.onnx
  onnxtrain lora base.onnx --data train.npz --loss cross_entropy

\b
The layers become MatMulNBits of onnxruntime, by its own tool. onnxtrain lora trains adapters beside
them; the weights stay in their few bits, in memory too.
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path())
@click.option("--bits", type=int, default=4, show_default=True, help="Of each weight: 4 or 8.")
@click.option(
    "--block-size", type=int, default=32, show_default=True, help="Weights that share a scale."
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
    targets: str | None,
    exclude: str | None,
    embeddings: bool,
    zero_points: bool,
    output: str,
) -> None:
    """Store the weights of MODEL's linear layers in a few bits."""
    from ..quant import quantize

    target = Path(output)
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise UserError(f"-o {output}: give the name of a file in a folder that exists.")
    result = quantize(
        model,
        bits,
        block_size,
        targets=None if targets is None else targets_of(targets),
        exclude=() if exclude is None else targets_of(exclude),
        embeddings=embeddings,
        symmetric=not zero_points,
        output=target,
    )
    current().show(
        f"{target}  {len(result.layers)} layers, {size(result.bytes_before)} → "
        f"{size(result.bytes_after)}"
    )
