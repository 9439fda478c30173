"""What is minimised: ``losses.CrossEntropyLoss(label_smoothing=0.1)``.

Each loss is a formula on the op builder (see `Loss`). It is given to `generate_artifacts`, called
with names inside ``onnxblock.base(model)``, or used in a graph of one's own:
``loss.loss(op, x, t)``.

`LOSSES` is the table of what there is. A new loss is a file (or a class in one of them), a row
there, and its line among the imports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .base import Loss as Loss
    from .classification import BCELoss as BCELoss
    from .classification import BCEWithLogitsLoss as BCEWithLogitsLoss
    from .classification import CrossEntropyLoss as CrossEntropyLoss
    from .classification import HingeLoss as HingeLoss
    from .classification import KLDivLoss as KLDivLoss
    from .classification import MultiMarginLoss as MultiMarginLoss
    from .classification import NLLLoss as NLLLoss
    from .ctc import CTCLoss as CTCLoss
    from .distillation import DistillationLoss as DistillationLoss
    from .embedding import CosineEmbeddingLoss as CosineEmbeddingLoss
    from .embedding import HingeEmbeddingLoss as HingeEmbeddingLoss
    from .embedding import TripletMarginLoss as TripletMarginLoss
    from .language import CausalLMLoss as CausalLMLoss
    from .regression import GaussianNLLLoss as GaussianNLLLoss
    from .regression import HuberLoss as HuberLoss
    from .regression import L1Loss as L1Loss
    from .regression import MSELoss as MSELoss
    from .regression import PoissonNLLLoss as PoissonNLLLoss
    from .regression import SmoothL1Loss as SmoothL1Loss
    from .similarity import CoSENTLoss as CoSENTLoss
    from .similarity import CosineSimilarityLoss as CosineSimilarityLoss
    from .similarity import MatryoshkaLoss as MatryoshkaLoss
    from .similarity import MultipleNegativesRankingLoss as MultipleNegativesRankingLoss
    from .similarity import TripletLoss as TripletLoss

Target = Literal["class", "token", "number", "binary", "sign", ""]


@dataclass(frozen=True)
class Row:
    """A loss of the table.

    Attributes:
        name: of the class.
        module: where it is.
        short: its name on the command line; "" if it cannot be asked for there.
        target: what is fed: "class" numbers, the classes being axis 1 of the scores; "token"
            numbers, the vocabulary being the last axis; a "number" like the prediction; that from 0
            to 1 ("binary"), or −1 and 1 ("sign"); "" where it is neither.
    """

    name: str
    module: str
    short: str = ""
    target: Target = ""


LOSSES = (
    Row("CrossEntropyLoss", "classification", "cross_entropy", "class"),
    Row("CausalLMLoss", "language", "causal_lm", "token"),
    Row("NLLLoss", "classification", "nll", "class"),
    Row("MultiMarginLoss", "classification", "multi_margin", "class"),
    Row("BCEWithLogitsLoss", "classification", "bce_with_logits", "binary"),
    Row("BCELoss", "classification", "bce", "binary"),
    Row("HingeLoss", "classification", "hinge", "sign"),
    Row("MSELoss", "regression", "mse", "number"),
    Row("L1Loss", "regression", "l1", "number"),
    Row("HuberLoss", "regression", "huber", "number"),
    Row("SmoothL1Loss", "regression", "smooth_l1", "number"),
    Row("PoissonNLLLoss", "regression", "poisson_nll", "number"),
    Row("KLDivLoss", "classification", "kl_div", "number"),
    Row("GaussianNLLLoss", "regression"),
    Row("CosineEmbeddingLoss", "embedding"),
    Row("HingeEmbeddingLoss", "embedding"),
    Row("TripletMarginLoss", "embedding"),
    Row("CTCLoss", "ctc"),
    Row("MultipleNegativesRankingLoss", "similarity"),
    Row("CosineSimilarityLoss", "similarity"),
    Row("CoSENTLoss", "similarity"),
    Row("TripletLoss", "similarity"),
    Row("MatryoshkaLoss", "similarity"),
    Row("DistillationLoss", "distillation"),
)

_HOMES = {**{row.name: row.module for row in LOSSES}, "Loss": "base"}
__all__ = [
    "LOSSES", "BCELoss", "BCEWithLogitsLoss", "CTCLoss", "CausalLMLoss", "CoSENTLoss",
    "CosineEmbeddingLoss", "CosineSimilarityLoss", "CrossEntropyLoss", "DistillationLoss",
    "GaussianNLLLoss", "HingeEmbeddingLoss", "HingeLoss", "HuberLoss", "KLDivLoss", "L1Loss",
    "Loss", "MSELoss", "MatryoshkaLoss", "MultiMarginLoss", "MultipleNegativesRankingLoss",
    "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss", "TripletLoss", "TripletMarginLoss",
]  # fmt: skip


def __dir__() -> list[str]:
    """All losses, imported already or not."""
    return sorted({*globals(), *_HOMES})


if not TYPE_CHECKING:  # a type checker sees the imports above

    def __getattr__(name: str) -> object:
        """Import a loss when it is first used: the table alone needs no onnx."""
        import importlib

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
