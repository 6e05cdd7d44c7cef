"""What somebody expects of a job that runs, and whether the facts of its root hold it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.summary import age_text, goes_by_offset, pluralize, time_of_source, time_text
from tidestate.statestore.durations import span_text, span_us, text_of
from tidestate.statestore.errors import UsageError
from tidestate.statestore.secrets import public_url

_IDLE = "idle"
_COUNT = re.compile(r"[0-9]{1,18}")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?) ?%")


@dataclass(frozen=True)
class HealthLimits:
    """What is expected of a job; None and false expect nothing. Spans are microseconds.

    ``running``: a driver renews its lease. ``lag_us``: how far the watermark of a source may be behind the clock; of
    one that is idle only with ``count_idle``. ``age_us``: how old the newest checkpoint may be. ``rejected``: how
    many rows, or with ``rejected_share`` which share of all rows (0 to 1), may be rejected ``within_us``.
    ``undelivered``: how many checkpoints a sink may be behind; ``waiting_us``: for how long it may refuse.
    """

    running: bool = False
    lag_us: int | None = None
    age_us: int | None = None
    rejected: int | None = None
    rejected_share: float | None = None
    within_us: int = 3_600_000_000
    undelivered: int | None = None
    waiting_us: int | None = None
    count_idle: bool = False

    @property
    def counts_rejected(self) -> bool:
        """Whether the checkpoints of the span have to be read."""
        return self.rejected is not None or self.rejected_share is not None


LIMIT_OPTIONS = {
    "running": "",
    "max-lag": "lag_us",
    "max-age": "age_us",
    "max-rejected": "",
    "within": "within_us",
    "max-undelivered": "",
    "max-waiting": "waiting_us",
    "count-idle": "",
}
"""The options, of the verb and of ``/healthz``; those that are a span, with the field of `HealthLimits`."""


def limits_of(options: Mapping[str, str | None]) -> HealthLimits:
    """Limits from options as text: spans, numbers, ``1%`` of rows; a flag is there or not. None is left out.

    Raises `UsageError` (``health-option``, ``span``) for an option that there is not, or a value that is none.
    """
    texts = {name: text for name, text in options.items() if text is not None}
    if unknown_names := sorted(texts.keys() - LIMIT_OPTIONS.keys()):
        raise UsageError(
            f"unknown limit: choose from {', '.join(LIMIT_OPTIONS)}", code="health-option", found=unknown_names
        )
    if flags := [name for name in ("running", "count-idle") if texts.get(name)]:
        raise UsageError("this limit is a flag: give it without a value", code="health-option", found=flags)
    spans = {field: _span(name, texts[name]) for name, field in LIMIT_OPTIONS.items() if field and name in texts}
    count, share = _count_or_share(texts["max-rejected"]) if "max-rejected" in texts else (None, None)
    backlog = _count("max-undelivered", texts["max-undelivered"]) if "max-undelivered" in texts else None
    return HealthLimits(
        running="running" in texts,
        rejected=count,
        rejected_share=share,
        undelivered=backlog,
        count_idle="count-idle" in texts,
        **spans,
    )


def _span(name: str, text: str) -> int:
    span = span_us(text)
    if span < 0:
        raise UsageError(
            "this limit must be a span of time, 0 or longer", code="health-option", option=name, found=text
        )
    return span


def _count(name: str, text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise UsageError(
            "this limit must be a whole number, 0 or more", code="health-option", option=name, found=text
        )
    return int(text)


def _count_or_share(text: str) -> tuple[int | None, float | None]:
    if (percent := _PERCENT.fullmatch(text)) and float(percent[1]) <= 100:
        return None, float(percent[1]) / 100
    if not _COUNT.fullmatch(text):
        raise UsageError(
            'the limit of rejected rows must be a number, such as "100", or a share of all rows, such as "1%"',
            code="health-option",
            option="max-rejected",
            found=text,
        )
    return int(text), None


@dataclass(frozen=True)
class RejectedRows:
    """How many rows the checkpoints since ``since_us`` have rejected, and how many rows they took in all."""

    rows: int
    events: int
    since_us: int


@dataclass(frozen=True)
class RunningDriver:
    """The driver that runs a job, since when, and since when a sink refuses what it gets (None: none does)."""

    driver: str
    since_us: int
    waiting_us: int | None


@dataclass(frozen=True)
class RootFacts:
    """What a root says at ``now_us``. ``acknowledged``: the checkpoint up to which each sink has what it gets, 0 if
    it has nothing; ``undelivered``: how many later ones have output, counted until there are more than may be.
    ``undelivered`` and ``rejected`` are there where they have a limit.
    """

    head: Manifest
    running: RunningDriver | None
    acknowledged: int
    undelivered: int | None
    rejected: RejectedRows | None
    now_us: int


class HealthCheck(msgspec.Struct, frozen=True):
    """One thing that was looked at: its name, what was found in words and as a number (spans in seconds), the limit
    in words (None: it has none), and whether it holds.
    """

    name: str
    found: str
    value: float | int | str | None
    limit: str | None
    holds: bool

    def __str__(self) -> str:
        suffix = "" if self.limit is None else f", expected {self.limit}"
        return f"{self.name}: {self.found}{suffix}"


class Health(msgspec.Struct, frozen=True):
    """The health of the job in ``root`` by its newest checkpoint; it holds if every check does. It prints itself."""

    root: str
    checkpoint: int | None
    checks: tuple[HealthCheck, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether each limit holds; without any the root can be read, which is all that was asked."""
        return all(check.holds for check in self.checks)

    def plain(self) -> dict[str, Any]:
        """As one object of JSON."""
        return {"root": self.root, "checkpoint": self.checkpoint, "holds": self.holds, "checks": self.checks}

    def __str__(self) -> str:
        number = "no checkpoint yet" if self.checkpoint is None else f"checkpoint {self.checkpoint}"
        lines = [f"{check}{'' if check.holds else ': it does not hold'}" for check in self.checks]
        return "\n".join([f"{public_url(self.root)}, {number}", *lines])

    __repr__ = __str__


def checks_of(facts: RootFacts, limits: HealthLimits) -> tuple[HealthCheck, ...]:
    """Everything that was looked at, also what has no limit: who sees one limit broken wants to know the rest."""
    return (
        _running(facts, limits),
        _age(facts, limits),
        *_lags(facts, limits),
        *_rejected(facts, limits),
        _undelivered(facts, limits),
        _waiting(facts, limits),
    )


def _running(facts: RootFacts, limits: HealthLimits) -> HealthCheck:
    """A drained job needs no driver."""
    limit, driver = "a driver" if limits.running else None, facts.running
    if driver is None:
        is_drained = facts.head.drained
        return HealthCheck(
            "running", "drained" if is_drained else "no driver", None, limit, is_drained or not limits.running
        )
    age = age_text(driver.since_us, facts.now_us)
    return HealthCheck("running", f"{driver.driver}, started {age}", driver.driver, limit, True)


def _age(facts: RootFacts, limits: HealthLimits) -> HealthCheck:
    """A drained job makes no more checkpoints."""
    age_us = max(0, facts.now_us - facts.head.created_us)  # the clock of the driver may be ahead
    if facts.head.drained:
        return HealthCheck("age", "drained", age_us / 1e6, _at_most(limits.age_us), True)
    return _span_check("age", age_us, limits.age_us)


def _lags(facts: RootFacts, limits: HealthLimits) -> Iterator[HealthCheck]:
    """The lag of each source of the operators that read the input."""
    head = facts.head
    readers = {name: state for name, state in head.operators.items() if not set(state.inputs) & set(head.operators)}
    for operator, state in readers.items():
        for source, progress in sorted((state.progress or {}).get("sources", {}).items()):
            name = f"lag of {source}" if len(readers) == 1 else f"lag of {operator}, {source}"
            time_us = time_of_source(progress, offsets=goes_by_offset(state))
            idle = progress["standing"] == _IDLE and not limits.count_idle
            if head.drained or idle or time_us is None:
                reason = "drained" if head.drained else _IDLE if idle else "no watermark in time"
                yield HealthCheck(name, reason, None, _at_most(limits.lag_us), True)
            else:
                yield _span_check(name, max(0, facts.now_us - time_us), limits.lag_us)


def _rejected(facts: RootFacts, limits: HealthLimits) -> Iterator[HealthCheck]:
    counts = facts.rejected
    if counts is None:
        return
    # Rows that were put back and rejected again are in a ledger without being events of the span.
    share = counts.rows / max(counts.events, counts.rows, 1)
    count = f"{pluralize(counts.rows, 'row')} of {counts.events:,} ({100 * share:.3g} %)"
    rows = f"{count} since {time_text(counts.since_us)} UTC"
    if limits.rejected is not None:
        holds = counts.rows <= limits.rejected
        yield HealthCheck("rejected", rows, counts.rows, f"at most {limits.rejected:,}", holds)
    if limits.rejected_share is not None:
        limit, holds = f"at most {100 * limits.rejected_share:g} % of rows", share <= limits.rejected_share
        yield HealthCheck("rejected", rows, share, limit, holds)


def _undelivered(facts: RootFacts, limits: HealthLimits) -> HealthCheck:
    number = facts.acknowledged
    text = f"sinks have all up to checkpoint {number:,}" if number else "no sink has acknowledged anything"
    if limits.undelivered is None or facts.undelivered is None:
        return HealthCheck("undelivered", text, None, None, True)
    holds = facts.undelivered <= limits.undelivered
    count = pluralize(facts.undelivered, "checkpoint") if holds else f"more than {limits.undelivered:,}"
    return HealthCheck("undelivered", f"{count}: {text}", facts.undelivered, f"at most {limits.undelivered:,}", holds)


def _waiting(facts: RootFacts, limits: HealthLimits) -> HealthCheck:
    since_us = facts.running.waiting_us if facts.running is not None else None
    if since_us is None:
        return HealthCheck("waiting", "for no sink", None, _at_most(limits.waiting_us), True)
    return _span_check("waiting", max(0, facts.now_us - since_us), limits.waiting_us)


def _span_check(name: str, span: int, limit_us: int | None) -> HealthCheck:
    return HealthCheck(name, span_text(span), span / 1e6, _at_most(limit_us), limit_us is None or span <= limit_us)


def _at_most(limit_us: int | None) -> str | None:
    return None if limit_us is None else f"at most {text_of(limit_us)}"
