"""Stage 6: run the artifacts, with numpy and onnxruntime (and numba, where it is installed)."""
