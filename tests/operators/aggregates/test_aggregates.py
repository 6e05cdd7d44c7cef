"""Aggregates over every type they take, on every store; nulls, NaN, decimals and overflow as documented."""

from __future__ import annotations

import math
import tempfile
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.process import in_turn
from tidestate import Aggregation, agg
from tidestate.operators.aggregates.aggregate import Aggregate, bind, doubles
from tidestate.operators.aggregates.arithmetic import BoundPlain
from tidestate.statestore.errors import LimitError, UsageError
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.table.fold import combine

TIME = pa.timestamp("us", tz="UTC")
FUNCTIONS = {"count": agg.count, "sum": agg.sum, "min": agg.min, "max": agg.max, "mean": agg.mean}
DECIMAL = pa.decimal128(10, 2)
NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
MIDNIGHT = datetime(1960, 1, 1, tzinfo=UTC)
D = Decimal

CASES: dict[str, tuple[pa.DataType, list[Any], dict[str, Any]]] = {
    "int8": (pa.int8(), [100, 100, None], {"count": 2, "sum": 200, "min": 100, "max": 100, "mean": 100.0}),
    "uint32": (pa.uint32(), [2**32 - 1, 1], {"count": 2, "sum": 2**32, "min": 1, "max": 2**32 - 1, "mean": 2.0**31}),
    "int64": (pa.int64(), [-(2**62), 2**62, 1], {"sum": 1, "min": -(2**62), "max": 2**62, "mean": 1 / 3}),
    "largest": (pa.int64(), [2**63 - 6, 5], {"sum": 2**63 - 1, "max": 2**63 - 6}),
    "float": (pa.float32(), [0.5, -1.25, None], {"count": 2, "sum": -0.75, "min": -1.25, "max": 0.5, "mean": -0.375}),
    "double": (pa.float64(), [1e300, 1e300], {"sum": 2e300, "mean": 1e300}),
    "nan": (pa.float64(), [math.nan, 2.0], {"min": 2.0, "max": 2.0, "count": 2}),
    "infinite": (pa.float64(), [math.inf, -1.0], {"sum": math.inf, "min": -1.0, "max": math.inf, "mean": math.inf}),
    "decimal": (
        DECIMAL,
        [D("1.25"), D("-2.25"), None],
        {"count": 2, "sum": D("-1.00"), "min": D("-2.25"), "max": D("1.25"), "mean": -0.5},
    ),
    "wide decimal": (DECIMAL, [D("99999999.99")] * 9, {"sum": D("899999999.91")}),
    "date32": (pa.date32(), [date(1960, 1, 1), None, date(2024, 2, 29)], {"min": date(1960, 1, 1), "count": 2}),
    "timestamp": (TIME, [NOON, MIDNIGHT], {"min": MIDNIGHT, "max": NOON, "count": 2}),
    "text": (pa.string(), ["a", None, "b"], {"count": 2}),
    "flags": (pa.bool_(), [True, None, False], {"count": 2}),
    "nothing": (pa.int64(), [None, None], {"count": 0, "sum": None, "min": None, "max": None, "mean": None}),
}


def stores(folder: Path) -> dict[str, StoreConfig]:
    return {"memory": Memory(), "parquet": Parquet(), "rocksdb": RocksDB(cache_dir=str(folder / "cache"))}


def totals(folder: Path, store: str, column: pa.Array, functions: list[str]) -> dict[str, Any]:
    """Each function over ``column``, its events spread over two batches of one window."""
    times = pa.array(range(len(column)), TIME)
    table = pa.table({"t": times, "v": column})
    chosen: dict[str, Aggregate] = {f"{name}_of_v": FUNCTIONS[name]("v") for name in functions}
    job = ts.stream(event_time="t").group_by().window(ts.tumbling("1 minute")).aggregate(**chosen)
    runner = job.standalone(checkpoint=folder / "root", store=stores(folder)[store])
    (row,) = runner.run([table.slice(0, 1), table.slice(1)], drain=True).to_pylist()
    return {name: row[f"{name}_of_v"] for name in functions}


@pytest.mark.slow
@pytest.mark.parametrize(("case", "store"), in_turn(CASES, ["memory", "parquet", "rocksdb"]))
def test_every_type_an_aggregate_takes(tmp_path: Path, case: str, store: str) -> None:
    kind, values, expected = CASES[case]
    assert totals(tmp_path, store, pa.array(values, kind), [*expected]) == expected


@pytest.mark.parametrize("store", ["memory", "parquet", "rocksdb"])
def test_nan_counts_when_there_is_nothing_else(tmp_path: Path, store: str) -> None:
    found = totals(tmp_path, store, pa.array([math.nan, math.nan], from_pandas=False), ["min", "max", "sum", "mean"])
    assert all(math.isnan(value) for value in found.values())


@pytest.mark.parametrize("function", ["min", "max"])
def test_half_floats_are_taken_or_refused_in_our_words(tmp_path: Path, function: str) -> None:
    try:
        found = totals(tmp_path, "parquet", pa.array([1.5, 0.5], pa.float16()), [function])
    except UsageError as error:
        assert error.code == "aggregate-type"  # noqa: PT017
    else:
        assert found == {function: {"min": 0.5, "max": 1.5}[function]}


@pytest.mark.parametrize("function", ["sum", "mean"])
def test_large_unsigned_numbers_do_not_end_in_an_arrow_error(tmp_path: Path, function: str) -> None:
    column = pa.array([2**63, 1], pa.uint64())
    assert totals(tmp_path, "parquet", column, [function]).keys() == {function}


@pytest.mark.parametrize("store", ["memory", "parquet", "rocksdb"])
def test_a_sum_that_leaves_its_type_stops_the_job_and_commits_nothing(tmp_path: Path, store: str) -> None:
    with pytest.raises(LimitError, match="sum-overflow"):
        totals(tmp_path, store, pa.array([2**63 - 1, 5]), ["sum"])
    assert not list((tmp_path / "root").rglob("panes/*/*.parquet"))


def test_a_sum_that_overflows_names_a_key_beyond_the_calendar() -> None:
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(total=agg.sum("v"))
    numbers = pa.array([2**60, 2**60])
    rows = pa.table({"t": pa.array([NOON] * 2, TIME), "k": numbers.cast(TIME), "v": [2**62, 2**62]})
    harness = job.harness(rows.schema)
    harness.feed(rows)
    with pytest.raises(LimitError, match="sum-overflow") as refused:
        harness.finish()
    assert refused.value.context["group"]["k"].startswith(str(2**60))


LARGE = [2**62, 2**62, -1]


@pytest.mark.parametrize("cut", [[1, 1, 1], [2, 1], [3]])
def test_whether_a_sum_overflows_does_not_depend_on_the_cut(cut: list[int]) -> None:
    with pytest.raises(LimitError) as refused:
        summed_in(cut, [2**62, 2**62, 1])
    assert refused.value.context["aggregate"] == "s"
    assert refused.value.context["column"] == "v"
    assert refused.value.context["group"]["k"] == "a"
    assert summed_in(cut, LARGE)["s"] == 2**63 - 1


@pytest.mark.parametrize("cut", [[1, 1, 1], [3]])
def test_sums_of_the_longest_decimals_may_pass_their_type_on_the_way(cut: list[int]) -> None:
    most = D("9" * 38)
    assert summed_in(cut, [most, most, D("-" + "9" * 38)], pa.decimal128(38, 0))["s"] == most


@pytest.mark.parametrize("cut", [[1, 1, 1], [3]])
def test_the_mean_of_large_numbers_fits_although_their_sum_does_not(cut: list[int]) -> None:
    means = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 minute")).aggregate(m=agg.mean("v"))
    assert summed_in(cut, [2**62] * 3, job=means)["m"] == float(2**62)
    nanoseconds = [1_700_000_000_000_000_001 + number for number in range(10)]
    assert summed_in([5, 5], nanoseconds, job=means)["m"] == sum(nanoseconds) / 10


@pytest.mark.parametrize("store", ["memory", "parquet", "rocksdb"])
def test_sums_of_an_older_form_are_read_as_the_wider_ones(tmp_path: Path, store: str) -> None:
    with mock.patch.object(BoundPlain, "_running_type", property(lambda bound: bound._sum_type)):
        first = [2**62 - 1, 1]
        large_sums().harness(large(first).schema, store=stores(tmp_path)[store], folder=tmp_path / "root").feed(
            large(first)
        )
    second = large_sums().harness(large(first).schema, store=stores(tmp_path)[store], folder=tmp_path / "root")
    second.feed(large([2**62, -1]))
    (row,) = second.advance_watermark(10**9).to_pylist()
    assert (row["s"], row["m"]) == (2**63 - 1, (2**63 - 1) / 4)


@pytest.mark.parametrize("scale", [2, 4, 18])
def test_doubles_of_decimals_are_the_nearest_whatever_scale_is_declared(scale: int) -> None:
    column = pa.table({"v": pa.array([D("113.66"), D("0.1"), D("0.2")], pa.decimal128(38, scale))})
    assert doubles(column["v"]).to_pylist() == [113.66, 0.1, 0.2]
    found = {name: bound_to(name, column, function) for name, function in DOUBLES_OF_DECIMALS.items()}
    assert found == {"mean": 113.96 / 3, "median": 0.2, "quantile": 0.2, "middle": 56.93}


DOUBLES_OF_DECIMALS: dict[str, Aggregate] = {
    "mean": agg.mean("v"),
    "median": agg.median("v"),
    "quantile": agg.quantile("v", 0.5),
    "middle": agg.quantile("v", 0.75),
}


def bound_to(name: str, rows: pa.Table, aggregate: Aggregate) -> Any:
    """The result of one aggregate over all rows."""
    bound = bind(name, aggregate, rows.schema)
    spec = TableSpec("t", (Column("k", "int64"),), bound.state, None, bound.groups)
    keys = pa.array([1] * rows.num_rows)
    return bound.finish(combine(spec, pa.table([keys, *bound.lift(rows)], schema=spec.schema)))[0].as_py()


def large_sums() -> Aggregation:
    return (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 minute"))
        .aggregate(s=agg.sum("v"), m=agg.mean("v"))
    )


def large(values: list[Any], kind: pa.DataType | None = None) -> pa.Table:
    times = pa.array(range(len(values)), TIME)
    return pa.table({"t": times, "k": ["a"] * len(values), "v": pa.array(values, kind or pa.int64())})


def summed_in(
    cut: list[int], values: list[Any], kind: pa.DataType | None = None, job: Aggregation | None = None
) -> dict[str, Any]:
    """The one pane over ``values``, in batches of these sizes."""
    rows, starts = large(values, kind), [sum(cut[:number]) for number in range(len(cut))]
    with tempfile.TemporaryDirectory() as folder:
        harness = (job or large_sums()).harness(rows.schema, folder=folder)
        for start, size in zip(starts, cut, strict=True):
            harness.feed(rows.slice(start, size))
        (row,) = harness.advance_watermark(10**9).to_pylist()
    return row


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-1, 0, 1]),
    "uint64": (pa.uint64(), [0, 1, 2**64 - 1]),
    "bool": (pa.bool_(), [False, True]),
    "text": (pa.string(), ["", "a", "a\x00", "é"]),
    "binary": (pa.binary(), [b"", b"\x00", b"\x00\xff", b"\xff"]),
    "date": (pa.date32(), [date(1960, 1, 1), date(2024, 2, 29)]),
    "timestamp": (TIME, [MIDNIGHT, NOON]),
    "seconds": (pa.timestamp("s", tz="Europe/Berlin"), [MIDNIGHT, NOON]),
    "decimal": (DECIMAL, [D("-0.01"), D("0.00"), D("12345678.90")]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("case", "store"), in_turn(KEYS, ["memory", "parquet", "rocksdb"]))
def test_every_type_a_key_may_have(tmp_path: Path, case: str, store: str) -> None:
    kind, values = KEYS[case]
    times = pa.array([0] * len(values), TIME)
    batch = pa.table({"t": times, "k": pa.array(values, kind)})
    later = pa.table({"t": pa.array([100_000_000], TIME), "k": pa.array(values[:1], kind)})
    job = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 minute"))
        .aggregate(n=agg.count())
        .allowed_lateness("1 hour")
    )
    runner = job.standalone(checkpoint=tmp_path / "root", store=stores(tmp_path)[store], partitions=2)
    panes = runner.run([batch, batch, later, batch])
    assert panes["k"].type == (pa.timestamp("us", kind.tz) if case == "seconds" else kind)  # see SEMANTICS, types
    found = sorted((row["pane"], values.index(row["k"]), row["n"]) for row in panes.to_pylist())
    assert found == [*((0, i, 2) for i in range(len(values))), *((1, i, 3) for i in range(len(values)))]


def test_a_key_in_nanoseconds_is_rounded_down(tmp_path: Path) -> None:
    batch = pa.table({"t": pa.array([0, 0, 0], TIME), "k": pa.array([1, 2, -1], pa.timestamp("ns"))})
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 minute")).aggregate(n=agg.count())
    panes = job.standalone(checkpoint=tmp_path, partitions=2).run([batch], drain=True)
    found = zip(panes["k"].cast(pa.int64()).to_pylist(), panes["n"].to_pylist(), strict=True)
    assert (panes["k"].type, sorted(found)) == (pa.timestamp("us"), [(-1, 1), (0, 2)])
