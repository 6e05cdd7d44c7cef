"""The contract, part four: what has expired is never seen again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tidestate.statestore.errors import NotFoundError, UsageError
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import StateStore
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.testing.checks import check_lookup, check_ranges, check_scan, check_store
from tidestate.statestore.testing.contract_opening import Opening
from tidestate.statestore.testing.generated import Question, RangeRequests, applied
from tidestate.statestore.testing.history import ModelHistory
from tidestate.statestore.testing.rows import KeyRow, table
from tidestate.statestore.testing.tables import LATEST, NAMED, SPECS

POSITIONS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "date32[day]", "timestamp[s]",
             "timestamp[ms]", "timestamp[us]", "timestamp[us, tz=UTC]", "timestamp[ns]")  # fmt: skip
"""Types an expiry column may have."""


def _expiring(kind: str, role: str) -> TableSpec:
    time, name = Column("t", kind), Column("k", "string")
    value = Column("v", "int64")
    if role == "value":
        return TableSpec(role, (name,), (time, value), "t")
    return TableSpec(role, (time, name) if role == "leading" else (name, time), (value,), "t")


def _row(spec: TableSpec, time: int, name: str) -> KeyRow:
    moment: Any = date(1970, 1, 1) + timedelta(time) if "date" in str(spec.schema.field("t").type) else time
    values = {"t": moment, "k": name, "v": time}
    return tuple(values[column] for column in spec.schema.names)


def _check(store: StateStore, history: ModelHistory, rows: Mapping[str, Sequence[KeyRow]]) -> None:
    """Every way of reading, for rows live, expired and never there."""
    for name, model in history.now.tables.items():
        keys = [row[: model.width] for row in rows[name]]
        check_lookup(store, model, keys)
        check_scan(store, model, Question(None, None, (), False))
        for key in keys[1:3]:
            check_scan(store, model, Question(key, None, (), True))
            check_scan(store, model, Question(None, None, key[:1], False))
        for width in range(model.width):
            check_ranges(store, model, RangeRequests(keys, width, None, None))
    check_store(store, history.now, "after rows expired")


class Forgetting(Opening):
    """Expiry by a leading key column, another key column, or a value column."""

    @pytest.mark.parametrize("kind", POSITIONS)
    def test_expired_rows_are_never_seen(self, tmp_path: Path, kind: str) -> None:
        """Nor do they come back: the bound stays when rows, or a lower bound, arrive later."""
        specs = [_expiring(kind, role) for role in ("leading", "second", "value")]
        first, late = [(1, "a"), (2, "a2"), (2, "b"), (3, "c"), (100, "d")], [(0, "e"), (2, "b"), (4, "f")]
        rows = {spec.name: [_row(spec, *pair) for pair in first] for spec in specs}
        late_rows = {spec.name: [_row(spec, *pair) for pair in late] for spec in specs}
        all_rows, history = {spec.name: rows[spec.name] + late_rows[spec.name] for spec in specs}, ModelHistory(specs)
        steps = [
            {spec.name: TableChanges(put=table(spec, rows[spec.name]), expire=0) for spec in specs},
            {spec.name: TableChanges(expire=2) for spec in specs},
            {spec.name: TableChanges(put=table(spec, late_rows[spec.name]), expire=1) for spec in specs},
        ]
        with self.opened(specs, tmp_path / "store") as store:
            for index, step in enumerate(steps):
                history.apply(store, step, applied(index + 1))
                _check(store, history, all_rows)
            for bound in (3, 1, 127):
                for spec in specs:
                    history.expire(store, spec.name, bound)
                check_store(store, history.now, f"after expire() with {bound}")

    def test_bounds_before_1970(self, tmp_path: Path) -> None:
        """A bound may be negative; the first one given counts, however low."""
        spec = _expiring("timestamp[us, tz=UTC]", "leading")
        history = ModelHistory([spec])
        rows = [_row(spec, time, "a") for time in (-(2**60), -6, -5, -4, 0)]
        with self.opened([spec], tmp_path / "store") as store:
            history.apply(store, {"leading": TableChanges(put=table(spec, rows), expire=-(2**61))}, applied(1))
            _check(store, history, {"leading": rows})
            history.apply(store, {"leading": TableChanges(expire=-5)}, applied(2))
            _check(store, history, {"leading": rows})

    def test_merges_into_what_has_expired(self, tmp_path: Path) -> None:
        """They are forgotten too, and what expired is no part of a merge that lives."""
        spec = TableSpec("sums", (Column("t", "int64"),), (Column("v", "int64", combiner="sum"),), "t")
        history, rows = ModelHistory([spec]), [(1, 1), (2, 2), (3, 3)]
        with self.opened([spec], tmp_path / "store") as store:
            history.apply(store, {"sums": TableChanges(merge=table(spec, rows))}, applied(1))
            history.apply(store, {"sums": TableChanges(merge=table(spec, rows), expire=2)}, applied(2))
            history.apply(store, {"sums": TableChanges(merge=table(spec, rows * 2))}, applied(3))
            _check(store, history, {"sums": rows})

    def test_a_value_that_expired_may_be_put_again(self, tmp_path: Path) -> None:
        """With a later value the key lives again; with an earlier one it does not, and nothing older shows."""
        history = ModelHistory([LATEST])
        zero = Decimal(0)

        def put(until: int | None) -> TableChanges:
            return TableChanges(put=table(LATEST, [(True, zero, b"k", until, None, None)]))

        steps = [put(5), TableChanges(expire=5), put(7), put(4), put(6), put(None), TableChanges(expire=9), put(8)]
        with self.opened([LATEST], tmp_path / "store") as store:
            for index, step in enumerate(steps):
                history.apply(store, {"latest": step}, applied(index + 1))
                check_lookup(store, history.now.tables["latest"], [(True, zero, b"k"), (False, zero, b"k")])
                check_store(store, history.now, f"after step {index} of puts around the bound of a value column")

    def test_only_what_can_expire_expires(self, tmp_path: Path) -> None:
        """A table without an expiry column, and one nobody declared, are refused; nothing changes."""
        with self.opened(SPECS, tmp_path / "store") as store:
            with pytest.raises(UsageError):
                store.expire(NAMED.name, 5)
            with pytest.raises(NotFoundError):
                store.expire("nobody", 5)
            check_store(store, ModelHistory(SPECS).now, "after an expiry was refused")
