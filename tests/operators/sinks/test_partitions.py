"""Partitions of a target: by day, hour and columns, read as others read them; and what has none is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from errno import EIO, ENAMETOOLONG
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import tidestate as ts
from tests.helpers.moves import rewind
from tests.helpers.process import longer
from tests.helpers.spark_inputs import job, sample
from tests.helpers.targets import holds_all_once, target_of
from tidestate import sinks
from tidestate.operators.sinks.included import IncludedSink
from tidestate.operators.sinks.partitions import PartitionChoice
from tidestate.operators.sinks.withdrawal import execute_withdrawal, plan_withdrawal
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.objects import Objects

RUN = "f" * 32
TIMES = [datetime(2026, 1, 1, 23, 59, 59, tzinfo=UTC), datetime(1969, 12, 31, 5, tzinfo=UTC), None]


def panes(keys: list[Any], times: list[datetime | None] | None = None) -> pa.Table:
    times = times if times is not None else [TIMES[0]] * len(keys)
    return pa.table({"w": pa.array(times, pa.timestamp("us", "UTC")), "k": keys, "n": range(len(keys))})


MAKES: dict[str, Callable[..., IncludedSink]] = {
    "parquet": lambda place, **more: sinks.ParquetSink(place / "t", **more),
    "delta": lambda place, **more: sinks.DeltaSink(place / "t", **more),
    "iceberg": lambda place, **more: sinks.IcebergSink(
        "n.t", properties={"type": "sql", "uri": f"sqlite:///{place}/c", "warehouse": str(place)}, **more
    ),
}


def test_folders_are_those_of_hive(tmp_path: Path) -> None:
    """Which DuckDB, Spark and Arrow read with their columns."""
    sink = sinks.ParquetSink(tmp_path, partition_by=[sinks.day("w"), sinks.hour("w"), "k"])
    sink(panes(["a/b", "ü=1 %", None], TIMES), ts.DeliveryId(RUN, 1))
    folders = sorted(str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))
    null = "__HIVE_DEFAULT_PARTITION__"
    assert folders == [
        "w_day=1969-12-31/w_hour=1969-12-31-05/k=%C3%BC%3D1 %25",
        "w_day=2026-01-01/w_hour=2026-01-01-23/k=a%2Fb",
        f"w_day={null}/w_hour={null}/k={null}",
    ]
    query = f"SELECT k, w_day, w_hour, n FROM read_parquet('{tmp_path}/**/*.parquet', hive_partitioning=1) ORDER BY n"
    assert duckdb.sql(query).fetchall() == [
        ("a/b", date(2026, 1, 1), "2026-01-01-23", 0),
        ("ü=1 %", date(1969, 12, 31), "1969-12-31-05", 1),
        (None, None, None, 2),
    ]
    assert {file.name for file in tmp_path.iterdir() if "=" not in file.name} == {"_deliveries", "_partitions.json"}
    assert ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()["n"].to_pylist() == [1, 0, 2]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_have_their_own(kind: str, tmp_path: Path) -> None:
    sink = MAKES[kind](tmp_path, partition_by=["k", sinks.day("w")], columns={"w": "at", "k": "k", "n": "n"})
    sink(panes(["a", "b", "b"], [*TIMES[:2], TIMES[0]]), ts.DeliveryId(RUN, 1))
    if kind == "iceberg":
        (spec,) = [str(field) for field in sink._loaded().load_table("n.t").spec().fields[1:]]  # type: ignore[attr-defined]
        assert spec == "1001: at_day: day(1)"
        return
    found = target_of(f"delta:{tmp_path / 't'}").table()
    assert found.column_names == ["at", "k", "n", "at_day"]
    assert sorted(found["at_day"].to_pylist()) == [date(1969, 12, 31), date(2026, 1, 1), date(2026, 1, 1)]
    assert sorted(str(file.parent.relative_to(tmp_path / "t")) for file in (tmp_path / "t").rglob("*.parquet")) == [
        "k=a/at_day=2026-01-01",
        "k=b/at_day=1969-12-31",
        "k=b/at_day=2026-01-01",
    ]


REFUSED: list[tuple[PartitionChoice, dict[str, Any], str]] = [
    ([], {}, "partition_by= must be columns"),
    (["k", "k"], {}, "the same partition twice"),
    ("k", {"columns": ["n"]}, "not among columns="),
    ("nothing", {}, "is not stored"),
    ("w", {}, "use sinks.day"),
    (sinks.day("k"), {}, "has no days"),
    (sinks.hour("n"), {}, "has no hours"),
    (["k", "n"], {"columns": ["k", "n"]}, "files would have none"),
    (sinks.day("w"), {"delivery_column": "W_day"}, "a column of its own"),
]


@pytest.mark.parametrize(("partition_by", "more", "why"), REFUSED)
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_what_has_no_such_partitions_is_refused(
    kind: str, partition_by: PartitionChoice, more: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=rf"{why}.*sink-partition"):
        MAKES[kind](tmp_path, partition_by=partition_by, **more)(panes(["a"]), ts.DeliveryId(RUN, 1))
    assert not (tmp_path / "t").exists() or not [*(tmp_path / "t").rglob("*.parquet")]


@pytest.mark.parametrize("kind", MAKES)
def test_the_target_has_others(kind: str, tmp_path: Path) -> None:
    MAKES[kind](tmp_path, partition_by="k")(panes(["a"]), ts.DeliveryId(RUN, 1))
    with pytest.raises(UsageError, match=r"other partitions.*sink-partition"):
        MAKES[kind](tmp_path, partition_by=["k", sinks.day("w")])(panes(["a"]), ts.DeliveryId(RUN, 2))
    if kind == "parquet":  # a table keeps its own
        with pytest.raises(UsageError, match=r"other partitions.*sink-partition"):
            MAKES[kind](tmp_path)(panes(["a"]), ts.DeliveryId(RUN, 2))
        MAKES[kind](tmp_path / "flat")(panes(["a"]), ts.DeliveryId(RUN, 1))
        with pytest.raises(UsageError, match=r"other partitions.*sink-partition"):
            MAKES[kind](tmp_path / "flat", partition_by="k")(panes(["a"]), ts.DeliveryId(RUN, 2))
        with pytest.raises(UsageError, match="sink-partition"):
            MAKES[kind](tmp_path / "flat", partition_by="k").last(RUN)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_value_that_no_folder_can_be_called_after(kind: str, tmp_path: Path) -> None:
    """Hive and Delta read an empty text as null."""
    sink = MAKES[kind](tmp_path, partition_by="k")
    for value in ("", "__HIVE_DEFAULT_PARTITION__"):
        with pytest.raises(UsageError, match=r"take for null.*sink-partition"):
            sink(panes(["a", value]), ts.DeliveryId(RUN, 1))
    if kind == "parquet":
        with pytest.raises(UsageError, match=r"too long.*sink-partition"):
            sink(panes(["é" * 60]), ts.DeliveryId(RUN, 1))
    assert sink.last(RUN) == 0


def test_iceberg_has_days_or_hours_of_a_column() -> None:
    both = [sinks.day("window_start"), sinks.hour("window_start")]
    with pytest.raises(UsageError, match=r"days or hours.*sink-partition"):
        sinks.IcebergSink("a.b", partition_by=both)
    sinks.IcebergSink("a.b", partition_by=[sinks.day("window_start"), sinks.hour("window_end")])


def test_a_value_too_long_for_a_file_never_fits_into_iceberg() -> None:
    sink = sinks.IcebergSink("a.b", partition_by="k")
    assert sink.passes(OSError(ENAMETOOLONG, "File name too long")) is False
    assert sink.passes(OSError(EIO, "a disk that may come back")) is True


def test_a_sink_that_was_refused_can_be_printed() -> None:
    assert repr(sinks.DeltaSink.__new__(sinks.DeltaSink)) == "DeltaSink(…)"


class Dead(BaseException):
    """The process is no more."""


@pytest.mark.parametrize("files", [3, *longer(0)])
def test_who_died_between_two_files_of_a_delivery_writes_the_others(
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delivery that is there in part does not count; the next start completes it."""
    place = f"parquet_by_day:{tmp_path / 'target'}"
    target, root, batches = target_of(place), tmp_path / "root", sample(4, 40)
    job().standalone(checkpoint=root, sink=target.sink()).run(batches[:2])
    create, left = Objects.create, files

    def dies(objects: Any, path: str, data: bytes) -> None:
        nonlocal left
        if objects.root == str(tmp_path / "target"):
            if not left:
                raise Dead
            left -= 1
        create(objects, path, data)

    with monkeypatch.context() as patched:
        patched.setattr(Objects, "create", dies)
        with pytest.raises(Dead):
            job().standalone(checkpoint=root, sink=target.sink()).run(batches[:3])
    job().standalone(checkpoint=root, sink=target.sink()).run(batches, drain=True)
    assert holds_all_once(target, "append", root) > 20


def test_a_part_of_a_delivery_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, root, batches = target_of(f"parquet_by_day:{tmp_path / 'target'}"), tmp_path / "root", sample(4, 40)
    job().standalone(checkpoint=root, sink=target.sink()).run(batches[:3])
    mark = max((tmp_path / "target" / "_deliveries").iterdir())
    mark.unlink()  # as if it had died before
    before = len(pq.ParquetDataset(tmp_path / "target").files)
    head = Checkpoint.open(root).head().manifest.id
    rewind(Checkpoint.open(root), head - 1)
    planned = plan_withdrawal(Checkpoint.open(root), target.sink())
    assert [delivery.checkpoint for delivery in planned.deliveries] == [head]
    execute_withdrawal(Checkpoint.open(root), target.sink(), planned)
    assert len(pq.ParquetDataset(tmp_path / "target").files) < before
    job().standalone(checkpoint=root, sink=target.sink()).run(batches, drain=True)
    assert holds_all_once(target, "append", root) > 20
