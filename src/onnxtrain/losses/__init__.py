"""The losses, under the name to look for: ``losses.CrossEntropyLoss(label_smoothing=0.1)``."""

from ..onnxblock.loss import BCELoss as BCELoss
from ..onnxblock.loss import BCEWithLogitsLoss as BCEWithLogitsLoss
from ..onnxblock.loss import CosineEmbeddingLoss as CosineEmbeddingLoss
from ..onnxblock.loss import CrossEntropyLoss as CrossEntropyLoss
from ..onnxblock.loss import CTCLoss as CTCLoss
from ..onnxblock.loss import GaussianNLLLoss as GaussianNLLLoss
from ..onnxblock.loss import HingeEmbeddingLoss as HingeEmbeddingLoss
from ..onnxblock.loss import HingeLoss as HingeLoss
from ..onnxblock.loss import HuberLoss as HuberLoss
from ..onnxblock.loss import KLDivLoss as KLDivLoss
from ..onnxblock.loss import L1Loss as L1Loss
from ..onnxblock.loss import MSELoss as MSELoss
from ..onnxblock.loss import MultiMarginLoss as MultiMarginLoss
from ..onnxblock.loss import NLLLoss as NLLLoss
from ..onnxblock.loss import PoissonNLLLoss as PoissonNLLLoss
from ..onnxblock.loss import SmoothL1Loss as SmoothL1Loss
from ..onnxblock.loss import TripletMarginLoss as TripletMarginLoss
