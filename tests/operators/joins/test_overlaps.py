"""Joins by lifetimes, against a twin; and the look-up of the document, with its exact output."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st
from msgspec.structs import replace

import tidestate as ts
from tests.helpers import evidence, look_up
from tests.helpers.advance_time import Row
from tests.helpers.killed import killed
from tests.helpers.process import LONG, SCRATCH, few, longer
from tests.helpers.two_streams import STORES
from tests.twins.cti import CtiTwin
from tests.twins.overlaps import OverlapTwin
from tidestate import OperatorStream, Stream, UsageError, agg, watermark
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.overlap_join import OverlapJoin
from tidestate.operators.progress.advance_time import SHAPES
from tidestate.operators.progress.watermarks import END_US
from tidestate.operators.streams.nodes import CtiSettings
from tidestate.operators.streams.watermarks import stored_settings
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import of_type
from tidestate.watermark import cti_settings, generate_ctis

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("k", "string"), ("t", TIME), ("end", TIME), ("shape", "string"), ("off", "int64")])
SIDES = ("left", "right")
SCHEMAS = dict.fromkeys(SIDES, SCHEMA)
Numbered = list[tuple[int, str, Row]]


def living(name: str | None = None, offset: str = "off") -> Stream:
    lives = ts.lifetime("end", shape="point", shape_column="shape")
    return ts.stream(name, event_time="t", offset=offset, lifetime=lives)


def described(settings: dict[str, CtiSettings], *, on: Any = "k") -> OperatorStream:
    left, right = (living().watermark(watermark.ctis(settings[side])) for side in SIDES)
    return left.join_lifetimes(right, on=on)


def table(rows: Numbered) -> pa.Table:
    """Rows as (offset, key, row), with times in microseconds."""

    def times(values: list[int | None]) -> pa.Array:
        return pa.array(values, pa.int64()).cast(TIME)

    columns = [
        pa.array([key for _, key, _ in rows], "string"),
        times([row.start for _, _, row in rows]),
        times([row.end for _, _, row in rows]),
        pa.array([row.shape for _, _, row in rows], "string"),
        pa.array([offset for offset, _, _ in rows], "int64"),
    ]
    return pa.table(columns, schema=SCHEMA)


def found_in(panes: pa.Table) -> Counter[tuple[int, int, int]]:
    assert set(panes["kind"].to_pylist()) <= {"emit"}
    times = panes["time"].cast(pa.int64())
    return Counter(zip(*(one.to_pylist() for one in (panes["left_off"], panes["right_off"], times)), strict=True))


instants = st.integers(0, 25)
rows = st.builds(Row, st.sampled_from([*SHAPES, "point", "edge_start", "edge_end"]), instants, instants | st.none())
keyed = st.tuples(st.sampled_from("ab"), rows)
batches = st.lists(
    st.fixed_dictionaries({side: st.lists(keyed, max_size=8) for side in SIDES}), min_size=1, max_size=5
)
own = st.sampled_from(
    [
        cti_settings("drop", generate=generate_ctis(3, delay="2 microseconds")),
        cti_settings("adjust", generate=generate_ctis(2)),
        cti_settings("adjust", generate=generate_ctis("4 microseconds", delay="1 microseconds")),
        cti_settings("drop", generate=generate_ctis(1, delay="-1 microseconds")),
    ]
)
imported = st.sampled_from(
    [
        cti_settings("adjust", import_from="left"),
        cti_settings("drop", generate=generate_ctis(3), import_from="left"),
    ]
)


@run_settings(max_examples=run_settings.default.max_examples // (2 if LONG else 4))
@given(batches, own, own | imported, st.booleans(), st.sampled_from(sorted(STORES)), st.booleans())
def test_pairs_are_those_of_the_twin_after_each_batch(
    given_: list[dict[str, list[tuple[str, Row]]]],
    left: CtiSettings,
    right: CtiSettings,
    keyed_: bool,
    store: str,
    restarts: bool,
) -> None:
    settings = {"left": left, "right": right}
    join, twin = described(settings, on="k" if keyed_ else ()), OverlapTwin()
    ctis = {side: CtiTwin(stored_settings(one)) for side, one in settings.items()}
    numbers, found = dict.fromkeys(SIDES, 0), Counter[tuple[int, int, int]]()
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = join.harness(SCHEMAS, store=STORES[store], folder=folder, partitions=2)
        for batch in given_:
            parts = {}
            for side, many in batch.items():
                numbered = [(numbers[side] + place, key, row) for place, (key, row) in enumerate(many)]
                numbers[side] += len(many)
                parts[side] = table(numbered[::-1])
                for offset, key, row in numbered:
                    taken = ctis[side].take(0, row)
                    if taken and taken[0]:
                        label = key if keyed_ else ""
                        twin.begin(side, offset, str(row.shape), label, row.start or 0, taken[1], row.end)
            if right.import_from:
                ctis["right"].advance(0, ctis["left"].cti)
            found += found_in(tested.feed(parts))
            assert found == twin.pairs(min(one.cti for one in ctis.values()))
            if restarts:
                tested.restart()
        found += found_in(tested.finish())
        assert tested.ledger()["reason"].to_pylist().count("very_late") == 0
    assert found == twin.pairs(END_US)


def test_what_has_ended_is_not_kept(tmp_path: Path) -> None:
    join = described(
        {
            "left": cti_settings("drop", generate=generate_ctis(1)),
            "right": cti_settings("adjust", import_from="left"),
        }
    )
    tested = join.harness(SCHEMAS, folder=tmp_path / "root", partitions=1)
    lives = [(0, "a", Row("edge_start", 1)), (1, "a", Row("interval", 2, 9)), (2, "a", Row("edge_start", 3))]
    tested.feed({"right": table([*lives, (3, "a", Row("edge_end", 3, 6))])})
    assert tested.state("right").num_rows == 0  # nothing is before W
    tested.feed({"left": table([(0, "a", Row("point", 5))])})
    assert tested.state("right")["right_off"].to_pylist() == [0, 1, 2]
    panes = tested.feed({"left": table([(1, "a", Row("point", 6)), (2, "a", Row("point", 10))])})
    assert found_in(panes) == Counter([(0, 0, 5), (0, 1, 5), (0, 2, 5), (1, 0, 6), (1, 1, 6)])
    assert tested.state("right")["right_off"].to_pylist() == [0]
    assert tested.state("left").num_rows == 0
    tested.feed({"right": table([(4, "a", Row("edge_end", 2, 30))])})
    tested.finish()
    assert tested.counters()["edge_ends_unmatched"] == 1


AT_ONCE = cti_settings("drop", generate=generate_ctis(1, delay="-1 microseconds"))
IMPORTED = {"left": AT_ONCE, "right": cti_settings("adjust", import_from="left")}
OWN = {"left": AT_ONCE, "right": AT_ONCE}
NEVER = {"left": AT_ONCE, "right": cti_settings("drop", generate=generate_ctis(100))}
POINT, EDGE = "point", "edge_start"
ODD: dict[str, tuple[Any, list[dict[str, Numbered]], list[set[tuple[int, int, int]]], list[str], int]] = {
    "a null meets no null": (
        IMPORTED,
        [{"left": [(0, None, Row(POINT, 5)), (1, "a", Row(POINT, 6))], "right": [(0, None, Row(EDGE, 1))]}],  # type: ignore[list-item]
        [set(), set()],
        ["null_key", "null_key"],
        0,
    ),
    "both sides at one CTI": (
        OWN,
        [
            {side: [(0, "a", Row(POINT, 5))] for side in SIDES},
            {"left": [(1, "a", Row(POINT, 5)), (2, "a", Row(POINT, 6))], "right": [(1, "a", Row(POINT, 6))]},
        ],
        [{(0, 0, 5)}, {(2, 1, 6)}, set()],
        ["cti_violation"],
        0,
    ),
    "an edge without an end": (
        IMPORTED,
        [{"right": [(0, "a", Row(EDGE, 1))]}, {"left": [(0, "a", Row(POINT, 10**15))]}],
        [set(), {(0, 0, 10**15)}, set()],
        [],
        1,
    ),
    "an end behind the CTI": (
        IMPORTED,
        [
            {"left": [(0, "a", Row(POINT, 50))], "right": [(0, "a", Row(EDGE, 1))]},
            {"left": [(1, "a", Row(POINT, 60))], "right": [(1, "a", Row("edge_end", 1, 20))]},
        ],
        [{(0, 0, 50)}, {(1, 0, 60)}, set()],
        ["cti_violation"],
        1,
    ),
    "a side without a CTI": (
        NEVER,
        [{side: [(0, "a", Row(POINT, 5))] for side in SIDES}, {"left": [(1, "a", Row(POINT, 50))]}],
        [set(), set(), {(0, 0, 5)}],
        [],
        0,
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_data_is_looked_up_as_documented(tmp_path: Path, name: str) -> None:
    settings, given_, pairs, reasons, lives = ODD[name]
    tested = described(settings).harness(SCHEMAS, folder=tmp_path, partitions=2)
    found = []
    for batch in given_:
        found.append(found_in(tested.feed({side: table(rows) for side, rows in batch.items()})))
        tested.restart()
    found.append(found_in(tested.finish()))
    assert found == [Counter(one) for one in pairs]
    assert tested.ledger()["reason"].to_pylist() == reasons
    assert tested.state("left").num_rows + tested.state("right").num_rows == lives


@pytest.mark.parametrize("cuts", [(), *longer((2,), (1, 3, 4)), (1, 2, 3, 4, 5, 6)])
def test_the_look_up_of_the_document(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    runner = look_up.JOINED.standalone(checkpoint=tmp_path / "root")
    panes = runner.run(look_up.batches(cuts), drain=True)
    assert look_up.observed(panes) == look_up.EXPECTED
    assert not [row for manifest in evidence.work(tmp_path / "root") for row in manifest.get("late", [])]


@pytest.mark.parametrize("death", few([2, 4], 0))
def test_the_look_up_killed_has_its_exact_output(tmp_path: Path, death: int) -> None:
    """On Spark: tests/spark/test_cti_sides.py."""
    killed("tests.children.look_up", tmp_path, "standalone", death=death)
    checkpoint = Checkpoint.open(tmp_path / "checkpoint")
    refs = [ref for found in checkpoint.outputs() for ref in found.panes]
    tables = [pq.read_table(checkpoint.objects.locate(ref.path)) for ref in refs]
    assert look_up.observed(pa.concat_tables(tables)) == look_up.EXPECTED


def test_a_chain_counts_the_pairs(tmp_path: Path) -> None:
    windows = look_up.joined("readings", "limits").group_by("sensor").window(ts.tumbling("1 minute"))
    counted = windows.aggregate(n=agg.count()).named("counted").allowed_lateness("0 seconds")
    runner = counted.standalone(checkpoint=tmp_path / "root")
    streams = [
        {"readings": sides["left"], "limits": sides["right"]} if "right" in sides else {"readings": sides["left"]}
        for sides in look_up.batches((2, 4))
    ]
    panes = runner.run(streams, drain=True)
    expected = Counter((row[0], row[1] // 60) for row in look_up.EXPECTED)
    rows_ = panes.to_pylist()
    assert {(row["sensor"], int(row["window_start"].timestamp()) // 60): row["n"] for row in rows_} == expected


def test_what_makes_no_sense_is_refused() -> None:
    both = [living().watermark(watermark.ctis(AT_ONCE)) for _ in SIDES]
    lacking = SCHEMA.remove(SCHEMA.get_field_index("off"))
    for code, wrong in (
        ("advance-time", lambda: living().join_lifetimes(living(), on="k").harness(SCHEMAS)),
        ("advance-time", lambda: living().watermark(watermark.bounded("1 s")).join_lifetimes(living(), on="k")),
        ("advance-time", lambda: living().watermark(idle_timeout="1 s").join_lifetimes(living(), on="k")),
        ("event-shape", lambda: ts.lifetime(shape="interval")),
        ("event-shape", lambda: ts.lifetime("end", shape="round")),
        ("join-on", lambda: living(offset="k").join_lifetimes(living(offset="k"), on="k")),
        ("column-missing", lambda: both[0].join_lifetimes(both[1], on="k").harness(dict.fromkeys(SIDES, lacking))),
    ):
        with pytest.raises(UsageError) as caught:
            wrong()
        assert caught.value.code == code


CLICKS = pa.schema([("k", "string"), ("t", TIME), ("off", "int64")])


def per_ten() -> OperatorStream:
    settings = cti_settings("drop", generate=generate_ctis(2, delay="1 microsecond"))
    clicks = ts.stream("clicks", event_time="t", offset="off").watermark(watermark.ctis(settings))
    counted = clicks.group_by("k").window(ts.tumbling("10 microseconds")).aggregate(n=agg.count())
    return counted.named("per_ten").allowed_lateness("0 seconds")


def of_panes() -> OperatorStream:
    """Counts of clicks, looked up among limits that import the watermark of the counts."""
    counts = per_ten()
    settings = cti_settings("adjust", import_from=counts)
    limits = living("limits").watermark(watermark.ctis(settings))
    return counts.join_lifetimes(limits, on="k", name="limited")


@run_settings(max_examples=run_settings.default.max_examples // (2 if LONG else 4))
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), max_size=6),
            st.lists(st.tuples(st.sampled_from("ab"), rows), max_size=4),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_panes_look_up_a_stream_that_imports_their_watermark(given_: list[tuple[Any, Any]]) -> None:
    clicks = CtiTwin(stored_settings(cti_settings("drop", generate=generate_ctis(2, delay="1 microsecond"))))
    limits, twin = CtiTwin(stored_settings(cti_settings("adjust", import_from="left"))), OverlapTwin()
    windows, numbers, found = Counter[tuple[str, int]](), [0, 0], Counter[tuple[str, int, int, int]]()
    fired: dict[int, tuple[str, int, int]] = {}
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = of_panes().harness({"clicks": CLICKS, "limits": SCHEMA}, folder=folder, partitions=2)
        for clicked, limited in given_:
            at = [time for _, time in clicked]
            times = pa.array(at, pa.int64()).cast(TIME)
            offsets = pa.array(range(numbers[0], numbers[0] + len(at)), pa.int64())
            keys = pa.array([key for key, _ in clicked], "string")
            numbered = [(numbers[1] + place, key, row) for place, (key, row) in enumerate(limited)]
            numbers = [numbers[0] + len(at), numbers[1] + len(limited)]
            for offset, key, row in numbered:
                taken = limits.take(0, row)
                if taken and taken[0]:
                    twin.begin("right", offset, str(row.shape), key, row.start or 0, taken[1], row.end)
            for key, time in clicked:
                taken = clicks.take(0, Row("point", time))
                if taken and taken[0]:
                    windows[(key, time // 10 * 10)] += 1
            panes = tested.feed(
                {"clicks": pa.table([keys, times, offsets], schema=CLICKS), "limits": table(numbered)}
            )
            limits.advance(0, clicks.cti)
            found += limited_in(panes)
            fire(windows, clicks.cti, fired, twin)
            assert found == limited_by(twin, fired, min(clicks.cti, limits.cti))
            tested.restart()
        found += limited_in(tested.finish())
        fire(windows, END_US, fired, twin)
    assert found == limited_by(twin, fired, END_US)


def fire(windows: Counter[Any], watermark: int, fired: dict[int, tuple[str, int, int]], twin: OverlapTwin) -> None:
    """Windows that the watermark has passed are points of the left side, at their last moment."""
    for (key, start), many in list(windows.items()):
        if start + 10 <= watermark:
            number = len(fired)
            fired[number] = (key, start + 9, many)
            twin.begin("left", number, "point", key, start + 9, start + 9, None)
            del windows[(key, start)]


def limited_by(twin: OverlapTwin, fired: dict[int, tuple[str, int, int]], watermark: int) -> Counter[Any]:
    return Counter({(*fired[left], right): many for (left, right, _), many in twin.pairs(watermark).items()})


def limited_in(panes: pa.Table) -> Counter[Any]:
    columns = [panes["k"], panes["time"].cast(pa.int64()), panes["left_n"], panes["right_off"]]
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


def test_sides_that_read_operators_have_no_settings() -> None:
    job = of_type(of_panes().graph.description, Chain)
    limited = of_type(job.operators[1], OverlapJoin)
    of_streams = limited.sides.schema({"left": pa.schema([*CLICKS, ("pane_time", TIME)]), "right": SCHEMA})
    swapped = replace(job, inputs=(("clicks",), ("limits", "per_ten")))
    schemas = {"clicks": CLICKS, "limits": pa.schema([*SCHEMA, ("pane_time", TIME)])}
    itself = living("limits").watermark(watermark.ctis(cti_settings("adjust", import_from="left")))
    for code, wrong in (
        ("advance-time", lambda: bind_graph(limited, of_streams)),
        ("advance-time", lambda: bind_graph(swapped, schemas)),
        ("chain-watermark", lambda: per_ten().watermark(watermark.ctis(AT_ONCE))),
        ("advance-time", lambda: living("clicks").join_lifetimes(itself, on="k")),
    ):
        with pytest.raises(UsageError) as caught:
            wrong()
        assert caught.value.code == code
