"""``onnxtrain lora``: adapt a model by training small matrices beside its layers."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from .train import command as train
from .train import run_training

EPILOG = """\b
Examples:
  onnxtrain lora model.onnx --data train.npz --loss cross_entropy --targets 'q_proj|v_proj'
  onnxtrain lora model.onnx --data train.npz --loss mse --rank 16 --alpha 32 --rslora
  onnxtrain lora model.onnx --data more.npz --loss mse --adapter runs/model/adapter
  onnxtrain lora lm.onnx --data text.jsonl --tokenizer tokenizer.json --task causal-lm

\b
The folder of the run gets what onnxtrain train writes, with these:
  model.onnx             the base model with the adapter in its weights
  adapter/               for PEFT: adapter_model.safetensors, adapter_config.json
  adapter.onnx_adapter   for onnxruntime's LoraAdapter and onnxruntime-genai, not with --dora
  base.onnx              the base model with inputs for such adapters
All other options are those of onnxtrain train.
"""
OPTIONS = [
    click.Option(["--rank"], type=int, default=8, show_default=True, help="Of the matrices."),
    click.Option(
        ["--alpha"], type=float, default=16.0, show_default=True, help="They count alpha ÷ rank."
    ),
    click.Option(
        ["--targets"],
        default="all-linear",
        show_default=True,
        help="Layers: an expression (q_proj|v_proj) or patterns with commas between them.",
    ),
    click.Option(
        ["--lora-dropout"],
        type=float,
        default=0.0,
        show_default=True,
        help="Share of a layer's inputs that its adapter does not see.",
    ),
    click.Option(["--dora"], is_flag=True, help="Learn the norms of the weights too."),
    click.Option(["--rslora"], is_flag=True, help="Count alpha ÷ √rank instead."),
    click.Option(
        ["--adapter"], type=click.Path(), help="Go on with this one: a PEFT folder, or a file."
    ),
]
OWN = [option.name or "" for option in OPTIONS if option.name != "adapter"]
"""What an adapter has settled when it is there."""


@click.command(epilog=EPILOG)
@click.pass_context
def command(ctx: click.Context, /, config: str | None, **options: Any) -> None:
    """Adapt MODEL to data: only small matrices beside its layers are trained."""
    own_options = [o for o in OWN if ctx.get_parameter_source(o) is ParameterSource.COMMANDLINE]
    if options["adapter"] is not None and own_options:
        name = f"--{own_options[0].replace('_', '-')}"
        raise click.UsageError(
            f"--adapter goes on with an adapter as it is; {name} is for a new one. Leave one of "
            "them out.",
            ctx,
        )
    if options["adapter"] is None and options["rank"] < 1:
        raise click.UsageError("--rank must be at least 1.", ctx)
    run_training(ctx, config, options)


command.params = [train.params[0], *OPTIONS, *train.params[1:]]
