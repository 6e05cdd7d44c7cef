"""What a change set may be: each limit at it and one past it, small ones in place of the documented ones."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidestate.statestore.errors import LimitError
from tidestate.statestore.spec import limits
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.table import validation
from tidestate.statestore.table.validation import specs_by_name, validate_changes

SPEC = TableSpec("t", (Column("k", "string"), Column("b", "binary")), (Column("v", "list<item: string>"),))


def rows(key: str, raw: bytes, value: list[str]) -> pa.Table:
    return pa.table({"k": [key], "b": [raw], "v": [value]}, schema=SPEC.schema)


def taken(changes: TableChanges) -> bool:
    try:
        validate_changes({"t": SPEC}, {"t": changes})
    except LimitError as error:
        assert error.code == "limit"  # noqa: PT017
        return False
    return True


def test_the_documented_limits() -> None:
    assert (limits.KEY_BYTES, limits.ROW_BYTES, limits.CHANGE_BYTES) == (65_536, 16_777_216, 1_073_741_824)
    assert (limits.TABLES, limits.COLUMNS) == (200, 1000)


@pytest.mark.parametrize("part", ["put", "merge"])
def test_a_key_of_the_limit_is_taken_and_one_byte_more_is_not(part: str) -> None:
    for extra, expected in ((0, True), (1, False)):
        changes = rows("é" * (limits.KEY_BYTES // 4), b"x" * (limits.KEY_BYTES // 2 + extra), [])
        assert taken(TableChanges(**{part: changes})) is expected
    assert not taken(TableChanges(delete=changes.select(["k", "b"])))


def test_the_longest_key_counts_not_their_sum() -> None:
    many = pa.concat_tables([rows(str(i), b"x" * (limits.KEY_BYTES - 1), []) for i in range(3)])
    assert taken(TableChanges(put=many))


def test_a_change_of_the_limit_is_taken_and_one_more_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = rows("key", b"raw", ["a", "b"])
    for limit, expected in ((changes.nbytes, True), (changes.nbytes - 1, False)):
        monkeypatch.setattr(validation, "CHANGE_BYTES", limit)
        assert taken(TableChanges(put=changes)) is expected


def test_nested_values_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "ROW_BYTES", 200_000)
    assert taken(TableChanges(put=rows("k", b"", ["x" * 100_000])))
    assert not taken(TableChanges(put=rows("k", b"", ["x" * 100_000, "y" * 100_001])))


@pytest.mark.parametrize(("tables", "columns"), [(200, 1), (201, 1), (1, 1000), (1, 1001)])
def test_tables_and_columns(tables: int, columns: int) -> None:
    values: Any = tuple(Column(f"v{i}", "int8") for i in range(columns - 1))
    specs = [TableSpec(f"t{i}", (Column("k", "int8"),), values) for i in range(tables)]
    if tables > 200 or columns > 1000:
        with pytest.raises(LimitError, match="limit"):
            specs_by_name(specs)
    else:
        assert len(specs_by_name(specs)) == tables
