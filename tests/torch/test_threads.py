"""Which modules get a second thread."""

from __future__ import annotations

import onnx.parser
import pytest

pytest.importorskip("torch")
from onnxtrain.torch._ortmodule_run import is_small


@pytest.mark.parametrize(("rows", "small"), [(100, True), (1024, False)])
def test_a_large_argument_needs_no_weight(rows: int, small: bool) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[{rows}, 1024] x) => (float[{rows}, 1024] y) {{ y = Tanh(x) }}""")
    assert is_small(model, ["x"]) is small
