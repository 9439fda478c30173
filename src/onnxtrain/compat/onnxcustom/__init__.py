"""onnxcustom's names: optimizers as estimators, learning losses, rates and penalties."""
