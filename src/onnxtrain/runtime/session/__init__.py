"""Sessions of onnxruntime: devices, options, threads, feeds and bindings."""
