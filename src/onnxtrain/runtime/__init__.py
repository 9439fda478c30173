"""Stage 6: run the artifacts with numpy and onnxruntime only."""
