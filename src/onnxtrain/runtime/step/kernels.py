"""Fused updates for the common optimizers, compiled by numba when it is installed.

One pass over memory instead of one per operator. The graph is the reference: the same formula in
the same order, equal to a few units in the last place. ``ONNXTRAIN_NO_NUMBA=1`` turns this off.

Importing and compiling takes seconds, so it happens at the first step, for large models only.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...preparing import preparing
from ..fusion.compiler_code import release_compiler
from ..session.sharing import GlobalLock

Array = npt.NDArray[Any]
Update = Callable[..., None]
COMPILED_PARAMETERS = 100_000
"""Number of parameters from which compiling pays."""

PARALLEL = 4_000_000
"""Number of elements from which several threads pay: waking them up takes longer than a million
elements take one thread, whose caches are warm from the backward pass."""


class Kernel:
    """The update of one optimizer over a chunk of the flat buffers."""

    def __init__(
        self, name: str, hyper: Mapping[str, Any], clip: float | None, is_packed: bool = False
    ) -> None:
        self.name, self.hyper, self.is_packed = name, hyper, is_packed
        self.limit = np.float32(math.inf if clip is None else clip)

    def __call__(
        self,
        step: int,
        rate: float,
        decay: float,
        scale: float,
        params: Array,
        gradients: Array,
        *states: Array,
    ) -> None:
        """Update `params` and `states` in place."""
        f = np.float32
        rate32, decay32, scale32 = f(rate), f(decay), f(scale)
        if self.name == "SGD":
            self._sgd(step, rate32, decay32, scale32, params, gradients, states)
            return
        b1, b2 = (float(b) for b in self.hyper["betas"])
        eps, root, factor = float(self.hyper["eps"]), 1.0, f(1.0)
        if self.hyper.get("correct_bias", True):
            first, root = corrections(b1, b2, step)
            factor = f(root / first)
        late = self.name == "AdamW" and self.hyper.get("form") != "torch"
        shift = f(eps) if late else f(f(root) * f(eps))
        l2 = decay32 if self.name == "Adam" else f(0.0)
        shrink = f(rate32 * decay32) if self.name == "AdamW" else f(0.0)
        size = f(-rate32 * factor)
        keep = f(f(1.0) - shrink)
        if late:
            size = f(size * keep)
        numbers = (f(b1), f(1.0 - b1), f(b2), f(1.0 - b2), shift, size, keep, l2, scale32,
                   self.limit)  # fmt: skip
        if self.is_packed:
            adam = _compiled("adam_int8", params.size >= PARALLEL)
            adam(params, gradients, *states, dither(step), *numbers)
            return
        adam = _compiled("adam", params.size >= PARALLEL)
        adam(params, gradients, *states, *numbers)

    def _sgd(
        self,
        step: int,
        rate: np.float32,
        decay: np.float32,
        scale: np.float32,
        params: Array,
        gradients: Array,
        states: tuple[Array, ...],
    ) -> None:
        f = np.float32
        momentum, parallel = f(self.hyper["momentum"]), params.size >= PARALLEL
        if not states:
            _compiled("sgd", parallel)(params, gradients, rate, decay, scale, self.limit)
            return
        fresh = f(1.0) if step == 1 else f(1.0 - float(self.hyper["dampening"]))
        nesterov = bool(self.hyper["nesterov"])
        _compiled("momentum", parallel)(
            params, gradients, states[0], rate, decay, scale, self.limit, momentum, fresh, nesterov
        )


def corrections(beta1: float, beta2: float, step: float) -> tuple[float, float]:
    """1 − β₁ᵗ and √(1 − β₂ᵗ): the divisors of Adam's first moment and of its second one's root."""
    return 1.0 - beta1**step, math.sqrt(1.0 - beta2**step)


def find(description: Mapping[str, Any], size: int) -> Kernel | None:
    """The kernel for an optimizer, if there is one and it pays; None means: run the graph."""
    name, hyper = description.get("name"), description.get("hyper")
    if name not in {"AdamW", "Adam", "SGD"} or not isinstance(hyper, Mapping):
        return None
    if size < COMPILED_PARAMETERS or not available():
        return None
    needed = {"SGD": ("momentum", "dampening", "nesterov")}.get(name, ("betas", "eps"))
    states = description.get("states") or []
    expected = 2 if name != "SGD" else int(bool(hyper.get("momentum")))
    if any(key not in hyper for key in needed) or len(states) != expected:
        return None
    clip = (description.get("clip") or {}).get("value")
    return Kernel(name, hyper, clip)


PACKED = {"first_order_moments": "I8", "second_order_moments": "U8"}
"""Types of the states that the packed kernel knows."""


def find_packed(description: Mapping[str, Any], size: int) -> Kernel | None:
    """The kernel for Adam with moments of 8 bits; None means: run the graph."""
    name, hyper = description.get("name"), description.get("hyper")
    if name not in {"AdamW", "Adam"} or not isinstance(hyper, Mapping) or not available():
        return None
    expected = [part for state in PACKED for part in (state, f"{state}.scale")]
    fits = description.get("state_types") == PACKED and description.get("states") == expected
    if size < COMPILED_PARAMETERS or not fits or any(k not in hyper for k in ("betas", "eps")):
        return None
    clip = (description.get("clip") or {}).get("value")
    return Kernel(name, hyper, clip, is_packed=True)


def dither(step: int) -> Array:
    """What is added to codes of 8 bits before they are cut off; see `onnxtrain.optim.packed`."""
    moved = step * GOLDEN
    u = PLACES + np.float32(moved - math.floor(moved))
    return np.asarray(u - np.floor(u), np.float32)


BLOCK, GOLDEN = 256, 0.6180339887498949
PLACES = ((np.arange(BLOCK) * 0.7548776662466927) % 1.0).astype(np.float32)
"""Those of `onnxtrain.optim.packed`; a test compares."""


def runs_alone(size: int) -> bool:
    """Whether updates of so many parameters take one thread, if their optimizer has a kernel."""
    return COMPILED_PARAMETERS <= size < PARALLEL and available()


def available() -> bool:
    """Whether numba is installed and not turned off."""
    if os.environ.get("ONNXTRAIN_NO_NUMBA", "") not in {"", "0"}:
        return False
    return _has_numba()


@functools.cache
def _has_numba() -> bool:
    """Asked for each session, and looked for in files: a tenth of a millisecond."""
    return importlib.util.find_spec("numba") is not None


@functools.cache
def _compiled(name: str, parallel: bool) -> Update:
    number = np.float32(0.0)
    vectors, numbers, flags = OPERANDS[name]
    with preparing("compiling the update with numba"):
        kernel = _form(name, parallel)
        empty = [np.zeros(0, kind) for kind in vectors]
        kernel(*empty, *[number] * numbers, *[False] * flags)
    if parallel:
        release_compiler()
    return _one_at_a_time(kernel) if parallel else kernel


def _form(name: str, parallel: bool) -> Update:
    """A kernel as numba compiles it."""
    import numba

    source = {"adam": _adam, "adam_int8": _adam_int8, "sgd": _sgd, "momentum": _momentum}[name]
    # prange is only known to numba inside the function it compiles. Both forms need a name of
    # their own: numba's cache on disk would take one for the other.
    known = {**source.__globals__, "prange": numba.prange if parallel else range}
    form = types.FunctionType(source.__code__, known, source.__name__)
    form.__qualname__ = f"{source.__name__}_{'parallel' if parallel else 'serial'}"
    # Python's error for a division by zero would keep the loop from using vector instructions
    options: dict[str, Any] = {"parallel": parallel, "error_model": "numpy"}
    try:
        compiled: Update = numba.njit(cache=True, **options)(form)
    except RuntimeError:  # nowhere to write the cache
        compiled = numba.njit(**options)(form)
    return compiled


_parallel = GlobalLock()


def _one_at_a_time(kernel: Update) -> Update:
    """Where numba has neither TBB nor OpenMP, two parallel kernels at once abort the process."""

    def run(*arguments: Any) -> None:
        with _parallel:
            kernel(*arguments)

    return run


F32 = np.float32
OPERANDS: dict[str, tuple[tuple[Any, ...], int, int]] = {
    "adam": ((F32,) * 4, 10, 0),
    "adam_int8": ((F32, F32, np.int8, F32, np.uint8, F32, F32), 10, 0),
    "sgd": ((F32,) * 2, 4, 0),
    "momentum": ((F32,) * 3, 6, 1),
}
"""The types of the vectors, and how many numbers and flags a kernel takes, in that order."""

prange: Any = range


# Every element is read once and written once: read again after the store, it would have to come
# back from memory, because the compiler cannot know that the arrays do not overlap.


def _adam(p, g, m, v, b1, c1, b2, c2, shift, size, keep, l2, scale, limit):  # type: ignore[no-untyped-def]
    for i in prange(p.size):
        w = p[i]
        u = min(max(g[i] * scale, -limit), limit) + l2 * w
        first = b1 * m[i] + c1 * u
        second = b2 * v[i] + c2 * (u * u)
        m[i] = first
        v[i] = second
        p[i] = keep * w + size * (first / (np.sqrt(second) + shift))


def _adam_int8(p, g, mc, ms, vc, vs, u, b1, c1, b2, c2, shift, size, keep, l2, scale, limit):  # type: ignore[no-untyped-def]
    one = np.float32(1.0)
    m_unit, v_unit = one / np.float32(127.0), one / np.float32(255.0)
    tiny, most_m, most_v = np.float32(1e-37), np.float32(127.0), np.float32(255.0)
    for block in prange(ms.size if p.size else 0):
        first = np.empty(256, np.float32)
        second = np.empty(256, np.float32)
        begin = block * 256
        count = min(256, p.size - begin)
        m_old, v_old = ms[block], vs[block]
        m_most = np.float32(0.0)
        v_most = np.float32(0.0)
        for j in range(count):
            i = begin + j
            w = p[i]
            gradient = min(max(g[i] * scale, -limit), limit) + l2 * w
            m_part = np.float32(mc[i]) * m_unit
            m_part = m_part * m_part * m_part * abs(m_part)
            v_part = np.float32(vc[i]) * v_unit
            v_part = v_part * v_part
            v_part = v_part * v_part
            m = b1 * (m_part * m_old) + c1 * gradient
            v = b2 * (v_part * v_part * v_old) + c2 * (gradient * gradient)
            first[j] = m
            second[j] = v
            m_most = max(m_most, abs(m))
            v_most = max(v_most, v)
            p[i] = keep * w + size * (m / (np.sqrt(v) + shift))
        m_over, v_over = max(m_most, tiny), max(v_most, tiny)
        for j in range(count):
            i = begin + j
            m, v = first[j], second[j]
            code = min(np.floor(np.sqrt(np.sqrt(abs(m) / m_over)) * most_m + u[j]), most_m)
            mc[i] = np.int8(code if m > 0 else -code)
            code = np.floor(np.sqrt(np.sqrt(np.sqrt(v / v_over))) * most_v + u[j])
            vc[i] = np.uint8(min(max(code, one if v > 0 else np.float32(0.0)), most_v))
        ms[block] = m_most
        vs[block] = v_most


def _sgd(p, g, rate, decay, scale, limit):  # type: ignore[no-untyped-def]
    for i in prange(p.size):
        w = p[i]
        p[i] = w - rate * (min(max(g[i] * scale, -limit), limit) + decay * w)


def _momentum(p, g, m, rate, decay, scale, limit, momentum, fresh, nesterov):  # type: ignore[no-untyped-def]
    for i in prange(p.size):
        w = p[i]
        u = min(max(g[i] * scale, -limit), limit) + decay * w
        speed = momentum * m[i] + fresh * u
        m[i] = speed
        p[i] = w - rate * (u + momentum * speed if nesterov else speed)
