"""Names say what a thing is: words that fit every variable are no names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from .test_one_of_each import FILES

EMPTY_WORDS = {"found", "made", "kept", "settle", "settled", "told", "wanted", "given"}
"""What was done to a thing, where its name should say what it is: gradients, consumers, rows."""

ALLOWED = {
    ("runtime/loop/trainer.py", "kept"): "the parameter of `Trainer.restore`, a public name",
    ("distributed/parallel.py", "given"): "the parameter of `DataParallel.session_options`, public",
    ("runtime/step/process_group.py", "given"): "the same method of the interface",
}

PIECES = {
    "runtime/session/cutting.py",
    "runtime/session/cut_session.py",
    "runtime/step/pieces.py",
    "runtime/step/gradient_step.py",
    "distributed/overlap.py",
}
"""Where a piece is what it is everywhere: consecutive nodes of a long model, one session each."""


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that code gives to something: functions, classes, variables, fields."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.alias(asname=str(alias)):
                yield alias, node.lineno
            case ast.ExceptHandler(name=str(alias)):
                yield alias, node.lineno


def words(name: str) -> set[str]:
    """The words of a name in snake or camel case."""
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


NAMES = {file: list(names_in(ast.parse(text))) for file, text in FILES.items()}


def test_no_name_says_only_what_was_done() -> None:
    bad = [
        f"{file}:{line}: {name}"
        for file, names in NAMES.items()
        for name, line in names
        if words(name) & EMPTY_WORDS and (file, name) not in ALLOWED
    ]
    assert not bad, "say what these are: " + ", ".join(bad)


def test_exceptions_are_still_there() -> None:
    for file, name in ALLOWED:
        assert name in {n for n, _ in NAMES[file]}, f"{file} has no {name} any more"


def test_thresholds_say_of_what() -> None:
    """``SMALL`` is small for some reader of one file; ``STORED_BYTES`` says what is compared."""
    bare = [
        f"{file}:{line}: {name}"
        for file, names in NAMES.items()
        for name, line in names
        if name.strip("_") in {"SMALL", "LARGE", "BIG", "FEW", "MANY", "LONG"}
    ]
    assert not bare, "a unit is missing in " + ", ".join(bare)


def test_a_piece_is_a_part_of_a_long_model() -> None:
    elsewhere = [
        f"{file}:{line}: {name}"
        for file, names in NAMES.items()
        for name, line in names
        if words(name) & {"piece", "pieces"} and file not in PIECES
    ]
    assert not elsewhere, "another word than piece for " + ", ".join(elsewhere)


def test_no_two_folders_sound_alike() -> None:
    """Updates are in `optim`, what changes graphs in `passes`, what trains in `runtime`."""
    folders = {file.split("/")[0] for file in FILES if "/" in file}
    assert {"optim", "passes", "runtime"} <= folders
    assert not folders & {"optimize", "optimizer", "training", "pass", "utils", "common", "helpers"}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("found = 1", "found"),
        ("def f(kept_by_name): pass", "kept_by_name"),
        ("def made(): pass", "made"),
        ("self._made = 1", "_made"),
        ("for x, found in y: pass", "found"),
        ("class MadeOf: pass", "MadeOf"),
        ("if (kept := f()): pass", "kept"),
        ("import numpy as found", "found"),
    ],
)
def test_the_test_sees_names_of_all_kinds(code: str, name: str) -> None:
    seen = {n for n, _ in names_in(ast.parse(code))}
    assert name in seen
    assert words(name) & EMPTY_WORDS
