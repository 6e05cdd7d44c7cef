"""What a window collects may be longer than a row may be given: no job stops for it, whatever runner and store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidestate as ts
from tests.helpers.process import LONG, few
from tidestate import agg, trigger
from tidestate.operators.embedded.window_operator import WindowOperator
from tidestate.statestore.errors import LimitError
from tidestate.statestore.spec import limits
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig
from tidestate.statestore.spec.tables import TIME, Column, Group, TableSpec
from tidestate.statestore.table.validation import validate_changes

MIB = 1 << 20
SECOND = 1_000_000
SCHEMA = pa.schema([("at", TIME), ("key", pa.int64()), ("text", pa.string()), ("number", pa.int64())])


def rows(values: int, mebibytes: float, at: int = 0, first: int = 0) -> pa.Table:
    """Events of one key and second, whose texts have so many MiB together."""
    texts = [str(first + place).rjust(int(mebibytes * MIB / values), "x") for place in range(values)]
    times = pa.array([at * SECOND] * values).cast(TIME)
    return pa.table([times, [1] * values, texts, range(first, first + values)], schema=SCHEMA)


def longest(rows_: pa.Table) -> pa.Array:
    return pc.max(pc.list_value_length(rows_["texts"])).as_py()


def stores(folder: Path) -> dict[str, StoreConfig]:
    two = {"max_levels": 2}
    return {"memory": Memory(**two), "parquet": Parquet(**two), "rocksdb": RocksDB(cache_dir=str(folder), **two)}


AGGREGATES: dict[str, Any] = {
    "list": agg.list("text"),
    "set": agg.set("text"),
    "sorted": agg.sorted_list("text", by="number"),
    "rows": agg.apply_rows(
        lambda group: group["text"].to_pylist(),
        name="all",
        columns=["text"],
        per_group=True,
        result_type=pa.list_(pa.string()),
    ),
}


@pytest.mark.slow
# A list and a set keep what a sorted list does, without its order.
@pytest.mark.parametrize("aggregate", AGGREGATES if LONG else few(["sorted", "rows"], 0))
def test_one_batch_of_more_than_a_row_may_be_given(tmp_path: Path, aggregate: str) -> None:
    """It fires, is remembered to be taken back, is taken back, and folded."""
    described = ts.stream(event_time="at").group_by("key").window(ts.tumbling("10 seconds"))
    described = described.aggregate(texts=AGGREGATES[aggregate]).allowed_lateness("1 hour").accumulation("retracting")
    given = [rows(20, 17), rows(1, 0.1, at=11), rows(1, 1, at=1, first=20), rows(1, 0.1, at=21)]
    panes = described.standalone(checkpoint=str(tmp_path / "root"), store=stores(tmp_path)["parquet"]).run(given)
    window = panes.filter(pc.equal(panes["window_end"].cast(pa.int64()), 10 * SECOND))
    kinds = list(zip(window["kind"].to_pylist(), pc.list_value_length(window["texts"]).to_pylist(), strict=True))
    assert kinds == [("emit", 20), ("retract", 20), ("emit", 21)]


LONG_CASES = [("triggered", "memory"), ("triggered", "parquet")] if LONG else []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "store"),
    [("sessions", "parquet"), ("triggered", "rocksdb"), *LONG_CASES],
)
@pytest.mark.long
def test_state_that_is_put_back_whole_may_grow(tmp_path: Path, kind: str, store: str) -> None:
    windows = ts.tumbling("1 minute") if kind == "triggered" else ts.sessions("10 seconds")
    described = ts.stream(event_time="at").group_by("key").window(windows)
    described = (
        described.aggregate(texts=agg.list("text")).trigger(early=trigger.each_batch()).accumulation("retracting")
    )
    given = [rows(10, 6, at=second, first=10 * second) for second in range(3)]
    found = described.standalone(checkpoint=str(tmp_path / "root"), store=stores(tmp_path)[store]).run(
        given, drain=True
    )
    assert longest(found) == 30


@pytest.mark.long
def test_an_accumulation_whose_state_is_lists(tmp_path: Path) -> None:
    def merged(older: pa.Table, newer: pa.Table) -> pa.Table:
        both = [a + b for a, b in zip(older["all"].to_pylist(), newer["all"].to_pylist(), strict=True)]
        return pa.table({"all": pa.array(both, pa.list_(pa.string()))})

    own = agg.accumulate(
        name="everything",
        columns=["text"],
        state={"all": pa.list_(pa.string())},
        lift=lambda events: pa.table({"all": [[one] for one in events["text"].to_pylist()]}),
        merge=merged,
        result=lambda state: state["all"],
        result_type=pa.list_(pa.string()),
    )
    described = ts.stream(event_time="at").group_by("key").window(ts.tumbling("10 seconds")).aggregate(texts=own)
    given = [rows(9, 18), rows(1, 1, at=1, first=9)]
    found = described.standalone(checkpoint=str(tmp_path / "root"), store=Memory()).run(given, drain=True)
    assert longest(found) == 10


@pytest.mark.long
def test_by_hand_with_messages(tmp_path: Path) -> None:
    described = ts.stream(event_time="at").group_by("key").window(ts.tumbling("10 seconds"))
    described = described.aggregate(texts=AGGREGATES["rows"]).allowed_lateness("1 hour").accumulation("retracting")

    def messages(given: pa.Table) -> pa.Table:
        return given.append_column("source", given["key"])

    schema = messages(SCHEMA.empty_table()).schema
    windows = described.graph.description
    with WindowOperator(windows, schema, checkpoint=tmp_path, origin="source", offset="number") as operator:
        for first in (0, 10, 20):
            operator.add_messages(messages(rows(10, 6, first=first)))
        operator.add_messages(messages(rows(1, 0.1, at=11, first=30)))
        operator.drain()
        results = operator.get_result()
    assert max(longest(one.panes) for one in results) == 30


def test_one_value_has_a_limit_wherever_it_lies() -> None:
    lists = str(pa.list_(pa.string()))
    values = (Column("given", lists), Column("grown", lists, combiner="append"), Column("observed", lists, "result"))
    spec = TableSpec(
        "t", (Column("k", "int64"),), (*values, Column("each", lists)), groups=(Group(("each",), "union"),)
    )
    many, one = ["x" * MIB] * 17, ["x" * (limits.ROW_BYTES + 1)]
    for name, long, taken in (
        ("given", many, False),
        ("grown", many, True),
        ("observed", many, True),
        ("each", many, True),
        ("grown", one, False),
        ("observed", one, False),
    ):
        columns = {column.name: [long if column.name == name else None] for column in spec.values}
        changes = {"t": TableChanges(put=pa.table({"k": [1], **columns}, schema=spec.schema))}
        if taken:
            validate_changes({"t": spec}, changes)
        else:
            with pytest.raises(LimitError, match="limit"):
                validate_changes({"t": spec}, changes)
