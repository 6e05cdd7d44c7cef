"""Arrow's memory pool in a process that runs steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from ctypes import CDLL
from functools import cache

import pyarrow as pa

CHOSEN_BY = "ARROW_DEFAULT_MEMORY_POOL"
LARGE_BYTES = 16 << 20
"""Rows that a step took and emitted, for the release of what it freed to pay."""


@cache
def prefer_jemalloc() -> None:
    """Let Arrow allocate with jemalloc where mimalloc is its default: that keeps much of what was freed.

    Measured with ``python -m tools.bench.memory``: a fifth less resident memory, as fast. The user's choice, by the
    environment variable or `pyarrow.set_memory_pool`, stays. Functions of Arrow that take no pool use the one that
    the variable named when Arrow was loaded: the package sets it, if it is imported before Arrow.
    """
    if CHOSEN_BY in os.environ or pa.default_memory_pool().backend_name != "mimalloc":
        return
    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def release_freed(moved_bytes: int) -> None:
    """Give the operating system what a large step has freed: allocators keep it for the next one.

    Does nothing after a step that moved less than `LARGE_BYTES`.
    """
    if moved_bytes < LARGE_BYTES:
        return
    pa.default_memory_pool().release_unused()
    if (trim := _trim()) is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    """``malloc_trim`` of the GNU C library, where that is the one: NumPy allocates with it."""
    return getattr(CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
