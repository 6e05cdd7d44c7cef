"""What every part of the contract needs: a way to open the store under test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from tidestate.statestore.spec.changes import ChangeSet
from tidestate.statestore.spec.store import StateStore
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.testing.generated import applied


class Opening(ABC):
    """Opens the store under test, and says what it promises beyond the protocol."""

    durable: ClassVar[bool] = False
    """Whether nothing is lost by ``close()`` and opening the folder again. A volatile store comes back empty."""

    durable_apply: ClassVar[bool] = False
    """Whether what ``apply`` has returned for outlives the process being killed."""

    @abstractmethod
    def open(self, specs: Sequence[TableSpec], folder: Path) -> StateStore:
        """The store under test, its files (if it has any) in ``folder``, which may not exist yet."""

    @contextmanager
    def opened(self, specs: Sequence[TableSpec], folder: Path, *steps: ChangeSet) -> Iterator[StateStore]:
        """A store after these change sets, closed at the end."""
        store = self.open(specs, folder)
        try:
            for step in steps:
                store.apply(step, applied(store.applied.sequence + 1))
            yield store
        finally:
            store.close()
