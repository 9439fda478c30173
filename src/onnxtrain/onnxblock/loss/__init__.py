"""Loss blocks. Each takes names of values and gives the name of the loss.

Targets become graph inputs (`target`, or `labels` where they are classes) unless a value of that
name exists already.
"""

from .classification import BCELoss as BCELoss
from .classification import BCEWithLogitsLoss as BCEWithLogitsLoss
from .classification import CrossEntropyLoss as CrossEntropyLoss
from .classification import HingeLoss as HingeLoss
from .classification import KLDivLoss as KLDivLoss
from .classification import MultiMarginLoss as MultiMarginLoss
from .classification import NLLLoss as NLLLoss
from .ctc import CTCLoss as CTCLoss
from .embedding import CosineEmbeddingLoss as CosineEmbeddingLoss
from .embedding import HingeEmbeddingLoss as HingeEmbeddingLoss
from .embedding import TripletMarginLoss as TripletMarginLoss
from .regression import GaussianNLLLoss as GaussianNLLLoss
from .regression import HuberLoss as HuberLoss
from .regression import L1Loss as L1Loss
from .regression import MSELoss as MSELoss
from .regression import PoissonNLLLoss as PoissonNLLLoss
from .regression import SmoothL1Loss as SmoothL1Loss
