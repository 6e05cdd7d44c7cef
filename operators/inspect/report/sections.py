"""The sections of the page: charts, and tables with their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidestate.operators.inspect.report import series
from tidestate.operators.inspect.report.charts import Chart, ChartRow, partition_bars, timeline
from tidestate.operators.inspect.report.points import CheckpointHistory, Point, is_time
from tidestate.operators.inspect.report.windows import ReportedWindow, ReportedWindows
from tidestate.operators.inspect.report.words import skew_text
from tidestate.recovery.inspect.verify import VerifyReport
from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.lease import running
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.summary import (
    goes_by_offset,
    partitions,
    pluralize,
    readable_time,
    size_text,
    source_progress,
    time_text,
)
from tidestate.statestore.durations import span_text

OPERATORS_LISTED = 12
"""The largest number of operators with a chart of their own."""
LINES = 36
"""The largest number of lines in a timeline of windows."""
REPORTED_ROWS = 500
STANDINGS = {
    "closed": "var(--series-5)",
    "emitted, retained": "var(--series-2)",
    "open": "var(--series-1)",
}
_CALENDAR_MS = 8.64e15


@dataclass(frozen=True)
class Table:
    """The numbers of a chart. The columns in ``right`` are right-aligned; the table is open if ``is_open``."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[int] = frozenset()
    is_open: bool = False


@dataclass(frozen=True)
class Section:
    """A section of the page. ``lead`` is its first sentence."""

    anchor: str
    title: str
    lead: str
    charts: Sequence[Chart] = field(default=())
    tables: Sequence[Table] = field(default=())


def checkpoints(history: CheckpointHistory) -> Section:
    """Time, bytes and rows of checkpoints."""
    points = history.points
    lead = pluralize(len(points), "checkpoint")
    lead += f", {points[0].id:,} to {points[-1].id:,}" if points else ""
    lead += f"; {history.older:,} older ones are left out (--last)." if history.older else "."
    if abandoned_count := len(points) - len(history.counting):
        lead += f" A reset has abandoned {abandoned_count:,} of them: they are in the charts, but not in totals."
    charts = [series.checkpoint_gaps(points), series.written_chart(points), *series.rows_charts(points)]
    charts.append(series.spent_chart(points))
    return Section("checkpoints", "Checkpoints", lead, charts if points else (), [_points(points)] if points else ())


def _points(points: Sequence[Point]) -> Table:
    headings = (
        "id",
        "kind",
        "created (UTC)",
        "interval",
        "took",
        "events",
        "pane rows",
        "rejected",
        "written",
        "state",
    )
    rows = [
        (
            str(p.id),
            p.kind + (", abandoned" if p.abandoned else ""),
            time_text(p.created_us // 1_000_000 * 1_000_000) or "",
            "–" if p.gap_us is None else span_text(p.gap_us),
            span_text(sum(p.seconds.values()) * 1e6) if p.seconds else "–",
            f"{p.events:,}",
            f"{p.panes:,}",
            f"{p.rejected:,}",
            "–" if p.state_written is None else size_text(p.state_written + p.pane_bytes + p.late_bytes),
            size_text(sum(p.sizes.values())),
        )
        for p in reversed(points[-REPORTED_ROWS:])
    ]
    caption = "Numbers of each checkpoint" + (f" (the newest {REPORTED_ROWS})" if len(points) > REPORTED_ROWS else "")
    return Table(caption, headings, rows, frozenset({0, 3, 4, 5, 6, 7, 8, 9}))


def watermarks(history: CheckpointHistory) -> Section:
    """The section with the watermark and the lag of each source, over checkpoints and at the newest one."""
    charts = [series.marks(history.points), series.lags(history.points)]
    rows = [
        (
            row["operator"],
            row["source"],
            readable_time(row["watermark"]) or "–",
            _lag(row["lag_seconds"]),
            row["standing"],
            _n(row["rows"]),
        )
        for row in (source_progress(history.head) if history.head else ())
    ]
    headings = ("operator", "source", "watermark", "lag", "standing", "rows")
    tables = [Table("Sources in the newest checkpoint", headings, rows, frozenset({3, 5}))] if rows else []
    lead = "How far event time has advanced, and how far it is behind processing time."
    return Section("watermark", "Watermark", lead, charts, tables)


def late_section(history: CheckpointHistory) -> Section:
    """The section with the number of events by class, and of rejected rows."""
    totals: dict[str, int] = {}
    for point in history.counting:
        for kind, count in point.classes.items():
            totals[kind] = totals.get(kind, 0) + count
    rows = [
        (kind.replace("_", " "), f"{count:,}") for kind, count in sorted(totals.items(), key=lambda item: -item[1])
    ]
    tables = (
        [Table("Events by class, in these checkpoints", ("class", "events"), rows, frozenset({1}))] if rows else []
    )
    rejections = sum(point.rejected for point in history.counting)
    rows_text = pluralize(rejections, "ledger row") if rejections else "Nothing was rejected"
    lead = f"{rows_text} in these checkpoints."
    return Section("late", "Late and rejected events", lead, [series.late_chart(history.points)], tables)


def state(history: CheckpointHistory) -> Section:
    """State by operator and partition."""
    head = history.head
    charts, rows = [series.sizes(history.points), series.rows_of_state(history.points)], []
    for number, (name, operator) in enumerate(head.operators.items() if head else ()):
        facts = partitions(operator)
        sizes = [row["bytes"] for row in facts]
        if number < OPERATORS_LISTED and sum(sizes):
            bars: list[ChartRow] = [
                {
                    "partition": row["partition"],
                    "bytes": row["bytes"],
                    "text": f"{size_text(row['bytes'])}, {row['rows']:,} rows, {row['files']:,} files",
                }
                for row in facts
            ]
            description = (
                f"Bytes in the newest checkpoint; the dashed line is the mean. {skew_text(sizes).capitalize()}."
            )
            if any(row["taken_over"] for row in facts):
                description += " Files shared since a rescale count in each partition."
            charts.append(Chart(f"Partitions of {name}", description, partition_bars(bars, sum(sizes) / len(sizes))))
        rows += [
            (
                name,
                str(r["partition"]),
                size_text(r["bytes"]),
                f"{r['rows']:,}",
                f"{r['files']:,}",
                str(r["sequence"] or "–"),
            )
            for r in facts
        ]
    headings = ("operator", "partition", "bytes", "rows in files", "files", "last change")
    tables = (
        [Table("Partitions in the newest checkpoint", headings, rows, frozenset({1, 2, 3, 4, 5}))] if rows else []
    )
    return Section("state", "State", _state_lead(head), charts, tables)


def _state_lead(head: Manifest | None) -> str:
    if head is None:
        return "There is no state yet."
    parts = []
    for name, operator in head.operators.items():
        size = size_text(sum(ref.bytes for ref in operator.files))
        even = skew_text([row["bytes"] for row in partitions(operator)])
        parts.append(f"{name}: {size} in {pluralize(len(operator.partitions), 'partition')} ({even})")
    return "; ".join(parts) + "."


def windows(reports: Sequence[ReportedWindows], head: Manifest | None) -> Section:
    """A timeline of windows for each operator."""
    charts, tables = [], []
    for report in reports:
        if not report.windows:
            continue
        chart, table = _timeline(report, head)
        charts.append(chart)
        tables.append(table)
    lead = (
        "The newest windows in the state and in panes. The vertical line is the watermark."
        if charts
        else "No windows in the newest checkpoint."
    )
    return Section("windows", "Windows", lead, charts, tables)


def _timeline(report: ReportedWindows, head: Manifest | None) -> tuple[Chart, Table]:
    labels, rows, left = _lines(report)
    notes = [
        *report.notes,
        *([f"{left:,} windows are left out, beyond the calendar or the page"] if left else []),
    ]
    now = _now(report, head)
    colours = {name: colour for name, colour in STANDINGS.items() if any(row["standing"] == name for row in rows)}
    description = (
        "A line for each key." if report.has_keys else "All keys together; overlapping windows are on separate lines."
    )
    description += f" {len(rows):,} windows." + (f" Limits: {'; '.join(notes)}." if notes else "")
    spec = timeline(rows, labels, colours, now, time=not report.offsets) if rows else None
    headings = ("window", "key", "standing", "events", "results now", "emitted", "retracted", "checkpoints")
    cells = [
        (
            _bounds(w, report.offsets),
            w.key or "–",
            w.standing,
            _n(w.events),
            w.results or "–",
            _n(w.emitted),
            _n(w.retracted),
            _checkpoints(w),
        )
        for w in reversed(report.windows)
    ]
    title = f"Windows of {report.operator}"
    return Chart(title, description, spec), Table(f"{title}, in numbers", headings, cells, frozenset({3, 5, 6}))


def _now(report: ReportedWindows, head: Manifest | None) -> float | None:
    """The watermark on the axis of the windows: none where windows are counted and the watermark is a time."""
    operator = head.operators[report.operator] if head else None
    mark = operator.watermark_us if operator else None
    if operator is None or mark is None or not is_time(mark) or goes_by_offset(operator) != report.offsets:
        return None
    return mark if report.offsets else mark / 1000


def _lines(report: ReportedWindows) -> tuple[list[str], list[ChartRow], int]:
    """Each window on a line of its key where none overlaps it; the last value is the number of those left out."""
    ends: dict[tuple[str, int], int] = {}
    rows, left = [], 0
    scale = 1 if report.offsets else 1000
    for window in sorted(report.windows, key=lambda w: (w.start, w.end)):
        number, key = 0, window.key
        while ends.get((key, number), window.start) > window.start:
            number += 1
        outside = not report.offsets and max(abs(window.start), abs(window.end)) / 1000 > _CALENDAR_MS
        if outside or ((key, number) not in ends and len(ends) >= LINES):
            left += 1
            continue
        ends[key, number] = window.end
        row: ChartRow = {
            "line": _label(key, number),
            "start": window.start / scale,
            "end": window.end / scale,
            "key": window.key or "all keys",
            "window": _bounds(window, report.offsets),
            "standing": window.standing,
            "results": _results(window),
            "panes": f"{window.emitted or 0:,} emitted, {window.retracted or 0:,} retracted",
            "checkpoints": _checkpoints(window),
        }
        rows.append(row)
    return [_label(*line) for line in sorted(ends)], rows, left


def _label(key: str, number: int) -> str:
    return f"{key} ({number + 1})" if key and number else key or (" " * number)


def _bounds(window: ReportedWindow, offsets: bool) -> str:
    start, end = (str(bound) if offsets else time_text(bound) for bound in (window.start, window.end))
    return f"{start} to {end}"


def _results(window: ReportedWindow) -> str:
    """The number of events in the window and its results, as text."""
    return ", ".join([pluralize(window.events, "event"), *filter(None, [window.results])]) if window.events else "–"


def _checkpoints(window: ReportedWindow) -> str:
    """The checkpoints with its panes."""
    return "–" if window.first is None or window.last is None else _range((window.first, window.last))


def findings(report: VerifyReport) -> Section:
    """The section with what `verify` has found, the first rows of it."""
    files = f"{pluralize(report.files, 'file')} ({size_text(report.bytes)})"
    extent = f"{pluralize(report.checkpoints, 'checkpoint')} and {files} were checked."
    if not report.findings:
        return Section("findings", "Findings", f"Nothing is wrong: {extent}")
    rows = [
        (
            finding.kind,
            _n(finding.checkpoint) + (", abandoned" if finding.abandoned else ""),
            finding.path,
            finding.why,
        )
        for finding in report.findings[:REPORTED_ROWS]
    ]
    good = "No checkpoint is intact." if report.good is None else f"The newest intact checkpoint is {report.good:,}."
    excess = len(report.findings) - len(rows)
    left_out = f" {excess:,} more are left out." if excess else ""
    lead = f"{pluralize(len(report.findings), 'finding')}; {extent} {good}{left_out}"
    table = Table("What is wrong", ("kind", "checkpoint", "path", "problem"), rows, frozenset({1}), is_open=True)
    return Section("findings", "Findings", lead, (), [table])


def about(checkpoint: Checkpoint, head: Manifest | None) -> Section:
    """Facts about the root: its job, its origin, the driver that runs it."""
    marker, lease = checkpoint.marker, running(checkpoint)
    rows = [
        ("root", checkpoint.objects.root),
        ("job", marker.job_id),
        ("created", f"{time_text(marker.created_us // 1_000_000 * 1_000_000)} UTC"),
        ("running", f"{lease.who()}, writer epoch {lease.epoch}" if lease else "no driver has a lease"),
    ]
    if head is not None:
        up_to = delivered(checkpoint, head)
        ends = [(f"delivered of {name} up to", up_to.up_to("panes", name)) for name in head.outputs]
        rows += [(label, f"checkpoint {last:,}") for label, last in ends or [("delivered up to", up_to.panes)]]
        rows.append(("abandoned by resets", ", ".join(_range(ids) for ids in head.abandoned) or "none"))
    rows += [("forked from", base) for base in marker.bases]
    return Section("about", "About this root", "", (), [Table("Facts", ("", ""), rows, is_open=True)])


def _range(ids: tuple[int, int]) -> str:
    first, last = ids
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _n(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def _lag(seconds: float | None) -> str:
    return "–" if seconds is None else span_text(seconds * 1e6)
