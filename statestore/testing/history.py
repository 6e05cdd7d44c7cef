"""What was done to a store, so that one that fell back in time can be checked and brought forward."""

from __future__ import annotations

from collections.abc import Sequence

from tidestate.statestore.spec.changes import Applied, ChangeSet
from tidestate.statestore.spec.store import StateStore
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.testing.checks import check_store
from tidestate.statestore.testing.model import StoreModel
from tidestate.statestore.testing.rows import promise


class ModelHistory:
    """Every change set, and the model as it was after each."""

    def __init__(self, specs: Sequence[TableSpec]) -> None:
        self.now = StoreModel(specs)
        self._changes: list[tuple[ChangeSet, Applied]] = []
        self._past = {0: self.now.copy()}

    def apply(self, store: StateStore, changes: ChangeSet, applied: Applied) -> None:
        """Apply to the store and remember."""
        store.apply(changes, applied)
        self.add(changes, applied)

    def add(self, changes: ChangeSet, applied: Applied) -> None:
        """Remember what was applied already."""
        self.now.apply(changes, applied)
        self._changes.append((changes, applied))
        self._past[applied.sequence] = self.now.copy()

    def expire(self, store: StateStore, table: str, bound: int) -> None:
        """Expire outside of a change set."""
        store.expire(table, bound)
        self.now.expire({table: bound})

    def resume(self, store: StateStore, *, durable: bool) -> None:
        """Check that a store opened again is at some change set of the past, then bring it to the present."""
        if durable:
            check_store(store, self.now, "after close() and opening again")
        sequence = store.applied.sequence
        promise(
            sequence in self._past and self._past[sequence].applied == store.applied,
            "a store opened again has applied some change set of the past",
            found=store.applied,
            past=sorted(self._past),
        )
        check_store(store, self._then(store, sequence), f"opened again at change set {sequence}")
        for changes, applied in self._changes:
            if applied.sequence > sequence:
                store.apply(changes, applied)
        for table, bound in self.now.expired.items():
            store.expire(table, bound)
        check_store(store, self.now, f"brought forward from change set {sequence}")

    def _then(self, store: StateStore, sequence: int) -> StoreModel:
        """The model at ``sequence``; a bound may have outlived the change sets, for expiry never goes back."""
        model = self._past[sequence].copy()
        bounds = dict(store.expired)
        for table, bound in bounds.items():
            latest = self.now.expired.get(table)
            promise(
                latest is not None and bound <= latest,
                "a store opened again knows no bound that was never given",
                table=table,
                found=bound,
            )
        model.expire(bounds)
        return model
