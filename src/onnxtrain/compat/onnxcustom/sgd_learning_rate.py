"""Learning rates with the way they change the weights: gradient descent, momentum, Adam."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ... import optim
from ...graph import to_proto
from ...hyper import LARGEST, check_rate
from ...optim.recipes import gradient_descent
from ...runtime.loop.schedulers import bottou, inverse_scaling
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
from .onnx_function import function_onnx_graph

SCHEDULES = ("constant", "invscaling", "optimal", "adaptive")


class BaseLearningRate(BaseOnnx):
    """A learning rate and the update that goes with it.

    Subclasses say with `optimizer` how the weights change; `value` is the rate of the moment.
    """

    value_: float | None = None

    # -- the rate ----------------------------------------------------------------------------------

    def init_learning_rate(self) -> BaseLearningRate:
        """Start over."""
        raise NotImplementedError(f"{type(self).__name__} does not implement init_learning_rate.")

    def update_learning_rate(self, t: int) -> BaseLearningRate:
        """Set the rate of iteration `t`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement update_learning_rate.")

    def report_loss(self, loss: float) -> BaseLearningRate:
        """Tell the loss of the last iteration; schedules that look at it may lower the rate."""
        return self

    @property
    def value(self) -> float:
        """The rate of the moment."""
        if self.value_ is None:
            raise SelectionError("The learning rate has no value yet: call init_learning_rate().")
        what = f"The learning rate that {type(self).__name__} gives"
        return check_rate(self.value_, what, SelectionError)

    @property
    def needs_grad(self) -> bool:
        """Whether something is kept per weight from one step to the next (a velocity)."""
        return bool(self.optimizer().states)

    def loop(self, n: int = 1000) -> Iterator[float]:
        """The rates of the first `n` iterations.

        Example:
            >>> [round(v, 4) for v in LearningRateSGD(0.1, power_t=0.5).loop(3)]
            [0.1, 0.0707, 0.0577]
        """
        self.init_learning_rate()
        for i in range(n):
            yield self.value
            self.update_learning_rate(i + 1)

    # -- the update --------------------------------------------------------------------------------

    def optimizer(self) -> optim.Optimizer:
        """The update rule."""
        raise NotImplementedError(f"{type(self).__name__} does not implement optimizer.")

    def update_graph(self, dtype: Any = np.float32) -> onnx.ModelProto:
        """The update over flat vectors, see `onnxtrain.optim.flat_model`."""
        return retyped(to_proto(optim.flat_model(self.optimizer())), dtype)

    def update_weights(
        self,
        n_bind: int,
        device: Any,
        statei: Any,
        gradienti: Any,
        batch_size: int,
        velocity: Any = None,
    ) -> Any:
        """Change one weight in place: ``w ← w − value / batch_size · gradient``, or with momentum.

        Args:
            n_bind: which weight it is; kept for compatibility.
            device: where the tensors are.
            statei: the weight, an array or an OrtValue in host memory.
            gradienti: its gradient, summed over the batch.
            batch_size: size of the batch.
            velocity: what `needs_grad` asks for, changed in place.

        Returns:
            The new weight.
        """
        weight, gradient = to_array(statei), to_array(gradienti)
        alpha = np.array([-self.value / batch_size], weight.dtype)
        session = self._step_session(weight.dtype)
        if not self.needs_grad:
            (new,) = session.run(None, {"X1": gradient, "X2": weight, "alpha": alpha})
        else:
            if velocity is None:
                raise SelectionError(f"{type(self).__name__} needs a velocity.")
            moving = to_array(velocity)
            beta = np.array([self.momentum], weight.dtype)  # type: ignore[attr-defined]
            feeds = {"X1": gradient, "X2": weight, "G": moving, "alpha": alpha, "beta": beta}
            new, moved = session.run(None, feeds)
            moving[...] = moved
        weight[...] = new
        return statei

    step_function: str = "axpy"
    """The function that `update_weights` runs on one weight."""

    def step_graph(self, dtype: Any = np.float32) -> onnx.ModelProto:
        """The graph that `update_weights` runs: one weight, its gradient and, if kept, velocity."""
        return function_onnx_graph(self.step_function, dtype=dtype)

    def build_onnx_function(
        self, opset: int | None = None, device: Any = None, n_tensors: int = 1
    ) -> BaseLearningRate:
        """Nothing to prepare: `step_graph` and `update_graph` make the graphs when asked for.

        Args:
            opset: accepted; the graphs are of one opset.
            device: accepted; the graphs run where their tensors are.
            n_tensors: accepted; one graph serves any number of weights.
        """
        return self

    def _step_session(self, dtype: Any) -> Any:
        sessions = self.__dict__.setdefault("_sessions", None) or {}
        key = (self.step_function, np.dtype(dtype).name)
        if key not in sessions:
            sessions[key] = small_session(self.step_graph(dtype))
        self._sessions = sessions
        return sessions[key]

    # -- as a parameter of an estimator ------------------------------------------------------------

    _transient = ("_sessions",)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor arguments, as in scikit-learn."""
        return arguments_of(self)

    def set_params(self, **params: Any) -> BaseLearningRate:
        """Change constructor arguments, as in scikit-learn."""
        fresh = type(self)(**{**self.get_params(), **params})
        self.__dict__.update(fresh.__dict__)
        return self

    def __repr__(self) -> str:
        return call_text(self, self.get_params())

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, BaseLearningRate)
        return self.get_params() == other.get_params() and self.value_ == other.value_

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> BaseLearningRate:
        """A learning rate from a name, a number, or an instance (returned as it is).

        A number is the first rate of `LearningRateSGD`, which lowers it in every iteration.

        Example:
            >>> type(BaseLearningRate.select("Nesterov")).__name__
            'LearningRateSGDNesterov'
            >>> BaseLearningRate.select(0.5).eta0, BaseLearningRate.select(0.5).learning_rate
            (0.5, 'invscaling')
        """
        if isinstance(class_name, BaseLearningRate):
            return class_name
        if isinstance(class_name, (int, float, np.floating)) and not isinstance(class_name, bool):
            return LearningRateSGD(float(class_name), **kwargs)
        if not isinstance(class_name, str):
            raise SelectionError(
                f"A learning rate is a name, a number or a BaseLearningRate, not {class_name!r}."
            )
        return select_class("learning rate", class_name, ALIASES)(**kwargs)


class LearningRateSGD(BaseLearningRate):
    """Gradient descent with the schedules of scikit-learn.

    Args:
        eta0: the first rate.
        alpha: constant of the optimal schedule.
        power_t: exponent of inverse scaling.
        learning_rate: ``"constant"``: η = eta0; ``"invscaling"``: η = eta0 / (t + 1)^power_t;
            ``"optimal"``: η = 1 / (alpha·(t + t0)) scaled so that the first rate is eta0;
            ``"adaptive"``: η = eta0, divided by 5 whenever two iterations in a row did not lower
            the loss by `tol`.
        tol: what counts as progress for ``"adaptive"``.
    """

    def __init__(
        self,
        eta0: float = 0.01,
        alpha: float = 0.0001,
        power_t: float = 0.25,
        learning_rate: str = "invscaling",
        tol: float = 1e-4,
    ) -> None:
        if learning_rate not in SCHEDULES:
            raise SelectionError(
                f"learning_rate is one of {', '.join(SCHEDULES)}, not {learning_rate!r}."
            )
        if not 0 < eta0 <= LARGEST:
            raise SelectionError(f"eta0 must be positive and finite, not {eta0!r}.")
        if not math.isfinite(power_t):
            raise SelectionError(f"power_t must be a finite number, not {power_t!r}.")
        if learning_rate == "optimal" and not 0 < alpha < math.inf:
            raise SelectionError(f"The optimal schedule needs a positive alpha, not {alpha!r}.")
        self.eta0, self.alpha, self.power_t = eta0, alpha, power_t
        self.learning_rate, self.tol = learning_rate, tol
        self.value_ = None
        self._best, self._bad = np.inf, 0

    def init_learning_rate(self) -> LearningRateSGD:
        """Start over with the first rate."""
        self.value_ = self.eta0
        self._best, self._bad = np.inf, 0
        return self

    def update_learning_rate(self, t: int) -> LearningRateSGD:
        """Set the rate of iteration `t`."""
        if self.value_ is None or self.learning_rate == "constant":
            self.value_ = self.eta0
        if self.learning_rate == "invscaling":
            self.value_ = inverse_scaling(self.eta0, t, self.power_t)
        elif self.learning_rate == "optimal":
            self.value_ = bottou(self.eta0, t, self.alpha)
        return self

    def report_loss(self, loss: float) -> LearningRateSGD:
        """For ``"adaptive"``: two iterations without progress divide the rate by 5."""
        if self.learning_rate != "adaptive":
            return self
        self._bad = self._bad + 1 if loss > self._best - self.tol else 0
        self._best = min(self._best, loss)
        if self._bad >= 2 and self.value_ is not None:
            self.value_, self._bad = self.value_ / 5, 0
        return self

    @property
    def axpy_onnx_(self) -> onnx.ModelProto:
        """The update of one weight as a graph: w + α·gradient."""
        return self.step_graph()

    def onnx_graphs(self) -> dict[str, Any]:
        """The update of one weight."""
        return {"axpy_onnx_": self.axpy_onnx_}

    def optimizer(self) -> optim.Optimizer:
        """Plain gradient descent."""
        return gradient_descent()


class LearningRateSGDNesterov(LearningRateSGD):
    """Gradient descent with momentum, in Nesterov's form unless told otherwise.

        v ← μ·v − η·g;   w ← w + μ·v − η·g        (nesterov=False: w ← w + v)

    Args:
        eta0: the first rate.
        alpha: constant of the optimal schedule.
        power_t: exponent of inverse scaling.
        learning_rate: the schedule, see `LearningRateSGD`.
        momentum: μ.
        nesterov: Nesterov's form.
        tol: see `LearningRateSGD`.
    """

    def __init__(
        self,
        eta0: float = 0.01,
        alpha: float = 0.0001,
        power_t: float = 0.25,
        learning_rate: str = "invscaling",
        momentum: float = 0.9,
        nesterov: bool = True,
        tol: float = 1e-4,
    ) -> None:
        super().__init__(eta0, alpha, power_t, learning_rate, tol)
        if not 0 < momentum < 1:
            raise SelectionError(f"momentum must lie between 0 and 1, not {momentum!r}.")
        self.momentum, self.nesterov = momentum, nesterov

    @property
    def step_function(self) -> str:  # type: ignore[override]
        """The function that `update_weights` runs on one weight."""
        return "axpyw2" if self.nesterov else "axpyw"

    @property
    def axpyw_onnx_(self) -> onnx.ModelProto:
        """The update of one weight as a graph, with its velocity."""
        return self.step_graph()

    def onnx_graphs(self) -> dict[str, Any]:
        """The update of one weight with its velocity."""
        return {"axpyw_onnx_": self.axpyw_onnx_}

    def optimizer(self) -> optim.Optimizer:
        """Gradient descent with a velocity."""
        return gradient_descent(self.momentum, self.nesterov)


class LearningRateAdam(LearningRateSGD):
    """Adam, with the schedules of `LearningRateSGD` on its rate.

    Args:
        eta0: the first rate.
        alpha: constant of the optimal schedule.
        power_t: exponent of inverse scaling.
        learning_rate: the schedule, constant by default.
        beta_1: rate of the first moment.
        beta_2: rate of the second moment.
        epsilon: keeps the division away from zero.
        tol: see `LearningRateSGD`.
    """

    def __init__(
        self,
        eta0: float = 0.001,
        alpha: float = 0.0001,
        power_t: float = 0.25,
        learning_rate: str = "constant",
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        tol: float = 1e-4,
    ) -> None:
        super().__init__(eta0, alpha, power_t, learning_rate, tol)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def optimizer(self) -> optim.Optimizer:
        """Adam."""
        return optim.adam((self.beta_1, self.beta_2), self.epsilon)

    def onnx_graphs(self) -> dict[str, Any]:
        """None for one weight; the update of all weights is `update_graph`."""
        return {}

    def update_weights(self, *args: Any, **kwargs: Any) -> Any:
        """Not available tensor by tensor; `update_graph` changes all weights at once."""
        raise NotImplementedError("Adam keeps two moments per weight: use update_graph().")


ALIASES: dict[type[BaseLearningRate], tuple[str, ...]] = {
    LearningRateSGD: ("SGD", "sgd"),
    LearningRateSGDNesterov: ("SGDNesterov", "Nesterov", "nesterov"),
    LearningRateAdam: ("Adam", "adam"),
}


def retyped(model: onnx.ModelProto, dtype: Any) -> onnx.ModelProto:
    """The graph with another float type in place of float32."""
    code = int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    if code == onnx.TensorProto.FLOAT:
        return model
    loaded = ir.from_proto(model)
    graph = loaded.graph
    for value in (*graph.inputs, *(o for n in graph for o in n.outputs)):
        if value.dtype == ir.DataType.FLOAT:
            value.type = ir.TensorType(ir.DataType(code))
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT:
            value.const_value = ir.tensor(tensor.numpy().astype(dtype), name=name)
            value.type = ir.TensorType(ir.DataType(code))
    for node in graph:
        if node.op_type == "Cast" and node.attributes["to"].as_int() == onnx.TensorProto.FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", code)
    return ir.to_proto(loaded)


def state_names(rate: BaseLearningRate) -> tuple[str, ...]:
    """What the update keeps per weight."""
    return rate.optimizer().states


__all__ = [
    "Array", "BaseLearningRate", "LearningRateAdam", "LearningRateSGD", "LearningRateSGDNesterov",
    "retyped", "state_names",
]  # fmt: skip
