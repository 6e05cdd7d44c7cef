"""``python -m tools.bench tumbling|stores|progress|windows|joins|start [--json] …``."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tools.bench import joins as join_benches
from tools.bench import progress as progress_bench
from tools.bench import start as start_bench
from tools.bench import stores as store_benches
from tools.bench import windows as window_benches
from tools.bench.bids import Bids

app = typer.Typer(help="Benchmarks against peers, in the same call on the same machine.", no_args_is_help=True)

Row = dict[str, Any]
AIMS = {100: 0.7, 100_000: 3.0, 5_000_000: 8.0}
COLD_BATCHES = 3
WINDOWS = {"tumbling": "window", "session": "session_window"}


@app.command()
def tumbling(
    keys: Annotated[list[int] | None, typer.Option(help="Distinct keys; may be given several times.")] = None,
    events: Annotated[int, typer.Option(help="Events in the warm part.")] = 12_500_000,
    batch: Annotated[int, typer.Option(help="Events a batch.")] = 1_250_000,
    rate: Annotated[int, typer.Option(help="Events in a second of event time.")] = 50_000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    detail: Annotated[bool, typer.Option(help="Everything measured, with --json.")] = False,
) -> None:
    """10-second tumbling windows over bids: ours against Spark's own with its RocksDB provider, in turn.

    Events divided by wall time over the warm part of a run: its first three batches are left out on both sides.
    """
    # Enough for five whole windows, and for a snapshot of each state partition.
    batches = max(8, -(-events // batch), -(-60 * rate // batch))
    measured = (measure(number, batch, batches, rate) for number in keys or list(AIMS))
    rows = _print(measured, as_json, _table, detail=detail)
    if not all(row["panes_equal"] for row in rows):
        sys.exit("the panes of the two sides differ")


@app.command()
def stores(
    chosen: Annotated[
        list[str] | None, typer.Argument(help="Some of: " + ", ".join(store_benches.BENCHES) + ". All by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """The three stores by themselves, each figure with its peer in the same run. A minute or two."""
    _check_known("bench", chosen, store_benches.BENCHES)
    _print(store_benches.run(chosen or []), as_json, _facts)


@app.command()
def progress(as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False) -> None:
    """Origin progress by itself: buffers a second in order, in random order and in chunks. Takes seconds."""
    _print(progress_bench.run(), as_json, _facts)


@app.command()
def windows(
    chosen: Annotated[
        list[str] | None, typer.Argument(help="Some of: " + "; ".join(window_benches.CASES) + ". All by default.")
    ] = None,
    keys: Annotated[list[int] | None, typer.Option(help="Distinct keys; may be given several times.")] = None,
    batch: Annotated[int, typer.Option(help="Events a batch.")] = 20_000,
    batches: Annotated[int, typer.Option(help="Warm batches.")] = 3,
    spark: Annotated[bool, typer.Option(help="Sessions against Spark's session_window as well: minutes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """The general window operator by itself, against Arrow's group_by of the same events. Takes seconds;
    the full form is ``--batch 500000 --batches 9 --spark``.
    """
    _check_known("windows", chosen, window_benches.CASES)
    _print(window_benches.run(keys or [100, 100_000], batch, batches, chosen or []), as_json, _facts)
    for number in (keys or [100, 100_000]) if spark else []:
        row = measure(number, batch, max(8, batches), window_benches.RATE, "session")
        _print([row], True, _facts, detail=False)
        if not row["panes_equal"]:
            sys.exit("the panes of the two sides differ")


@app.command()
def joins(
    history: Annotated[bool, typer.Option(help="What a batch costs over history that it cannot reach.")] = False,
    held: Annotated[
        bool, typer.Option(help="What holding rows until the watermark costs, by windows of sides.")
    ] = False,
    keys: Annotated[int, typer.Option(help="Distinct keys.")] = 100_000,
    events: Annotated[int, typer.Option(help="Events of each stream in the warm part.")] = 1_000_000,
    batch: Annotated[int, typer.Option(help="Events of each stream in a batch.")] = 100_000,
    state_format: Annotated[int, typer.Option(help="Of Spark's state: 2, its default, or 3.")] = 2,
    kept: Annotated[list[int] | None, typer.Option(help="With --history: rows kept out of reach, ascending.")] = None,
    store: Annotated[list[str] | None, typer.Option(help="With --history, --held: parquet, rocksdb, memory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    detail: Annotated[bool, typer.Option(help="Everything measured, with --json.")] = False,
) -> None:
    """Interval join of two streams of bids: ours against Spark's own with its RocksDB provider, in turn.

    With --history standalone, a table: the same batches over more and more history outside the bounds. With --held
    of a join with a window for each side, with its rows as they come and held until the watermark.
    """
    if not history and not held:
        (row,) = _print(
            [join_benches.against_spark(keys, events, batch, state_format)], as_json, _table, detail=detail
        )
        if not row["panes_equal"]:
            sys.exit("the pairs of the two sides differ")
        return
    _check_known("store", store, join_benches.STORES)
    stores, batches = store or ["parquet", "rocksdb"], -(-events // batch)
    measured = (
        chain.from_iterable(join_benches.held(keys, batch, batches, one) for one in stores)
        if held
        else join_benches.history(keys, batch, batches, kept or join_benches.KEPT, stores)
    )
    rows = _print(measured, as_json, _columns)
    if not held and not all(row["pairs"] == rows[0]["pairs"] for row in rows):
        sys.exit("the pairs differ: history was met")


@app.command()
def start(
    turns: Annotated[int, typer.Option(min=1, help="How often each.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """How long the command takes to start, against a process that only imports pyarrow."""
    _print(start_bench.run(turns), as_json, _columns)


def measure(keys: int, batch: int, batches: int, rate: int, kind: str = "tumbling") -> dict[str, Any]:
    """Both sides on the same files; the ratio is ours to the peer's, bigger is better."""
    with tempfile.TemporaryDirectory(prefix="tidestate-bench-") as name:
        folder = Path(name)
        bids = Bids(keys, batch, COLD_BATCHES + batches, rate)
        bids.write(folder / "input")
        mine, theirs = (_run(side, kind, folder, COLD_BATCHES) for side in ("ours", "spark"))
    return {
        "name": f"{kind}, {keys:,} keys",
        "events_per_s": mine["events_per_s"],
        "peer": f"spark groupBy({WINDOWS[kind]}, key), rocksdb + changelog, parquet sink",
        "peer_events_per_s": theirs["events_per_s"],
        "ratio": round(mine["events_per_s"] / theirs["events_per_s"], 2),
        "aim": AIMS.get(keys) if kind == "tumbling" else None,
        "median_batch_s": mine["median_batch_s"],
        "peer_median_batch_s": theirs["median_batch_s"],
        "events": mine["events"],
        "panes": mine["panes"],
        "panes_equal": _same(mine, theirs),
        "folds": mine["folds"],
        "snapshots": mine["snapshots"],
        "ours": mine,
        "theirs": theirs,
    }


def _print(
    measured: Iterable[Row], as_json: bool, table: Callable[[list[Row]], Table], *, detail: bool = True
) -> list[Row]:
    """Print each row as it is measured, as JSON, or a table of all; without ``detail`` JSON has no nested values."""
    rows = []
    for row in measured:
        rows.append(row)
        if as_json:
            plain = {name: value for name, value in row.items() if detail or not isinstance(value, dict)}
            print(json.dumps(plain), flush=True)
    if not as_json:
        Console().print(table(rows))
    return rows


def _check_known(what: str, chosen: list[str] | None, known: Collection[str]) -> None:
    if unknown := sorted(set(chosen or []) - set(known)):
        raise typer.BadParameter(f"no such {what}: {', '.join(unknown)}")


def _same(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """As many panes with the same sums; the sum of the means may differ in its last bits."""
    close = math.isclose(mine["check"][2], theirs["check"][2], rel_tol=1e-9)
    return mine["panes"] == theirs["panes"] and mine["check"][:2] == theirs["check"][:2] and close


def _run(side: str, kind: str, folder: Path, cold: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tools.bench.sides", side, kind, str(folder), str(cold)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{side} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "events/s", "Spark's", "ratio", "aim", "panes"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['events_per_s']:,}",
            f"{row['peer_events_per_s']:,}",
            f"{row['ratio']:.2f}",
            "-" if row["aim"] is None else str(row["aim"]),
            f"{row['panes']:,}" if row["panes_equal"] else "DIFFER",
        )
    return table


def _columns(rows: list[dict[str, Any]]) -> Table:
    """A column for each figure: all rows have the same."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in rows[0]:
        table.add_column("" if heading == "name" else heading, justify="left" if heading == "name" else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int | float) else str(value) for value in row.values()))
    return table


def _facts(rows: list[dict[str, Any]]) -> Table:
    """Every row's own figures below its name: they differ from bench to bench."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for row in rows:
        table.add_row(f"[bold]{row['name']}", "")
        for name, value in row.items():
            if name != "name":
                table.add_row(f"  {name}", f"{value:,}" if isinstance(value, int | float) else str(value))
    return table


if __name__ == "__main__":
    app()
