"""The verbs list and show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tidestate.recovery.cli.app import AsJson, RootPath, verbs
from tidestate.recovery.cli.completion import checkpoint_ids
from tidestate.recovery.cli.printing import (
    data_table,
    fitted,
    key_value_table,
    print_error,
    print_json,
    print_out,
    text,
)
from tidestate.recovery.cli.progress_bar import bar
from tidestate.recovery.cli.settings_in_words import settings_in_words
from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.boundary import Pin
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import Lease, running
from tidestate.recovery.log.manifest import Delivered, Head, Ids, Manifest, OperatorState, Spent, state_size
from tidestate.recovery.log.ranges import ids_text, merged_ranges
from tidestate.recovery.log.records import held_pins, read_pins
from tidestate.recovery.log.summary import (
    SummaryRow,
    age_text,
    brief,
    full,
    iso_text,
    job_mark_text,
    partitions,
    pluralize,
    readable_time,
    shared_files,
    short_seconds,
    short_time,
    size_text,
    source_progress,
    time_text,
)
from tidestate.recovery.start.restore_budget import predicted_restore, predicted_restore_text, restore_text
from tidestate.statestore.durations import span_text
from tidestate.statestore.errors import CorruptionError, DataError, IncompatibleError, NotFoundError


@verbs.command("list", epilog="Example: tidestate list /data/flights --last 10")
def list_checkpoints(
    root: RootPath,
    last: Annotated[int, typer.Option(min=1, help="How many checkpoints to list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the newest checkpoints, oldest first: watermark, numbers of events, panes and rejected events, size of the
    state, duration of the step, and time of creation.

    If the terminal is too narrow, the columns batch, took and state are left out.
    """
    with bar() as progress:
        checkpoint = Checkpoint.open(root, progress)
        head = checkpoint.head()
        listing = checkpoint.listing()
        ids = listing.ids
        first = ids[-last] if last < len(ids) else 0
        rows, unread = _rows(checkpoint, head.manifest, first) if head is not None else ([], [])
    if gaps := merged_ranges([*unread, *listing.missing_within(first, None)]):
        print_error(f"these abandoned checkpoints cannot be read, which does no harm: {ids_text(gaps)}")
    if as_json:
        print_json(*({name: value for name, value in row.items() if name != "made"} for row in rows))
        return
    numbers = ("events", "panes", "rejected", "state", "took", "made (UTC)")
    table = data_table(("id", "kind", "batch", "watermark (UTC)", *numbers), ("id", "batch", *numbers))
    table.padding = (0, 1, 0, 0)  # so that it fits into 80 columns
    for row in rows:
        table.add_row(
            str(row["id"]),
            "abandoned" if row["abandoned"] else row["kind"],
            text(row["spark_batch"]),
            text(readable_time(row["watermark"])).split(".")[0],
            f"{row['events']:,}",
            f"{row['panes']:,}",
            f"{row['rejected']:,}",
            size_text(row["state_bytes"]),
            "-" if row["seconds"] is None else short_seconds(sum(row["seconds"].values())),
            row["made"],
        )
    older = len(ids) - min(last, len(ids))
    print_out(
        fitted(table, ("batch", "took", "state")),
        *([f"[dim]{pluralize(older, 'older checkpoint')}: use --last {len(ids)} to list all[/dim]"] if older else []),
        *(Text(f"pinned: {_pin_text(pin)}") for pin in read_pins(checkpoint.objects)),
    )


def _pin_text(pin: Pin) -> str:
    reason = f"for the fork {pin.fork}" if pin.fork else pin.note
    return f"{pin.checkpoint} as {pin.name}" + (f" ({reason})" if reason else "")


def _rows(checkpoint: Checkpoint, head: Manifest, first: int) -> tuple[list[SummaryRow], list[Ids]]:
    """Rows of the checkpoints from ``first`` on and of pinned ones; and damaged ones that a reset has abandoned."""
    pins, names = read_pins(checkpoint.objects), held_pins(checkpoint.objects)
    pinned_ids = {pin.checkpoint for pin in pins if pin.name in names}
    rows: list[SummaryRow] = []
    unread: list[Ids] = []
    later: Spent | None = None
    # Newest first: the one after a checkpoint knows how long its end took.
    for number, read in checkpoint.load_each(
        sorted({*checkpoint.ids(first), *(pin.checkpoint for pin in pins)}, reverse=True)
    ):
        try:
            manifest = read().manifest
        except (CorruptionError, IncompatibleError):
            if not head.abandons(number):
                raise
            unread.append((number, number))
            continue
        except NotFoundError:
            if number in pinned_ids:
                raise
            continue  # the pin was too late
        rows.append(
            {
                **brief(manifest, later),
                **_marks(manifest, head, pins),
                "made": short_time(manifest.created_us, now_us()),
            }
        )
        later = manifest.spent
    return rows[::-1], unread


def _newest(checkpoint: Checkpoint) -> Head | None:
    """The newest checkpoint; None if it is damaged, which does not matter to an older one."""
    try:
        return checkpoint.head()
    except DataError:
        return None


def _marks(manifest: Manifest, head: Manifest | None, pins: Sequence[Pin]) -> SummaryRow:
    """What list and show say of a checkpoint that is not in its manifest; whether it is ``abandoned`` is not known
    without the newest one.
    """
    return {
        "abandoned": None if head is None else head.abandons(manifest.id),
        "recovery": predicted_restore(manifest),
        "pins": [pin.name for pin in pins if pin.checkpoint == manifest.id],
    }


@verbs.command(epilog="Example: tidestate show /data/flights 42 --json")
def show(
    root: RootPath,
    checkpoint_id: Annotated[
        int | None,
        typer.Argument(
            metavar="[ID]",
            help="The id of the checkpoint. By default the newest.",
            show_default=False,
            autocompletion=checkpoint_ids,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show one checkpoint: position in the input, watermark, operators, state partitions, files, counters."""
    checkpoint = Checkpoint.open(root)
    head = checkpoint.chosen(checkpoint_id)
    pins = [pin for pin in read_pins(checkpoint.objects) if pin.checkpoint == head.manifest.id]
    up_to = delivered(checkpoint, head.manifest)
    driver = running(checkpoint) if checkpoint_id is None else None
    if as_json:
        newest = head if checkpoint_id is None else _newest(checkpoint)
        extra = {"delivered": _delivered_facts(up_to), "running": None if driver is None else _driver(driver)}
        print_json(
            {
                **full(head.manifest),
                **_marks(head.manifest, None if newest is None else newest.manifest, pins),
                **extra,
            }
        )
        return
    parts: list[RenderableType] = [_facts(head.manifest, driver, up_to)]
    parts += [Text(f"pinned: {_pin_text(pin)}") for pin in pins]
    if source_progress(head.manifest):
        parts += ["\n[bold]sources[/bold]", _sources(head.manifest)]
    for name, operator in head.manifest.operators.items():
        parts += [Text(f"\noperator {name}", style="bold"), _configuration(operator), _partitions(operator)]
        if count := shared_files(operator):
            parts.append(f"[dim]{count:,} shared since a rescale, and counted in each of their partitions[/dim]")
    if head.manifest.totals:
        parts += ["\n[bold]counters[/bold]", _counters(head.manifest)]
    print_out(*parts)


def _driver(driver: Lease) -> SummaryRow:
    return {
        "driver": driver.who(),
        "started": iso_text(driver.since_us),
        "waiting_since": iso_text(driver.waiting_us),
    }


def _delivered_facts(up_to: Delivered) -> dict[str, Any]:
    """What sinks have, as plain values; by output only where they differ."""
    facts = msgspec.structs.asdict(up_to)
    return facts if up_to.further else {name: value for name, value in facts.items() if name != "further"}


def _facts(manifest: Manifest, driver: Lease | None, up_to: Delivered) -> Table:
    table = key_value_table()
    kind = "drained (takes no new input)" if manifest.drained else manifest.kind
    table.add_row("checkpoint", f"{manifest.id}  ({kind}, writer epoch {manifest.epoch})")
    table.add_row("created", f"{time_text(manifest.created_us)} UTC  ({age_text(manifest.created_us, now_us())})")
    if manifest.needs:
        table.add_row("needs", ", ".join(manifest.needs))
    if driver is not None:
        table.add_row("running", f"{driver.who()}, started {age_text(driver.since_us, now_us())}")
        if driver.waiting_us is not None:
            table.add_row("", f"waiting for a sink since {time_text(driver.waiting_us)} UTC")
    marks = (manifest.watermark_before_us, manifest.watermark_us)
    before, after = (readable_time(job_mark_text(manifest, mark)) for mark in marks)
    table.add_row("watermark", f"{text(after)}  (before: {text(before)})")
    table.add_row("processing time", text(time_text(manifest.processing_us)))
    if manifest.spark:
        table.add_row("spark batch", str(manifest.spark.batch_id))
        for source, offset in enumerate(manifest.spark.end):
            table.add_row(f"source {source} read to", offset)
    if (scan := manifest.scan) is not None:
        reader = "driver" if scan.in_driver else "tasks"
        table.add_row("rows read by", f"{reader}, directly" if scan.direct else f"spark: {scan.reason}")
        if not scan.direct:
            by_spark = scan.partials is not None
            table.add_row("partials made by", "spark" if by_spark else f"tasks: {scan.no_partials}")
    if manifest.input:
        table.add_row("input", pluralize(manifest.input.batches, "batch", "batches"))
    size = state_size(manifest)
    table.add_row(
        "state", f"{size_text(size.bytes)}, {pluralize(size.rows, 'row')} in {pluralize(size.files, 'file')}"
    )
    if (times := manifest.spent) is not None:
        table.add_row("took", _phases(times.made))
        if times.earlier:
            table.add_row(f"the end of {times.earlier} took", _phases(times.finished))
    for name in manifest.outputs:
        table.add_row(f"panes of {name}", f"delivered up to checkpoint {up_to.up_to('panes', name)}")
    if not manifest.outputs:
        table.add_row("delivered up to", f"checkpoint {up_to.panes}")
    if up_to.late_sink:
        table.add_row("late rows up to", f"checkpoint {up_to.late}")
    table.add_row("restore", predicted_restore_text(manifest))
    if manifest.restored is not None:
        table.add_row("last start", restore_text(manifest.restored))
    table.add_row("job", manifest.job_id)
    table.add_row("written by", f"tidestate {manifest.version or 'unknown'}")
    for label, refs in (("panes", manifest.panes), ("late ledger", manifest.late)):
        for ref in refs:
            table.add_row(label, f"{ref.path} ({pluralize(ref.rows, 'row')})")
    return table


def _phases(seconds: dict[str, float]) -> str:
    return ", ".join(f"{phase} {span_text(value * 1e6)}" for phase, value in seconds.items()) or "-"


def _sources(manifest: Manifest) -> Table:
    several, rows = len(manifest.operators) > 1, source_progress(manifest)
    with_ids = any(row["origin"] is not None for row in rows)
    front = (*(("operator",) if several else ()), *(("origin",) if with_ids else ()))
    table = data_table((*front, "source", "watermark (UTC)", "lag", "standing", "rows"), ("origin", "lag", "rows"))
    for row in rows:
        lag = row["lag_seconds"]
        table.add_row(
            *([row["operator"]] if several else []),
            *([text(row["origin"] and str(row["origin"]))] if with_ids else []),
            row["source"],
            text(readable_time(row["watermark"])),
            "-" if lag is None else span_text(lag * 1e6),
            row["standing"],
            f"{row['rows']:,}",
        )
    return table


def _configuration(operator: OperatorState) -> Table:
    table = key_value_table()
    table.add_row("reads", ", ".join(operator.inputs) or "-")
    table.add_row("configured since", f"checkpoint {operator.since}")
    if (rebuild := operator.rebuilding) is not None:
        suffix = "" if rebuild.lacking is None else f"; {rebuild.lacking:,} windows or rows are incomplete"
        table.add_row("rebuilding since", f"checkpoint {rebuild.since}{suffix}")
    for word, value in settings_in_words(operator.configuration).items():
        table.add_row(word, value)
    return table


def _partitions(operator: OperatorState) -> Table:
    headings = ("partition", "files", "rows", "bytes", "last change", "lineage")
    table = data_table(headings, headings)
    for row in partitions(operator):
        sequence = str(row["sequence"]) if row["sequence"] else "-"
        table.add_row(
            str(row["partition"]),
            str(row["files"]),
            f"{row['rows']:,}",
            size_text(row["bytes"]),
            sequence,
            text(row["lineage"]),
        )
    return table


def _counters(manifest: Manifest) -> Table:
    table = data_table(("", "this checkpoint", "in total"), ("this checkpoint", "in total"))
    for name, total in manifest.totals.items():
        table.add_row(name.replace("_", " "), f"{manifest.counters.get(name, 0):,}", f"{total:,}")
    return table
