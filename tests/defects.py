"""Defects of old releases that we claim to run on: which tests they fail, and why.

`python3 dev.py test --lowest` leaves these out, by name and with the reason; with releases that do
not have a defect its tests run. None of them is wrong in silence for a user: what was is written
in another form (`onnxtrain.normalize.old_runtimes`), what is left is an error of onnxruntime, or
a mistake of the oracle that only tests ask, or told by a warning. The table in
docs/compatibility.md has the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from packaging.version import Version


@dataclass(frozen=True)
class Defect:
    """Something that a package did wrong.

    Attributes:
        package: its name.
        before: the first release that is known to be right.
        tests: parts of the names of tests that show it.
        reason: what is wrong.
    """

    package: str
    before: str
    tests: tuple[str, ...]
    reason: str


ATTENTION_ORDER = (
    "its cases for what Attention tells of its scores add the mask before the softcap; the "
    "specification was corrected to the other order, which is the one computed here"
)
WINDOW = (
    "its GroupQueryAttention looks one position further back than its window; told by a warning"
)
FOUR_BITS = "its QMoE reads weights of four bits in another way; told by a warning"
FEWER_KERNELS = (
    "has no kernel for QMoE, eight bits of MatMulNBits and GatherBlockQuantized, or sinks, biases "
    "and other kinds of softmax in GroupQueryAttention"
)
NO_EXPERTS = "has no kernel for MoE"
DOUBLES = "has no kernel for Cos of doubles"
EXPORTERS = (
    "its exporters write an adaptive average, a checkpoint and a Longformer that onnxruntime "
    "refuses, or fail"
)
LOGISTIC = (
    "gives the score of the second of two classes without its logistic (LinearClassifier, "
    "SVMClassifier); told by a warning"
)
CONTRIB = "test_same_as_the_contrib_operator"
DEFECTS = (
    Defect("onnxruntime", "1.23", (CONTRIB, "[GroupQueryAttention(2x5x32"), FEWER_KERNELS),
    Defect("onnxruntime", "1.23", ("weights_are_small[", "-8-"), FEWER_KERNELS),
    Defect("onnxruntime", "1.23", ("weights_are_small[tied-",), FEWER_KERNELS),
    Defect("onnxruntime", "1.24", (CONTRIB, "[MoE("), NO_EXPERTS),
    Defect("onnxruntime", "1.23", (CONTRIB, "[QMoE("), FEWER_KERNELS),
    Defect("onnxruntime", "1.23", (CONTRIB, "[GatherBlockQuantized(", "bits="), FEWER_KERNELS),
    Defect("onnxruntime", "1.23", ("test_contrib", "[MatMulNBits(", "bits=8"), FEWER_KERNELS),
    Defect(
        "onnxruntime", "1.23", ("test_the_deployed_integers_are_the_trained_ones", "': 4"),
        "cannot cast from four bits",
    ),
    Defect("onnxruntime", "1.24", (CONTRIB, "local_window_size=2"), WINDOW),
    Defect("onnxruntime", "1.25", (CONTRIB, "[QMoE(", "expert_weight_bits=4"), FOUR_BITS),
    Defect("onnxruntime", "1.26", (CONTRIB, "[CausalConvWithState("), "has no CausalConvWithState"),
    Defect(
        "onnxruntime", "1.30", (CONTRIB, "[GroupQueryAttention(", "causal=0"),
        "refuses GroupQueryAttention that is not causal",
    ),
    Defect("onnxruntime", "1.29", ("test_normal[double",), DOUBLES),
    Defect(
        "onnxruntime", "1.26", ("test_other_float_types[double]",),
        "has no kernel for fused products of doubles",
    ),
    Defect("onnxruntime", "1.29", ("test_integers_that_were_cast_are_computed",), DOUBLES),
    Defect(
        "onnxruntime", "1.29",
        ("test_the_oracle_agrees_with_onnxruntime[RNN-", "Elu", "bidirectional"),
        "ends the process for an RNN of two directions with too few alphas; normalized it is right",
    ),
    Defect(
        "onnxruntime", "1.23", ("test_scores_of_packed_texts", "[an operator-"),
        "refuses a model of opset 23, in which the test has Attention; normalized it runs",
    ),
    Defect("onnxruntime", "1.27", ("test_ml", "Classifier-", "2 classes,LOGISTIC"), LOGISTIC),
    Defect(
        "onnx", "1.22", ("test_of_the_onnx_package[test_adam_multiple]",),
        "its case of Adam for several tensors computes with an epsilon that its node does not have",
    ),
    Defect("onnx", "1.23", ("test_floored_modulo",), "its reference divides towards zero"),
    Defect(
        "onnxruntime", "1.27", ("test_normalizations_equal_torch[100.0]",),
        "its LayerNormalization loses digits where the mean is far from zero: 0.06 of a deviation "
        "at a mean of 100 deviations",
    ),
    Defect(
        "onnxscript", "0.6.2", ("test_the_label_to_ignore_may_be_a_size",),
        "writes a label to ignore that is a size with shapes that contradict each other",
    ),
    Defect(
        "torch", "2.13", ("test_differentiated_twice[grid_sample",),
        "cannot differentiate grid_sample twice, which only the test asks of it",
    ),
    Defect("torch", "2.13", ("test_adaptive_averages_are_products", "dynamo"), EXPORTERS),
    Defect("torch", "2.13", ("test_gradients_pass_what_torch_would", "torchscript"), EXPORTERS),
    Defect("torch", "2.13", ("test_family[Longformer-dynamo]",), EXPORTERS),
    Defect(
        "click", "8.5", ("test_the_page_of_the_command_line_is_fresh",),
        "words its help in another way",
    ),
    Defect("onnxruntime", "1.25", ("test_gradient[DeformConv-",), "has no DeformConv"),
    Defect(
        "onnxruntime", "1.27", ("test_gradient[DFT-20", "inverse=1,onesided=1"),
        "refuses an inverse DFT of half a spectrum",
    ),
    Defect(
        "onnxruntime", "1.30", ("test_gradient[Slice-18(5x6,1,1,1)empty",),
        "cannot multiply two tensors without elements",
    ),
    Defect(
        "onnxruntime", "1.27", ("test_gradient[Resize-18(1x2x5x4,-,-,2;axes=[-2,-1])",),
        "a Resize whose axes count from the end ends the process; normalized it is right",
    ),
    Defect(
        "onnx", "1.22", ("test_gradient[ScatterElements-18", "reduction=mul"),
        "its reference multiplies wrongly",
    ),
    Defect(
        "onnx", "1.22", ("test_gradient[ScatterND-18", "reduction=mul"),
        "its reference multiplies wrongly",
    ),
    Defect(
        "onnx", "1.23", ("test_gradient[ScatterND-18(3x4x2", "reduction=m"),
        "its reference fails for min and max of slices",
    ),
    Defect(
        "onnxruntime", "1.30", ("test_gradient[Gather-18(40x9,0)sorted empty",),
        "cannot multiply two tensors without elements",
    ),
    Defect(
        "onnx", "1.23", ("test_gradient[Gather-18(40x9,0)sorted empty",),
        "its shape inference refuses to multiply tensors without elements",
    ),
    Defect(
        "onnxruntime", "1.30", ("test_gradient[Gather-18(40x9,0)sorted empty",),
        "adds up over all axes, not none, where a tensor has no elements; a Reshape refuses that",
    ),
    Defect(
        "onnxruntime", "1.30", ("test_gradient[Slice-18(5x6,1,1,1,1)empty",),
        "adds up over all axes, not none, where a tensor has no elements; a Reshape refuses that",
    ),
    Defect(
        "onnxruntime", "1.23", ("test_random_graph[graph-7]",),
        "refuses a model of opset 23, which the seed has",
    ),
    Defect(
        "onnxruntime", "1.23", ("test_random_graph[graph-216]",),
        "refuses a model of opset 23, which the seed has",
    ),
    Defect(
        "onnxruntime", "1.27", ("test_qlora_keeps_the_base_in_four_bits",),
        "its tool for quantizing imports torch where that is installed",
    ),
    Defect(
        "numpy", "2.0", ("test_gradient[Resize-18(1x2x5x6,8,-,4;mode=nearest", "tf_crop"),
        "with it onnx's reference rounds wrongly outside of the image",
    ),
    Defect(
        "onnx", "1.22", ("test_official_case", "test_attention", "qk_matmul_bias"), ATTENTION_ORDER,
    ),
    Defect(
        "onnx", "1.22", ("test_official_case", "test_attention", "qk_matmul_softcap"),
        ATTENTION_ORDER,
    ),
    Defect(
        "onnxscript", "0.6.2", ("test_embedding_bags[True-",),
        "does not export a bag of embeddings that has no padding row",
    ),
)  # fmt: skip


def defect_of(test: str) -> Defect | None:
    """The defect of an installed package that a test would show."""
    for defect in DEFECTS:
        if all(part in test for part in defect.tests) and _has(defect):
            return defect
    return None


@cache
def _has(defect: Defect) -> bool:
    return Version(version(defect.package)) < Version(defect.before)
