"""One fused node as a model, and what numpy says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from onnxtrain.runtime.fusion import library
from onnxtrain.runtime.fusion.program import Program, Step, assemble, lower

Array = np.ndarray[Any, Any]
needs_kernel = pytest.mark.skipif(
    not library.is_available(), reason="fused nodes need numba, and Linux on x86-64 or ARM64"
)
Nodes = Sequence[tuple[str, str, Sequence[str]] | tuple[str, str, Sequence[str], Mapping[str, Any]]]
"""Operator, result, operands, and attributes if there are any."""


def program_of(
    nodes: Nodes,
    outputs: Sequence[str],
    hints: Mapping[str, int] | None = None,
    row_axes: int = 1,
) -> Any:
    """The program of some nodes, and the names of its inputs."""
    steps = list[Step]()
    for operator, result, operands, *attributes in nodes:
        steps += lower(operator, result, operands, attributes[0] if attributes else {})
    made = {step.result for step in steps}
    names = [n for s in steps for n in s.operands if isinstance(n, str) and n not in made]
    inputs = list(dict.fromkeys(names))
    return assemble(steps, inputs, outputs, hints, row_axes), inputs


def session_of(
    program: Program | str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    types: Mapping[str, int] | None = None,
    threads: int = 1,
) -> onnxruntime.InferenceSession:
    """A session of a model that has nothing but a fused node."""
    text = program if isinstance(program, str) else program.text()
    node = helper.make_node(
        library.OPERATOR, list(inputs), list(outputs), domain=library.DOMAIN, program=text
    )
    kinds = types or {}
    graph = helper.make_graph(
        [node],
        "fused",
        [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), None) for n in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(library.DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    options.register_custom_ops_library(library.register_path())
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(
    nodes: Nodes,
    feeds: Mapping[str, Array],
    outputs: Sequence[str] = ("y",),
    hints: Mapping[str, int] | None = None,
    threads: int = 1,
    row_axes: int = 1,
) -> list[Array]:
    """The outputs of some nodes, computed as one."""
    program, inputs = program_of(nodes, outputs, hints, row_axes)
    types = {n: TensorProto.BOOL for n, a in feeds.items() if a.dtype == bool}
    session = session_of(program, inputs, outputs, types, threads)
    return list(session.run(None, {n: feeds[n] for n in inputs}))
