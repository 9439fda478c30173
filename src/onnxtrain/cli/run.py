"""One training run: check everything, then write; used by ``train`` and ``demo``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from .. import plugins
from ..artifacts import generate_artifacts
from ..distributed.connect import connect
from ..distributed.start import once
from ..errors import CheckpointError, DataError, NonFiniteError, RunError, StateError
from ..loggers import LOGGERS, LogTo, make_logger
from ..runtime.files.onnxfile import ModelFile
from ..runtime.loop.callbacks import Callback, SaveCheckpoint
from ..runtime.loop.metrics import F1, Accuracy, Metric, Precision, Recall, resolve
from ..runtime.loop.trainer import History, Trainer
from ..runtime.session.devices import session_options
from ..text import with_weights
from . import progress, report
from .adapting import write_adapter
from .best import Best
from .categories import Categories, write_table_model
from .charts import curves
from .distilling import check_settings as check_teacher
from .distilling import loss_of
from .history import Step, read_steps, write_history, write_text
from .image_files import described
from .images import Augmentation, AugmentedBatches, ImageSettings, read_augmentations
from .language import LanguageTask, check_settings, copy_tokenizer
from .match import Dataset, Task, match, target_column
from .new_head import HeadTask
from .new_head import check_settings as check_head
from .output import Output, UserError, count, names_in, one_of
from .plan import Plan, make_plan
from .recipes import make_optimizer, make_scheduler, metric_names
from .rounding import check_settings as check_rounding
from .rounding import quantized_plan, say_static, without_decay, write_integers
from .run_folder import (
    check_resume,
    choose_folder,
    fingerprint,
    is_resumable,
    staged,
    write_about,
)
from .scaling import InDataUnits, standardize
from .settings import Settings, read_recompute
from .sign_option import check as check_signer
from .sign_option import signed
from .similarity import SimilarityTask
from .similarity_options import SIMILARITY
from .sources import Columns, read
from .streams import is_streamed, read_stream


@dataclass
class Run:
    """What a finished run leaves."""

    folder: Path
    settings: Settings
    plan: Plan
    task: Task
    history: History
    steps: list[Step]
    training: Dataset
    validation: Dataset | None
    trainer: Trainer
    best: Best | None = None
    files: list[Path] = field(default_factory=list)

    @property
    def reached(self) -> dict[str, float]:
        """The values of the epoch whose model is written, learning rate apart."""
        epoch = -1 if self.best is None else self.best.epoch(self.history)
        return {
            k: v[epoch] for k, v in self.history.items() if len(v) > max(epoch, 0) and k != "lr"
        }


def train(settings: Settings, output: Output, callbacks: Sequence[Callback] = ()) -> Run:
    """Read model and data, train, and write everything into the folder of the run.

    Args:
        settings: of the run.
        output: what is printed, and how much.
        callbacks: more that hang in the training loop.
    """
    settings.check()
    settings = _decided(settings, output)
    check_signer(settings.sign)
    check_rounding(settings)
    check_settings(settings)
    check_teacher(settings)
    check_head(settings)
    head = HeadTask.of(settings, output) if settings.new_head else None
    similar = SimilarityTask.of(settings) if settings.task == SIMILARITY else None
    base = None if similar is None else similar.model
    plan = make_plan(settings, base=base) if head is None else head.plan
    task = Task(
        plan.summary.inputs, plan.output, plan.loss, settings.target, names_in(settings.features),
        ignore_index=settings.ignore_index,
        images=_images(settings, plan, output),
        categories=Categories(names_in(settings.categorical)) if settings.categorical else None,
        language=similar or (LanguageTask.of(settings, plan) if settings.task else None),
        head=head,
    )  # fmt: skip
    if read_augmentations(settings.augment) and not Path(settings.data).is_dir():
        raise UserError("--augment is for folders of images: --data names none.")
    group = connect("auto")
    if group is not None and not group.is_main:  # each reads the data, one says what they are
        output = replace(output, quiet=True)
    training = _data(settings.data, task, output, settings)
    validation = None
    if settings.val:
        training, validation = _validation(settings, task, training, output)
    others = [validation] if validation is not None else []
    plan = standardize(settings, plan, task, training, others)
    plan = quantized_plan(settings, plan, training)
    return train_on(settings, plan, task, training, validation, output, callbacks)


def _images(settings: Settings, plan: Plan, output: Output) -> ImageSettings:
    """How pictures become numbers: what the options say, else the model or what is beside it."""
    if not Path(settings.data).is_dir():
        return ImageSettings.of(settings, plan.summary.metadata)
    known = described(settings, plan.summary) | plan.summary.metadata
    if settings.new_head and settings.mean is None and "image_mean" not in known:
        output.say(
            f"{settings.model} does not say how its images are scaled: they are numbers from 0 to "
            "1. Models of torchvision and timm want --mean imagenet --std imagenet."
        )
    return ImageSettings.of(settings, known)


def _decided(settings: Settings, output: Output) -> Settings:
    """With ``--auto-resume``: whether there is a run to go on with, as the first process sees it.

    A run that ended before its first checkpoint is begun again.
    """
    if not settings.auto_resume or settings.resume:
        return settings
    folder, group = Path(settings.output or ""), connect("auto")
    going_on = is_resumable(folder) if group is None else once(group, lambda: is_resumable(folder))
    if going_on and (group is None or group.is_main):
        output.say(f"Going on with the run in {folder}.")
    return replace(settings, resume=going_on, overwrite=not going_on)


def train_on(
    settings: Settings,
    plan: Plan,
    task: Task,
    training: Dataset,
    validation: Dataset | None,
    output: Output,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train on data that are there already."""
    stepped = plan
    if task.head is not None and task.head.features is not None:
        stepped = task.head.step_plan(training.arrays[task.head.head.features])
    drop_last = _check_batches(settings, stepped, training, validation, output)
    optimizer = make_optimizer(
        settings.optimizer,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        clip_norm=settings.clip_norm,
    )
    optimizer = without_decay(optimizer, plan)
    scheduler = _scheduler(settings, training, drop_last)
    metrics = _metrics(settings, plan)
    if task.scale is not None:
        metrics = [InDataUnits(metric, task.scale) for metric in resolve(metrics)]
    names = [m if isinstance(m, str) else m.name for m in metrics]
    best = Best.of(settings, names, validates=validation is not None)
    group = connect("auto")  # the processes that mpirun or torchrun started, if it did

    def prepare() -> str:
        folder = choose_folder(settings, output)
        data = fingerprint(training.arrays) or training.digest
        if settings.resume:
            check_resume(folder, settings, plan.digest, data)
            return str(folder)
        with staged(folder, settings) as staging:
            _make_artifacts(settings, plan, optimizer, staging / "artifacts")
            if stepped is not plan:
                _make_artifacts(settings, stepped, optimizer, staging / HEAD)
            _try_a_batch(staging / _stepped(task), settings, training)
            write_about(staging, settings, plan.digest, data)
        return str(folder)

    folder = Path(prepare() if group is None else once(group, prepare))
    trainer = _trainer(
        folder, _stepped(task), settings, scheduler=scheduler, metrics=metrics, distributed=group
    )
    run = Run(
        folder, settings, plan, task, trainer.history, [], training, validation, trainer, best
    )
    if task.language is not None and not settings.resume:
        task.language.sample(trainer, "before", output, validation or training)
    say_static(trainer, validation, settings, output)
    steps = trainer.step
    _fit(run, output, drop_last, callbacks)
    _say_if_idle(run, output, steps)
    if task.language is not None:
        task.language.sample(trainer, "after", output, validation or training)
    if trainer.group.is_main:
        _finish(run, output)
        run.files += signed(folder, settings.sign)
    return run


HEAD = "head_artifacts"
"""Folder of the artifacts of a classifier alone, beside those of the whole model."""


def _stepped(task: Task) -> str:
    """Name of the folder of the artifacts that run in every step."""
    return HEAD if task.head is not None and task.head.features is not None else "artifacts"


def _trainer(folder: Path, artifacts: str, settings: Settings, **options: Any) -> Trainer:
    options.update(check_finite=settings.check_finite, accumulate=settings.accumulate)
    if not settings.resume:
        trainer = Trainer.from_directory(folder / artifacts, learning_rate=settings.lr, **options)
        trainer.state.seed = settings.seed
        return trainer
    try:
        return Trainer.from_directory(
            folder / artifacts, checkpoint=folder / "checkpoint", **options
        )
    except (CheckpointError, StateError) as error:
        raise UserError(
            f"The run in {folder} cannot be resumed: {error} Put a good copy of the checkpoint "
            "there, or start a new run without --resume."
        ) from error


def _say_if_idle(run: Run, output: Output, steps_before: int) -> None:
    """Say that a resumed run had no epoch left to train."""
    epochs = run.trainer.epoch
    if run.settings.resume and run.trainer.step == steps_before and run.trainer.group.is_main:
        output.say(
            f"The run in {run.folder} has had {count(epochs, 'epoch')} already, so nothing is "
            "trained; a larger number after --epochs goes on."
        )


def _fit(run: Run, output: Output, drop_last: bool, callbacks: Sequence[Callback]) -> None:
    settings, trainer, folder = run.settings, run.trainer, run.folder
    if settings.resume:
        run.steps = read_steps(folder, trainer.step)
    interrupt = progress.Interrupt(folder / "checkpoint")
    bar = progress.Bar(output, settings.epochs, settings.batch_size)
    main = trainer.group.is_main
    hooks: list[Any] = [progress.Recorder(folder, run.steps), bar] if main else []
    gathered = any(m.reads_prediction for m in trainer.metrics)
    if run.validation is None and run.training.rows and gathered:
        sample = run.training.part(slice(0, 2000))
        hooks.insert(0, progress.TrainMetric(sample.arrays, settings.batch_size))
    loggers = _loggers(run) if main else []
    hooks += [*loggers, *callbacks]
    if run.best is not None:
        hooks += run.best.callbacks(folder)
    hooks += [SaveCheckpoint(folder / "checkpoint", settings.save_every, 1), interrupt]
    try:
        with interrupt.listening():
            run.history = trainer.fit(
                _training_data(run, drop_last),
                settings.epochs,
                settings.batch_size,
                validation_data=run.validation.data if run.validation else None,
                callbacks=hooks,
                seed=settings.seed,
                drop_last=drop_last,
                progress=False,
                resume=settings.resume,
            )
    except progress.InterruptedRunError as stopped:
        if not main:
            raise
        bar.close()
        write_history(folder, trainer.history, run.steps)
        at = f"epoch {trainer.epoch + 1}, step {trainer.step}"
        output.say(
            f"Stopped in {at}; everything is saved in {folder}. Go on with the same command and "
            f"--resume --output {folder}."
        )
        raise click.exceptions.Exit(stopped.code) from stopped
    except DataError as error:
        raise _broken_off(error, run) from error
    except NonFiniteError as error:
        trainer.save(folder / "checkpoint")  # all processes: a sharded state comes together there
        if main:
            write_history(folder, trainer.history, run.steps)
        raise UserError(_refused(error, run)) from error
    finally:
        bar.close()
        for hook in loggers:
            hook.logger.finish()


def _training_data(run: Run, drop_last: bool) -> Any:
    """What is trained on: arrays, batches of the user's, or arrays with images that change."""
    settings, data = run.settings, run.training
    names = read_augmentations(settings.augment)
    if not names:
        return data.data
    last, *_ = run.task.images.layout(run.task.fed[0])
    augmentation = Augmentation(names, run.task.images, last)
    arrays = list(data.arrays.values())
    return AugmentedBatches(arrays, settings.batch_size, settings.seed, drop_last, augmentation)


def _loggers(run: Run) -> list[LogTo]:
    """What takes the numbers of the run elsewhere."""
    settings = run.settings
    asked = [*settings.log, *(["tensorboard"] if settings.tensorboard else [])]
    known = [*LOGGERS, *plugins.names("loggers")]
    chosen = [one_of(name, known, "--log") for name in dict.fromkeys(asked)]
    plain = {k: ", ".join(v) if isinstance(v, list) else v for k, v in settings.to_dict().items()}
    return [LogTo(make_logger(name, run.folder), run.folder.name, plain) for name in chosen]


def _broken_off(error: DataError, run: Run) -> Exception:
    """Save what there is when data cannot be read on; gives the error for the user."""
    trainer, folder = run.trainer, run.folder
    if trainer.group.size > 1 or not trainer.step:
        return error
    trainer.save(folder / "checkpoint")
    write_history(folder, trainer.history, run.steps)
    return UserError(
        f"{error} Everything before that is saved in {folder}: mend the data, and go on with the "
        f"same command and --resume --output {folder}."
    )


def _refused(error: NonFiniteError, run: Run) -> str:
    """What was wrong with a batch, and the ways out."""
    cause, trainer = error.__cause__, run.trainer
    reason = cause.reason if isinstance(cause, NonFiniteError) else error.reason
    return (
        f"{reason} (epoch {trainer.epoch + 1}, batch {trainer.batch}). That batch changed nothing, "
        f"and everything before it is saved in {run.folder}. If the batch is to blame, go on "
        f"behind it with the same command and --resume --output {run.folder}. If the training "
        f"diverged, start again with a smaller --lr (it is {run.settings.lr:g}), --clip-norm 1.0 "
        "or --warmup 0.1, and scale the inputs to about -1 to 1. --no-check-finite does not look."
    )


def _finish(run: Run, output: Output) -> None:
    folder = run.folder
    if run.best is not None:
        run.best.put_back(run.trainer, folder, run.settings.epochs, output)
    adapter = _write_model(run, folder / "model.onnx")
    write_history(folder, run.history, run.steps)
    run.files = [folder / n for n in ("model.onnx", "checkpoint", "history.csv", "history.json")]
    run.files += adapter
    categories = run.task.categories
    if categories is not None and categories.known:
        table = folder / "table.onnx"
        write_table_model(folder / "model.onnx", categories, run.task.fed[0].name, table)
        run.files.append(table)
    if run.task.classes:
        known = {CLASSES: json.dumps(run.task.classes)}
        is_images = Path(run.settings.data).is_dir() or run.settings.data.endswith(".tar")
        describe(folder / "model.onnx", known | (run.task.images.metadata if is_images else {}))
        names_file = folder / "classes.json"
        write_text(names_file, json.dumps(run.task.classes, indent=2) + "\n")
        run.files.append(names_file)
    if run.task.language is not None:
        run.files += run.task.language.write(folder)
    try:
        _picture(run)
    except OSError:
        raise  # a full disk is told as one
    except Exception as error:  # the model is trained and written: no picture may take that away
        output.say(
            f"Warning: the report could not be drawn ({type(error).__name__}: {error}). The model, "
            f"the checkpoint and the history are complete in {folder}.",
            style="yellow",
        )


def _write_model(run: Run, target: Path) -> list[Path]:
    """The trained model for inference; what else is written with it: the files of an adapter."""
    settings, state, head = run.settings, run.trainer.state, run.task.head
    if settings.is_adapted:
        return write_adapter(run.plan.model, settings.model, state, target.parent)
    if head is not None and head.features is not None:
        head.write(state, target)
    elif run.task.language is not None:
        with_weights(settings.model, state, target)
    elif settings.qat:
        write_integers(run.trainer, target)
    else:
        run.trainer.export(target)
    return []


CLASSES = "class_names"
"""Key of the model's metadata under which the names of its classes stand, as a JSON list."""


def describe(model: Path, metadata: dict[str, str]) -> None:
    """Add to the metadata of a model file."""
    file = ModelFile.load(model)
    file.set_metadata({**file.metadata, **metadata})
    file.write(model)


def _picture(run: Run) -> None:
    """The report, and the curve as a picture of its own."""
    write_text(run.folder / "report.html", report.page(run))
    run.files += [run.folder / "report.html", *loss_picture(run).write(run.folder / "loss")]


def loss_picture(run: Run) -> Any:
    """The loss by step, and by epoch on the validation data."""
    lines = {"training loss": [(float(s), loss) for s, loss, _ in run.steps]}
    values = run.history.get("val_loss", [])
    if values and run.steps:
        per_epoch = run.steps[-1][0] / max(len(values), 1)
        lines["validation loss"] = [(per_epoch * (i + 1), v) for i, v in enumerate(values)]
    return curves("Loss", lines, "step")


# --- before the run -------------------------------------------------------------------------------


def _data(source: str, task: Task, output: Output, settings: Settings) -> Dataset:
    """Read data and fit them to the model; say what was left out."""
    if task.language is not None:
        return task.language.read(source, output)
    if task.head is not None and task.head.features is not None:
        return task.head.read(source, task)
    if is_streamed(source, settings):
        data = read_stream(source, task, settings)
        shown = f" {data.note[0].upper()}{data.note[1:]}." if data.note else ""
        output.say(f"{source}: {count(data.total or 0, 'row')}, read while training.{shown}")
        return data
    contents = read(source)
    data = match(contents, task)
    if isinstance(contents, Columns) and task.target is None:
        column = target_column(contents, task)
        output.say(f"{source}: the target is the column {column!r}; --target chooses another.")
    if data.note:
        output.say(f"{source}: {data.note}.")
    if data.left_out:
        rows = count(data.left_out, "row")
        output.say(f"{source}: {rows} left out, with no other label than {task.ignore_index}.")
    return data


def _validation(
    settings: Settings, task: Task, training: Dataset, output: Output
) -> tuple[Dataset, Dataset]:
    """Data of their own, or a share of the training data."""
    assert settings.val is not None
    try:
        share = float(settings.val)
    except ValueError:
        return training, _data(settings.val, task, output, settings)
    if not 0 < share < 1:
        raise UserError(f"--val {settings.val} is no file and no share between 0 and 1.")
    if training.rows is None:
        raise UserError("--val as a share needs arrays; batches need validation data of their own.")
    rng = np.random.default_rng(settings.seed)
    if settings.new_head:
        held_out = _of_each_class(training.arrays[task.loss.target], share, rng)
    else:
        order = rng.permutation(training.rows)
        held_out = np.isin(np.arange(training.rows), order[: max(1, round(share * training.rows))])
    if held_out.all():
        raise UserError(f"--val {share:g} of {count(training.rows, 'row')} leaves none to train.")
    if not held_out.any():
        raise UserError(
            f"--val {share:g}: every class has one row only, and none can be held out. Give more "
            "rows, or validation data of their own."
        )
    return training.part(~held_out), training.part(held_out)


def _of_each_class(labels: Any, share: float, rng: np.random.Generator) -> Any:
    """Which rows are held out: a share of each class, at least one of it and never all."""
    held_out = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        held_out[rows[: min(max(1, round(share * len(rows))), len(rows) - 1)]] = True
    return held_out


def _check_batches(
    settings: Settings,
    plan: Plan,
    training: Dataset,
    validation: Dataset | None,
    output: Output,
) -> bool:
    """A model with a fixed batch takes no other; gives whether a last, smaller one is dropped."""
    fixed = {v.shape[0] for v in plan.summary.inputs if v.shape and isinstance(v.shape[0], int)}
    if not fixed:
        return settings.drop_last
    size = min(fixed)
    if settings.batch_size != size:
        raise UserError(
            f"The model takes batches of exactly {size}, and --batch-size is "
            f"{settings.batch_size}. Use --batch-size {size}, or export the model with a dynamic "
            "first dimension."
        )
    if training.rows is not None and training.rows < size:
        raise UserError(
            f"The model takes batches of exactly {size}, and there are only "
            f"{count(training.rows, 'row')}."
        )
    rest = training.rows % size if training.rows is not None else 0
    if rest and not settings.drop_last:
        output.say(
            f"The model takes batches of exactly {size}: {rest} of {training.rows} rows are left "
            "out of each epoch, others each time."
        )
    if validation is not None and validation.rows and not plan.loss.takes_labels:
        _drop_rest(validation, size, output)
    return True


def _drop_rest(validation: Dataset, size: int, output: Output) -> None:
    """Leave out rows that make no batch; where labels can be ignored, `Trainer` fills one up."""
    assert validation.rows is not None
    rest = validation.rows % size
    if rest == validation.rows:
        raise UserError(
            f"The model takes batches of exactly {size}, and the validation data have only "
            f"{count(validation.rows, 'row')}."
        )
    if rest:
        output.say(f"The last {count(rest, 'row')} of the validation data are left out.")
        validation.arrays = validation.part(slice(0, -rest)).arrays


def _scheduler(settings: Settings, training: Dataset, drop_last: bool) -> Any:
    if training.total is None:
        per_epoch = len(training.batches) if hasattr(training.batches, "__len__") else None
        if per_epoch is None:
            if settings.schedule != "constant" or settings.warmup:
                raise UserError(
                    "--schedule and --warmup need to know how many batches there are: give the "
                    "object that the data function returns a __len__."
                )
            return None
    else:
        whole, rest = divmod(training.total, settings.batch_size)
        per_epoch = whole + (1 if rest and not drop_last else 0)
    steps = max(1, -(-per_epoch // settings.accumulate)) * settings.epochs
    return make_scheduler(settings.schedule, settings.warmup, steps, settings.epochs)


def _metrics(settings: Settings, plan: Plan) -> list[str | Metric]:
    names = metric_names(settings.metric, plan.loss.kind)
    first = plan.link is not None
    several = plan.loss.kind == "binary" and (plan.output.shape or (0, 1))[1:] not in ((1,), ())
    if not names or (settings.metric == "auto" and (not first or several)):
        return []
    if not first:
        raise UserError(
            f"--metric is computed from the first output, {plan.summary.outputs[0].name!r}, and "
            f"the loss from {plan.output.name!r}: leave --metric out."
        )
    with_threshold = {m.name: m for m in (Accuracy, F1, Precision, Recall)}
    is_probability = settings.loss == "bce" or plan.link == "Sigmoid"
    return [
        with_threshold[name](threshold=0.5) if name in with_threshold and is_probability else name
        for name in names
    ]


def _make_artifacts(settings: Settings, plan: Plan, optimizer: Any, folder: Path) -> None:
    folder.mkdir()
    loss, compared = loss_of(settings, plan)
    generate_artifacts(
        plan.model,
        requires_grad=plan.trainable,
        loss=loss,
        optimizer=optimizer,
        artifact_directory=folder,
        loss_input_names=compared,
        step_model=True,
        training_mode=settings.training_mode,
        recompute=read_recompute(settings.recompute),
    )
    if settings.tokenizer is not None:
        copy_tokenizer(settings.tokenizer, folder)  # so that the page of onnxtrain serve has it


def _try_a_batch(artifacts: Path, settings: Settings, training: Dataset) -> None:
    """What only shows when the model runs shows before the run's folder is there."""
    if training.total is None:
        return
    options = session_options()
    options.log_severity_level = 4  # what goes wrong is told below, not by onnxruntime's log
    trainer = Trainer.from_directory(artifacts, session_options=options)
    batch = training.head(min(settings.batch_size, training.total))
    try:
        trainer.evaluate(batch, settings.batch_size)
    except RunError as error:
        raise UserError(
            f"The model fails on the first rows of {training.where}: {error} Do the data fit the "
            "model, its sizes and ranges? onnxtrain inspect shows what it takes."
            + " If rows are longer than it takes: a smaller --max-length."
            * bool(settings.task)
        ) from error
