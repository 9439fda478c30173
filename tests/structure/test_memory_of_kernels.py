"""Kernels take addresses of arrays, which numba frees behind the last line that names them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import onnxtrain

FOLDER = Path(onnxtrain.__file__).parent / "runtime" / "fusion"
MAKERS = {"empty", "zeros", "ones", "full", "arange"}


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                yield f"{path.stem}.{node.name}", node


def base(node: ast.expr) -> str:
    """`lent` of `lent[number]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def made(function: ast.FunctionDef) -> set[str]:
    """Arrays that a function makes."""
    names = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        pairs = (
            list(zip(target.elts, value.elts))
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            else [(target, value)]
        )
        for left, right in pairs:
            is_made = isinstance(right, ast.Call) and isinstance(right.func, ast.Attribute)
            if is_made and right.func.attr in MAKERS and isinstance(left, ast.Name):
                names.add(left.id)
    return names


def lent(function: ast.FunctionDef) -> dict[str, int]:
    """Names whose address is taken, and the last line of that."""
    return {
        base(node.value): node.lineno
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr == "ctypes"
    }


def kept(function: ast.FunctionDef) -> dict[str, int]:
    """Names that are kept, and the last line of that."""
    return {
        base(node.args[0]): node.lineno
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and base(node.func) == "keep"
    }


LENT = [
    (name, array, function)
    for name, function in functions()
    for array in sorted(made(function) & set(lent(function)))
]


def test_there_are_some() -> None:
    assert {name for name, _, _ in LENT} >= {
        "padding._pad_tensor",
        "driver._run",
        "driver._compute",
    }


@pytest.mark.parametrize(
    ("array", "function"), [case[1:] for case in LENT], ids=[f"{a} of {f}" for f, a, _ in LENT]
)
def test_what_is_lent_is_kept(array: str, function: ast.FunctionDef) -> None:
    assert kept(function).get(array, 0) > lent(function)[array]
