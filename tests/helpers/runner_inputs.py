"""What the experiments of docs/reference/runners.md are fed, and the windows that a naive program finds in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

import tidestate as ts
from tests.helpers.join_operator_messages import LEFT, RIGHT
from tests.helpers.operator_messages import Message, table
from tidestate import Aggregation, agg
from tidestate.operators.describe.windows import Windows

SIDES = {"left": LEFT, "right": RIGHT}
MESSAGES = [Message("x", at, at + at // 5, "ab"[at % 3 == 0], at) for at in range(20)]
"""In order of time, with a pause of a second after each five."""
BATCHES = [table(MESSAGES[at : at + 5]) for at in range(0, 20, 5)]


def by_sides(rows: Sequence[Message]) -> dict[str, pa.Table]:
    """Even messages are on the left."""
    left, right = (table([row for row in rows if row.at % 2 == odd]) for odd in (0, 1))
    return {"left": left, "right": right.rename_columns(RIGHT.names)}


SIDED = [by_sides(MESSAGES[at : at + 5]) for at in range(0, 20, 5)]


def job(window: Windows, **more: Any) -> Aggregation:
    given = more or {"event_time": "t"}
    grouped = ts.stream(**given).group_by("k").window(window)
    return grouped.aggregate(n=agg.count(), total=agg.sum("v")).accumulation("retracting")


def of_starts(starts: Callable[[int], Sequence[int]], size: int, place: Callable[[Message], int]) -> list[Any]:
    """The results of windows of one size, by start and key."""
    found: dict[tuple[int, str | None], list[int]] = {}
    for row in MESSAGES:
        for start in starts(place(row)):
            assert start <= place(row) < start + size
            found.setdefault((start, row.k), []).append(row.v)
    return [(float(start), key, len(values), sum(values)) for (start, key), values in found.items()]


def of_sessions(gap: int, place: Callable[[Message], int]) -> list[Any]:
    found = []
    for key, own in groupby(sorted(MESSAGES, key=lambda row: (row.k or "", place(row))), key=lambda row: row.k):
        run: list[Message] = []
        for row in [*own, None]:
            if run and (row is None or place(row) - place(run[-1]) >= gap):
                found.append((float(place(run[0])), key, len(run), sum(one.v for one in run)))
                run = []
            run += [row] if row is not None else []
    return found


def time_of(row: Message) -> int:
    return row.t or 0


def offset_of(row: Message) -> int:
    return row.at


WINDOWS: dict[str, tuple[Aggregation, list[Any]]] = {
    "tumbling": (job(ts.tumbling("4 seconds")), of_starts(lambda t: [t // 4 * 4], 4, time_of)),
    "sliding": (
        job(ts.sliding("4 seconds", "2 seconds")),
        of_starts(lambda t: [t // 2 * 2 - 2, t // 2 * 2], 4, time_of),
    ),
    "sessions": (job(ts.sessions("2 seconds")), of_sessions(2, time_of)),
    "of offsets": (
        job(ts.offset_windows(6), offset="at", origin="part"),
        of_starts(lambda at: [at // 6 * 6], 6, offset_of),
    ),
    "sessions of offsets": (job(ts.offset_sessions(2), offset="at", origin="part"), of_sessions(2, offset_of)),
    "sessions of messages": (job(ts.message_sessions(0), offset="at", origin="part"), of_sessions(2, offset_of)),
}


def sessions_of(kind: str) -> Iterator[tuple[tuple[str | None, int], Message]]:
    """Each message with the key and beginning of its session."""
    place = time_of if kind == "time" else offset_of
    for key, own in groupby(sorted(MESSAGES, key=lambda row: (row.k or "", place(row))), key=lambda row: row.k):
        begun = before = -9
        for row in own:
            begun = place(row) if place(row) - before >= 2 else begun
            before = place(row)
            yield (key, begun), row
