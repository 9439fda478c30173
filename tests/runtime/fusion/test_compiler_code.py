"""LLVM's code leaves memory, and is there again for whoever runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from onnxtrain.runtime.fusion.compiler_code import (
    LARGE_TRAINING,
    LIBRARY,
    SMAPS,
    code_of,
    release_compiler,
)

from .support import needs_kernel, run

HEAD = "{} 00000000 fe:00 5318901   /env/llvmlite/binding/{}"
SIZES = "Size: 80 kB\nRss: 40 kB\nAnonymous: {} kB\nSwap: 0 kB"


def stanza(place: str, rights: str, name: str, changed: int) -> list[str]:
    return [HEAD.format(f"{place} {rights}", name), *SIZES.format(changed).split("\n")]


PLACE = (0x7F15C6B65000, 0x7F15CBB94000)
CODE = stanza("7f15c6b65000-7f15cbb94000", "r-xp", LIBRARY, 0)
CASES = {
    "its code": (CODE, [PLACE]),
    "code that was changed for this process": (
        stanza("7f15c6b65000-7f15cbb94000", "r-xp", LIBRARY, 4), [],
    ),
    "its constants": (stanza("7f15c6b65000-7f15cbb94000", "r--p", LIBRARY, 0), [PLACE]),
    "constants that were changed": (stanza("7f15c6b65000-7f15cbb94000", "r--p", LIBRARY, 4), []),
    "what is written to": (stanza("7f15c6b65000-7f15cbb94000", "rw-p", LIBRARY, 0), []),
    "what may be written to": (stanza("7f15c6b65000-7f15cbb94000", "rwxp", LIBRARY, 0), []),
    "another library": (stanza("7f15c6b65000-7f15cbb94000", "r-xp", "libc.so.6", 0), []),
    "a name that begins alike": (stanza("00400000-00500000", "r-xp", f"{LIBRARY}.old", 0), []),
    "memory of the process": (["00400000-00500000 r-xp 00000000 00:00 0", "Anonymous: 0 kB"], []),
    "a line that ends early": (CODE[:3], []),
    "several parts": ([*CODE, *stanza("1000-2000", "r-xp", LIBRARY, 0)], [PLACE, (0x1000, 0x2000)]),
    "nothing": ([], []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_only_code_that_is_as_in_the_file_is_given_back(case: str) -> None:
    lines, expected = CASES[case]
    assert list(code_of(LIBRARY, lines)) == expected


def resident() -> int:
    """Kilobytes of LLVM's code that are in memory."""
    lines = Path(SMAPS).read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if LIBRARY in line and " r-xp " in line)
    return int(next(line for line in lines[at:] if line.startswith("Rss:")).split()[1])


@needs_kernel
@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is Linux's to say")
def test_kernels_can_be_compiled_afterwards() -> None:
    x = np.linspace(-1.0, 1.0, 100, dtype=np.float32)
    run([("Neg", "y", ["x"])], {"x": x})
    before = resident()
    release_compiler(LARGE_TRAINING - 1)
    assert resident() >= before
    release_compiler()
    assert resident() < before / 4
    (y,) = run([("Neg", "t", ["x"]), ("Mul", "u", ["t", "x"]), ("Abs", "y", ["u"])], {"x": x})
    np.testing.assert_array_equal(y, x * x)
