"""What the user writes to join two streams. Both travel as one: a row has its side, its time, its side's columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from operators.description import Runnable
from operators.durations import Span, span_us, text_of
from operators.joins.names import AT, LEFT, RIGHT, SIDE
from operators.watermarks import Watermarks
from operators.windows import Sliding, Windows
from statestore.errors import UsageError
from statestore.tables import TIME

if TYPE_CHECKING:
    from os import PathLike

    from pyspark.sql import DataFrame

    from operators.delivery import SparkSink
    from operators.spark.query import SparkJob
    from statestore.store import StoreConfig

How = Literal["inner", "left", "right", "full"]


@dataclass(frozen=True)
class Joined(Runnable):
    """Pairs of rows of two streams with the same key, near in time or in the same window."""

    left_time: str
    right_time: str
    on: tuple[str, ...]
    how: How
    lower_us: int | None
    upper_us: int | None
    windows: Sliding | None
    allowed_us: int
    watermark_delay_us: int
    name: str
    watermarks: Watermarks | None = None

    def on_spark(  # type: ignore[override]
        self,
        left: DataFrame,
        right: DataFrame,
        *,
        checkpoint: str | PathLike[str],
        store: StoreConfig | None = None,
        sink: SparkSink | None = None,
        partitions: int | None = None,
        tick: Span | None = None,
    ) -> SparkJob:
        """This join over two streaming DataFrames, in one query with the offsets of both; otherwise as `Runnable`."""
        from operators.spark.sides import both_sides

        stream = both_sides(self, left, right)
        return super().on_spark(
            stream, checkpoint=checkpoint, store=store, sink=sink, partitions=partitions, tick=tick
        )

    def schema(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        """Columns of the one stream in which rows of both sides travel. Raises `UsageError` where a key differs."""
        _check_columns(self, left, right)
        keys = [left.field(name) for name in self.on]
        rest = [
            pa.field(f"{side}_{field.name}", field.type)
            for side, schema in ((LEFT, left), (RIGHT, right))
            for field in schema
            if field.name not in self.on
        ]
        return pa.schema([*keys, pa.field(SIDE, pa.string()), pa.field(AT, TIME), *rest])

    def rows(self, schema: pa.Schema, *, left: pa.Table | None = None, right: pa.Table | None = None) -> pa.Table:
        """Rows of one or both sides as that stream has them, the left ones first."""
        parts = [
            _of_side(self, schema, side, table) for side, table in ((LEFT, left), (RIGHT, right)) if table is not None
        ]
        return pa.concat_tables([schema.empty_table(), *parts])

    def time_of(self, side: str) -> str:
        """The column of event times of a side."""
        return self.left_time if side == LEFT else self.right_time

    def describe(self) -> dict[str, Any]:
        """The configuration as a manifest holds it."""
        bounds = [None if us is None else text_of(us) for us in (self.lower_us, self.upper_us)]
        return {
            "name": self.name,
            "event_times": [self.left_time, self.right_time],
            "on": list(self.on),
            "how": self.how,
            "within": None if self.windows else bounds,
            "window": self.windows.describe() if self.windows else None,
            "allowed_lateness": text_of(self.allowed_us),
            "watermark_delay": text_of(self.watermark_delay_us),
            "watermark": self.watermarks.describe() if self.watermarks else None,
        }


def join(
    *,
    event_time: str | tuple[str, str],
    on: str | Sequence[str],
    within: tuple[Span | None, Span | None] | None = None,
    window: Windows | None = None,
    how: How = "inner",
    late: Span = "0 seconds",
    watermark_delay: Span = "0 seconds",
    name: str = "joined",
) -> Joined:
    """Join two streams: rows with equal ``on`` whose times lie ``within`` each other, or which share a ``window``.

    ``within=(lower, upper)``: the right row's time less the left one's lies between them, both inclusive; None is no
    bound. Pairs are shown as the later of the two comes; of an outer join (``how``) a row without a partner once none
    can come any more, ``late`` included. Each side has a watermark, and the smaller one counts.
    """
    columns = (on,) if isinstance(on, str) else tuple(on)
    left_time, right_time = (event_time, event_time) if isinstance(event_time, str) else event_time
    if not columns or len(set(columns)) != len(columns) or {left_time, right_time} & set(columns):
        raise UsageError("rows are joined on columns, each named once, and not on their times", code="join-on", on=on)
    if (within is None) == (window is None):
        raise UsageError("say how near rows are: within=(lower, upper), or window=", code="join-bounds")
    if window is not None and (not isinstance(window, Sliding) or window.by_offset):
        raise UsageError("rows are joined in tumbling or sliding windows of time", code="join-window")
    if how not in ("inner", "left", "right", "full"):
        raise UsageError("a join is inner, left, right or full", code="join-how", found=repr(how))
    low, high = (None if span is None else span_us(span) for span in within or (None, None))
    if low is not None and high is not None and low > high:
        raise UsageError("the lower bound of a join lies above the upper one", code="join-bounds", within=within)
    allowed, delay = span_us(late), span_us(watermark_delay)
    if allowed < 0 or delay < 0:
        raise UsageError("lateness and watermark delay cannot be negative", code="lateness")
    return Joined(left_time, right_time, columns, how, low, high, window, allowed, delay, name)


def _check_columns(joined: Joined, left: pa.Schema, right: pa.Schema) -> None:
    for side, schema in ((LEFT, left), (RIGHT, right)):
        missing = [name for name in (*joined.on, joined.time_of(side)) if name not in schema.names]
        if missing:
            raise UsageError("a side lacks columns of the join", code="column-missing", side=side, missing=missing)
    differ = [name for name in joined.on if left.field(name).type != right.field(name).type]
    if differ:
        raise UsageError("the sides' keys have different types: cast one", code="join-types", columns=differ)


def _of_side(joined: Joined, schema: pa.Schema, side: str, rows: pa.Table) -> pa.Table:
    columns = []
    for field in schema:
        own = field.name.removeprefix(f"{side}_")
        if field.name in joined.on:
            column = rows[field.name]
        elif field.name == SIDE:
            column = pa.chunked_array([pa.repeat(pa.scalar(side), rows.num_rows)])
        elif field.name == AT:
            column = rows[joined.time_of(side)]
        elif own != field.name and own in rows.column_names:
            column = rows[own]
        else:
            column = pa.nulls(rows.num_rows, field.type)
        columns.append(column.cast(field.type))
    return pa.table(columns, schema=schema)
