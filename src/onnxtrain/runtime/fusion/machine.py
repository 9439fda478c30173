"""LLVM on this processor; import it only where llvmlite is (numba brings it)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite
from llvmlite import binding, ir

from .machine_code import Store, folder

_lock = threading.Lock()
_engines: list[Any] = []
"""What owns the machine code, for as long as the process lives."""


def addresses_of(
    text: str, write: Callable[[Any], None], names: Sequence[str], features: str = ""
) -> list[int]:
    """Addresses of functions, compiled once on a machine if their code can be kept.

    Args:
        text: says what they compute: of two that are equal, the code is the same.
        write: writes them into a module of LLVM's.
        names: theirs.
        features: of the processor, that go behind its own; also what it is not to use.
    """
    target, text = _machine(features), f"{features} {text}"
    with _lock:
        code = _store().read(text)
        if code is None:
            module = ir.Module("kernels")
            module.triple, module.data_layout = target.triple, str(target.target_data)
            write(module)
            code = target.emit_object(binding.parse_assembly(str(module)))
            _store().write(text, code)
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target)
        engine.add_object_file(binding.ObjectFileRef.from_data(code))
        engine.finalize_object()
        _engines.append((engine, target))
        return [int(engine.get_function_address(name)) for name in names]


@functools.cache
def _store() -> Store:
    features = binding.get_host_cpu_features().flatten()
    target = (binding.get_default_triple(), binding.get_host_cpu_name(), features)
    return Store(folder(), " ".join([llvmlite.__version__, *target]))


def _machine(features: str) -> Any:
    """This processor, as LLVM knows it."""
    _start()
    target = binding.Target.from_default_triple()
    own = binding.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(), features=",".join(f for f in (own, features) if f),
        opt=2, jit=True,
    )  # fmt: skip


@functools.cache
def _start() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
