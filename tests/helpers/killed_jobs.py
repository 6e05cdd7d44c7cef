"""Jobs over real flights and weather in a process to be killed, and what their output must be in the end: that of a
run that was not killed, and that of a plain query over the files.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.children.spark_job import JOBS, batches
from tests.helpers.checkout import ROOT
from tests.helpers.spark_inputs import write
from tests.helpers.spark_runs import output
from tidestate.recovery.log.checkpoint import Checkpoint
from tools.demo.child import Child
from tools.demo.flights import departed_flights, weather

FILES = 6
_PER_FILE = 800

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
    "prepared": """
        select carrier, cast(scheduled at time zone 'America/New_York' as date) as day,
            date_trunc('day', scheduled) as start, count(*), count(*) filter (dep_delay > 0), sum(dep_delay * 60),
            round(count(*) filter (dep_delay > 0) / count(*), 9)
        from flights where origin <> 'LGA' and dep_delay > -12 group by all having count(*) >= 3""",
}
QUERIES["outputs"] = QUERIES["chain"]
OBSERVED = {
    "chain": "carrier, window_start, hours, flights, worst",
    "join": "left_flight_id, right_temp, right_wind_speed",
    "merge": "origin, window_start, flights, round(wind, 9)",
    "again": "carrier, window_start, flights, middle",
    "prepared": "carrier, day, window_start, flights, delayed, delay, round(share, 9)",
}
OBSERVED["outputs"] = OBSERVED["chain"]
_COMPACTED = 10
"""Spark takes so many entries of a source together."""
KEEP_IDS = ("chain", "outputs", "again", "prepared")
"""Jobs whose first ledger has the ids of flights."""


@cache
def inputs(count: int) -> dict[str, list[pa.Table]]:
    """So many files of flights, and for each the weather of its days."""
    flights, observed = departed_flights(), weather()
    files = [flights.slice(number * _PER_FILE, _PER_FILE) for number in range(count)]
    ends = [pc.max(file["scheduled"]).as_py() for file in files]
    bounds = list(zip([datetime(2013, 1, 1, tzinfo=UTC), *ends[:-1]], ends, strict=True))
    hours = observed["time_hour"]
    between = [pc.and_(pc.greater_equal(hours, pa.scalar(a)), pc.less(hours, pa.scalar(b))) for a, b in bounds]
    before = [files[0], *files[:-1]]
    sent = [(one, was.slice(200, 300), one.slice(0, 100)) for was, one in zip(before, files, strict=True)]
    again = [pa.concat_tables(parts) for parts in sent]
    return {"flights": files, "weather": [observed.filter(mask) for mask in between], "again": again}


def fill(folder: Path, count: int = FILES) -> None:
    """Write the input of all jobs below a folder, in so many files each."""
    for side, files in inputs(count).items():
        for number, table in enumerate(files):
            write(folder / side, number, table)


def begun(folder: Path, job: str, store: str, *options: str) -> Child:
    """The job of this name over the input in ``folder``; options are those of `tests.children.spark_job`."""
    return begun_together(folder, [[job, str(folder), "--store", store, *options]])


def begun_together(folder: Path, jobs: list[list[str]]) -> Child:
    """Jobs of one process, each by its arguments."""
    words = [word for job in jobs for word in ("+", *job)]
    return Child([sys.executable, "-m", "tests.children.spark_job", *words[1:]], folder / "job.log", cwd=ROOT)


def is_exact(folder: Path, job: str, cuts: list[list[list[Path]]] | None = None) -> None:
    """Panes and ledgers are those of an undisturbed run over the same batches, and the net panes those of a query.
    ``cuts``: the files of each batch, if Spark's log does not have them.
    """
    root = folder / "checkpoint"
    cuts = cuts or batches_of_spark(root / "spark")
    _ = JOBS[job]().standalone(checkpoint=folder / "alone").run(batches(job, folder, cuts), drain=True)
    head = Checkpoint.open(root).head()
    assert head is not None
    for name in head.manifest.output_names:
        assert output(root, "panes", name) == output(folder / "alone", "panes", name)
    names = list(head.manifest.operators)
    for name in names:
        assert output(root, "late", name) == output(folder / "alone", "late", name)
    for name in names[1:] if job in ("chain", "outputs") else names if job not in KEEP_IDS else ():
        assert output(root, "late", name) == {}
    late = late_flights(root, names[0]) if job in KEEP_IDS else []
    if job == "again":
        assert head.manifest.totals["duplicates"] == 400 * len([*(folder / "again").iterdir()])
        assert len(set(late)) == len(late)
    assert net(root, OBSERVED[job]) == plain(folder, job, set(late))


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


def batches_of_root(root: Path) -> list[list[list[Path]]]:
    """As `batches_of_spark`, whoever took them: what the manifests say."""
    positions = [one.spark for one in Checkpoint.open(root).history() if one.kind == "batch" and one.spark]
    return [
        [
            [Path(unquote(urlsplit(file.rpartition(" ")[0]).path)) for file in position.files.get(str(stream), ())]
            for stream in range(len(position.end))
        ]
        for position in positions
    ]


def listed(log: Path, stream: int, number: int) -> list[Path]:
    """The files that Spark took as one entry of a stream."""
    sources = log / "sources" / str(stream)
    own, last = sources / str(number), number // _COMPACTED * _COMPACTED + _COMPACTED - 1
    lines = (own if own.exists() else sources / f"{last}.compact").read_text().splitlines()[1:]
    entries = [entry for entry in map(json.loads, lines) if entry["batchId"] == number]
    return [Path(unquote(urlsplit(entry["path"]).path)) for entry in entries]


def late_flights(root: Path, name: str) -> list[int]:
    """Flights in the ledger of the first operator."""
    checkpoint = Checkpoint.open(root)
    refs = [ref for one in checkpoint.outputs() for ref in one.late_of(name)]
    ids = [pq.read_table(checkpoint.objects.locate(ref.path))["flight_id"].to_pylist() for ref in refs]
    return [one for some in ids for one in some]


def net(root: Path, columns: str) -> list[tuple[Any, ...]]:
    """What is left of the panes of the last operator when what was taken back is taken off."""
    checkpoint = Checkpoint.open(root)
    head = checkpoint.head()
    assert head is not None
    refs = [ref for one in checkpoint.outputs() for ref in one.panes_of(head.manifest.output_names[-1])]
    panes = pa.concat_tables([pq.read_table(checkpoint.objects.locate(ref.path)) for ref in refs])
    observed = panes.set_column(panes.column_names.index("kind"), "kind", panes["kind"].cast(pa.string()))
    db = duckdb.connect()
    db.execute("set timezone = 'UTC'")
    db.register("observed", observed)
    sign = "sum(case kind when 'emit' then 1 else -1 end)"
    found = db.execute(f"select {columns}, {sign} from observed group by all having {sign} != 0").fetchall()
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
