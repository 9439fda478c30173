"""`ORTModule`: a torch module whose forward and backward run in stock onnxruntime."""

from __future__ import annotations

import atexit
import contextlib
import copy
import inspect
import logging
import os
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, cast

import onnx
import torch
import torch.nn.modules.module as torch_modules

from ..passes import Recompute, check_recompute
from ._gloo_threads import wait_for_gloo
from ._ortmodule_cache import Cache, Kind, Moving, Settings, protected
from ._ortmodule_structure import take_apart
from .debug_options import DebugOptions
from .fallback import (
    FallbackPolicy,
    ORTModuleFallbackException,
    ORTModuleTorchModelException,
    read_policy,
    read_retry,
)
from .value_reads import FixedValues

atexit.register(wait_for_gloo)
log = logging.getLogger(__name__)
T = TypeVar("T", bound="ORTModule")


_is_compiling = torch.compiler.is_compiling
_is_tracing = torch._C._get_tracing_state  # noqa: SLF001 - the public one is two calls in Python
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a module has the functions that torch calls around `forward`."""
_GLOBAL_HOOKS = tuple(getattr(torch_modules, f"_global{name}") for name in _HOOKS)
"""Where those for all modules are."""

_OWN = ("_wrapped", "_options", "_policy", "_exporter", "_recompute")
"""What a copy needs to know."""
MEMORY_VARIABLE = "ORTMODULE_MEMORY_OPT_LEVEL"
OWN_CHECKPOINTS_VARIABLE = "ORTMODULE_ALLOW_AUTOGRAD_CHECKPOINT"
"""Set to 1, it switches the other off: then nothing is computed again that is not asked for."""
ONE_TENSOR = take_apart(((torch.empty(0),), {}), [])
"""The structure of the most frequent arguments."""


class ModuleError(ORTModuleTorchModelException, TypeError):
    """Something that cannot be wrapped, or not be done with a wrapped module."""


class _WithSignatureOfWrapped:
    """Decorates `ORTModule.forward`: bound to an object, it has the wrapped module's signature.

    Trainers read that signature to know which columns of a data set the module takes.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, instance: ORTModule | None, owner: type[ORTModule]) -> Callable[..., Any]:
        if instance is None:
            return self.function
        own = instance.__dict__
        if "_signed" not in own:
            own["_signed"] = _signed(self.function, instance.module)
        return types.MethodType(own["_signed"], instance)


def _signed(function: Callable[..., Any], module: torch.nn.Module) -> Callable[..., Any]:
    """A copy of `forward` that says it has the signature of the module's."""
    original = cast("types.FunctionType", function)
    copied = types.FunctionType(
        original.__code__,
        original.__globals__,
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )
    copied.__doc__ = original.__doc__
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    with contextlib.suppress(ValueError):  # a compiled one has no signature
        signature = inspect.signature(module.forward)
        taken = "self" in signature.parameters
        own = own.replace(name="self_") if taken else own
        setattr(  # noqa: B010 - unknown to mypy
            copied,
            "__signature__",
            signature.replace(parameters=[own, *signature.parameters.values()]),
        )
    return copied


class ORTModule(torch.nn.Module):
    """Runs a torch module in onnxruntime: same parameters, same results, same gradients.

    The first call exports the module, differentiates it and makes two graphs of standard
    operators, one for each direction; torch's autograd calls them. Parameters stay torch's own
    tensors and share their memory with onnxruntime, so any optimizer, scheduler, clipping or
    `DataLoader` works as before. Sizes of inputs may change from call to call. Whatever else
    changes (mode, types, structure of the arguments, `requires_grad`, an attribute set through
    this object) gets graphs of its own, once.

    Everything of `torch.nn.Module` is passed on to the wrapped module: `state_dict` has its keys.

    Args:
        module: the module.
        debug_options: logging, and files of the graphs.
        fallback: when torch may do the work instead: a `FallbackPolicy`, its names joined by
            ``|``, True for every reason. By default the environment variable
            ``ORTMODULE_FALLBACK_POLICY``, else never: an error then says what is in the way.
        exporter: ``"dynamo"`` or ``"torchscript"``; by default the one that the installed torch
            maintains, and the other if that fails.
        recompute: what the backward pass computes again instead of keeping it, which needs less
            memory: a number of segments, ``"auto"``, ``"cheap"``, or names of the values to keep
            (see the guide on memory). By default ``"auto"`` if the environment variable
            ``ORTMODULE_MEMORY_OPT_LEVEL`` is 1 or 2, else everything is kept.

    Note:
        What `forward` reads besides tensors (numbers, flags) is fixed in the graph. Change it
        through this object (``ort_module.scale = 2.0``), or call `reset` afterwards.

    Example:
        >>> import torch
        >>> from onnxtrain.torch import ORTModule
        >>> model = ORTModule(torch.nn.Linear(3, 1), exporter="torchscript")
        >>> model(torch.ones(2, 3)).sum().backward()
        >>> model.weight.grad
        tensor([[2., 2., 2.]])
    """

    own_names: ClassVar[frozenset[str]] = frozenset({"forward"})
    """Attributes that are set on this object; all others are set on the wrapped module."""

    def __init__(
        self,
        module: torch.nn.Module,
        debug_options: DebugOptions | None = None,
        *,
        fallback: FallbackPolicy | str | bool | None = None,
        exporter: str | None = None,
        recompute: Recompute = None,
    ) -> None:
        _check(module)
        check_recompute(recompute)
        options = DebugOptions() if debug_options is None else debug_options
        if not isinstance(options, DebugOptions):
            raise ModuleError(f"debug_options is a DebugOptions, not {type(options).__name__}.")
        super().__init__()
        logging.getLogger(__package__).setLevel(options.log_level.python)
        how = recompute if recompute is not None else _memory_level()
        self._adopt(module, options, read_policy(fallback), exporter, how)

    def _adopt(
        self,
        module: torch.nn.Module,
        options: DebugOptions,
        policy: FallbackPolicy,
        exporter: str | None,
        recompute: Recompute = None,
    ) -> None:
        own = self.__dict__
        own["_recompute"] = recompute
        own["_wrapped"], own["_options"], own["_policy"] = module, options, policy
        own["_exporter"], own["_fell_back"] = exporter, None
        own["_may_fall_back"] = policy != FallbackPolicy.FALLBACK_DISABLE
        is_ours = type(self).forward is ORTModule.forward
        own["_may_be_short"] = is_ours and not self._may_fall_back
        own["_hooks"] = tuple(own[name] for name in _HOOKS) + _GLOBAL_HOOKS
        own["_graphs"] = Cache(module)
        own["_export_options"] = {True: {}, False: {}}
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            own[name] = module.__dict__[name]  # torch reads these without asking

    # --- running ---------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module as any of torch's.

        If there is no hook, no compiler and no tracer, and the call is like the last one, the
        graphs run at once: the functions between torch's `__call__` and `forward` take as long as
        a small graph.
        """
        if not (
            kwargs
            or _is_compiling()
            or _is_tracing()
            or not self._may_be_short
            or any(self._hooks)
            or "forward" in self.__dict__
        ):
            repeat = self._graphs.repeat
            if repeat is not None:
                results = repeat(args)
                if results is not None:
                    return results[0] if repeat.is_tensor else repeat.kind.result(results, args)
        return super().__call__(*args, **kwargs)

    @_WithSignatureOfWrapped
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; see there for its arguments and results."""
        if torch.compiler.is_compiling():  # it would look into sessions, and end the process
            eagerly = torch.compiler.disable(ORTModule._called)  # type: ignore[no-untyped-call]
            return eagerly(self, args, kwargs)
        return self._called(args, kwargs) if self._may_fall_back else self._run(args, kwargs)

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run in onnxruntime, or in torch where that was asked for."""
        if self._torch_runs():
            return self._wrapped(*args, **kwargs)
        try:
            return self._run(args, kwargs)
        except ORTModuleFallbackException as error:
            if not error.policy & self._policy:
                raise
            if self._fell_back is None:
                log.warning("torch runs %s: %s", type(self._wrapped).__name__, error)
            self.__dict__["_fell_back"] = error
            return self._wrapped(*args, **kwargs)

    def _torch_runs(self) -> bool:
        """Whether torch takes this call, by wish or because onnxruntime could not."""
        policy = self._policy
        if policy & FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD:
            return True
        if policy & FallbackPolicy.FALLBACK_FORCE_TORCH_BACKWARD and torch.is_grad_enabled():
            return True
        return self._fell_back is not None and not read_retry()

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs: list[torch.Tensor] = []
        if len(kwargs) > 1:
            kwargs = dict(sorted(kwargs.items()))
        if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
            inputs, structure = list(args), ONE_TENSOR
        else:
            structure = take_apart((args, kwargs), inputs)
        cache = self._graphs
        with cache.lock:
            key, kind = cache.known_kind(structure, inputs)
            if kind is None:
                kind = cache.find(structure, inputs, torch.is_grad_enabled(), self._settings())
                cache.remember(key, kind)
            if isinstance(kind, Kind):
                cache.used[kind.training] = kind
                changes = kind.changes_arguments
                protected_inputs = protected(kind.traced, inputs) if changes else inputs
                prepared = kind.prepare(protected_inputs, cache)
                cache.prepare_repeat(kind, prepared[0], args, kwargs, inputs)
        if isinstance(kind, Moving):
            return self._wrapped(*args, **kwargs)
        outputs = kind(protected_inputs, cache, *prepared)
        if kind.traced.expected:
            kind.compare(type(self._wrapped).__name__, outputs)
        return outputs[0] if kind.is_tensor else kind.result(outputs, inputs)

    def _settings(self) -> Settings:
        return Settings(
            self._options,
            self._exporter,
            self._recompute,
            self._fixed_values(),
            self._export_options[self.training],
        )

    def _inside(self, training: bool) -> Inside:
        """What there is to see of the graphs for one mode."""
        cache = self._graphs
        kind = cache.used.get(training)
        tensors = [*self._wrapped.parameters(), *self._wrapped.buffers()]
        inside = Inside(
            tensors[0].device if tensors else torch.device("cpu"),
            self._options,
            self._policy,
            cache.stale,
            self._export_options[training],
        )
        return inside if kind is None else inside.of(kind)

    def _fixed_values(self) -> FixedValues | None:
        """What is done about values that tracing fixes: torch takes over, where it may."""
        choice: FixedValues | None = self._options.fixed_values
        if choice is None and self._policy & FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL:
            return "error"
        return choice

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the graphs are compiled already."""

    def reset(self) -> None:
        """Forget all graphs; the next call exports again."""
        with self._graphs.lock:
            self._graphs.forget()
        self.__dict__["_fell_back"] = None

    @property
    def module(self) -> torch.nn.Module:
        """The wrapped module."""
        module: torch.nn.Module = self.__dict__["_wrapped"]
        return module

    @property
    def fallback_reason(self) -> ORTModuleFallbackException | None:
        """Why torch does the work; None while onnxruntime does."""
        reason: ORTModuleFallbackException | None = self.__dict__["_fell_back"]
        return reason

    # --- attributes ------------------------------------------------------------------------------

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What `isinstance` sees beside ORTModule: the class of a model that can save itself.

        The trainer of transformers asks the class of a model for the names of its labels, and
        whether it may write it with its configuration.
        """
        wrapped = self.__dict__.get("_wrapped")
        return type(wrapped) if hasattr(type(wrapped), "save_pretrained") else type(self)

    @property
    def training(self) -> bool:
        """The mode of the wrapped module."""
        wrapped = self.__dict__.get("_wrapped")
        return True if wrapped is None else wrapped.training

    @training.setter
    def training(self, mode: bool) -> None:
        wrapped = self.__dict__.get("_wrapped")
        if wrapped is not None:
            wrapped.training = mode

    def __getattr__(self, name: str) -> Any:
        wrapped = self.__dict__.get("_wrapped")
        if wrapped is None:
            raise AttributeError(name)
        value = getattr(wrapped, name)
        if isinstance(value, types.MethodType) and value.__self__ is wrapped:
            return value if _needs_its_class(value) else types.MethodType(value.__func__, self)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        wrapped = self.__dict__.get("_wrapped")
        if name == "training" or wrapped is None:
            super().__setattr__(name, value)
            return
        if name in self.own_names or isinstance(getattr(wrapped, name, None), types.MethodType):
            self.__dict__[name] = value
            return
        before = getattr(wrapped, name, _MISSING)
        setattr(wrapped, name, value)
        if not _same(before, value):
            self.reset()

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            del self.__dict__[name]
            return
        delattr(self._wrapped, name)
        self.reset()

    def __dir__(self) -> list[str]:
        return sorted(
            {
                *super().__dir__(),  # type: ignore[no-untyped-call]
                *dir(self._wrapped),
            }
        )

    def extra_repr(self) -> str:
        """Which module is inside."""
        return type(self._wrapped).__name__

    # --- copies ----------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {n: self.__dict__[n] for n in _OWN}

    def __reduce__(self) -> tuple[Any, ...]:
        return _empty, (type(self),), self.__getstate__()

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        torch.nn.Module.__init__(self)
        self._adopt(*(state[n] for n in _OWN if n in state))

    def __deepcopy__(self: T, memo: dict[int, Any]) -> T:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        with self._graphs.lock:
            # graphs do not hold the values of parameters
            twin._graphs.share(self._graphs)  # noqa: SLF001  # of this class
        return twin

    # --- not possible ----------------------------------------------------------------------------

    def add_module(self, name: str, module: torch.nn.Module | None) -> None:
        """Not possible: the wrapped module decides what its parts are."""
        raise ModuleError(
            f"A part ({name!r}) cannot be added to an ORTModule. Add it to the wrapped module "
            "(.module) before that is wrapped."
        )

    def register_module(self, name: str, module: torch.nn.Module | None) -> None:
        """As `add_module`."""
        self.add_module(name, module)

    def _replicate_for_data_parallel(self) -> Any:
        raise ModuleError(
            "torch.nn.DataParallel cannot replicate an ORTModule. Use "
            "torch.nn.parallel.DistributedDataParallel instead."
        )


@dataclass(frozen=True)
class Inside:
    """What `ORTModule` works with in one mode, for who wants to look.

    Attributes:
        device: where the module is.
        options: for debugging.
        policy: when torch may take over.
        stale: whether graphs were dropped since the last call.
        export_options: more arguments of `torch.onnx.export`.
        exported: what torch exported for the last call.
        run: what it ran, both halves in one model.
        halves: these, and what belongs to them.
        agent: runs them.
        inputs: names of the tensors among the arguments.
        arguments: structure of the positional arguments, and of those by name.
        differentiated: names of the inputs and parameters that have gradients.
    """

    device: torch.device
    options: DebugOptions
    policy: FallbackPolicy
    stale: bool
    export_options: dict[str, Any]
    exported: onnx.ModelProto | None = None
    run: onnx.ModelProto | None = None
    halves: Any = None
    agent: Any = None
    inputs: tuple[str, ...] = ()
    arguments: tuple[Any, Any] | None = None
    differentiated: tuple[str, ...] = ()

    def of(self, kind: Kind) -> Inside:
        """The same, with the graphs of a kind of call."""
        traced, halves = kind.traced, kind.graphs.halves
        return replace(
            self,
            exported=traced.model,
            run=halves.whole or halves.forward,
            halves=halves,
            agent=kind.graphs,
            inputs=tuple(traced.inputs),
            arguments=traced.structure[3],
            differentiated=tuple(halves.gradients),
        )


def _empty(kind: type[T]) -> T:
    """An object that `__setstate__` is called on."""
    return kind.__new__(kind)


def _memory_level() -> Recompute:
    """What the predecessor's environment variable asks for."""
    level = os.environ.get(MEMORY_VARIABLE, "0")
    if level not in ("0", "1", "2"):
        raise ModuleError(f"{MEMORY_VARIABLE} is 0, 1 or 2, not {level!r}.")
    if level == "0" or os.environ.get(OWN_CHECKPOINTS_VARIABLE, "0") == "1":
        return None
    if level == "1":
        log.info("Layer-wise memory optimization is enabled: %s is 1.", MEMORY_VARIABLE)
    return "auto"


def _check(module: Any) -> None:
    if not isinstance(module, torch.nn.Module):
        raise ModuleError(f"ORTModule wraps a torch.nn.Module, not {type(module).__name__}.")
    if isinstance(module, ORTModule):
        raise ModuleError("The module is an ORTModule already.")
    if isinstance(module, torch.nn.DataParallel):
        raise ModuleError(
            "torch.nn.DataParallel cannot be used with ORTModule. Use "
            "torch.nn.parallel.DistributedDataParallel(ORTModule(module)) instead."
        )
    if hasattr(module, "_orig_mod"):
        raise ModuleError(
            "The module is one of torch.compile, which ORTModule cannot look into. Wrap the module "
            "itself: ORTModule(module)."
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise ModuleError("A scripted module cannot be exported; wrap the original module.")


def _needs_its_class(method: types.MethodType) -> bool:
    """Whether a method uses `super()`, which refuses objects of another class.

    All others are bound to the `ORTModule`, so that what they call as `self(...)` runs in
    onnxruntime.
    """
    code = getattr(inspect.unwrap(method.__func__), "__code__", None)
    return code is None or "__class__" in code.co_freevars


_MISSING = object()


def _same(before: Any, value: Any) -> bool:
    """Whether a graph made with the one attribute is right with the other too."""
    if before is value:
        return True
    plain = (bool, int, float, str, type(None))
    return type(before) is type(value) and isinstance(value, plain) and before == value


# --- passing on -----------------------------------------------------------------------------------

_PASSED_ON = (
    "state_dict", "load_state_dict", "_load_from_state_dict", "_save_to_state_dict",
    "parameters", "named_parameters", "buffers", "named_buffers", "children", "named_children",
    "modules", "named_modules", "get_parameter", "get_buffer", "get_submodule", "get_extra_state",
    "set_extra_state", "register_buffer", "register_parameter", "zero_grad", "_named_members",
)  # fmt: skip
_CHAINED = ("train", "eval", "requires_grad_", "apply", "_apply")
"""Methods that return the module they are called on."""


def _pass_on(name: str, chained: bool) -> Callable[..., Any]:
    def method(self: ORTModule, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self.__dict__["_wrapped"], name)(*args, **kwargs)
        return self if chained else result

    method.__name__, method.__doc__ = name, f"`torch.nn.Module.{name}` of the wrapped module."
    method.__qualname__ = f"ORTModule.{name}"
    return method


for _name in _PASSED_ON:
    setattr(ORTModule, _name, _pass_on(_name, chained=False))
for _name in _CHAINED:
    setattr(ORTModule, _name, _pass_on(_name, chained=True))
