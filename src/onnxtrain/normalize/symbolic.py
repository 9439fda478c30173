"""Symbolic shapes: know that ``[batch, 16, 4, 8]`` is that, however the model computed it.

onnx's inference stops at shape arithmetic with a symbolic batch: behind the first
``Reshape(x, Concat(Gather(Shape(x), 0), …))`` nothing is known, and every gradient behind it would
have to decide at run time what to sum over. This pass follows the small integer tensors of such
computations as polynomials of the symbols, fills in the dimensions that follow, replaces what turns
out to be constant, and turns a Reshape with one symbolic dimension into a Reshape with one -1.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..graph.nodes import initializer
from ..graph.onnx_inference import UNKNOWN
from ..graph.parameters import mark_constant
from ..graph.tensor import dims_of
from .polynomial import Poly, UnknownError
from .symbolic_contents import CONTENTS
from .symbolic_facts import MAX_ELEMENTS, Array, Facts
from .symbolic_shapes import SHAPES


def infer_symbolic(model: ir.Model) -> ir.Model:
    """Refine shapes and fold shape arithmetic, in place; types are known before."""
    graph = model.graph
    _Pass(graph).run()
    return model


class _Pass:
    """One forward sweep over a graph."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph, self.facts = graph, Facts()
        self.taken = {v.name for v in (*graph.inputs, *graph.initializers.values())}
        self.taken.update(o.name for node in graph.all_nodes() for o in node.outputs)

    def run(self) -> None:
        for value in self.graph.inputs:
            self._name_dimensions(value)
        for node in list(self.graph):
            if node.domain:
                continue
            self._refine(node)
            self._fold(node)

    def _name_dimensions(self, value: ir.Value) -> None:
        """Give unnamed dimensions of an input a symbol of their own."""
        dims = dims_of(value)
        if dims is not None and None in dims:
            value.shape = ir.Shape(
                [f"{value.name}_dim{i}" if d is None else d for i, d in enumerate(dims)]
            )

    # -- shapes ------------------------------------------------------------------------------

    def _refine(self, node: ir.Node) -> None:
        rule = SHAPES.get(node.op_type)
        if rule is None:
            return
        if all(_complete(o) for o in node.outputs):
            return
        try:
            results = rule(self.facts, node)
        except (UnknownError, TypeError, IndexError, ValueError, KeyError):
            return
        for output, dims in zip(node.outputs, results):
            self.facts.set_dims(output, dims)

    # -- contents ----------------------------------------------------------------------------

    def _fold(self, node: ir.Node) -> None:
        """Follow contents; replace a constant result, simplify a Reshape."""
        if node.op_type == "Reshape":
            self._simplify_reshape(node)
        rule = CONTENTS.get(node.op_type)
        if rule is None or len(node.outputs) != 1:
            return
        try:
            result = rule(self.facts, node)
        except (UnknownError, TypeError, IndexError, ValueError, KeyError, ZeroDivisionError):
            return
        output = node.outputs[0]
        if result is None or result.size > MAX_ELEMENTS or output.dtype is None:
            return
        if output.dtype.is_floating_point() and result.dtype == object:
            return  # objects are integers here, and would be divided as such
        self.facts.contents[output] = result
        if any(isinstance(e, Poly) for e in result.ravel()):
            return
        self._replace_by_constant(output, result.astype(output.dtype.numpy()))

    def _replace_by_constant(self, output: ir.Value, array: Array) -> None:
        if not output.is_graph_output():
            constant = self._constant(f"{output.name}_const", array)
            output.replace_all_uses_with(constant)
            self.facts.contents[constant] = self.facts.contents[output]

    def _simplify_reshape(self, node: ir.Node) -> None:
        """One symbolic dimension among positive numbers can be written as -1."""
        target = self.facts.content(node.inputs[1])
        if target is None or all(isinstance(e, int) for e in target):
            return
        symbolic = [e for e in target if isinstance(e, Poly)]
        if len(symbolic) != 1 or any(isinstance(e, int) and e <= 0 for e in target):
            return
        array = np.array([-1 if isinstance(e, Poly) else e for e in target], np.int64)
        constant = self._constant(f"{node.outputs[0].name}_shape", array)
        node.replace_input_with(1, constant)
        node.attributes.pop("allowzero", None)

    def _constant(self, name: str, array: Array) -> ir.Value:
        value = initializer(self.graph, self._fresh(name), array)
        mark_constant(value)  # also a float that integers were cast to is no weight
        return value

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def _complete(value: ir.Value) -> bool:
    dims = dims_of(value)
    return dims is not None and not any(d is None or str(d).startswith(UNKNOWN) for d in dims)
