"""What the columns of a job can never be in a target is known before anything is written, and so is the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.process import in_turn
from tests.helpers.targets import target_of
from tidestate import agg
from tidestate.operators.describe.sinks import Emitted
from tidestate.operators.sinks.delta import DeltaSink
from tidestate.operators.sinks.iceberg import IcebergSink
from tidestate.operators.sinks.included import IncludedSink
from tidestate.operators.sinks.kafka import KafkaSink
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.operators.sinks.postgres import PostgresSink
from tidestate.operators.sinks.stored_columns import stored_columns
from tidestate.operators.sinks.table import TableSink
from tidestate.statestore.errors import UsageError

TIME = pa.timestamp("us", "UTC")
SINKS: dict[str, Callable[..., IncludedSink]] = {
    "delta": lambda place, **more: DeltaSink(place, **more),
    "parquet": lambda place, **more: ParquetSink(place, **more),
    "iceberg": lambda _place, **more: IcebergSink("n.t", properties={"type": "in-memory"}, **more),
    "postgres": lambda _place, **more: PostgresSink("postgresql://127.0.0.1:1/db", "t", **more),
    "kafka": lambda _place, **more: KafkaSink("127.0.0.1:1", "t", **more),
}


def rows(key: str = "k", values: pa.Array | None = None) -> pa.Table:
    """An event every 5 minutes."""
    values = pa.array([1, 2]) if values is None else values
    times = pa.array([number * 300_000_000 for number in range(len(values))], TIME)
    return pa.table({"t": times, key: ["a"] * len(values), "v": values})


def job(key: str = "k", **results: Any) -> Any:
    grouped = ts.stream(event_time="t").group_by(key).window(ts.tumbling("1 minute"))
    return grouped.aggregate(**results).allowed_lateness("1 hour").accumulation("retracting")


def stored(folder: Path) -> list[dict[str, Any]]:
    return sorted(target_of(f"delta:{folder / 't'}").table().to_pylist(), key=str)


def refused(described: Any, batch: pa.Table, sink: IncludedSink, folder: Path) -> UsageError:
    """The error of a start, which has made no root."""
    with pytest.raises(UsageError) as ended:
        described.standalone(checkpoint=folder / "root", sink=sink).run([batch])
    assert ended.value.code == "sink-columns"
    assert not (folder / "root").exists()
    return ended.value


@pytest.mark.parametrize("kind", ["delta", "parquet"])
@pytest.mark.parametrize(("key", "result"), [("k", "change"), ("change", "n")])
def test_a_changelog_has_the_column_change_for_itself(kind: str, key: str, result: str, tmp_path: Path) -> None:
    sink = SINKS[kind](tmp_path / "t", changes="changelog")
    error = refused(job(key, **{result: agg.count()}), rows(key), sink, tmp_path)
    assert error.context["columns"] == ["change"]
    assert 'store changes="append"' in str(error)


@pytest.mark.parametrize("name", ["v${x}", "${spark:a.b}"])
def test_a_name_in_which_spark_finds_a_variable(name: str) -> None:
    """It would be the name of another column, such as ``v``."""
    schema = pa.schema([("k", pa.string()), (name, pa.int64())])
    with pytest.raises(UsageError, match="variable") as ended:
        TableSink.target_columns.check(schema, "a sink")
    assert (ended.value.code, ended.value.context["columns"]) == ("sink-columns", [name])
    with pytest.raises(UsageError, match="variable"):
        stored_columns({"k": "k", name: "v"}, None).expressions("")
    assert stored_columns(None, None).expressions("") == ["*"]  # no name is in that statement


CLASHES: list[tuple[str, str, str, list[str]]] = [
    ("delta", "k", "Pane", ["pane", "Pane"]),
    ("delta", "k", "K", ["k", "K"]),
    ("delta", "k", "WINDOW_END", ["window_end", "WINDOW_END"]),
    ("postgres", "k", "xmin", ["xmin"]),
    ("postgres", "ctid", "n", ["ctid"]),
    ("postgres", "k", "é" * 32, ["é" * 32]),
]


@pytest.mark.parametrize(("kind", "key", "result", "clash"), CLASHES)
def test_a_name_that_the_target_cannot_have_ends_the_start(
    kind: str, key: str, result: str, clash: list[str], tmp_path: Path
) -> None:
    sink = SINKS[kind](tmp_path / "t", changes="append")
    error = refused(job(key, **{result: agg.count()}), rows(key), sink, tmp_path)
    assert sorted(error.context["columns"]) == sorted(clash)
    assert "columns={column: name in the target}, or rename the result" in str(error)


NUMBER = pa.int64()


def emitted(kind: pa.DataType = NUMBER, name: str = "r") -> Emitted:
    return Emitted("windows", pa.schema([("k", pa.string()), ("pane", pa.int64()), (name, kind)]), ("k",), False)


def stored_types(kind: str, results: Emitted, folder: Path) -> dict[str, pa.DataType]:
    """The columns that a sink stores of these results, once they fit it."""
    sink = SINKS[kind](folder / "t", changes="append")
    sink.fit(results)
    schema = sink.schema(results.schema)
    return dict(zip(schema.names, schema.types, strict=True))


@pytest.mark.parametrize("kind", ["parquet", "iceberg", "kafka", "postgres"])
def test_targets_that_tell_case_apart_have_both(kind: str, tmp_path: Path) -> None:
    assert stored_types(kind, emitted(name="Pane"), tmp_path) == {"k": pa.string(), "pane": NUMBER, "Pane": NUMBER}


FIELDS = pa.struct([("a", pa.int64()), ("A", pa.int64())])
LACKING: list[tuple[str, pa.DataType]] = [
    *(("delta", kind) for kind in (pa.time64("us"), pa.duration("us"), pa.float16(), pa.decimal256(50, 2))),
    *(("delta", kind) for kind in (pa.list_(pa.time64("us")), pa.map_(pa.string(), FIELDS))),
    *(("iceberg", kind) for kind in (pa.duration("us"), pa.null(), pa.list_(pa.duration("us")))),
    *(("postgres", kind) for kind in (FIELDS, pa.map_(pa.string(), pa.int64()), pa.list_(pa.list_(pa.int64())))),
    *(("parquet", kind) for kind in (pa.struct([]),)),
]


@pytest.mark.parametrize(("kind", "column"), LACKING)
def test_a_type_that_the_target_has_not_is_named(kind: str, column: pa.DataType, tmp_path: Path) -> None:
    """So it is where it is stored; what is left out is not asked about."""
    with pytest.raises(UsageError, match=r"leave them out, columns=.*sink-columns.*columns=\['r'\] types="):
        SINKS[kind](tmp_path / "t", changes="append").fit(emitted(column))
    SINKS[kind](tmp_path / "t", changes="append", columns=["k", "pane"]).fit(emitted(column))


HELD: list[tuple[str, pa.DataType]] = [
    ("delta", pa.struct([("a", pa.int64())])),
    ("iceberg", pa.time64("us")),
    ("postgres", pa.list_(pa.time64("us"))),
    ("postgres", pa.duration("us")),
    ("parquet", pa.duration("us")),
    ("kafka", pa.map_(pa.string(), FIELDS)),
]


@pytest.mark.parametrize(("kind", "column"), HELD)
def test_other_types_are_stored_as_they_are(kind: str, column: pa.DataType, tmp_path: Path) -> None:
    assert stored_types(kind, emitted(column), tmp_path) == {"k": pa.string(), "pane": NUMBER, "r": column}


def test_unsigned_numbers_are_stored_as_decimals_in_delta(tmp_path: Path) -> None:
    assert stored_types("delta", emitted(pa.uint64()), tmp_path)["r"] == pa.decimal128(20, 0)


def test_a_time_of_day_for_delta_ends_the_start(tmp_path: Path) -> None:
    described, batch = job(r=agg.max("v")), rows(values=pa.array([1, 2], pa.time64("us")))
    assert refused(described, batch, DeltaSink(tmp_path / "t"), tmp_path).context["types"] == ["time64[us]"]


def broken(_rows: pa.Table, _delivery: ts.DeliveryId) -> None:
    raise RuntimeError("for good")


def test_a_clash_is_solved_by_the_names_of_the_target(tmp_path: Path) -> None:
    columns = {name: name for name in ("window_start", "window_end", "k")} | {"Pane": "total"}
    sink = DeltaSink(tmp_path / "t", changes="upsert", columns=columns)
    job(Pane=agg.count()).standalone(checkpoint=tmp_path / "root", sink=sink).run([rows()])
    assert [row["total"] for row in stored(tmp_path)] == [1]


def test_what_a_root_has_under_such_a_name_is_delivered_under_its_new_name(tmp_path: Path) -> None:
    """Of a root that committed before it had a sink which refuses the name."""
    with pytest.raises(RuntimeError, match="for good"):
        job(change=agg.count()).standalone(checkpoint=tmp_path / "root", sink=broken).run([rows()])
    renamed = job(n=agg.count()).renamed(aggregates={"change": "n"})
    sink = DeltaSink(tmp_path / "t", changes="changelog")
    renamed.standalone(checkpoint=tmp_path / "root", sink=sink).run([rows()], drain=True)
    assert [(row["n"], row["change"]) for row in stored(tmp_path)] == [(1, "insert"), (1, "insert")]


@pytest.mark.parametrize(("form", "key"), in_turn(["upsert", "changelog"], ['a"b', "_row", "_gone", "a.b", "a`b"]))
def test_a_key_may_have_any_name(key: str, form: Any, tmp_path: Path) -> None:
    """Its rows are replaced too."""
    late = rows(key).slice(0, 1)
    sink = DeltaSink(tmp_path / "t", changes=form, delivery_column='the "id"')
    described = job(key, **{"_gone " + key: agg.count()})
    described.standalone(checkpoint=tmp_path / "root", sink=sink).run([rows(key), late], drain=True)
    counts = [(row[key], row["_gone " + key]) for row in stored(tmp_path)]
    assert counts == [("a", 2), ("a", 1)] if form == "upsert" else len(counts) == 4
    assert sum(filter(None, sink.count_rows().values())) == len(counts)


@pytest.mark.parametrize(("kind", "form"), in_turn([pa.uint8(), pa.uint64()], ["append", "upsert"]))
def test_unsigned_numbers_have_room(kind: pa.DataType, form: Any, tmp_path: Path) -> None:
    largest = 2**kind.bit_width - 1
    sink = DeltaSink(tmp_path / "t", changes=form)
    batches = [rows(values=pa.array([1, 2], kind)), rows(values=pa.array([largest], kind))]
    job(r=agg.max("v")).standalone(checkpoint=tmp_path / "root", sink=sink).run(batches, drain=True)
    assert max(row["r"] for row in stored(tmp_path)) == largest


def test_unsigned_numbers_go_on_in_a_table_of_before(tmp_path: Path) -> None:
    """Which had signed ones of the same size: what fits is stored."""
    import deltalake

    columns = ["window_start", "window_end", "k", "r"]
    first = pa.table({"window_start": [0], "window_end": [1], "k": ["b"], "r": [7]})
    times = [pa.field(name, TIME) for name in columns[:2]]
    deltalake.write_deltalake(tmp_path / "t", first.cast(pa.schema([*times, ("k", pa.string()), ("r", pa.int64())])))
    sink = DeltaSink(tmp_path / "t", changes="upsert", columns=columns)
    batches = [rows(values=pa.array([1, 2], pa.uint64())), rows(values=pa.array([9], pa.uint64()))]
    job(r=agg.max("v")).standalone(checkpoint=tmp_path / "root", sink=sink).run(batches, drain=True)
    assert sorted(row["r"] for row in stored(tmp_path)) == [2, 7, 9]


def test_late_rows_are_asked_about_too(tmp_path: Path) -> None:
    batch = rows().append_column("Reason", pa.array(["x", "y"]))
    described = job(n=agg.count(), r=agg.max("Reason"))
    sink = DeltaSink(tmp_path / "t")
    with pytest.raises(UsageError, match=r"for one.*sink-columns.*'Reason'"):
        described.standalone(checkpoint=tmp_path / "root", late_sink=sink).run([batch])
    assert not (tmp_path / "root").exists()
    some = DeltaSink(tmp_path / "t", columns=["v"])
    described.standalone(checkpoint=tmp_path / "root", late_sink=some).run([batch])
