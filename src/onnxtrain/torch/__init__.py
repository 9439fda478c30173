"""From PyTorch: trainers that run a module's whole training step in stock onnxruntime."""
