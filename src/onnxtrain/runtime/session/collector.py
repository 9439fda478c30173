"""Python's cyclic garbage collector, told to wait while a large file is read."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Do not look for garbage meanwhile; also a decorator.

    Reading a model makes hundreds of thousands of small objects that all stay. Looking through them
    again and again finds nothing and takes a quarter of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
