"""The watermark of a job: what claims it, of which sources, and how a round moves it. Pure.

Every piece of input says what its sources claim; every state partition gets all claims of a round and comes to the
same tracker, so the watermark after a batch is known where windows fire, without another pass or job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from operators.progress.generators import Fixed, Generator, IngestionTime, MaxEventTime, Punctuation, Reading
from operators.progress.tracker import Report, Sources, Tracker, merged, observe
from operators.transition import BEGINNING_US
from statestore.errors import UsageError

INPUT = "input"
"""The one source of a stream that is not told apart."""
ONE = Sources((INPUT,))
Reports = dict[str, Report]


@dataclass(frozen=True)
class Watermarks:
    """``generator`` claims watermarks; ``by`` the column that tells sources apart, ``sources`` those declared."""

    generator: Generator
    sources: Sources = ONE
    by: str | None = None

    @property
    def columns(self) -> list[str]:
        """The input columns that are read."""
        names = [getattr(self.generator, "column", None), getattr(self.generator, "flag", None), self.by]
        return [name for name in names if name]

    @property
    def by_clock(self) -> bool:
        """Whether the watermark goes on without input."""
        return isinstance(self.generator, Fixed | IngestionTime)

    @property
    def controls(self) -> bool:
        """Whether rows of the input are about the watermark and not events."""
        return isinstance(self.generator, Punctuation)

    def read(self, events: pa.Table, now_us: int) -> Reading:
        """What ``events`` claim, per source, and the events to go on with."""
        reading = self.generator.read(events, now_us, source=INPUT, by=self.by)
        if self.by is None:
            return reading
        named = {name.removeprefix(f"{INPUT}/"): report for name, report in reading.reports.items()}
        return Reading(reading.events, named, reading.counters)

    def after(self, tracker: Tracker, reports: Iterable[Mapping[str, Report]], now_us: int) -> Tracker:
        """The tracker after a round at processing time ``now_us``; every known source was asked."""
        asked = {name: Report() for name in tracker.sources}
        if self.by_clock:
            claim = self.generator.read(pa.table({}), now_us, source=INPUT).reports[INPUT]
            asked = dict.fromkeys(asked or {INPUT: claim}, claim)
        return observe(self.sources, tracker, merged([asked, *reports]), now_us)

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        return {"generator": self.generator.describe(), "sources": self.sources.describe(), "by": self.by}


def given_watermarks(generator: Generator, by: str | None, known: Sources) -> Watermarks:
    """As a user gives them. Raises `UsageError` where they do not go together."""
    if not hasattr(generator, "read") or not hasattr(generator, "describe"):
        raise UsageError(
            "give a generator of watermarks, as max_event_time(...) or fixed(...)",
            code="watermark",
            found=repr(generator),
        )
    if by is None and known.names:
        raise UsageError("several sources are told apart by a column: by=", code="watermark", sources=known.names)
    return Watermarks(generator, known if by else Sources((INPUT,), known.idle_timeout_us, known.own_timeouts_us), by)


def default_watermarks(column: str, delay_us: int) -> Watermarks:
    """The largest value of ``column`` so far, less ``delay_us``."""
    return Watermarks(MaxEventTime(column, delay_us))


def at_least(tracker: Tracker, watermark_us: int) -> Tracker:
    """``tracker`` moved on by hand; a step back is ignored."""
    return msgspec.structs.replace(tracker, watermark_us=max(tracker.watermark_us, watermark_us))


def mark_of(tracker: Tracker) -> int | None:
    """The watermark; None before the first."""
    return None if tracker.watermark_us == BEGINNING_US else tracker.watermark_us
