"""The folder of a run: which one, prepared aside and put in its place, and gone on with."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OnnxTrainWarning
from ..runtime.files.atomic import is_alive
from ..runtime.files.readfile import read_regular
from .history import write_text
from .output import Output, UserError
from .settings import FIELDS, Settings

FIXED = (
    "accumulate",
    "activation_bits",
    "augment",
    "batch_size",
    "buffer_rows",
    "calibration_rows",
    "categorical",
    "clip_norm",
    "distill_alpha",
    "drop_last",
    "eight_bits",
    "exclude",
    "freeze",
    "ignore_index",
    "image_size",
    "interleave",
    "learn_scales",
    "loss",
    "loss_output",
    "margin",
    "matryoshka",
    "mean",
    "momentum",
    "new_head",
    "observer",
    "optimizer",
    "per_channel",
    "percentile",
    "pooling",
    "qat",
    "scale",
    "seed",
    "standardize",
    "std",
    "task",
    "teacher",
    "temperature",
    "train",
    "training_mode",
    "unfreeze",
    "weight_bits",
    "weight_decay",
)
"""Settings that a resumed run must share with the one it goes on with."""


def choose_folder(settings: Settings, output: Output) -> Path:
    """The folder that was named, or one under ``runs``: the newest to go on with, or a new one."""
    if settings.output is not None:
        return Path(settings.output)
    base = Path("runs") / Path(settings.model).stem
    candidates = [base, *(base.with_name(f"{base.name}-{i}") for i in range(2, 10_000))]
    taken = [c for c in candidates if c.exists()]
    if not (settings.resume or settings.overwrite):
        return next(c for c in candidates if not c.exists())
    chosen = taken[-1] if taken else base
    if taken:
        what = "Going on with" if settings.resume else "Overwriting"
        newest = f", the newest of {len(taken)}; --output names another" if len(taken) > 1 else ""
        output.say(f"{what} the run in {chosen}{newest}.")
    return chosen


def is_resumable(folder: Path) -> bool:
    """Whether a run was saved in a folder."""
    return (folder / "run.json").is_file() and (folder / "checkpoint").is_file()


@contextmanager
def staged(folder: Path, settings: Settings) -> Iterator[Path]:
    """A folder to prepare the run in; it becomes `folder` at the end, or nothing is left."""
    if (folder / "run.json").exists() and not settings.overwrite:
        raise UserError(
            f"{folder} holds a run already. Go on with it (--resume), throw it away (--overwrite) "
            "or choose another --output."
        )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output {folder} is a file; give the name of a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "run.json").exists():
        raise UserError(f"{folder} is not empty and no run: choose another --output.")
    new_parents = _make_parents(folder.parent)
    _remove_abandoned(folder)
    try:
        prefix = f".{folder.name}-{os.getpid()}-"
        staging = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    except OSError as error:
        raise UserError(
            f"--output {folder}: the folder {folder.parent} is not writable ({error.strerror}). "
            "Choose another --output."
        ) from error
    try:
        yield staging
        staging.chmod(0o755)
        if folder.exists():  # at no moment is there neither the old run nor the new one
            old = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
            folder.rename(old / folder.name)
            staging.rename(folder)
            shutil.rmtree(old)
        else:
            staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        for parent in new_parents:
            parent.rmdir()
        raise


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left when they prepared the same run."""
    pattern = re.compile(rf"\.{re.escape(folder.name)}-([0-9]+)-\w+")
    for path in folder.parent.iterdir():
        match = pattern.fullmatch(path.name)
        if match and path.is_dir() and not path.is_symlink() and not is_alive(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _make_parents(folder: Path) -> list[Path]:
    """Create missing folders; gives them, the innermost first."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--output: the folder {folder} cannot be made ({error.strerror}). Choose another."
        ) from error
    return missing


def write_about(folder: Path, settings: Settings, digest: str, data: str) -> None:
    """What a later run must know to go on: run.json."""
    about = {"model_sha256": digest, "data_sha256": data, "settings": settings.to_dict()}
    write_text(folder / "run.json", json.dumps(about, indent=2) + "\n")


def check_resume(folder: Path, settings: Settings, digest: str, data: str) -> None:
    """Refuse to go on with another model or other settings; other data are told.

    Args:
        folder: of the run.
        settings: those of now.
        digest: of the model.
        data: `fingerprint` of the training data.
    """
    about_file = folder / "run.json"
    if not is_resumable(folder):
        raise UserError(
            f"There is nothing to resume in {folder}: no run was saved there. Leave --resume out, "
            "or name the folder of the run with --output."
        )
    _refuse_links(folder)
    about = read_about(about_file)
    started_with = about["settings"]
    if about["model_sha256"] != digest:
        raise UserError(
            f"The run in {folder} trained another model: {settings.model} is not the file it was "
            f"started with ({started_with.get('model')}). Give that model, or start a new run "
            "without --resume."
        )
    now = settings.to_dict()
    for name in FIXED:
        before = started_with.get(name, FIELDS[name].default)
        if before != now[name]:
            option = "--" + name.replace("_", "-")
            raise UserError(
                f"The run in {folder} was started with {option} {before}, and now it is "
                f"{now[name]}. Resume with the same settings, or start a new run without --resume."
            )
    if about.get("data_sha256", data) != data:
        if settings.standardize != "none" or settings.categorical:
            raise UserError(
                f"The run in {folder} was started with other data than {settings.data}, and what "
                "--standardize and --categorical mean follows from the data. Give the same, or "
                "start a new run without --resume."
            )
        warnings.warn(
            f"The run in {folder} was started with other data than {settings.data}; it goes on "
            "with these.",
            OnnxTrainWarning,
            stacklevel=2,
        )


def _refuse_links(folder: Path) -> None:
    """A run that somebody else made could lead writes to any file of the user."""
    inside = folder.resolve()
    for path in folder.iterdir():
        if path.is_symlink() and inside not in path.resolve().parents:
            raise UserError(
                f"{path} is a link that leads out of the folder of the run, and going on would "
                "write there. Put the file itself into the folder."
            )


def read_about(path: Path) -> dict[str, Any]:
    """What a run was started with."""
    try:
        about = json.loads(read_regular(path, UserError))
    except (ValueError, RecursionError):
        about = None
    kinds = {"model_sha256": str, "settings": dict}
    if isinstance(about, dict) and all(isinstance(about.get(k), t) for k, t in kinds.items()):
        return about
    raise UserError(
        f"{path} is damaged: it does not say what the run was started with. Start a new run "
        "without --resume; the checkpoint beside it can still be exported."
    )


def fingerprint(arrays: Mapping[str, Any]) -> str:
    """A digest of names, types, shapes and some of the rows: enough to notice other data."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array[:: max(1, len(array) // 1000)]).tobytes())
    return digest.hexdigest() if arrays else ""
