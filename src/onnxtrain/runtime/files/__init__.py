"""Files: protobuf without protobuf, ONNX models, checkpoints old and new, atomic writes."""
