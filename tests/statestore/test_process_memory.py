"""What a process that runs steps allocates with, and what it gives back."""

from __future__ import annotations

import os
import subprocess
import sys
from ctypes import CDLL

import pyarrow as pa
import pytest

from tests.helpers.process import LONG
from tidestate.statestore.process_memory import CHOSEN_BY, OUR_CHOICE

RUN = """
import FIRST
import pyarrow as pa
from tidestate.statestore.process_memory import prefer_allocators
USER
prefer_allocators(apart=APART)
prefer_allocators()
print(pa.default_memory_pool().backend_name)
"""
LARGE = """
from pathlib import Path
import numpy as np
from tidestate.statestore.process_memory import LARGE_STEP_BYTES, release_freed

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

# Small blocks come from the heap, which shrinks only up to the last one in use.
freed = [np.ones(1_000, np.uint8) for _ in range(100_000)]
last = np.ones(1_000, np.uint8)
del freed
before = resident()
release_freed(LARGE_STEP_BYTES - 1)
between = resident()
release_freed(LARGE_STEP_BYTES)
print(before - between < 1 << 20, between - resident() > 50_000_000)
"""
BEGIN = """
from unittest import mock
from tidestate.statestore import process_memory as memory

trimmed, options = mock.Mock(), mock.Mock()
patches = {"_trim": lambda: trimmed, "_mallopt": lambda: options, "process_bytes": mock.Mock(return_value=1 << 50)}
clock = mock.Mock()
for name, value in patches.items():
    mock.patch.object(memory, name, value).start()
mock.patch.object(memory.time, "monotonic", clock).start()
"""
AGAIN = (
    BEGIN
    + """
for clock.return_value in (5.0, 5.9, 6.1, 6.2, 8.0):
    memory.release_freed(memory.LARGE_STEP_BYTES)
clock.return_value = 10.0
memory.release_freed(memory.LARGE_STEP_BYTES, 1 << 60)
print(trimmed.call_count)
"""
)
CROWDED = (
    BEGIN
    + """
MB = 1 << 20
for clock.return_value, *sizes in TIMES:
    # The room is 300 MB, so a process is crowded from 400 MB on: before a release, and after it.
    memory.process_bytes.side_effect = [size * MB for size in sizes]
    memory.release_freed(memory.LARGE_STEP_BYTES, 300 * MB)
print(trimmed.call_count, [call.args[1] // MB for call in options.call_args_list])
"""
)
KEPT = """
import resource
import numpy as np
from tidestate.statestore.process_memory import prefer_allocators
prefer_allocators()
kept = np.ones(100, np.int64)
for _ in range(3):
    np.ones(400_000, np.int64)  # smaller than what NumPy asks huge pages for
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    np.ones(400_000, np.int64)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 3_000)
"""
GNU = sys.platform == "linux" and hasattr(CDLL(None), "gnu_get_libc_version")


@pytest.mark.parametrize("first", ["pyarrow", "tidestate"])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("chosen", [None, *(["mimalloc", "system"] if LONG else ["system"])])
@pytest.mark.skipif(not GNU, reason="the heap is that of the GNU C library")
def test_arrow_allocates_from_the_heap_or_apart_unless_the_user_has_chosen(
    first: str, apart: bool, chosen: str | None
) -> None:
    if chosen is not None and chosen not in pa.supported_memory_backends():
        pytest.skip(f"pyarrow was built without {chosen}")
    environment = _without_choice() | ({"ARROW_DEFAULT_MEMORY_POOL": chosen} if chosen else {})
    script = RUN.replace("FIRST", first).replace("APART", str(apart)).replace("USER", "")
    assert _printed(script, environment) == (chosen or ("jemalloc" if apart else "system"))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.skipif(not GNU, reason="the heap is that of the GNU C library")
def test_a_pool_that_was_set_and_what_a_child_inherits(apart: bool) -> None:
    """A child has the choice of the package in its environment, and takes it for no user's."""
    script = RUN.replace("FIRST", "tidestate").replace("APART", str(apart))
    own = "pa.set_memory_pool(pa.mimalloc_memory_pool())"
    assert _printed(script.replace("USER", own), _without_choice()) == "mimalloc"
    inherited = _without_choice() | dict.fromkeys((CHOSEN_BY, OUR_CHOICE), "jemalloc")
    assert _printed(script.replace("USER", ""), inherited) == ("jemalloc" if apart else "system")


@pytest.mark.skipif(not GNU, reason="the heap is that of the GNU C library")
def test_the_next_array_takes_what_the_last_one_has_freed() -> None:
    assert _printed(KEPT, dict(os.environ)) == "True"
    chosen = dict(os.environ) | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    assert _printed(KEPT, chosen) == "False"


def test_freed_memory_goes_back_once_a_second_at_most_and_where_room_is_short() -> None:
    assert _printed(AGAIN, dict(os.environ)) == "3"


@pytest.mark.parametrize(
    ("times", "printed"),
    [
        # Releases that help: the next one is due after a quarter of a second, and large arrays are mapped.
        ([(1.0, 500, 350), (1.2, 500), (1.3, 500, 350)], "2 [2, 2]"),
        # In vain: the pause doubles, and arrays come from the heap.
        ([(1.0, 500, 450), (1.4, 500), (1.6, 500, 450), (2.5, 500), (2.7, 500, 450)], "3 [32, 32, 32]"),
        # One that helps ends that.
        ([(1.0, 500, 450), (1.6, 500, 350), (1.9, 500, 350)], "3 [32, 2, 2]"),
        # Not crowded: once a second; and with room again nothing goes back, and the heap is as it was.
        ([(1.0, 500, 350), (1.3, 350), (2.1, 350, 310), (3.2, 290)], "2 [2, 32, 32]"),
    ],
)
def test_a_crowded_process_releases_more_often_unless_that_is_in_vain(
    times: list[tuple[float, ...]], printed: str
) -> None:
    others = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    assert _printed(CROWDED.replace("TIMES", repr(times)), others) == printed


@pytest.mark.skipif(sys.platform != "linux", reason="the heap is trimmed with malloc_trim")
def test_what_a_large_step_has_freed_goes_back_to_the_system() -> None:
    assert _printed(LARGE, dict(os.environ)) == "True True"


def _without_choice() -> dict[str, str]:
    """The environment without the allocator that this process has chosen."""
    return {name: value for name, value in os.environ.items() if name not in (CHOSEN_BY, OUR_CHOICE)}


def _printed(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()
