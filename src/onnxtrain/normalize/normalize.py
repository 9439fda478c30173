"""The normalizing stage: a literal list of steps, each Model → Model."""

from __future__ import annotations

import onnx_ir as ir

from ..errors import model_errors
from ..graph.infer import infer_shapes
from ..graph.schema import MAX_IR, MAX_OPSET, MIN_OPSET
from .branches import decide_branches
from .constants import lift_constants
from .contrib import CONTRIB
from .crops import open_crops
from .custom_types import infer_with_custom
from .few_bits import raise_for_four_bits
from .fold import fold_integers
from .functions import inline_functions
from .lower_opset import lower_opset
from .ml import ML, drop_zipmaps
from .norms import smooth_norms
from .old_runtimes import suit_old_runtimes, tell_of_moved_windows, tell_of_old_kernels
from .pools import count_windows
from .preview_training import PREVIEW
from .quantized import QUANTIZED
from .raise_opset import raise_opset
from .ranges import scalar_ranges
from .resize_scales import agree_on_sizes
from .rewrite import rewrite_typed, standard
from .sequence_maps import unroll_sequence_maps
from .simplify import simplify
from .slices import end_backwards
from .stored_shapes import infer_anew, open_nameless, use_declared_outputs
from .symbolic import infer_symbolic
from .transposed import name_crops
from .validate import validate


@model_errors("Normalizing the model")
def normalize(model: ir.Model) -> ir.Model:
    """Bring a model into the form that the other stages understand.

    After it: ai.onnx opset 18 to 21 (the model's own version when it is in that range), IR at
    most 10, no Constant nodes, no model-local functions (except those with a gradient rule of
    their own), no contrib or ai.onnx.ml operators that have a standard form, and a type and, as
    far as it follows, a shape on every value, in subgraphs too.

    Raises:
        ModelError: the model is invalid, or uses something that has no standard form.
    """
    for step in STEPS:
        model = step(model)
    return model


def one_opset(model: ir.Model) -> ir.Model:
    """Bring ai.onnx into the range; a version inside it is kept."""
    version = model.opset_imports[""]
    if version < MIN_OPSET:
        model = raise_opset(infer_with_custom(model), MIN_OPSET)
    elif version > MAX_OPSET:
        model = lower_opset(infer_with_custom(model), MAX_OPSET)
    # From IR 8 on functions and from IR 4 on initializers that are no inputs are allowed.
    model.ir_version = min(max(model.ir_version, 8), MAX_IR)
    return model


def standard_operators(model: ir.Model) -> ir.Model:
    """Replace contrib, ai.onnx.ml, integer and training operators by standard ones on floats."""
    table = {**CONTRIB, **ML, **QUANTIZED, **PREVIEW}
    used = {(standard(n.domain), n.op_type) for n in model.graph.all_nodes()}
    if not used.isdisjoint(table):
        model = rewrite_typed(infer_with_custom(model), table, model.opset_imports[""])
    return model


def tidy_imports(model: ir.Model) -> ir.Model:
    """Forget operator sets that nothing uses any more."""
    used = {standard(n.domain) for n in model.graph.all_nodes()}
    for function in model.functions.values():
        used.update(standard(n.domain) for n in function.all_nodes())
    for domain in list(model.opset_imports):
        if domain and domain not in used:
            del model.opset_imports[domain]
    return model


STEPS = (
    validate,
    drop_zipmaps,
    inline_functions,
    unroll_sequence_maps,
    lift_constants,
    open_nameless,
    count_windows,
    end_backwards,
    name_crops,
    infer_anew,
    one_opset,
    raise_for_four_bits,
    agree_on_sizes,
    tell_of_old_kernels,
    standard_operators,
    open_crops,
    smooth_norms,
    lift_constants,
    tidy_imports,
    infer_shapes,
    infer_symbolic,
    tell_of_moved_windows,
    scalar_ranges,
    use_declared_outputs,
    fold_integers,
    suit_old_runtimes,
    decide_branches,
    simplify,
)
