"""Where the time of a batch goes, by phase: ours on Spark, over keys, batch size, state partitions and state."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tidestate.operators.engine.tasks import PHASES
from tools.bench.bids import Bids
from tools.bench.memory import EACH_NEW
from tools.bench.sides import Answer, SideError, Sides, Task
from tools.bench.table import Row, commit, insert, markdown

SHARES = (*PHASES, "spark")
WARM = 5
DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Point:
    """A run with one thing changed: ``along`` is what, ``value`` to what."""

    along: str
    value: int
    bids: Bids
    cold: int
    work: str = "tumbling"
    partitions: int = 2


def _new(batch: int, batches: int) -> Bids:
    """Every event a key of its own; the last bid closes the windows of a day."""
    return Bids(EACH_NEW, batch, batches, rate=batch, closing_us=2 * DAY_US)


def points(*, small: bool) -> list[Point]:
    """All runs of the sweep."""
    batch, cold = (50_000, 2) if small else (500_000, 3)
    usual = Bids(100_000, batch, cold + WARM, batch // 10)
    keys = (100, 10_000, 1_000_000) if small else (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    sizes = (1_000, 10_000, 100_000) if small else (1_000, 10_000, 100_000, 1_000_000, 2_500_000)
    partitions = (1, 4, 16) if small else (1, 4, 16, 64, 256)
    state = (1, 10) if small else (2, 10, 40)
    return [
        *(Point("keys", value, replace(usual, keys=value), cold) for value in keys),
        *(Point("events a batch", size, replace(usual, batch=size, rate=size // 10), cold) for size in sizes),
        *(Point("state partitions", number, usual, cold, partitions=number) for number in partitions),
        *(Point("rows of state", batches * batch, _new(batch, batches + WARM), batches, "held") for batches in state),
    ]


def run(along: Sequence[str], *, small: bool) -> Iterator[Row]:
    """A row for each run: the median batch in seconds, and of it those of each phase. A failure has an ``error``."""
    at = commit()
    with Sides(fresh=not small) as sides:
        for point in points(small=small):
            if along and point.along not in along:
                continue
            print(f"{point.along} {point.value:,} ...", file=sys.stderr, flush=True)
            row: Row = {"along": point.along, "value": point.value}
            try:
                found = _measured(point, sides)
            except SideError as error:
                yield row | {"error": str(error).splitlines()[-1], "commit": at}
                continue
            rest = max(0.0, found.median_batch_s - sum(found.phases_s.values()))
            spent = {**found.phases_s, "spark": rest}
            phases = {phase: round(spent.get(phase, 0.0), 3) for phase in SHARES}
            yield row | {"batch_s": round(found.median_batch_s, 3), **phases, "commit": at}


def _measured(point: Point, sides: Sides) -> Answer:
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as folder:
        point.bids.write(Path(folder) / "input")
        task = Task(
            work=point.work,
            folder=folder,
            cold=point.cold,
            batches=point.bids.batches - point.cold,
            batch=point.bids.batch,
            partitions=point.partitions,
        )
        return sides.run("ours", task)


def draw(rows: Sequence[Row], folder: Path, *, small: bool) -> None:
    """Pictures under ``folder``, and the part of its ``performance.md`` that has them and their tables."""
    import vl_convert

    parts = [
        f"Commit {rows[0]['commit']}, {'small' if small else 'full'} size: medians of {WARM} batches, in seconds.\n"
    ]
    for along in dict.fromkeys(str(row["along"]) for row in rows):
        some = [row for row in rows if row["along"] == along and "error" not in row]
        name = f"{along.replace(' ', '-')}.svg"
        (folder / "performance").mkdir(exist_ok=True)
        (folder / "performance" / name).write_text(vl_convert.vegalite_to_svg(_chart(along, some)))
        columns = [{along: row["value"], **{n: row[n] for n in ("batch_s", *SHARES)}} for row in some]
        parts.append(f"![Seconds of a batch by phase, over {along}](performance/{name})\n\n{markdown(columns)}")
    insert(folder / "performance.md", "sweep", "\n".join(parts))


def _chart(along: str, rows: Sequence[Row]) -> dict[str, object]:
    """Bars of phases; of batches of different sizes their shares."""
    stack = "normalize" if along == "events a batch" else "zero"
    title = "share of a batch" if stack == "normalize" else "seconds of a batch"
    values = [
        {"value": f"{row['value']:,}", "phase": phase, "seconds": row[phase], "order": place}
        for row in rows
        for place, phase in enumerate(SHARES)
    ]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": "white",
        "width": 480,
        "height": 240,
        "data": {"values": values},
        "mark": "bar",
        "encoding": {
            "x": {"field": "value", "type": "ordinal", "sort": None, "title": along, "axis": {"labelAngle": 0}},
            "y": {"field": "seconds", "type": "quantitative", "stack": stack, "title": title},
            "color": {"field": "phase", "type": "nominal", "sort": list(SHARES), "title": None},
            "order": {"field": "order", "type": "quantitative"},
        },
    }
