"""Progress as numbers: for a query object, and in the text format of Prometheus. Pure.

Times in the text are in seconds, as Prometheus wants them; everywhere else they are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tidestate.operators.progress.advance_time import Advance
from tidestate.operators.progress.figures import Gap, Metrics, SinkWaits, SourceMetrics
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.origins import OriginCounters
from tidestate.operators.progress.tracker import TrackedSource, Tracker

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of an HTTP response with `prometheus_text`."""
Labels = Mapping[str, str]
Sample = tuple[Labels, int | str]


def metrics(tracker: Tracker) -> Metrics:
    """The numbers of a tracker after its last round."""
    marks = [_known(source.watermark_us) for source in tracker.sources.values()]
    lead = max((mark for mark in marks if mark is not None), default=None)
    watermark = _known(tracker.watermark_us)
    return Metrics(
        watermark_us=watermark,
        lag_us=_less(tracker.processing_us, watermark),
        drift_us=tracker.drift_us,
        max_drift_us=tracker.max_drift_us,
        advances=tracker.advances,
        backward=tracker.backward,
        refused=tracker.refused,
        clock_backward=tracker.clock_backward,
        idle_sources=sum(source.standing == "idle" for source in tracker.sources.values()),
        ended_sources=tracker.ended,
        sources={name: _source(one, tracker.processing_us, lead) for name, one in sorted(tracker.sources.items())},
    )


def _source(source: TrackedSource, now_us: int | None, lead_us: int | None) -> SourceMetrics:
    watermark = _known(source.watermark_us)
    return SourceMetrics(
        watermark_us=watermark,
        lag_us=_less(now_us, watermark),
        behind_us=_less(lead_us, watermark),
        idle=source.standing == "idle",
        quiet_us=source.quiet_us,
        rows=source.rows,
        advances=source.advances,
        backward=source.backward,
        refused=source.refused,
    )


def _known(instant_us: int) -> int | None:
    return None if instant_us in (BEGINNING_US, END_US) else instant_us


def _less(later_us: int | None, earlier_us: int | None) -> int | None:
    return None if later_us is None or earlier_us is None else later_us - earlier_us


def prometheus_text(
    numbers: Metrics,
    labels: Labels | None = None,
    violations: Mapping[str, Advance] | None = None,
    buffers: Mapping[str, OriginCounters] | None = None,
    gaps: Sequence[Gap] = (),
    counters: Mapping[str, int] | None = None,
    waits: SinkWaits | None = None,
) -> str:
    """All metrics in the text format 0.0.4. Every sample has the ``labels``, such as the job's name.

    ``violations`` has advance-time states by source, ``buffers`` the counters of buffers by source, ``gaps`` the gaps
    that origins wait for, ``counters`` the events and panes by class since the start, ``waits`` how the run has
    waited for sinks. There is no sample of a watermark that is not defined.
    """
    return "".join(
        line
        for name, kind, help_, samples in (
            *_families(numbers, violations or {}, buffers or {}),
            *_gaps(gaps),
            *(_sinks(waits) if waits is not None else ()),
            ("counted_total", "counter", "Events, panes and the like, by class.", _by_class(counters or {})),
        )
        for line in _lines(name, kind, help_, samples, dict(labels or {}))
    )


def _families(
    numbers: Metrics, violations: Mapping[str, Advance], buffers: Mapping[str, OriginCounters]
) -> Iterator[tuple[str, str, str, list[Sample]]]:
    sources = numbers.sources.items()

    def by_source(field: str) -> list[Sample]:
        return [({"source": name}, getattr(source, field)) for name, source in sources]

    def seconds_by_source(field: str) -> list[Sample]:
        return [
            ({"source": name}, _seconds(us)) for name, source in sources if (us := getattr(source, field)) is not None
        ]

    yield "watermark_seconds", "gauge", "Overall watermark, exclusive.", _alone(numbers.watermark_us)
    yield "watermark_lag_seconds", "gauge", "Processing time minus overall watermark.", _alone(numbers.lag_us)
    yield "source_watermark_seconds", "gauge", "Watermark of a source.", seconds_by_source("watermark_us")
    yield "source_lag_seconds", "gauge", "Processing time minus a source's watermark.", seconds_by_source("lag_us")
    yield "source_idle", "gauge", "Whether a source is idle.", [({"source": n}, int(one.idle)) for n, one in sources]
    yield "idle_sources", "gauge", "Sources that do not hold the watermark.", [({}, numbers.idle_sources)]
    yield (
        "source_drift_seconds",
        "gauge",
        "Watermark of the fastest minus that of the slowest counted source.",
        _alone(numbers.drift_us),
    )
    yield "watermark_advances_total", "counter", "Moves of the overall watermark.", [({}, numbers.advances)]
    yield "source_advances_total", "counter", "Moves of a source's watermark.", by_source("advances")
    yield "source_rows_total", "counter", "Rows a source has given.", by_source("rows")
    yield "source_backward_total", "counter", "Steps back that were ignored.", by_source("backward")
    yield "source_refused_total", "counter", "Invalid watermarks that were ignored.", by_source("refused")
    yield "clock_backward_total", "counter", "Rounds in which the clock jumped back.", [({}, numbers.clock_backward)]
    by_policy: list[Sample] = [
        ({"source": name, "policy": policy}, getattr(state, field))
        for name, state in sorted(violations.items())
        for policy, field in (("drop", "dropped"), ("adjust", "adjusted"))
    ]
    yield "cti_violations_total", "counter", "Events behind a CTI, by what became of them.", by_policy
    by_fate: list[Sample] = [
        ({"source": name, "fate": fate}, count)
        for name, counters in sorted(buffers.items())
        for fate, count in msgspec.structs.asdict(counters).items()
    ]
    yield "buffers_total", "counter", "Buffers of origins, by what became of them.", by_fate


def _gaps(gaps: Sequence[Gap]) -> Iterator[tuple[str, str, str, list[Sample]]]:
    missing: list[Sample] = [({"source": str(gap.origin)}, gap.last - gap.first + 1) for gap in gaps]
    yield "gap_missing", "gauge", "Sequence numbers that an origin waits for.", missing
    held: list[Sample] = [({"source": str(gap.origin)}, gap.buffers) for gap in gaps]
    yield "gap_buffers", "gauge", "Buffers that wait behind a gap.", held


def _sinks(waits: SinkWaits) -> Iterator[tuple[str, str, str, list[Sample]]]:
    yield "sink_waiting", "gauge", "Whether the intake waits for a sink.", [({}, int(waits.since_us is not None))]
    yield "sink_waited_seconds_total", "counter", "Time that the intake waited for sinks.", _alone(waits.total_us)
    yield "undelivered_checkpoints", "gauge", "Checkpoints that wait for a sink.", [({}, waits.checkpoints)]
    by_sink: list[Sample] = [({"sink": name, "rows": kind}, found) for name, kind, found in waits.behind]
    yield "sink_behind_checkpoints", "gauge", "Checkpoints that wait for this sink.", by_sink


def _by_class(counters: Mapping[str, int]) -> list[Sample]:
    return [({"class": name}, count) for name, count in sorted(counters.items())]


def _alone(us: int | None) -> list[Sample]:
    return [] if us is None else [({}, _seconds(us))]


def _seconds(us: int) -> str:
    """As text, exact: a float would lose microseconds."""
    whole, rest = divmod(abs(us), 1_000_000)
    return f"{'-' if us < 0 else ''}{whole}.{rest:06d}"


def _lines(name: str, kind: str, help_: str, samples: Iterable[Sample], labels: Labels) -> Iterator[str]:
    samples = list(samples)
    if samples:
        yield f"# HELP tidestate_{name} {help_}\n# TYPE tidestate_{name} {kind}\n"
    for sample_labels, value in samples:
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in sorted({**labels, **sample_labels}.items()))
        yield f"tidestate_{name}{{{pairs}}} {value}\n" if pairs else f"tidestate_{name} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
