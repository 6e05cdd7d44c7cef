"""What a process that runs steps allocates with, and when it gives back to the system what they have freed.

With the GNU C library Arrow and NumPy share its heap. What one array of a step leaves is taken by the next one, and
what a step leaves by the next step: memory that had gone back would cost a page fault for each 4 KiB, which was half
of the time of large steps.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from ctypes import CDLL
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

CHOSEN_BY = "ARROW_DEFAULT_MEMORY_POOL"
OUR_CHOICE = "TIDESTATE_MEMORY_POOL"
"""Has the value of the first, where the package and no user has chosen it."""
HEAP_CHOSEN_BY = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
FREE_END_BYTES = 1 << 30
"""The free end of the heap, from which the library gives it back by itself, in the middle of a step."""
HEAP_BYTES, CROWDED_HEAP_BYTES = 32 << 20, 2 << 20
"""Larger arrays are mapped one by one, and go back when they are freed: as a rule, and where memory is short."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
LARGE_STEP_BYTES = 16 << 20
"""Rows that a step took and emitted, for the release of what it freed to pay."""
ROOM_BYTES = 150 << 20
"""What a process may have besides its budget before a step gives memory back; half of what it may have at most."""
RELEASE_S = 1.0
"""Within this time of a release the next large step takes what the last one has freed."""
CROWDED_RELEASE_S, LONGEST_RELEASE_S = 0.25, 32.0
"""The same where memory is short: from the first to the second, twice as long after each release in vain."""


@dataclass
class _Releases:
    """Whether the allocators of this process are chosen, and what its releases have come to."""

    has_chosen: bool = False
    last_s: float | None = None
    crowded_pause_s: float = CROWDED_RELEASE_S


_releases = _Releases()


def prefer_allocators(*, apart: bool = False) -> None:
    """Let Arrow allocate from the heap of the GNU C library, and the heap keep what is freed; ``apart`` from it, and
    without that library, with jemalloc. Only the first call of a process does anything. The user's choice of either,
    by environment variables or `pyarrow.set_memory_pool`, stays.

    Arrow's default mimalloc keeps much of what was freed, for good; jemalloc gives it back within a second. The heap
    is for steps in the first thread of a process: the heaps of other threads, as Spark's driver has them, give memory
    back in each step and take it again. Functions of Arrow that take no pool use the one that the variable named when
    Arrow was loaded.
    """
    if _releases.has_chosen:
        return
    _releases.has_chosen = True
    is_free = os.environ.get(CHOSEN_BY) == os.environ.get(OUR_CHOICE)
    if is_free and pa.default_memory_pool().backend_name == os.environ.get(OUR_CHOICE, "mimalloc"):
        if not apart and _mallopt() is not None:
            pa.set_memory_pool(pa.system_memory_pool())
        elif "jemalloc" in pa.supported_memory_backends():
            pa.set_memory_pool(pa.jemalloc_memory_pool())
    _set_heap(_TRIM_THRESHOLD, FREE_END_BYTES)
    _set_heap(_MMAP_THRESHOLD, HEAP_BYTES)


def release_freed(moved_bytes: int, room_bytes: int = 0) -> None:
    """Give the operating system what a large step has freed: allocators keep it for the next one.

    Does nothing after a step that moved less than `LARGE_STEP_BYTES`, nor while the process has less than
    ``room_bytes`` of memory, nor within `RELEASE_S` of the last release. With a third more than its room a process is
    crowded: it releases more often, and maps large arrays one by one. Unless releases are in vain, as it is crowded
    after them too: then the memory is the user's, and the steps only pay for what they take again.
    """
    if moved_bytes < LARGE_STEP_BYTES:
        return
    if (process_size := process_bytes()) < room_bytes:
        _set_heap(_MMAP_THRESHOLD, HEAP_BYTES)
        return
    most_bytes, now_s = room_bytes * 4 // 3, time.monotonic()
    is_crowded = 0 < most_bytes < process_size
    pause_s = _releases.crowded_pause_s if is_crowded else RELEASE_S
    if _releases.last_s is not None and now_s - _releases.last_s < pause_s:
        return
    _releases.last_s = now_s
    pa.default_memory_pool().release_unused()
    if (trim := _trim()) is not None:
        trim(0)
    is_in_vain = is_crowded and process_bytes() > most_bytes
    _releases.crowded_pause_s = min(2 * pause_s, LONGEST_RELEASE_S) if is_in_vain else CROWDED_RELEASE_S
    _set_heap(_MMAP_THRESHOLD, CROWDED_HEAP_BYTES if is_crowded and not is_in_vain else HEAP_BYTES)


def process_bytes() -> int:
    """The memory that this process has; on systems that do not say, more than any room."""
    try:
        with open("/proc/self/statm", "rb") as figures:
            return int(figures.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return sys.maxsize


def _set_heap(option: int, value: int) -> None:
    """Set an option of the heap, unless the user has chosen any."""
    set_option = _mallopt()
    if set_option is not None and not any(name in os.environ for name in HEAP_CHOSEN_BY):
        set_option(option, value)


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    """The function that sets options of the heap, where the C library is GNU's."""
    return getattr(CDLL(None), "mallopt", None) if sys.platform == "linux" else None


@cache
def _trim() -> Callable[[int], int] | None:
    """``malloc_trim`` of the GNU C library, where that is the one."""
    return getattr(CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
