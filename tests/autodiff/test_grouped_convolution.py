"""The gradient of a grouped convolution has as many nodes for a large kernel as for a small one."""

from __future__ import annotations

import onnx
import pytest

from onnxtrain import differentiate

FEW = 22


def nodes(kernel: int, group: int, stride: int, batch: str) -> int:
    pads = [kernel // 2] * 4
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[{batch},8,16,16] x, float[8,{8 // group},{kernel},{kernel}] w)
            => (float[A,B,C,D] y)
        {{ y = Conv<group={group}, pads={pads}, strides=[{stride},{stride}]>(x, w) }}""")
    return len(differentiate(model, wrt=["x", "w"], vjp=True).graph.node)


@pytest.mark.parametrize("batch", ["2", "N"])
@pytest.mark.parametrize("group", [8, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_size_does_not_grow_with_the_kernel(group: int, stride: int, batch: str) -> None:
    large = {nodes(kernel, group, stride, batch) for kernel in (7, 9, 11)}
    assert len(large) == 1
    # Up to three columns of a depthwise kernel have a product each
    small = max(nodes(kernel, group, stride, batch) for kernel in (3, 5))
    assert small - max(large) <= (3 if group == 8 else 0)
    if stride == 1 and group == 8:
        assert max(small, *large) <= FEW
