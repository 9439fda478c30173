"""Operators at which a gradient stops: nothing to differentiate, or nothing that is a number.

Comparisons, logic and roundings are with the element-wise operators, ArgMax with the reductions,
random draws with the random operators, window functions with the signals.
"""

from __future__ import annotations

from ..registry import zero_gradient

zero_gradient(
    "Shape", "Size", "NonZero", "Constant", "ConstantOfShape", "EyeLike",
    note="depends on the shape or on which elements are zero, not on the values",
)  # fmt: skip
zero_gradient("NonMaxSuppression", note="gives indices; gather the boxes to train them")
zero_gradient("RandomNormal", "RandomUniform", note="a draw")
zero_gradient(
    "StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "TfIdfVectorizer",
    note="text",
)  # fmt: skip
zero_gradient("ImageDecoder", note="encoded bytes")
zero_gradient(
    "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", domain="ai.onnx.ml",
    note="a step function of its input",
)  # fmt: skip
zero_gradient(
    "CategoryMapper", "DictVectorizer", "LabelEncoder", "OneHotEncoder", domain="ai.onnx.ml",
    note="looks up a class",
)  # fmt: skip
