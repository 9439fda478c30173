"""Makes the modules of `aliases` importable, and takes them away again."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .aliases import COMPOSED, SAME, Names, Target


def resolve(old: str, target: Target) -> Any:
    """The object behind an old name.

    Raises:
        ImportError: this installation of onnxtrain, or a package it needs for this part, lacks it.
    """
    reasons = []
    for candidate in (target,) if isinstance(target, str) else target:
        module, _, name = candidate.partition(":")
        try:
            return _named(module, name) if name else importlib.import_module(module)
        except ModuleNotFoundError as error:
            missing = error.name or module
            if missing.split(".")[0] != "onnxtrain":
                raise ImportError(
                    f"{old} is {candidate} of onnxtrain, and that needs the package {missing!r}: "
                    f"pip install {missing}"
                ) from error
            reasons.append(candidate)
        except AttributeError:
            reasons.append(candidate)
    raise ImportError(
        f"{old} would be {reasons[0]}, which this version of onnxtrain does not "
        "have. Upgrade onnxtrain, or see docs/moving.md for another way."
    )


def _named(module: str, name: str) -> Any:
    """A name in a module; ``package.*`` looks through all modules of a package."""
    if not module.endswith(".*"):
        return getattr(importlib.import_module(module), name)
    package = importlib.import_module(module.removesuffix(".*"))
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        value = getattr(importlib.import_module(info.name), name, None)
        if value is not None:
            return value
    raise AttributeError(name)


class AliasFinder(MetaPathFinder, Loader):
    """Finds and loads alias modules.

    Args:
        skip: top-level packages that are really installed and left alone.
    """

    def __init__(self, skip: Sequence[str] = ()) -> None:
        self.skip = frozenset(skip)
        self._spec: dict[str, Any] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of an alias, None for everything else."""
        if fullname.split(".", maxsplit=1)[0] in self.skip or not self.knows(fullname):
            return None
        spec = ModuleSpec(fullname, self, is_package=is_package(fullname))
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations = []  # submodules come from here, not from a folder
        return spec

    @staticmethod
    def knows(fullname: str) -> bool:
        """Whether there is an alias of this name."""
        return fullname in SAME or fullname in COMPOSED

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself for an alias of a whole module, else an empty one."""
        if spec.name in SAME:
            module: ModuleType = resolve(spec.name, SAME[spec.name])
            self._spec[spec.name] = (module.__spec__, getattr(module, "__loader__", None))
            return module
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Give a composed module its names, and a shared one its own spec back."""
        spec = module.__spec__
        name = spec.name if spec is not None else module.__name__
        if name in self._spec:
            module.__spec__, module.__loader__ = self._spec.pop(name)
            return
        names = COMPOSED[name]
        module.__doc__ = f"`{name}`, provided by onnxtrain."
        module.__dict__["__all__"] = [n for n in names if not n.startswith("_")]
        module.__dict__["__getattr__"] = lazy(name, names)
        module.__dict__["__dir__"] = lambda: sorted([*names, *vars(module)])


def is_package(name: str) -> bool:
    """Whether other aliases lie below."""
    return any(other.startswith(f"{name}.") for other in (*COMPOSED, *SAME))


def lazy(
    module: str, names: Names, otherwise: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that looks names up when they are used."""

    def find(name: str) -> Any:
        if name in names:
            return resolve(f"{module}.{name}", names[name])
        if otherwise is not None:
            return otherwise(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


def unload(finder: AliasFinder) -> None:
    """Forget every alias module, and the attributes that importing them left on real ones."""
    for name in [n for n in sys.modules if finder.knows(n)]:
        if name.split(".")[0] in finder.skip:
            continue
        module = sys.modules.pop(name)
        parent, _, child = name.rpartition(".")
        holder = sys.modules.get(parent)
        if holder is not None and not finder.knows(parent) and vars(holder).get(child) is module:
            delattr(holder, child)
