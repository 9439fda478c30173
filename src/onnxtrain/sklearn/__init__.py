"""scikit-learn flavoured training: both APIs behind ``fit``, and estimators made of ONNX models."""

from .base import save_onnx_graph as save_onnx_graph
from .data_loader import OrtDataLoader as OrtDataLoader
from .derivative import DerivativeOptions as DerivativeOptions
from .derivative import onnx_derivative as onnx_derivative
from .devices import device_to_providers as device_to_providers
from .devices import get_ort_device as get_ort_device
from .devices import get_ort_device_from_session as get_ort_device_from_session
from .devices import get_ort_device_type as get_ort_device_type
from .devices import numpy_to_ort_value as numpy_to_ort_value
from .devices import ort_device_to_string as ort_device_to_string
from .devices import provider_to_device as provider_to_device
from .devices import str_ortvalue as str_ortvalue
from .estimators import OnnxClassifier as OnnxClassifier
from .estimators import OnnxRegressor as OnnxRegressor
from .exceptions import ConvergenceError as ConvergenceError
from .exceptions import ConvergenceWarning as ConvergenceWarning
from .exceptions import EvaluationError as EvaluationError
from .exceptions import ProviderError as ProviderError
from .loss_output import add_loss_output as add_loss_output
from .loss_output import penalty_loss_onnx as penalty_loss_onnx
from .onnx_function import function_onnx_graph as function_onnx_graph
from .onnx_function import get_supported_functions as get_supported_functions
from .onnx_helper import add_initializer as add_initializer
from .onnx_helper import dtype_to_var_type as dtype_to_var_type
from .onnx_helper import get_onnx_opset as get_onnx_opset
from .onnx_helper import get_train_initializer as get_train_initializer
from .onnx_helper import onnx_rename_weights as onnx_rename_weights
from .onnx_helper import proto_type_to_dtype as proto_type_to_dtype
from .onnx_helper import replace_initializers_into_onnx as replace_initializers_into_onnx
from .optimizers import OrtGradientOptimizer as OrtGradientOptimizer
from .optimizers_partial import (
    OrtGradientForwardBackwardOptimizer as OrtGradientForwardBackwardOptimizer,
)
from .ortgradient import OrtGradientForwardBackward as OrtGradientForwardBackward
from .ortgradient import OrtGradientForwardBackwardFunction as OrtGradientForwardBackwardFunction
from .plotting import four_graphs as four_graphs
from .plotting import onnx_simple_text_plot as onnx_simple_text_plot
from .plotting import plot_four_graphs as plot_four_graphs
from .plotting import plot_onnxs as plot_onnxs
from .rewriter import onnx_rewrite_operator as onnx_rewrite_operator
from .rewriter import unreduced_onnx_loss as unreduced_onnx_loss
from .sgd_learning_loss import AbsoluteLearningLoss as AbsoluteLearningLoss
from .sgd_learning_loss import BaseLearningLoss as BaseLearningLoss
from .sgd_learning_loss import ElasticLearningLoss as ElasticLearningLoss
from .sgd_learning_loss import MulticlassLogLearningLoss as MulticlassLogLearningLoss
from .sgd_learning_loss import NegLogLearningLoss as NegLogLearningLoss
from .sgd_learning_loss import SquareLearningLoss as SquareLearningLoss
from .sgd_learning_penalty import BaseLearningPenalty as BaseLearningPenalty
from .sgd_learning_penalty import ElasticLearningPenalty as ElasticLearningPenalty
from .sgd_learning_penalty import L1LearningPenalty as L1LearningPenalty
from .sgd_learning_penalty import L2LearningPenalty as L2LearningPenalty
from .sgd_learning_penalty import NoLearningPenalty as NoLearningPenalty
from .sgd_learning_rate import BaseLearningRate as BaseLearningRate
from .sgd_learning_rate import LearningRateAdam as LearningRateAdam
from .sgd_learning_rate import LearningRateSGD as LearningRateSGD
from .sgd_learning_rate import LearningRateSGDNesterov as LearningRateSGDNesterov
