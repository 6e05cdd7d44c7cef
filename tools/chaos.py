"""``python -m tools.chaos``: what chaos finds in the example jobs with a fault, and in right ones."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import tidestate as ts
from tidestate import agg, fn
from tidestate.operators.chaos.faults import STORES, chosen_kinds
from tidestate.operators.chaos.inputs import copied_input
from tidestate.operators.chaos.rounds import ChaosRounds, RoundResult
from tidestate.operators.chaos.start import UserJob
from tidestate.operators.local.bootstrap import load_job, load_object
from tidestate.statestore.durations import span_us
from tools.bench.table import ROOT, Row, commit, insert, markdown, show

PAGE = "chaos.md"
EXAMPLE = ROOT / "examples" / "chaos_job.py"
PLANTED = {
    "sink_that_repeats": "a sink that stores a delivery again",
    "sink_that_is_hasty": "a sink that accepts before it stores",
    "sink_that_counts": "a sink that relies on the order of rows",
    "clicks_by_the_clock": "an aggregate that reads the clock",
    "clicks_by_hash": "an aggregate that uses Python's hash of a text",
    "clicks_that_remember": "an aggregate that keeps something between calls",
    "clicks_not_associative": "an aggregate whose merge is not associative",
}


def sessions() -> ts.OperatorStream:
    """Sessions that grow and merge, with retractions and late events."""
    clicks = ts.stream(event_time="t", watermark_delay="30 seconds")
    visits = clicks.group_by("user").window(ts.sessions("20 seconds"))
    job = visits.aggregate(clicks=agg.count(), cost=agg.sum("cost"), middle=agg.median("cost")).named("sessions")
    return job.allowed_lateness("2 minutes", ledger_columns="cost").accumulation("retracting")


def two() -> ts.OperatorStream:
    """A chain of two operators, both with retractions."""
    clicks = ts.stream(event_time="t", watermark_delay="10 seconds")
    brief = clicks.group_by("user").window(ts.tumbling("20 seconds"))
    first = brief.aggregate(clicks=agg.count(), most=agg.max("cost")).named("first")
    first = first.allowed_lateness("1 minute").accumulation("retracting")
    second = first.group_by("user").window(ts.tumbling("2 minutes")).aggregate(most=agg.max("most")).named("second")
    return second.allowed_lateness("2 minutes").accumulation("retracting")


def pairs() -> ts.OperatorStream:
    """A full join within a distance, whose unmatched rows are taken back."""
    left, right = (ts.stream(event_time="t") for _ in range(2))
    return left.join(right, on="user", within=("-5 seconds", "5 seconds"), how="full", allowed_lateness="1 minute")


def prepared() -> ts.OperatorStream:
    """Filters, a local clock, expectations, and panes that are shown only sometimes."""
    clicks = ts.stream(event_time="t", watermark_delay="30 seconds").where("cost <> 13")
    clicks = clicks.with_columns(hour=fn.date_format("t", "yyyy-MM-dd HH", zone="Asia/Kathmandu"))
    clicks = clicks.expect("not free", "cost > 2").expect("cheap", "cost < 90", otherwise="count")
    per_minute = clicks.group_by("user", "hour").window(ts.tumbling("1 minute"))
    job = per_minute.aggregate(
        clicks=agg.count(), large=agg.count(where="cost > 50"), cost=agg.sum(ts.expr("cost * 2"))
    )
    job = job.derive(share="large / clicks").having("clicks >= 2").named("prepared")
    return job.allowed_lateness("2 minutes", ledger_columns="cost").accumulation("retracting")


def outputs() -> ts.OutputsJob:
    """Three outputs, of which one reads another."""
    clicks = ts.stream(event_time="t", watermark_delay="10 seconds")
    per_user = clicks.group_by("user").window(ts.tumbling("20 seconds"))
    first = per_user.aggregate(clicks=agg.count(), most=agg.max("cost")).named("per_user")
    first = first.allowed_lateness("1 minute").accumulation("retracting")
    second = first.group_by().window(ts.tumbling("2 minutes")).aggregate(most=agg.max("most"), users=agg.count())
    second = second.allowed_lateness("2 minutes").accumulation("retracting").named("of_users")
    third = clicks.group_by().window(ts.tumbling("1 minute")).aggregate(cost=agg.sum("cost")).named("of_all")
    return ts.job(first, second, third.allowed_lateness("1 minute").accumulation("retracting"))


RIGHT = {
    f"{EXAMPLE}:clicks": "windows, and a sink",
    **{f"tools.chaos:{one.__name__}": one.__doc__ for one in (sessions, two, pairs, prepared, outputs)},
}


def main(
    span: Annotated[str, typer.Option("--for", help="How long each right job is under faults.")] = "1 minute",
    seed: int = 1,
    draw: Annotated[Path | None, typer.Option(help=f"Put the result into {PAGE} of this folder.")] = None,
) -> None:
    """Ends with 1 unless each planted fault was found, and nothing in the right jobs."""
    at, rows = commit(), []
    columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="tidestate-chaos-") as folder,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("", total=len(PLANTED) + len(RIGHT))
        load_object(f"{EXAMPLE}:write_input")(Path(folder) / "clicks")
        for number, name in enumerate((*PLANTED, *RIGHT)):
            progress.update(bar, description=name.rpartition(":")[2])
            rounds = _rounds(Path(folder), number, name, seed)
            rows.append(_planted(rounds, name) if name in PLANTED else _right(rounds, name, span_us(span) / 1e6))
            progress.advance(bar)
    show(rows)
    if draw is not None:
        insert(draw / PAGE, "chaos", f"Commit {at}, seed {seed}, {span} for each right job.\n\n{markdown(rows)}")
    if not all(row["as_it_should_be"] == "yes" for row in rows):
        sys.exit(1)


def _rounds(folder: Path, number: int, name: str, seed: int) -> ChaosRounds:
    job = f"{EXAMPLE}:{name if name.startswith('clicks') else 'clicks'}" if name in PLANTED else name
    sink = f"{EXAMPLE}:{name if name.startswith('sink') else 'sink'}" if str(EXAMPLE) in job else None
    clicks = [str(folder / "clicks")]
    streams = {"left": clicks, "right": clicks} if name.endswith(":pairs") else {"input": clicks}
    given = copied_input(load_job(job).graph.streams, streams, None, folder / f"input-{number}")
    user = UserJob(job, given, sink, sink and f"{EXAMPLE}:sink_rows")
    kinds = chosen_kinds("standalone", recut="not_associative" in name)
    return ChaosRounds(user, folder / str(number), seed, kinds, ["parquet"] if name in PLANTED else list(STORES))


def _planted(rounds: ChaosRounds, name: str) -> Row:
    """Until it is found, or each class has had its turn."""
    results: list[RoundResult] = []
    for one in rounds.each(lambda: True):
        results.append(one)
        if one.verdict == "differs":
            break
    found = results[-1].verdict == "differs"
    by = f"{', '.join(results[-1].plan.kinds)}: {results[-1].differences[0].part}" if found else "nothing"
    return _row(PLANTED[name], results, by, right=found)


def _right(rounds: ChaosRounds, name: str, seconds: float) -> Row:
    end = time.time() + seconds
    results = list(rounds.each(lambda: time.time() >= end))
    found = sum(one.verdict != "same" for one in results)
    return _row(
        f"none: {name.rpartition(':')[2]}, {RIGHT[name]}",
        results,
        f"{found} rounds" if found else "nothing",
        right=not found,
    )


def _row(what: str, results: list[RoundResult], found: str, *, right: bool) -> Row:
    faults = sum(put.reached for one in results for put in one.faults)
    starts = sum(one.starts for one in results)
    row: Row = {"name": what, "rounds": len(results), "starts": starts, "faults": faults, "found": found}
    return row | {"as_it_should_be": "yes" if right else "no"}


if __name__ == "__main__":
    typer.run(main)
