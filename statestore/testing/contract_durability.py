"""The contract, part five: snapshots, and a store that is closed, opened again, copied or killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings

from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.testing.checks import check_store
from tidestate.statestore.testing.child import killed_child
from tidestate.statestore.testing.contract_opening import Opening
from tidestate.statestore.testing.generated import applied, seeded_changes
from tidestate.statestore.testing.history import ModelHistory
from tidestate.statestore.testing.rows import promise, table
from tidestate.statestore.testing.tables import MAIN, NAMED, SPECS

SEED = 11


class Keeping(Opening):
    """What outlives a store, and what does not."""

    def test_a_snapshot_loads_into_another_store(self, tmp_path: Path) -> None:
        """Rows, `applied` and bounds are the same there; both go on, each for itself."""
        history = ModelHistory(SPECS)
        with self.opened(SPECS, tmp_path / "store") as store, self.opened(SPECS, tmp_path / "other") as copy:
            for sequence in range(1, 21):
                history.apply(store, seeded_changes(SEED, sequence), applied(sequence))
            history.expire(store, "main", 7)
            copy.load(store.snapshot(), store.applied, store.expired)
            check_store(copy, history.now, "after load() of a snapshot")
            later = seeded_changes(SEED, 21)
            copy.apply(later, applied(21))
            check_store(store, history.now, "after a store loaded from its snapshot went on")
            history.add(later, applied(21))
            check_store(copy, history.now, "after change sets on top of a loaded snapshot")

    def test_a_loaded_store_opens_again(self, tmp_path: Path) -> None:
        """A volatile one empty, a durable one as it was loaded."""
        history = ModelHistory(SPECS)
        with self.opened(SPECS, tmp_path / "store") as store:
            for sequence in range(1, 11):
                history.apply(store, seeded_changes(SEED, sequence), applied(sequence))
            with self.opened(SPECS, tmp_path / "other") as copy:
                copy.load(store.snapshot(), store.applied, store.expired)
        with self.opened(SPECS, tmp_path / "other") as reopening:
            history.resume(reopening, durable=self.durable)

    def test_load_takes_few_tables_in_many_batches(self, tmp_path: Path) -> None:
        """Also none at all, and empty batches; rows that have expired stay away."""
        rows = table(MAIN, [(t, "a", 1, t, None, None, "n") for t in range(10)])
        batches = [rows.slice(0, 3), rows.slice(3, 0), rows.slice(3, 7)]
        history = ModelHistory([MAIN, NAMED])
        history.add({"main": TableChanges(put=rows, expire=4)}, applied(6))
        with self.opened([MAIN, NAMED], tmp_path / "store") as store:
            store.load({"main": iter(batches)}, applied(6), {"main": 4})
            check_store(store, history.now, "after load() of one table in batches")
        with self.opened([MAIN, NAMED], tmp_path / "empty") as store:
            store.load({}, applied(6), {})
            promise(store.applied == applied(6), "load() of no rows remembers `applied`", found=store.applied)

    def test_load_wants_an_empty_store(self, tmp_path: Path) -> None:
        """After a change set or a load it is refused, and nothing is loaded."""
        history = ModelHistory([MAIN, NAMED])
        row = table(NAMED, [("a", True, 1)])
        rows: dict[str, list[pa.Table]] = {"main": [], "named": [table(NAMED, [("b", True, 1)])]}
        with self.opened([MAIN, NAMED], tmp_path / "store") as store:
            history.apply(store, {"named": TableChanges(put=row)}, applied(1))
            with pytest.raises(UsageError):
                store.load(rows, applied(5), {"main": 3})
            check_store(store, history.now, "after load() into a store with rows was refused")
        with self.opened([MAIN, NAMED], tmp_path / "loaded") as store:
            store.load({"named": [row]}, applied(1))
            with pytest.raises(UsageError):
                store.load(rows, applied(5), {"main": 3})
            check_store(store, history.now, "after a second load() was refused")

    @pytest.mark.parametrize("keys", [["b", "a"], ["a", "a"]], ids=["falling", "twice"])
    def test_load_wants_keys_in_order(self, tmp_path: Path, keys: list[str]) -> None:
        """A snapshot out of order, also from batch to batch, is refused, and nothing is loaded."""
        rows = table(NAMED, [(key, True, 1) for key in keys])
        good = table(MAIN, [(1, "a", 1, 1, None, None, "n")])
        with self.opened([MAIN, NAMED], tmp_path / "store") as store:
            for batches in ([rows], [rows.slice(0, 1), rows.slice(1)]):
                with pytest.raises(UsageError):
                    store.load({"main": [good], "named": batches}, applied(5))
                promise(store.applied.sequence == 0, "a refused load loads nothing", found=store.applied)
                promise(not list(store["main"].scan()), "a refused load loads nothing")

    def test_closing_twice(self, tmp_path: Path) -> None:
        """Fine, with rows and without."""
        for sequence in (0, 1):
            store = self.open(SPECS, tmp_path / str(sequence))
            if sequence:
                store.apply(seeded_changes(SEED, 1), applied(1))
            store.close()
            store.close()

    def test_opened_again_and_again(self, tmp_path: Path) -> None:
        """Each time at some change set of the past, from where it goes on."""
        history = ModelHistory(SPECS)
        for start in (1, 8, 15):
            with self.opened(SPECS, tmp_path / "store") as store:
                history.resume(store, durable=self.durable)
                for sequence in range(start, start + 7):
                    history.apply(store, seeded_changes(SEED, sequence), applied(sequence))
                history.expire(store, "sessions", start // 2 - 6)

    def test_an_older_copy_is_brought_forward(self, tmp_path: Path) -> None:
        """A folder from a backup is behind; the rest is applied again."""
        history, folder = ModelHistory(SPECS), tmp_path / "store"
        for start in (1, 8):
            with self.opened(SPECS, folder) as store:
                history.resume(store, durable=self.durable)
                for sequence in range(start, start + 7):
                    history.apply(store, seeded_changes(SEED, sequence), applied(sequence))
            if start == 1 and folder.is_dir():
                shutil.copytree(folder, tmp_path / "copy")
        with self.opened(SPECS, tmp_path / "copy") as store:
            promise(store.applied.sequence <= 7, "a copy knows nothing of what came after", found=store.applied)
            history.resume(store, durable=False)

    def test_killed_at_any_moment(self, tmp_path: Path) -> None:
        """The store is then at exactly one of the change sets, and goes on from there."""
        for seed in range(max(1, settings().max_examples // 20)):
            folder, history = tmp_path / str(seed), ModelHistory(SPECS)
            progress = killed_child(type(self), folder, seed)
            for sequence in range(1, progress + 2):  # one more: it may be killed before it reports
                history.add(seeded_changes(seed, sequence), applied(sequence))
            with self.opened(SPECS, folder) as store:
                if self.durable_apply:
                    is_complete = store.applied.sequence >= progress
                    promise(
                        is_complete,
                        "being killed loses nothing that was applied",
                        found=store.applied,
                        reported=progress,
                    )
                history.resume(store, durable=False)
