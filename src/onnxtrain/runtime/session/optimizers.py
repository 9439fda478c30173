"""Which of onnxruntime's graph optimizers have nothing to do in a model.

Each of some fifty optimizers sorts the whole graph anew to look for its pattern, two or three times
over, and one that changes anything has all shapes inferred again: for graphs of gradients that is
more than half of the time that a session takes to create. An optimizer whose operators do not occur
cannot change anything, so it is left out.
"""

from __future__ import annotations

from collections.abc import Collection

from ...operators import ACTIVATED, IDLE_OPTIMIZERS
from ..files.outline import Outline

QUANTISED = ("QuantizeLinear", "DequantizeLinear")
INTEGERS = ("MatMulInteger", "DynamicQuantizeLinear")
NORM_BY_PARTS = frozenset({"ReduceMean", "Sqrt", "Div"})
NORMS = (
    "LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization", NORM_BY_PARTS,
    frozenset({"Pow", "ReduceMean"}),
)  # fmt: skip
GELUS = ("Gelu", "FastGelu", "Erf", "Tanh")

NEEDS: dict[str, tuple[str | frozenset[str], ...]] = {
    "AttentionFusion": ("Softmax", "Attention", "MultiHeadAttention"),
    "BiasGeluFusion": GELUS,
    "BiasSkipLayerNormFusion": NORMS,
    "ConvActivationFusion": ("Conv",),
    "DoubleQDQPairsRemover": QUANTISED,
    "DynamicQuantizeMatMulFusion": INTEGERS,
    "EmbedLayerNormFusion": NORMS,
    "EnsureUniqueDQForNodeUnit": QUANTISED,
    "FastGeluFusion": GELUS,
    "GatherSliceToSplitFusion": ("Gather", "Slice"),
    "GatherToSliceFusion": (frozenset({"Gather", "Range"}),),
    "GeluFusionL1": GELUS,
    "GeluFusionL2": GELUS,
    "GemmActivationFusion": ("Gemm", "MatMul"),
    "GroupQueryAttentionFusion": ("GroupQueryAttention",),
    "GroupQueryAttentionPreNormFusion": ("GroupQueryAttention",),
    "LayerNormFusionL1": (NORM_BY_PARTS,),
    "LayerNormFusionL2": (NORM_BY_PARTS,),
    "MatMulAddFusion": (frozenset({"MatMul", "Add"}),),
    "MatMulIntegerToFloatFusion": INTEGERS,
    "MatMulNBitsFusion": ("MatMulNBits", *QUANTISED),
    "MatMulScaleFusion": ("MatMul",),
    "MatmulTransposeFusion": ("MatMul",),
    "QDQFinalCleanupTransformer": QUANTISED,
    "QDQPropagationTransformer": QUANTISED,
    "QDQS8ToU8Transformer": (*QUANTISED, *INTEGERS),
    "QDQSelectorActionTransformer": QUANTISED,
    "QuickGeluFusion": ("Sigmoid",),
    "ReshapeFusion": ("Reshape",),
    "SimplifiedLayerNormFusion": ("SimplifiedLayerNormalization", "Pow"),
    "SkipLayerNormFusion": NORMS,
    "SliceConcatToSpaceToDepthFusion": (frozenset({"Slice", "Concat"}),),
    "TransposeOptimizer": ("Transpose", *QUANTISED),
    "TransposeOptimizer_CPUExecutionProvider": ("Transpose", *QUANTISED),
    "WeightBiasQuantization": QUANTISED,
    "WhereDummyDq": QUANTISED,
}
"""An optimizer, and operators (or sets of them) without any of which it finds nothing, those
included of which other optimizers make what it looks for."""

SHARING = "ConstantSharing"
"""Equal numbers become one constant, for the next optimizer: a step is none the faster."""
OF_OTHER_DEVICES = frozenset({"BiasDropoutFusion", "BiasSoftmaxFusion", "MatMulActivationFusion"})
"""What they put together has no kernel for the host's processor."""
TRANSPOSING = "MatmulTransposeFusion"
"""Idle only where `fused_products` has done its work."""
ACTIVATING = ("ConvActivationFusion", "GemmActivationFusion")
"""The same, of a model with marked activations."""
NOTED = frozenset(
    {
        "AttentionFusion", "BiasGeluFusion", "BiasSkipLayerNormFusion",
        "CommonSubexpressionElimination", "ConstantFolding", "ConvActivationFusion",
        "EmbedLayerNormFusion", "FastGeluFusion", "GatherSliceToSplitFusion", "GatherToSliceFusion",
        "GeluFusionL1", "GeluFusionL2", "GemmActivationFusion", "LayerNormFusionL1",
        "LayerNormFusionL2", "MatMulAddFusion", "MatMulScaleFusion", "QuickGeluFusion",
        "ReshapeFusion", "SimplifiedLayerNormFusion", "SkipLayerNormFusion",
        "SliceConcatToSpaceToDepthFusion", "TransposeOptimizer",
        "TransposeOptimizer_CPUExecutionProvider", TRANSPOSING,
    }
)  # fmt: skip
"""What a model may say that it has no work for, since `passes/idle.py` looked at it."""


OF_SHAPES = frozenset(NEEDS) - {
    "ConvActivationFusion", "GatherSliceToSplitFusion", "GemmActivationFusion",
    "QuickGeluFusion", *(name for name in NEEDS if "QDQ" in name),
}  # fmt: skip
"""Optimizers whose patterns have ranks or sizes in them."""


def idle_optimizers(outline: Outline | None, *, on_host: bool = True) -> list[str]:
    """Names of the optimizers that a session of a model does without; none if it is damaged.

    Args:
        outline: of the model.
        on_host: whether the host's processor computes all of it.
    """
    if outline is None:  # onnxruntime says what is wrong with it
        return []
    noted = outline.metadata(IDLE_OPTIMIZERS).split(";")
    idle = [SHARING, *(OF_OTHER_DEVICES if on_host else ()), *NOTED.intersection(noted)]
    if not outline.has_functions:  # their operators appear when onnxruntime inlines them
        operators = outline.operators()
        idle += [name for name, needed in NEEDS.items() if not _has_any(operators, needed)]
    return sorted(set(idle))


def idle_without_us(outline: Outline | None, idle: Collection[str]) -> list[str]:
    """Those that are idle also where `fused_products` has done nothing."""
    has_marks = outline is not None and outline.mentions(ACTIVATED.encode())
    at_work = (TRANSPOSING, *(ACTIVATING if has_marks else ()))
    return [name for name in idle if name not in at_work]


def idle_of_shapes(idle: Collection[str]) -> bool:
    """Whether none of the optimizers that are left looks at the shapes of values.

    onnxruntime infers shapes itself. What a model says of its values takes it a fifteenth of the
    time that a session takes, and serves these optimizers where inference ends.
    """
    return OF_SHAPES.issubset(idle)


def _has_any(operators: set[str], needed: tuple[str | frozenset[str], ...]) -> bool:
    return any(n in operators if isinstance(n, str) else n <= operators for n in needed)
