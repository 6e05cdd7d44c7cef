"""Charts of the checkpoints over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from tidestate.operators.inspect.report.charts import BYTES, COUNT, SERIES, Chart, ChartSpan, Spec, Value, bars, lines
from tidestate.operators.inspect.report.points import OTHER_REASONS, REJECTED, TAKEN, Point
from tidestate.recovery.log.summary import size_text, time_text
from tidestate.statestore.durations import span_text, unit_of

BUCKETS = 250
"""The largest number of bars in a chart: with more checkpoints, a bar stands for several."""
Bucket = Sequence[Point]
Reading = Callable[[Point], Any]
"""The value of a checkpoint in one series; None if it has none."""
Combine = Callable[[list[Any]], float]
"""One value for the checkpoints of a bar: ``sum``, ``max`` or the last."""
NEWEST: Combine = itemgetter(-1)


def buckets(points: Sequence[Point]) -> list[Bucket]:
    """The checkpoints of each bar."""
    width = max(1, -(-len(points) // BUCKETS))
    return [points[first : first + width] for first in range(0, len(points), width)]


def axis_of(points: Sequence[Point]) -> ChartSpan:
    """From the first checkpoint to the last."""
    return (points[0].id, points[-1].id) if points else (0, 0)


def grain(points: Sequence[Point]) -> str:
    """A sentence on how many checkpoints a bar stands for; empty if it is one."""
    width = max(map(len, buckets(points)), default=1)
    return "" if width == 1 else f" Each bar is {width} checkpoints."


def values(
    points: Sequence[Point],
    readings: Mapping[str, Reading],
    combine: Combine,
    text: Callable[[float], str],
    unit: float = 1,
) -> list[Value]:
    """The values of each series, divided by ``unit``; ``text`` formats them before the division."""
    chart_values = []
    for series, read in readings.items():
        for bucket in buckets(points):
            if numbers := [value for point in bucket if (value := read(point)) is not None]:
                value = combine(numbers)
                time = time_text(bucket[-1].created_us // 1_000_000 * 1_000_000) or ""
                start = bucket[0].created_us - (bucket[0].gap_us or 0)
                times = (start / 1000, bucket[-1].created_us / 1000)
                chart_values.append(
                    Value(bucket[0].id, bucket[-1].id, time, series, value / unit, text(value), *times)
                )
    return chart_values


def checkpoint_gaps(points: Sequence[Point]) -> Chart:
    """Time from one checkpoint to the next."""
    name, unit = unit_of(max((point.gap_us for point in points if point.gap_us is not None), default=0))
    chart_values = values(points, {"span": attrgetter("gap_us")}, max, span_text, unit)
    description = f"From one checkpoint to the next, in {name}, by the clocks of the machines that wrote them."
    if len(buckets(points)) < len(points):
        description += " Each bar is the longest of several."
    return Chart(
        f"Time between checkpoints ({name})",
        description,
        bars(chart_values, ["span"], {"title": None}, axis_of(points)),
    )


def written_chart(points: Sequence[Point]) -> Chart:
    """Bytes that each checkpoint wrote, by kind of file."""
    readings = {"state": "state_written", "panes": "pane_bytes", "late ledger": "late_bytes"}
    chart_values = values(points, {name: attrgetter(field) for name, field in readings.items()}, sum, _size)
    description = "New files of each checkpoint. Folding rewrites state, so it counts again."
    return Chart(
        "Bytes written", description + grain(points), bars(chart_values, list(readings), BYTES, axis_of(points))
    )


def rows_charts(points: Sequence[Point]) -> list[Chart]:
    """A chart of the rows that came in at each checkpoint, and one of the pane rows that went out."""
    charts = (("Events", "Rows from the input streams.", "events"), ("Pane rows", "Emitted and retracted.", "panes"))
    return [
        Chart(
            title,
            description + grain(points),
            bars(values(points, {"rows": attrgetter(field)}, sum, _count), ["rows"], COUNT, axis_of(points)),
        )
        for title, description, field in charts
    ]


def marks(points: Sequence[Point]) -> Chart:
    """The watermark of each operator and source."""
    readings = _readings(points, "marks")
    chart_values = values(points, readings, NEWEST, lambda v: time_text(int(v)) or "", 1000)
    description = "The input before this event time (UTC) is complete." + _cut(points, "marks")
    spec = lines(chart_values, list(readings), {"title": None}, axis_of(points), time=True)
    return Chart("Watermark", description, spec, "No watermark yet.")


def lags(points: Sequence[Point]) -> Chart:
    """How far each watermark was behind processing time."""
    readings = _readings(points, "lags")
    name, unit = unit_of(max((abs(p.lags[n]) for p in points for n in readings if n in p.lags), default=0))
    chart_values = values(points, readings, max, span_text, unit)
    description = f"Processing time minus watermark, in {name}. In a replay of old events it is long and shrinks."
    spec = lines(chart_values, list(readings), {"title": None, "scale": {"zero": False}}, axis_of(points))
    return Chart(f"Watermark lag ({name})", description + _cut(points, "lags"), spec)


def late_chart(points: Sequence[Point]) -> Chart:
    """Events behind the watermark: accepted ones, and rejected ones by reason."""
    classes = {kind for point in points for kind in point.classes}
    kinds = [kind for kind in ("mildly_late", *REJECTED, OTHER_REASONS) if kind in classes][:SERIES]
    readings: dict[str, Reading] = {
        "mildly late, accepted" if kind in TAKEN else kind.replace("_", " "): _entry("classes", kind, 0)
        for kind in kinds
    }
    description = "Late events that were accepted, and rejected events in the late ledger, by reason."
    spec = bars(values(points, readings, sum, _count), list(readings), COUNT, axis_of(points))
    return Chart("Late and rejected events", description + grain(points), spec, "No event was late or rejected.")


def sizes(points: Sequence[Point]) -> Chart:
    """Bytes of state, by operator."""
    return _of_state(points, "sizes", "State size", "State files of each checkpoint.", _size, BYTES)


def rows_of_state(points: Sequence[Point]) -> Chart:
    """Rows of state, by operator."""
    description = "Rows in these files; one that was replaced or deleted counts until it is folded."
    return _of_state(points, "rows", "Rows of state", description, _count, COUNT)


def _of_state(
    points: Sequence[Point], field: str, title: str, description: str, text: Callable[[float], str], axis: Spec
) -> Chart:
    readings = _readings(points, field)
    spec = bars(values(points, readings, NEWEST, text), list(readings), axis, axis_of(points), over_time=True)
    return Chart(title, description + _cut(points, field), spec, "There is no state yet.")


def spent_chart(points: Sequence[Point]) -> Chart:
    """Where the time of each checkpoint went."""
    phases = dict.fromkeys(name for point in points for name in point.seconds)
    # Those that took longest, in the order of a round.
    longest = sorted(phases, key=lambda name: -sum(point.seconds.get(name, 0.0) for point in points))[:SERIES]
    readings = {name: _entry("seconds", name) for name in phases if name in longest}
    chart_values = values(points, readings, sum, lambda value: span_text(value * 1e6))
    description = (
        "Seconds by phase; those of tasks as if they always ran at once. Publishing and delivering the newest one"
    )
    description += " is in no manifest yet." + grain(points)
    spec = bars(chart_values, list(readings), {"title": None}, axis_of(points), over_time=True)
    return Chart("Time spent (seconds)", description, spec, "No checkpoint says where its time went.")


def _entry(field: str, name: str, default: int | None = None) -> Reading:
    return lambda point: getattr(point, field).get(name, default)


def _readings(points: Sequence[Point], field: str) -> dict[str, Reading]:
    """A series for each name in a field, as many as there are colours: those of the newest checkpoints."""
    names = dict.fromkeys(name for point in reversed(points) for name in getattr(point, field))
    return {name: _entry(field, name) for name in list(names)[:SERIES]}


def _cut(points: Sequence[Point], field: str) -> str:
    count = len({name for point in points for name in getattr(point, field)})
    return f" The chart has {SERIES} of {count}." if count > SERIES else ""


def _size(value: float) -> str:
    return size_text(int(value))


def _count(value: float) -> str:
    return f"{int(value):,}"
