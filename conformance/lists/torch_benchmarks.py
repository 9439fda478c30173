"""The networks of PyTorch's own compiler benchmarks: all 18 names of timm, all 55 of Hugging Face.

The names are those of `benchmarks/dynamo/timm_models_list.txt` and `huggingface_models_list.txt` in
pytorch/pytorch. A network of timm has a smaller image, nine of them fewer or narrower layers;
one of Hugging Face has the sizes of the list of transformers. Weights are random.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.cases import TorchCase

from . import timm as timm_list
from . import transformers as transformers_list
from .torchvision_build import import_torchvision

PACKAGES = ["transformers>=5", "timm", "torchvision"]
BATCH = 20
"""How many cases share a process."""

TIMM = [
    "adv_inception_v3", "beit_base_patch16_224", "convnextv2_nano.fcmae_ft_in22k_in1k",
    "deit_base_distilled_patch16_224", "deit_tiny_patch16_224.fb_in1k", "dm_nfnet_f0",
    "ghostnet_100", "inception_v3", "mobilenetv2_100", "mobilenetv3_large_100", "mobilevit_s",
    "nfnet_l0", "repvgg_a2", "swin_base_patch4_window7_224", "tf_efficientnet_b0",
    "visformer_small", "vit_base_patch14_dinov2.lvd142m", "vit_base_patch16_siglip_256",
]  # fmt: skip

SMALLER: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": {"depth": 2},
    "convnextv2_nano.fcmae_ft_in22k_in1k": {"depths": (1, 1, 2, 1)},
    "deit_base_distilled_patch16_224": {"depth": 2},
    "dm_nfnet_f0": {"depths": (1, 1, 2, 1), "channels": (256, 512, 512, 512)},
    "nfnet_l0": {"depths": (1, 1, 2, 1), "channels": (256, 512, 512, 512)},
    "swin_base_patch4_window7_224": {"depths": (1, 1, 2, 1), "window_size": 4},
    "visformer_small": {"depth": (2, 1, 1)},
    "vit_base_patch14_dinov2.lvd142m": {"depth": 2},
    "vit_base_patch16_siglip_256": {"depth": 2},
}
"""Arguments where tens of millions of parameters, in float64 and with moments, would not fit."""

HUGGING_FACE = {
    "AlbertForMaskedLM": ("albert", ""),
    "AlbertForQuestionAnswering": ("albert", ""),
    "AllenaiLongformerBase": ("longformer", "LongformerForMaskedLM"),
    "BartForCausalLM": ("bart", ""),
    "BartForConditionalGeneration": ("bart", ""),
    "BertForMaskedLM": ("bert", ""),
    "BertForQuestionAnswering": ("bert", ""),
    "BlenderbotForCausalLM": ("blenderbot", ""),
    "BlenderbotForConditionalGeneration": ("blenderbot", ""),
    "BlenderbotSmallForCausalLM": ("blenderbot-small", ""),
    "BlenderbotSmallForConditionalGeneration": ("blenderbot-small", ""),
    "CamemBert": ("camembert", "CamembertForMaskedLM"),
    "DebertaV2ForMaskedLM": ("deberta-v2", ""),
    "DebertaV2ForQuestionAnswering": ("deberta-v2", ""),
    "DistilBertForMaskedLM": ("distilbert", ""),
    "DistilBertForQuestionAnswering": ("distilbert", ""),
    "DistillGPT2": ("gpt2", "GPT2LMHeadModel"),
    "ElectraForCausalLM": ("electra", ""),
    "ElectraForQuestionAnswering": ("electra", ""),
    "GPT2ForSequenceClassification": ("gpt2", ""),
    "GPTJForCausalLM": ("gptj", ""),
    "GPTJForQuestionAnswering": ("gptj", ""),
    "GPTNeoForCausalLM": ("gpt_neo", ""),
    "GPTNeoForSequenceClassification": ("gpt_neo", ""),
    "GoogleFnet": ("fnet", "FNetForMaskedLM"),
    "LayoutLMForMaskedLM": ("layoutlm", ""),
    "LayoutLMForSequenceClassification": ("layoutlm", ""),
    "M2M100ForConditionalGeneration": ("m2m_100", ""),
    "MBartForCausalLM": ("mbart", ""),
    "MBartForConditionalGeneration": ("mbart", ""),
    "MT5ForConditionalGeneration": ("mt5", ""),
    "MegatronBertForCausalLM": ("megatron-bert", ""),
    "MegatronBertForQuestionAnswering": ("megatron-bert", ""),
    "MobileBertForMaskedLM": ("mobilebert", ""),
    "MobileBertForQuestionAnswering": ("mobilebert", ""),
    "OPTForCausalLM": ("opt", ""),
    "PLBartForCausalLM": ("plbart", ""),
    "PLBartForConditionalGeneration": ("plbart", ""),
    "PegasusForCausalLM": ("pegasus", ""),
    "PegasusForConditionalGeneration": ("pegasus", ""),
    "RobertaForCausalLM": ("roberta", ""),
    "RobertaForQuestionAnswering": ("roberta", ""),
    "T5ForConditionalGeneration": ("t5", ""),
    "T5Small": ("t5", "T5ForConditionalGeneration"),
    "TrOCRForCausalLM": ("trocr", ""),
    "XGLMForCausalLM": ("xglm", ""),
    "XLNetLMHeadModel": ("xlnet", ""),
    "YituTechConvBert": ("convbert", "ConvBertForMaskedLM"),
    "meta-llama/Llama-3.2-1B": ("llama", "LlamaForCausalLM"),
    "google/gemma-2-2b": ("gemma2", "Gemma2ForCausalLM"),
    "google/gemma-3-4b-it": ("gemma3_text", "Gemma3ForCausalLM"),
    "openai/whisper-tiny": ("whisper", "WhisperForConditionalGeneration"),
    "Qwen/Qwen3-0.6B": ("qwen3", "Qwen3ForCausalLM"),
    "mistralai/Mistral-7B-Instruct-v0.3": ("mistral", "MistralForCausalLM"),
    "openai/gpt-oss-20b": ("gpt_oss", "GptOssForCausalLM"),
}
"""Model type and class; without a class, the name is that of the class."""


def names() -> list[str]:
    """Those of Hugging Face, then those of timm."""
    return [*HUGGING_FACE, *TIMM]


def case(name: str) -> TorchCase:
    """The network of this name, scaled down."""
    import_torchvision()
    if name in TIMM:
        module, image = timm_list.smallest_image(timm_list.of_model(name, SMALLER.get(name, {})))
        return TorchCase(module, (image,), family="timm", exporters=("dynamo", "torchscript"))
    kind, class_name = HUGGING_FACE[name]
    torch.manual_seed(0)
    return transformers_list.of_type(kind, class_name or name)
