"""A torch module as a function of its parameters and float inputs, in float32 or float64."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .cases import TorchCase

Array = np.ndarray[Any, Any]
Point = dict[str, torch.Tensor]


class OtherSizes(Exception):  # noqa: N818 - not an error of the module's
    """At this point the outputs have other sizes than at the first: the loss is another."""


class Widened(TorchFunctionMode):
    """Where a module asks for float32 it gets float64: norms and softmaxes of many do."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        wide = [torch.float64 if a is torch.float32 else a for a in args]
        named = {n: torch.float64 if a is torch.float32 else a for n, a in (kwargs or {}).items()}
        return func(*wide, **named)


@contextlib.contextmanager
def _in_float64() -> Iterator[None]:
    """Float64 is also what a module gets where it names no type."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widened():
            yield
    finally:
        torch.set_default_dtype(default)


class TorchFunction:
    """The weighted sum of a module's float outputs, and its derivatives.

    Args:
        case: the module and its call.
        dtype: what to compute in.
    """

    def __init__(self, case: TorchCase, dtype: torch.dtype = torch.float32) -> None:
        self.case = case
        self.dtype = dtype
        self.module = copy.deepcopy(case.module).to(dtype)
        _convert_attributes(self.module, dtype)
        leaves, self._spec = pytree.tree_flatten((case.inputs, case.kwargs))
        self._leaves = [self._convert(leaf) for leaf in leaves]
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        tensors = [self._leaves[i] for i in self._places]
        self.inputs: Point = {f"input_{i}": tensor for i, tensor in enumerate(tensors)}
        marked = [leaves[i].requires_grad for i in self._places]
        for tensor, is_marked in zip(tensors, marked):
            wanted = case.inputs_have_gradients and (is_marked or not any(marked))
            tensor.requires_grad_(wanted and tensor.is_floating_point())
        self.weights: list[Array] = []

    def _convert(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        leaf = leaf.detach()
        return leaf.to(self.dtype) if leaf.is_floating_point() else leaf.clone()

    def point(self) -> Point:
        """Parameters and float inputs, as leaves of a new graph."""
        named = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        named |= {n: t for n, t in self.inputs.items() if t.requires_grad}
        return {n: t.detach().clone().requires_grad_() for n, t in named.items()}

    def outputs(self, point: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """All tensors that the module returns."""
        leaves = list(self._leaves)
        for number, place in enumerate(self._places):
            leaves[place] = point.get(f"input_{number}", leaves[place])
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        parameters = {n: t for n, t in point.items() if n not in self.inputs}
        torch.manual_seed(0)
        with _in_float64() if self.dtype == torch.float64 else contextlib.nullcontext():
            result = functional_call(self.module, parameters, args, kwargs)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    def loss(self, point: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """What is differentiated."""
        terms = [
            (output * torch.from_numpy(weight).to(output.dtype)).sum()
            for output, weight in self._weighted(point)
        ]
        return torch.stack([t.to(self.dtype) for t in terms]).sum()

    def value(self, moved: Mapping[str, Array]) -> float:
        """The loss where some arrays are others, without outputs that are not finite.

        It is no number where outputs have other sizes.
        """
        total = 0.0
        with torch.no_grad():
            point = self.point() | {n: torch.as_tensor(a).to(self.dtype) for n, a in moved.items()}
            try:
                weighted = self._weighted(point)
            except OtherSizes:
                return float("nan")
            for output, weight in weighted:
                products = output.double() * torch.from_numpy(weight).double()
                total += float(products[torch.isfinite(products)].sum())
        return total

    def loss_and_size(self, moved: Mapping[str, Array]) -> tuple[float, float]:
        """The loss where some arrays are others, and the sum of its terms without their signs."""
        with torch.no_grad():
            point = self.point() | {n: torch.as_tensor(a).to(self.dtype) for n, a in moved.items()}
            terms = [o.double() * torch.from_numpy(w).double() for o, w in self._weighted(point)]
        return sum(float(t.sum()) for t in terms), sum(float(t.abs().sum()) for t in terms)

    def _weighted(self, point: Mapping[str, torch.Tensor]) -> list[tuple[torch.Tensor, Array]]:
        """Outputs that count, and what each is multiplied by."""
        pairs = [(o, w) for o, w in zip(self.outputs(point), self.weights) if w.size]
        for output, weight in pairs:
            if tuple(output.shape) != weight.shape:
                raise OtherSizes(f"{tuple(output.shape)}, not {weight.shape}")
        return pairs

    def second_value(self, moved: Mapping[str, Array], along: Mapping[str, Array]) -> float:
        """`second` where some arrays are others."""
        point = self.point()
        for name, array in moved.items():
            point[name] = torch.as_tensor(array).to(self.dtype).requires_grad_()
        gradients = self.gradients(point)
        products = [gradients[n].double() * torch.from_numpy(v).double() for n, v in along.items()]
        return float(sum(float(p[torch.isfinite(p)].sum()) for p in products))

    def gradients(self, point: Point, *, again: bool = False) -> Point:
        """Of the loss; zeros where it does not depend on something."""
        found = torch.autograd.grad(
            self.loss(point), list(point.values()), allow_unused=True, create_graph=again
        )
        return _zeros_for_none(point, found)

    def eager_step(self) -> None:
        """Forward and backward as a user writes them, for the clock."""
        args, kwargs = pytree.tree_unflatten(self._leaves, self._spec)
        result = self.module(*args, **kwargs)
        outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        terms = [
            (output * torch.from_numpy(weight)).sum()
            for output, weight in zip(outputs, self.weights)
            if weight.size and output.requires_grad
        ]
        if terms:
            self.module.zero_grad()
            torch.stack(terms).sum().backward()

    def second(self, point: Point, along: Mapping[str, Array]) -> torch.Tensor:
        """The product of the gradients and fixed arrays."""
        gradients = self.gradients(point, again=True)
        terms = [
            (gradients[n] * torch.from_numpy(v).to(self.dtype)).sum() for n, v in along.items()
        ]
        return torch.stack(terms).sum()

    def second_gradients(self, point: Point, along: Mapping[str, Array]) -> Point:
        """Of that product."""
        total = self.second(point, along)
        if not total.requires_grad:
            return {n: torch.zeros_like(t) for n, t in point.items()}
        found = torch.autograd.grad(total, list(point.values()), allow_unused=True)
        return _zeros_for_none(point, found)


def _convert_attributes(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Tensors that are neither parameters nor buffers, which `Module.to` leaves as they are."""
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(part, name, value.detach().to(dtype))


def in_float32(value: Any) -> Any:
    """A float64 tensor as float32, anything else as it is."""
    is_wide = isinstance(value, torch.Tensor) and value.dtype == torch.float64
    return value.detach().float().requires_grad_(value.requires_grad) if is_wide else value


def _zeros_for_none(point: Point, found: Sequence[torch.Tensor | None]) -> Point:
    return {n: torch.zeros_like(t) if g is None else g for (n, t), g in zip(point.items(), found)}


def random_weights(outputs: Sequence[torch.Tensor], seed: int = 0) -> list[Array]:
    """For each output that has a gradient an array of its shape; an empty one for the others.

    What is not finite counts nothing.
    """
    rng = np.random.default_rng(seed)
    return [
        np.where(torch.isfinite(o), rng.uniform(-1, 1, tuple(o.shape)), 0.0).astype(np.float32)
        if o.requires_grad and o.is_floating_point()
        else np.zeros(0, np.float32)
        for o in outputs
    ]


def arrays(point: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """As numpy arrays."""
    return {n: t.detach().cpu().numpy(force=True) for n, t in point.items()}
