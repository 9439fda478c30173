"""The same in JavaScript: `checkFinite`, rates and clipping, in Node and in WebAssembly."""

from __future__ import annotations

import pytest

from onnxtrain.artifacts.device import write_device_file
from onnxtrain.runtime.files import tensorfile
from tests.js import tools

from . import models


@pytest.mark.parametrize("backend", ["node", "wasm"])
def test_javascript(tmp_path, backend):
    models.write(tmp_path, models.OPTIMIZERS["adamw"])
    write_device_file(tmp_path)
    batches = {f"good {seed}": models.good(seed) for seed in range(3)}
    batches |= {name: make() for name, make in models.BAD.items()}
    tensors = {f"{n}/{i}": a for n, b in batches.items() for i, a in enumerate(b)}
    tensorfile.write(tmp_path / "batches", tensors, {})
    (found,) = tools.run_node("finite.mjs", tools.LIBRARY, tools.modules(), backend, tmp_path)
    for size, norm in found["norms"].items():
        assert norm == pytest.approx(0.5, rel=1e-5 if float(size) < 1e38 else 1e-3), size
