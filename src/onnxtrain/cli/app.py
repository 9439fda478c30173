"""The command group: commands by name, options that all share, errors and exit codes."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import click

from ..drawing.inert import inert
from ..errors import NoGradientError, OnnxTrainError, OnnxTrainWarning
from .output import Output, readable
from .waiting import preparations_shown

COMMANDS = {
    "demo": "demo",
    "inspect": "inspect",
    "train": "train",
    "lora": "lora",
    "qat": "qat",
    "quantize": "quantize",
    "tune": "tune",
    "runs": "runs",
    "export": "export",
    "artifacts": "artifacts",
    "training-info": "training_info",
    "check": "check",
    "differentiate": "differentiate",
    "draw": "draw",
    "bench": "bench",
    "convert": "convert",
    "serve": "serve",
    "sign": "sign",
    "verify": "verify",
    "version": "version",
}
"""Command → module of this package; each has a click command called `command`."""

OK, USER_ERROR, USAGE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
"""Exit codes."""

F = TypeVar("F", bound=Callable[..., Any])


class Commands(click.Group):
    """Imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".{COMMANDS[cmd_name]}", __package__)
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As usual; an unknown name brings the list of known ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            known = f"{error.format_message()} Commands: {', '.join(COMMANDS)}."
            raise click.UsageError(known, ctx) from error


def _set(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def callback(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            setattr(ctx.ensure_object(Output), name, True)

    return callback


def common(function: F) -> F:
    """The options of every command: --quiet and --debug."""
    for flag, name, text in (
        ("--debug", "debug", "Show the traceback of an error."),
        ("--quiet", "quiet", "Print results and errors only."),
    ):
        option = click.option(
            flag, is_flag=True, expose_value=False, callback=_set(name), help=text
        )
        function = option(function)
    return function


EPILOG = """\b
Examples:
  onnxtrain demo
  onnxtrain inspect model.onnx
  onnxtrain train model.onnx --data train.npz --loss cross_entropy --epochs 5

\b
Exit codes: 0 done, 1 a mistake in what was given, 2 wrong usage, 130 interrupted, 143 terminated.

\b
Shell completion: put this into the start-up file of your shell
  bash   eval "$(_ONNXTRAIN_COMPLETE=bash_source onnxtrain)"
  zsh    eval "$(_ONNXTRAIN_COMPLETE=zsh_source onnxtrain)"
  fish   _ONNXTRAIN_COMPLETE=fish_source onnxtrain | source
"""

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Commands, context_settings=SETTINGS, epilog=EPILOG)
@click.version_option(package_name="onnxtrain", prog_name="onnxtrain")
@common
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Train any ONNX model on the stock onnxruntime."""
    ctx.ensure_object(Output)


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a command as Ctrl-C does, so that no temporary file is left behind."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Raise `Terminated` when the process is told to end, unless somebody else handles that."""
    on_main = threading.current_thread() is threading.main_thread()
    if not on_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(*_: object) -> NoReturn:
    raise Terminated


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code.

    Args:
        arguments: without the program's name; by default those of the process.
    """
    output = Output()
    try:
        with _terminable(), _warnings_as_sentences(output), preparations_shown(output):
            code = cli.main(
                args=None if arguments is None else list(arguments),
                prog_name="onnxtrain",
                standalone_mode=False,
                obj=output,
            )
        sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        return USAGE
    except (click.Abort, KeyboardInterrupt) as error:
        hidden = (error, error.__cause__, error.__context__)  # click puts its Abort in front
        terminated = any(isinstance(one, Terminated) for one in hidden)
        click.echo("Terminated." if terminated else "Interrupted.", err=True)
        return TERMINATED if terminated else INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return USER_ERROR
    except Exception as error:
        return _report(error, output)
    return code if isinstance(code, int) else OK


@contextlib.contextmanager
def _warnings_as_sentences(output: Output) -> Iterator[None]:
    """Say our own warnings as a sentence; Python would add a place in a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", OnnxTrainWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, OnnxTrainWarning):
                output.say(f"Warning: {message}", style="yellow")
            else:
                usual(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _report(error: Exception, output: Output) -> int:
    """One readable paragraph on stderr."""
    if output.debug:
        sys.stderr.write(inert(traceback.format_exc()))
    message = _message(error)
    output.err.print("Error: ", style="bold red", end="")
    output.err.print(readable(message), markup=False, highlight=False, soft_wrap=True)
    return USER_ERROR


def _message(error: Exception) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and not isinstance(error, OnnxTrainError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}."
    if isinstance(error, NoGradientError):
        nodes = "; ".join(map(str, error.blockers[:3]))
        more = f" and {len(error.blockers) - 3} more" if len(error.blockers) > 3 else ""
        return (
            f"The gradient is blocked: {nodes}{more}. Freeze the parameters behind it (--freeze), "
            "compute the loss from a value before it (--loss-output), or register a rule with "
            "onnxtrain.extend.gradient."
        )
    if isinstance(error, OnnxTrainError):
        return " ".join(str(error).split())
    return (
        f"{type(error).__name__}: {error}. This is not a mistake that onnxtrain knows; run the "
        "command again with --debug for the traceback, and please report it."
    )
