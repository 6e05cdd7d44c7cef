"""The same data in every representation that Arrow has for it: the same panes, counters and identities."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.command import tidestate
from tests.helpers.process import LONG
from tidestate import Aggregation, agg
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.plain import as_table, plain_type

TIME = pa.timestamp("us", tz="UTC")
Column = tuple[list[Any], pa.DataType]
PLAIN: dict[str, pa.DataType] = {
    "t": TIME,
    "name": pa.string(),
    "code": pa.binary(),
    "flag": pa.bool_(),
    "at": pa.time64("us"),
    "price": pa.decimal128(10, 2),
    "id": pa.binary(),
    "day": pa.date32(),
    "tags": pa.list_(pa.string()),
    "home": pa.struct([("city", pa.string()), ("zip", pa.int32())]),
}


def nanoseconds(column: pa.Array) -> pa.Array:
    """Times with a rest below the microsecond, which rounding down takes away, before 1970 too."""
    kind = pa.timestamp("ns", tz="UTC") if pa.types.is_timestamp(column.type) else pa.time64("ns")
    whole = column.cast(pa.int64()).to_pylist()
    return pa.array([None if one is None else one * 1000 + 999 for one in whole], pa.int64()).view(kind)


def encoded(values: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    def make(column: pa.Array) -> pa.Array:
        return column.cast(values).dictionary_encode() if values != column.type else column.dictionary_encode()

    return make


def cast(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda column: column.cast(kind)


def built(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda column: pa.array(column.to_pylist(), kind)


def uuids(column: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), column.cast(pa.binary(16)))


def homes(column: pa.Array) -> pa.Array:
    return pa.array(column.to_pylist(), pa.struct([("city", pa.large_string()), ("zip", pa.int32())]))


OTHERS: dict[str, list[Callable[[pa.Array], pa.Array]]] = {
    "t": [nanoseconds],
    "name": [cast(pa.large_string()), cast(pa.string_view()), encoded(pa.string()), encoded(pa.large_string())],
    "code": [cast(pa.large_binary()), cast(pa.binary_view()), cast(pa.binary(3)), encoded(pa.binary())],
    "flag": [],
    "at": [nanoseconds],
    "price": [cast(pa.decimal256(10, 2)), cast(pa.decimal64(10, 2))],
    "id": [uuids, cast(pa.binary(16)), cast(pa.large_binary())],
    "day": [cast(pa.date64())],
    "tags": [
        built(pa.large_list(pa.large_string())),
        built(pa.list_view(pa.string())),
        built(pa.list_(pa.string_view())),
    ],
    "home": [homes],
}


@st.composite
def batches(draw: st.DrawFn) -> list[pa.Table]:
    made = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(0, 8))

        def some(values: st.SearchStrategy[Any], rows: int = rows) -> list[Any]:
            return draw(st.lists(values, min_size=rows, max_size=rows))

        columns: dict[str, list[Any]] = {
            "t": some(st.integers(-30_000_000, 60_000_000)),
            "name": some(st.sampled_from(["a", "é", "", "b\x00"])),
            "code": some(st.sampled_from([b"abc", b"\x00\xff1"])),
            "flag": some(st.sampled_from([True, False, None])),
            "at": some(st.sampled_from([time(0), time(23, 59, 59, 999_999)])),
            "price": some(st.sampled_from([Decimal("1.50"), Decimal("-2.25")])),
            "id": some(st.sampled_from([b"0123456789abcdef", b"\x00" * 16])),
            "day": some(st.sampled_from([datetime(1969, 12, 31).date(), datetime(2024, 2, 29).date()])),
            "tags": some(st.sampled_from([[], ["x", None], None])),
            "home": some(st.sampled_from([{"city": "Rome", "zip": 1}, {"city": "Bonn", "zip": None}])),
        }
        times = pa.array(columns.pop("t"), pa.int64()).cast(TIME)
        made.append(pa.table({"t": times, **{name: pa.array(v, PLAIN[name]) for name, v in columns.items()}}))
    return made


def another(draw: st.DrawFn, table: pa.Table) -> pa.Table:
    """``table`` with each column in one of its representations, cut into chunks."""
    columns = []
    for name in table.column_names:
        column = table[name].combine_chunks()
        make = draw(st.sampled_from([None, *OTHERS[name]]))
        column = column if make is None else make(column)
        cut = draw(st.integers(0, len(column)))
        columns.append(pa.chunked_array([column[:cut], column[cut:]], column.type))
    return pa.table(columns, names=table.column_names)


KEYS = ["name", "code", "flag", "at", "price", "id", "day", "home.city"]


def job(keys: list[str], windows: Any) -> Aggregation:
    values: Mapping[str, Any] = {
        "n": agg.count(),
        "low": agg.min("name"),
        "high": agg.max("code"),
        "all": agg.min("flag"),
        "any": agg.max("flag"),
        "dear": agg.max("price"),
        "early": agg.min("at"),
        "zip": agg.sum("home.zip"),
        "home": agg.last("home", by="t"),
    }
    return ts.stream(event_time="t", watermark_delay="5 seconds").group_by(keys).window(windows).aggregate(**values)


FEW = settings(phases=[Phase.generate], max_examples=settings.default.max_examples // (2 if LONG else 5))
WINDOWS = [ts.tumbling("10 seconds"), ts.sliding("10 seconds", "5 seconds"), ts.sessions("3 seconds")]


def outcome(root: str) -> list[Any]:
    """What a root has: panes, counters and the identity of the input, of each checkpoint."""
    made = evidence.manifests(Path(root))
    found = [(m, sorted(map(repr, evidence.rows(Path(root), m["panes"])))) for m in made if m["kind"] != "fence"]
    return [(m["kind"], m.get("watermark_us"), m["counters"], m.get("input"), panes) for m, panes in found]


@FEW
@given(st.data())
def test_every_representation_gives_the_panes_state_and_identities_of_the_plain_one(data: st.DataObject) -> None:
    given_batches = data.draw(batches())
    keys = data.draw(st.lists(st.sampled_from(KEYS), unique=True, min_size=1, max_size=3))
    description = job(keys, data.draw(st.sampled_from(WINDOWS)))
    partitions = data.draw(st.sampled_from([1, 3]))
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as other:
        description.standalone(checkpoint=plain, partitions=partitions).run(given_batches, drain=True)
        # A run of its own for each batch: the batches before it come again, in other representations.
        for number in range(1, len(given_batches) + 1):
            shapes = [another(data.draw, table) for table in given_batches[:number]]
            description.standalone(checkpoint=other, partitions=partitions).run(
                shapes, drain=number == len(given_batches)
            )
        assert outcome(plain) == outcome(other)


@FEW
@given(st.data())
def test_by_hand_and_in_the_harness_too(data: st.DataObject) -> None:
    rows = data.draw(batches())[0]
    rows = rows.append_column("origin", pa.array(["o"] * rows.num_rows, pa.string()))
    rows = rows.append_column("offset", pa.array(range(rows.num_rows), pa.int64()))
    shape = another_with(data.draw, rows)
    description = job(["name", "home.city"], ts.tumbling("10 seconds"))
    found = []
    for one in (rows, shape):
        with (
            tempfile.TemporaryDirectory() as root,
            description.by_hand(one.schema, checkpoint=root) as operator,
        ):
            operator.add_messages(one)
            assert operator.add_messages(rows)["accepted"] == 0
            operator.drain()
            found.append([result.panes.to_pylist() for result in operator.get_result()])
    harness = description.harness(shape.schema)
    harness.feed(shape)
    harness.finish()
    assert found[0] == found[1]


def another_with(draw: st.DrawFn, rows: pa.Table) -> pa.Table:
    shaped = another(draw, rows.select([name for name in rows.column_names if name in OTHERS]))
    shaped = shaped.append_column("origin", rows["origin"].cast(pa.large_string()))
    return shaped.append_column("offset", rows["offset"])


CLICKS = pa.table({"t": pa.array([1_000_000, 2_000_000, 11_000_000], pa.int64()).cast(TIME), "k": ["a", "b", "a"]})
CLICK_JOB = (
    ts.stream(event_time="t")
    .group_by("k")
    .window(ts.tumbling("10 seconds"))
    .aggregate(n=agg.count(), top=agg.max("k"))
)


def by_duckdb() -> Any:
    """A relation of DuckDB over the table, which it finds by the name of the variable."""
    clicks = CLICKS  # noqa: F841
    return duckdb.sql("select * from clicks")


def by_pandas() -> pd.DataFrame:
    frame = CLICKS.to_pandas()
    frame["k"] = frame["k"].astype(pd.ArrowDtype(pa.large_string()))
    return frame[frame["k"] != "c"].sort_index(ascending=False).sort_index()


class Batch:
    """What exports one batch and no stream."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        return CLICKS.to_batches()[0].__arrow_c_array__(requested_schema)


ROWS: dict[str, Callable[[], Any]] = {
    "table": lambda: CLICKS,
    "list of one": lambda: [CLICKS],
    "record batch": lambda: CLICKS.to_batches()[0],
    "pandas": by_pandas,
    "duckdb": by_duckdb,
    "one batch": Batch,
    "by stream": lambda: {"input": CLICKS},
    "reader": lambda: pa.RecordBatchReader.from_batches(CLICKS.schema, CLICKS.to_batches()),
}


@pytest.mark.parametrize("rows", ROWS)
def test_whatever_exports_arrow_data_is_a_batch(tmp_path: Path, rows: str) -> None:
    panes = CLICK_JOB.standalone(checkpoint=tmp_path).run(ROWS[rows](), drain=True)
    assert panes.select(["k", "n", "top"]).sort_by("k").to_pylist() == [
        {"k": "a", "n": 1, "top": "a"},
        {"k": "a", "n": 1, "top": "a"},
        {"k": "b", "n": 1, "top": "b"},
    ]
    assert CLICK_JOB.standalone(checkpoint=tmp_path).position() == 1


def test_by_hand_too(tmp_path: Path) -> None:
    numbered = CLICKS.append_column("offset", pa.array([1, 2, 3])).append_column("origin", pa.array(["o"] * 3))
    taken: list[int] = []
    with CLICK_JOB.by_hand(numbered.schema, checkpoint=tmp_path) as operator:
        ts.run_operator(operator, numbered.to_pandas(), lambda panes, _id: taken.append(panes.num_rows), drain=True)
    assert sum(taken) == 3


def test_a_batch_that_is_no_table_is_refused(tmp_path: Path) -> None:
    for wrong in (pa.array([1]), pa.chunked_array([[1]]), 5, "rows"):
        with pytest.raises(UsageError, match="batch-type"):
            CLICK_JOB.standalone(checkpoint=tmp_path).run([wrong])  # type: ignore[list-item]
    twice = pa.table([CLICKS["t"], CLICKS["k"], CLICKS["k"]], names=["t", "k", "k"])
    with pytest.raises(UsageError, match="column-twice"):
        CLICK_JOB.standalone(checkpoint=tmp_path).run(twice)
    with pytest.raises(UsageError, match="column-twice"):
        CLICK_JOB.harness(twice.schema)
    assert not list(tmp_path.iterdir())


def untyped(kind: pa.DataType, value: Any) -> pa.Table:
    return pa.table({"t": CLICKS["t"], "k": CLICKS["k"], "v": pa.array([value] * 3, kind)})


COUNTED = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 minute")).aggregate(n=agg.count("v"))
LEFT, RIGHT = ts.stream("left", event_time="t"), ts.stream("right", event_time="t")
JOINED = LEFT.join(RIGHT, on="k", within=("0 seconds", "1 minute"))


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.null(), None), (pa.list_(pa.null()), []), (pa.struct([("a", pa.null())]), {"a": None})],
    ids=["null", "list", "struct"],
)
def test_a_column_of_nulls_without_a_type_begins_no_root(kind: pa.DataType, value: Any, tmp_path: Path) -> None:
    """Later values would not fit. With a type it begins in the same folder."""
    first, later = untyped(kind, value), untyped(pa.string(), "x")
    with pytest.raises(UsageError, match="column-untyped") as caught:
        COUNTED.standalone(checkpoint=tmp_path).run([first, later])
    assert caught.value.context["columns"] == {"input": {"v": str(kind)}}
    panes = COUNTED.standalone(checkpoint=tmp_path).run([untyped(pa.string(), None), later], drain=True)
    assert sum(panes["n"].to_pylist()) == 3
    unread = untyped(kind, value).rename_columns(["t", "k", "other"])
    assert CLICK_JOB.standalone(checkpoint=tmp_path / "unread").run([unread], drain=True).num_rows


def test_a_side_with_a_column_without_a_type_begins_no_root(tmp_path: Path) -> None:
    none, text = untyped(pa.null(), None), untyped(pa.string(), "x")
    with pytest.raises(UsageError, match="column-untyped") as caught:
        JOINED.standalone(checkpoint=tmp_path).run([{"left": text, "right": none}])
    assert caught.value.context["columns"] == {"right": {"v": "null"}}


def test_files_with_a_column_without_a_type_begin_no_root(tmp_path: Path) -> None:
    pq.write_table(untyped(pa.null(), None), tmp_path / "past.parquet")
    with pytest.raises(UsageError, match="column-untyped"):
        ts.Root(tmp_path / "root").bootstrap(COUNTED, tmp_path / "past.parquet", standalone=True).execute()


def test_a_batch_of_a_side_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    text, number = untyped(pa.string(), "x"), untyped(pa.int64(), 1)
    running = JOINED.standalone(checkpoint=tmp_path)
    for wrong in (text, untyped(pa.list_(pa.int64()), [1]), untyped(pa.uint64(), 2**63)):
        with pytest.raises(UsageError, match="batch-type") as caught:
            running.run([{"left": number, "right": number}, {"left": number, "right": wrong}])
        assert (caught.value.context["side"], caught.value.context["column"]) == ("right", "v")
    assert running.run([{"left": number, "right": number}] * 2, drain=True).num_rows


NO_KEYS = {
    "struct": (pa.struct([("a", pa.int64())]), '"k.a"'),
    "decimal of 39 digits": (pa.decimal256(39, 0), "38 digits"),
    "duration": (pa.duration("us"), "an integer"),
    "list": (pa.list_(pa.int64()), "cast it"),
    "null": (pa.null(), "cast it"),
}


@pytest.mark.parametrize("kind", NO_KEYS)
def test_what_can_be_no_key_says_what_to_do(kind: str) -> None:
    wrong, instead = NO_KEYS[kind]
    with pytest.raises(UsageError, match="key-type") as caught:
        CLICK_JOB.harness(pa.schema([("t", TIME), ("k", wrong)]))
    assert instead in str(caught.value)


def test_decimals_of_many_digits_and_text_are_compared(tmp_path: Path) -> None:
    wide = pa.decimal256(60, 0)
    rows = pa.table({"t": CLICKS["t"], "k": ["a"] * 3, "v": pa.array([Decimal(10**50), Decimal(-1), None], wide)})
    job = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 minute"))
        .aggregate(low=agg.min("v"), high=agg.max("v"))
    )
    (pane,) = job.standalone(checkpoint=tmp_path).run(rows, drain=True).to_pylist()
    assert (pane["low"], pane["high"]) == (-1, 10**50)


BERLIN = [datetime(2024, 10, 27, 1, 30), datetime(2024, 10, 27, 2, 30), datetime(2024, 3, 31, 2, 30)]


def test_times_without_a_zone_are_in_the_time_zone_that_is_given(tmp_path: Path) -> None:
    naive = pa.table({"t": pa.array(BERLIN, pa.timestamp("ns")), "k": ["a", "b", "c"]})
    with pytest.raises(UsageError, match="event-time-type"):
        CLICK_JOB.standalone(checkpoint=tmp_path / "none").run(naive)
    job = CLICK_JOB.standalone(checkpoint=tmp_path / "root", time_zone="Europe/Berlin")
    starts = {row["k"]: row["window_start"] for row in job.run(naive, drain=True).to_pylist()}
    # Of the hour that occurs twice the first; a time that was skipped is the moment of the change.
    assert starts["a"] == datetime(2024, 10, 26, 23, 30, tzinfo=UTC)
    assert starts["b"] == datetime(2024, 10, 27, 0, 30, tzinfo=UTC)
    assert starts["c"] == datetime(2024, 3, 31, 1, tzinfo=UTC)
    harness = CLICK_JOB.harness(naive.schema, time_zone="Europe/Berlin")
    assert harness.feed(naive).num_rows + harness.finish().num_rows == 3


def test_times_without_a_zone_in_structs_and_lists(tmp_path: Path) -> None:
    inner = pa.struct([("at", pa.timestamp("ns")), ("all", pa.list_view(pa.timestamp("s")))])
    rows = [{"at": time, "all": [time, None]} for time in BERLIN[1:]]
    given = pa.table({"m": pa.array([*rows, None], inner), "k": ["b", "c", "d"]})
    wanted = [datetime(2024, 10, 27, 0, 30, tzinfo=UTC), datetime(2024, 3, 31, 1, tzinfo=UTC)]
    found = as_table(given, "Europe/Berlin")["m"].to_pylist()
    assert found == [*({"at": time, "all": [time, None]} for time in wanted), None]
    job = ts.stream(event_time="m.at").group_by("k").window(ts.tumbling("10 seconds")).aggregate(at=agg.min("m.at"))
    panes = job.standalone(checkpoint=tmp_path, time_zone="Europe/Berlin").run(given, drain=True)
    assert sorted(panes["at"].to_pylist()) == sorted(wanted)


def test_a_join_of_naive_times_is_refused_or_has_a_time_zone(tmp_path: Path) -> None:
    side = pa.table({"t": pa.array(BERLIN[:1], pa.timestamp("us")), "k": pa.array(["a"], pa.large_string())})
    pairs = ts.stream(event_time="t").join(ts.stream(event_time="t"), on="k", within=("-1 minute", "1 minute"))
    rows = {"left": side, "right": side}
    with pytest.raises(UsageError, match="event-time-type"):
        pairs.standalone(checkpoint=tmp_path).run(rows)
    found = pairs.standalone(checkpoint=tmp_path, time_zone="Europe/Berlin").run(rows, drain=True).to_pylist()
    assert [row["left_t"] for row in found] == [datetime(2024, 10, 26, 23, 30, tzinfo=UTC)]


def test_a_chain_of_streams_reads_fields_of_structs(tmp_path: Path) -> None:
    home = pa.array([{"city": "Rome"}, None, {"city": "Rome"}], pa.struct([("city", pa.string_view())]))
    rows = CLICKS.append_column("home", home)
    once = ts.stream(event_time="t").deduplicate(["k", "t"], name="once")
    cities = once.group_by("home.city").window(ts.tumbling("10 seconds"))
    described = cities.aggregate(n=agg.count()).named("cities")
    panes = described.standalone(checkpoint=tmp_path).run(rows, drain=True)
    assert panes.select(["home.city", "n"]).to_pylist() == [{"home.city": "Rome", "n": 1}] * 2


@given(st.integers(-(10**15), 10**15), st.integers(0, 999))
def test_nanoseconds_are_rounded_down(micros: int, rest: int) -> None:
    table = pa.table({"t": pa.array([micros * 1000 + rest, None], pa.int64()).view(pa.timestamp("ns", tz="UTC"))})
    assert as_table(table)["t"].cast(pa.int64()).to_pylist() == [micros, None]


def test_plain_types_are_their_own() -> None:
    for kind in (
        *PLAIN.values(),
        pa.list_(pa.struct([("a", pa.large_string())]), 2),
        pa.map_(pa.large_string(), pa.date64()),
    ):
        assert plain_type(plain_type(kind)) == plain_type(kind)


@pytest.mark.long
@pytest.mark.slow
def test_the_command_prints_and_finds_such_keys(tmp_path: Path) -> None:
    ids = uuids(pa.array([b"0123456789abcdef"] * 3))
    hours = pa.array([time(1), time(2), time(1)], pa.time64("ns"))
    rows = CLICKS.append_column("id", ids).append_column("at", hours)
    described = (
        ts.stream(event_time="t").group_by("id", "at").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    )
    described.standalone(checkpoint=tmp_path).run(rows, drain=True)
    one = f"id=0x{b'0123456789abcdef'.hex()}"
    for form in ("table", "json", "csv") if LONG else ("csv",):
        observed = tidestate(
            "panes", tmp_path, "--key", one, "--key", "at=02:00:00", "--format", form, columns=200
        ).stdout
        assert ("02:00:00" in observed, "01:00:00" in observed) == (True, False)
    about = tidestate("history", tmp_path, "--window", "1970-01-01T00:00:00", "--key", one, "--key", "at=02:00:00")
    assert "n=1" in about.stdout
    wrong = tidestate("panes", tmp_path, "--key", "at=25:00")
    assert "[read-value]" in wrong.stderr
