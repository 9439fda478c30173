"""A seed for models that draw from a counter and whose user has given none."""

from __future__ import annotations

import onnx

from ...normalize import MAX_IR
from ...runtime.session.devices import create_session

BITS = 24
"""What a float holds exactly."""


def drawn_seed() -> int:
    """A seed drawn by onnxruntime, so that `onnxruntime.set_seed` makes a run repeatable.

    Without that it is another one in every process.
    """
    shape, high = [2], float(1 << BITS)
    node = onnx.helper.make_node("RandomUniform", [], ["y"], shape=shape, low=0.0, high=high)
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)
    graph = onnx.helper.make_graph([node], "seed", [], [output])
    opset = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=MAX_IR)
    session = create_session(model.SerializeToString())
    low, high_part = session.run(None, {})[0].astype(int)
    return int(low) + (int(high_part) << BITS)
