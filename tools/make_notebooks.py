"""Write docs/notebooks: the examples as notebooks, run, with what they printed.

python -m tools.make_notebooks [name …]      # build and run; without names all of them
python -m tools.make_notebooks --check       # fail when the code of one is not the example's

A notebook is made of the example's train.py: its functions and constants become cells, and so do
the paragraphs of its ``main``, with the defaults of its options as values. The documentation site
renders what is here (`tools/site.py`); nothing but Python is needed for either.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES, TARGET = ROOT / "examples", ROOT / "docs" / "notebooks"
SOURCES = {
    "getting_started": "notebook/getting_started.ipynb",
    "tabular_regression": "tabular_regression/train.py",
    "text_classification": "text_classification/train.py",
    "time_series_lstm": "time_series_lstm/train.py",
    "two_output_loss": "two_output_loss/train.py",
}
Cell = dict[str, Any]


# --- from an example to cells ---------------------------------------------------------------------


def build(name: str) -> list[Cell]:
    """The cells of a notebook, without outputs."""
    source = EXAMPLES / SOURCES[name]
    if source.suffix == ".ipynb":
        cells: list[Cell] = json.loads(source.read_text(encoding="utf-8"))["cells"]
        return cells
    return numbered(cells_of(source))


def cells_of(source: Path) -> list[tuple[str, str]]:
    """Kinds and texts of the cells of a program."""
    text = source.read_text(encoding="utf-8")
    tree = ast.parse(text)
    title = (source.parent / "README.md").read_text(encoding="utf-8").splitlines()[0]
    folder = source.parent.relative_to(ROOT).as_posix()
    intro = f"{title}\n\n{ast.get_docstring(tree)}\n\nFrom `{folder}`, where it is a program."
    cells = [("markdown", intro)]
    setting_up: list[str] = []
    main: ast.FunctionDef | None = None
    for node in tree.body[1:]:
        if isinstance(node, ast.FunctionDef) and node.name == "main":
            main = node
        elif isinstance(node, ast.If):
            continue  # the call of main
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            cells[-1] = ("code", f"{cells[-1][1]}  # {node.value.value}")  # what a constant is
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if not is_for_programs(node):
                setting_up.append(code_of(text, node))
        else:
            cells.append(("code", code_of(text, node)))
    assert main is not None, source
    cells.insert(1, ("code", "\n".join(setting_up)))
    cells.append(("markdown", "## All of it together"))
    return [*cells, *body_cells(text, main)]


def is_for_programs(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether a program imports it for its options, which a notebook does not have."""
    names = {alias.name for alias in node.names}
    return names <= {"annotations", "argparse", "Sequence"}


def code_of(text: str, node: ast.stmt) -> str:
    """The source of a statement, with decorators and the comment behind its last line."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def body_cells(text: str, main: ast.FunctionDef) -> list[tuple[str, str]]:
    """The paragraphs of a function as cells, its options as values."""
    cells = [("code", options_of(text, main))]
    first = next(i for i, node in enumerate(main.body) if "parse_args" in ast.unparse(node))
    rest = [node for node in main.body[first + 1 :] if not isinstance(node, ast.Return)]
    lines = text.splitlines()[(main.body[first].end_lineno or 0) : rest[-1].end_lineno]
    paragraphs = re.split(r"\n\s*\n", textwrap.dedent("\n".join(lines)).strip("\n"))
    return [*cells, *(("code", paragraph) for paragraph in paragraphs)]


def options_of(text: str, main: ast.FunctionDef) -> str:
    """The defaults of a program's options, as a class with values."""
    lines = ["class options:"]
    for call in (n for n in ast.walk(main) if isinstance(n, ast.Call)):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
            continue
        name = ast.literal_eval(call.args[0]).lstrip("-").replace("-", "_")
        keywords = {k.arg: k.value for k in call.keywords}
        value = ast.get_source_segment(text, keywords["default"]) if "default" in keywords else None
        explained = f"  # {ast.literal_eval(keywords['help'])}" if "help" in keywords else ""
        absent = "False" if "action" in keywords else "None"
        lines.append(f"    {name} = {value or absent}{explained}")
    return "\n".join(lines)


def numbered(cells: list[tuple[str, str]]) -> list[Cell]:
    """Cells as a notebook holds them."""
    result: list[Cell] = []
    for number, (kind, text) in enumerate(cells):
        cell: Cell = {"cell_type": kind, "id": f"{kind}-{number}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        result.append(cell | {"source": text.splitlines(keepends=True)})
    return result


# --- running --------------------------------------------------------------------------------------


def run(cells: list[Cell]) -> None:
    """Run the cells in a folder of their own and keep what they print."""
    space: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            code = [c for c in cells if c["cell_type"] == "code"]
            for number, cell in enumerate(code, 1):
                cell["execution_count"] = number
                cell["outputs"] = outputs("".join(cell["source"]), space)
        finally:
            os.chdir(before)


def outputs(code: str, space: dict[str, Any]) -> list[Cell]:
    """Run one cell: what it prints, and the value of its last expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        exec(compile(tree, "cell", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), space)
    result: list[Cell] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        result.append({"output_type": "stream", "name": "stdout", "text": lines})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        result.append(
            {"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": data}
        )
    return result


# --- files ----------------------------------------------------------------------------------------


def notebook(cells: list[Cell]) -> str:
    """A notebook as text."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def stale(name: str) -> bool:
    """Whether the code of a notebook is not that of its example."""
    path = TARGET / f"{name}.ipynb"
    if not path.is_file():
        return True
    written = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [c["source"] for c in written] != [c["source"] for c in build(name)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(SOURCES))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        old = [name for name in options.names if stale(name)]
        if old:
            print(
                f"docs/notebooks is stale ({', '.join(old)}): run `python -m tools.make_notebooks`"
            )
        return 1 if old else 0
    TARGET.mkdir(exist_ok=True)
    for name in options.names:
        cells = build(name)
        run(cells)
        (TARGET / f"{name}.ipynb").write_text(notebook(cells), encoding="utf-8")
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
