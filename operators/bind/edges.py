"""Windows by lifetime of rows that may be edges, with start and end in two rows: what they are refused with, and the
plan of those that are exact. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TypeVar

import msgspec
import pyarrow as pa

from tidestate.operators.aggregates.aggregate import inputs
from tidestate.operators.describe.windowed import Merge, Windowed
from tidestate.operators.describe.windows import Sliding, Windows
from tidestate.operators.progress.ctis import Ctis
from tidestate.operators.progress.watermarks import Watermarks
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.errors import UsageError, of_type

_P = TypeVar("_P")


def bind_edges(plan: GroupTables, description: Windowed, made: Callable[..., _P]) -> _P:
    """A ``plan`` as one that is ``made`` for edges. Raises `UsageError` where an end could not name its start."""
    ctis = of_type(plan.input.watermarks.generator, Ctis)
    lives = ctis.columns_of("")
    about = (description.event_time, lives.end, lives.shape_column, *lives.order, *description.key)
    if varying := sorted(
        {description.event_time, lives.end, lives.shape_column}.intersection(description.key), key=str
    ):
        raise UsageError(
            "an edge and its end are rows with one key, but with other values in this column: group by other columns",
            code="edge-window",
            operator=description.name,
            columns=varying,
        )
    payload = tuple(name for name in inputs(description.aggregates.values()) if name not in about)
    if nested := [name for name in payload if pa.types.is_nested(plan.input.schema.field(name).type)]:
        raise UsageError(
            "the end of an edge has the values of its start, and lists and structs cannot be compared: let "
            "aggregates over edges read text, numbers or fields of structs",
            code="edge-window",
            operator=description.name,
            columns=nested,
        )
    # Ends go on as rows of their own, with the time at which they end an edge.
    generator = msgspec.structs.replace(ctis, keeps_ends=True)
    plan = plan.with_input(watermarks=msgspec.structs.replace(plan.input.watermarks, generator=generator))
    return made(**{field.name: getattr(plan, field.name) for field in fields(plan)}, lives=lives, payload=payload)


def takes_edges(kind: Windows | None, watermarks: Watermarks | None) -> bool:
    """Whether windows are by lifetime, of rows that may be edges."""
    return isinstance(kind, Sliding) and kind.end_column is not None and has_edges(watermarks)


def check_edges(description: Windowed) -> None:
    """Check that windows by lifetime of edges are exact with these settings. Raises `UsageError`."""
    if not takes_edges(description.windows, description.watermarks):
        return
    for wrong, why in _inexact(description):
        if wrong:
            raise UsageError(
                "an edge lasts until its end arrives, so windows by lifetime count it when the watermark passes "
                f'their ends. {why}; or give events with ends, lifetime(end="…"), or use windows with of="start"',
                code="edge-window",
                operator=description.name,
            )


def _inexact(description: Windowed) -> Iterator[tuple[bool, str]]:
    """What does not go with edges, and what to do about it."""
    triggers = description.triggers
    early = triggers.early is not None or triggers.when is not None or triggers.per_element
    yield isinstance(description, Merge), "A merge has no edges: aggregate each stream by itself"
    yield description.known is not None, "Stored messages are no edges: leave out .messages(…) and .by_hand(…)"
    yield early, "Before that they would lack it: leave out early, composite and per-element triggers"
    late = description.lateness_us > 0 or description.late_rule != "event"
    yield late, "An end that is late could not take it out of windows that have fired: leave out .allowed_lateness(…)"
    yield description.in_order, "So it comes after events that begin later: leave out .in_order()"


def check_passed_edges(description: Windowed, watermarks: Watermarks | None) -> None:
    """Check that windows by lifetime get no edges from an operator, which keeps their ends. Raises `UsageError`."""
    if takes_edges(description.windows, watermarks):
        raise UsageError(
            "the operator before this one passes on starts of edges, but not their ends, so windows by lifetime "
            'would count them for ever: set an end there, duration=…, or use windows with of="start"',
            code="edge-window",
            operator=description.name,
        )


def has_edges(watermarks: Watermarks | None) -> bool:
    """Whether rows may be edges, whose ends arrive later."""
    return watermarks is not None and watermarks.generator.has_edges
