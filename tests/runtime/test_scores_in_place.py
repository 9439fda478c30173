"""The gradient of a cross entropy is written to where the scores are."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import onnx.parser
import pytest

import onnxtrain
from onnxtrain.runtime.fusion import library, operators
from onnxtrain.runtime.session.devices import open_session

ROWS, CLASSES = 400, 50_000
SCORES = ROWS * CLASSES * 4 / 2**20
"""Megabytes: 76."""

pytestmark = pytest.mark.skipif(
    not library.is_available() or sys.platform != "linux",
    reason="the kernel needs numba, and the peak of a process is Linux's to say",
)


def model(rows: str, classes: int = CLASSES) -> bytes:
    text = f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[{rows}, 64] x, float[64, {classes}] w, int64[{rows}] labels) => (float loss)
        {{ scores = MatMul(x, w) loss = SoftmaxCrossEntropyLoss(scores, labels) }}"""
    inferred = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    content: bytes = onnxtrain.differentiate(inferred, wrt=["w"]).SerializeToString()
    return content


def feeds(rows: int, classes: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(rows, 64)).astype(np.float32),
        "w": rng.normal(size=(64, classes)).astype(np.float32),
        "labels": rng.integers(0, classes, rows),
    }


def measure(rows: str, in_place: bool) -> None:
    """In a process of its own: print its peak in megabytes, and what a run gives."""
    if not in_place:
        other = operators.CROSS_ENTROPY_GRADIENT._replace(in_place=False)
        table = [other if one.name == other.name else one for one in operators.OPERATORS]
        vars(library)["OPERATORS"] = tuple(table)
    session = open_session(model(rows))
    digest = hashlib.sha256()
    for result in session.run(None, feeds(ROWS, CLASSES)):
        digest.update(result.tobytes())
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    print(json.dumps([peak, digest.hexdigest(), library.kernel_count()]))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [str(ROWS), "N"])
def test_scores_and_their_gradient_share_memory(rows: str) -> None:
    """As much less memory as the scores take; the same loss and gradient to the bit.

    The first process is not counted: where numba has not kept the kernels yet, it compiles them,
    which takes more memory than the scores.
    """
    answers = []
    without = {k: v for k, v in os.environ.items() if k != "MALLOC_PERTURB_"}  # it fills the arena
    for in_place in (True, True, False):
        code = f"from {__name__} import measure; measure({rows!r}, {in_place})"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=without
        )
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    _, (peak, numbers, kernels), (apart, expected, _) = answers
    assert kernels
    assert numbers == expected
    assert 0.6 * SCORES < apart - peak < 1.4 * SCORES


@pytest.mark.parametrize("said", [(1, 3000), (64, 1), (64, 30000), (3000, 64), (1,), (64, 3000, 1)])
@pytest.mark.parametrize("rows", ["64", "N"])
def test_sizes_that_a_file_says_wrongly_change_no_number(rows: str, said: tuple[int, ...]) -> None:
    content = model(rows, 3000)
    expected = open_session(content).run(None, feeds(64, 3000))
    changed = onnx.ModelProto.FromString(content)
    results = {o for n in changed.graph.node for o in n.output if n.op_type == "ScatterElements"}
    described = [v for v in changed.graph.value_info if v.name not in {"scores", *results}]
    described += [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, said)
        for name in ("scores", *results)
    ]
    del changed.graph.value_info[:]
    changed.graph.value_info.extend(described)
    before = library.kernel_count()
    session = open_session(changed.SerializeToString())
    assert library.kernel_count() > before
    for ours, theirs in zip(session.run(None, feeds(64, 3000)), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
