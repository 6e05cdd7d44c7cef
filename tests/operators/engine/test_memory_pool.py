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
from tidestate.operators.engine.tasks import prefer_jemalloc
prefer_jemalloc()
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


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="pyarrow was built without jemalloc")
@pytest.mark.parametrize("begin", ["arrow first", "tidestate first"])
@pytest.mark.parametrize("chosen", [None, *(["mimalloc", "system"] if LONG else ["system"])])
def test_jemalloc_allocates_unless_the_user_has_chosen(begin: str, chosen: str | None) -> None:
    others = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    environment = others | ({"ARROW_DEFAULT_MEMORY_POOL": chosen} if chosen else {})
    assert _printed(RUN if begin == "arrow first" else FIRST, environment) == (chosen or "jemalloc")


@pytest.mark.skipif(sys.platform != "linux", reason="the heap is trimmed with malloc_trim")
def test_what_a_large_step_has_freed_goes_back_to_the_system() -> None:
    assert _printed(LARGE, dict(os.environ)) == "True True"


def _printed(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()
