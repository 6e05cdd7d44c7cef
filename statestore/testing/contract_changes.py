"""The contract, part one: what change sets do to rows, and which are refused whole."""

from __future__ import annotations

from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tidestate.statestore.errors import LimitError, UsageError
from tidestate.statestore.spec.changes import Applied, ChangeSet, TableChanges
from tidestate.statestore.spec.limits import COLUMNS, KEY_BYTES, ROW_BYTES, TABLES
from tidestate.statestore.spec.store import StateStore
from tidestate.statestore.spec.tables import Column, Group, TableSpec
from tidestate.statestore.testing.checks import check_lookup, check_ranges, check_scan, check_store
from tidestate.statestore.testing.contract_opening import Opening
from tidestate.statestore.testing.generated import Question, RangeRequests, applied, seeded_changes
from tidestate.statestore.testing.history import ModelHistory
from tidestate.statestore.testing.refusals import MISTYPED, REFUSED, Refusal, too_large
from tidestate.statestore.testing.rows import KeyRow, promise, table
from tidestate.statestore.testing.tables import LATEST, LONGEST, MAIN, NAMED, SPECS

K = (Column("k", "string"),)

CombinerCase = tuple[TableSpec, list[KeyRow]]


def _column(kind: str, combiner: str, *values: Any) -> CombinerCase:
    return TableSpec("one", K, (Column("v", kind, combiner=combiner),)), [("a", value) for value in values]


def _group(combiner: str, by: str, kinds: tuple[str, ...], *values: KeyRow) -> CombinerCase:
    columns = tuple(Column(f"c{index}", kind) for index, kind in enumerate(kinds))
    group = Group(tuple(column.name for column in columns), combiner, by)
    return TableSpec("one", K, columns, None, (group,)), [("a", *value) for value in values]


NAN = float("nan")
COMBINER_CASES: dict[str, CombinerCase] = {
    "replace": _column("string", "replace", "a", None, "b", None, "c"),
    "replace lists": _column("list<item: string>", "replace", ["a"], None, [], ["b", None]),
    "sum": _column("int64", "sum", None, 1, None, -5, 3),
    "sum of unsigned": _column("uint64", "sum", None, 1, 2**63, 3),
    "sum of doubles": _column("double", "sum", None, 0.1, 0.2, -0.3, 1e9),
    "sum of NaN": _column("double", "sum", 1.0, NAN, 2.0, 3.0),
    "sum of decimals": _column("decimal128(10, 2)", "sum", Decimal("1.25"), None, Decimal("-3.50"), Decimal("0.01")),
    "min": _column("double", "min", None, 2.5, -1.0, None, 3.0),
    "min of text": _column("string", "min", None, "b", "a\x00", "a", "é"),
    "min of decimals": _column("decimal128(10, 2)", "min", Decimal("1.25"), None, Decimal("-3.50")),
    "max": _column("int8", "max", None, -3, -1, None, -2),
    "max of text": _column("string", "max", None, "b", "é", "\U0001f600", "a"),
    "max of times": _column("timestamp[ns]", "max", None, -5, 7, 2**62),
    "append": _column("list<item: int64>", "append", None, [1], [], [2, None], None, [1]),
    "append text": _column("large_list<item: string>", "append", ["a"], ["", None], None, ["é"]),
    "arg_max": _group("arg_max", "c0", ("int64", "string"), (None, None), (1, "a"), (3, None), (3, "c"), (2, "d")),
    "arg_min": _group("arg_min", "c1", ("string", "double"), ("a", 2.0), ("b", -1.0), (None, None), ("c", -1.0)),
    "moments": _group(
        "moments", "", ("int64", "double", "double"), (1, 5.0, 0.0), (1, 7.0, 0.0), (3, 1e6, 2.0), (2, -5.0, 0.5)
    ),
    "moments of nothing": _group(
        "moments", "", ("int64", "double", "double"), (None, None, None), (1, 5.0, 0.0), (None, None, None)
    ),
    "registered": _group(LONGEST, "", ("string", "int64"), (None, None), ("ab", 1), ("cd", 2), ("abc", 3)),
}
"""Per combiner a table, and rows of one key to combine."""


OVERFLOWS = [
    ("int64", 2**62),
    ("uint64", 2**63),
    ("decimal128(3, 1)", Decimal("50.0")),
    ("decimal128(38, 0)", Decimal("9e37")),
    ("decimal256(76, 2)", Decimal("9e73")),
]
"""Types that a sum may have, and values two or three of which are too many."""

NAMES = [
    ("k_sum", "k_max", "k"),
    ("a_sum", "b", "a"),
    ("a", "b_max", "b"),
    ("op", "row", "at"),
    ("", "key", "value"),
    ("sequence", "table", "index"),
]
"""Two key columns and one that is summed."""


def _one_by_one(rows: list[KeyRow]) -> list[list[KeyRow]]:
    return [[row] for row in rows]


def _at_once(rows: list[KeyRow]) -> list[list[KeyRow]]:
    return [rows]


def _among_others(rows: list[KeyRow]) -> list[list[KeyRow]]:
    """Each row next to one of another key, and all of them again at the end, under a third."""
    return [[row, ("b", *row[1:])] for row in rows] + [[("c", *row[1:]) for row in rows]]


SPLITS = (_one_by_one, _at_once, _among_others)


MANY = 60
"""Change sets in a row."""


class Applying(Opening):
    """Apply: merge, put, delete, expire; whole or not at all."""

    def test_a_fresh_store_is_empty(self, tmp_path: Path) -> None:
        """Nothing applied, nothing expired, every table there and empty."""
        with self.opened(SPECS, tmp_path / "store") as store:
            check_store(store, ModelHistory(SPECS).now, "before anything is applied")

    def test_parts_apply_in_order(self, tmp_path: Path) -> None:
        """Delete, put, merge, expire: each part sees what the one before it left."""
        history = ModelHistory([NAMED, MAIN])
        named_rows = {name: table(NAMED, [(name, True, 1)]) for name in ("delete", "put", "merge")}
        expiring = table(MAIN, [(5, "a", 1, 1, None, None, None), (6, "a", 1, 1, None, None, None)])
        both_rows = table(NAMED, [("put", True, 10), ("delete", True, 10)])
        merges = table(NAMED, [("put", True, 100), ("merge", True, 100), ("merge", True, 1000)])
        with self.opened([NAMED, MAIN], tmp_path / "store") as store:
            for index, rows in enumerate(named_rows.values()):
                history.apply(store, {"named": TableChanges(put=rows)}, applied(index + 1))
            first = TableChanges(delete=named_rows["delete"].select(["k", "b"]), put=both_rows, merge=merges)
            history.apply(store, {"named": first, "main": TableChanges(put=expiring, expire=5)}, applied(4))
            check_store(store, history.now, "after delete, put, merge and expire in one change set")
            later = TableChanges(delete=both_rows.select(["k", "b"]), merge=merges)
            history.apply(store, {"named": later, "main": TableChanges(merge=expiring)}, applied(5))
            check_store(store, history.now, "after a merge into what was deleted and what had expired")

    @pytest.mark.parametrize("name", COMBINER_CASES)
    def test_rows_of_a_key_combine(self, tmp_path: Path, name: str) -> None:
        """By the combiner of each column and group, however the rows are split into change sets."""
        spec, rows = COMBINER_CASES[name]
        specs = [replace(spec, name=split.__name__) for split in SPLITS]
        history, steps = ModelHistory(specs), [split(rows) for split in SPLITS]
        with self.opened(specs, tmp_path / "store") as store:
            for index, parts in enumerate(zip_longest(*steps, fillvalue=[])):
                merges = zip(specs, parts, strict=True)
                changes = {spec.name: TableChanges(merge=table(spec, part)) for spec, part in merges}
                history.apply(store, changes, applied(index + 1))
                for model in history.now.tables.values():
                    check_lookup(store, model, [("a",), ("b",), ("c",)])
            check_store(store, history.now, f"after merges of one key ({name})")

    @pytest.mark.parametrize(("kind", "value"), OVERFLOWS)
    def test_a_sum_never_wraps(self, tmp_path: Path, kind: str, value: Any) -> None:
        """A sum that leaves its type is a `LimitError`, at once or when it is read, and never a wrong number."""
        spec, rows = _column(kind, "sum", value)
        changes = {"one": TableChanges(merge=table(spec, rows))}
        with self.opened([spec], tmp_path / "store", changes) as store, pytest.raises(LimitError):
            _apply_and_read(store, changes)

    @pytest.mark.parametrize("names", NAMES, ids=" ".join)
    def test_columns_have_any_name(self, tmp_path: Path, names: tuple[str, str, str]) -> None:
        """Names that a store may use for itself, too."""
        first, second, value = names
        spec = TableSpec(
            "one",
            (Column(first, "int64"), Column(second, "string")),
            (Column(value, "int64", combiner="sum"), Column("last", "string")),
        )
        history, rows = ModelHistory([spec]), [(1, "a", 1, "x"), (1, "b", 2, "y"), (2, "a", 3, "z")]
        with self.opened([spec], tmp_path / "store") as store:
            history.apply(store, {"one": TableChanges(merge=table(spec, rows))}, applied(1))
            part = TableChanges(put=table(spec, rows[1:2]), delete=table(spec, rows[2:], keys_only=True))
            history.apply(store, {"one": part}, applied(2))
            history.apply(store, {"one": TableChanges(merge=table(spec, rows))}, applied(3))
            check_lookup(store, history.now.tables["one"], [row[:2] for row in rows])
            check_ranges(store, history.now.tables["one"], RangeRequests([(1, ""), (2, "")], 1, None, None))
            check_store(store, history.now, f"with columns named {names}")

    def test_many_change_sets(self, tmp_path: Path) -> None:
        """Rows that were merged long ago combine with new ones."""
        history = ModelHistory(SPECS)
        with self.opened(SPECS, tmp_path / "store") as store:
            for sequence in range(1, MANY + 1):
                history.apply(store, seeded_changes(7, sequence), applied(sequence))
                if sequence % 6 == 0:
                    for model in history.now.tables.values():
                        check_scan(store, model, Question((), None, (), True))
            check_store(store, history.now, "after many change sets")

    def test_sequences_grow(self, tmp_path: Path) -> None:
        """Gaps are fine; the same sequence or an older one is not. An empty change set counts."""
        with self.opened([NAMED], tmp_path / "store") as store:
            store.apply({}, Applied(5, "five"))
            store.apply({"named": TableChanges()}, Applied(9, "nine"))
            for wrong in (Applied(9, "nine"), Applied(9, "other"), Applied(8, "eight"), Applied(0, "")):
                with pytest.raises(UsageError):
                    store.apply({"named": TableChanges(put=table(NAMED, [("a", True, 1)]))}, wrong)
            model = ModelHistory([NAMED]).now
            model.apply({}, Applied(9, "nine"))
            check_store(store, model, "after refused sequences")

    @pytest.mark.parametrize("bad", REFUSED, ids=lambda bad: bad.why)
    def test_refused_whole(self, tmp_path: Path, bad: Refusal) -> None:
        """A change set that breaks a rule leaves every table as it was."""
        self.refused(tmp_path, bad)

    @pytest.mark.parametrize("bad", MISTYPED, ids=lambda bad: bad.why)
    def test_rows_have_their_tables_columns(self, tmp_path: Path, bad: Refusal) -> None:
        """Missing columns, and types that cannot be the table's, are refused whole."""
        self.refused(tmp_path, bad)

    def test_limits_are_kept(self, tmp_path: Path) -> None:
        """One past a limit is refused whole."""
        for bad in too_large():
            self.refused(tmp_path, bad)

    def refused(self, folder: Path, bad: Refusal) -> None:
        """Raise unless the change set is refused and nothing of it applied."""
        history = ModelHistory(SPECS)
        with self.opened(SPECS, folder / bad.why) as store:
            for sequence in (1, 2, 3):
                history.apply(store, seeded_changes(3, sequence), applied(sequence))
            refuse(store, bad, applied(4))
            check_store(store, history.now, f"after {bad.why} was refused")

    def test_the_limits_themselves_are_allowed(self, tmp_path: Path) -> None:
        """Keys, rows, tables and columns exactly as large as documented."""
        history = ModelHistory([MAIN, LATEST])
        longest = table(MAIN, [(1, "k" * KEY_BYTES, 1, 1, None, None, "n" * ROW_BYTES)])
        binary = table(LATEST, [(True, Decimal(0), b"k" * KEY_BYTES, 1, None, None)])
        with self.opened([MAIN, LATEST], tmp_path / "rows") as store:
            changes = {"main": TableChanges(merge=longest), "latest": TableChanges(put=binary)}
            history.apply(store, changes, applied(1))
            check_store(store, history.now, "after rows as large as the limit")
        with self.opened(_tables(TABLES), tmp_path / "tables") as store:
            promise(len(store.snapshot()) == TABLES, "a store has as many tables as the limit says")
        with self.opened([_columns(COLUMNS)], tmp_path / "columns") as store:
            wide = table(_columns(COLUMNS), [tuple(range(COLUMNS))])
            store.apply({"wide": TableChanges(put=wide)}, applied(1))
            promise(next(store.snapshot()["wide"]).equals(wide), "a table has as many columns as the limit says")

    def test_too_many_tables_or_columns_do_not_open(self, tmp_path: Path) -> None:
        """One past the limit, or one name twice."""
        for index, (specs, error) in enumerate(
            [(_tables(TABLES + 1), LimitError), ([_columns(COLUMNS + 1)], LimitError), ([NAMED, NAMED], UsageError)]
        ):
            with pytest.raises(error), self.opened(specs, tmp_path / str(index)):
                pass  # pragma: no cover


def refuse(store: StateStore, bad: Refusal, step: Applied) -> None:
    """Raise unless the store refuses the change set with the right kind of error."""
    before = store.applied
    try:
        store.apply(bad.changes, step)
    except bad.error:
        promise(store.applied == before, f"`applied` stays when {bad.why} is refused", found=store.applied)
        return
    except Exception as error:
        promise(False, f"{bad.why} raises {bad.error.__name__}", found=f"{type(error).__name__}: {error}")
    promise(False, f"{bad.why} is refused with {bad.error.__name__}")


def _apply_and_read(store: StateStore, changes: ChangeSet) -> None:
    for sequence in (2, 3):
        store.apply(changes, applied(sequence))
        list(store["one"].scan())


def _tables(count: int) -> list[TableSpec]:
    return [TableSpec(f"t{number}", K, (Column("v", "int64"),)) for number in range(count)]


def _columns(count: int) -> TableSpec:
    return TableSpec("wide", (Column("c0", "int64"),), tuple(Column(f"c{n}", "int64") for n in range(1, count)))
