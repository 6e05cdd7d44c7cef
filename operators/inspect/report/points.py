"""Each checkpoint in numbers: times, sizes, rows. Read newest first, so that a long history can be cut.

Only these numbers of a manifest stay in memory, so memory depends on the number of checkpoints and not on their size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import END_OF_TIME_US, Head, Manifest, OperatorState, Spent, state_files
from tidestate.recovery.log.summary import brief, goes_by_offset
from tidestate.statestore.errors import DataError, NotFoundError

TAKEN = ("on_time", "future", "mildly_late")
"""Counters of accepted events."""
REJECTED = (
    "very_late",
    "no_window",
    "null_key",
    "key_too_long",
    "null_event_time",
    "event_time_out_of_range",
    "bad_offset",
    "bad_window",
    "cti_violation",
    "duplicate_buffer",
    "gap_given_up",
    "out_of_retention",
    "window_closed",
    "purged",
)
"""Counters of rejected events, by reason."""
OTHER_REASONS = "other reasons"
_BEGINNING_US = -END_OF_TIME_US - 1


@dataclass(frozen=True)
class Point:
    """One checkpoint in numbers. ``gap_us`` and ``state_written`` are None if the one before is unknown.

    ``classes`` counts events by class; ``marks`` are watermarks and ``lags`` their distance to processing time, by
    operator and source; ``sizes`` are bytes and ``rows`` rows of state files by operator; ``seconds`` are by phase.
    An ``abandoned`` checkpoint no longer counts.
    """

    id: int
    kind: str
    created_us: int
    gap_us: int | None
    events: int
    panes: int
    rejected: int
    state_written: int | None
    pane_bytes: int
    late_bytes: int
    classes: dict[str, int]
    marks: dict[str, int]
    lags: dict[str, int]
    sizes: dict[str, int]
    rows: dict[str, int]
    seconds: dict[str, float]
    abandoned: bool = False


@dataclass(frozen=True)
class CheckpointHistory:
    """The newest checkpoints, oldest first. ``head`` is the newest that can be read, ``unreadable`` the ids of those
    that cannot, ``older`` the number of those that were not read.
    """

    points: tuple[Point, ...]
    head: Manifest | None
    newest: int | None
    unreadable: tuple[int, ...]
    older: int

    @property
    def counting(self) -> tuple[Point, ...]:
        """The checkpoints that no reset has abandoned."""
        return tuple(point for point in self.points if not point.abandoned)


def checkpoint_history(checkpoint: Checkpoint, last: int) -> CheckpointHistory:
    """The ``last`` checkpoints of a root."""
    ids = checkpoint.present_ids()
    recent, points, unreadable = ids[-last:], [], []
    head: Manifest | None = None
    younger: Manifest | None = None
    later: Spent | None = None
    for index, (number, read) in enumerate(checkpoint.load_each(ids[-last - 1 :][::-1])):
        manifest = _manifest(read)
        if younger is not None:
            points.append(_point(younger, manifest, head, later))
            later = younger.spent
        younger = manifest if index < len(recent) else None
        if index < len(recent):
            head = head or manifest
            unreadable += [number] if manifest is None else []
    if younger is not None:
        points.append(_point(younger, None, head, later))
    newest = ids[-1] if ids else None
    return CheckpointHistory(
        tuple(reversed(points)), head, newest, tuple(reversed(unreadable)), len(ids) - len(recent)
    )


def counts_offsets(operator: OperatorState) -> bool:
    """Whether its windows are of offsets or counted, and not of times."""
    columns = [column for table in operator.tables for column in (*table.key, *table.values)]
    return any(column.role in ("window_end", "slice_end") and column.type == "int64" for column in columns)


def is_time(time_us: int | None) -> bool:
    """Whether this is a time, and not the beginning or the end of time."""
    return time_us is not None and _BEGINNING_US < time_us < END_OF_TIME_US


def _manifest(read: Callable[[], Head]) -> Manifest | None:
    try:
        return read().manifest
    except (DataError, NotFoundError):  # `verify` reports it
        return None


def _point(manifest: Manifest, before: Manifest | None, head: Manifest | None, later: Spent | None) -> Point:
    facts = brief(manifest, later)
    before = before if before is not None and before.id == manifest.id - 1 else None
    marks, lags = _progress(manifest)
    return Point(
        id=manifest.id,
        kind=facts["kind"],
        created_us=manifest.created_us,
        gap_us=manifest.created_us - before.created_us if before else None,
        events=facts["events"],
        panes=facts["panes"],
        rejected=facts["rejected"],
        state_written=_written(manifest, before),
        pane_bytes=sum(ref.bytes for ref in manifest.panes),
        late_bytes=sum(ref.bytes for ref in manifest.late),
        classes=_classes(manifest, facts["rejected"]),
        marks=marks,
        lags=lags,
        sizes={name: sum(ref.bytes for ref in operator.files) for name, operator in manifest.operators.items()},
        rows={name: sum(ref.rows for ref in operator.files) for name, operator in manifest.operators.items()},
        seconds=facts["seconds"] or {},
        abandoned=head is not None and head.abandons(manifest.id),
    )


def _written(manifest: Manifest, before: Manifest | None) -> int | None:
    """Bytes of state files that the checkpoint before does not name; 0 for a reset, which names old ones again."""
    if manifest.parent_id:
        return 0
    if before is None and manifest.id > 1:
        return None
    paths = {ref.path for ref in state_files(before)} if before else set()
    # Of a bundle the whole file, once: what lies between its parts was written too.
    written = {ref.path: ref.file_bytes for ref in state_files(manifest) if ref.path not in paths and not ref.root}
    return sum(written.values())


def _classes(manifest: Manifest, rejections: int) -> dict[str, int]:
    """Events by class: accepted ones of input streams, rejected ones of all operators. Ledger rows without a counter
    have other reasons.
    """
    downstream = {name for name, state in manifest.operators.items() if set(state.inputs) & set(manifest.operators)}
    classes: dict[str, int] = {}
    for name, count in manifest.counters.items():
        operator, _, kind = name.rpartition(".")
        if count and (kind in REJECTED or (kind in TAKEN and operator not in downstream)):
            classes[kind] = classes.get(kind, 0) + count
    with_reason = sum(count for kind, count in classes.items() if kind in REJECTED)
    return classes | ({OTHER_REASONS: rejections - with_reason} if rejections > with_reason else {})


def _progress(manifest: Manifest) -> tuple[dict[str, int], dict[str, int]]:
    """Watermarks and lags by operator, and by source if there are several."""
    marks: dict[str, int] = {}
    lags: dict[str, int] = {}
    for name, operator in manifest.operators.items():
        if goes_by_offset(operator):
            continue
        tracker = operator.progress or {}
        now_us = tracker.get("processing_us", manifest.processing_us)
        sources = {source: facts["watermark_us"] for source, facts in sorted(tracker.get("sources", {}).items())}
        several = {f"{name} / {source}": mark for source, mark in sources.items()} if len(sources) > 1 else {}
        for label, mark in {name: operator.watermark_us, **several}.items():
            if mark is not None and is_time(mark):
                marks[label] = mark
                if now_us is not None:
                    lags[label] = now_us - mark
    return marks, lags
