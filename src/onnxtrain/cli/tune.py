"""``onnxtrain tune``: search hyper-parameters with Optuna."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .output import Output, UserError, count, current, one_of
from .train import command as train
from .train import read_settings

if TYPE_CHECKING:
    from .settings import Settings

EPILOG = """\b
Examples:
  onnxtrain tune model.onnx --data train.npz --val 0.2 --loss cross_entropy --trials 30 \\
      --search lr=1e-5..1e-1 --search batch_size=16,32,64
  onnxtrain tune model.onnx --data houses.csv --val 0.2 --loss mse --search optimizer=adamw,sgd \\
      --search lr=1e-4..1e-1 --search epochs=5..20 --monitor val_mae
  onnxtrain tune model.onnx --config run.toml --storage sqlite:///study.db --trials 100

\b
Searched are options of onnxtrain train that are numbers or names:
  name=low..high     a number in between, by logarithm if high is at least 100 times low
  name=a,b,c         one of these
Without --search: lr=1e-5..1e-1.

\b
Every trial is a run of its own in a folder below --output; trials that are worse than the median of
those before are given up early (--no-pruning trains each to its end). trials.json has all of them,
best.toml the options of the best one, for onnxtrain train --config.
All other options are those of onnxtrain train. Needs Optuna: pip install "onnxtrain[tune]".
"""
OPTIONS = [
    click.Option(["--trials"], type=int, default=20, show_default=True, help="Runs to try."),
    click.Option(["--search"], multiple=True, help="What to vary, as name=…; see below."),
    click.Option(
        ["--pruning/--no-pruning"],
        default=True,
        show_default=True,
        help="Give bad trials up before their end.",
    ),
    click.Option(["--storage"], help="Where Optuna keeps the study, e.g. sqlite:///study.db."),
    click.Option(["--timeout"], type=float, help="Seconds after which no new trial begins."),
]
DEFAULT = ("lr=1e-5..1e-1",)
WIDE = 100.0
"""From this ratio of the bounds on a number is drawn by its logarithm."""
Suggest = Callable[[Any], Any]


@click.command(epilog=EPILOG)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    config: str | None,
    trials: int,
    search: tuple[str, ...],
    pruning: bool,
    storage: str | None,
    timeout: float | None,
    **options: Any,
) -> None:
    """Search options with which MODEL trains best on data."""
    from ..tuning import import_optuna

    settings = read_settings(ctx, config, options)
    if trials < 1:
        raise UserError(f"--trials is {trials}; it must be at least 1.")
    if settings.resume:
        raise UserError("--resume is for one run; a study goes on with the same --storage.")
    space = dict(map(read_search, search or DEFAULT))
    optuna = import_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder = _folder(settings)
    upward = _is_upward(settings)
    study = optuna.create_study(
        study_name=folder.name,
        storage=storage,
        load_if_exists=storage is not None,
        direction="maximize" if upward else "minimize",
        sampler=optuna.samplers.TPESampler(seed=settings.seed),
        pruner=optuna.pruners.MedianPruner() if pruning else optuna.pruners.NopPruner(),
    )
    study.optimize(_objective(settings, space, folder), n_trials=trials, timeout=timeout)
    _finish(study, folder, current())


def read_search(text: str) -> tuple[str, Suggest]:
    """What ``--search`` means: the option, and what draws a value of it."""
    from .settings import FIELDS, typed

    name, equals, values = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    one_of(name, FIELDS, "--search")
    kind = str(FIELDS[name].type)
    if not equals or not values.strip() or name in {"model", "data", "output"}:
        raise UserError(f"--search {text!r} must be name=low..high or name=a,b,c.")
    if ".." not in values:
        choices = [typed(name, v.strip(), "--search") for v in values.split(",")]
        return name, lambda trial: trial.suggest_categorical(name, choices)
    low, high = (_number(part, text) for part in values.split("..", 1))
    if not low < high or not kind.startswith(("int", "float")):
        raise UserError(
            f"--search {text!r}: {name} is no number, or the bounds are in the wrong order."
        )
    log = low > 0 and high / low >= WIDE
    if kind.startswith("int"):
        return name, lambda trial: trial.suggest_int(name, int(low), int(high), log=log)
    return name, lambda trial: trial.suggest_float(name, low, high, log=log)


def _number(text: str, search: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--search {search!r}: {text!r} is not a number.") from None


def _folder(settings: Settings) -> Path:
    """Where all trials go: a new folder."""
    base = Path(settings.output or f"runs/{Path(settings.model).stem}-tune")
    if settings.output is not None and base.exists() and any(base.iterdir()):
        raise UserError(f"{base} is not empty: choose another --output.")
    candidates = (base, *(base.with_name(f"{base.name}-{i}") for i in range(2, 10_000)))
    folder = next(c for c in candidates if not c.exists() or not any(c.iterdir()))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _is_upward(settings: Settings) -> bool:
    from ..runtime.loop.callbacks import is_better

    return settings.monitor is not None and is_better(1.0, 0.0, settings.monitor, None, 0.0)


def _objective(
    settings: Settings, space: dict[str, Suggest], folder: Path
) -> Callable[[Any], float]:
    from ..errors import OnnxTrainError
    from ..tuning import PruneTrial
    from .run import train as train_once

    screen = current()

    def objective(trial: Any) -> float:
        drawn = {name: suggest(trial) for name, suggest in space.items()}
        shown = "  ".join(f"{name} {_short(value)}" for name, value in drawn.items())
        own = dataclasses.replace(
            settings, output=str(folder / f"trial-{trial.number}"), monitor=None, **drawn
        )
        prune = PruneTrial(trial, settings.monitor)
        try:
            train_once(own, Output(quiet=True), [prune])
        except prune.pruned as error:
            screen.say(f"trial {trial.number}  {shown}  given up: {error}")
            raise
        except OnnxTrainError as error:
            if trial.number == 0:
                raise  # nothing has worked so far: the mistake is not in what was drawn
            screen.say(f"trial {trial.number}  {shown}  failed: {error}", style="yellow")
            raise prune.pruned(str(error)) from error
        screen.say(f"trial {trial.number}  {shown}  → {prune.best:.4g}")
        return prune.best

    return objective


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _finish(study: Any, folder: Path, screen: Output) -> None:
    from .history import write_text

    rows = [
        {"trial": t.number, "state": t.state.name.lower(), "value": t.value, **t.params}
        for t in study.trials
    ]
    write_text(folder / "trials.json", json.dumps(rows, indent=2) + "\n")
    done = [t for t in study.trials if t.state.name == "COMPLETE"]
    if not done:
        raise UserError(f"No trial came to its end; {folder / 'trials.json'} says what was tried.")
    best = study.best_trial
    lines = [f"{name} = {json.dumps(value)}" for name, value in best.params.items()]
    write_text(folder / "best.toml", "\n".join(lines) + "\n")
    screen.show(f"best of {count(len(rows), 'trial')}: {best.value:.6g}")
    for name, value in best.params.items():
        screen.show(f"  --{name.replace('_', '-')} {_short(value)}")
    for file in (folder / f"trial-{best.number}", folder / "best.toml", folder / "trials.json"):
        screen.show(f"  {file}")


command.params = [train.params[0], *OPTIONS, *train.params[1:]]
