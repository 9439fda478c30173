"""``python -m onnxtrain.compat script.py arguments…``: run a script with the old names.

``-m module`` and ``-c code`` work as with python itself. Processes that the script starts get the
names too.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from . import SITE, VARIABLE, CompatError, activate

USAGE = "usage: python -m onnxtrain.compat (script.py | -m module | -c code) [arguments…]"


def main(arguments: list[str]) -> int:
    """Run what the arguments say; gives the exit status for wrong ones."""
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(f"{USAGE}\n\n{__doc__}")
        return 0 if arguments else 2
    if arguments[0] in {"-m", "-c"} and len(arguments) < 2:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        activate()
    except CompatError as error:
        print(error, file=sys.stderr)
        return 1
    os.environ[VARIABLE] = "1"
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = SITE if not path else os.pathsep.join((SITE, path))
    run(arguments)
    return 0


def run(arguments: list[str]) -> None:
    """Run a script, a module or a piece of code as ``__main__``."""
    kind = arguments[0]
    if kind == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        if not Path(kind).exists():
            sys.exit(f"There is no script {kind!r}.\n{USAGE}")
        sys.argv = arguments
        sys.path[0] = str(Path(kind).resolve().parent)
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
