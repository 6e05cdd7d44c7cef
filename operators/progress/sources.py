"""The sources of a piece of input: their rows, and what each reports in a round. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tidestate.operators.progress.instants import BEGINNING_US
from tidestate.operators.progress.tracker import SourceReport
from tidestate.statestore.arrays import Counters, Times
from tidestate.statestore.errors import UsageError
from tidestate.statestore.missing_columns import missing_columns


@dataclass(frozen=True)
class SourceReading:
    """A piece of input as a generator read it: the rows that go on, a report per source, counters of the others."""

    events: pa.Table
    reports: dict[str, SourceReport]
    counters: Counters = field(default_factory=dict)


class Generator(Protocol):
    """A generator of one's own: it reads a piece of input. ``by`` is a column that names the parts of a source, such
    as Kafka partitions: each part is then a source of its own, named ``source/value``.

    It may have these attributes: ``columns`` of the input that it reads (list of text); ``by_clock``: its watermark
    goes on without input; ``waits``: time alone may move it; ``filters_rows``: it removes rows that are no events;
    ``delay_us``: how far it stays behind the newest event.
    """

    def read(self, events: pa.Table, now_us: int, *, source: str, by: str | None = None) -> SourceReading:
        """Read ``events`` at processing time ``now_us``, which must not go back from one piece to the next."""
        ...


@dataclass(frozen=True)
class SourceRows:
    """Names of sources, and for each row the index of its source. ``alone``: there is only one source."""

    names: list[str]
    codes: Times
    alone: bool


def parts_of(events: pa.Table, source: str, by: str | None) -> SourceRows:
    """The sources of a piece of input: ``source``, or ``source/value`` for each value of the column ``by``; of an
    empty ``source`` the value alone.
    """
    if by is None:
        return SourceRows([source], np.zeros(events.num_rows, np.int64), alone=True)
    column = source_column(events, by)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    # Encoded as one array, so that there is one dictionary; null is a source of its own.
    whole = pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])
    try:
        values = whole.dictionary_encode("encode")
    except pa.ArrowNotImplementedError:
        raise UsageError(
            "values of this type cannot name sources: take a column of text or numbers, by=",
            code="progress-column",
            column=by,
            found=column.type,
        ) from None
    front = f"{source}/" if source else ""
    names = [f"{front}{value}" for value in values.dictionary.to_pylist()]
    return SourceRows(names, np.asarray(values.indices).astype(np.int64, copy=False), alone=False)


def rows_per_source(events: pa.Table, *, source: str, by: str | None = None) -> dict[str, SourceReport]:
    """Reports with the row count of each source, and no watermark."""
    return same_claim(events, BEGINNING_US, source, by)


def same_claim(events: pa.Table, claim_us: int, source: str, by: str | None) -> dict[str, SourceReport]:
    """Reports in which every source of a piece claims the same watermark."""
    parts = parts_of(events, source, by)
    rows = np.bincount(parts.codes, minlength=len(parts.names)).tolist()
    return {
        name: SourceReport(claim_us, rows=count)
        for name, count in zip(parts.names, rows, strict=True)
        if count or parts.alone
    }


def source_column(events: pa.Table, name: str) -> Any:
    """A column that moves the watermark. Raises `UsageError` if it is missing."""
    if name not in events.column_names:
        raise missing_columns("a batch lacks a column that moves the watermark", [name], events.column_names)
    return events[name]
