"""Progress as numbers: for a query object, and as families of samples for whatever exports them. Pure.

Times of samples are in seconds, as metrics have them; everywhere else they are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from tidestate.operators.progress.advance_time import Advance
from tidestate.operators.progress.figures import Gap, Metrics, SourceMetrics
from tidestate.operators.progress.origins import OriginCounters, gaps_waited_for
from tidestate.operators.progress.progress import Progress, TrackedSource
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US, INPUT

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


class Family(NamedTuple):
    """Samples of one metric. ``name`` is without what exporters add: ``tidestate_`` before it, ``_total`` after that
    of a counter.
    """

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Sequence[Sample]

    def labelled(self, labels: Labels) -> Family:
        """With more labels at each sample."""
        return self._replace(samples=[({**labels, **own}, value) for own, value in self.samples])


def metrics_of(progress: Progress) -> Metrics:
    """The numbers of an operator's input after its last round."""
    buffers = progress.generator.buffers.get("")
    origins = buffers.ids or {} if buffers is not None else {}
    marks = [_known(source.watermark_us) for source in progress.sources.values()]
    lead = max((mark for mark in marks if mark is not None), default=None)
    watermark = _known(progress.watermark_us)
    return Metrics(
        watermark_us=watermark,
        lag_us=_less(progress.processing_us, watermark),
        drift_us=progress.drift_us,
        max_drift_us=progress.max_drift_us,
        advances=progress.advances,
        backward=progress.backward,
        refused=progress.refused,
        clock_backward=progress.clock_backward,
        idle_sources=sum(source.standing == "idle" for source in progress.sources.values()),
        ended_sources=progress.ended,
        sources={
            name: _source(one, progress.processing_us, lead, origins.get(name))
            for name, one in sorted(progress.sources.items())
        },
    )


def _source(source: TrackedSource, now_us: int | None, lead_us: int | None, origin: int | None) -> SourceMetrics:
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
        origin=origin,
    )


def _known(instant_us: int) -> int | None:
    return None if instant_us in (BEGINNING_US, END_US) else instant_us


def _less(later_us: int | None, earlier_us: int | None) -> int | None:
    return None if later_us is None or earlier_us is None else later_us - earlier_us


def gaps_of_progress(progress: Progress) -> list[Gap]:
    """The gaps that origins wait for."""
    now_us, by_side = progress.processing_us, progress.generator.buffers
    if now_us is None:
        return []
    return [gap for side, saved in by_side.items() for gap in gaps_waited_for(saved, now_us, side)]


def families_of(progress: Progress, counters: Mapping[str, int]) -> Iterator[Family]:
    """The metrics of an operator whose input has come so far, with those of events and panes by class."""
    buffers, advances = progress.generator.buffers, progress.generator.advances
    origins = {side or INPUT: saved.origins.counters for side, saved in buffers.items()}
    return progress_families(metrics_of(progress), advances, origins, gaps_of_progress(progress), counters)


def progress_families(
    numbers: Metrics,
    violations: Mapping[str, Advance],
    buffers: Mapping[str, OriginCounters],
    gaps: Sequence[Gap],
    counters: Mapping[str, int],
) -> Iterator[Family]:
    """The metrics of an operator. ``violations`` has advance-time states by source, ``buffers`` the counters of
    buffers by source, ``counters`` the events and panes by class since the beginning. A watermark that is not defined
    has no sample.
    """
    sources = numbers.sources.items()

    def by_source(field: str) -> list[Sample]:
        return [({"source": name}, getattr(source, field)) for name, source in sources]

    def seconds_by_source(field: str) -> list[Sample]:
        return [({"source": n}, us / 1e6) for n, source in sources if (us := getattr(source, field)) is not None]

    yield Family("watermark_seconds", "gauge", "Overall watermark, exclusive.", _alone(numbers.watermark_us))
    yield Family("watermark_lag_seconds", "gauge", "Processing time minus overall watermark.", _alone(numbers.lag_us))
    yield Family("source_watermark_seconds", "gauge", "Watermark of a source.", seconds_by_source("watermark_us"))
    yield Family(
        "source_lag_seconds", "gauge", "Processing time minus a source's watermark.", seconds_by_source("lag_us")
    )
    ids: list[Sample] = [({"source": n}, source.origin) for n, source in sources if source.origin is not None]
    yield Family("source_origin", "gauge", "Id of a source, where the engine gives origins.", ids)
    yield Family("source_idle", "gauge", "Whether a source is idle.", by_source("idle"))
    yield Family("idle_sources", "gauge", "Sources that do not hold the watermark.", [({}, numbers.idle_sources)])
    yield Family(
        "source_drift_seconds",
        "gauge",
        "Watermark of the fastest minus that of the slowest counted source.",
        _alone(numbers.drift_us),
    )
    yield Family("watermark_advances", "counter", "Moves of the overall watermark.", [({}, numbers.advances)])
    yield Family("source_advances", "counter", "Moves of a source's watermark.", by_source("advances"))
    yield Family("source_rows", "counter", "Rows a source has given.", by_source("rows"))
    yield Family("source_backward", "counter", "Steps back that were ignored.", by_source("backward"))
    yield Family("source_refused", "counter", "Invalid watermarks that were ignored.", by_source("refused"))
    yield Family(
        "clock_backward", "counter", "Rounds in which the clock jumped back.", [({}, numbers.clock_backward)]
    )
    yield from _families_of_order(violations, buffers, gaps)
    by_class: list[Sample] = [({"class": name}, count) for name, count in sorted(counters.items())]
    yield Family("counted", "counter", "Events, panes and the like, by class.", by_class)


def _families_of_order(
    violations: Mapping[str, Advance], buffers: Mapping[str, OriginCounters], gaps: Sequence[Gap]
) -> Iterator[Family]:
    """What came behind a CTI, twice, or before something that is still missing."""
    by_policy: list[Sample] = [
        ({"source": name, "policy": policy}, getattr(state, field))
        for name, state in sorted(violations.items())
        for policy, field in (("drop", "dropped"), ("adjust", "adjusted"))
    ]
    yield Family("cti_violations", "counter", "Events behind a CTI, by what became of them.", by_policy)
    by_fate: list[Sample] = [
        ({"source": name, "fate": fate}, count)
        for name, counted in sorted(buffers.items())
        for fate, count in msgspec.structs.asdict(counted).items()
    ]
    yield Family("buffers", "counter", "Buffers of origins, by what became of them.", by_fate)
    missing: list[Sample] = [({"source": gap.source}, gap.last - gap.first + 1) for gap in gaps]
    yield Family("gap_missing", "gauge", "Sequence numbers that an origin waits for.", missing)
    waiting_buffers: list[Sample] = [({"source": gap.source}, gap.buffers) for gap in gaps]
    yield Family("gap_buffers", "gauge", "Buffers that wait behind a gap.", waiting_buffers)


def _alone(us: int | None) -> list[Sample]:
    return [] if us is None else [({}, us / 1e6)]
