"""Sources of a watermark: which there are, which rows are of each, and what each reports in a round. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from tidestate.operators.progress.instants import BEGINNING_US, Times
from tidestate.statestore.durations import Span, span_us, text_of
from tidestate.statestore.errors import UsageError

INPUT = "input"
"""The one source of a stream that is not told apart."""
Counters = dict[str, int]
Reports = dict[str, "Report"]


@dataclass(frozen=True)
class Sources:
    """The sources of a job by name, and after how long without data one is idle (None: never)."""

    names: tuple[str, ...]
    idle_timeout_us: int | None = None
    own_timeouts_us: dict[str, int] = field(default_factory=dict)

    def timeout_us(self, name: str) -> int | None:
        """The timeout of one source; of a source ``orders/3`` without its own that of ``orders``."""
        whole = name.rpartition("/")[0]
        return self.own_timeouts_us.get(name, self.own_timeouts_us.get(whole, self.idle_timeout_us))

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "names": list(self.names),
            "idle_timeout": None if self.idle_timeout_us is None else text_of(self.idle_timeout_us),
            "own_timeouts": {name: text_of(span) for name, span in sorted(self.own_timeouts_us.items())},
        }


def sources(*names: str, idle_timeout: Span | None = None, own_timeouts: Mapping[str, Span] | None = None) -> Sources:
    """Declare the sources. A declared source holds W back from the start; another joins at W when it first reports.

    ``own_timeouts`` has timeouts that differ from ``idle_timeout``. Raises `UsageError` for a name that is empty or
    stands twice, and for a timeout that is not above 0.
    """
    if len(set(names)) != len(names) or not all(names):
        raise UsageError("each source has a name of its own", code="progress-source", found=list(names))
    own = {name: _timeout(span) for name, span in (own_timeouts or {}).items()}
    return Sources(names, None if idle_timeout is None else _timeout(idle_timeout), own)


def _timeout(span: Span) -> int:
    found = span_us(span)
    if found <= 0:
        raise UsageError("an idle timeout is longer than nothing", code="progress-source", found=text_of(found))
    return found


class Report(msgspec.Struct, frozen=True):
    """What one source said in one round.

    ``watermark_us`` is exclusive; `BEGINNING_US` says nothing. ``generated``: it follows from this round's rows
    alone, so one below the last is no step back. ``asked``: the source was asked for data. ``status``: the source
    itself says that it is idle, or active again. ``ended``: it will never report again.
    """

    watermark_us: int = BEGINNING_US
    rows: int = 0
    asked: bool = True
    generated: bool = False
    status: Literal["idle", "active"] | None = None
    ended: bool = False


@dataclass(frozen=True)
class Reading:
    """What a generator made of a piece of input: rows to go on with, a report per source, what it left out."""

    events: pa.Table
    reports: dict[str, Report]
    counters: Counters = field(default_factory=dict)


class Generator(Protocol):
    """Reads a piece of input. ``by`` is a column that tells apart the parts of a source, such as Kafka partitions:
    each part is then a source of its own, called ``source/value``.
    """

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> Reading:
        """At processing time ``now_us``, which must not go back from one piece to the next."""
        ...

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        ...


@dataclass(frozen=True)
class Parts:
    """Names of sources, and for each row which it is of."""

    names: list[str]
    codes: Times
    alone: bool


def parts_of(events: pa.Table, source: str, by: str | None) -> Parts:
    """The sources of a piece of input: ``source``, or its parts by the column ``by``."""
    if by is None:
        return Parts([source], np.zeros(events.num_rows, np.int64), alone=True)
    column = column_of(events, by)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    # Encoded as one array, so that there is one dictionary; a null is a part of its own.
    values = pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)]).dictionary_encode("encode")
    names = [f"{source}/{value}" for value in values.dictionary.to_pylist()]
    return Parts(names, np.asarray(values.indices).astype(np.int64, copy=False), alone=False)


def present(events: pa.Table, *, source: str, by: str | None = None) -> dict[str, Report]:
    """How many of these rows each source gave, and nothing of a watermark."""
    return same_claim(events, BEGINNING_US, source, by)


def same_claim(events: pa.Table, claim_us: int, source: str, by: str | None) -> dict[str, Report]:
    """The same claim from every source of the piece."""
    parts = parts_of(events, source, by)
    rows = np.bincount(parts.codes, minlength=len(parts.names)).tolist()
    return {
        name: Report(claim_us, rows=count)
        for name, count in zip(parts.names, rows, strict=True)
        if count or parts.alone
    }


def merged(reports: Iterable[Mapping[str, Report]]) -> dict[str, Report]:
    """Reports of pieces of one round (tasks, files) as one: the largest watermark and the sum of the rows of each."""
    found: dict[str, Report] = {}
    for piece in reports:
        for name, report in piece.items():
            found[name] = _both(found[name], report) if name in found else report
    return found


def _both(one: Report, other: Report) -> Report:
    return Report(
        watermark_us=max(one.watermark_us, other.watermark_us),
        rows=one.rows + other.rows,
        asked=one.asked or other.asked,
        generated=one.generated or other.generated,
        status=other.status or one.status,
        ended=one.ended or other.ended,
    )


def column_of(events: pa.Table, name: str) -> Any:
    """A column that moves the watermark. Raises `UsageError` where it is missing."""
    if name not in events.column_names:
        raise UsageError("a batch lacks a column that moves the watermark", code="column-missing", missing=[name])
    return events[name]
