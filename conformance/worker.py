"""A process that tries cases of one list: names on its standard input, messages on its output.

The messages are lines of JSON: `{"stage": …}` when a stage begins, `{"row": …}` for each result,
`{"done": …}` after each case. What cases print goes to the standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

Say = Callable[[dict[str, Any]], None]


def main() -> int:
    """Try what is asked for until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("list")
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--memory", type=float, default=0.0)
    parser.add_argument("--exporter", default="")
    options = parser.parse_args()
    say = _channel()
    warnings.simplefilter("ignore")
    module = importlib.import_module(f"conformance.lists.{options.list}")
    if options.names:
        say({"names": module.names(), "batch": getattr(module, "BATCH", 1)})
    _limit_memory(options.memory)
    for line in sys.stdin:
        with _collected_afterwards():
            attempt(line.rstrip("\n"), module.case, say, options.exporter)
    return 0


@contextlib.contextmanager
def _collected_afterwards() -> Iterator[None]:
    """No garbage collection while a case is tried.

    Exporters make objects by the hundred thousand, and a collector looks through them for a fifth
    of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()  # what is left are modules, which the next collection need not look at


def attempt(name: str, make: Callable[[str], Any], say: Say, exporter: str = "") -> None:
    """Try one case, through one exporter or all; whatever it raises is a row."""
    from .check import check, shortened

    say({"stage": "case"})
    try:
        case = make(name)
    except Exception as error:
        traceback.print_exc()
        reason = f"the case cannot be made: {shortened(error)}"
        say({"row": {"name": name, "exporter": "", "outcome": "not exported", "reason": reason}})
    else:
        for row in check(name, case, say, exporter) if case is not None else ():
            say({"row": row})
    say({"done": name})


def _channel() -> Say:
    """The way to whoever started this; prints of others no longer get there."""
    file = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        file.write(json.dumps(message) + "\n")
        file.flush()

    return say


def _limit_memory(gigabytes: float) -> None:
    """A case that wants more gets a MemoryError (where the system has such limits)."""
    try:
        import resource
    except ImportError:
        return
    limit = int(gigabytes * 2**30)
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    sys.exit(main())
