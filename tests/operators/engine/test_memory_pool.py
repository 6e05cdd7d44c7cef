"""Arrow's allocator in a process that runs steps."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

RUN = """
import pyarrow as pa
from tidestate.operators.engine.memory_pool import prefer_jemalloc
prefer_jemalloc()
print(pa.default_memory_pool().backend_name)
"""


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="pyarrow was built without jemalloc")
@pytest.mark.parametrize(("chosen", "used"), [(None, "jemalloc"), ("mimalloc", "mimalloc"), ("system", "system")])
def test_jemalloc_allocates_unless_the_user_has_chosen(chosen: str | None, used: str) -> None:
    others = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    environment = others | ({"ARROW_DEFAULT_MEMORY_POOL": chosen} if chosen else {})
    done = subprocess.run([sys.executable, "-c", RUN], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip() == used
