"""What the sink of Iceberg commits: the newest panes of all parts of a delivery, and nothing that another one has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tidestate.operators.sinks import iceberg
from tidestate.operators.sinks.iceberg import IcebergSink
from tidestate.operators.sinks.rows import Tables
from tidestate.statestore.errors import UsageError

pytestmark = pytest.mark.slow
RUN = "f" * 32


def rows(*keys: str, kind: str = "emit", n: int = 1) -> pa.Table:
    return pa.table({"k": [*keys], "kind": [kind] * len(keys), "n": [n] * len(keys)})


def sink(folder: Path, **more: Any) -> IcebergSink:
    folder.mkdir(exist_ok=True)
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog", "warehouse": f"file://{folder}"}
    return IcebergSink("tests.panes", properties=properties, key="k", **more)


def stored(one: IcebergSink) -> list[tuple[str, int]]:
    table = one._opened(pa.schema([])).scan().to_arrow()
    return sorted((row["k"], row["n"]) for row in table.to_pylist())


def test_what_is_retracted_for_good_is_gone(tmp_path: Path) -> None:
    one = sink(tmp_path, changes="upsert")
    one(rows("a", "b", "c"), ts.DeliveryId(RUN, 1))
    one(pa.concat_tables([rows("a", kind="retract"), rows("b", n=2)]), ts.DeliveryId(RUN, 2))
    assert stored(one) == [("b", 2), ("c", 1)]


@pytest.mark.parametrize("changes", ["append", "upsert"])
def test_a_delivery_that_comes_in_parts_is_one_commit(
    changes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, parts = sink(tmp_path, changes=changes), [rows("a", "b"), rows("c"), rows("a", n=2)]
    monkeypatch.setattr(iceberg, "tables_of", lambda _: Tables(parts[0].schema, iter(parts)))
    one(rows(), ts.DeliveryId(RUN, 1))
    assert stored(one) == [*([("a", 1)] if changes == "append" else []), ("a", 2), ("b", 1), ("c", 1)]


def test_one_that_was_overtaken_commits_nothing_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one stores the same rows after this one has looked for the id."""
    one, other, real = sink(tmp_path), sink(tmp_path), iceberg.tables_of
    one(rows("a"), ts.DeliveryId(RUN, 1))

    def slow(given: pa.Table) -> Tables:
        def each() -> Iterator[pa.Table]:
            monkeypatch.setattr(iceberg, "tables_of", real)
            other(rows("b"), ts.DeliveryId(RUN, 2))
            yield given

        return Tables(given.schema, each())

    monkeypatch.setattr(iceberg, "tables_of", slow)
    one(rows("b"), ts.DeliveryId(RUN, 2))
    assert stored(one) == [("a", 1), ("b", 1)]


UNSIGNED = pa.schema(
    [("k", pa.uint64()), ("kind", pa.string()), ("n", pa.uint64()), ("m", pa.uint32()), ("b", pa.uint8())]
)


def unsigned(*rows: tuple[int, int, int, int], kind: str = "emit") -> pa.Table:
    columns = zip(*[(k, kind, n, m, b) for k, n, m, b in rows], strict=True)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, UNSIGNED, strict=True)], schema=UNSIGNED
    )


def test_unsigned_numbers_are_stored_up_to_their_largest(tmp_path: Path) -> None:
    iceberg_sink = sink(tmp_path, changes="upsert")
    largest = (2**64 - 1, 2**64 - 1, 2**32 - 1, 255)
    iceberg_sink(unsigned(largest, (1, 1, 1, 1)), ts.DeliveryId(RUN, 1))
    iceberg_sink(
        pa.concat_tables([unsigned((1, 2**63, 2, 2)), unsigned(largest, kind="retract")]), ts.DeliveryId(RUN, 2)
    )
    scanned = iceberg_sink._opened(pa.schema([])).scan().to_arrow()
    assert [str(scanned.schema.field(name).type) for name in "knmb"] == [
        "decimal128(20, 0)",
        "decimal128(20, 0)",
        "int64",
        "int32",
    ]
    assert scanned.select(["k", "n", "m", "b"]).to_pylist() == [{"k": 1, "n": 2**63, "m": 2, "b": 2}]


def test_a_table_with_smaller_numbers_takes_what_fits(tmp_path: Path) -> None:
    """As they were made by the first version of the sink."""
    iceberg_sink = sink(tmp_path, changes="upsert")
    kinds = [pa.int64(), pa.string(), pa.int64(), pa.int32(), pa.int32()]
    iceberg_sink._opened(pa.schema([field.with_type(kind) for field, kind in zip(UNSIGNED, kinds, strict=True)]))
    iceberg_sink(unsigned((1, 2**63 - 1, 2**31 - 1, 255)), ts.DeliveryId(RUN, 1))
    for large in ((1, 2**63, 1, 1), (1, 1, 2**31, 1), (2**63, 1, 1, 1)):
        with pytest.raises(UsageError, match=r"cannot hold these values.*sink-target"):
            iceberg_sink(unsigned(large), ts.DeliveryId(RUN, 2))
    iceberg_sink(unsigned((1, 5, 6, 7)), ts.DeliveryId(RUN, 2))
    scanned = iceberg_sink._opened(pa.schema([])).scan().to_arrow()
    assert scanned.select(["k", "n", "m", "b"]).to_pylist() == [{"k": 1, "n": 5, "m": 6, "b": 7}]
