"""Loss blocks. Each takes names of values and gives the name of the loss.

Targets become graph inputs (`target`, or `labels` where they are classes) unless a value of that
name exists already. These are the losses of `onnxtrain.losses`.
"""

from ...losses import BCELoss as BCELoss
from ...losses import BCEWithLogitsLoss as BCEWithLogitsLoss
from ...losses import CausalLMLoss as CausalLMLoss
from ...losses import CoSENTLoss as CoSENTLoss
from ...losses import CosineEmbeddingLoss as CosineEmbeddingLoss
from ...losses import CosineSimilarityLoss as CosineSimilarityLoss
from ...losses import CrossEntropyLoss as CrossEntropyLoss
from ...losses import CTCLoss as CTCLoss
from ...losses import DistillationLoss as DistillationLoss
from ...losses import GaussianNLLLoss as GaussianNLLLoss
from ...losses import HingeEmbeddingLoss as HingeEmbeddingLoss
from ...losses import HingeLoss as HingeLoss
from ...losses import HuberLoss as HuberLoss
from ...losses import KLDivLoss as KLDivLoss
from ...losses import L1Loss as L1Loss
from ...losses import MatryoshkaLoss as MatryoshkaLoss
from ...losses import MSELoss as MSELoss
from ...losses import MultiMarginLoss as MultiMarginLoss
from ...losses import MultipleNegativesRankingLoss as MultipleNegativesRankingLoss
from ...losses import NLLLoss as NLLLoss
from ...losses import PoissonNLLLoss as PoissonNLLLoss
from ...losses import SmoothL1Loss as SmoothL1Loss
from ...losses import TripletLoss as TripletLoss
from ...losses import TripletMarginLoss as TripletMarginLoss
