"""The losses that onnxruntime-training had, in the module where it had them."""

from ...losses import BCEWithLogitsLoss as BCEWithLogitsLoss
from ...losses import CrossEntropyLoss as CrossEntropyLoss
from ...losses import L1Loss as L1Loss
from ...losses import MSELoss as MSELoss
