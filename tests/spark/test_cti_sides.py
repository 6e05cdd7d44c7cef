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

from tests.children.spark_job import read
from tests.helpers import look_up
from tests.helpers.killed import killed
from tests.helpers.process import some
from tests.helpers.spark_inputs import write
from tests.helpers.spark_runs import output
from tidestate.agg import count
from tidestate.agg import list as list_
from tidestate.agg import sum as sum_
from tidestate.operators import sliding, tumbling
from tidestate.operators.describe.altered import altered
from tidestate.operators.describe.chain import Chain, chain
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.overlap_join import overlap_join
from tidestate.operators.describe.runnable import Runnable, Sided
from tidestate.operators.describe.session_join import session_join
from tidestate.operators.describe.union import union
from tidestate.operators.describe.windowed import DISCARDING, RETRACTING, windowed
from tidestate.operators.progress.cti_settings import advance_time, generation
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest

pytestmark = pytest.mark.spark

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("k", "string"), ("t", TIME), ("end", TIME), ("shape", "string"), ("off", "int64"), ("part", "string")]
)
BATCHES, ROWS = 4, 30
OFFSETS: dict[str, Any] = {"offset": "off", "origin": "part"}
SETTINGS = {
    "left": advance_time("drop", generation(7, "2 seconds")),
    "right": advance_time("adjust", generation(20), import_from="left"),
}
ABOUT: dict[str, Any] = {"end": "end", "shape_column": "shape"}


def two_streams() -> Chain:
    """Each stream has CTIs of its own, by its parts; a third one has none."""
    of = {"event_time": "t", "key": "k", **OFFSETS}
    left = windowed(**of, name="of_left").window(tumbling("5 seconds")).aggregate(n=count()).late("0 seconds")
    left = left.advance_time(advance_time("drop", generation(5, "1 second")), sources=["p", "q"], **ABOUT)
    moved = altered(event_time="t", shift="-2 seconds", end="end", duration="4 seconds", **OFFSETS, name="moved")
    moved = moved.advance_time(advance_time("adjust", generation("3 seconds")), by="part", **ABOUT)
    lasting = windowed(event_time="t", key="k", name="of_right").window(sliding("6 seconds", "3 seconds", end="end"))
    lasting = lasting.aggregate(n=count()).late("0 seconds")
    plain = windowed(event_time="t", key="k", name="of_plain").window(tumbling("5 seconds")).aggregate(n=count())
    both = merge(
        event_time="pane_time", key="k", sides=("left", "right", "plain"), watermark_delay="0 seconds", name="both"
    )
    both = both.window(tumbling("10 seconds")).aggregate(l=sum_("left_n"), r=sum_("right_n"), p=sum_("plain_n"))
    inputs = {"of_left": "left", "moved": "right", "of_right": "moved", "of_plain": "plain"}
    inputs |= {"both": ("of_left", "of_right", "of_plain")}
    job = chain(left, moved, lasting, plain.late("0 seconds"), both.late("0 seconds"), inputs=inputs)
    return job


def look_up_of_panes() -> Chain:
    """Counts looked up in a stream that imports their watermark."""
    counted = windowed(event_time="t", key="k", **OFFSETS, name="counted").window(tumbling("5 seconds"))
    counted = counted.aggregate(n=count()).late("0 seconds")
    counted = counted.advance_time(advance_time("drop", generation(5, "1 second")), sources=["p", "q"], **ABOUT)
    valid = overlap_join(
        event_time=("pane_time", "t"),
        on="k",
        end=(None, "end"),
        shape_column=(None, "shape"),
        offset=(None, "off"),
        origin=(None, "part"),
        name="valid",
    )
    valid = valid.advance_time({"right": advance_time("adjust", import_from="left")})
    return chain(counted, valid, inputs={"counted": "left", "valid": ("counted", "right")})


def sided(made: Sided) -> Sided:
    return made.advance_time(SETTINGS, **ABOUT)


JOBS: dict[str, Runnable] = {
    "distance": sided(join(event_time="t", on="k", within=("-3 s", "3 s"), how="full", late="9 s", **OFFSETS)),
    "own windows": sided(join(event_time="t", on="k", window=(tumbling("5 s"), None), retain="1 day", **OFFSETS)),
    "sessions": sided(session_join(event_time="t", on="k", gap="2 s", how="full", late="9 s", **OFFSETS)),
    "union": sided(union(event_time="t", sides=("left", "right"), **OFFSETS)),
    "merge": sided(
        merge(event_time="t", key="k", **OFFSETS)
        .window(tumbling("5 s"))
        .aggregate(n=count(), left=count("left_t"))
        .accumulation(DISCARDING)
    ),
    "lifetimes": overlap_join(event_time="t", on="k", **ABOUT, **OFFSETS).advance_time(SETTINGS),
    "chain": two_streams(),
    "look-up of panes": look_up_of_panes(),
}


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


@pytest.mark.parametrize("name", some(JOBS, 2))
def test_panes_and_ledgers_equal_the_standalone_runner(spark: SparkSession, tmp_path: Path, name: str) -> None:
    described, tables = JOBS[name], inputs()
    streams = described.streams if isinstance(described, Chain) else ["left", "right"]
    for stream in streams:
        for number, table in enumerate(tables[stream]):
            write(tmp_path / stream, number, table)
    given = [read(spark, tmp_path / stream) for stream in streams]
    named = dict(zip(streams, given, strict=True))
    of = (
        described.on_spark(named, checkpoint=tmp_path / "root", partitions=2)
        if isinstance(described, Chain)
        else None
    )
    query = (of or described.on_spark(*given, checkpoint=tmp_path / "root", partitions=2)).start()
    query.processAllAvailable()
    query.stop(drain=True)
    batches: list[Any] = [{stream: tables[stream][at] for stream in streams} for at in range(BATCHES)]
    if isinstance(described, Sided):
        schema = described.schema(SCHEMA, SCHEMA)
        batches = [described.rows(schema, **batch) for batch in batches]
    alone = described.standalone(checkpoint=tmp_path / "alone")
    alone.run(batches, drain=True)
    panes = in_any_order(output(tmp_path / "root", "panes"))
    assert panes == in_any_order(output(tmp_path / "alone", "panes"))
    assert sum(map(len, panes)) > 10
    assert query.manifest.totals == alone.head.totals
    assert any("cti_violation" in name for name in query.manifest.totals)
    for operator in described.names if isinstance(described, Chain) else [described.name]:
        ledgers = [in_any_order(output(tmp_path / root, "late", operator)) for root in ("root", "alone")]
        assert ledgers[0] == ledgers[1]
        for found in ("advances", "watermark_us"):
            marks = [
                [getattr(m.operators[operator], found) for m in history(tmp_path / r)] for r in ("root", "alone")
            ]
            assert marks[0] == marks[1]


def test_messages_with_an_identity_take_part_once(spark: SparkSession, tmp_path: Path) -> None:
    """Batches that are handed in again, at once and much later: as the same job without identities, each row once."""
    described = windowed(event_time="t", key="k", **OFFSETS, name="job").window(tumbling("5 seconds"))
    described = described.aggregate(n=count(), offsets=list_("off")).accumulation(RETRACTING).late("100 days")
    by_span = advance_time("adjust", generation("5 seconds", "1 second"))
    described = described.advance_time(by_span, sources=["p", "q"], **ABOUT)
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
