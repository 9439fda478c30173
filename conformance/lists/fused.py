"""Networks after onnxruntime's own tools: fused, optimized, quantized.

Small networks of transformers and torch are exported, then changed by
`onnxruntime.transformers.optimizer` (contrib operators for attention, norms, embeddings), by a
session that saves what it runs (`FusedConv`, `FusedGemm`, …), and by
`onnxruntime.quantization`. What the tool writes is what is differentiated.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..cases import OnnxCase
from ..rounding import behind_roundings

PACKAGES = ["transformers"]
BATCH = 4

BATCH_SIZE, LENGTH, HIDDEN, HEADS = 2, 6, 32, 4
TEXT: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "intermediate_size": 48, "max_position_embeddings": 32, "use_cache": False,
}  # fmt: skip
GROUPED = TEXT | {"num_key_value_heads": 2}
IMAGES: dict[str, Any] = {
    "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "intermediate_size": 48, "image_size": 16, "patch_size": 8, "num_channels": 3,
}  # fmt: skip

FAMILIES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "bert": ("bert", "BertModel", "ids", TEXT),
    "roberta": ("bert", "RobertaModel", "ids", TEXT | {"pad_token_id": 1}),
    "distilbert": ("bert", "DistilBertModel", "ids", {
        "vocab_size": 40, "dim": HIDDEN, "n_layers": 2, "n_heads": HEADS, "hidden_dim": 48,
        "max_position_embeddings": 32}),
    "electra": ("bert", "ElectraModel", "ids", TEXT | {"embedding_size": 16}),
    "gpt2": ("gpt2", "GPT2Model", "ids", {
        "vocab_size": 40, "n_embd": HIDDEN, "n_layer": 2, "n_head": HEADS, "n_positions": 32,
        "use_cache": False}),
    "llama": ("gpt2", "LlamaModel", "ids", GROUPED),
    "phi": ("gpt2", "PhiModel", "ids", GROUPED),
    "qwen3": ("gpt2", "Qwen3Model", "ids", GROUPED | {"head_dim": 8}),
    "t5-encoder": ("t5", "T5EncoderModel", "ids", {
        "vocab_size": 40, "d_model": HIDDEN, "d_kv": 8, "d_ff": 48, "num_layers": 2,
        "num_heads": HEADS}),
    "bart-encoder": ("bart", "BartModel", "ids", {
        "vocab_size": 40, "d_model": HIDDEN, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 32,
        "use_cache": False}),
    "vit": ("vit", "ViTModel", "pixels", IMAGES),
    "clip-vision": ("clip", "CLIPVisionModel", "pixels", IMAGES),
    "swin": ("swin", "SwinModel", "pixels", {
        "image_size": 16, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2],
        "window_size": 2}),
}  # fmt: skip
MODES = ("optimizer", "extended", "dynamic-int8")
NETWORKS = ("mlp", "cnn", "lstm", "gru", "conv-transpose")
NETWORK_MODES = ("extended", "dynamic-int8", "static-qdq", "static-qoperator")


def names() -> list[str]:
    """Each network after each tool."""
    listed = [f"{family}/{mode}" for family in FAMILIES for mode in MODES]
    return listed + [f"{network}/{mode}" for network in NETWORKS for mode in NETWORK_MODES]


def case(name: str) -> OnnxCase:
    """The model that the tool writes."""
    network, _, mode = name.partition("/")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source, target = Path(folder, "source.onnx"), Path(folder, "target.onnx")
        feeds = _export(network, source)
        TOOLS[mode](network, source, target, feeds)
        model = onnx.load(target)
    taken = {i.name for i in model.graph.input}
    feeds = {n: a for n, a in feeds.items() if n in taken}
    wrt = behind_roundings(model)
    return OnnxCase(model, feeds, family=mode, exporter=f"onnxruntime {mode}", wrt=wrt)


def _export(network: str, path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Write the network as ONNX; gives what it is fed with."""
    import torch

    torch.manual_seed(0)
    if network in FAMILIES:
        import transformers

        _, kind, inputs, settings = FAMILIES[network]
        head = getattr(transformers, kind)
        config = head.config_class(**settings, attn_implementation="eager")
        module: Any = _first_output(head(config))
        example = _ids() if inputs == "ids" else torch.rand(BATCH_SIZE, 3, 16, 16)
    else:
        module, example = _network(network)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    names: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"]}
    try:
        torch.onnx.export(
            module.eval(), (example,), str(path), dynamo=False, opset_version=17,
            dynamic_axes={"x": {0: "batch"}}, **names,
        )  # fmt: skip
    except torch.onnx.errors.UnsupportedOperatorError:
        torch.onnx.export(module, (example,), str(path), dynamo=True, verbose=False, **names)
    return {"x": example.numpy()}


def _ids() -> Any:
    import torch

    return torch.arange(BATCH_SIZE * LENGTH).reshape(BATCH_SIZE, LENGTH) % 37 + 2


def _first_output(model: Any) -> Any:
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return self.model(x, return_dict=False)[0]

    return First()


def _network(name: str) -> tuple[Any, Any]:
    import torch
    from torch import nn

    if name == "mlp":
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.rand(4, 6)
    if name in ("lstm", "gru"):
        kind = nn.LSTM if name == "lstm" else nn.GRU
        return _first_of_tuple(kind(5, 6, bidirectional=True)), torch.rand(7, 2, 5)
    image = torch.rand(2, 3, 10, 10)
    if name == "cnn":
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8),
                  nn.LeakyReLU(0.2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(72, 4),
                  nn.Sigmoid()]  # fmt: skip
        return nn.Sequential(*layers), image
    stack = [nn.ConvTranspose2d(3, 4, 3, stride=2), nn.Tanh(), nn.Conv2d(4, 2, 1), nn.Hardswish()]
    return nn.Sequential(*stack), image


def _first_of_tuple(recurrent: Any) -> Any:
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = recurrent
            self.head = torch.nn.Linear(12, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.recurrent(x)[0])

    return First()


# --- tools -------------------------------------------------------------------------------------

Feeds = dict[str, np.ndarray[Any, Any]]


def _optimizer(network: str, source: Path, target: Path, feeds: Feeds) -> None:
    from onnxruntime.transformers import optimizer

    kind = FAMILIES[network][0]
    fused = optimizer.optimize_model(
        str(source), model_type=kind, num_heads=HEADS, hidden_size=HIDDEN, opt_level=0
    )
    fused.save_model_to_file(str(target))


def _extended(network: str, source: Path, target: Path, feeds: Feeds) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def _dynamic(network: str, source: Path, target: Path, feeds: Feeds) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(str(source), str(target))


def _static(form: str) -> Callable[[str, Path, Path, Feeds], None]:
    def quantize(network: str, source: Path, target: Path, feeds: Feeds) -> None:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

        class Batches(CalibrationDataReader):
            def __init__(self) -> None:
                self.batches = iter([feeds] * 2)

            def get_next(self) -> Any:
                return next(self.batches, None)

        quantize_static(
            str(source), str(target), Batches(), quant_format=QuantFormat[form], per_channel=True
        )

    return quantize


TOOLS: dict[str, Callable[[str, Path, Path, Feeds], None]] = {
    "optimizer": _optimizer,
    "extended": _extended,
    "dynamic-int8": _dynamic,
    "static-qdq": _static("QDQ"),
    "static-qoperator": _static("QOperator"),
}
