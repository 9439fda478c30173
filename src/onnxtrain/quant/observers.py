"""Observers: the ranges that activations have on some data, from which their scales begin."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from ..errors import QuantizationError
from ..graph import to_proto
from ..runtime.session.devices import Device, session_options

Array = npt.NDArray[Any]
Feeds: TypeAlias = "Mapping[str, Array]"
CalibrationData: TypeAlias = "Array | Sequence[Array] | Feeds | Iterable[Feeds]"
"""Rows of the only input, of all inputs in order, by name, or batches of them by name."""

METHODS = ("minmax", "percentile", "entropy")
MIN_ROWS = 8
"""Fewer rows say next to nothing about a range."""
BATCH = 8
"""Rows per run: all observed activations of these are in memory at once."""
BINS = {"percentile": 2048, "entropy": 1024}
QUANTIZED_BINS = 128
"""Of onnxruntime's collector: bins of a histogram, and how many an integer type has of them."""


@dataclass(frozen=True)
class Observed:
    """What was seen of one activation.

    Attributes:
        low, high: its range, as the method chose it.
        size: elements in a row.
    """

    low: float
    high: float
    size: int


def check_method(method: str, percentile: float) -> None:
    """Raise unless there is such a method."""
    if method not in METHODS:
        raise QuantizationError(
            f"There is no observer {method!r}. Use one of {', '.join(METHODS)}."
        )
    if not 50 < percentile <= 100:
        raise QuantizationError(
            f"percentile is {percentile:g}; it is the share of the values that stay inside the "
            "range, such as 99.99."
        )


def observe(
    model: ir.Model,
    names: Sequence[str],
    data: CalibrationData,
    method: str,
    percentile: float,
    rows: int,
) -> dict[str, Observed]:
    """Ranges of values of a model, by name.

    Args:
        model: the model of floats.
        names: the values.
        data: rows of its inputs.
        method: "minmax", "percentile" or "entropy"; the last two are onnxruntime's.
        percentile: see `check_method`.
        rows: how many are used at most.
    """
    with_outputs = _with_outputs(to_proto(model), names)
    session = Device().session(with_outputs.SerializeToString(), session_options())
    inputs = {i.name: i.shape for i in session.get_inputs()}
    collector = _MinMax() if method == "minmax" else _Histograms(method, percentile)
    sizes: dict[str, int] = {}
    seen = 0
    for feeds in _batches(data, inputs, rows):
        count = _rows_of(feeds)
        results = dict(zip(names, session.run(list(names), dict(feeds))))
        for name, array in results.items():
            if not np.isfinite(array).all():
                raise QuantizationError(
                    f"{name!r} is not finite on the calibration data, so it has no range. Are the "
                    "data scaled as the model takes them?"
                )
            sizes[name] = max(array.size // max(count, 1), 1)
        collector.collect(results)
        seen += count
    if seen < MIN_ROWS:
        raise QuantizationError(
            f"There are {seen} rows to calibrate with, and ranges of activations need at least "
            f"{MIN_ROWS}: give rows of the training data, a few hundred are plenty."
        )
    ranges = collector.ranges()
    return {name: Observed(*ranges[name], sizes[name]) for name in names}


def _with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return model


# --- data ----------------------------------------------------------------------------------------


def _batches(
    data: CalibrationData, inputs: Mapping[str, Sequence[Any]], rows: int
) -> Iterator[dict[str, Array]]:
    """Small batches of what the model takes, by name; a model with a fixed batch gets that."""
    arrays = _by_name(data, inputs)
    if arrays is None:
        seen = 0
        for feeds in data:
            if seen >= rows:
                return
            batch = _chosen(feeds, inputs)
            seen += _rows_of(batch)
            yield batch
        return
    fixed = [s[0] for s in inputs.values() if s and isinstance(s[0], int)]
    step = min(fixed) if fixed else BATCH
    total = min(_rows_of(arrays), rows)
    if fixed:
        total -= total % step
    for start in range(0, total, step):
        end = min(start + step, total)
        yield {name: array[start:end] for name, array in arrays.items()}


def _by_name(data: CalibrationData, inputs: Mapping[str, Any]) -> dict[str, Array] | None:
    """Arrays by name of input; None if the data are batches already."""
    if isinstance(data, Mapping):
        return _chosen(data, inputs)
    if isinstance(data, np.ndarray):
        data = [data]
    if isinstance(data, Sequence) and data and isinstance(data[0], np.ndarray):
        if len(data) < len(inputs):
            raise QuantizationError(
                f"The model takes {', '.join(inputs)}, and there are {len(data)} arrays to "
                "calibrate with. Give one for each input, or a dict."
            )
        return dict(zip(inputs, map(np.asarray, data)))
    return None


def _chosen(feeds: Any, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """What the model takes of a mapping; targets beside it are left out."""
    if not isinstance(feeds, Mapping):
        raise QuantizationError(
            f"Calibration data are arrays, or batches that are dicts by name of input, not "
            f"{type(feeds).__name__}."
        )
    missing = [name for name in inputs if name not in feeds]
    if missing:
        raise QuantizationError(
            f"The calibration data have no array for the input {missing[0]!r}; they have "
            f"{', '.join(map(repr, feeds)) or 'none'}."
        )
    return {name: np.asarray(feeds[name]) for name in inputs}


def _rows_of(feeds: Mapping[str, Array]) -> int:
    return max((a.shape[0] for a in feeds.values() if a.ndim), default=0)


# --- ranges --------------------------------------------------------------------------------------


class _MinMax:
    """The smallest and the largest value."""

    def __init__(self) -> None:
        self._ranges: dict[str, tuple[float, float]] = {}

    def collect(self, arrays: Mapping[str, Array]) -> None:
        """Take one batch into account."""
        for name, array in arrays.items():
            if array.size:
                low, high = self._ranges.get(name, (np.inf, -np.inf))
                self._ranges[name] = min(low, float(array.min())), max(high, float(array.max()))

    def ranges(self) -> dict[str, tuple[float, float]]:
        """By name of value."""
        return self._ranges


class _Histograms:
    """onnxruntime's collector of histograms, which cuts rare values off."""

    def __init__(self, method: str, percentile: float) -> None:
        try:
            from onnxruntime.quantization.calibrate import HistogramCollector
        except ImportError as error:
            raise QuantizationError(
                f"The observer {method!r} is onnxruntime's, and it cannot be imported ({error}). "
                "Use 'minmax', or another release of onnxruntime."
            ) from error
        self._collector = HistogramCollector(
            method=method, symmetric=False, num_bins=BINS[method],
            num_quantized_bins=QUANTIZED_BINS, percentile=percentile, scenario="same",
        )  # fmt: skip

    def collect(self, arrays: Mapping[str, Array]) -> None:
        """Take one batch into account."""
        with contextlib.redirect_stdout(io.StringIO()):
            self._collector.collect({n: a.astype(np.float32) for n, a in arrays.items()})

    def ranges(self) -> dict[str, tuple[float, float]]:
        """By name of value."""
        with contextlib.redirect_stdout(io.StringIO()):
            results = self._collector.compute_collection_result()
        return {name: (float(low), float(high)) for name, (low, high, *_) in results.items()}
