"""Memory of this process, for tests: gone with it, and seen by no other."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from tidestate.statestore.storage.dialects.dialect import Dialect

_creates = threading.Lock()


def _create(fs: Any, full: str, data: bytes, limits: Mapping[str, Any]) -> None:
    with _creates:  # it looks before it writes, and others may write in between
        fs.pipe_file(full, data, mode="create")


MEMORY = Dialect(
    scheme="memory",
    lends=True,
    shared=False,
    has_folders=False,
    atomic_create="lock",
    create=_create,
    spelled=lambda rest: rest.strip("/"),
)
