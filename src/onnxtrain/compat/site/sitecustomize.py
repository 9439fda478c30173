"""With this folder on ``PYTHONPATH``, ``ONNXTRAIN_COMPAT=1`` activates the old names at start.

The `sitecustomize` that this one hides, if there is one, runs as well.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _run_hidden() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    others = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_hidden()
if os.environ.get("ONNXTRAIN_COMPAT", "0") not in {"", "0"}:
    from onnxtrain.compat import activate_from_environment

    activate_from_environment()
