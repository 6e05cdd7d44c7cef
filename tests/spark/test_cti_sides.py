"""CTIs of several streams on Spark: joins, session joins, merges, unions, chains, lifetimes; and the look-up of the
document, killed.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tidestate as ts
from tests.children.spark_job import read
from tests.helpers import look_up
from tests.helpers.killed import killed
from tests.helpers.process import LONG, longer
from tests.helpers.spark_inputs import write
from tests.helpers.spark_runs import output
from tidestate import Aggregation, OperatorStream, Stream, agg, watermark
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest

pytestmark = pytest.mark.spark

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("k", "string"), ("t", TIME), ("end", TIME), ("shape", "string"), ("off", "int64"), ("part", "string")]
)
BATCHES, ROWS = 4, 30
LIVES = ts.lifetime("end", "point", "shape")
ABOUT: dict[str, Any] = {"event_time": "t", "offset": "off", "origin": "part", "lifetime": LIVES}
PARTS = ["p", "q"]


def by_ctis(policy: Any, every: Any = None, delay: str = "0 seconds", *, import_from: Any = None) -> Any:
    """CTIs made of so many events, or of such a span, or taken over."""
    made = None if every is None else watermark.generate_ctis(every, delay=delay)
    return watermark.ctis(watermark.cti_settings(policy, generate=made, import_from=import_from))


def counted(events: Stream, windows: Any, name: str) -> Aggregation:
    panes = events.group_by("k").window(windows).aggregate(n=agg.count())
    return panes.named(name).allowed_lateness("0 seconds")


def two_streams() -> Aggregation:
    """Each stream has CTIs of its own, by its parts; a third one has none."""
    events = ts.stream("left", **ABOUT).watermark(by_ctis("drop", 5, "1 second"), sources=PARTS)
    left = counted(events, ts.tumbling("5 seconds"), "of_left")
    others = ts.stream("right", **ABOUT).watermark(by_ctis("adjust", "3 seconds"), by="part")
    moved = others.shift_time("-2 seconds", duration="4 seconds", name="moved")
    lasting = counted(moved, ts.sliding("6 seconds", "3 seconds", of="lifetime"), "of_right")
    plain = counted(ts.stream("plain", event_time="t"), ts.tumbling("5 seconds"), "of_plain")
    both = ts.merge(left=left, right=lasting, plain=plain).group_by("k").window(ts.tumbling("10 seconds"))
    sums = both.aggregate(l=agg.sum("left_n"), r=agg.sum("right_n"), p=agg.sum("plain_n"))
    return sums.named("both").allowed_lateness("0 seconds")


def edges_in_windows() -> Aggregation:
    """Points, intervals and edges in windows that they touch."""
    events = ts.stream("left", **ABOUT).watermark(by_ctis("adjust", 9, "3 seconds"), sources=PARTS)
    return counted(events, ts.sliding("6 seconds", "3 seconds", of="lifetime"), "windows")


def look_up_of_panes() -> OperatorStream:
    """Counts looked up in a stream that imports their watermark."""
    events = ts.stream("left", **ABOUT).watermark(by_ctis("drop", 5, "1 second"), sources=PARTS)
    counts = counted(events, ts.tumbling("5 seconds"), "counted")
    right = ts.stream("right", **ABOUT).watermark(by_ctis("adjust", import_from=counts))
    return counts.join_lifetimes(right, on="k", name="valid")


def sides() -> dict[str, Stream]:
    """The right one takes over the CTIs of the left one, too."""
    left = ts.stream(**ABOUT).watermark(by_ctis("drop", 7, "2 seconds"))
    return {"left": left, "right": ts.stream(**ABOUT).watermark(by_ctis("adjust", 20, import_from=left))}


def by_parts() -> Stream:
    """A stream whose parts have watermarks of their own, by event times."""
    return ts.stream(event_time="t", watermark_delay="6 seconds").watermark(by="part", sources=PARTS)


def jobs(left: Stream, right: Stream) -> dict[str, OperatorStream]:
    five = ts.tumbling("5 s")
    merged = ts.merge(left=left, right=right).group_by("k").window(five)
    return {
        "distance": left.join(right, on="k", within=("-3 s", "3 s"), how="full", allowed_lateness="9 s"),
        "own windows": left.join(right, on="k", left=ts.side(window=five), sides=ts.side(retain="1 day")),
        "sessions": left.join_sessions(right, on="k", gap="2 s", how="full", allowed_lateness="9 s"),
        "union": ts.union(left=left, right=right),
        "merge": merged.aggregate(n=agg.count(), left=agg.count("left_t")).accumulation("discarding"),
        "lifetimes": left.join_lifetimes(right, on="k"),
        "edges in windows": edges_in_windows(),
        "by parts": left.join(by_parts(), on="k", within=("-3 s", "3 s"), how="full", allowed_lateness="9 s"),
        "chain": two_streams(),
        "look-up of panes": look_up_of_panes(),
    }


JOBS = jobs(**sides())
SOME = ("edges in windows",)
"""Jobs of every run of the tests; lifetimes: `tests/operators/joins/test_overlaps.py`."""


def inputs() -> dict[str, list[pa.Table]]:
    """Files of each stream: parts with offsets of their own, rows in any order."""
    chance, found = random.Random(11), {}
    for stream in ("left", "right", "plain"):
        offsets, tables = {"p": 0, "q": 0}, []
        for number in range(BATCHES):
            rows = []
            for _ in range(ROWS):
                part, at = chance.choice("pq"), (number * 10 + chance.uniform(-3, 12))
                shape = chance.choice(["point", "interval", "edge_start", "edge_start", "edge_end", "cti"])
                at = round(at - (6 if shape == "cti" else 0))
                end = None if shape in ("point", "edge_start", "cti") else at + chance.randint(1, 8)
                times = [one if one is None else one * SECOND for one in (at, end)]
                rows.append([chance.choice("ab"), *times, shape, offsets[part], part])
                offsets[part] += 1
            rows[3][4] = rows[5][0] = None
            chance.shuffle(rows)
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
            tables.append(pa.table(arrays, schema=SCHEMA))
        found[stream] = tables
    return found


# Each of them without Spark: `tests.operators.progress`, `joins` and `chains`.
@pytest.mark.parametrize("name", [*SOME, *longer(*sorted(JOBS.keys() - {*SOME}))])
def test_panes_and_ledgers_equal_the_standalone_runner(spark: SparkSession, tmp_path: Path, name: str) -> None:
    described, tables = JOBS[name], inputs()
    count = 2 if name in SOME and not LONG else BATCHES
    streams = described.graph.streams
    for stream in streams:
        for number, table in enumerate(tables[stream][:count]):
            write(tmp_path / stream, number, table)
    frames = {stream: read(spark, tmp_path / stream) for stream in streams}
    query = described.on_spark(frames, checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    query.stop(drain=True)
    batches = [{stream: tables[stream][at] for stream in streams} for at in range(count)]
    alone = described.standalone(checkpoint=tmp_path / "alone")
    alone.run(batches, drain=True)
    panes = in_any_order(output(tmp_path / "root", "panes"))
    assert panes == in_any_order(output(tmp_path / "alone", "panes"))
    assert sum(map(len, panes)) > 10
    assert query.manifest.totals == alone.head.totals
    assert any("cti_violation" in name for name in query.manifest.totals)
    for operator in described.graph.operators:
        ledgers = [in_any_order(output(tmp_path / root, "late", operator)) for root in ("root", "alone")]
        assert ledgers[0] == ledgers[1]
        for found in ("advances", "watermark_us"):
            marks = [
                [getattr(m.operators[operator], found) for m in history(tmp_path / r)] for r in ("root", "alone")
            ]
            assert marks[0] == marks[1]


@pytest.mark.long  # in every run: tests.spark.test_messages
def test_messages_with_an_identity_take_part_once(spark: SparkSession, tmp_path: Path) -> None:
    """Batches that are handed in again, at once and much later: as the same job without identities, each row once."""
    events = ts.stream(**ABOUT).watermark(by_ctis("adjust", "5 seconds", "1 second"), sources=PARTS)
    panes = events.group_by("k").window(ts.tumbling("5 seconds")).aggregate(n=agg.count(), offsets=agg.list("off"))
    described = panes.named("job").accumulation("retracting").allowed_lateness("100 days")
    tables = [table.filter(table["off"].is_valid()) for table in inputs()["left"]]
    for number, of in enumerate((0, 1, 1, 2, 0, 3)):
        write(tmp_path / "in", number, tables[of])
    known = described.messages(("part", "off"))
    query = known.on_spark(read(spark, tmp_path / "in"), checkpoint=tmp_path / "root", partitions=2).start()
    query.processAllAvailable()
    query.stop(drain=True)
    alone = described.standalone(checkpoint=tmp_path / "alone")
    alone.run(tables, drain=True)
    found = [[in_order(row) for row in flat(output(tmp_path / root, "panes"))] for root in ("root", "alone")]
    assert sorted(found[0]) == sorted(found[1])
    assert len(found[0]) > 10
    again = [row for of in (0, 1) for row in tables[of].to_pylist() if row["k"] is not None]
    assert query.manifest.totals["duplicates"] >= sum(row["shape"] not in ("cti", "edge_end") for row in again)
    # An end that was taken is not known: it is refused if it comes again.
    refused = [flat(output(tmp_path / root, "late")) for root in ("root", "alone")]
    ledgers = [sorted(str(r) for r in rows if "cti_violation" in r and "edge_end" not in r) for rows in refused]
    assert ledgers[0] == ledgers[1] != []


def flat(found: dict[int, list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    return [row for rows in found.values() for row in rows]


def in_order(row: tuple[Any, ...]) -> str:
    """A pane as text; its list has no order of its own."""
    return str([sorted(value) if isinstance(value, list) else value for value in row])


def history(root: Path) -> list[Manifest]:
    return [manifest for manifest in Checkpoint.open(root).history() if manifest.kind != "fence"]


def in_any_order(found: dict[int, list[tuple[Any, ...]]]) -> list[list[str]]:
    return [sorted(map(str, rows)) for rows in found.values()]


@pytest.mark.long
@pytest.mark.parametrize("death", [3, 4])
def test_the_look_up_killed_has_its_exact_output(tmp_path: Path, death: int) -> None:
    """On the standalone runner: tests/operators/joins/test_overlaps.py."""
    for number, sides in enumerate(look_up.batches((2, 4))):
        write(tmp_path / "left", number, sides["left"])
        write(tmp_path / "right", number, sides.get("right", look_up.LIMITS.empty_table()))
    killed("tests.children.look_up", tmp_path, "spark", death=death)
    checkpoint = Checkpoint.open(tmp_path / "checkpoint")
    refs = [ref for found in checkpoint.outputs() for ref in found.panes]
    tables = [pq.read_table(checkpoint.objects.locate(ref.path)) for ref in refs]
    assert look_up.observed(pa.concat_tables(tables)) == look_up.EXPECTED
    assert not output(tmp_path / "checkpoint", "late")
