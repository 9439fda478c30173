"""What a list gives: a module with its arguments, or a model with its feeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, Any]


@dataclass
class TorchCase:
    """A torch module and a call of it.

    What is differentiated is the sum of all float outputs times fixed random weights.

    Attributes:
        module: it is tried in the mode (training or eval) that it is in.
        inputs, kwargs: of the call; tensors may be inside of lists and dictionaries.
        family: what kind of case it is, for the table.
        exporters: names of `exporters.EXPORTERS`, or functions that take this case.
        first_that_exports: whether an exporter is tried only if those before it could not export.
        inputs_have_gradients: whether those of float inputs are compared too: of the inputs that
            require one, or of all if none does.
        dynamic_axes: as in `onnxtrain.torch.export`; inputs are named `input_0`, `input_1`, …
        second_order: whether the derivative of the gradients is compared too.
        steps: how many steps of AdamW are compared, 0 for none.
        timing: whether a step is timed against torch's.
        tolerance: of a gradient, relative to its largest entry.
    """

    module: Any
    inputs: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    family: str = ""
    exporters: Sequence[str | Callable[..., Any]] = ("dynamo",)
    first_that_exports: bool = False
    inputs_have_gradients: bool = True
    dynamic_axes: dict[str, dict[int, str]] = field(default_factory=dict)
    second_order: bool = False
    steps: int = 3
    timing: bool = True
    tolerance: float = 1e-3


@dataclass
class OnnxCase:
    """An ONNX model and what it is fed with; float64 differences decide about its gradients.

    Attributes:
        model: a model, or the path of its file.
        feeds: arrays by input name.
        family: what kind of case it is, for the table.
        exporter: what wrote the model, for the table.
        wrt: what to differentiate: by default the float initializers that `differentiate` chooses
            and all float inputs.
        of: the outputs that count, by default all floats.
        expected: outputs by name that onnxruntime must give, where they are known.
        differences_on: what computes the differences: "float64" (a float64 twin of the model), or
            "float32" (onnxruntime with a wide step: where the former cannot be computed).
        timing: whether a step is timed against the forward model.
        tolerance: of a derivative, relative to the size of the gradient.
    """

    model: onnx.ModelProto | str
    feeds: dict[str, Array]
    family: str = ""
    exporter: str = "onnx"
    wrt: Sequence[str] | None = None
    of: Sequence[str] | None = None
    expected: dict[str, Array] = field(default_factory=dict)
    differences_on: str = "float64"
    timing: bool = True
    tolerance: float = 2e-3


Case = TorchCase | OnnxCase
