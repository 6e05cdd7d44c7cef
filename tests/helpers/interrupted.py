"""Objects of one process, in the middle of whose calls another one acts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidestate.statestore.storage.objects import Objects


class Interrupted(Objects):
    """Objects that do something else after so many calls."""

    def __init__(self, root: Path, moment: int, act: Callable[[], None]) -> None:
        super().__init__(root)
        self._left, self._act = moment, act

    @property
    def acted(self) -> bool:
        """Whether there were as many calls."""
        return self._left <= 0

    def _turn(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._act()

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        self._turn()

    def read(self, path: str, limit: int | None = None) -> bytes:
        self._turn()
        return super().read(path, limit)

    def size(self, path: str) -> int:
        self._turn()
        return super().size(path)

    def names(self, folder: str) -> list[str]:
        found = super().names(folder)
        self._turn()
        return found

    def delete(self, path: str) -> None:
        super().delete(path)
        self._turn()
