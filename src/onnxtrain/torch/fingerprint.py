"""What an export depends on, as a hash: the module's code and values, and how it is called.

Two modules with the same fingerprint give the same graph. The code is that of every function that
can be reached from the module: its methods, hooks, what they call by name, what they hold in
closures. Installed packages are known by their version. What cannot be told apart reliably (an
object without a state that can be read, code that imports while it runs) has no fingerprint.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.metadata
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ..errors import OnnxTrainError

LIMIT = 200_000
"""Values that are looked at before a module is given up as too large to tell."""
INSTALLED = frozenset({"site-packages", "dist-packages"})
MAKES_CODE = frozenset({"exec", "eval", "__import__", "import_module"})
"""Names whose use in a function means that it runs what cannot be seen."""
ENVIRONMENT = frozenset({"environ", "getenv"})
"""Names whose use means that variables of the environment count, those it has the names of."""
PLAIN = (
    type(None), bool, int, str, bytes, complex, type(...), range, slice,
    torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype,
)  # fmt: skip
TENSORS = frozenset({"_parameters", "_buffers"})
BOOKKEEPING = frozenset(
    {
        "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__",
        "__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__",
        "__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__qualname__",
    }
)  # fmt: skip
"""Attributes of a class that its behaviour does not depend on."""


class NoFingerprintError(OnnxTrainError, TypeError):
    """There is something that cannot be told from something else; the text says what."""


def fingerprint(module: torch.nn.Module, *more: Any) -> str:
    """A hash of the module and of further values.

    Values of parameters and buffers do not count, their names, sizes and types do.

    Raises:
        NoFingerprintError: the module depends on something that cannot be read.
    """
    walk = _Walk()
    for tensor in (*module.parameters(), *module.buffers()):
        walk.know(tensor)
    walk.add((_surroundings(), more), "the call")
    walk.add(module, type(module).__name__)
    return walk.hash.hexdigest()


def _surroundings() -> tuple[Any, ...]:
    """What an export depends on besides the module."""
    packages = [(n, package_version(n)) for n in ("torch", "onnx", "onnxscript", "onnx_ir")]
    attention: list[Callable[[], bool]] = [
        torch.backends.cuda.flash_sdp_enabled,
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.math_sdp_enabled,
    ]
    every_module = vars(torch.nn.modules.module)
    hooks = [every_module[n] for n in ("_global_forward_hooks", "_global_forward_pre_hooks")]
    return (
        sys.version, packages, _own_sources(), torch.get_default_dtype(),
        torch.get_default_device(), torch.are_deterministic_algorithms_enabled(),
        [enabled() for enabled in attention], _registered_symbolics(),
        [hook for kind in hooks for hook in kind.values()],
    )  # fmt: skip


def _registered_symbolics() -> dict[str, Any]:
    """Functions that users told TorchScript's exporter to translate operators with."""
    package = "torch.onnx._internal"
    for name in (f"{package}.torchscript_exporter.registration", f"{package}.registration"):
        if name in sys.modules:
            groups = vars(sys.modules[name].registry)["_registry"]
            own = {n: vars(vars(g)["_functions"])["_overrides"] for n, g in groups.items()}
            return {name: dict(functions) for name, functions in own.items() if functions}
    return {}


@functools.cache
def _own_sources() -> str:
    """A hash of what turns torch's export into ours."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def package_version(name: str) -> str:
    """The version of an installed package; its name where it says none."""
    loaded = sys.modules.get(name)
    version = getattr(loaded, "__version__", None)
    if version is not None:
        return str(version)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        owners = importlib.metadata.packages_distributions().get(name, [])
        return " ".join(f"{o} {importlib.metadata.version(o)}" for o in sorted(set(owners))) or name


@functools.cache
def installed(module_name: str) -> bool:
    """Whether a module is Python's own, or of a package that was installed by its version."""
    top = module_name.partition(".")[0]
    if top == "__main__":  # a user's program, wherever it is
        return False
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return True
    names = [module_name, top]  # a compiled part may have no file of its own
    files = [getattr(sys.modules.get(name), "__file__", None) for name in names]
    file = next(filter(None, files), None)
    return file is not None and not INSTALLED.isdisjoint(Path(file).parts)


class _Walk:
    """Goes through values and puts what it meets into a hash, each object once."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.met: dict[int, tuple[int, Any]] = {}  # the object too, so that its id stays its own
        self.count = 0

    def know(self, value: Any) -> int:
        """The number of an object, a new one the first time."""
        return self.met.setdefault(id(value), (len(self.met), value))[0]

    def note(self, kind: str, text: str = "") -> None:
        data = text.encode("utf-8", "surrogatepass")
        self.hash.update(f"{kind} {len(data)} ".encode() + data)

    def add(self, value: Any, where: str) -> None:
        """Put a value into the hash; `where` is said if it cannot be read."""
        self.count += 1
        if self.count > LIMIT:
            raise NoFingerprintError(f"{where}: there is too much to look at")
        if isinstance(value, PLAIN) and not isinstance(value, Enum):
            self.note(type(value).__name__, repr(value))
        elif isinstance(value, (float, np.generic)):
            self.note(type(value).__name__, np.asarray(value).tobytes().hex())
        elif id(value) in self.met:
            self.note("again", str(self.met[id(value)][0]))
        else:
            self.know(value)
            try:
                self._object(value, where)
            except RecursionError:
                raise NoFingerprintError(f"{where} is nested too deeply") from None

    def _object(self, value: Any, where: str) -> None:
        for kind, method in self.methods.items():
            if isinstance(value, kind):
                method(self, value, where)
                return
        parts = _parts(value)
        if parts is None:
            self._collection(value, where)
        else:
            self._each(type(value).__name__, parts, where)

    def _collection(self, value: Any, where: str) -> None:
        kind = type(value)
        if kind in (tuple, list):
            self._each(kind.__name__, value, where)
        elif kind in (dict, types.MappingProxyType):
            self._mapping(value, where)
        elif kind in (set, frozenset):
            self._each(kind.__name__, sorted(_alone(item, where) for item in value), where)
        else:
            self._reduced(value, where)

    def _each(self, kind: str, values: Iterable[Any], where: str) -> None:
        values = list(values)
        self.note(kind, str(len(values)))
        for value in values:
            self.add(value, where)

    def _mapping(self, value: Mapping[Any, Any], where: str) -> None:
        self.note("mapping", str(len(value)))
        for key, item in value.items():
            self.add(key, where)
            self.add(item, f"{where}.{key}")

    # --- modules and tensors ----------------------------------------------------------------------

    def _part(self, part: torch.nn.Module, where: str) -> None:
        """A module: its class, its tensors' names and kinds, its parts, all else by value."""
        self.note("part")
        self.add(type(part), where)
        for name, value in vars(part).items():
            self.note("attribute", name)
            if name in TENSORS:
                self._tensor_kinds(value)
            elif name.endswith("_hooks") and isinstance(value, dict):
                self._each("hooks", value.values(), f"{where}.{name}")  # keys count up
            elif name.startswith("_forward_") and isinstance(value, dict):
                self._each("hooks with", value.values(), f"{where}.{name}")
            else:
                self.add(value, f"{where}.{name}")

    def _tensor_kinds(self, tensors: Mapping[str, torch.Tensor | None]) -> None:
        self.note("tensors", str(len(tensors)))
        for name, tensor in tensors.items():
            if tensor is None:
                self.note(name, "none")
                continue
            known = self.know(tensor)  # the same for tied ones
            kind = (type(tensor).__name__, tuple(tensor.shape), tensor.dtype, tensor.device)
            self.note(name, f"{known} {kind} {tensor.requires_grad}")

    def _tensor(self, tensor: torch.Tensor, where: str) -> None:
        """A tensor that is a constant of the module."""
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            raise NoFingerprintError(f"{where} is a tensor whose values cannot be read")
        self.note("tensor", f"{tensor.dtype} {tuple(tensor.shape)} {tensor.requires_grad}")
        plain = tensor.detach().cpu().contiguous()
        self.hash.update(plain.flatten().view(torch.uint8).numpy().tobytes())

    def _array(self, array: np.ndarray[Any, Any], where: str) -> None:
        if array.dtype.hasobject:
            raise NoFingerprintError(f"{where} is an array of objects")
        self.note("array", f"{array.dtype} {array.shape}")
        self.hash.update(np.ascontiguousarray(array).tobytes())

    # --- code -------------------------------------------------------------------------------------

    def _module(self, module: types.ModuleType, where: str) -> None:
        self._named(module.__name__, "module")

    def _named(self, name: str, kind: str) -> None:
        """Something that its name tells: of a package of this version."""
        self.note(kind, name)
        top = name.partition(".")[0]
        if installed(name) and top not in sys.stdlib_module_names:
            self.note("version", package_version(top))

    def _class(self, cls: type, where: str) -> None:
        self._named(f"{cls.__module__}.{cls.__qualname__}", "class")
        if _is_installed(cls):
            return
        if not cls.__flags__ & (1 << 9):  # made in C: nothing of it can be read
            raise NoFingerprintError(f"{where} has the compiled type {cls.__qualname__}")
        self._each("bases", cls.__mro__[1:], where)
        for name, value in vars(cls).items():
            if name not in BOOKKEEPING and not isinstance(
                value, (types.GetSetDescriptorType, types.MemberDescriptorType)
            ):
                self.note("member", name)
                self.add(value, f"{cls.__qualname__}.{name}")

    def _function(self, function: types.FunctionType, where: str) -> None:
        self._named(f"{function.__module__}.{function.__qualname__}", "function")
        for cell in function.__closure__ or ():
            self._cell(cell, f"the closure of {function.__qualname__}")
        if _is_installed(function):
            return
        self.add(function.__code__, where)
        self.add((function.__defaults__, function.__kwdefaults__, vars(function)), where)
        names = _names(function.__code__)
        unseen = MAKES_CODE.intersection(names)
        if unseen:
            raise NoFingerprintError(f"{function.__qualname__} uses {sorted(unseen)[0]}")
        if not ENVIRONMENT.isdisjoint(names):
            self.add([os.environ.get(text) for text in _texts(function.__code__)], where)
        for name in names:
            if name in function.__globals__:
                self.note("global", name)
                self._global(function.__globals__[name], names, f"{function.__module__}.{name}")

    def _cell(self, cell: types.CellType, where: str) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # nothing was assigned yet
            self.note("empty cell")
        else:
            self.add(value, where)

    def _global(self, value: Any, names: list[str], where: str) -> None:
        """What a function finds under a name; of a module of the user's, what it may ask it for."""
        self.add(value, where)
        if isinstance(value, types.ModuleType) and not installed(value.__name__):
            for name in names:
                if name in vars(value):
                    self.note("of module", name)
                    rest = [n for n in names if n != name]
                    self._global(vars(value)[name], rest, f"{value.__name__}.{name}")

    def _code(self, code: types.CodeType, where: str) -> None:
        if _imports(code):
            raise NoFingerprintError(f"{code.co_name} imports while it runs")
        self.add(
            (
                code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
                code.co_flags, code.co_argcount, code.co_kwonlyargcount, code.co_consts,
            ),
            where,
        )  # fmt: skip

    # --- everything else --------------------------------------------------------------------------

    def _reduced(self, value: Any, where: str) -> None:
        """An object as pickle would take it apart."""
        if isinstance(value, types.BuiltinFunctionType):
            owner = value.__module__ or type(value.__self__).__module__
            if not installed(owner):
                raise NoFingerprintError(f"{where} is compiled code")
            self._named(f"{owner}.{value.__qualname__}", "builtin")
            self.add(value.__self__, where)  # what a method is bound to, or the module
            return
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:
            raise NoFingerprintError(f"{where} cannot be read: {error}") from error
        if isinstance(reduced, str):
            self._by_name(value, reduced, where)
            return
        function, arguments, *rest = reduced
        self._each("object", [type(value), function, arguments], where)
        state, items, pairs = [*rest, None, None, None][:3]
        self.add(state, where)
        self._each("items", items or (), where)
        self._each("pairs", (part for pair in pairs or () for part in pair), where)

    def _by_name(self, value: Any, name: str, where: str) -> None:
        """An object that pickle would only name: by what it wraps, or by its package."""
        owner = getattr(value, "__module__", None) or type(value).__module__
        self._named(f"{owner}.{name}", "name")
        if hasattr(value, "__wrapped__"):  # a function with a cache, say
            self.add(value.__wrapped__, where)
        elif not installed(owner):
            raise NoFingerprintError(f"{where} is known by its name only")

    methods: ClassVar[Mapping[type, Callable[[_Walk, Any, str], None]]] = {
        torch.nn.Module: _part,
        torch.Tensor: _tensor,
        np.ndarray: _array,
        types.ModuleType: _module,
        type: _class,
        types.FunctionType: _function,
        types.CodeType: _code,
    }
    """What is done with objects of these types."""


def _parts(value: Any) -> list[Any] | None:
    """What small objects consist of; None for others."""
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, Enum):
        return [type(value), value.name]
    if isinstance(value, (staticmethod, classmethod)):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    return None


def _is_installed(thing: Any) -> bool:
    return installed(thing.__module__ or "builtins")


def _alone(value: Any, where: str) -> str:
    """The hash of a value by itself, to sort members of a set by."""
    walk = _Walk()
    walk.add(value, where)
    return walk.hash.hexdigest()


def _names(code: types.CodeType) -> list[str]:
    """Names that a function and those inside it use, in order."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(dict.fromkeys(_names(constant)))
    return list(names)


def _texts(code: types.CodeType) -> list[str]:
    """Constants of a function, and of those inside it, that are text."""
    texts = [c for c in code.co_consts if isinstance(c, str) and "\0" not in c]
    return texts + [t for c in code.co_consts if isinstance(c, types.CodeType) for t in _texts(c)]


def _imports(code: types.CodeType) -> bool:
    """Whether the code imports something that is not installed."""
    steps = list(dis.get_instructions(code))
    return any(
        step.opname == "IMPORT_NAME"
        and (steps[i - 2].argval != 0 or not installed(str(step.argval)))  # the level, the name
        for i, step in enumerate(steps)
    )
