"""Charts of the checkpoints over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tidestate.operators.inspect.report.charts import BYTES, COUNT, SERIES, Chart, ChartSpan, Spec, Value, bars, lines
from tidestate.operators.inspect.report.points import OTHER_REASONS, REJECTED, TAKEN, Point
from tidestate.operators.inspect.report.words import span_text, unit_of
from tidestate.recovery.log.summary import size_text, time_text

BUCKETS = 250
"""Up to so many bars in a chart: beyond that a bar is of several checkpoints."""
Bucket = Sequence[Point]
BucketValue = Callable[[Bucket], float | None]


def buckets(points: Sequence[Point]) -> list[Bucket]:
    """The checkpoints, several together where there are many."""
    width = max(1, -(-len(points) // BUCKETS))
    return [points[first : first + width] for first in range(0, len(points), width)]


def axis_of(points: Sequence[Point]) -> ChartSpan:
    """From the first checkpoint to the last."""
    return ChartSpan(points[0].id, points[-1].id) if points else ChartSpan(0, 0)


def grain(points: Sequence[Point]) -> str:
    """What a bar is, in words; empty where it is a checkpoint."""
    width = max(map(len, buckets(points)), default=1)
    return "" if width == 1 else f" Each bar is {width} checkpoints."


def values(points: Sequence[Point], series: str, read: BucketValue, text: Callable[[float], str]) -> list[Value]:
    """One series; checkpoints without a reading are left out."""
    found = []
    for bucket in buckets(points):
        value = read(bucket)
        if value is not None:
            created = time_text(bucket[-1].created_us // 1_000_000 * 1_000_000) or ""
            found.append(Value(bucket[0].id, bucket[-1].id, created, series, value, text(value)))
    return found


def checkpoint_gaps(points: Sequence[Point]) -> Chart:
    """Time from one checkpoint to the next."""
    known = [point.gap_us for point in points if point.gap_us is not None]
    name, size = unit_of(max(known, default=0))
    found = values(points, "span", lambda b: _scaled(_most(p.gap_us for p in b), size), lambda v: span_text(v * size))
    about = f"From one checkpoint to the next, in {name}, by the clock of the machines that wrote them."
    if len(buckets(points)) < len(points):
        about += " The longest of each bar."
    return Chart(f"Time between checkpoints ({name})", about, bars(found, ["span"], {"title": None}, axis_of(points)))


def written_chart(points: Sequence[Point]) -> Chart:
    """Bytes that each checkpoint wrote, by what they are."""
    readings: dict[str, BucketValue] = {
        "state": lambda b: _total(p.state_written for p in b),
        "panes": lambda b: _total(p.pane_bytes for p in b),
        "late ledger": lambda b: _total(p.late_bytes for p in b),
    }
    found = [value for name, read in readings.items() for value in values(points, name, read, size_text_of)]
    about = "New files that a checkpoint names for the first time; folding state rewrites some."
    return Chart("Bytes written", about + grain(points), bars(found, list(readings), BYTES, axis_of(points)))


def rows_charts(points: Sequence[Point]) -> list[Chart]:
    """Events in, panes out."""
    return [
        _counted("Events", "Rows that the streams of the job brought.", points, lambda p: p.events),
        _counted("Pane rows", "Rows put out: emitted and taken back.", points, lambda p: p.panes),
    ]


def marks(points: Sequence[Point]) -> Chart:
    """How far each watermark had come."""
    names = _names(points, lambda p: p.marks)
    found = [
        value
        for name in names
        for value in values(points, name, _last(lambda p, n=name: _milliseconds(p.marks.get(n))), _instant)  # type: ignore[misc]
    ]
    about = "Event time up to which every event has been seen (UTC)." + _cut(points, lambda p: p.marks)
    return Chart(
        "Watermark", about, lines(found, names, {"title": None}, axis_of(points), time=True), "No watermark yet."
    )


def lags(points: Sequence[Point]) -> Chart:
    """How far each watermark was behind processing time."""
    names = _names(points, lambda p: p.lags)
    name, size = unit_of(max((abs(p.lags[n]) for p in points for n in names if n in p.lags), default=0))
    found = []
    for series in names:
        read = _most_of(series)
        found += values(points, series, lambda b, r=read: _scaled(r(b), size), lambda v: span_text(v * size))  # type: ignore[misc]
    about = f"Processing time less watermark, in {name}. A replay of old events has a long one, and it shrinks."
    axis: Spec = {"title": None, "scale": {"zero": False}}
    return Chart(
        f"Watermark lag ({name})", about + _cut(points, lambda p: p.lags), lines(found, names, axis, axis_of(points))
    )


def late_chart(points: Sequence[Point]) -> Chart:
    """Events behind the watermark: those still taken, and those rejected, by reason."""
    seen = {kind for point in points for kind in point.classes}
    kinds = [kind for kind in ("mildly_late", *REJECTED, OTHER_REASONS) if kind in seen]
    named = {kind: "mildly late, taken" if kind in TAKEN else kind.replace("_", " ") for kind in kinds[:SERIES]}
    found = [
        value
        for kind, name in named.items()
        for value in values(points, name, lambda b, k=kind: _total(p.classes.get(k, 0) for p in b), _count)  # type: ignore[misc]
    ]
    about = "Events behind the watermark that were taken, and those rejected into the late ledger, by reason."
    spec = bars(found, list(named.values()), COUNT, axis_of(points))
    return Chart("Late and rejected events", about + grain(points), spec, "No event was late or rejected.")


def sizes(points: Sequence[Point]) -> Chart:
    """Bytes of state, by operator."""
    names = _names(points, lambda p: p.sizes)
    found = [
        value
        for name in names
        for value in values(points, name, _last(lambda p, n=name: p.sizes.get(n)), size_text_of)  # type: ignore[misc]
    ]
    about = "Files of the state that a checkpoint names." + _cut(points, lambda p: p.sizes)
    return Chart("State size", about, bars(found, names, BYTES, axis_of(points)), "There is no state yet.")


def size_text_of(value: float) -> str:
    """Bytes for people."""
    return size_text(int(value))


def _counted(title: str, about: str, points: Sequence[Point], read: Callable[[Point], int]) -> Chart:
    found = values(points, "rows", lambda b: _total(read(p) for p in b), _count)
    return Chart(title, about + grain(points), bars(found, ["rows"], COUNT, axis_of(points)))


def _names(points: Sequence[Point], read: Callable[[Point], dict[str, int]]) -> list[str]:
    """Series, as many as there are colours: those of the newest checkpoints."""
    found = dict.fromkeys(name for point in reversed(points) for name in read(point))
    return list(found)[:SERIES]


def _cut(points: Sequence[Point], read: Callable[[Point], dict[str, int]]) -> str:
    there = len({name for point in points for name in read(point)})
    return f" Shown are {SERIES} of {there}." if there > SERIES else ""


def _last(read: Callable[[Point], float | None]) -> BucketValue:
    return lambda bucket: next((v for p in reversed(bucket) if (v := read(p)) is not None), None)


def _most_of(series: str) -> BucketValue:
    return lambda bucket: _most(point.lags.get(series) for point in bucket)


def _most(found: Iterable[float | None]) -> float | None:
    return max((value for value in found if value is not None), default=None)


def _total(found: Iterable[float | None]) -> float | None:
    known = [value for value in found if value is not None]
    return sum(known) if known else None


def _scaled(value: float | None, size: float) -> float | None:
    return None if value is None else value / size


def _milliseconds(time_us: int | None) -> float | None:
    return None if time_us is None else time_us / 1000


def _instant(milliseconds: float) -> str:
    return time_text(int(milliseconds * 1000)) or ""


def _count(value: float) -> str:
    return f"{int(value):,}"
