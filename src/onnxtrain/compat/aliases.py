"""Which old name is which new one: tables, read by `finder`.

A target is ``"module:name"``, ``"module"`` for a whole module, or a tuple of such, of which the
first that exists is taken. Nothing is imported before a script asks for it.
"""

from __future__ import annotations

from typing import TypeAlias

Target: TypeAlias = "str | tuple[str, ...]"
Names: TypeAlias = "dict[str, Target]"

TRAINING = "onnxruntime.training"
BLOCKS = f"{TRAINING}.onnxblock"

SAME: dict[str, str] = {
    f"{TRAINING}.artifacts": "onnxtrain.artifacts",
    f"{TRAINING}.checkpoint": "onnxtrain.compat.ort.orttrainer.checkpoint",
    f"{TRAINING}._checkpoint_storage": "onnxtrain.compat.ort.orttrainer.checkpoint_storage",
    f"{TRAINING}._utils": "onnxtrain.compat.ort.orttrainer.training_utils",
    f"{TRAINING}.model_desc_validation": "onnxtrain.compat.ort.orttrainer.model_desc_validation",
    BLOCKS: "onnxtrain.onnxblock",
    **{
        f"{BLOCKS}.{name}": f"onnxtrain.onnxblock.{name}"
        for name in (
            "blocks", "building_blocks", "loss", "loss.loss", "optim", "optim.optim",
            "model_accessor", "_graph_utils", "_training_graph_utils", "checkpoint_utils",
            "onnxblock",
        )
    },
}  # fmt: skip
"""Modules that are the very same object under both names, so that their state is shared."""


def _from(module: str, *names: str) -> Names:
    return {name: f"{module}:{name}" for name in names}


API = "onnxtrain.api"
TORCH = "onnxtrain.torch"
PARTS = "onnxtrain.compat.ort.torch_parts"
FUSED = "onnxtrain.compat.ort.orttrainer.fused_adam"
CAPI = "onnxtrain.compat.ort.capi"
OLD = "onnxtrain.compat.ort.ortmodule"

_CONFIGS = _from(f"{TORCH}.optim", "SGDConfig", "AdamConfig", "LambConfig", "_OptimizerConfig")
_SCHEDULERS = _from(
    f"{TORCH}.lr_scheduler", "_LRScheduler", "ConstantWarmupLRScheduler",
    "CosineWarmupLRScheduler", "LinearWarmupLRScheduler", "PolyWarmupLRScheduler",
)  # fmt: skip
_SCALERS = _from(f"{TORCH}.amp", "LossScaler", "DynamicLossScaler")
_DEBUG = _from(TORCH, "DebugOptions", "LogLevel")
_ORTMODULE = _from(OLD, "ORTModule")
_FALLBACK = _from(
    f"{TORCH}.fallback",
    "ORTModuleDeviceException",
    "ORTModuleFallbackException",
    "ORTModuleInitException",
    "ORTModuleIOError",
    "ORTModuleONNXModelException",
    "ORTModuleTorchModelException",
) | {
    "_FallbackPolicy": f"{TORCH}.fallback:FallbackPolicy",
    "FallbackPolicy": f"{TORCH}.fallback:FallbackPolicy",
}
_BUILDERS = _from(
    "onnxtrain.compat.ort", "GradientGraphBuilder", "GraphInfo", "OrtModuleGraphBuilder",
    "OrtModuleGraphBuilderConfiguration", "OrtValueCache", "PartialGraphExecutionState",
    "PropagateCastOpsConfiguration", "PropagateCastOpsStrategy", "Severity", "TrainingAgent",
    "TrainingGraphTransformerConfiguration", "TrainingParameters",
)  # fmt: skip

PYBIND: Names = {
    **_BUILDERS,
    "OrtValueVector": "onnxtrain.compat.ort:OrtValueVector",
    "TrainingSession": "onnxtrain.compat.ort:TrainingSession",
    **_from(
        CAPI, "GradientNodeAttributeDefinition", "GradientNodeDefinition",
        "get_model_after_loading_checkpoint", "get_optimized_model", "is_ortmodule_available",
        "is_torch_interop_default_on", "is_triton_enabled", "load_checkpoint",
        "register_custom_stop_gradient_edges", "register_gradient_definition", "save_checkpoint",
    ),
    **_from(API, "CheckpointState", "LinearLRScheduler", "Module", "Optimizer", "Parameter"),
}  # fmt: skip
"""Added to `onnxruntime.capi._pybind_state` where it lacks them."""

TOP: Names = {
    "training": TRAINING,
    **_from("onnxtrain.compat.ort", "TrainingSession", "TrainingParameters"),
}
"""Added to `onnxruntime` itself, where the first releases had them."""

_SKL = "onnxtrain.sklearn"
_HOME = "onnxtrain.compat.onnxcustom"
_CUSTOM = "onnxcustom.training"
_UTILS = "onnxcustom.utils"


def _skl(*names: str) -> Names:
    """Names of onnxcustom, all of which `onnxtrain.sklearn` exports under the same name."""
    return {name: (f"{_SKL}:{name}", f"{_SKL}.*:{name}") for name in names}


_ERRORS = _skl("ConvergenceError", "ConvergenceWarning", "EvaluationError", "ProviderError")

COMPOSED: dict[str, Names] = {
    TRAINING: {
        "artifacts": f"{TRAINING}.artifacts",
        "onnxblock": BLOCKS,
        "api": f"{TRAINING}.api",
        "amp": f"{TRAINING}.amp",
        "optim": f"{TRAINING}.optim",
        "checkpoint": f"{TRAINING}.checkpoint",
        "model_desc_validation": f"{TRAINING}.model_desc_validation",
        "PropagateCastOpsStrategy": "onnxtrain.compat.ort:PropagateCastOpsStrategy",
        **_from("onnxtrain.compat.ort", "TrainingParameters", "TrainingSession"),
        "is_ortmodule_available": f"{CAPI}:is_ortmodule_available",
        **_from(TORCH, "ORTTrainer", "ORTTrainerOptions", "TrainStepInfo"),
        **_ORTMODULE,
    },
    f"{TRAINING}.api": _from(
        API, "CheckpointState", "LinearLRScheduler", "Module", "Optimizer",
        "Parameter", "Parameters", "Properties",
    ),
    f"{TRAINING}.api.module": _from(API, "Module"),
    f"{TRAINING}.api.optimizer": _from(API, "Optimizer"),
    f"{TRAINING}.api.lr_scheduler": _from(API, "LinearLRScheduler"),
    f"{TRAINING}.api.checkpoint_state": _from(
        API, "CheckpointState", "Parameter", "Parameters", "Properties"
    ),
    f"{TRAINING}.amp": {**_SCALERS, "loss_scaler": f"{TRAINING}.amp.loss_scaler"},
    f"{TRAINING}.amp.loss_scaler": _SCALERS,
    f"{TRAINING}.optim": {
        **_CONFIGS,
        "config": f"{TRAINING}.optim.config",
        "lr_scheduler": f"{TRAINING}.optim.lr_scheduler",
        **_from(FUSED, "AdamWMode", "FP16_Optimizer", "FusedAdam"),
    },
    f"{TRAINING}.optim.config": _CONFIGS,
    f"{TRAINING}.optim.lr_scheduler": _SCHEDULERS,
    f"{TRAINING}.optim.fused_adam": _from(FUSED, "AdamWMode", "FusedAdam"),
    f"{TRAINING}.optim.fp16_optimizer": _from(FUSED, "FP16_Optimizer"),
    f"{TRAINING}.orttrainer": _from(TORCH, "ORTTrainer", "ORTTrainerOptions", "TrainStepInfo"),
    f"{TRAINING}.orttrainer_options": _from(TORCH, "ORTTrainerOptions"),
    f"{TRAINING}.ortmodule": {
        **_ORTMODULE,
        **_DEBUG,
        **_FALLBACK,
        "ORTMODULE_FALLBACK_POLICY": f"{OLD}:FALLBACK_POLICY",
        "_are_deterministic_algorithms_enabled": "torch:are_deterministic_algorithms_enabled",
        "_defined_from_envvar": f"{OLD}:defined_from_envvar",
    },
    f"{TRAINING}.ortmodule.ortmodule": _ORTMODULE,
    f"{TRAINING}.ortmodule._custom_gradient_registry": _from(OLD, "register_gradient"),
    f"{TRAINING}.ortmodule._graph_execution_manager_factory": _from(
        OLD, "GraphExecutionManagerFactory"
    ),
    f"{TRAINING}.ortmodule._onnx_models": {"_get_onnx_file_name": f"{OLD}:get_onnx_file_name"},
    f"{TRAINING}.ortmodule._utils": _from(
        OLD, "get_device_index", "get_device_str", "get_random_states", "set_random_states"
    ),
    f"{TRAINING}.ortmodule.options": _DEBUG,
    f"{TRAINING}.ortmodule.debug_options": _DEBUG,
    f"{TRAINING}.ortmodule._fallback": _FALLBACK,
    f"{TRAINING}.ortmodule.torch_cpp_extensions": {},
    f"{TRAINING}.ortmodule.torch_cpp_extensions.install": _from(
        PARTS, "build_torch_cpp_extensions"
    ),
    f"{TRAINING}.experimental": _from(PARTS, "export_gradient_graph"),
    f"{TRAINING}.experimental.gradient_graph": _from(PARTS, "export_gradient_graph"),
    f"{TRAINING}.experimental.gradient_graph._gradient_graph_tools": _from(
        PARTS, "export_gradient_graph"
    ),
    "onnxruntime.capi.ort_trainer": {
        **_from(
            TORCH, "IODescription", "ModelDescription", "LossScaler", "generate_sample",
            "save_checkpoint", "load_checkpoint",
        ),
        "ORTTrainer": f"{TORCH}:ORTTrainer",
    },
    "onnxruntime.capi.training": {},
    "onnxruntime.capi.training.training_session": _from("onnxtrain.compat.ort", "TrainingSession"),
    f"{TRAINING}.utils": {
        "data": f"{TRAINING}.utils.data",
        **_from(OLD, "onnx_dtype_to_pytorch_dtype", "pytorch_type_to_onnx_dtype"),
    },
    f"{TRAINING}.utils.data": _from(f"{TORCH}.utils.data", "LoadBalancingDistributedSampler"),
    "torch_ort": {**_ORTMODULE, **_DEBUG},
    "onnxcustom": {
        "__version__": f"{CAPI}:ONNXCUSTOM_VERSION",
        "__max_supported_opset__": f"{_HOME}.version:MAX_SUPPORTED_OPSET",
        "__max_supported_opsets__": f"{_HOME}.version:MAX_SUPPORTED_OPSETS",
        **_from(f"{_HOME}.version", "get_max_opset"),
    },
    "onnxcustom.plotting": {},
    "onnxcustom.plotting.plotting_onnx": _skl("plot_onnxs"),
    _CUSTOM: _ERRORS,
    f"{_CUSTOM}.excs": _ERRORS,
    f"{_CUSTOM}.optimizers": _skl("OrtGradientOptimizer"),
    f"{_CUSTOM}.optimizers_partial": _skl(
        "OrtGradientForwardBackwardOptimizer", "OrtGradientForwardBackward",
        "OrtGradientForwardBackwardFunction",
    ),
    f"{_CUSTOM}.ortgradient": _skl(
        "OrtGradientForwardBackward", "OrtGradientForwardBackwardFunction"
    ),
    f"{_CUSTOM}.sgd_learning_rate": _skl(
        "BaseLearningRate", "LearningRateSGD", "LearningRateSGDNesterov"
    ),
    f"{_CUSTOM}.sgd_learning_loss": _skl(
        "BaseLearningLoss", "SquareLearningLoss", "AbsoluteLearningLoss", "ElasticLearningLoss",
        "NegLogLearningLoss",
    ),
    f"{_CUSTOM}.sgd_learning_penalty": _skl(
        "BaseLearningPenalty", "NoLearningPenalty", "ElasticLearningPenalty"
    ),
    f"{_CUSTOM}.data_loader": _skl("OrtDataLoader"),
    f"{_CUSTOM}.grad_helper": _skl("onnx_derivative", "DerivativeOptions"),
    _UTILS: {**_skl("str_ortvalue"), "measure_time": f"{_HOME}.benchmark:measure_time"},
    f"{_UTILS}.benchmark": {"measure_time": f"{_HOME}.benchmark:measure_time"},
    f"{_UTILS}.orttraining_helper": _skl(
        "add_loss_output", "penalty_loss_onnx", "get_train_initializer"
    ),
    f"{_UTILS}.onnx_helper": _skl(
        "onnx_rename_weights", "get_onnx_opset", "proto_type_to_dtype", "dtype_to_var_type",
        "add_initializer", "replace_initializers_into_onnx",
    ),
    f"{_UTILS}.onnx_function": _skl("function_onnx_graph", "get_supported_functions"),
    f"{_UTILS}.onnx_rewriter": _skl("onnx_rewrite_operator", "unreduced_onnx_loss"),
    f"{_UTILS}.onnxruntime_helper": _skl(
        "get_ort_device", "ort_device_to_string", "device_to_providers", "provider_to_device",
        "numpy_to_ort_value", "get_ort_device_from_session", "get_ort_device_type",
    ),
    f"{_UTILS}.print_helper": _skl("str_ortvalue"),
}  # fmt: skip
"""Modules that only exist as aliases: their names, each with its target."""
