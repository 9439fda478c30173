"""PyTorch's own tables of operators and modules as cases of `benchmarks.operators`.

The samples of these tables have five or ten elements along each axis. The sizes are constants of
the modules that write the samples; with larger ones the same code writes larger samples, and of
all that an operator offers the one with the most elements, up to four million in arguments and
results, is taken. Samples of modules have fixed sizes: their first axis is repeated.
"""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import filterfalse, islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from .operator_cases import Case

SIZES = (5, 16, 32, 64, 100, 128, 256, 512, 1024, 2048, 65_536, 1_048_576)
"""What S, M and L of the tables are set to, one after the other."""
LARGEST = 4 * 2**20
"""Elements that a sample and its result may have; what it aims at is a quarter of that."""
MEMORY = 2**30
"""Bytes that a computation may take that is made to see how large its result is."""
SAMPLES = 40
"""How many samples of an operator are looked at for each size."""
SECONDS = 15.0
"""How long to look for a large sample."""
ROWS = 65_536
STEPS = 64
"""To how many rows, and time steps of a recurrent or attention layer, a small call is enlarged."""


class Flat(nn.Module):
    """A function of nested arguments as a module of the tensors in them."""

    def __init__(self, function: Any, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.function = function
        leaves, self.structure = pytree.tree_flatten((args, kwargs))
        self.at = [i for i, leaf in enumerate(leaves) if torch.is_tensor(leaf)]
        self.others = [None if torch.is_tensor(leaf) else leaf for leaf in leaves]
        self.tensors = [leaves[i] for i in self.at]

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.others)
        for i, tensor in zip(self.at, tensors):
            leaves[i] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return self.function(*args, **kwargs)


def _case(function: Any, args: Any, kwargs: Any) -> Case:
    flat = Flat(function, args, kwargs)
    inputs = tuple(flat.tensors)
    flat.tensors = []
    return Case(flat, inputs)


def elements(values: Any) -> int:
    """Elements of the largest tensor."""
    leaves = pytree.tree_leaves(values)
    return max((leaf.numel() for leaf in leaves if torch.is_tensor(leaf)), default=0)


def result_elements(function: Any, args: Any, kwargs: Any) -> int:
    """Elements of the largest result, without computing it if its shape depends on shapes only.

    A covariance of many rows, or an outer product, would not fit into memory: more than `LARGEST`
    is what a computation within `MEMORY` does not reach.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(value: Any) -> Any:
        return mode.from_tensor(value.detach()) if torch.is_tensor(value) else value

    with contextlib.suppress(Exception), torch.no_grad(), mode:
        like_args, like_kwargs = pytree.tree_map(fake, (args, kwargs))
        return elements(function(*like_args, **like_kwargs))
    with contextlib.suppress(Exception), torch.no_grad(), _memory(MEMORY):
        return elements(function(*args, **kwargs))
    return LARGEST + 1


@contextlib.contextmanager
def _memory(more: int) -> Iterator[None]:
    """No more bytes than this beyond what the process has, where Linux counts them."""
    counted = Path("/proc/self/statm")
    if not counted.is_file():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(counted.read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def enlarged(function: Any, args: Any, kwargs: Any, rows: int) -> Case:
    """The call with a longer first axis, if it is small and takes one."""
    first = next((a for a in args if torch.is_tensor(a) and a.dim()), None)
    length = 1 if first is None else max(1, len(first))
    times = min(rows // length, LARGEST // 4 // max(1, elements((args, kwargs))))
    if times < 2:
        return _case(function, args, kwargs)

    def repeat(value: Any) -> Any:
        if not torch.is_tensor(value) or not value.dim() or len(value) != length:
            return value
        more = value.detach().repeat(times, *[1] * (value.dim() - 1))
        return more.requires_grad_(value.requires_grad)

    larger = pytree.tree_map(repeat, (args, kwargs))
    if result_elements(function, *larger) > LARGEST:
        return _case(function, args, kwargs)
    try:
        result = function(*larger[0], **larger[1])
    except Exception:  # whatever it is that does not fit: the sizes of the table then
        return _case(function, args, kwargs)
    # An operator that is not meant for a batch may make much more of it
    return _case(function, *(larger if elements(result) <= LARGEST else (args, kwargs)))


# --- operators ---------------------------------------------------------------------------------


class TooLargeError(Exception):
    """A sample that would have too many elements."""


@contextlib.contextmanager
def _sizes(size: int) -> Iterator[None]:
    """The tables' sizes set to one number; a tensor that becomes too large is not made."""
    tables = [m for n, m in sys.modules.items() if n.startswith("torch.testing._internal")]
    before = []
    for table in tables:
        for name in ("S", "M", "L"):
            if isinstance(getattr(table, name, None), int):
                before.append((table, name, getattr(table, name)))
                setattr(table, name, size)
        if hasattr(table, "make_tensor"):
            before.append((table, "make_tensor", table.make_tensor))
            table.make_tensor = bounded(table.make_tensor)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for table, name, value in before:
            setattr(table, name, value)


def bounded(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make_tensor`, which refuses to make what is too large."""

    def make_if_small(*shape: Any, **options: Any) -> Any:
        given = options.get("shape", shape)
        sizes = given[0] if len(given) == 1 and not isinstance(given[0], int) else given
        total = 1
        for size in sizes:
            total *= size
        if total > LARGEST:
            raise TooLargeError
        return make(*shape, **options)

    return make_if_small


def _largest(info: Any) -> Any:
    """The sample nearest to a million elements."""
    best, most, end = None, -1, time.perf_counter() + SECONDS
    for size in SIZES:
        torch.manual_seed(0)
        with contextlib.suppress(Exception), _sizes(size):
            # A table's own code may not take every size: what came until then counts
            samples = info.sample_inputs("cpu", torch.float32, requires_grad=True)
            for sample in islice(filterfalse(_is_empty, samples), SAMPLES):
                count = elements((sample.input, sample.args, sample.kwargs))
                if most < count <= LARGEST and _result_fits(info, sample):
                    best, most = sample, count
                if time.perf_counter() > end:
                    return best
        if most >= LARGEST // 4:
            break
    return best


def _is_empty(sample: Any) -> bool:
    """Whether a tensor has no elements: a corner that some tables have dozens of samples for."""
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return any(torch.is_tensor(leaf) and not leaf.numel() for leaf in leaves)


def _result_fits(info: Any, sample: Any) -> bool:
    args = (sample.input, *sample.args)
    return result_elements(info.op, args, sample.kwargs) <= LARGEST


def _operator(info: Any) -> Callable[[], Case]:
    def case() -> Case:
        sample = _largest(info)

        def call(*args: Any, **kwargs: Any) -> Any:
            return sample.output_process_fn_grad(info.op(*args, **kwargs))

        return enlarged(call, (sample.input, *sample.args), dict(sample.kwargs), ROWS)

    return case


def operators() -> dict[str, Callable[[], Case]]:
    """OpInfo: those with a gradient."""
    from torch.testing._internal.common_methods_invocations import op_db

    infos = [i for i in op_db if i.supports_autograd and torch.float32 in i.dtypes]
    return {".".join(filter(None, (i.name, i.variant_test_name))): _operator(i) for i in infos}


# --- modules -----------------------------------------------------------------------------------


def _module(info: Any) -> Callable[[], Case]:
    def case() -> Case:
        torch.manual_seed(0)
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=True
        )
        sample = max(
            samples, key=lambda s: elements((s.forward_input.args, s.forward_input.kwargs))
        )
        made, call = sample.constructor_input, sample.forward_input
        module = info.module_cls(*made.args, **made.kwargs).train()
        if any(map(nn.parameter.is_lazy, module.parameters())):
            module(*call.args, **call.kwargs)  # gives the parameters their shapes
        in_steps = isinstance(module, (nn.RNNBase, nn.MultiheadAttention))
        rows = STEPS if in_steps or "Transformer" in info.name else ROWS
        return enlarged(module, tuple(call.args), dict(call.kwargs), rows)

    return case


def modules() -> dict[str, Callable[[], Case]]:
    """ModuleInfo: the largest sample of each, in training mode."""
    from torch.testing._internal.common_modules import module_db

    return {f"nn.{info.name.removeprefix('nn.')}": _module(info) for info in module_db}


@cache
def __getattr__(name: str) -> Mapping[str, Callable[[], Case]]:
    """The lists, read when they are asked for: their packages are not everywhere."""
    lists = {"OPERATORS": operators, "MODULES": modules}
    if name not in lists:
        raise AttributeError(name)
    return lists[name]()
