"""Losses outside the model's graph: small graphs that give the loss and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from ...runtime.session.labels import ClassLabels
from ...runtime.session.sharing import exclusive
from .base import (
    Array,
    BaseOnnx,
    SelectionError,
    arguments_of,
    call_text,
    select_class,
    small_session,
    to_array,
)
from .devices import numpy_to_ort_value
from .onnx_function import function_onnx_graph
from .rewriter import unreduced_onnx_loss


class BaseLearningLoss(BaseOnnx):
    """A loss and its gradient with respect to the prediction.

    Attributes:
        loss_grad_onnx_: the graph (expected, predicted, weights) → (loss, gradient), once built.
        loss_score_onnx_: the graph that gives the loss of every observation.
    """

    _transient = ("_sessions",)
    function_name: str = ""
    label_dtype: Any = None
    """Type of the expected values; None for that of the prediction."""

    def __init__(self) -> None:
        self.loss_grad_onnx_: onnx.ModelProto | None = None
        self.loss_score_onnx_: onnx.ModelProto | None = None
        self.weight_name_: str | None = None
        self.dtype_: Any = None
        self._sessions: dict[str, Any] | None = None

    def constants(self) -> dict[str, Any]:
        """Constants of the function."""
        return {}

    def build_onnx_function(
        self,
        opset: int | None = None,
        device: Any = None,
        weight_name: str | None = None,
        dtype: Any = np.float32,
    ) -> BaseLearningLoss:
        """Build the graphs.

        Args:
            opset: version of ai.onnx to use.
            device: accepted; the graphs run where their tensors are.
            weight_name: name of the input with weights per observation, None for no weights.
            dtype: type of the prediction.
        """
        if self.loss_grad_onnx_ is not None and opset is None and self._is_for(weight_name, dtype):
            return self
        self.loss_grad_onnx_ = function_onnx_graph(
            self.function_name, opset, dtype, weight_name, **self.constants()
        )
        self.loss_score_onnx_ = unreduced_onnx_loss(self.loss_grad_onnx_, "Y")
        self.weight_name_, self.dtype_, self._sessions = weight_name, np.dtype(dtype), None
        return self

    def _is_for(self, weight_name: str | None, dtype: Any) -> bool:
        return self.weight_name_ == weight_name and self.dtype_ == np.dtype(dtype)

    @exclusive
    def _run(self, which: str, expected: Any, predicted: Any, weight: Any) -> list[Array]:
        predicted = to_array(predicted)
        name = None if weight is None else (self.weight_name_ or "weight")
        self.build_onnx_function(weight_name=name, dtype=predicted.dtype)
        sessions = self._sessions = self._sessions or {}
        if which not in sessions:
            sessions[which] = small_session(getattr(self, which))
        feeds = {"X1": self.prepare(to_array(expected), predicted.shape), "X2": predicted}
        feeds["X1"] = feeds["X1"].astype(self.label_dtype or predicted.dtype, copy=False)
        if name is not None:
            feeds[name] = to_array(weight).astype(predicted.dtype, copy=False).reshape(-1)
        return list(sessions[which].run(None, feeds))

    def prepare(self, expected: Array, shape: tuple[int, ...]) -> Array:
        """Bring expected values into the shape that goes with predictions of a shape.

        Equal shapes are a condition: otherwise broadcasting would compare everything
        with everything.
        """
        if expected.shape == shape:
            return expected
        if expected.size != int(np.prod(shape)):
            raise SelectionError(
                f"The model predicts the shape {list(shape)}, and {list(expected.shape)} is "
                "expected of it."
            )
        return expected.reshape(shape)

    def label_columns(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of one expected value, for predictions of a shape."""
        return shape[1:]

    def loss_gradient(
        self, device: Any, expected: Any, predicted: Any, weight: Any = None
    ) -> tuple[Any, Any]:
        """The loss, summed over the observations, and its gradient, as OrtValues."""
        loss, gradient = self._run("loss_grad_onnx_", expected, predicted, weight)
        return numpy_to_ort_value(loss, device), numpy_to_ort_value(gradient, device)

    def loss_scores(self, device: Any, expected: Any, predicted: Any, weight: Any = None) -> Any:
        """The loss of every observation, an OrtValue of shape [N]."""
        (scores,) = self._run("loss_score_onnx_", expected, predicted, weight)
        return numpy_to_ort_value(per_row(scores), device)

    def __repr__(self) -> str:
        return call_text(self, arguments_of(self))

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> BaseLearningLoss:
        """A loss from an alias, a class name, or an instance (returned as it is).

        Example:
            >>> BaseLearningLoss.select("square"), BaseLearningLoss.select("AbsoluteLearningLoss")
            (SquareLearningLoss(), AbsoluteLearningLoss())
        """
        if isinstance(class_name, BaseLearningLoss):
            return class_name
        if not isinstance(class_name, str):
            raise SelectionError(f"A loss is a name or a BaseLearningLoss, not {class_name!r}.")
        return select_class("loss", class_name, ALIASES)(**kwargs)


def per_row(scores: Array) -> Array:
    """One number per observation: several outputs are added up."""
    return scores.reshape(len(scores), -1).sum(axis=1) if scores.ndim > 1 else scores


class SquareLearningLoss(BaseLearningLoss):
    """½·Σ w·(y − z)², with the gradient z − y."""

    function_name = "grad_loss_square_error"


class AbsoluteLearningLoss(BaseLearningLoss):
    """Σ w·|y − z|, with the gradient sign(z − y)."""

    function_name = "grad_loss_absolute_error"


class ElasticLearningLoss(BaseLearningLoss):
    """Σ w·(l1·|y − z| + l2·(y − z)²)."""

    function_name = "grad_loss_elastic_error"

    def __init__(self, l1_weight: float = 0.5, l2_weight: float = 0.5) -> None:
        super().__init__()
        self.l1_weight, self.l2_weight = l1_weight, l2_weight

    def constants(self) -> dict[str, Any]:
        """The two weights."""
        return {"l1_weight": self.l1_weight, "l2_weight": self.l2_weight}


class NegLogLearningLoss(BaseLearningLoss):
    """The log loss from raw scores: binary with the sigmoid, any number of classes with softmax.

    Args:
        eps: probabilities below eps or above 1 − eps count as these in the loss (not in the
            gradient, which is exact).
        probability_function: ``"sigmoid"``: one score per observation, labels 0 and 1;
            ``"softmax"``: one score per class, labels 0, 1, 2, …
    """

    label_dtype = np.int64

    def __init__(self, eps: float = 1e-5, probability_function: str = "sigmoid") -> None:
        super().__init__()
        if probability_function not in {"sigmoid", "softmax"}:
            raise SelectionError(
                f"probability_function is 'sigmoid' or 'softmax', not {probability_function!r}."
            )
        self.eps, self.probability_function = eps, probability_function

    @property
    def function_name(self) -> str:  # type: ignore[override]
        """The graph depends on the number of classes."""
        return f"grad_{self.probability_function}_neg_log_loss_error"

    def constants(self) -> dict[str, Any]:
        """The limit of the probabilities."""
        return {"eps": self.eps}

    def label_columns(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One label per observation with softmax."""
        return shape[1:] if self.probability_function == "sigmoid" else ()

    def prepare(self, expected: Array, shape: tuple[int, ...]) -> Array:
        """Labels as one number per observation (softmax) or in the shape of the scores.

        A label that is no class is an error: it would have no target in the gradient.
        """
        is_binary = self.probability_function == "sigmoid"
        labels = super().prepare(expected, shape if is_binary else shape[:1])
        classes = ClassLabels("y", 2 if is_binary else shape[-1], None)
        classes.check(labels.astype(np.int64, copy=False))
        return labels


class MulticlassLogLearningLoss(NegLogLearningLoss):
    """The log loss of several classes from raw scores, one per class."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__(eps, "softmax")


ALIASES: dict[type[BaseLearningLoss], tuple[str, ...]] = {
    SquareLearningLoss: ("square_error", "square", "squared_error", "l2"),
    AbsoluteLearningLoss: ("absolute_error", "absolute", "l1"),
    ElasticLearningLoss: ("elastic_error", "elastic"),
    NegLogLearningLoss: ("log", "neglog", "logloss", "log_loss"),
    MulticlassLogLearningLoss: ("multiclass_log", "softmax", "cross_entropy"),
}
