"""Let torch's idle threads sleep while onnxruntime computes.

Behind each of its parallel operators, torch's OpenMP threads go on spinning for about a
millisecond in the hope of more work. Where onnxruntime takes over, they hold the cores it needs.
OpenMP's own call for that, `omp_pause_resource`, lets them go; torch makes new ones when it next
needs them, which takes a tenth of a millisecond.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch

SOFT = 1
"""omp_pause_soft: threads are let go, settings stay."""


def pause() -> None:
    """Let go of the threads of torch's last parallel operator, if there are several."""
    if torch.get_num_threads() > 1:
        _pause()()


@functools.cache
def _pause() -> Callable[[], object]:
    """OpenMP's call in the library that torch has loaded; nothing where it has none."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return _nothing
    loaded = {line.split()[-1] for line in maps.splitlines() if "libgomp" in line}
    inside = [path for path in loaded if "torch" in path] or sorted(loaded)
    if not inside:
        return _nothing
    library = ctypes.CDLL(inside[0])
    if not hasattr(library, "omp_pause_resource"):
        return _nothing
    return functools.partial(library.omp_pause_resource, SOFT, library.omp_get_initial_device())


def _nothing() -> None:
    """What is done without GNU's OpenMP."""
