"""onnxtrain: train any ONNX model on stock onnxruntime.

The names to begin with are here:

    differentiate, check_gradient, summarize      a model and its gradient
    losses, optim, generate_artifacts             from a model to the files of a training
    Module, Optimizer, CheckpointState            one step at a time, on any device
    Trainer, schedulers                           the loop on top of them
    lora, quant                                   adapters for a model that is there already, and
                                                  weights of a few bits under them
    text                                          language models: tokens, rows, samples
    transfer                                      a classifier for other classes

Each is imported when it is first used, so that a device that only trains needs numpy and
onnxruntime alone.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import api as api
    from . import artifacts as artifacts
    from . import errors as errors
    from . import extend as extend
    from . import lora as lora
    from . import losses as losses
    from . import onnxblock as onnxblock
    from . import optim as optim
    from . import quant as quant
    from . import schedulers as schedulers
    from . import text as text
    from . import training_info as training_info
    from . import transfer as transfer
    from .api import CheckpointState as CheckpointState
    from .api import Module as Module
    from .api import Optimizer as Optimizer
    from .api import Trainer as Trainer
    from .artifacts import generate_artifacts as generate_artifacts
    from .compile import differentiate as differentiate
    from .gradient_check import check_gradient as check_gradient
    from .summary import summarize as summarize
    from .training import GradientGraphBuilder as GradientGraphBuilder
    from .training import GraphInfo as GraphInfo
    from .training import OrtModuleGraphBuilder as OrtModuleGraphBuilder
    from .training import OrtModuleGraphBuilderConfiguration as OrtModuleGraphBuilderConfiguration
    from .training import OrtValueCache as OrtValueCache
    from .training import OrtValueVector as OrtValueVector
    from .training import PartialGraphExecutionState as PartialGraphExecutionState
    from .training import PropagateCastOpsConfiguration as PropagateCastOpsConfiguration
    from .training import PropagateCastOpsStrategy as PropagateCastOpsStrategy
    from .training import Severity as Severity
    from .training import TrainingAgent as TrainingAgent
    from .training import (
        TrainingGraphTransformerConfiguration as TrainingGraphTransformerConfiguration,
    )
    from .training import TrainingParameters as TrainingParameters
    from .training import TrainingSession as TrainingSession

__all__ = [
    "CheckpointState", "Module", "Optimizer", "Trainer", "__version__", "check_gradient",
    "differentiate", "generate_artifacts", "lora", "losses", "optim", "quant", "schedulers",
    "summarize", "text", "transfer",
]  # fmt: skip

_MODULES = (
    "api", "artifacts", "errors", "extend", "lora", "losses", "onnxblock", "optim", "quant",
    "schedulers", "text", "training_info", "transfer",
)  # fmt: skip
_HOMES = {
    "check_gradient": "gradient_check",
    "differentiate": "compile",
    "generate_artifacts": "artifacts",
    "summarize": "summary",
    **dict.fromkeys(("CheckpointState", "Module", "Optimizer", "Trainer"), "api"),
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
        "training",  # the predecessor's names, where they were
    ),
}


def __dir__() -> list[str]:
    """All public names, imported already or not."""
    return sorted({*globals(), *_HOMES, *_MODULES})


if not TYPE_CHECKING:  # a type checker sees the imports above, and so a misspelt name is an error

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        import importlib

        if name in _MODULES:
            return importlib.import_module(f".{name}", __name__)
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
