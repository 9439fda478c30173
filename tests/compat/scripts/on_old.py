"""Runs scripts of this folder in a python that has the predecessor: ``on_old.py table script``."""

import sys
import tempfile
from os import chdir
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main(table, name):
    from scripts import blocks, device
    from scripts.prelude import MAKE_ARTIFACTS, ready

    code = blocks.SCRIPTS[name] if table == "blocks" else MAKE_ARTIFACTS + device.SCRIPTS[name]
    with tempfile.TemporaryDirectory() as folder:
        chdir(folder)
        exec(compile(code, f"<{name}>", "exec"), {"__name__": "script", **ready()})
        chdir("/")


if __name__ == "__main__":
    main(*sys.argv[1:])
