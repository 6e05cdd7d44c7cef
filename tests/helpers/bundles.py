"""Roots whose state files are each alone, as earlier versions wrote all of them, and any version what is large."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest import mock

import pyarrow as pa

from tidestate.statestore.files.bundle import Bundle


@contextmanager
def files_alone(below: str = "data/") -> Iterator[None]:
    """Meanwhile no state file of this process whose path begins with ``below`` goes into a bundle."""
    into_bundle = Bundle.put

    def put(self: Bundle, path: str, data: bytes | pa.Buffer) -> None:
        if path.startswith(below):
            self._objects.put(path, data)
        else:
            into_bundle(self, path, data)

    with mock.patch.object(Bundle, "put", put):
        yield


def other_needs(needs: Iterable[str] | None) -> list[str]:
    """What a manifest needs beside bundles, which depend on how many tables a step has changed."""
    return [name for name in needs or () if name != "bundles/1"]
