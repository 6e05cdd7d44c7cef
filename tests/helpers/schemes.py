"""Storage of schemes that nobody has tried, honest and not."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from fsspec.implementations.memory import MemoryFileSystem


class Shelf(MemoryFileSystem):  # type: ignore[misc]
    """A storage nobody has tried. It has been asked for a create only when it was reported so."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.store, cls.pseudo_dirs = {}, [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + str(path).split("://", 1)[-1].strip("/")


class Honest(Shelf):
    protocol = "honest"
    lock: ClassVar[threading.Lock] = threading.Lock()
    creates: ClassVar[list[str]] = []

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if mode == "create":
            self.creates.append(path)
        with self.lock:
            super().pipe_file(path, value, mode=mode)
