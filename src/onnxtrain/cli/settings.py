"""The settings of a run: what the options say, what a configuration file says."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..hyper import LARGEST
from ..runtime.files.readfile import file_name, read_regular
from .output import UserError
from .recipes import IGNORED, loss_recipe


@dataclass
class Settings:
    """Everything that decides about a run; the names are those of the options."""

    model: str
    data: str = ""
    loss: str = ""
    optimizer: str = "adamw"
    lr: float = 1e-3
    epochs: int = 5
    batch_size: int = 32
    drop_last: bool = False
    accumulate: int = 1
    val: str | None = None
    target: str | None = None
    features: str | None = None
    categorical: str | None = None
    image_size: str | None = None
    mean: str | None = None
    std: str | None = None
    augment: str | None = None
    standardize: str = "none"
    freeze: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    new_head: bool = False
    unfreeze: tuple[str, ...] = ()
    schedule: str = "constant"
    warmup: float = 0.0
    clip_norm: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    metric: str = "auto"
    early_stopping: int | None = None
    keep: str = "last"
    monitor: str | None = None
    loss_output: str | None = None
    ignore_index: int = IGNORED
    training_mode: str = "auto"
    recompute: str | None = None
    check_finite: bool = True
    seed: int = 0
    output: str | None = None
    resume: bool = False
    overwrite: bool = False
    log: tuple[str, ...] = ()
    tensorboard: bool = False
    rank: int = 0
    alpha: float = 16.0
    targets: str = "all-linear"
    lora_dropout: float = 0.0
    dora: bool = False
    rslora: bool = False
    adapter: str | None = None
    task: str | None = None
    tokenizer: str | None = None
    max_length: int = 256
    packing: bool = True
    padding_side: str = "right"
    text_column: str = "text"
    prompt: str | None = None
    sample_tokens: int = 40
    pooling: str = "auto"
    scale: float = 20.0
    margin: float = 5.0
    matryoshka: str | None = None
    teacher: str | None = None
    temperature: float = 2.0
    distill_alpha: float = 0.5
    stream: bool = False
    buffer_rows: int = 8192
    interleave: int = 8
    save_every: int | None = None
    auto_resume: bool = False
    sign: str | None = None
    qat: bool = False
    weight_bits: int = 8
    activation_bits: int = 8
    per_channel: bool = True
    observer: str = "minmax"
    percentile: float = 99.99
    calibration_rows: int = 256
    learn_scales: bool = True
    exclude: str | None = None
    eight_bits: str | None = None

    def check(self) -> None:
        """Numbers that make sense, before anything is read."""
        _positive("--lr", self.lr, "a small positive number such as 0.001")
        _whole("--epochs", self.epochs)
        _whole("--batch-size", self.batch_size)
        _whole("--accumulate", self.accumulate)
        if self.early_stopping is not None:
            _whole("--early-stopping", self.early_stopping)
        if self.clip_norm is not None:
            _positive("--clip-norm", self.clip_norm, "a positive number such as 1.0, or nothing")
        for option, value in (
            ("--warmup", self.warmup),
            ("--weight-decay", self.weight_decay or 0.0),
            ("--momentum", self.momentum or 0.0),
            ("--seed", self.seed),
        ):
            if not 0 <= value <= LARGEST:
                raise UserError(f"{option} is {value:g}; it must be 0 or a positive number.")
        if self.ignore_index != IGNORED and not loss_recipe(self.loss).takes_labels:
            raise UserError(
                f"--ignore-index {self.ignore_index} is for losses that take class numbers; "
                f"{self.loss} takes none."
            )
        _whole("--max-length", self.max_length)
        _whole("--buffer-rows", self.buffer_rows)
        _whole("--interleave", self.interleave)
        if self.save_every is not None:
            _whole("--save-every", self.save_every)
        if self.output is not None:
            file_name(self.output, UserError)
        if self.auto_resume and self.output is None:
            raise UserError("--auto-resume needs --output, the folder that all starts share.")
        if self.sample_tokens < 0:
            raise UserError(f"--sample-tokens is {self.sample_tokens}; it must be 0 or more.")
        if (self.resume or self.auto_resume) and self.overwrite:
            raise UserError("--resume goes on with a run, --overwrite throws it away: choose one.")

    @property
    def is_adapted(self) -> bool:
        """Whether adapters are trained instead of the model's own parameters."""
        return bool(self.rank) or self.adapter is not None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}


def _positive(option: str, value: float, fix: str) -> None:
    if not 0 < value <= LARGEST:
        raise UserError(f"{option} is {value:g}; it must be {fix}.")


def _whole(option: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{option} is {value}; it must be at least 1.")


# --- configuration files ------------------------------------------------------------------------


def read_config(path: str) -> dict[str, Any]:
    """Settings from a TOML or YAML file; keys are the names of the options, "-" or "_"."""
    file = Path(path)
    if not file.exists():
        raise UserError(f"There is no configuration file {path!r}.")
    readers = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml}
    if file.suffix.lower() not in readers:
        raise UserError(f"A configuration file ends in .toml, .yaml or .yml, not {file.name!r}.")
    settings = readers[file.suffix.lower()](file)
    if not isinstance(settings, dict):
        raise UserError(f"{path!r} must hold 'name: value' pairs, one per option.")
    return {_key(str(k)[:200], path): _plain(v, path) for k, v in settings.items()}


MAX_CONFIG, MAX_LIST = 2**20, 10_000
"""Bytes of a configuration file, and entries of a list in it."""


def _text(path: Path) -> str:
    return read_regular(path, UserError, MAX_CONFIG).decode("utf-8")


def _plain(value: Any, path: str) -> Any:
    """A number, text, or a list of them; YAML's references could make more of a few lines."""
    values = value if isinstance(value, list) else [value]
    if len(values) > MAX_LIST or not all(map(_is_plain, values)):
        raise UserError(
            f"{path!r} has a {type(value).__name__} where an option takes a number, text, or a "
            "list of them."
        )
    return value


def _is_plain(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) < 2**63
    return value is None or isinstance(value, str | float)


def _toml(path: Path) -> Any:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        tomllib = importlib.import_module(name)
    except ImportError:
        raise UserError(
            f"{str(path)!r}: Python 3.10 reads TOML with the package tomli only: pip install "
            "tomli, or use Python 3.11."
        ) from None
    try:
        return tomllib.loads(_text(path))
    except (ValueError, RecursionError) as error:  # its own errors are ValueErrors
        raise UserError(f"{str(path)!r} is not valid TOML: {error}.") from error


def _yaml(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise UserError(
            f'{str(path)!r} needs PyYAML: pip install "onnxtrain[yaml]", or write TOML.'
        ) from None
    try:
        return yaml.safe_load(_text(path))
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError) as error:
        one_line = " ".join(str(error).split())
        raise UserError(f"{str(path)!r} is not valid YAML: {one_line}.") from error


LISTS = frozenset({"data", "features", "val", "categorical", "augment", "matryoshka", "mean",
                   "metric", "std"})  # fmt: skip
"""Settings that are text with commas, which a configuration file may write as a list."""
FIELDS = {f.name: f for f in dataclasses.fields(Settings)}
ALSO = {"learning_rate": "lr"}
"""Other names of settings, as the options have them."""


def _key(key: str, path: str) -> str:
    name = key.replace("-", "_")
    name = ALSO.get(name, name)
    if name in FIELDS:
        return name
    close = difflib.get_close_matches(name, FIELDS, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise UserError(
        f"{path!r} has the key {key!r}, which is no option of onnxtrain train.{hint} Keys are "
        f"{', '.join(FIELDS)}."
    )


def typed(name: str, value: Any, path: str) -> Any:
    """A value of a configuration file in the type of the setting."""
    kind = str(FIELDS[name].type)
    if value is None and "None" in kind:
        return None
    try:
        if kind.startswith("bool"):
            if not isinstance(value, bool):
                raise ValueError
            return value
        if kind.startswith("tuple"):
            return (value,) if isinstance(value, str) else tuple(str(v) for v in value)
        if kind.startswith("int"):
            if isinstance(value, bool) or int(value) != float(value):
                raise ValueError
            return int(value)
        if kind.startswith("float"):
            return float(value)
        if name in LISTS and isinstance(value, list):
            return ",".join(map(str, value))
        return str(value)
    except (TypeError, ValueError, OverflowError):
        expected = kind.split(" ", maxsplit=1)[0]
        raise UserError(
            f"{path!r}: {name} is {value!r}, and it must be of type {expected}."
        ) from None


def read_recompute(text: str | None) -> int | str | list[str] | None:
    """What ``--recompute`` means: a number, a word, or names with commas between them."""
    if text is None or text in ("auto", "cheap"):
        return text
    return int(text) if text.isdigit() else [name for name in text.split(",") if name]
