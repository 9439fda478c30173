"""ORTTrainer of onnxruntime-training, in both generations."""

from .... import torch as _front  # noqa: F401 - its exporter and these modules need each other
