"""Columns that a job gets, loses or renames: no row is made of two panes, and nothing is dropped without a word."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.process import in_turn, longer
from tests.helpers.targets import Target, target_of
from tests.servers.postgres import Postgres
from tests.servers.postgres import postgres as postgres
from tidestate.operators import DeliveryId
from tidestate.operators.sinks.columns import new_columns
from tidestate.operators.sinks.delta import DeltaSink
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.iceberg import IcebergSink
from tidestate.operators.sinks.included import IncludedSink
from tidestate.operators.sinks.postgres import PostgresSink
from tidestate.statestore.arrays import padded
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.plain import plain_table

TIME = pa.timestamp("us", "UTC")
KINDS = ["delta", "iceberg", "postgres"]


def rows(**values: int) -> pa.Table:
    """The pane of one window and key."""
    window = {"window_start": pa.array([0], TIME), "window_end": pa.array([9], TIME)}
    return pa.table({**window, "k": ["a"], **{name: [value] for name, value in values.items()}, "kind": ["emit"]})


def at(checkpoint: int) -> DeliveryId:
    return ts.DeliveryId("f" * 32, checkpoint)


@pytest.fixture
def target(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    if kind == "postgres":
        return target_of(f"postgres:{request.getfixturevalue('postgres').uri}#{uuid.uuid4().hex}")
    return target_of(f"{kind}:{tmp_path / 'target'}")


def stored(target: Target) -> list[dict[str, Any]]:
    names = ("window_start", "window_end", "k", "kind", "change")
    found = [{n: v for n, v in row.items() if n not in names} for row in plain_table(target.table()).to_pylist()]
    return sorted(found, key=lambda row: row["n"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "postgres", *longer("iceberg")])
def test_a_new_column_is_refused_and_nothing_was_stored(target: Target) -> None:
    sink = target.sink("upsert")
    sink(rows(n=1, s=1), at(1))
    for renamed in (rows(n=2, total=101), rows(n=2, s=101, total=101)):
        with pytest.raises(UsageError, match=r"(?s)none of .* were stored.*sink-target.*Sink\("):
            sink(renamed, at(2))
    assert (stored(target), sink.last("f" * 32)) == ([{"n": 1, "s": 1}], 1)


UTC_TIME, DAY, CLOCK = TIME, pa.date32(), pa.timestamp("us")
CHANGED = [
    (DAY, UTC_TIME),
    (UTC_TIME, DAY),
    (pa.float32(), pa.int64()),
    (pa.float64(), pa.int64()),
    (pa.float32(), pa.int32()),
    (pa.float32(), pa.float64()),
    (pa.float64(), pa.decimal128(9, 2)),
    (pa.decimal128(9, 1), pa.decimal128(9, 2)),
    (pa.int64(), pa.float64()),
    (pa.int64(), pa.decimal128(9, 2)),
    (pa.string(), UTC_TIME),
    (pa.string(), pa.int64()),
    (pa.int64(), pa.string()),
    (pa.bool_(), pa.int64()),
    (pa.list_(pa.float32()), pa.list_(pa.int64())),
    (pa.struct({"a": DAY}), pa.struct({"a": UTC_TIME})),
    (pa.struct({"a": DAY}), pa.struct({"b": DAY})),
    (pa.map_(DAY, DAY), pa.map_(UTC_TIME, DAY)),
    (pa.string(), pa.list_(pa.string())),
]
HELD = [
    (UTC_TIME, UTC_TIME),
    (CLOCK, UTC_TIME),
    (pa.float64(), pa.float32()),
    (pa.float64(), pa.int32()),
    (pa.float32(), pa.int16()),
    (pa.int32(), pa.int64()),
    (pa.decimal128(20, 0), pa.int64()),
    (pa.int64(), pa.decimal128(20, 0)),
    (pa.decimal128(12, 3), pa.decimal128(9, 2)),
    (pa.int64(), pa.uint32()),
    (pa.string(), pa.large_string()),
    (pa.string_view(), pa.dictionary(pa.int32(), pa.string())),
    (pa.binary(), pa.binary(4)),
    (pa.float32(), pa.null()),
    (pa.list_(pa.float64()), pa.large_list(pa.int8())),
    (pa.struct({"A": pa.int64()}), pa.struct({"a": pa.int64()})),
]


@pytest.mark.parametrize(("stored_type", "kind"), CHANGED, ids=str)
def test_a_type_that_would_change_values_is_refused(stored_type: pa.DataType, kind: pa.DataType) -> None:
    """Targets round and cut without a word: two keys would be one, and an upsert would find no row, or another."""
    table, columns = pa.schema({"a": stored_type, "b": DAY}), pa.schema({"a": kind, "b": DAY})
    with pytest.raises(UsageError, match=r"would change these values.*sink-target") as refused:
        new_columns(table, columns, "refuse", "Sink()", ["a"])
    assert refused.value.context["columns"] == ["a"]


@pytest.mark.parametrize(("stored_type", "kind"), HELD, ids=str)
def test_a_type_that_has_all_values_is_none_to_refuse(stored_type: pa.DataType, kind: pa.DataType) -> None:
    assert not new_columns(pa.schema({"a": stored_type}), pa.schema({"a": kind}), "refuse", "Sink()", []).names


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_replaces_another_keeps_nothing_of_it(kind: str, target: Target) -> None:
    """An aggregate was removed: Delta's tables have no columns but those of the job, others may."""
    sink = target.sink("upsert")
    sink(rows(n=1, s=1), at(1))
    if kind == "delta":
        with pytest.raises(UsageError, match=r"sink-target.*missing=\[\] gone=\['s'\]"):
            sink(rows(n=2), at(2))
        sink = target.sink("upsert", schema="merge")
    sink(rows(n=2), at(2))
    assert stored(target) == [{"n": 2, "s": None}]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "form"), in_turn(KINDS, ("upsert", "changelog")))
def test_a_key_of_another_name_is_no_new_column(form: Form, target: Target) -> None:
    """Its rows would be there twice: those of before are found by the old name alone."""
    sink = target.sink(form, schema="merge", key=["window_start", "window_end", "k"])
    sink(rows(n=1), at(1))
    renamed = rows(n=2)
    renamed = renamed.rename_columns(["c" if name == "k" else name for name in renamed.column_names])
    sink = target.sink(form, schema="merge", key=["window_start", "window_end", "c"])
    with pytest.raises(UsageError, match="sink-target"):
        sink(renamed, at(2))
    assert ([row["n"] for row in plain_table(target.table()).to_pylist()], sink.last("f" * 32)) == ([1], 1)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "kind"), in_turn(["upsert", "append"], KINDS))
def test_columns_are_added_by_choice(form: Form, target: Target) -> None:
    sink = target.sink(form, schema="merge")
    sink(rows(n=1, s=1), at(1))
    sink(rows(n=2, total=101), at(2))
    newest = {"n": 2, "s": None, "total": 101}
    assert stored(target) == [newest] if form == "upsert" else [{"n": 1, "s": 1, "total": None}, newest]
    sink(rows(n=3, s=7, total=8), at(3))
    assert stored(target)[-1] == {"n": 3, "s": 7, "total": 8}


def test_columns_of_ones_own_get_their_defaults_and_numbers_stay(postgres: Postgres) -> None:
    """As if the row was deleted and stored: but what numbers rows does not change."""
    postgres.run(
        "CREATE TABLE owned (id bigserial, number bigint GENERATED ALWAYS AS IDENTITY, window_start timestamptz, "
        "window_end timestamptz, k text, n bigint, s bigint DEFAULT 0, "
        "double bigint GENERATED ALWAYS AS (n * 2) STORED, PRIMARY KEY (window_start, window_end, k))"
    )
    sink = PostgresSink(postgres.uri, "owned", key="k")
    sink(rows(n=1, s=5), at(1))
    sink(rows(n=2), at(2))
    assert postgres.rows("SELECT id, number, n, s, double FROM owned") == [(1, 1, 2, 0, 4)]


def test_a_server_that_does_not_wait_for_its_disk_does_for_a_delivery(postgres: Postgres) -> None:
    seen = []

    class Watched(PostgresSink):
        def _remember(self, cursor: Any, delivery: DeliveryId) -> bool:
            cursor.execute("SELECT current_setting('synchronous_commit')")
            seen.append(cursor.fetchone()[0])
            return super()._remember(cursor, delivery)

    for number, how in enumerate(("off", "on", "remote_write"), 1):
        postgres.run(f"ALTER ROLE postgres SET synchronous_commit = '{how}'")
        Watched(postgres.uri, "waits", key="k")(rows(n=1), at(number))
    postgres.run("ALTER ROLE postgres RESET synchronous_commit")
    assert seen == ["on", "on", "remote_write"]


def test_what_a_table_gets() -> None:
    table, given = rows(n=1, s=1).schema, rows(n=1, total=1)
    assert new_columns(table, given.schema, "merge", "S", ()).names == ["total"]
    assert new_columns(table, table, "refuse", "S", ()).names == []
    assert new_columns(table, rows(n=1).schema, "refuse", "S", (), own=True).names == []
    for other in (given.schema, rows(n=1).schema, rows(n=1, s=1, more=1).schema):
        with pytest.raises(UsageError, match=r"sink-target.*sink=S"):
            new_columns(table, other, "refuse", "S", ())
    assert padded(given, table)["s"].to_pylist() == [None]


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal128(9, 2)])
def test_numbers_with_fractions_are_not_cut(kind: pa.DataType, tmp_path: Path) -> None:
    """Delta would store 1 for 1.5."""
    sink = DeltaSink(tmp_path / "delta", changes="append")
    sink(rows(n=1), at(1))
    with pytest.raises(UsageError, match=r"sink-target.*columns=\['n'\] types=\['int64'\]"):
        sink(rows(n=1).set_column(3, "n", pa.array([1.5]).cast(kind)), at(2))


@pytest.mark.parametrize("made", [DeltaSink, lambda _, **more: IcebergSink("n.t", **more)])
def test_a_choice_that_there_is_not(made: Callable[..., IncludedSink]) -> None:
    with pytest.raises(UsageError, match=r"sink-form.*found=overwrite"):
        made("/tmp/never", schema="overwrite")
