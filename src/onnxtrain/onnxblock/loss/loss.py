"""The losses that onnxruntime-training had, in the module where it had them."""

from .classification import BCEWithLogitsLoss as BCEWithLogitsLoss
from .classification import CrossEntropyLoss as CrossEntropyLoss
from .regression import L1Loss as L1Loss
from .regression import MSELoss as MSELoss
