"""A shared library of one function, which jumps to a function of this process, and of constants.

onnxruntime takes custom operators from a shared library only: it opens a file and calls
`RegisterCustomOps` in it. Ours are compiled in this process, so the file has that symbol and a jump
to an address. It is written into memory that has a file descriptor and no name, and never to disk.

Behind it are functions that return a number each. onnxruntime asks every operator for a dozen of
numbers whenever it makes a session; asking Python takes 0.08 ms of that.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Sequence

SYMBOL = b"RegisterCustomOps"
PAGE = 0x10000
"""The largest page that the two systems of processors use: parts with other rights are so far
apart."""
READ, WRITE, EXECUTE = 4, 2, 1
SLOT = 16
"""Bytes of a function: those with the most have so many."""

X86_64, AARCH64 = 62, 183
"""ELF's numbers of processors."""
MACHINES = {"x86_64": X86_64, "aarch64": AARCH64}


def machine() -> int | None:
    """The number of this processor, None where such a library cannot be made."""
    is_linux = sys.platform == "linux" and hasattr(os, "memfd_create") and sys.maxsize > 2**32
    return MACHINES.get(platform.machine()) if is_linux and sys.byteorder == "little" else None


class Library:
    """A library whose function jumps to an address, with functions that return constants.

    The file stays open as long as the process lives.

    Args:
        address: where its function jumps to.
        constants: numbers of 64 bits.

    Attributes:
        path: where this process finds it.
        functions: addresses of the functions that return the constants.
    """

    def __init__(self, address: int, constants: Sequence[int] = ()) -> None:
        number = machine()
        if number is None:
            raise OSError("a library in memory is made for Linux on x86-64 and ARM64 only")
        descriptor = os.memfd_create("onnxtrain", os.MFD_CLOEXEC)
        content = memoryview(shared_library(number, address, constants))
        while content:
            content = content[os.write(descriptor, content) :]
        self.path = f"/proc/self/fd/{descriptor}"
        self._loaded = ctypes.CDLL(self.path)
        begin = ctypes.cast(getattr(self._loaded, SYMBOL.decode()), ctypes.c_void_p).value or 0
        self.functions = [begin + SLOT * place for place in range(1, 1 + len(constants))]


def jump(number: int, address: int) -> bytes:
    """Instructions that jump to an address."""
    if number == X86_64:
        return b"\x48\xb8" + struct.pack("<Q", address) + b"\xff\xe0"  # mov rax, address; jmp rax
    return struct.pack("<IIQ", 0x58000050, 0xD61F0200, address)  # ldr x16, 8 bytes on; br x16


def constant(number: int, value: int) -> bytes:
    """Instructions that return a number."""
    if number == X86_64:
        return b"\x48\xb8" + struct.pack("<Q", value) + b"\xc3"  # mov rax, value; ret
    return struct.pack("<IIQ", 0x58000040, 0xD65F03C0, value)  # ldr x0, 8 bytes on; ret


def shared_library(number: int, address: int, constants: Sequence[int] = ()) -> bytes:
    """An ELF file: what is executed in its first part, what the loader changes in its second."""
    functions = [jump(number, address), *(constant(number, value) for value in constants)]
    code = b"".join(function.ljust(SLOT, b"\0") for function in functions)
    names = b"\0" + SYMBOL + b"\0"
    header_size, part_size, parts = 64, 56, 4
    at_code = _aligned(header_size + parts * part_size)
    symbol = struct.pack("<IBBHQQ", 1, 0x12, 0, 1, at_code, len(code))  # a global function
    symbols = bytes(24) + symbol
    at_symbols = _aligned(at_code + len(code))
    at_names = _aligned(at_symbols + len(symbols))
    at_hashes = _aligned(at_names + len(names))
    hashes = struct.pack("<5I", 1, 2, 1, 0, 0)  # one bucket with the one symbol
    end = at_hashes + len(hashes)
    entries = ((4, at_hashes), (5, at_names), (6, at_symbols), (10, len(names)), (11, 24), (0, 0))
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    size = PAGE + len(dynamic)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    sizes = (header_size, part_size, parts, 64, 0, 0)
    header += struct.pack("<HHIQQQIHHHHHH", 3, number, 1, 0, header_size, 0, 0, *sizes)
    header += _part(1, READ | EXECUTE, 0, end, PAGE)
    header += _part(1, READ | WRITE, PAGE, len(dynamic), PAGE)
    header += _part(2, READ | WRITE, PAGE, len(dynamic), 8)
    header += _part(0x6474E551, READ | WRITE, 0, 0, 16)  # a stack that is not executed
    content = bytearray(size)
    for at, part in (
        (0, header), (at_code, code), (at_symbols, symbols), (at_names, names),
        (at_hashes, hashes), (PAGE, dynamic),
    ):  # fmt: skip
        content[at : at + len(part)] = part
    return bytes(content)


def _part(kind: int, rights: int, at: int, size: int, alignment: int) -> bytes:
    """How the loader treats a part of the file."""
    return struct.pack("<IIQQQQQQ", kind, rights, at, at, at, size, size, alignment)


def _aligned(place: int) -> int:
    return -(-place // 16) * 16
