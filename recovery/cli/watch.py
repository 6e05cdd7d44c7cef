"""The verb watch: a running job, followed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tidestate.recovery.cli.app import RootPath, verbs
from tidestate.recovery.cli.options import Every, For
from tidestate.recovery.cli.printing import data_table, key_value_table, print_out, text
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import running
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.summary import (
    age_text,
    brief,
    pluralize,
    readable_time,
    seconds_of,
    short_age,
    short_seconds,
    size_text,
    source_progress,
    time_text,
)
from tidestate.statestore.durations import span_text, span_us
from tidestate.statestore.errors import NotFoundError

SOURCES = 6
"""The largest number of sources that have a line."""


@verbs.command(epilog='Example: tidestate watch /data/flights --every "5 seconds"')
def watch(
    root: RootPath,
    last: Annotated[int, typer.Option(min=1, help="How many checkpoints to show.")] = 10,
    every: Every = "1 second",
    for_: For = None,
) -> None:
    """Follow a running job until Ctrl-C: its driver, watermark, sources, state and newest checkpoints.

    The job may run on another host. If standard output is not a terminal, this is printed once.
    """
    every_s, end = span_us(every) / 1e6, None if for_ is None else time.monotonic() + span_us(for_) / 1e6
    view = Watched(Checkpoint.open(root), last)
    console = Console()
    if not console.is_terminal:
        print_out(*view.lines())
        return
    try:
        with Live(Group(*view.lines()), console=console, auto_refresh=False) as live:
            while end is None or time.monotonic() < end:
                time.sleep(every_s if end is None else min(every_s, max(0.0, end - time.monotonic())))
                live.update(Group(*view.lines()), refresh=True)
    except KeyboardInterrupt:
        return


class Watched:
    """A root that is watched; a manifest is read once."""

    def __init__(self, checkpoint: Checkpoint, last: int) -> None:
        self._checkpoint, self._last = checkpoint, last
        self._manifests: dict[int, Manifest] = {}

    def lines(self) -> list[RenderableType]:
        """What is on the screen now."""
        manifests = self._newest()
        if not manifests:
            return [Text(f"{self._checkpoint.objects.root}: no checkpoint yet")]
        return [self._facts(manifests[-1]), Text(), *_sources(manifests[-1]), _checkpoints(manifests)]

    def _newest(self) -> list[Manifest]:
        """The newest checkpoints that count, oldest first; without those that are being collected."""
        ids = self._checkpoint.ids()[-self._last :]
        self._manifests = {number: manifest for number, manifest in self._manifests.items() if number in ids}
        for number in ids:
            if number not in self._manifests:
                try:
                    self._manifests[number] = self._checkpoint.load(number).manifest
                except NotFoundError:
                    continue
        return [self._manifests[number] for number in ids if number in self._manifests]

    def _facts(self, head: Manifest) -> RenderableType:
        row, now, driver = brief(head), now_us(), running(self._checkpoint)
        table = key_value_table()
        table.add_row("root", Text(self._checkpoint.objects.root))
        driver_text = "no driver" if driver is None else f"{driver.who()}, started {age_text(driver.since_us, now)}"
        table.add_row("running", Text(driver_text))
        if driver is not None and driver.waiting_us is not None:
            table.add_row("", f"waiting for a sink since {time_text(driver.waiting_us)} UTC")
        kind = "drained" if head.drained else f"made {age_text(head.created_us, now)}"
        table.add_row("checkpoint", f"{head.id:,}, {kind}")
        table.add_row("watermark", text(readable_time(row["watermark"])))
        size = f"{size_text(row['state_bytes'])}, {pluralize(row['state_rows'], 'row')}"
        table.add_row("state", f"{size} in {pluralize(row['state_files'], 'file')}")
        return table


def _sources(head: Manifest) -> Iterable[RenderableType]:
    rows = source_progress(head)
    if len(rows) < 2:
        return
    table = data_table(("source", "lag", "standing", "rows"), ("lag", "rows"))
    for row in rows[:SOURCES]:
        lag = row["lag_seconds"]
        table.add_row(
            Text(row["source"]), "-" if lag is None else span_text(lag * 1e6), row["standing"], f"{row['rows']:,}"
        )
    yield table
    if len(rows) > SOURCES:
        yield Text(f"and {len(rows) - SOURCES:,} more: tidestate show", style="dim")
    yield Text()


def _checkpoints(manifests: list[Manifest]) -> RenderableType:
    headings = ("id", "kind", "events", "panes", "rejected", "state", "took", "age")
    table = data_table(headings, set(headings) - {"kind"})
    after = [*manifests[1:], None]
    for manifest, later in zip(manifests, after, strict=True):
        row, seconds = brief(manifest), seconds_of(manifest, later.spent if later is not None else None)
        table.add_row(
            str(manifest.id),
            row["kind"],
            f"{row['events']:,}",
            f"{row['panes']:,}",
            f"{row['rejected']:,}",
            size_text(row["state_bytes"]),
            "-" if seconds is None else short_seconds(sum(seconds.values())),
            short_age(manifest.created_us, now_us()),
        )
    return table
