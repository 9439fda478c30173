"""Stage 4: the passes. Each takes a model and gives a model; the lists below are all there is.

Every way in runs the same lists, so the same model has the same gradient nodes whether it comes
through `differentiate`, artifacts, TrainingSession, ORTTrainer or ORTModule. Where a pass applies
to some models only, it looks at the model (a batch size that is known, weights that are constant)
and not at who asks.
"""

from collections.abc import Collection, Sequence

import onnx_ir as ir

from ..graph.edit import name_apart
from ..graph.labels import guard_labels
from . import modes as modes
from .activations import mark_activated
from .base import Context as Context
from .base import Pass as Pass
from .base import Record as Record
from .base import Trace as Trace
from .batch_norm import split_batch_norms
from .biases import biases_in_products
from .blocked import mark_convolutions
from .cleanup import clean_up as clean_up
from .columns import layers_in_columns as layers_in_columns
from .cross_entropy import split_cross_entropies
from .draws import draw_from_counter
from .expand import expand_functions
from .fast_forms import use_fast_forms
from .fusion import mark_where_shapes_are_inferred
from .idle import note_idle_optimizers
from .kernels import mark_for_kernels
from .late_weights import delay_weights as delay_weights
from .long_sums import long_sums_by_rows
from .recompute import recompute_activations as recompute_activations
from .recurrent import recurrent_layers_as_scans
from .segments import Recompute as Recompute
from .segments import RecomputeError as RecomputeError
from .segments import check_recompute as check_recompute
from .segments import stored_by_name
from .selection import select_early
from .small_maps import small_maps_as_products as small_maps_as_products
from .transposed import mark_transposed

BEFORE = (
    Pass(
        "early selection",
        "rows that nobody reads are not computed (ADR 10)",
        lambda model, c: select_early(model, keep={*c.wrt, *c.of}),
    ),
    Pass(
        "fast forms",
        "operators with slow kernels are written with operators that have fast ones",
        lambda model, c: use_fast_forms(model, c.wrt, c.of, c.no_gradient),
    ),
    Pass(
        "function bodies",
        "operators without a gradient rule become the formula that their schema gives",
        lambda model, c: expand_functions(model, c.wrt, c.of, c.no_gradient),
    ),
    Pass(
        "columns",
        "layers are written so that their weights are not copied, where the batch pays (ADR 13)",
        lambda model, c: layers_in_columns(
            model, stored_by_name(c.recompute), c.no_gradient, open_batches=c.recompute is None
        ),
    ),
    Pass(
        "label guard",
        "a class label that nobody checks and that is out of range is seen, never another class",
        lambda model, c: guard_labels(model, c.checked_labels),
    ),
    Pass(
        "cross entropy",
        "the loss shares its log-probabilities with its gradient",
        lambda model, c: split_cross_entropies(model, c.wrt, c.of, c.no_gradient),
    ),
    Pass(
        "recurrent layers",
        "LSTM, GRU and RNN as Scans return what their gradients need (ADR 7 and 12)",
        lambda model, c: recurrent_layers_as_scans(
            model, c.wrt, c.of, c.no_gradient, open_batches=c.recompute is None
        ),
    ),
    Pass(
        "batch statistics",
        "BatchNormalization in training mode shares what its gradient needs, on any device",
        lambda model, c: split_batch_norms(model, c.wrt, c.of, c.no_gradient),
    ),
)
"""What changes the forward graph, before it is differentiated.

Passes declare gradients of what they write (`autodiff.composites`), which name values: what lets
nodes read other values comes before, or the nodes are differentiated one by one.
"""

AFTER = (
    Pass(
        "counter",
        "random operators draw from a counter that the caller keeps: runs can be repeated (ADR 16)",
        lambda model, c: draw_from_counter(model) if c.counter else model,
    ),
    Pass(
        "cleanup",
        "no dead, duplicate or pointless node; nodes in the order that keeps least alive (ADR 8)",
        lambda model, _: clean_up(model),
    ),
    Pass(
        "dropout guard",
        "onnxruntime does not take a training-mode Dropout for an inference-mode one",
        lambda model, _: modes.protect_dropouts(model),
    ),
    Pass(
        "recompute",
        "activations are computed again instead of kept, where asked for",
        lambda model, c: recompute_activations(model, c.recompute, c.gradients),
    ),
    Pass(
        "late weights",
        "large quantised weights are floats only while a product reads them",
        lambda model, _: delay_weights(model),
    ),
    Pass(
        "small maps",
        "frozen convolutions on maps of a few pixels are matrix products (ADR 14)",
        lambda model, _: small_maps_as_products(model),
    ),
    Pass(
        "biases",
        "a product and its bias are one operation, as onnxruntime would make them",
        lambda model, _: biases_in_products(model),
    ),
    Pass(
        "long sums",
        "sums of very many numbers are sums of rows first, since onnxruntime loses digits",
        lambda model, _: long_sums_by_rows(model),
    ),
    Pass(
        "names",
        "no two nodes or values have one name, as in a graph that is differentiated again",
        lambda model, _: name_apart(model),
    ),
    Pass(
        "transposed operands",
        "sessions make one operation of a product and the transpositions before it",
        lambda model, _: mark_transposed(model),
    ),
    Pass(
        "blocked layout",
        "sessions carry out trained convolutions as onnxruntime does those of constant weights",
        lambda model, _: mark_convolutions(model),
    ),
    Pass(
        "kernels",
        "sessions have kernels for sums by index, pools and cumulative sums",
        lambda model, _: mark_for_kernels(model),
    ),
    Pass(
        "fusion",
        "sessions compute elementwise operators that follow each other in one pass over memory",
        lambda model, c: mark_where_shapes_are_inferred(
            model, c.gradients if c.recompute in (None, 1) else ()
        ),
    ),
    Pass(
        "activations",
        "sessions make one operation of a layer and the activation behind it",
        lambda model, _: mark_activated(model),
    ),
    Pass(
        "idle optimizers",
        "sessions are told which of onnxruntime's optimizers would find nothing",
        lambda model, _: note_idle_optimizers(model),
    ),
)
"""What runs on the differentiated model."""


def with_rules(
    model: ir.Model, wrt: Sequence[str], of: Sequence[str], no_gradient: Collection[str]
) -> ir.Model:
    """Only the passes without which a model cannot be differentiated."""
    model = expand_functions(model, wrt, of, no_gradient)
    return recurrent_layers_as_scans(model, wrt, of, no_gradient)
