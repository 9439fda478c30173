"""Facts about operators: one table for all stages and for the runtime; it imports nothing.

A fact holds for the operator itself, whatever a pass does with it. A pass that means fewer, or
more, says so where it uses them.
"""

from __future__ import annotations

from collections.abc import Sequence

ACTIVATIONS = frozenset(
    {
        "Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Relu", "Selu",
        "Shrink", "Sigmoid", "Softplus", "Softsign", "Swish", "Tanh", "ThresholdedRelu",
    }
)  # fmt: skip

UNARY = ACTIVATIONS | {
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp",
    "Floor", "Identity", "Log", "Neg", "Not", "Reciprocal", "Round", "Sign", "Sin", "Sinh", "Sqrt",
    "Tan",
}  # fmt: skip
"""One operand, of the result's type and shape; each element depends on the one at its place."""

COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})

BROADCASTING = COMPARISONS | {
    "Add", "And", "Div", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where",
    "Xor",
}  # fmt: skip
"""Elementwise in several operands, any of which may be repeated along an axis."""

ELEMENTWISE = UNARY | BROADCASTING | {"Cast", "Clip"}
"""Each element of the result depends on the elements at its place only; the same for the same."""

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""The same numbers in the same order: no data need be touched."""

REARRANGING = VIEWS | {"Cast", "Transpose"}
"""The result has every element of the first operand, and no other."""

AT_THE_SPEED_OF_MEMORY = VIEWS | COMPARISONS | {
    "Cast", "Clip", "Constant", "ConstantOfShape", "Expand", "HardSigmoid", "Neg", "Not", "Range",
    "Relu", "Shape", "Sign", "Size",
}  # fmt: skip
"""Computing the result again costs no more than reading it."""

PRODUCTS = frozenset(
    {
        "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM",
        "MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN", "TopK",
    }
)  # fmt: skip
"""Operators whose work is worth more than the memory of their result."""

POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})

KEEPS_SHAPE = UNARY | {
    "BatchNormalization", "Cast", "CastLike", "Clip", "CumSum", "DequantizeLinear", "Dropout",
    "GroupNormalization", "Hardmax", "InstanceNormalization", "IsInf", "IsNaN", "LRN",
    "LayerNormalization", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization",
    "QuantizeLinear", "ReverseSequence", "ScatterElements", "ScatterND", "Softmax", "Trilu",
}  # fmt: skip
"""The first result has the shape of the first operand."""

KEEPS_RANK = KEEPS_SHAPE | POOLS | {
    "Concat", "Conv", "ConvTranspose", "DFT", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool",
    "MaxUnpool", "Pad", "Resize", "Slice", "Tile", "TopK", "Upsample",
}  # fmt: skip
"""The first result has as many dimensions as the first operand."""

RANDOM = frozenset(
    {
        "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
        "RandomUniformLike",
    }
)  # fmt: skip
"""Operators that draw: two of them on the same inputs are two draws, and none is drawn again."""

LABEL_LOSSES = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})
"""Losses that are one operator, and use their second operand as indices of classes."""

WITH_POLES = frozenset({"Log", "Pow", "Reciprocal", "Sqrt"})
"""Element by element; infinite, or with an infinite slope, at some finite numbers. (Div, which sums
its gradients itself, looks after its own poles.)"""
SELECTION = frozenset({"Where"})
"""Takes elements of its operands (not of the first, which decides) and drops the others."""

IDLE_OPTIMIZERS = "onnxtrain.idle_optimizers"
"""Key of a model's metadata: names of onnxruntime's optimizers that its passes have left without
work, with semicolons between them."""

TRANSPOSED = "onnxtrain: one operation of a product and its transposed operands"
"""What a Transpose and a MatMul say of themselves if a session may put them together."""

BIASED = "onnxtrain: a product with its bias"
"""What a Gemm says of itself that was a MatMul and an Add."""

ACTIVATED = "onnxtrain: one operation of a layer and its activation"
"""What an activation says of itself if a session may put it together with the layer before it."""

OF_LAYERS = frozenset({"LeakyRelu", "Relu", "Sigmoid", "Tanh"})
"""Activations that onnxruntime's layers compute themselves, both Conv and Gemm."""

BLOCKED = "onnxtrain: blocked"
"""How begins what a convolution, or a part of the gradient of its weights, says of itself if a
session may carry it out in onnxruntime's blocked layout."""

FUSED = "onnxtrain: fused"
"""How begins what an elementwise node says of itself if a session may compute it together with
others, in one pass over memory. Behind it: the number of the group, how many nodes that has, the
rank of the result, how many of its last axes make a row, a letter for each operand (n: one number,
r: the same all along a row, b: truth values, -: else), and `OUTSIDE` if somebody else reads it."""

OUTSIDE = "out"

KERNEL = "onnxtrain: kernel"
"""What a node says of itself if a session may compute it, with nodes before it, by a kernel of our
own; the session finds out by itself what they compute."""

ACROSS = f"{KERNEL} across"
"""What a Softmax or LogSoftmax says instead whose axis is short, and not the last."""

INSIDE = "onnxtrain: inside of a kernel"
"""What nodes before such a node say that it may stand for, so that nothing else is made of them."""

OR_KERNEL = f"; {KERNEL}"
"""What a MatMul that reads a transposed operand says besides if that holds for it too."""

MOST_ROWS = 8
"""Of a matrix whose determinant has a kernel: it is made of all minors of its rows, and there are
twice as many for each row more."""

COLUMN_LOOP = "onnxtrain: columns"
"""What a Scan over time says of itself whose states have rows and columns, [features, batch], as
have its slices and what it reads from outside (or one column for all). A session may take each
column through all steps by itself, if it sees that the body does nothing else."""

FUSABLE = frozenset(
    {
        "Abs", "Acosh", "Add", "And", "Asinh", "Atanh", "BatchNormalization", "Cast", "Clip",
        "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Greater", "GreaterOrEqual",
        "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max",
        "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "ReduceMax", "ReduceMean",
        "ReduceSum", "Relu", "Sigmoid", "Sign", "Sinh", "Softmax", "Softplus", "Softsign", "Sqrt",
        "Sub", "Sum", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
    }
)  # fmt: skip
"""Operators that can be computed together with others: elementwise ones on floats and truth values,
powers with an exponent of `FUSABLE_POWERS`, reductions of the last axes, Softmax along the last
one, and BatchNormalization with statistics that are known before."""

FUSABLE_POWERS = (2.0, 3.0, 0.5)

OPERAND = " <- "
"""Behind the mark of a node that reads an image or a signal, before the name of that operand: a
pass may let the node read another value instead, and then the mark counts nothing."""


def blocked_convolution(weights: Sequence[int], group: int) -> str:
    """What a Conv says of itself: the shape of its weights and the number of its groups."""
    return f"{BLOCKED} convolution {' '.join(map(str, (*weights, group)))}"


def blocked_part(role: str, key: str, *sizes: int) -> str:
    """What a node of the gradient of a convolution's weights says of itself.

    Args:
        role: "image" or "signal" of one whose first operand that is, "weights" of the one whose
            result the gradient is.
        key: what all nodes of one gradient have in common.
        sizes: of the one with the result: filters, channels of each, groups, then of both axes
            kernel, stride, dilation, and padding before and behind; last the number of images, 0 if
            that is open.
    """
    return " ".join([BLOCKED, role, *map(str, sizes), key])
