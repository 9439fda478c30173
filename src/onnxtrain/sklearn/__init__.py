"""scikit-learn flavoured training: both APIs behind ``fit``, and estimators made of ONNX models."""

from ..compat.moved import also_at
from ..compat.onnxcustom.base import save_onnx_graph as save_onnx_graph
from ..compat.onnxcustom.data_loader import OrtDataLoader as OrtDataLoader
from ..compat.onnxcustom.derivative import DerivativeOptions as DerivativeOptions
from ..compat.onnxcustom.derivative import onnx_derivative as onnx_derivative
from ..compat.onnxcustom.devices import device_to_providers as device_to_providers
from ..compat.onnxcustom.devices import get_ort_device as get_ort_device
from ..compat.onnxcustom.devices import get_ort_device_from_session as get_ort_device_from_session
from ..compat.onnxcustom.devices import get_ort_device_type as get_ort_device_type
from ..compat.onnxcustom.devices import numpy_to_ort_value as numpy_to_ort_value
from ..compat.onnxcustom.devices import ort_device_to_string as ort_device_to_string
from ..compat.onnxcustom.devices import provider_to_device as provider_to_device
from ..compat.onnxcustom.devices import str_ortvalue as str_ortvalue
from ..compat.onnxcustom.exceptions import ConvergenceError as ConvergenceError
from ..compat.onnxcustom.exceptions import ConvergenceWarning as ConvergenceWarning
from ..compat.onnxcustom.exceptions import EvaluationError as EvaluationError
from ..compat.onnxcustom.exceptions import ProviderError as ProviderError
from ..compat.onnxcustom.loss_output import add_loss_output as add_loss_output
from ..compat.onnxcustom.loss_output import penalty_loss_onnx as penalty_loss_onnx
from ..compat.onnxcustom.onnx_function import function_onnx_graph as function_onnx_graph
from ..compat.onnxcustom.onnx_function import get_supported_functions as get_supported_functions
from ..compat.onnxcustom.onnx_helper import add_initializer as add_initializer
from ..compat.onnxcustom.onnx_helper import dtype_to_var_type as dtype_to_var_type
from ..compat.onnxcustom.onnx_helper import get_onnx_opset as get_onnx_opset
from ..compat.onnxcustom.onnx_helper import get_train_initializer as get_train_initializer
from ..compat.onnxcustom.onnx_helper import onnx_rename_weights as onnx_rename_weights
from ..compat.onnxcustom.onnx_helper import proto_type_to_dtype as proto_type_to_dtype
from ..compat.onnxcustom.onnx_helper import (
    replace_initializers_into_onnx as replace_initializers_into_onnx,
)
from ..compat.onnxcustom.optimizers import OrtGradientOptimizer as OrtGradientOptimizer
from ..compat.onnxcustom.optimizers_partial import (
    OrtGradientForwardBackwardOptimizer as OrtGradientForwardBackwardOptimizer,
)
from ..compat.onnxcustom.ortgradient import OrtGradientForwardBackward as OrtGradientForwardBackward
from ..compat.onnxcustom.ortgradient import (
    OrtGradientForwardBackwardFunction as OrtGradientForwardBackwardFunction,
)
from ..compat.onnxcustom.plotting import four_graphs as four_graphs
from ..compat.onnxcustom.plotting import onnx_simple_text_plot as onnx_simple_text_plot
from ..compat.onnxcustom.plotting import plot_four_graphs as plot_four_graphs
from ..compat.onnxcustom.plotting import plot_onnxs as plot_onnxs
from ..compat.onnxcustom.rewriter import onnx_rewrite_operator as onnx_rewrite_operator
from ..compat.onnxcustom.rewriter import unreduced_onnx_loss as unreduced_onnx_loss
from ..compat.onnxcustom.sgd_learning_loss import AbsoluteLearningLoss as AbsoluteLearningLoss
from ..compat.onnxcustom.sgd_learning_loss import BaseLearningLoss as BaseLearningLoss
from ..compat.onnxcustom.sgd_learning_loss import ElasticLearningLoss as ElasticLearningLoss
from ..compat.onnxcustom.sgd_learning_loss import (
    MulticlassLogLearningLoss as MulticlassLogLearningLoss,
)
from ..compat.onnxcustom.sgd_learning_loss import NegLogLearningLoss as NegLogLearningLoss
from ..compat.onnxcustom.sgd_learning_loss import SquareLearningLoss as SquareLearningLoss
from ..compat.onnxcustom.sgd_learning_penalty import BaseLearningPenalty as BaseLearningPenalty
from ..compat.onnxcustom.sgd_learning_penalty import (
    ElasticLearningPenalty as ElasticLearningPenalty,
)
from ..compat.onnxcustom.sgd_learning_penalty import L1LearningPenalty as L1LearningPenalty
from ..compat.onnxcustom.sgd_learning_penalty import L2LearningPenalty as L2LearningPenalty
from ..compat.onnxcustom.sgd_learning_penalty import NoLearningPenalty as NoLearningPenalty
from ..compat.onnxcustom.sgd_learning_rate import BaseLearningRate as BaseLearningRate
from ..compat.onnxcustom.sgd_learning_rate import LearningRateAdam as LearningRateAdam
from ..compat.onnxcustom.sgd_learning_rate import LearningRateSGD as LearningRateSGD
from ..compat.onnxcustom.sgd_learning_rate import LearningRateSGDNesterov as LearningRateSGDNesterov
from .classifier import OnnxClassifier as OnnxClassifier
from .regressor import OnnxRegressor as OnnxRegressor

also_at(
    __name__,
    "onnxtrain.compat.onnxcustom",
    ("data_loader", "derivative", "devices", "exceptions", "loss_output", "onnx_function",
     "onnx_helper", "optimizers", "optimizers_partial", "ortgradient", "plotting", "rewriter",
     "sgd_learning_loss", "sgd_learning_penalty", "sgd_learning_rate"),
)  # fmt: skip
