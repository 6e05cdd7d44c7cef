"""SIGKILL on jobs over real flights and weather: a chain, a join, a merge, windows of messages that come again. Then
the output of a run that was not killed, and that of a plain query over the files.
"""

from __future__ import annotations

import json
import random
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.children.spark_job import JOBS, PARTITIONS, batches
from tests.helpers.checkout import ROOT
from tests.helpers.process import LONG
from tests.helpers.spark_inputs import write
from tests.helpers.spark_runs import output
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.demo.child import Child
from tools.demo.flights import departed_flights, weather

pytestmark = pytest.mark.spark

FILES, FLIGHTS = 6, 4_800
MOMENTS = ("before-manifest:4", "after-manifest:4", "between-the-logs", "random")
CASES = [(job, moment, store) for job in JOBS for moment in MOMENTS for store in ("parquet", "memory", "rocksdb")]
BOUNDED = [
    ("chain", "before-manifest:4", "parquet"),
    ("join", "after-manifest:4", "rocksdb"),
    ("merge", "between-the-logs", "memory"),
    ("join", "random", "parquet"),
    ("again", "before-manifest:4", "parquet"),
]
"""In CI each job is killed once or twice, each moment and each store has its turn."""

QUERIES = {
    "chain": """
        select carrier, date_trunc('day', hour) as start, count(*), sum(n) as flights, max(worst) as worst from (
            select origin, carrier, date_trunc('hour', scheduled) as hour, count(*) as n, max(dep_delay) as worst
            from flights group by all) group by all""",
    "join": """
        select flight_id, temp, wind_speed from flights left join weather
        on flights.origin = weather.origin and date_trunc('hour', scheduled) = time_hour""",
    "merge": """
        select origin, start, sum(flight) as flights, round(avg(wind), 9) as wind from (
            select origin, date_trunc('hour', scheduled) as start, 1 as flight, null as wind from flights
            union all select origin, time_hour, 0, wind_speed from weather) group by all""",
    "again": """
        select carrier, date_trunc('day', scheduled) as day, count(*), median(dep_delay) from flights group by all""",
}
SHOWN = {
    "chain": "carrier, window_start, hours, flights, worst",
    "join": "left_flight_id, right_temp, right_wind_speed",
    "merge": "origin, window_start, flights, round(wind, 9)",
    "again": "carrier, window_start, flights, middle",
}


@pytest.fixture(scope="module")
def inputs() -> dict[str, list[pa.Table]]:
    """Files of flights, and for each the weather of its days."""
    flights, observed = departed_flights().slice(0, FLIGHTS), weather()
    size = FLIGHTS // FILES
    files = [flights.slice(start, size) for start in range(0, FLIGHTS, size)]
    ends = [pc.max(file["scheduled"]).as_py() for file in files]
    bounds = list(zip([datetime(2013, 1, 1, tzinfo=UTC), *ends[:-1]], ends, strict=True))
    hours = observed["time_hour"]
    between = [pc.and_(pc.greater_equal(hours, pa.scalar(a)), pc.less(hours, pa.scalar(b))) for a, b in bounds]
    before = [files[0], *files[:-1]]
    sent = [(one, was.slice(200, 300), one.slice(0, 100)) for was, one in zip(before, files, strict=True)]
    again = [pa.concat_tables(parts) for parts in sent]
    return {"flights": files, "weather": [observed.filter(mask) for mask in between], "again": again}


@pytest.fixture
def folder(tmp_path: Path, inputs: dict[str, list[pa.Table]]) -> Path:
    for side, files in inputs.items():
        for number, table in enumerate(files):
            write(tmp_path / side, number, table)
    return tmp_path


def start(folder: Path, job: str, store: str, *options: str) -> Child:
    command = [sys.executable, "-m", "tests.children.spark_job", job, str(folder), "--store", store, *options]
    return Child(command, folder / "job.log", cwd=ROOT)


@pytest.mark.parametrize(("job", "moment", "store"), CASES if LONG else BOUNDED)
def test_killed_and_exact(folder: Path, job: str, moment: str, store: str) -> None:
    if moment == "random":
        child = start(folder, job, store)
        child.wait_for(lambda event: event["event"] == "started")
        time.sleep(random.Random(f"{job} {store}").uniform(1.0, 8.0))
    else:
        pause = "before-manifest:4" if moment == "between-the-logs" else moment
        child = start(folder, job, store, "--pause", pause)
        child.wait_for(lambda event: event["event"] == "paused")
    child.kill()
    if moment == "between-the-logs":
        forget_planned_batch(folder / "checkpoint" / "spark")
    child = start(folder, job, store, "--drain", "--in-driver")
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()
    root = folder / "checkpoint"
    cuts = batches_of_spark(root / "spark")
    assert moment != "between-the-logs" or [len(first) for first, *_ in cuts] == [1, 1, 2, 1, 1, 0]
    _ = JOBS[job]().standalone(checkpoint=folder / "alone").run(batches(job, folder, cuts), drain=True)
    assert output(root, "panes") == output(folder / "alone", "panes")
    names = list(Checkpoint.open(root).read(1).manifest.operators)
    for name in names:
        assert output(root, "late", name) == output(folder / "alone", "late", name)
    late = late_flights(root, names[0]) if job in ("chain", "again") else []
    if job == "again":
        assert Checkpoint.open(root).head().manifest.totals["duplicates"] == FILES * 400  # type: ignore[union-attr]
        assert len(set(late)) == len(late)
    assert net(root, SHOWN[job]) == plain(folder, job, set(late))
    places = [one.scan.in_driver for one in Checkpoint.open(root).history() if one.scan is not None]
    in_driver = store == "parquet" and job not in PARTITIONS
    # A random kill may come after the last batch.
    assert moment == "random" or places[-1] == in_driver, "killed in tasks, continued in the driver"
    assert {bool(of.base) for of in Checkpoint.open(root).head().manifest.operators.values()} == {job in PARTITIONS}
    for name in names[1:] if job == "chain" else names:
        assert output(root, "late", name) == {}


def forget_planned_batch(log: Path) -> None:
    """Spark died between what it writes for a batch about the first stream and about the second: it then adds the
    next file of the first stream.
    """
    last = max(int(path.name) for path in (log / "offsets").glob("[0-9]*"))
    planned = [log / "offsets" / str(last), *(log / "sources").glob(f"[1-9]/{last}")]
    for path in planned:
        path.unlink()
        (path.parent / f".{path.name}.crc").unlink()


def batches_of_spark(log: Path) -> list[list[list[Path]]]:
    """The files of each of Spark's batches, by stream. A batch may have more than one, or none."""
    ends: list[list[int]] = []
    for number in sorted(int(path.name) for path in (log / "offsets").glob("[0-9]*")):
        lines = (log / "offsets" / str(number)).read_text().splitlines()[2:]
        before = ends[-1] if ends else [-1] * len(lines)
        now = [was if line == "-" else json.loads(line)["logOffset"] for line, was in zip(lines, before, strict=True)]
        ends.append(now)
    starts = [[-1] * len(ends[0]), *ends[:-1]]
    return [
        [[path for number in range(start + 1, end + 1) for path in listed(log, stream, number)]
         for stream, (start, end) in enumerate(zip(*bounds, strict=True))]
        for bounds in zip(starts, ends, strict=True)
    ]  # fmt: skip


def listed(log: Path, stream: int, number: int) -> list[Path]:
    """The files that Spark took as one entry of a stream."""
    lines = (log / "sources" / str(stream) / str(number)).read_text().splitlines()[1:]
    return [Path(unquote(urlsplit(json.loads(line)["path"]).path)) for line in lines]


def late_flights(root: Path, name: str) -> list[int]:
    """Flights in the ledger of the first operator."""
    checkpoint = Checkpoint.open(root)
    refs = [ref for manifest in checkpoint.history() for ref in manifest.late_of(name)]
    ids = [pq.read_table(checkpoint.objects.locate(ref.path))["flight_id"].to_pylist() for ref in refs]
    return [one for some in ids for one in some]


def net(root: Path, columns: str) -> list[tuple[Any, ...]]:
    """What is left of the panes when what was taken back is taken off."""
    checkpoint = Checkpoint.open(root)
    refs = [ref for manifest in checkpoint.history() for ref in manifest.panes]
    panes = pa.concat_tables([pq.read_table(checkpoint.objects.locate(ref.path)) for ref in refs])
    shown = panes.set_column(panes.column_names.index("kind"), "kind", panes["kind"].cast(pa.string()))
    db = duckdb.connect()
    db.execute("set timezone = 'UTC'")
    db.register("shown", shown)
    sign = "sum(case kind when 'emit' then 1 else -1 end)"
    found = db.execute(f"select {columns}, {sign} from shown group by all having {sign} != 0").fetchall()
    return sorted((row[:-1] for row in found for _ in range(row[-1])), key=repr)


def plain(folder: Path, job: str, late: set[int]) -> list[tuple[Any, ...]]:
    """The same by a query over the input files, without the flights that came too late."""
    db = duckdb.connect()
    db.execute("set timezone = 'UTC'")
    flights = pa.concat_tables([pq.ParquetFile(path).read() for path in sorted((folder / "flights").glob("*"))])
    taken = pa.array([one not in late for one in flights["flight_id"].to_pylist()])
    db.register("flights", flights.filter(taken))
    db.register(
        "weather", pa.concat_tables([pq.ParquetFile(p).read() for p in sorted((folder / "weather").glob("*"))])
    )
    return sorted((tuple(row) for row in db.execute(QUERIES[job]).fetchall()), key=repr)
