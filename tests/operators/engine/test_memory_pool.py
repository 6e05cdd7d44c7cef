"""Arrow's allocator in a process that runs steps."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

from tests.helpers.process import LONG

RUN = """
import pyarrow as pa
from tidestate.operators.engine.tasks import prefer_allocators
prefer_allocators()
print(pa.default_memory_pool().backend_name)
"""
FIRST = """
import tidestate
import pyarrow as pa
print(pa.default_memory_pool().backend_name)
"""
LARGE = """
from pathlib import Path
import numpy as np
from tidestate.operators.engine.tasks import LARGE_BYTES, release_freed

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

# Small blocks come from the heap, which shrinks only up to the last one in use.
freed = [np.ones(1_000, np.uint8) for _ in range(100_000)]
last = np.ones(1_000, np.uint8)
del freed
before = resident()
release_freed(LARGE_BYTES - 1)
between = resident()
release_freed(LARGE_BYTES)
print(before - between < 1 << 20, between - resident() > 50_000_000)
"""
AGAIN = """
from unittest import mock
from tidestate.operators.engine import tasks

trimmed = mock.Mock()
with mock.patch.object(tasks, "_trim", lambda: trimmed), mock.patch.object(tasks.time, "monotonic") as clock:
    for clock.return_value in (5.0, 5.9, 6.1, 6.2, 8.0):
        tasks.release_freed(tasks.LARGE_BYTES)
    clock.return_value = 10.0
    tasks.release_freed(tasks.LARGE_BYTES, 1 << 40)
print(trimmed.call_count)
"""
KEPT = """
import resource
import numpy as np
from tidestate.operators.engine.tasks import prefer_allocators
prefer_allocators()
kept = np.ones(100, np.int64)
for _ in range(3):
    np.ones(400_000, np.int64)  # smaller than what NumPy asks huge pages for
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    np.ones(400_000, np.int64)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 3_000)
"""
GNU = "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {})


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="pyarrow was built without jemalloc")
@pytest.mark.parametrize("begin", ["arrow first", "tidestate first"])
@pytest.mark.parametrize("chosen", [None, *(["mimalloc", "system"] if LONG else ["system"])])
def test_jemalloc_allocates_unless_the_user_has_chosen(begin: str, chosen: str | None) -> None:
    others = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    environment = others | ({"ARROW_DEFAULT_MEMORY_POOL": chosen} if chosen else {})
    assert _printed(RUN if begin == "arrow first" else FIRST, environment) == (chosen or "jemalloc")


@pytest.mark.skipif(not GNU, reason="the heap is that of the GNU C library")
def test_the_next_array_takes_what_the_last_one_has_freed() -> None:
    assert _printed(KEPT, dict(os.environ)) == "True"
    chosen = dict(os.environ) | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    assert _printed(KEPT, chosen) == "False"


def test_freed_memory_goes_back_once_a_second_at_most_and_where_room_is_short() -> None:
    assert _printed(AGAIN, dict(os.environ)) == "3"


@pytest.mark.skipif(sys.platform != "linux", reason="the heap is trimmed with malloc_trim")
def test_what_a_large_step_has_freed_goes_back_to_the_system() -> None:
    assert _printed(LARGE, dict(os.environ)) == "True True"


def _printed(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()
