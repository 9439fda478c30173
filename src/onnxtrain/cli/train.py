"""``onnxtrain train``: a model, data, a loss: a trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from .app import common
from .cluster_options import cluster_options
from .head_options import PRESETS, head_options
from .output import current
from .recipes import (
    IGNORED,
    KEEP,
    LOSSES,
    METRICS,
    OPTIMIZERS,
    SCHEDULES,
    SIMILARITY_LOSSES,
    optimizer_names,
)
from .sign_option import sign_option
from .similarity_options import SIMILARITY, similarity_options

if TYPE_CHECKING:
    from .settings import Settings

EPILOG = """\b
Data (--data, --val):
  train.npz            arrays named after the model's inputs, and the targets
  x.npy,y.npy          inputs and targets
  train.csv            columns; --target names the one to predict, --features the others,
                       --categorical those of categories; also compressed, as train.csv.gz
  train.parquet        the same (pip install "onnxtrain[parquet]")
  'shards/*.parquet'   files that are read while training, also .arrow, .feather, .csv, and with
                       --stream a single one; 'train-{0000..0099}.tar' as of WebDataset
  images/              one folder of images per class (pip install "onnxtrain[images]")
  module:function      a tuple or dict of arrays, or anything that gives batches
  text.jsonl           with --task causal-lm: one object per line, {"text": …} or {"prompt": …,
                       "completion": …}; also .txt, .csv and .parquet (pip install
                       "onnxtrain[text]")
  pairs.csv            with --task sentence-similarity: columns anchor, positive and perhaps
                       negative, or sentence1, sentence2 and score; --features and --target name
                       others; also .jsonl and .parquet

\b
Examples:
  onnxtrain train model.onnx --data train.npz --loss cross_entropy --epochs 5 --val val.npz
  onnxtrain train model.onnx --data houses.csv --target price --loss mse --val 0.2 \\
      --standardize both --categorical city --early-stopping 5
  onnxtrain train model.onnx --data images/ --loss cross_entropy --freeze 'encoder.*' \\
      --image-size 224 --mean imagenet --std imagenet --augment flip,crop,colour \\
      --schedule cosine --warmup 0.1 --clip-norm 1.0
  onnxtrain train photos.onnx --data images/ --new-head
  onnxtrain train model.onnx --data train.npz --loss cross_entropy --epochs 10 --resume
  onnxtrain train model.onnx --config run.toml
  onnxtrain train small.onnx --data train.npz --loss cross_entropy --teacher large.onnx
  onnxtrain train lm.onnx --data text.jsonl --tokenizer tokenizer.json --task causal-lm
  onnxtrain train encoder.onnx --data pairs.csv --tokenizer tokenizer.json \\
      --task sentence-similarity --val 0.1
  mpirun -n 4 onnxtrain train model.onnx --data train.npz --loss cross_entropy
  torchrun --nproc-per-node 2 --max-restarts 3 -m onnxtrain train model.onnx --loss cross_entropy \\
      --data 'shards/*.tar' --output run --save-every 500 --auto-resume

\b
The folder of the run (--output) gets model.onnx (trained, for inference), checkpoint, report.html,
history.csv, history.json, steps.csv, loss.svg (and loss.png with Pillow) and artifacts/; with
--keep best or --early-stopping also the checkpoint best.
Ctrl-C saves and ends with exit code 130, SIGTERM (of kill, a scheduler, a container) with 143; the
same command with --resume goes on.
A loss or a gradient that is NaN or infinite saves the state before that batch and ends with exit
code 1; --resume goes on behind it, --no-check-finite trains on with what the batch makes of the
weights.
"""


F = TypeVar("F", bound=Callable[..., Any])
TASK_LOSSES = {"causal-lm": "causal_lm", SIMILARITY: "auto"}
"""Tasks, and their losses where none is said."""
Names = Iterable[str] | Callable[[], Iterable[str]]


class _Listed(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A name that completes in the shell; a wrong one is told later, with the way out."""

    def __init__(self, names: Names) -> None:
        self.name, self._names = "name", names

    @property
    def names(self) -> Iterable[str]:
        """Those that are known."""
        return self._names() if callable(self._names) else self._names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """The names that begin like that."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(n) for n in self.names if n.startswith(incomplete)]


def _listed(option: str, names: Iterable[str], **settings: Any) -> Callable[[F], F]:
    return click.option(option, type=_Listed(names), help=f"One of {', '.join(names)}.", **settings)


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path())
@click.option("--data", type=click.Path(), help="Training data; see below.")
@click.option(
    "--loss",
    type=_Listed((*LOSSES, *SIMILARITY_LOSSES)),
    help=f"One of {', '.join(LOSSES)}; with --task {SIMILARITY} {', '.join(SIMILARITY_LOSSES)}.",
)
@click.option(
    "--optimizer",
    type=_Listed(optimizer_names),
    default="adamw",
    show_default=True,
    help=f"One of {', '.join(OPTIMIZERS)}.",
)
@click.option(
    "--lr", "--learning-rate", type=float, default=1e-3, show_default=True, help="Learning rate."
)
@click.option("--epochs", type=int, default=5, show_default=True, help="Passes over the data.")
@click.option("--batch-size", type=int, default=32, show_default=True, help="Rows per step.")
@click.option("--drop-last", is_flag=True, help="Leave out a last, smaller batch of each epoch.")
@click.option(
    "--accumulate",
    type=int,
    default=1,
    show_default=True,
    help="Batches per update of the weights.",
)
@click.option("--val", type=click.Path(), help="Validation data, or a share such as 0.1.")
@click.option("--target", help="Column or array that holds the targets.")
@click.option("--features", help="Columns of a table that are the input, separated by commas.")
@click.option(
    "--categorical", help="Columns of categories, separated by commas; auto: those that hold text."
)
@click.option(
    "--standardize",
    type=_Listed(("none", "inputs", "targets", "both")),
    default="none",
    show_default=True,
    help="Scale inputs, targets or both to mean 0 and deviation 1, inside the written model.",
)
@click.option("--image-size", help="Pixels of the images, as 224 or 224x320.")
@click.option("--mean", help="Mean of the channels of images (0 to 1), as 0.5 or imagenet.")
@click.option("--std", help="Their deviation, by which images are divided.")
@click.option("--augment", help="Change images at random: flip,crop,colour or some of them.")
@click.option("--freeze", multiple=True, help="Parameters not to train, e.g. 'encoder.*'.")
@click.option("--train", multiple=True, help="Parameters to train, instead of all.")
@head_options
@_listed("--schedule", SCHEDULES, default="constant", show_default=True)
@click.option("--warmup", type=float, default=0.0, help="Share of the steps, or their number.")
@click.option("--clip-norm", type=float, help="Limit of the gradient's global norm.")
@click.option("--weight-decay", type=float, help="Of the optimizer, where it has one.")
@click.option("--momentum", type=float, help="Of sgd and rmsprop.")
@click.option(
    "--metric",
    type=_Listed(METRICS),
    default="auto",
    show_default=True,
    help=f"One of {', '.join(METRICS)}, or several with commas between them.",
)
@click.option(
    "--early-stopping", type=int, help="Stop after so many epochs that bring no progress."
)
@click.option(
    "--keep",
    type=_Listed(KEEP),
    default="last",
    show_default=True,
    help="Model that is written: last, or best by --monitor (with --early-stopping always best).",
)
@click.option("--monitor", help="What is watched: val_loss (or loss without --val), val_accuracy …")
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
@click.option(
    "--task",
    type=_Listed(tuple(TASK_LOSSES)),
    help="On text: causal-lm, a language model; sentence-similarity, an encoder. See below.",
)
@click.option("--tokenizer", type=click.Path(), help="tokenizer.json of the model, or its folder.")
@click.option(
    "--max-length", type=int, default=256, show_default=True, help="Tokens per row of text."
)
@click.option(
    "--packing/--no-packing",
    default=True,
    show_default=True,
    help="Texts one after the other in full rows, or one per row.",
)
@click.option(
    "--padding-side",
    type=_Listed(("right", "left")),
    default="right",
    show_default=True,
    help="Where short rows are filled up: right or left.",
)
@click.option(
    "--text-column", default="text", show_default=True, help="Column that holds the text."
)
@click.option("--prompt", help="Beginning of the text that is written before and after training.")
@click.option(
    "--sample-tokens", type=int, default=40, show_default=True, help="Its tokens; 0 for none."
)
@similarity_options
@click.option(
    "--teacher", type=click.Path(), help="A trained model whose answers the model learns to give."
)
@click.option(
    "--temperature", type=float, default=2.0, show_default=True, help="Softens these answers."
)
@click.option(
    "--distill-alpha",
    type=float,
    default=0.5,
    show_default=True,
    help="Share of the labels in the loss, the rest being the teacher's.",
)
@click.option(
    "--training-mode",
    type=_Listed(("auto", "preserve", "train")),
    default="auto",
    show_default=True,
    help="BatchNormalization and Dropout: auto, as in the file (preserve), or all on (train).",
)
@click.option("--recompute", help="Save memory: auto, cheap, a number of segments, or names.")
@click.option(
    "--check-finite/--no-check-finite",
    default=True,
    show_default=True,
    help="Stop before a batch whose loss or gradient is NaN or infinite changes anything.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the rows and of Dropout.")
@click.option(
    "-o", "--output", type=click.Path(), help="Folder of the run; by default runs/<model>."
)
@click.option("--resume", is_flag=True, help="Go on with the run in the folder.")
@click.option("--overwrite", is_flag=True, help="Throw away a run that is in the folder.")
@click.option(
    "--log",
    multiple=True,
    type=_Listed(("csv", "tensorboard", "mlflow", "wandb")),
    help="Also log to csv, tensorboard, mlflow or wandb, or to what another package adds.",
)
@click.option("--tensorboard", is_flag=True, help="The same as --log tensorboard.")
@cluster_options
@sign_option
@click.option("--config", type=click.Path(), help="TOML or YAML file with the same names.")
@common
@click.pass_context
def command(ctx: click.Context, /, config: str | None, **options: Any) -> None:
    """Train MODEL on data.

    Options on the command line win over those of the configuration file.
    """
    run_training(ctx, config, options)


def read_settings(ctx: click.Context, config: str | None, options: dict[str, Any]) -> Settings:
    """The settings of a run, from the options and a configuration file."""
    from .output import one_of
    from .settings import Settings, read_config, typed

    unsaid = {n for n in options if ctx.get_parameter_source(n) == ParameterSource.DEFAULT}
    if config is not None:
        for name, value in read_config(config).items():
            if name != "model" and name in unsaid:
                options[name] = typed(name, value, config)
                unsaid.remove(name)
    if options["new_head"]:
        options.update({n: value for n, value in PRESETS.items() if n in unsaid})
    if options["task"] and not options["loss"]:
        options["loss"] = TASK_LOSSES.get(options["task"], "causal_lm")
    for name in ("data", "loss"):
        if not options[name]:
            raise click.UsageError(f"Missing option '--{name}' (or {name} in --config).", ctx)
    one_of(options["training_mode"], ("auto", "preserve", "train"), "--training-mode")
    return Settings(**options)


def run_training(ctx: click.Context, config: str | None, options: dict[str, Any]) -> None:
    """Train with these options, and say what came of it."""
    from .run import train

    run = train(read_settings(ctx, config, options), current())
    if not run.trainer.group.is_main:
        return
    current().show("  ".join(f"{k} {v:.4g}" for k, v in run.reached.items()))
    for file in run.files:
        current().show(f"  {file}")
