"""Models on onnxruntime, one thread each, so that times can be compared on a shared machine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from onnxtrain.runtime.fusion import library
from onnxtrain.runtime.session.devices import open_session, session_options

Array = np.ndarray[Any, Any]
NO_FUSION = "ONNXTRAIN_NO_FUSION"
CREATIONS, ENOUGH, FAR_TOO_LONG = 3, 0.3, 5.0
"""How often a session is created, unless two take so many seconds, or the first: the best time
counts, as of steps. The first one of a process loads compiled kernels, and reads code that later
ones find in the processor's caches."""
ROUNDS, AT_LEAST, SECONDS = 20, 4, 0.8
"""Of this thread: the first rounds of a process pay for memory that it has not had yet, and on a
busy machine seconds of the clock would be over after them."""


class Session:
    """A model that can be run; making the session took `seconds` of this thread.

    One session of the `whole`, as onnxruntime makes it by itself, or what onnxtrain trains with:
    of its nodes onnxruntime has `kernels` from us. The model has so many `bytes`.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        whole: bool = False,
        optimized: bool = True,
        own_kernels: bool = True,
        creations: int = CREATIONS,
    ) -> None:
        content = model.SerializeToString()
        self.bytes = len(content)
        if not whole:
            library.register_path()  # half a second, once in a process, as onnxruntime's own import
        options = _stock_options() if whole else session_options(threads=1, weights_change=True)
        if not optimized:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.seconds, began = float("inf"), time.thread_time()
        for number in range(creations):
            kernels_before = 0 if whole else library.kernel_count()
            started = time.thread_time()
            with contextlib.nullcontext() if own_kernels else _standard_operators():
                self._session = (_stock_session if whole else open_session)(content, options)
            self.seconds = min(self.seconds, time.thread_time() - started)
            self.kernels = 0 if whole else library.kernel_count() - kernels_before
            if time.thread_time() - began > (ENOUGH if number else FAR_TOO_LONG):
                break
        self._names = [o.name for o in model.graph.output]
        self._inputs = {i.name for i in model.graph.input}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name."""
        known = {n: a for n, a in feeds.items() if n in self._inputs}
        return dict(zip(self._names, self._session.run(self._names, known)))


@contextlib.contextmanager
def _standard_operators() -> Iterator[None]:
    """Sessions that are made meanwhile have no kernels of ours."""
    usual = os.environ.get(NO_FUSION)
    os.environ[NO_FUSION] = "1"
    try:
        yield
    finally:
        if usual is None:
            del os.environ[NO_FUSION]
        else:
            os.environ[NO_FUSION] = usual


def _stock_options() -> ort.SessionOptions:
    """One thread, no warnings, and else what onnxruntime does for everybody."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return options


def _stock_session(content: bytes, options: ort.SessionOptions) -> ort.InferenceSession:
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def cpu_times(*runs: Callable[[], Any]) -> list[float]:
    """The best times of several programs of one thread, taken in turn.

    Other threads of the process do not count: some compile, or wait in a loop.
    """
    best = [float("inf")] * len(runs)
    ends = time.thread_time() + SECONDS
    for round_number in range(ROUNDS):
        if round_number >= AT_LEAST and time.thread_time() > ends:
            break
        for number, run in enumerate(runs):
            started = time.thread_time()
            run()
            best[number] = min(best[number], time.thread_time() - started)
    return best
