"""onnxtrain: train any ONNX model on stock onnxruntime."""

__version__ = "0.1.0"

_LAZY = {
    "check_gradient": "check",
    "differentiate": "compile",
    **dict.fromkeys(
        (
            "GradientGraphBuilder",
            "GraphInfo",
            "OrtModuleGraphBuilder",
            "OrtModuleGraphBuilderConfiguration",
            "OrtValueCache",
            "OrtValueVector",
            "PartialGraphExecutionState",
            "PropagateCastOpsConfiguration",
            "PropagateCastOpsStrategy",
            "Severity",
            "TrainingAgent",
            "TrainingGraphTransformerConfiguration",
            "TrainingParameters",
            "TrainingSession",
        ),
        "training",
    ),
}


def __getattr__(name: str) -> object:
    """Import public names when they are first used, so that `onnxtrain.api` stays light."""
    import importlib

    if name in _LAZY:
        return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
