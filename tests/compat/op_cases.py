"""One node each of the predecessor's private operators, for `make_ops.py`.

(operator, domain, inputs, number of outputs, attributes). An input is an array or None;
an output count written as a string of 1 and 0 says which outputs are asked for.
"""

import numpy as np

MS = "com.microsoft"
R = np.random.default_rng(0)


def f(*shape, low=None):
    x = R.normal(size=shape).astype(np.float32)
    return x if low is None else np.abs(x) + np.float32(low)


def i(*values):
    return np.array(values, np.int64)


def log_prob(*shape):
    x = f(*shape)
    return (x - np.log(np.exp(x).sum(1, keepdims=True))).astype(np.float32)


def log_prob_last(*shape):
    x = f(*shape)
    return (x - np.log(np.exp(x).sum(-1, keepdims=True))).astype(np.float32)


def softmax(x, axis):
    e = np.exp(x)
    return (e / e.sum(axis, keepdims=True)).astype(np.float32)


ONE = np.float32(1.5)
LABELS = np.array([0, 2, 1, 2], np.int64)
MASK = np.array([[True, False, True], [False, True, True]])
LAYER = f(2, 3, 4)
LAYER_MEAN = LAYER.mean(-1, keepdims=True)
LAYER_INV = 1 / np.sqrt(LAYER.var(-1, keepdims=True) + 1e-5)
RMS_INV = (1 / np.sqrt((LAYER**2).mean(-1, keepdims=True) + 1e-5)).astype(np.float32)

CASES = {
    "relu": ("ReluGrad", MS, [f(2, 3), f(2, 3)], 1, {}),
    "leaky_relu": ("LeakyReluGrad", MS, [f(2, 3), f(2, 3)], 1, {"alpha": 0.3}),
    "sigmoid": ("SigmoidGrad", MS, [f(2, 3), f(2, 3)], 1, {}),
    "tanh": ("TanhGrad", MS, [f(2, 3), f(2, 3)], 1, {}),
    "gelu": ("GeluGrad", MS, [f(2, 3), f(2, 3)], 1, {}),
    "fast_gelu": ("FastGeluGrad", MS, [f(2, 3), f(2, 3)], 1, {}),
    "quick_gelu": ("QuickGeluGrad", MS, [f(2, 3), f(2, 3)], 1, {"alpha": 1.3}),
    "bias_gelu": ("BiasGeluGrad_dX", MS, [f(2, 3), f(2, 3), f(3)], 1, {}),
    "bias_fast_gelu": ("BiasFastGeluGrad_dX", MS, [f(2, 3), f(2, 3), f(3)], 1, {}),
    "softmax_old": ("SoftmaxGrad", MS, [f(2, 3, 4), softmax(f(2, 3, 4), (1, 2))], 1, {"axis": 1}),
    "softmax_13": ("SoftmaxGrad_13", MS, [f(2, 3, 4), softmax(f(2, 3, 4), 1)], 1, {"axis": 1}),
    "log_softmax_old": ("LogSoftmaxGrad", MS, [f(2, 3, 4), f(2, 3, 4)], 1, {"axis": 2}),
    "log_softmax_13": ("LogSoftmaxGrad_13", MS, [f(2, 3, 4), f(2, 3, 4)], 1, {"axis": -1}),
    "div": ("DivGrad", MS, [f(2, 3), f(2, 3), f(3, low=1)], 2, {}),
    "div_second": ("DivGrad", MS, [f(2, 3), f(1, 3), f(2, 1, low=1)], "01", {}),
    "scale_up": ("Scale", MS, [f(2, 3), np.float32(3)], 1, {}),
    "scale_down": ("Scale", MS, [f(2, 3), np.array([4], np.int64)], 1, {"scale_down": 1}),
    "dropout": ("DropoutGrad", MS, [f(2, 3), MASK, np.float32(0.3), np.array(True)], 1, {}),
    "dropout_default": ("DropoutGrad", MS, [f(2, 3), MASK], 1, {}),
    "fake_quant": (
        "FakeQuant", MS, [f(3, 4) * 40, np.float32(0.25), np.float32(120)], 2, {},
    ),
    "fake_quant_grad": ("FakeQuantGrad", MS, [f(2, 3), MASK], 1, {}),
    "conv": ("ConvGrad", MS, [f(2, 4, 3, 3), f(2, 2, 5, 5), f(4, 2, 3, 3)], 3, {}),
    "conv_strided": (
        "ConvGrad", MS, [f(1, 4, 3, 4), f(1, 4, 6, 9), f(4, 2, 3, 2)], 3,
        {"strides": [2, 2], "pads": [1, 0, 0, 1], "group": 2, "dilations": [1, 2]},
    ),
    "conv_1d": ("ConvGrad", MS, [f(2, 3, 5), f(2, 2, 7), f(3, 2, 3)], "110", {}),
    "layer_norm": (
        "LayerNormalizationGrad", MS, [f(2, 3, 4), LAYER, f(4), LAYER_MEAN, LAYER_INV], 3,
        {"axis": -1},
    ),
    "invertible_layer_norm": (
        "InvertibleLayerNormalizationGrad", MS,
        [f(2, 3, 4), f(2, 3, 4), f(4, low=0.5), f(4), LAYER_INV], 3, {"axis": 2},
    ),
    "rms_norm": (
        "SimplifiedLayerNormalizationGrad", MS, [f(2, 3, 4), LAYER, f(4), RMS_INV], 2,
        {"axis": -1},
    ),
    "batch_norm": (
        "BatchNormInternal", MS, [f(3, 2, 4, 4), f(2), f(2), f(2), f(2, low=0.5)], 5,
        {"training_mode": 1, "momentum": 0.7, "epsilon": 0.01},
    ),
    "batch_norm_2d": (
        "BatchNormInternal", MS, [f(5, 3), f(3), f(3), f(3), f(3, low=0.5)], 5,
        {"training_mode": 1},
    ),
    "batch_norm_grad": (
        "BatchNormalizationGrad", MS, [f(3, 2, 4, 4), f(3, 2, 4, 4), f(2), f(2), f(2, low=0.5)], 3,
        {"epsilon": 0.01},
    ),
    "gather": ("GatherGrad", MS, [i(4, 3), i(0, 2, 2), f(3, 3)], 1, {}),
    "gather_axis": ("GatherGrad", MS, [i(2, 5), i(4, 0, 4), f(2, 3)], 1, {"axis": 1}),
    "gather_elements": (
        "GatherElementsGrad", MS, [f(2, 3), i(3, 3), np.array([[0, 1, 2], [0, 0, 1]])], 1, {},
    ),
    "gather_nd": ("GatherNDGrad", MS, [i(3, 4), np.array([[0], [2], [0]]), f(3, 4)], 1, {}),
    "gather_nd_batch": (
        "GatherNDGrad", MS, [i(2, 3, 4), np.array([[[1]], [[2]]]), f(2, 1, 4)], 1,
        {"batch_dims": 1},
    ),
    "slice": ("SliceGrad", MS, [f(2, 2), i(4, 5), i(1, 0), i(3, 5), i(0, 1), i(1, 3)], 1, {}),
    "concat": ("ConcatTraining", MS, [f(2, 3), f(2, 1), f(2, 2)], 2, {"axis": 1}),
    "split": ("SplitTraining", MS, [f(2, 6), i(1, 2, 3)], 3, {"axis": 1}),
    "reduce_sum": ("ReduceSumTraining", MS, [f(2, 3, 4), i(0, 2)], 1, {"keepdims": 0}),
    "reduce_sum_none": (
        "ReduceSumTraining", MS, [f(2, 3), np.zeros(0, np.int64)], 1, {"noop_with_empty_axes": 1},
    ),
    "broadcast_args": ("BroadcastGradientArgs", MS, [i(2, 1, 3), i(4, 3)], 2, {}),
    "broadcast_args_same": ("BroadcastGradientArgs", MS, [i(2, 3), i(2, 3)], 2, {}),
    "broadcast_args_lead": ("BroadcastGradientArgs", MS, [i(3), i(1, 1, 3)], 2, {}),
    "norm_of_all": ("ReduceAllL2", MS, [f(2, 3), f(4)], 1, {}),
    "cross_entropy_grad": (
        "SoftmaxCrossEntropyLossGrad", MS, [ONE, log_prob(4, 3), LABELS], 1, {"reduction": "mean"},
    ),
    "cross_entropy_grad_weights": (
        "SoftmaxCrossEntropyLossGrad", MS, [ONE, log_prob(4, 3), LABELS, f(3, low=0.1)], 1,
        {"reduction": "mean", "ignore_index": 1},
    ),
    "cross_entropy_grad_sum": (
        "SoftmaxCrossEntropyLossGrad", MS, [ONE, log_prob(4, 3), LABELS], 1, {"reduction": "sum"},
    ),
    "cross_entropy_grad_none": (
        "SoftmaxCrossEntropyLossGrad", MS, [f(4), log_prob(4, 3), LABELS], 1,
        {"reduction": "none"},
    ),
    "cross_entropy_grad_image": (
        "SoftmaxCrossEntropyLossGrad", MS,
        [ONE, log_prob(2, 3, 2), np.array([[0, 2], [1, 1]])], 1, {"reduction": "mean"},
    ),
    "cross_entropy_internal": (
        "SoftmaxCrossEntropyLossInternal", MS, [f(4, 3), LABELS, None, np.array(1)], 2,
        {"reduction": "mean"},
    ),
    "cross_entropy_internal_grad": (
        "SoftmaxCrossEntropyLossInternalGrad", MS,
        [ONE, log_prob(4, 3), LABELS, None, np.array(1)], 1, {"reduction": "mean"},
    ),
    "soft_cross_entropy": (
        "SoftmaxCrossEntropy", MS, [f(4, 3), softmax(f(4, 3), 1)], 2, {"reduction": "mean"},
    ),
    "soft_cross_entropy_grad": (
        "SoftmaxCrossEntropyGrad", MS, [ONE, log_prob(4, 3), softmax(f(4, 3), 1)], 1,
        {"reduction": "mean"},
    ),
    "sparse_cross_entropy": (
        "SparseSoftmaxCrossEntropy", "", [f(2, 2, 3), np.array([[0, 2], [1, 1]])], 2,
        {"reduction": "mean"},
    ),
    "sparse_cross_entropy_weights": (
        "SparseSoftmaxCrossEntropy", "", [f(4, 3), LABELS, f(4, low=0.1)], 2,
        {"reduction": "mean"},
    ),
    "sparse_cross_entropy_grad": (
        "SparseSoftmaxCrossEntropyGrad", "",
        [ONE, log_prob_last(2, 2, 3), np.array([[0, 2], [1, 1]])], 1, {"reduction": "mean"},
    ),
    "sparse_cross_entropy_grad_weights": (
        "SparseSoftmaxCrossEntropyGrad", "", [ONE, log_prob(4, 3), LABELS, f(4, low=0.1)], 1,
        {"reduction": "sum"},
    ),
    "average_pool": (
        "AveragePoolGrad", "", [f(1, 2, 3, 3)], 1,
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "shape": [1, 2, 5, 5]},
    ),
    "average_pool_padded": (
        "AveragePoolGrad", "", [f(1, 2, 3, 3)], 1,
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1,
         "shape": [1, 2, 5, 5]},
    ),
    "fused_matmul": (
        "FusedMatMul", MS, [f(2, 4, 3), f(2, 5, 4)], 1, {"alpha": 0.5, "transA": 1, "transB": 1},
    ),
}  # fmt: skip


def build(onnx, name, opset=17):
    """The model of a case, and its inputs by name."""
    helper = onnx.helper
    kind, domain, inputs, outputs, attributes = CASES[name]
    attributes = dict(attributes)
    shape = attributes.pop("shape", None)
    wanted = [c == "1" for c in outputs] if isinstance(outputs, str) else [True] * outputs
    names = [f"x{k}" if x is not None else "" for k, x in enumerate(inputs)]
    results = [f"y{k}" if keep else "" for k, keep in enumerate(wanted)]
    node = helper.make_node(kind, names, results, domain=domain, name=name, **attributes)
    feeds = {n: np.asarray(x) for n, x in zip(names, inputs) if n}
    typed = {n: helper.np_dtype_to_tensor_dtype(x.dtype) for n, x in feeds.items()}
    # Shapes, axes and the like are constants, as in the predecessor's own graphs.
    constants = {n for n, x in feeds.items() if x.dtype == np.int64 and kind in FIXED}
    graph = helper.make_graph(
        [node],
        name,
        [
            helper.make_tensor_value_info(n, typed[n], feeds[n].shape)
            for n in feeds
            if n not in constants
        ],
        [
            helper.make_tensor_value_info(r, _type(kind, k), shape)
            for k, r in enumerate(results)
            if r
        ],
        [onnx.numpy_helper.from_array(feeds[n], n) for n in feeds if n in constants],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return model, {n: x for n, x in feeds.items() if n not in constants}


FIXED = {
    "GatherGrad", "GatherElementsGrad", "GatherNDGrad", "SliceGrad", "SplitTraining",
    "ReduceSumTraining", "SoftmaxCrossEntropyLossInternal", "SoftmaxCrossEntropyLossInternalGrad",
}  # fmt: skip


def _type(kind, position):
    """Element type of an output."""
    integers = {"BroadcastGradientArgs": (0, 1), "ConcatTraining": (1,)}
    if position in integers.get(kind, ()):
        return 7
    return 9 if (kind, position) == ("FakeQuant", 1) else 1
