"""The output watermark of windows, by the column that is the event time of their panes. Pure."""

from __future__ import annotations

from tidestate.operators.aggregates.timestamps import EndOfWindow
from tidestate.operators.describe.windows import PANE_TIME, NamedWindow, Rolling, Sessions, Sliding
from tidestate.operators.plan.plan import no_bound
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US
from tidestate.operators.windows.tables import GroupTables

START, LAST, EARLIEST, LATEST = "start", "last", "earliest", "latest"


def output_watermark(plan: GroupTables, watermark: int, column: str) -> int:
    """The lower bound of ``column`` in all later panes except late ones, at this ``watermark``.

    Raises `UsageError` for a column that has no bound before the end of the input.
    """
    bounds = _bounds(plan, watermark)
    meaning = _meaning(plan, column)
    if meaning not in bounds:
        raise no_bound(plan, column, "its windows end only with the input" if not bounds else _instead(plan))
    return watermark if watermark in (BEGINNING_US, END_US) else max(BEGINNING_US, bounds[meaning])


def _bounds(plan: GroupTables, watermark: int) -> dict[str, int]:
    """The lower bounds of panes of windows that have not ended."""
    kind = plan.kind
    if plan.by_offset or not isinstance(kind, Sliding | Rolling | Sessions | NamedWindow):
        return {}
    ends = {LAST: watermark}
    if isinstance(kind, Rolling):
        # The last event of a window is the one that it ends with.
        return ends | {LATEST: watermark} | dict.fromkeys((START, EARLIEST), watermark + 1 - kind.size)
    if isinstance(kind, Sliding):
        start = pulled_back(watermark, kind)
        # An event that touches a window may have begun long before it.
        return ends | dict.fromkeys((START, EARLIEST, LATEST) if kind.end_column is None else (START,), start)
    if isinstance(kind, Sessions) and kind.gap_column is None:
        # A session ends a gap after its latest event; its start is not known.
        return ends | {LATEST: watermark - kind.gap}
    return ends


def _meaning(plan: GroupTables, column: str) -> str:
    """The meaning of a column of panes; empty if it has no bound."""
    # A key or a result of that name stands in its place.
    if column == "window_end" or (column == PANE_TIME and column not in plan.pane_schema.names):
        return LAST
    if column == "window_start":
        return START
    for aggregate in (bound.aggregate for bound in plan.aggregates if bound.name == column):
        if isinstance(aggregate, EndOfWindow):
            return LAST
        # Of some rows alone it may be later, or earlier, than that of all.
        if aggregate.column == plan.input.event_time and aggregate.condition is None:
            return {"min": EARLIEST, "max": LATEST}.get(aggregate.function, "")
    return ""


def _instead(plan: GroupTables) -> str:
    latest = ', or .pane_timestamp("latest")' if isinstance(plan.kind, Sessions) and not plan.kind.gap_column else ""
    every = (
        ', window_start, or .pane_timestamp("earliest" or "latest")'
        if isinstance(plan.kind, Sliding | Rolling)
        else latest
    )
    return f'take window_end, .pane_timestamp("end_of_window"){every}'


def pulled_back(watermark: int, windows: Sliding) -> int:
    """The start of the earliest window that can still change: the first one that ends after the watermark.

    A watermark between two windows, and the ends of time, stay as they are. From StreamInsight, "CTIs and Query
    Operators".
    """
    if not BEGINNING_US // 2 <= watermark <= END_US // 2:
        return watermark
    phase = windows.shift + windows.size
    end = -((phase - watermark - 1) // windows.slide) * windows.slide + phase
    return min(watermark, end - windows.size)
