"""Penalties on the weights: their value, and their part of the gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx

from ...hyper import check_amount
from .base import (
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


class BaseLearningPenalty(BaseOnnx):
    """A penalty ``l1·Σ|w| + l2·Σw²``, added to the mean loss.

    Its gradient ``l1·sign(w) + 2·l2·w`` is added to that of the mean loss, so the learning rate
    applies to both.

    Attributes:
        penalty_onnx_: the graph of `penalty_loss`: (loss, weights) → loss with penalties.
        penalty_grad_onnx_: the graph of a step: (all weights, their gradients, scale) → (penalty,
            gradients with the penalty's). Both are None without a penalty.
    """

    _transient = ("_sessions",)
    l1: float = 0.0
    l2: float = 0.0

    def __init__(self) -> None:
        self.penalty_onnx_: onnx.ModelProto | None = None
        self.penalty_grad_onnx_: onnx.ModelProto | None = None
        self._sessions: dict[Any, Any] | None = None

    @property
    def active(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.l1 or self.l2)

    def build_onnx_function(
        self,
        opset: int | None = None,
        device: Any = None,
        n_tensors: int = 1,
        dtype: Any = np.float32,
    ) -> BaseLearningPenalty:
        """Build the graphs.

        Args:
            opset: version of ai.onnx to use.
            device: accepted; the graphs run where their tensors are.
            n_tensors: number of weights that `penalty_onnx_` takes.
            dtype: type of the weights.
        """
        self.penalty_onnx_ = self.penalty_grad_onnx_ = None
        if self.active:
            graph = partial(self._graph, opset=opset, dtype=dtype)
            self.penalty_onnx_ = graph("n_penalty_elastic_error", n_tensors=n_tensors)
            self.penalty_grad_onnx_ = graph("add_grad_penalty_elastic_error")
        return self

    def _graph(
        self, name: str, opset: int | None = None, dtype: Any = np.float32, **options: Any
    ) -> onnx.ModelProto:
        options.update(l1_weight=float(self.l1), l2_weight=float(self.l2))
        return function_onnx_graph(name, opset, dtype, **options)

    def _session(self, name: str, dtype: Any, **options: Any) -> Any:
        sessions = self._sessions = self._sessions or {}
        key = (name, np.dtype(dtype).name, *options.values())
        if key not in sessions:
            sessions[key] = small_session(self._graph(name, dtype=dtype, **options))
        return sessions[key]

    def penalty_loss(self, device: Any, loss: Any, *weights: Any) -> Any:
        """The loss plus the penalty of these weights, as an OrtValue."""
        arrays = [to_array(w) for w in weights]
        if not self.active or not arrays:
            return loss
        value = to_array(loss)
        dtype = arrays[0].dtype
        session = self._session("n_penalty_elastic_error", dtype, n_tensors=len(arrays))
        feeds = {f"W{i}": a for i, a in enumerate(arrays)}
        (total,) = session.run(None, {"loss": value.astype(dtype).reshape(()), **feeds})
        return numpy_to_ort_value(total, device)

    def update_weights(self, n_bind: int, device: Any, statei: Any, rate: float = 1.0) -> Any:
        """One step down the penalty, in place: ``w ← w − rate·(l1·sign(w) + 2·l2·w)``."""
        if self.active:
            weight = to_array(statei)
            session = self._session("update_penalty_elastic_error", weight.dtype)
            (new,) = session.run(None, {"X": weight, "alpha": np.array([rate], weight.dtype)})
            weight[...] = new
        return statei

    def __repr__(self) -> str:
        return call_text(self, arguments_of(self))

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> BaseLearningPenalty:
        """A penalty from an alias, a class name, None, or an instance (returned as it is).

        Example:
            >>> BaseLearningPenalty.select("elastic"), BaseLearningPenalty.select(None)
            (ElasticLearningPenalty(l1=0.5, l2=0.5), NoLearningPenalty())
        """
        if isinstance(class_name, BaseLearningPenalty):
            return class_name
        if class_name is None:
            class_name = ""
        if not isinstance(class_name, str):
            raise SelectionError(
                f"A penalty is a name, None or a BaseLearningPenalty, not {class_name!r}."
            )
        return select_class("penalty", class_name, ALIASES)(**kwargs)


class NoLearningPenalty(BaseLearningPenalty):
    """No penalty."""


class ElasticLearningPenalty(BaseLearningPenalty):
    """``l1·Σ|w| + l2·Σw²``."""

    def __init__(self, l1: float = 0.5, l2: float = 0.5) -> None:
        super().__init__()
        check_amount(l1, "l1", SelectionError)
        check_amount(l2, "l2", SelectionError)
        self.l1, self.l2 = l1, l2


class L1LearningPenalty(ElasticLearningPenalty):
    """``l1·Σ|w|``."""

    def __init__(self, l1: float = 0.5) -> None:
        super().__init__(l1, 0.0)


class L2LearningPenalty(ElasticLearningPenalty):
    """``l2·Σw²``."""

    def __init__(self, l2: float = 0.5) -> None:
        super().__init__(0.0, l2)


ALIASES: dict[type[BaseLearningPenalty], tuple[str, ...]] = {
    NoLearningPenalty: ("", "none"),
    ElasticLearningPenalty: ("elastic", "l1l2"),
    L1LearningPenalty: ("l1",),
    L2LearningPenalty: ("l2",),
}
