"""What both optimizers of the onnxcustom family do alike."""

from __future__ import annotations

import copy
import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from sklearn.base import BaseEstimator

from ...errors import InputError
from ...graph import ModelLike, load
from ...runtime.session.devices import Device
from .base import Array, BaseOnnx, Selected, call_text
from .devices import get_ort_device, ort_device_to_string
from .exceptions import BatchError, ConvergenceError, ConvergenceWarning, EvaluationError
from .onnx_helper import as_proto, replace_initializers_into_onnx
from .sgd_learning_rate import BaseLearningRate, LearningRateAdam

OPTIMIZERS = ("SGDOptimizer", "AdamOptimizer")


def rate_for(optimizer: str, rate: Any) -> Any:
    """The parameter `learning_rate`, where an optimizer gives a name or a number another meaning.

    With Adam a number is its constant rate, and ``"SGD"``, the default, Adam's own default.
    """
    if optimizer != "AdamOptimizer" or isinstance(rate, bool):
        return rate
    if isinstance(rate, (int, float, np.floating)):
        return LearningRateAdam(float(rate))
    return LearningRateAdam() if rate == "SGD" else rate


class DeviceParameter:
    """The parameter `device`: set with a name or an OrtDevice, read as an OrtDevice.

    The name is what is kept, so that the estimator can be pickled and cloned.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else get_ort_device(instance.__dict__["device"])

    def __set__(self, instance: Any, device: Any) -> None:
        get_ort_device(device)  # a wrong name is an error here
        name = device if isinstance(device, str) else ort_device_to_string(device)
        instance.__dict__["device"] = name


class TrainerBase(BaseOnnx, BaseEstimator):  # type: ignore[misc]
    """Parameters, the loop over iterations, validation and results."""

    learning_rate = Selected(BaseLearningRate.select)
    device = DeviceParameter()
    model_onnx: Any
    training_optimizer_name: str
    max_iter: int
    batch_size: int
    validation_every: float
    verbose: Any
    warm_start: bool
    random_state: Any

    # -- as an estimator ---------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor arguments, as in scikit-learn; the device by its name."""
        params: dict[str, Any] = super().get_params(deep)
        return {**params, "device": self._device_name}

    @property
    def _device_name(self) -> str:
        return str(self.__dict__["device"])

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        params = self.get_params(deep=False)  # scikit-learn sorts them
        return call_text(self, {n: params[n] for n in inspect.signature(type(self)).parameters})

    # -- before training ---------------------------------------------------------------------------

    def _check_optimizer(self) -> None:
        if self.training_optimizer_name not in OPTIMIZERS:
            raise NotImplementedError(
                f"training_optimizer_name is one of {', '.join(OPTIMIZERS)}, not "
                f"{self.training_optimizer_name!r}."
            )

    def _new_rate(self) -> BaseLearningRate:
        """A learning rate of one's own; the parameter is not changed."""
        self._check_optimizer()
        rate: BaseLearningRate = copy.deepcopy(self.learning_rate)
        if self.training_optimizer_name != "AdamOptimizer" or isinstance(rate, LearningRateAdam):
            return rate
        shared = inspect.signature(LearningRateAdam).parameters
        return LearningRateAdam(**{k: v for k, v in rate.get_params().items() if k in shared})

    def _device(self) -> Device:
        return Device(ort_device_to_string(self.device))

    def _model(self) -> onnx.ModelProto:
        model: ModelLike = self.model_onnx
        return as_proto(model)

    def _every(self) -> int:
        """Number of iterations between two validations, at least one."""
        every = self.validation_every
        return max(1, int(every * self.max_iter)) if every < 1 else int(every)

    # -- the loop ----------------------------------------------------------------------------------

    def _iterate(
        self,
        rate: BaseLearningRate,
        iteration: Callable[[], float],
        validate: Callable[[], float] | None,
        exc: bool = True,
    ) -> None:
        """Run `max_iter` iterations, and a validation every now and then."""
        for i in _progress(range(self.max_iter), self.verbose):
            try:
                loss = iteration()
            except BatchError as error:
                self.train_losses_.append(error.loss)
                self._diverged(i, error, exc)
                break
            self.train_losses_.append(loss)
            self.t_ += 1
            rate.report_loss(loss)
            rate.update_learning_rate(self.t_)
            if validate is not None and (i + 1) % self._every() == 0:
                value = validate()
                if np.isnan(value) and exc:
                    raise EvaluationError(
                        f"The validation loss is NaN after iteration {i + 1}. Lower the learning "
                        f"rate; the last training losses are {self.train_losses_[-5:]}."
                    )
                self.validation_losses_.append(value)

    def _diverged(self, iteration: int, error: BatchError, exc: bool) -> None:
        message = (
            f"{error} of iteration {iteration}; the losses of the iterations before it are "
            f"{self.train_losses_[-6:-1]}. The weights are those of before that batch. Lower the "
            "learning rate or scale the features."
        )
        if exc:
            raise ConvergenceError(message) from error
        warnings.warn(message, ConvergenceWarning, stacklevel=5)

    # -- after training ----------------------------------------------------------------------------

    @property
    def trained_coef_(self) -> dict[str, Array]:
        """The trained weights by name."""
        raise NotImplementedError

    def get_trained_onnx(self, model: ModelLike | None = None) -> onnx.ModelProto:
        """A model with the trained weights.

        Args:
            model: a model with initializers of the same names, the one before a loss was added
                say; by default the model that was trained.
        """
        target = self._model() if model is None else as_proto(model)
        return replace_initializers_into_onnx(target, self.trained_coef_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "train_losses_")


def as_array(value: Any, dtype: Any = None) -> Array:
    """An array that a session takes: contiguous, and of a type."""
    return np.ascontiguousarray(value, dtype=dtype)


def input_dtype(model: onnx.ModelProto, name: str) -> Any:
    """The numpy type of an input."""
    for value in model.graph.input:
        if value.name == name:
            return onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    raise InputError(f"The model has no input {name!r}.")


def own_inputs(model: onnx.ModelProto) -> list[str]:
    """Inputs that are no initializers."""
    constants = {i.name for i in model.graph.initializer}
    return [i.name for i in model.graph.input if i.name not in constants]


def with_weights_as_inputs(model: onnx.ModelProto, weights: Mapping[str, Any]) -> onnx.ModelProto:
    """The model with some initializers as inputs, so that one session serves any weights."""
    from ...graph import parameters as params
    from ...graph import to_proto

    loaded = load(model)
    params.to_inputs(loaded, list(weights))
    for value in loaded.graph.inputs:
        value.const_value = None
    return to_proto(loaded)


def _progress(iterations: range, verbose: Any) -> Any:
    """The iterations with a progress bar, when it is asked for and tqdm is installed."""
    if not verbose:
        return iterations
    try:
        bar = importlib.import_module("tqdm").tqdm
    except ImportError:
        return _printed(iterations)
    return bar(iterations)


def _printed(iterations: range) -> Any:
    for i in iterations:
        print(f"iteration {i + 1} of {len(iterations)}")
        yield i
