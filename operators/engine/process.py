"""What a process that runs steps measures and sets: how long the phases of a micro-batch take, and Arrow's memory
pool.

Tasks measure theirs, and their answers bring the times to the driver.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import CDLL
from functools import cache
from typing import TypeVar

import pyarrow as pa

from tidestate.statestore.arrays import total

PHASES = ("read", "transfer", "classify", "group", "step", "fold", "write", "publish", "deliver", "other")
"""In the order of a round. ``read``: files that tasks read themselves; ``transfer``: rows that Spark hands over, with
its reading; ``group``: partials next to the input; ``step``: steps, with the state that they read; ``fold``: files of
state; ``other``: the engine, such as scheduling.
"""

_T = TypeVar("_T")


class Stopwatch:
    """Microseconds by phase. A phase inside another one counts by itself alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0
        self._spent: dict[str, float] = {}

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Time counts for this phase meanwhile."""
        self._count()
        self._open.append(phase)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def awaited(self, phase: str, items: Iterable[_T]) -> Iterator[_T]:
        """``items``; the time until each counts for this phase."""
        waiting = iter(items)
        while True:
            with self.timed(phase):
                item = next(waiting, None)
            if item is None:
                return
            yield item

    def take(self) -> dict[str, int]:
        """The time since the last call, in microseconds."""
        self._count()
        spent, self._spent = self._spent, {}
        return {phase: round(seconds * 1e6) for phase, seconds in spent.items()}

    def _count(self) -> None:
        now = self._clock()
        if self._open:
            self._spent[self._open[-1]] = self._spent.get(self._open[-1], 0.0) + now - self._since
        self._since = now


def round_times(
    driver_us: Mapping[str, int], tasks_us: Sequence[Mapping[str, int]], parallel: int
) -> dict[str, float]:
    """Seconds of a round by phase: those of tasks as if ``parallel`` of them always ran at once, and ``other`` for
    the rest of the time of the ``engine``.
    """
    summed = total([dict(one) for one in tasks_us])
    of_tasks = {phase: us / max(1, parallel) for phase, us in summed.items()}
    rest = max(0.0, driver_us.get("engine", 0) - sum(of_tasks.values()))
    return seconds({**of_tasks, **{phase: us for phase, us in driver_us.items() if phase != "engine"}, "other": rest})


def seconds(spent_us: Mapping[str, float]) -> dict[str, float]:
    """Seconds by phase, in the order of a round."""
    return as_phased({phase: round(us / 1e6, 6) for phase, us in spent_us.items()})


def as_phased(times: Mapping[str, float]) -> dict[str, float]:
    """Times by phase, in the order of a round."""
    return {phase: times[phase] for phase in PHASES if phase in times}


CHOSEN_BY = "ARROW_DEFAULT_MEMORY_POOL"
HEAP_CHOSEN_BY = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
HEAP_BYTES, TOP_BYTES = 32 << 20, 64 << 20
"""The largest thresholds that the GNU C library itself arrives at, see `prefer_heap`."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
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


@cache
def prefer_heap() -> None:
    """Let NumPy's arrays come from the heap from the first batch on.

    The GNU C library maps large arrays one by one, and gives the end of the heap back as soon as it is free: the next
    array then costs a page fault for each 4 KiB. It raises both thresholds with what a process frees, up to these;
    here they are raised at once. What a large step has freed goes back when it has ended, see `release_freed`. The
    user's choice, by an environment variable, stays.
    """
    set_option = _mallopt()
    if set_option is not None and not any(name in os.environ for name in HEAP_CHOSEN_BY):
        set_option(_MMAP_THRESHOLD, HEAP_BYTES)
        set_option(_TRIM_THRESHOLD, TOP_BYTES)


ROOM_BYTES = 150 << 20
"""What a process may have besides its budget before a step gives memory back; half of what it may have at most."""
RELEASE_S = 1.0
"""Within this time of a release the next large step takes what the last one has freed."""
_released_s: list[float] = []
"""When this process has released memory last; empty before that."""


def release_freed(moved_bytes: int, room_bytes: int = 0) -> None:
    """Give the operating system what a large step has freed: allocators keep it for the next one.

    Does nothing after a step that moved less than `LARGE_BYTES`, nor while the process has less than ``room_bytes``
    of memory, nor within `RELEASE_S` of the last release: memory that is taken again at once costs a page fault for
    each 4 KiB.
    """
    now_s = time.monotonic()
    if moved_bytes < LARGE_BYTES or (_released_s and now_s - _released_s[-1] < RELEASE_S):
        return
    if resident_bytes() < room_bytes:
        return
    _released_s[:] = [now_s]
    pa.default_memory_pool().release_unused()
    if (trim := _trim()) is not None:
        trim(0)


def resident_bytes() -> int:
    """The memory that this process has; on systems that do not say, more than any room."""
    try:
        with open("/proc/self/statm", "rb") as figures:
            return int(figures.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return sys.maxsize


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    """The function that sets options of the heap, where the C library is GNU's."""
    return getattr(CDLL(None), "mallopt", None) if sys.platform == "linux" else None


@cache
def _trim() -> Callable[[int], int] | None:
    """``malloc_trim`` of the GNU C library, where that is the one: NumPy allocates with it."""
    return getattr(CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
