"""A job of two operators of one stream, each with late rows of its own, and what each has put out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidestate as ts
from tests.helpers.worked_example import batch
from tidestate import OperatorStream, agg

LENGTH_S = {"short": 10, "wide": 30}
"""The operators, with the length of their windows: an event may be late for the one and not for the other."""


def united() -> OperatorStream:
    """Windows of both lengths as one stream of panes: each event is in one pane of each operator, once it is in time
    or put back, and in no second one.
    """
    return ts.union(*map(_windows, LENGTH_S), name="both")


def _windows(name: str) -> Any:
    events = ts.stream("events", event_time="t").group_by("k").window(ts.tumbling(f"{LENGTH_S[name]} seconds"))
    panes = events.aggregate(of=agg.min("k"), values=agg.list("v")).named(name)
    retained = panes.allowed_lateness("0 seconds", rule="window", ledger_columns=["v"]).retain_windows("10 hours")
    return retained.accumulation("discarding").timed_by("window_end")


def events(*seconds_and_numbers: tuple[int, int]) -> pa.Table:
    """Events of one key, by second and number."""
    return batch([(second, "a", number) for second, number in seconds_and_numbers])


def numbers_by_operator(panes: pa.Table) -> dict[str, Counter[int]]:
    """The numbers of events in panes, by operator."""
    numbers = {name: Counter[int]() for name in LENGTH_S}
    for row in panes.to_pylist():
        numbers[row["side"]].update(row["values"])
    return numbers


def put_out(root: Path) -> dict[str, Counter[int]]:
    """The numbers of events in all panes of a root, by operator."""
    return numbers_by_operator(ts.Root(root).panes().to_table())
