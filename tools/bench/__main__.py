"""The benchmarks: ``python -m tools.bench all|memory|sweep|stores|progress|joins|scale|start|connect``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tools.bench import connect as connect_bench
from tools.bench import joins as join_benches
from tools.bench import memory as memory_bench
from tools.bench import progress as progress_bench
from tools.bench import scale as scale_bench
from tools.bench import start as start_bench
from tools.bench import stores as store_benches
from tools.bench import sweep as sweep_bench
from tools.bench import table
from tools.bench.cases import CASES
from tools.bench.table import Row

app = typer.Typer(help="Benchmarks against peers, in the same call on the same machine.", no_args_is_help=True)


class Size(Enum):
    """``small``: a few minutes for everything; ``full``: what the aims are for."""

    small = "small"
    full = "full"


Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Sized = Annotated[Size, typer.Option("--size", help="Aims are for the full size.")]


@app.command("all")
def all_cases(
    case: Annotated[
        list[str] | None, typer.Option(help="One case, or all whose names contain this; may be given several times.")
    ] = None,
    size: Sized = Size.small,
    as_json: Json = False,
    detail: Annotated[bool, typer.Option(help="Everything measured, with --json.")] = False,
    draw: Annotated[Path | None, typer.Option(help="Put the table into performance.md of this folder.")] = None,
    names: Annotated[bool, typer.Option("--list", help="The names of the cases, and no more.")] = False,
) -> None:
    """Every case against its peer, in turn, with a durable checkpoint every batch and equal panes.

    A figure is events divided by wall time over the warm part of a run. Ends with 1 if a case fails or panes differ.
    """
    logging.getLogger("tidestate").setLevel(logging.ERROR)  # the bid that closes windows is a leap of time
    chosen = [one for one in CASES if not case or any(_means(name.lower(), one.title.lower()) for name in case)]
    if not chosen:
        raise typer.BadParameter(f"no such case: {', '.join(case or [])}; --list names them")
    if names:
        print("\n".join(one.title for one in chosen))
        return
    rows = []
    for row in table.run(chosen, small=size is Size.small, detail=detail and as_json):
        rows.append(row)
        if as_json:
            print(table.as_json(row), flush=True)
    if draw is not None:
        table.insert(draw / "performance.md", "cases", _dated(rows, size))
    if not as_json:
        table.show(rows)
    if any("error" in row for row in rows):
        sys.exit(1)


def _dated(rows: list[Row], size: Size) -> str:
    """The table of a document, and what it is of."""
    return f"Commit {rows[0]['commit']}, {size.value} size.\n\n{table.markdown(rows)}"


def _means(given: str, title: str) -> bool:
    """A name of a case means that one, any other text all that contain it."""
    return given == title if given in {one.title.lower() for one in CASES} else given in title


@app.command()
def memory(
    case: Annotated[list[str] | None, typer.Option(help="One case; may be given several times.")] = None,
    size: Sized = Size.small,
    as_json: Json = False,
    draw: Annotated[Path | None, typer.Option(help="Put the table into performance.md of this folder.")] = None,
) -> None:
    """Peak resident memory of a process that holds state, against its budget and 300 MB. Ends with 1 above that."""
    _check_known("case", case, memory_bench.CASES)
    logging.getLogger("tidestate").setLevel(logging.ERROR)
    rows: list[Row] = []
    peaks = []
    at = table.commit()
    for name in case or memory_bench.CASES:
        peak = memory_bench.measured(name, small=size is Size.small)
        peaks.append(peak)
        rows.append(memory_bench.row(peak) | {"commit": at})
        print(f"{name}: {peak.seconds} s", file=sys.stderr, flush=True)
        if as_json:
            print(table.as_json(rows[-1]), flush=True)
    if draw is not None:
        table.insert(draw / "performance.md", "memory", _dated(rows, size))
    if not as_json:
        table.show(rows)
    if any(peak.peak_mb > peak.allowed_mb for peak in peaks):
        sys.exit(1)


@app.command()
def sweep(
    along: Annotated[
        list[str] | None, typer.Option(help="keys, events a batch, state partitions or rows of state.")
    ] = None,
    size: Sized = Size.small,
    as_json: Json = False,
    draw: Annotated[Path | None, typer.Option(help="Draw into performance.md of this folder, as docs.")] = None,
) -> None:
    """Ours on Spark over keys, batch size, state partitions and state: seconds of the median batch, by phase."""
    rows = []
    for row in sweep_bench.run(along or [], small=size is Size.small):
        rows.append(row)
        if as_json:
            print(table.as_json(row), flush=True)
    if draw is not None:
        sweep_bench.draw(rows, draw, small=size is Size.small)
    if not as_json:
        table.show(rows)
    if any("error" in row for row in rows):
        sys.exit(1)


@app.command()
def stores(
    chosen: Annotated[
        list[str] | None, typer.Argument(help="Some of: " + ", ".join(store_benches.BENCHES) + ". All by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The three stores by themselves, each figure with its peer in the same run. A minute or two."""
    _check_known("bench", chosen, store_benches.BENCHES)
    _print(store_benches.run(chosen or []), as_json, _facts)


@app.command()
def progress(as_json: Json = False) -> None:
    """Origin progress by itself: buffers a second in order, in random order and in chunks. Takes seconds."""
    _print(progress_bench.run(), as_json, _facts)


@app.command()
def joins(
    held: Annotated[
        bool, typer.Option(help="What holding rows until the watermark costs, instead, by windows of sides.")
    ] = False,
    keys: Annotated[int, typer.Option(help="Distinct keys.")] = 100_000,
    events: Annotated[int, typer.Option(help="Events of each stream in the warm part.")] = 1_000_000,
    batch: Annotated[int, typer.Option(help="Events of each stream in a batch.")] = 100_000,
    kept: Annotated[list[int] | None, typer.Option(help="Rows kept out of reach, ascending.")] = None,
    store: Annotated[list[str] | None, typer.Option(help="parquet, rocksdb, memory.")] = None,
    as_json: Json = False,
) -> None:
    """What a batch of an interval join costs over history that it cannot reach, standalone: the same batches over
    more and more of it. Against Spark's own join: ``all --case join``.
    """
    _check_known("store", store, join_benches.STORES)
    stores, batches = store or ["parquet", "rocksdb"], -(-events // batch)
    measured = (
        chain.from_iterable(join_benches.held(keys, batch, batches, one) for one in stores)
        if held
        else join_benches.history(keys, batch, batches, kept or join_benches.KEPT, stores)
    )
    rows = _print(measured, as_json, None)
    if not held and not all(row["pairs"] == rows[0]["pairs"] for row in rows):
        sys.exit("the pairs differ: history was met")


@app.command()
def scale(
    partitions: Annotated[
        list[int] | None, typer.Option(help="State partitions; may be given several times.")
    ] = None,
    changed: Annotated[
        list[int] | None, typer.Option(help="How many of them a batch changes; 10, 100 and all by default.")
    ] = None,
    warm: Annotated[int, typer.Option(min=1, help="Checkpoints of each row.")] = 20,
    as_json: Json = False,
    draw: Annotated[Path | None, typer.Option(help="Put the table into scale.md of this folder.")] = None,
) -> None:
    """What a checkpoint costs over many state partitions: bytes, seconds, requests to S3 and their price."""
    logging.getLogger("tidestate").setLevel(logging.ERROR)  # a lease may outlive the service
    rows = _print(scale_bench.run(partitions or scale_bench.PARTITIONS, changed or (), warm=warm), as_json, None)
    if draw is not None:
        table.insert(draw / "scale.md", "scale", f"Commit {rows[0]['commit']}.\n\n{table.markdown(rows)}")


@app.command()
def start(
    turns: Annotated[int, typer.Option(min=1, help="How often each.")] = 20,
    as_json: Json = False,
) -> None:
    """How long the command takes to start, against a process that only imports pyarrow."""
    _print(start_bench.run(turns), as_json, None)


@app.command()
def connect(
    turns: Annotated[int, typer.Option(min=1, help="How often each.")] = 3,
    as_json: Json = False,
) -> None:
    """A batch on Spark Connect against the same on classic Spark, in turn: rows of the JVM, without direct scan."""
    _print(connect_bench.run(turns), as_json, None)


def _print(measured: Iterable[Row], as_json: bool, draw: Callable[[list[Row]], Table] | None) -> list[Row]:
    """Print each row as it is measured, as JSON, or a table of all."""
    rows = []
    for row in measured:
        rows.append(row)
        if as_json:
            print(table.as_json(row), flush=True)
    if not as_json and draw is None:
        table.show(rows)
    elif not as_json and draw is not None:
        Console().print(draw(rows))
    return rows


def _check_known(what: str, chosen: list[str] | None, known: Collection[str]) -> None:
    if unknown := sorted(set(chosen or []) - set(known)):
        raise typer.BadParameter(f"no such {what}: {', '.join(unknown)}")


def _facts(rows: list[Row]) -> Table:
    """Every row's own figures below its name: they differ from bench to bench."""
    drawn = Table(box=None, pad_edge=False, show_header=False)
    for row in rows:
        drawn.add_row(f"[bold]{row['name']}", "")
        for name, value in row.items():
            if name != "name":
                drawn.add_row(f"  {name}", f"{value:,}" if isinstance(value, int | float) else str(value))
    return drawn


if __name__ == "__main__":
    app()
