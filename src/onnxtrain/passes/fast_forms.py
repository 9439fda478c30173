"""Operators whose kernels are slow in onnxruntime, written with operators that have fast ones.

Times are for a million numbers on one thread of the machine of docs/performance.md, onnxruntime
1.31.1. Its Softplus takes 12 to 36 ms, since it computes exponential and logarithm one by one;
the formula here takes 2.8. Mish is made of Softplus. Elu, Selu and Celu take 1.9 to 2.3 ms, and the
formulas 0.9 to 1.3; PRelu 5.0, and the formula 0.8. A cubic Resize takes 350 ms, and the products
with its interpolation matrices two. A Where takes up to 1.3 ms, as long as five products.

Each form is as exact as the kernel it replaces, also for infinities. It is declared as one function
(`autodiff.composites`), so that its gradient is the rule's. The families have files of their own:
`activation_forms`, `axis_forms`, `product_forms`, `fourier_forms`, `index_forms`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from ..autodiff.composites import declare
from ..autodiff.rules import activations, softmax
from ..graph import OpBuilder
from ..graph.edit import remove_nodes, replace_value, take_over
from ..graph.infer_nodes import infer_nodes
from . import activation_forms as activation
from . import axis_forms as axes
from . import fourier_forms as fourier
from . import index_forms as indices
from . import product_forms as products
from .forms import Form, Written, has_rule
from .needless_nodes import REWRITES


def use_fast_forms(
    model: ir.Model, wrt: Sequence[str], of: Sequence[str], no_gradient: Collection[str]
) -> ir.Model:
    """Write the nodes of the main graph that have a faster form in that form."""
    named = {*wrt, *of}
    op = OpBuilder.on(model)
    for node in list(model.graph):
        if node.domain or node.name in no_gradient or node.op_type in no_gradient:
            continue
        if node.outputs[0].name not in wrt and not _in_between(node, named):
            _rewrite(model.graph, node)
        for form in FORMS.get(node.op_type, ()):
            if node.graph is not None and node.outputs[0].dtype == form.dtype:
                _use(op, node, form, named)
    op.register_constants(model.graph, mark=True)
    return model


def _rewrite(graph: ir.Graph, node: ir.Node) -> None:
    for rewrite in REWRITES.get(node.op_type, ()):
        replacement = rewrite(node)
        if replacement is not None:
            replace_value(graph, node.outputs[0], replacement)
            return


def _in_between(node: ir.Node, named: Collection[str]) -> bool:
    """Whether somebody asks for a value that the node reads, and a rewriting might leave out."""
    values = [v for v in node.inputs if v is not None and v.producer() is not None]
    return any(v.name in named or v.is_graph_output() for v in values)


def _use(op: OpBuilder, node: ir.Node, form: Form, named: Collection[str]) -> None:
    graph = node.graph
    if graph is None or not form.applies(node, named):
        return
    op.scope = node.name or node.op_type
    written = form.write(op, node)
    new = op.place(graph, before=node)
    op.scope = ""
    infer_nodes(new, op.opset)
    old, result = node.outputs[0], written.result.value
    result.type, result.shape = old.type or result.type, old.shape or result.shape
    take_over(old, result)
    remove_nodes(graph, [node])
    if written.composite is not None:
        declare(written.composite(new))


FORMS = {
    "Add": (Form(axes.is_group_norm, axes.group_norm),),
    "Conv": (Form(products.is_small_conv, products.conv),),
    "ConvTranspose": (Form(products.is_fast_transpose, products.conv_transpose),),
    "Celu": (Form(has_rule(activations.celu, "Celu"), activation.celu),),
    "DFT": (Form(fourier.has_few_points, fourier.as_product),),
    "GatherND": (Form(indices.has_better_form, lambda op, n: Written(indices.gathered(op, n))),),
    "Log": (Form(activation.is_log_sigmoid, activation.log_sigmoid),),
    "MatMul": (Form(products.is_with_vector, products.times_vector),),
    "Mul": (Form(activation.is_tanh_gelu, activation.tanh_gelu_product),),
    "Pow": (Form(products.has_integer, products.power),),
    "PRelu": (Form(has_rule(activations.prelu, "PRelu"), activation.prelu),),
    "Softplus": (Form(has_rule(activations.softplus, "Softplus"), activation.softplus),),
    "Mish": (Form(has_rule(activations.mish, "Mish"), activation.mish),),
    "Elu": (Form(activation.is_plain_elu, activation.elu),),
    "Resize": (Form(axes.is_resized, axes.resize),),
    "Selu": (Form(has_rule(activations.selu, "Selu"), activation.selu),),
    "Slice": (
        Form(axes.is_start_of_planes, axes.start_of_planes, ir.DataType.INT64),
        Form(axes.is_slice_of_joined, axes.slices_of_joined),
    ),
    "Softmax": (Form(axes.is_across(softmax.softmax), axes.softmax_across),),
    "LogSoftmax": (Form(axes.is_across(softmax.log_softmax), axes.softmax_across),),
    "Where": (Form(activation.is_known_choice, activation.choice),),
}
