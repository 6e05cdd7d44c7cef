"""Manifests as plain values for people and for ``--json``. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from tidestate.recovery.log.manifest import (
    END_OF_TIME_US,
    Manifest,
    OperatorState,
    Scan,
    Spent,
    events_of,
    state_size,
)
from tidestate.statestore.files.refs import FileRef, count_files

SummaryRow = dict[str, Any]
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_text(time_us: int | None) -> str | None:
    """A time in UTC, for people; ``+inf`` for the end of time, a number of ``us`` beyond the calendar."""
    if time_us is None:
        return None
    if time_us == END_OF_TIME_US:
        return "+inf"
    try:
        text = (_EPOCH + timedelta(microseconds=time_us)).isoformat(sep=" ")
    except OverflowError:
        return f"{time_us} us"
    return text.removesuffix("+00:00")


def iso_text(time_us: int | None) -> str | None:
    """A time for programs: ISO 8601 in UTC. `readable_time` makes it that of `time_text`."""
    return as_iso(time_text(time_us))


def as_iso(text: str | None) -> str | None:
    """A text of `time_text` for programs; any other text is returned as it is."""
    return text.replace(" ", "T") + "Z" if text and _MOMENT.fullmatch(text) else text


def readable_time(text: str | None) -> str | None:
    """A text of `iso_text` for people."""
    return text.replace("T", " ").removesuffix("Z") if text else text


def path_text(scan: Scan | None) -> str:
    """The path that the rows of a batch on Spark took, and why, as a sentence: a row of the table of
    docs/how-it-works/how-rows-are-read.md, which has the figures.
    """
    if scan is None:
        return "No batch has been read so far."
    if scan.direct and scan.in_driver:
        return "The driver reads the files directly, without a Spark job, because they are small."
    if scan.direct:
        return "The tasks read the files directly, because their rows are certain to be those that Spark would read."
    read = f"Spark reads the rows ({scan.reason})"
    if scan.partials is not None:
        return f"{read} and combines them into {scan.partials:,} partials, from which the driver goes on."
    handed = f"{read} and hands them over to tasks ({scan.no_partials or 'an earlier version'})"
    return f"{handed}, from whose partials the driver goes on." if scan.in_driver else f"{handed}."


def mark_text(mark: int | None, *, offsets: bool) -> str | None:
    """A watermark for programs: a time, or the offset that it is."""
    return str(mark) if offsets and mark not in (None, END_OF_TIME_US) else iso_text(mark)


def goes_by_offset(operator: OperatorState) -> bool:
    """Whether its watermark is an offset, not a time."""
    windows = operator.configuration.get("window")
    return isinstance(windows, dict) and windows.get("kind") in (
        "offsets",
        "session_of_offsets",
        "session_of_messages",
    )


def job_mark_text(manifest: Manifest, mark: int | None) -> str | None:
    """A watermark of a job for programs: that of its last operator."""
    last = next(reversed(manifest.operators.values()), None)
    return mark_text(mark, offsets=last is not None and goes_by_offset(last))


def within_64(text: str) -> int:
    """A 64-bit integer. Raises `ValueError` for any other text."""
    if not _WHOLE.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
        raise ValueError("not a 64-bit integer")
    return int(text)


_SPANS = ((86_400, "day", "d"), (3_600, "hour", "h"), (60, "minute", "m"), (1, "second", "s"))


def age_text(created_us: int, now_us: int) -> str:
    """An age for people: ``12 minutes ago``."""
    count, unit, _ = _age(created_us, now_us)
    return f"{count:,} {unit}{'' if count == 1 else 's'} ago"


def short_time(created_us: int, now_us: int) -> str:
    """A time in UTC for a column: ``11-27 02:10``, or the day alone, ``2025-11-27``, if it is of another year."""
    text, now = time_text(created_us) or "", time_text(now_us) or ""
    return text[5:16] if text[:5] == now[:5] else text.split(" ")[0]


def short_age(created_us: int, now_us: int) -> str:
    """An age for a column: ``12m``."""
    count, _, letter = _age(created_us, now_us)
    return f"{count}{letter}"


def short_seconds(seconds: float) -> str:
    """Seconds for a column: ``51ms``, ``1.2s``, ``3m``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 100 else f"{seconds / 60:.0f}m"


def _age(created_us: int, now_us: int) -> tuple[int, str, str]:
    seconds = max(0, now_us - created_us) // 1_000_000
    size, unit, letter = next((one for one in _SPANS if seconds >= one[0]), _SPANS[-1])
    return seconds // size, unit, letter


def size_text(count: int) -> str:
    """Bytes for people: ``1.4 MB``."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return ""


def seconds_of(manifest: Manifest, later: Spent | None = None) -> dict[str, float] | None:
    """Seconds by phase that a step took; those of publishing and delivering it only with what a ``later`` checkpoint
    of the run knows of it.
    """
    if manifest.spent is None:
        return None
    return manifest.spent.made | (later.finished if later is not None and later.earlier == manifest.id else {})


def brief(manifest: Manifest, later: Spent | None = None) -> SummaryRow:
    """One checkpoint as a row of `list`; ``later`` as in `seconds_of`."""
    size = state_size(manifest)
    return {
        "id": manifest.id,
        "kind": "drained" if manifest.drained else manifest.kind,
        "created": iso_text(manifest.created_us // 1_000_000 * 1_000_000),
        "watermark": job_mark_text(manifest, manifest.watermark_us),
        "spark_batch": manifest.spark.batch_id if manifest.spark else None,
        "events": events_of(manifest, manifest.counters),
        "panes": sum(ref.rows for ref in manifest.panes),
        "rejected": sum(ref.rows for ref in manifest.late),
        "state_files": size.files,
        "state_rows": size.rows,
        "state_bytes": size.bytes,
        "seconds": seconds_of(manifest, later),
    }


def shared_files(operator: OperatorState) -> int:
    """How many files the partitions of an operator share since a rescale."""
    return count_files(ref for part in operator.partitions for ref in part.files if ref.share)


def full(manifest: Manifest) -> SummaryRow:
    """One checkpoint with all that `show` prints: its row of `list`, and its parts."""
    return {
        **brief(manifest),
        "created": iso_text(manifest.created_us),
        "job_id": manifest.job_id,
        "epoch": manifest.epoch,
        "version": manifest.version or None,
        "needs": list(manifest.needs),
        "watermark_before": job_mark_text(manifest, manifest.watermark_before_us),
        "processing_time": iso_text(manifest.processing_us),
        "spark": msgspec.to_builtins(manifest.spark),
        "scan": msgspec.to_builtins(manifest.scan),
        "input_batches": manifest.input.batches if manifest.input else None,
        "restored": msgspec.to_builtins(manifest.restored),
        "sources": source_progress(manifest),
        "operators": [_operator(name, state) for name, state in manifest.operators.items()],
        "counters": manifest.counters,
        "totals": manifest.totals,
        **({"outputs": list(manifest.outputs)} if manifest.outputs else {}),
        "pane_files": [_file(ref) for ref in manifest.panes],
        "late_files": [_file(ref) for ref in manifest.late],
    }


def _operator(name: str, state: OperatorState) -> SummaryRow:
    offsets = goes_by_offset(state)
    lost = state.rebuilding
    return {
        "operator": name,
        "inputs": list(state.inputs),
        "configured_since": state.since,
        "watermark": mark_text(state.watermark_us, offsets=offsets),
        "configuration": state.configuration,
        "tables": [spec.name for spec in state.tables],
        "rebuilding": None if lost is None else {"since": lost.since, "lacking": lost.lacking},
        "partitions": partitions(state),
    }


def _file(ref: FileRef) -> SummaryRow:
    return {"path": ref.path, "rows": ref.rows, "bytes": ref.bytes}


def source_progress(manifest: Manifest) -> list[SummaryRow]:
    """A row for each source of a watermark: its id, where the engine gives origins; the watermark, its lag behind
    processing time, whether it is active.
    """
    return [
        {
            "operator": operator,
            "origin": origins_of(state).get(name),
            **_source(name, source, tracker.get("processing_us"), offsets=goes_by_offset(state)),
        }
        for operator, state in manifest.operators.items()
        for tracker in (state.progress or {},)
        for name, source in sorted(tracker.get("sources", {}).items())
    ]


def origins_of(operator: OperatorState) -> dict[str, int]:
    """The id of each source by name, where the engine gives origins; of sources that are gone, too."""
    return dict((operator.buffers or {}).get("ids", {}))


def time_of_source(source: SummaryRow, *, offsets: bool) -> int | None:
    """The watermark of a source; None before the first, after the end, and where it is an offset."""
    mark: int = source["watermark_us"]
    return None if offsets or mark in (-END_OF_TIME_US - 1, END_OF_TIME_US) else mark


def _source(name: str, source: SummaryRow, now_us: int | None, *, offsets: bool) -> SummaryRow:
    mark, time_us = source["watermark_us"], time_of_source(source, offsets=offsets)
    return {
        "source": name,
        "watermark": mark_text(mark, offsets=offsets) if mark != -END_OF_TIME_US - 1 else None,
        "lag_seconds": (now_us - time_us) / 1e6 if time_us is not None and now_us is not None else None,
        "standing": source["standing"].replace("_", " "),
        "rows": source["rows"],
    }


def partitions(operator: OperatorState) -> list[SummaryRow]:
    """A row for each state partition of an operator."""
    return [
        {
            "partition": number,
            "files": count_files(state.files),
            "rows": sum(ref.rows for ref in state.files),
            "bytes": sum(ref.bytes for ref in state.files),
            "taken_over": sum(ref.share > 0 for ref in state.files),
            "sequence": state.sequence,
            "lineage": state.lineage[:8] or None,
        }
        for number, state in enumerate(operator.partitions)
    ]


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun, in the plural but for one: ``1 file``, ``2 files``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table as lines, each column as wide as its widest text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
