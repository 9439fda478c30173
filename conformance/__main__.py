"""`python3 -m conformance LIST`, with nothing but Python ≥ 3.10.

It makes an environment of the list's own under `.venv-bench` the first time. Every case is tried
in a process with limits of time and memory; its rows are appended to
`conformance/results/LIST.jsonl` as they come. A case that has a row is not tried again unless
`--again` is given.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from .environment import lists, python_of
from .results import path_of
from .run import Limits, run


def main() -> int:
    """Try the cases of one list."""
    options = arguments()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts what runs behind deaf to both
        signal.signal(number, signal.default_int_handler)
    python = options.python or python_of(options.list, lists()[options.list])
    limits = Limits(options.seconds, options.memory, options.total, options.exporter)
    results = Path(options.results) if options.results else path_of(options.list)
    try:
        return run(options.list, python, results, limits, only=options.only, again=options.again)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130


def arguments() -> argparse.Namespace:
    """What the command line says."""
    head, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="conformance", description=head, epilog=rest)
    add = parser.add_argument
    add("list", choices=list(lists()), help="which list")
    add("--only", metavar="GLOB", default="*", help="only cases whose name fits")
    add("--again", action="store_true", help="also cases that have a row already")
    add("--seconds", type=float, default=300.0, help="of the processor, for one case (300)")
    add("--memory", type=float, default=8.0, help="gigabytes that a case may allocate (8)")
    add("--total", type=float, default=0.0, help="stop after about so many seconds")
    add("--exporter", default="", help="of a module's exporters only this one")
    add("--python", default="", help="Python of an environment that exists already")
    add("--results", default="", help="write the rows to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
