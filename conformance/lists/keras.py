"""Keras layers and small applications, converted by tf2onnx.

Each is a model of random weights in TensorFlow, traced as a function with an open batch size and
given to tf2onnx; what Keras computes is what onnxruntime must give.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..cases import OnnxCase

PACKAGES = ["tensorflow-cpu", "tf2onnx"]
BATCH = 12

OPSET = 17
Shape = tuple[int, ...]
IMAGE: Shape = (12, 10, 3)
VOLUME: Shape = (5, 6, 4, 2)
SERIES: Shape = (7, 5)
VECTOR: Shape = (6,)

LAYERS: dict[str, tuple[Shape, str, dict[str, Any]]] = {
    "Dense": (VECTOR, "Dense", {"units": 4, "activation": "relu"}),
    "Dense/series": (SERIES, "Dense", {"units": 4, "activation": "gelu"}),
    "EinsumDense": (SERIES, "EinsumDense",
                    {"equation": "abc,cde->abde", "output_shape": (7, 2, 3)}),
    "Conv1D": (SERIES, "Conv1D", {"filters": 4, "kernel_size": 3, "strides": 2}),
    "Conv1D/causal": (SERIES, "Conv1D", {"filters": 4, "kernel_size": 3, "padding": "causal"}),
    "Conv2D": (IMAGE, "Conv2D", {"filters": 4, "kernel_size": 3, "padding": "same"}),
    "Conv2D/dilated": (IMAGE, "Conv2D", {"filters": 4, "kernel_size": 3, "dilation_rate": 2}),
    "Conv2D/groups": ((8, 8, 4), "Conv2D", {"filters": 4, "kernel_size": 3, "groups": 2}),
    "Conv3D": (VOLUME, "Conv3D", {"filters": 3, "kernel_size": 2}),
    "Conv1DTranspose": (SERIES, "Conv1DTranspose", {"filters": 3, "kernel_size": 3, "strides": 2}),
    "Conv2DTranspose": (IMAGE, "Conv2DTranspose", {"filters": 3, "kernel_size": 3, "strides": 2}),
    "Conv3DTranspose": (VOLUME, "Conv3DTranspose", {"filters": 2, "kernel_size": 2, "strides": 2}),
    "DepthwiseConv1D": (SERIES, "DepthwiseConv1D", {"kernel_size": 3}),
    "DepthwiseConv2D": (IMAGE, "DepthwiseConv2D", {"kernel_size": 3, "padding": "same"}),
    "SeparableConv1D": (SERIES, "SeparableConv1D", {"filters": 4, "kernel_size": 3}),
    "SeparableConv2D": (IMAGE, "SeparableConv2D", {"filters": 4, "kernel_size": 3}),
    "MaxPooling1D": (SERIES, "MaxPooling1D", {}),
    "MaxPooling2D": (IMAGE, "MaxPooling2D", {"padding": "same", "pool_size": 3}),
    "MaxPooling3D": (VOLUME, "MaxPooling3D", {}),
    "AveragePooling1D": (SERIES, "AveragePooling1D", {"pool_size": 2}),
    "AveragePooling2D": (IMAGE, "AveragePooling2D", {"padding": "same", "pool_size": 3}),
    "AveragePooling3D": (VOLUME, "AveragePooling3D", {"pool_size": 2}),
    "GlobalMaxPooling2D": (IMAGE, "GlobalMaxPooling2D", {}),
    "GlobalAveragePooling1D": (SERIES, "GlobalAveragePooling1D", {}),
    "GlobalAveragePooling2D": (IMAGE, "GlobalAveragePooling2D", {}),
    "BatchNormalization": (IMAGE, "BatchNormalization", {}),
    "LayerNormalization": (SERIES, "LayerNormalization", {}),
    "GroupNormalization": ((8, 8, 4), "GroupNormalization", {"groups": 2}),
    "RMSNormalization": (SERIES, "RMSNormalization", {}),
    "UnitNormalization": (SERIES, "UnitNormalization", {}),
    "SpectralNormalization": (VECTOR, "SpectralNormalization", {}),
    "LSTM": (SERIES, "LSTM", {"units": 4}),
    "LSTM/sequences": (SERIES, "LSTM", {"units": 4, "return_sequences": True}),
    "GRU": (SERIES, "GRU", {"units": 4, "return_sequences": True}),
    "GRU/reset-before": (SERIES, "GRU", {"units": 4, "reset_after": False}),
    "SimpleRNN": (SERIES, "SimpleRNN", {"units": 4, "return_sequences": True}),
    "Bidirectional": (SERIES, "Bidirectional", {}),
    "TimeDistributed": (SERIES, "TimeDistributed", {}),
    "ConvLSTM1D": ((4, 6, 3), "ConvLSTM1D", {"filters": 2, "kernel_size": 3}),
    "ConvLSTM2D": ((3, 6, 5, 2), "ConvLSTM2D", {"filters": 2, "kernel_size": 3}),
    "UpSampling1D": (SERIES, "UpSampling1D", {}),
    "UpSampling2D": (IMAGE, "UpSampling2D", {}),
    "UpSampling2D/bilinear": (IMAGE, "UpSampling2D", {"interpolation": "bilinear"}),
    "ZeroPadding2D": (IMAGE, "ZeroPadding2D", {}),
    "Cropping2D": (IMAGE, "Cropping2D", {"cropping": 2}),
    "Resizing": (IMAGE, "Resizing", {"height": 7, "width": 15}),
    "Rescaling": (IMAGE, "Rescaling", {"scale": 0.5, "offset": 1.0}),
    "CenterCrop": (IMAGE, "CenterCrop", {"height": 6, "width": 5}),
    "Flatten": (IMAGE, "Flatten", {}),
    "Reshape": (IMAGE, "Reshape", {"target_shape": (30, 12)}),
    "Permute": (IMAGE, "Permute", {"dims": (3, 1, 2)}),
    "RepeatVector": (VECTOR, "RepeatVector", {"n": 3}),
    "PReLU": (SERIES, "PReLU", {}),
    "LeakyReLU": (SERIES, "LeakyReLU", {}),
    "ELU": (SERIES, "ELU", {}),
    "Softmax": (SERIES, "Softmax", {}),
    "ReLU/capped": (SERIES, "ReLU", {"max_value": 0.6, "negative_slope": 0.1}),
}  # fmt: skip
ACTIVATIONS = ("celu", "elu", "exponential", "gelu", "hard_sigmoid", "hard_silu", "leaky_relu",
               "linear", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid", "silu",
               "softmax", "softplus", "softsign", "tanh")  # fmt: skip
APPLICATIONS: dict[str, dict[str, Any]] = {
    "MobileNetV2": {"alpha": 0.35}, "MobileNetV3Small": {"alpha": 0.75}, "EfficientNetB0": {},
    "ResNet50": {}, "DenseNet121": {}, "NASNetMobile": {}, "ConvNeXtTiny": {},
}  # fmt: skip


def names() -> list[str]:
    """Layers, activations, whole networks."""
    return [
        *LAYERS,
        *(f"activation/{a}" for a in ACTIVATIONS),
        *MODELS,
        *(f"application/{a}" for a in APPLICATIONS),
    ]


def case(name: str) -> OnnxCase:
    """The converted model, a batch of two, and what Keras says."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    keras.utils.set_random_seed(0)
    model, x = _model(keras, name)
    _move_off_symmetric_points(model)
    if name.startswith("application/"):
        _take_statistics(model, x)
    proto, output = _convert(model, x)
    expected = np.asarray(model(x, training=False))
    family = name.split("/", maxsplit=1)[0]
    return OnnxCase(proto, {"x": x}, family=family, exporter="tf2onnx", expected={output: expected})


def _model(keras: Any, name: str) -> tuple[Any, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    kind, _, which = name.partition("/")
    if name in MODELS:
        return MODELS[name](keras, rng)
    if kind == "application":
        build = getattr(keras.applications, which)
        model = build(weights=None, input_shape=(32, 32, 3), classes=5, **APPLICATIONS[which])
        return model, rng.uniform(0, 1, (2, 32, 32, 3)).astype(np.float32)
    if kind == "activation":
        shape, layer = VECTOR, keras.layers.Dense(5, activation=which)
    else:
        shape, layer_name, settings = LAYERS[name]
        layer = _layer(keras, layer_name, settings)
    x = rng.uniform(-1, 1, (2, *shape)).astype(np.float32)
    return keras.Sequential([keras.Input(shape), layer]), x


def _layer(keras: Any, name: str, settings: dict[str, Any]) -> Any:
    layers = keras.layers
    around = {
        "Bidirectional": lambda: layers.LSTM(3, return_sequences=True),
        "TimeDistributed": lambda: layers.Dense(3),
        "SpectralNormalization": lambda: layers.Dense(3),
    }
    if name in around:
        return getattr(layers, name)(around[name](), **settings)
    return getattr(layers, name)(**settings)


def _embedding(keras: Any, rng: np.random.Generator) -> Any:
    layers = keras.layers
    stack = [keras.Input((6,)), layers.Embedding(11, 4), layers.LSTM(3), layers.Dense(2)]
    return keras.Sequential(stack), rng.integers(0, 11, (2, 6)).astype(np.float32)


def _masked(keras: Any, rng: np.random.Generator) -> Any:
    layers = keras.layers
    stack = [keras.Input((6,)), layers.Embedding(11, 4, mask_zero=True), layers.GRU(3)]
    x = rng.integers(1, 11, (2, 6)).astype(np.float32)
    x[0, 4:] = 0
    return keras.Sequential(stack), x


def _attention(keras: Any, rng: np.random.Generator) -> Any:
    inputs = keras.Input(SERIES)
    attended = keras.layers.MultiHeadAttention(2, 3)(inputs, inputs)
    both = keras.layers.LayerNormalization()(inputs + attended)
    model = keras.Model(inputs, keras.layers.Dense(3, activation="gelu")(both))
    return model, rng.uniform(-1, 1, (2, *SERIES)).astype(np.float32)


def _grouped_attention(keras: Any, rng: np.random.Generator) -> Any:
    inputs = keras.Input((5, 8))
    attended = keras.layers.GroupQueryAttention(4, 4, 2)(inputs, inputs, use_causal_mask=True)
    return keras.Model(inputs, attended), rng.uniform(-1, 1, (2, 5, 8)).astype(np.float32)


def _residual(keras: Any, rng: np.random.Generator) -> Any:
    layers = keras.layers
    inputs = keras.Input(IMAGE)
    x = layers.Conv2D(3, 3, padding="same")(inputs)
    x = layers.Activation("swish")(layers.BatchNormalization()(x))
    x = layers.Multiply()([layers.Add()([x, inputs]), layers.Maximum()([x, inputs])])
    x = layers.Concatenate()([x, layers.Average()([x, inputs])])
    model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))
    return model, rng.uniform(-1, 1, (2, *IMAGE)).astype(np.float32)


MODELS: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    "model/embedding-lstm": _embedding,
    "model/masked-gru": _masked,
    "model/attention": _attention,
    "model/grouped-attention": _grouped_attention,
    "model/residual": _residual,
}


def _move_off_symmetric_points(model: Any) -> None:
    """Scales of ones and shifts of zeros would hide mistakes.

    Random weights stay: with a mean of their own a deep network of convolutions would have one
    output for all images.
    """
    rng = np.random.default_rng(1)
    for weight in model.weights:
        value = np.asarray(weight)
        if value.dtype.kind == "f" and value.size and value.min() == value.max():
            weight.assign(value + 0.05 * rng.uniform(0, 1, value.shape).astype(value.dtype))


def _take_statistics(model: Any, x: np.ndarray[Any, Any]) -> None:
    """Statistics of the norms of batches, from the images and a few more.

    A deep network whose norms know nothing grows until its last layer gives zeros and ones, or no
    numbers: there is no gradient to compare then. It grows as well if the images are not among
    those that the statistics are of, or if a Dropout is at work: what is far from the others is
    further away behind each norm.
    """
    norms = [layer for layer in model.layers if hasattr(layer, "moving_variance")]
    dropouts = [layer for layer in model.layers if type(layer).__name__ == "Dropout"]
    usual = [(layer, "momentum", layer.momentum) for layer in norms]
    usual += [(layer, "rate", layer.rate) for layer in dropouts]
    for layer, setting, _ in usual:
        setattr(layer, setting, 0.0)
    others = np.random.default_rng(2).uniform(0, 1, (6, *x.shape[1:])).astype(np.float32)
    if norms:
        model(np.concatenate([x, others]), training=True)
    for layer, setting, value in usual:
        setattr(layer, setting, value)


def _convert(model: Any, x: np.ndarray[Any, Any]) -> tuple[Any, str]:
    import tensorflow as tf
    import tf2onnx

    signature = [tf.TensorSpec((None, *x.shape[1:]), tf.float32, name="x")]
    function = tf.function(lambda t: model(t, training=False), input_signature=signature)
    proto, _ = tf2onnx.convert.from_function(function, input_signature=signature, opset=OPSET)
    _store_captured(proto.graph, function.get_concrete_function().graph.captures)
    return proto, proto.graph.output[0].name


def _store_captured(graph: onnx.GraphProto, captures: Any) -> None:
    """Constants of layers (of Normalization, say) are inputs after the conversion: store them."""
    values = {placeholder.name: tensor for tensor, placeholder in captures}
    for value in [i for i in graph.input if i.name in values]:
        array = np.asarray(values[value.name])
        graph.initializer.append(numpy_helper.from_array(array, value.name))
        graph.input.remove(value)
