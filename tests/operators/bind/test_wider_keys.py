"""A key of a wider type, or of instants whose zone has another name, and input columns that come."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.process import few, in_turn
from tests.helpers.root_scans import scan_panes
from tidestate import Aggregation, agg
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.inspect.query import query
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import IncompatibleError, of_type
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig
from tidestate.statestore.spec.tables import TIME

PARTS = [[(1, 1), (2, -7)], [(3, 1), (4, 40)], [(20, 1)], [(5, 1), (6, -7)]]
"""Seconds and keys: of window [0, 10) key 1 has two events before a change and one after, -7 one and one, 40 one."""


def described(*, retracting: bool = True) -> Aggregation:
    began = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count(), newest=agg.max("t"))
    )
    return began.allowed_lateness("1 hour").accumulation("retracting" if retracting else "accumulating")


def rows_of(kind: pa.DataType, part: list[tuple[int, int]], zone: str = "UTC") -> pa.Table:
    times = pa.array([second * 1_000_000 for second, _ in part], pa.timestamp("us", zone))
    keys = [Decimal(key) if pa.types.is_decimal(kind) else key for _, key in part]
    return pa.table({"t": times, "k": pa.array(keys, kind)})


STORES: list[StoreConfig] = [Parquet(max_levels=2), Memory(), RocksDB()]


@pytest.mark.parametrize(
    ("store", "types"),
    few(in_turn(STORES, [(pa.int32(), pa.int64()), (pa.decimal128(9, 0), pa.decimal128(18, 0))]), 0, 1),
    ids=str,
)
def test_windows_go_on_with_a_key_of_a_wider_type(
    tmp_path: Path, store: StoreConfig, types: tuple[pa.DataType, pa.DataType]
) -> None:
    old, new = types
    run = {"checkpoint": tmp_path, "store": store}
    described().standalone(**run, partitions=3).run([rows_of(old, part) for part in PARTS[:3]])
    described().standalone(**run).run([rows_of(new, part) for part in PARTS])
    net = scan_panes(tmp_path, net=True).to_table()
    assert net.schema.field("k").type == new
    assert sorted((int(row["k"]), row["n"]) for row in net.to_pylist()) == [(-7, 2), (1, 3), (40, 1)]
    manifests = [Checkpoint.open(tmp_path).read(number).manifest for number in (4, 5, 6)]
    assert ["key-widened/1" in manifest.needs for manifest in manifests] == [False, True, True]
    windows = query(tmp_path).get_windows(key=1)
    assert windows["n"].to_pylist() == [3, 1]
    assert scan_panes(tmp_path).to_table().num_rows == 7


@pytest.mark.parametrize(
    ("old", "new"), [(pa.int64(), pa.int32()), (pa.decimal128(9, 0), pa.decimal128(12, 2))], ids=str
)
def test_a_key_that_would_be_another_is_refused(tmp_path: Path, old: pa.DataType, new: pa.DataType) -> None:
    described().standalone(checkpoint=tmp_path).run([rows_of(old, PARTS[0])])
    with pytest.raises(IncompatibleError, match="configuration-changed"):
        described().standalone(checkpoint=tmp_path).run([rows_of(new, part) for part in PARTS[:2]])


@pytest.mark.parametrize("zone", few(["Etc/UTC", "Europe/Berlin"], 1))
def test_the_name_of_a_zone_is_not_the_instant(tmp_path: Path, zone: str) -> None:
    """The key is an instant, and so is a result: each comes with UTC first, and from another session then."""
    for batches, name in ((3, "UTC"), (4, zone)):
        rows = [rows_of(pa.timestamp("us", name), part, name) for part in PARTS[:batches]]
        described().standalone(checkpoint=tmp_path).run(rows)
    net = scan_panes(tmp_path, net=True).to_table()
    assert sorted((row["k"].timestamp() * 1_000_000, row["n"]) for row in net.to_pylist()) == [
        (-7, 2),
        (1, 3),
        (40, 1),
    ]
    assert scan_panes(tmp_path).to_table()["k"].null_count == 0


def test_sides_may_call_a_zone_otherwise() -> None:
    """Rows are in the zone of the first side."""
    zones = [pa.schema([("t", TIME), ("k", pa.timestamp("us", zone))]) for zone in ("UTC", "Etc/UTC")]
    joined = ts.stream(event_time="t").join(ts.stream(event_time="t"), on="k", within=("0 s", "5 s"))
    united = ts.union(left=ts.stream(event_time="t"), right=ts.stream(event_time="t"))
    for job in (joined, united):
        sides = of_type(job.graph.description, Sided).sides
        schema = sides.schema(dict(zip(sides.names, zones, strict=True)))
        assert schema.field("k").type == pa.timestamp("us", "UTC")
        rows = sides.rows(schema, "right", pa.table([[1], [2]], schema=zones[1]))
        assert rows["k"].cast(pa.int64()).to_pylist() == [2]


def more_columns(job: Any, *, sided: bool) -> tuple[Any, Any]:
    """The input of a job without and with one more column."""
    schemas = [pa.schema([("t", TIME), ("k", pa.string()), *more]) for more in ([], [("extra", pa.int64())])]
    found = []
    for one in schemas:
        batches = [
            pa.table([[second * 1_000_000], [key], *[[5]] * (len(one) - 2)], schema=one)
            for second, key in ((1, "a"), (2, "b"), (30, "c"))
        ]
        found.append([{"left": batch, "right": one.empty_table()} for batch in batches] if sided else batches)
    return found[0], found[1]


@pytest.mark.parametrize(
    ("job", "sided"),
    [
        (ts.stream(event_time="t").join(ts.stream(event_time="t"), on="k", within=("0 s", "5 s"), how="left"), True),
        (ts.union(left=ts.stream(event_time="t"), right=ts.stream(event_time="t")), True),
        (ts.stream(event_time="t").deduplicate("k", within="1 hour"), False),
    ],
    ids=["join", "union", "deduplication"],
)
def test_one_more_column_comes_with_the_next_batch(tmp_path: Path, job: Any, sided: bool) -> None:
    plain, more = more_columns(job, sided=sided)
    job.standalone(checkpoint=tmp_path).run(plain[:2])
    panes = job.standalone(checkpoint=tmp_path).run(more, drain=True)
    name = next(name for name in panes.column_names if name.endswith("extra"))
    assert 5 in panes[name].to_pylist()
    assert job.standalone(checkpoint=tmp_path).run(more).num_rows == 0
