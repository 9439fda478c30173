"""Losses, optimizers, schedules and metrics by the names that the command line uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import losses, plugins
from .output import UserError, one_of

if TYPE_CHECKING:
    from ..optim import Optimizer
    from ..runtime.loop.schedulers import LRScheduler


@dataclass(frozen=True)
class LossRecipe:
    """A loss block and the targets it takes."""

    block: str
    """Name in `onnxtrain.losses`."""
    target: str
    """Name of the graph input that the targets become."""
    kind: str
    """"class": class numbers; "token": numbers of the vocabulary; "number": like the output;
    "binary": that, from 0 to 1; "sign": that, −1 or 1; "similarity": one for a row of texts."""

    @property
    def takes_labels(self) -> bool:
        """Whether the targets are numbers of classes."""
        return self.kind in {"class", "token"}


LOSSES = {
    row.short: LossRecipe(
        row.name, "labels" if row.target in {"class", "token"} else "target", row.target
    )
    for row in losses.LOSSES
    if row.short
}
SIMILARITY_LOSSES = {
    "multiple_negatives_ranking": "MultipleNegativesRankingLoss",
    "cosent": "CoSENTLoss",
    "cosine_similarity": "CosineSimilarityLoss",
    "triplet": "TripletLoss",
}
"""Losses between vectors of texts, by their names with ``--task sentence-similarity``."""
OPTIMIZERS = (
    "adamw", "adam", "adamw_8bit", "adam_8bit", "sgd", "rmsprop", "adagrad", "adadelta", "lamb",
    "lion", "adafactor",
)  # fmt: skip
"""Names of `onnxtrain.optim.RECIPES`, for the help; the table itself takes an import of seconds."""
SCHEDULES = ("constant", "cosine", "linear", "step", "exponential", "onecycle", "plateau")
IGNORED = -100
"""The label that does not count by default, as in PyTorch."""
KEEP = ("last", "best")
"""Which epoch's model a run writes."""
METRICS = (
    "auto", "none", "accuracy", "f1", "precision", "recall", "auc", "top5", "mae", "mse", "r2",
    "perplexity",
)  # fmt: skip


def loss_recipe(name: str) -> LossRecipe:
    """A loss by name; other packages may add some."""
    if name in SIMILARITY_LOSSES:
        return LossRecipe(SIMILARITY_LOSSES[name], "target", "similarity")
    if name not in LOSSES and name in plugins.names("losses"):
        kind = getattr(plugins.load("losses", name), "target", "number")
        return LossRecipe(name, "labels" if kind in {"class", "token"} else "target", kind)
    return LOSSES[one_of(name, [*LOSSES, *plugins.names("losses")], "--loss")]


def loss_block(name: str, ignore_index: int = IGNORED) -> Any:
    """A new loss block; the label to ignore is for losses of classes."""
    recipe = loss_recipe(name)
    options = {"ignore_index": ignore_index} if recipe.takes_labels else {}
    if name not in LOSSES:
        return plugins.load("losses", name)(**options)
    return getattr(losses, recipe.block)(**options)


def optimizer_names() -> list[str]:
    """Names of all optimizers."""
    from ..optim import RECIPES

    return list(RECIPES)


def make_optimizer(
    name: str,
    *,
    weight_decay: float | None = None,
    momentum: float | None = None,
    clip_norm: float | None = None,
) -> Optimizer:
    """An optimizer by name, with what it takes of the options."""
    from .. import optim

    maker: Callable[..., Optimizer]
    if name not in optim.RECIPES and name in plugins.names("optimizers"):
        maker = plugins.load("optimizers", name)
    else:
        known = [*optim.RECIPES, *plugins.names("optimizers")]
        maker = optim.RECIPES[one_of(name, known, "--optimizer")].make
    all_options = {"weight_decay": weight_decay, "momentum": momentum}
    options: dict[str, Any] = {k: v for k, v in all_options.items() if v is not None}
    taken = inspect.signature(maker).parameters
    for option in options:
        if option not in taken:
            raise UserError(
                f"The optimizer {name} has no {option.replace('_', ' ')}: leave "
                f"--{option.replace('_', '-')} out, or use another --optimizer."
            )
    if clip_norm is not None:
        options["clip"] = optim.ClipNorm(clip_norm)
    return maker(**options)


def make_scheduler(
    name: str, warmup: float, steps: int, epochs: int
) -> Callable[[Any], LRScheduler] | None:
    """What gives `Trainer` its schedule; None for a constant learning rate.

    Args:
        name: of the schedule.
        warmup: below 1 a share of all steps, from 1 on a number of steps.
        steps: of the whole run.
        epochs: of the whole run.
    """
    from ..runtime.loop import schedulers as known

    one_of(name, SCHEDULES, "--schedule")
    if warmup and name in {"onecycle", "plateau"}:
        raise UserError(f"--schedule {name} takes no --warmup: leave one of the two out.")
    warm = round(warmup * steps) if warmup < 1 else int(warmup)
    if name == "constant" and not warm:
        return None
    if warm >= steps:
        raise UserError(
            f"--warmup {warmup:g} means {warm} steps, and the whole run has only {steps}: "
            "give a smaller share, or more --epochs."
        )
    rest, per_epoch = steps - warm, max(1, steps // epochs)

    def make(optimizer: Any) -> LRScheduler:
        rate = optimizer.get_learning_rate()
        makers: dict[str, Callable[[], LRScheduler]] = {
            "constant": lambda: known.ConstantLR(optimizer, 1.0, 0),
            "cosine": lambda: known.CosineAnnealingLR(optimizer, rest),
            "linear": lambda: known.PolynomialLR(optimizer, rest, 1.0),
            "step": lambda: known.StepLR(optimizer, max(1, rest // 3)),
            "exponential": lambda: known.ExponentialLR(optimizer, 0.9 ** (1 / per_epoch)),
            "onecycle": lambda: known.OneCycleLR(optimizer, rate, rest + 1),
            "plateau": lambda: known.ReduceLROnPlateau(optimizer, patience=2),
        }
        inner = makers[name]()
        return known.WarmUp(inner, warm) if warm else inner

    return make


def metric_names(choice: str, kind: str) -> list[str]:
    """The metrics that are meant; "auto" takes the one that fits the loss."""
    chosen = [one_of(name.strip(), METRICS, "--metric") for name in choice.split(",")]
    usual = {"number": "mae", "token": "perplexity"}.get(kind, "accuracy")
    if kind == "similarity":
        chosen = [name for name in chosen if name != "auto"]
    names = [usual if name == "auto" else name for name in chosen if name != "none"]
    return list(dict.fromkeys(names))
