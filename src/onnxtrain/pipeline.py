"""The spine: load → normalize → (loss) → differentiate → optimize → out.

Start to read here. Every stage takes a model and gives a model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence

import onnx
import onnx_ir as ir

from .autodiff import differentiate_model, reachable
from .errors import ModelError, UnknownNameError
from .graph import FLOATS, ModelLike, load, to_proto
from .graph import parameters as params
from .graph.io import save
from .normalize import normalize
from .passes import Recompute, check_recompute, optimize, recompute_activations


def differentiate(
    model: ModelLike,
    wrt: Sequence[str] | None = None,
    of: str | Sequence[str] | None = None,
    *,
    vjp: bool = False,
    no_gradient: Collection[str] = (),
    allow_unused: bool = False,
    recompute: Recompute = None,
    output: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """Turn a model into one that also computes gradients, with standard operators only.

    Args:
        model: path, bytes, ModelProto or `onnx_ir.Model`. It is not changed.
        wrt: parameters (initializers) or inputs to differentiate with respect to; by default
            every float initializer that the loss depends on.
        of: the scalar to differentiate, by default the first output; with `vjp` any outputs, by
            default all of them.
        vjp: the vector–Jacobian form: the gradient of each output in `of` becomes an input
            `<output>_grad`.
        no_gradient: names of nodes, or operator types, whose outputs count as constants.
        allow_unused: zeros, instead of an error, for what the loss does not depend on.
        recompute: what to compute again in the backward half instead of keeping it, which needs
            less memory and more time: a number of segments, "auto", "cheap", or the names of the
            values to keep. See the guide on memory.
        output: also write the result to this path; above 2 GB the weights go to a file beside it.

    Returns:
        The model with one more output `<name>_grad` per name in `wrt`, in that order.

    Example:
        >>> import numpy as np, onnx.parser, onnxtrain
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N] x) => (float loss) { y = Mul(x, x) loss = ReduceSum <keepdims=0> (y) }
        ... ''')
        >>> [o.name for o in onnxtrain.differentiate(model, wrt=["x"]).graph.output]
        ['loss', 'x_grad']
    """
    check_recompute(recompute)
    loaded = load(model)
    loaded = normalize(loaded)
    targets = _targets(loaded, of, vjp)
    names = list(wrt) if wrt is not None else params.float_initializers(loaded)
    if wrt is None:  # what no gradient reaches (scales of Resize, say) stays a constant
        names = reachable(loaded, names, targets, no_gradient)
    params.to_inputs(loaded, [n for n in names if n in loaded.graph.initializers])
    loaded, gradients = differentiate_model(
        loaded, names, targets, vjp=vjp, no_gradient=no_gradient, allow_unused=allow_unused
    )
    loaded = optimize(loaded)
    loaded = recompute_activations(loaded, recompute, gradients.values())
    params.to_initializers(loaded)
    loaded.metadata_props["onnxtrain.gradients"] = json.dumps(gradients)
    if output is not None:
        save(loaded, output)
        return onnx.load(output, load_external_data=False)
    return to_proto(loaded)


def _targets(model: ir.Model, of: str | Sequence[str] | None, vjp: bool) -> list[str]:
    outputs = [o.name or "" for o in model.graph.outputs]
    if of is None:
        if not vjp:
            return outputs[:1]
        return [o.name or "" for o in model.graph.outputs if o.dtype in FLOATS]
    targets = [of] if isinstance(of, str) else list(of)
    for name in targets:
        if name not in outputs:
            raise UnknownNameError("output", name, outputs)
    if len(targets) != 1 and not vjp:
        raise ModelError("One scalar output can be differentiated; for several pass `vjp=True`.")
    return targets
