"""The operators of a job, bound to the types of their inputs, and the progress of time through them. Pure.

A job with one operator is a graph with one node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import SIDE, Sides
from tidestate.operators.describe.windows import PANE_TIME
from tidestate.operators.plan.plan import PANE_KIND, Plan
from tidestate.operators.progress.progress import (
    Claims,
    Progress,
    SourceReport,
    combined_progress,
    finished_progress,
    first_progress,
)
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US, INPUT
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.plain import with_fields
from tidestate.statestore.spec.tables import TIME

STREAM = "__stream"
"""The column with a row's stream, if several are sent as one."""
_SENT = {ord("."): "\u2024", ord("`"): "\u02cb", ord("$"): "\ufe69", ord("*"): "\ufe61"}
"""What stands for a point in the names of columns on their way through Spark, which would look for a struct; for a
backtick, which PySpark does not escape; for a dollar, as Spark reads ``${…}`` as a variable, in names too; and for a
star, which would be all columns.
"""
_RECEIVED = {ord(sent): chr(own) for own, sent in _SENT.items()}
OF_PANES = ("pane", "timing", "last")
"""Columns of panes that operators downstream do not get."""


@dataclass(frozen=True)
class StreamOrder:
    """The ``columns`` that order the rows of each source of a stream (none: the order does not matter), and the
    column ``by`` that names the source of a row (None: there is one source).
    """

    columns: tuple[str, ...]
    by: str | None


@dataclass(frozen=True)
class Feed:
    """One input of an operator: the name of a stream or operator, its side if it has one, its event time column."""

    origin: str
    side: str | None
    time: str


@dataclass(frozen=True)
class Node:
    """An operator and its inputs. ``level``: 1 if it reads only streams, else above the operators it reads."""

    plan: Plan
    feeds: tuple[Feed, ...]
    level: int = 1
    sides: Sides | None = None

    @property
    def origins(self) -> tuple[str, ...]:
        """The streams and operators that it reads."""
        return tuple(feed.origin for feed in self.feeds)

    def order_of(self, feed: Feed) -> StreamOrder:
        """The order in which the rows of a feed count, in the columns of its stream."""
        watermarks = self.plan.input.watermarks
        if self.sides is None or feed.side is None:
            return StreamOrder(watermarks.order, watermarks.by if watermarks.order else None)
        order = watermarks.generator.order_of(feed.side)
        by = watermarks.generator.by_of(feed.side) if watermarks.by == SIDE else watermarks.by
        names = tuple(self.sides.own(feed.side, name) for name in order)
        return StreamOrder(names, self.sides.own(feed.side, by) if order and by else None)

    def rows(self, feed: Feed, rows: pa.Table) -> pa.Table:
        """Rows of a feed in the columns of the operator's input."""
        if self.sides is None or feed.side is None:
            return rows
        return self.sides.rows(self.plan.input.schema, feed.side, rows)


@dataclass(frozen=True)
class Graph:
    """All operators, each after those it reads; ``streams``: the columns that are read of each stream, by name.
    ``several``: the names of its outputs, in the order of operators, where the last operator is not the only one.
    """

    nodes: tuple[Node, ...]
    streams: dict[str, tuple[str, ...]]
    several: tuple[str, ...] = ()
    bind_by_name: Callable[[Collection[str]], Graph] | None = field(default=None, compare=False)
    """Binds the same job as if some of its operators had begun when names of columns decided whether rows take others
    back; None where that makes no difference.
    """
    unclear: Mapping[str, UsageError] = field(default_factory=dict, compare=False)
    """By operator that cannot begin as it is: why. One that has begun goes on."""

    @property
    def output(self) -> Plan:
        """The last operator, which always is an output: the job delivers its panes."""
        return self.nodes[-1].plan

    @cached_property
    def outputs(self) -> dict[str, Plan]:
        """The operators whose panes the job keeps and delivers, by name."""
        return {name: self.plans[name] for name in self.several or (self.output.name,)}

    @property
    def single(self) -> bool:
        """Whether there is one operator."""
        return len(self.nodes) == 1

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """The plans of all operators, by name."""
        return {node.plan.name: node.plan for node in self.nodes}

    def with_plans(self, plans: Mapping[str, Plan]) -> Graph:
        """The same with other plans of its operators, by name; itself where none differs."""
        if all(node.plan is plans[node.plan.name] for node in self.nodes):
            return self
        return replace(self, nodes=tuple(replace(node, plan=plans[node.plan.name]) for node in self.nodes))

    def settled(self) -> Graph:
        """The same for a job that has begun, where nothing is open any more."""
        return replace(self, bind_by_name=None, unclear={}) if self.bind_by_name or self.unclear else self

    def read_by(self, names: Collection[str]) -> Graph:
        """The same, whose streams these operators alone read."""
        nodes = []
        for node in self.nodes:
            feeds = tuple(feed for feed in node.feeds if node.plan.name in names or feed.origin not in self.streams)
            nodes.append(replace(node, feeds=feeds))
        return replace(self, nodes=tuple(nodes))

    @property
    def levels(self) -> int:
        """The number of the last level, which is how many there are."""
        return max(node.level for node in self.nodes)

    def at(self, level: int) -> list[tuple[int, Node]]:
        """The operators of a level, each with its number."""
        return [(number, node) for number, node in enumerate(self.nodes) if node.level == level]

    def readers(self, origin: str) -> list[tuple[int, Node, int, Feed]]:
        """The readers of a stream or operator: number and node, number and feed."""
        return [
            (number, node, place, feed)
            for number, node in enumerate(self.nodes)
            for place, feed in enumerate(node.feeds)
            if feed.origin == origin
        ]

    def reads_streams(self, name: str, how: Callable[[Iterable[bool]], bool] = any) -> bool:
        """Whether an operator reads streams of the input, so that it has a watermark of its own; `all`: only them."""
        return how(origin in self.streams for node in self.nodes if node.plan.name == name for origin in node.origins)

    def split(self, rows: pa.Table) -> dict[str, pa.Table]:
        """Rows of the combined stream, by stream; their columns may be named as in `sent_name`."""
        names = [name.translate(_RECEIVED) for name in rows.column_names]
        if names != rows.column_names:
            rows = rows.rename_columns(names)
        if len(self.streams) == 1:
            return dict.fromkeys(self.streams, rows)
        streams = {}
        for name, columns in self.streams.items():
            of_stream = rows.filter(pc.equal(rows[STREAM], name)).select([f"{name}__{column}" for column in columns])
            streams[name] = of_stream.rename_columns(list(columns))
        return streams

    @property
    def columns(self) -> list[str]:
        """The columns of the combined stream."""
        if len(self.streams) == 1:
            return list(next(iter(self.streams.values())))
        return [STREAM, *(f"{name}__{column}" for name, columns in self.streams.items() for column in columns)]

    @property
    def clocked(self) -> bool:
        """Whether time alone may emit panes."""
        return any(node.plan.clocked for node in self.nodes)

    @cached_property
    def orders(self) -> dict[str, StreamOrder]:
        """The order of the rows of each stream where it matters."""
        return {
            feed.origin: order
            for node in self.nodes
            for feed in node.feeds
            if feed.origin in self.streams and (order := node.order_of(feed)).columns
        }

    def begin(self) -> dict[str, Progress]:
        """The progress of all operators before the first round."""
        return {name: first_progress(plan.input.watermarks) for name, plan in self.plans.items()}

    def after(
        self, before: Mapping[str, Progress], claims: Mapping[str, Sequence[Claims]], now_us: int
    ) -> dict[str, Progress]:
        """The progress of all operators after a round at processing time ``now_us``; ``claims`` are those of the
        streams, by reader.
        """
        after: dict[str, Progress] = {}
        for node in self.nodes:
            name = node.plan.name
            all_claims = [*claims.get(name, ()), *self._upstream(node, after)]
            after[name] = combined_progress(node.plan.input.watermarks, before[name], all_claims, now_us)
        return after

    def reached(self, before: Mapping[str, Progress], time_us: int, now_us: int) -> dict[str, Progress]:
        """The progress of all operators after every stream has reached the watermark ``time_us``."""
        after: dict[str, Progress] = {}
        for node in self.nodes:
            name, upstream = node.plan.name, self._upstream(node, after)
            if upstream:
                followed = {side for claims in upstream for side in claims.reports}
                reached = SourceReport(time_us, generated=True)
                sources = [one for one in before[name].sources if one.partition("/")[0] not in followed]
                streams = Claims(dict.fromkeys(sources, reached))
                after[name] = combined_progress(
                    node.plan.input.watermarks, before[name], [*upstream, streams], now_us
                )
            else:
                after[name] = before[name].advanced_to(time_us)
        return after

    def finished(self, before: Mapping[str, Progress]) -> dict[str, Progress]:
        """The progress of all operators at the end of time. Raises `UsageError` (``rebuilding``) while rows of an
        outer join are missing.
        """
        self.check_whole()
        return {name: finished_progress(plan.input.watermarks, before[name]) for name, plan in self.plans.items()}

    def check_whole(self) -> None:
        """Raise `UsageError` (``rebuilding``) if an output waits for rows that were lost."""
        if standing := sorted(name for name, plan in self.plans.items() if plan.stands):
            raise UsageError(
                "rows of an outer join are missing, so which rows have no partner is not known, and the input "
                "cannot end: call rebuild() with replays until none are missing, or start with "
                'Policy(messages="forget") to give up on them',
                code="rebuilding",
                operators=standing,
            )

    def _upstream(self, node: Node, after: Mapping[str, Progress]) -> list[Claims]:
        """The claims of the operators that a node reads."""
        return [
            Claims({feed.side or INPUT: _report(self.plans[feed.origin], after[feed.origin].watermark_us, feed.time)})
            for feed in node.feeds
            if feed.origin in self.plans
        ]


def sent_name(column: str) -> str:
    """What a column is called on its way through Spark."""
    return column.translate(_SENT)


def single_operator(plan: Plan) -> Graph:
    """The graph of a job with one operator."""
    return Graph((Node(plan, (Feed(INPUT, None, plan.input.event_time),)),), {INPUT: tuple(plan.input.read_names)})


def _report(plan: Plan, watermark: int, time: str) -> SourceReport:
    """The report of an operator at this watermark to readers with the event time ``time``."""
    if watermark == END_US:
        return SourceReport(ended=True)
    return SourceReport(
        BEGINNING_US if watermark == BEGINNING_US else plan.output_watermark(watermark, time), generated=True
    )


def downstream_schema(plan: Plan) -> pa.Schema:
    """The columns of an operator's panes for operators downstream."""
    dropped = set() if plan.has_plain_rows else {*OF_PANES, *(() if plan.retracts else (PANE_KIND,))}
    fields = [field for field in plan.pane_schema if field.name not in dropped]
    there = {field.name: field.type for field in fields}
    if there.get("window_end") == TIME and PANE_TIME not in there:
        fields.append(pa.field(PANE_TIME, TIME))
    return pa.schema(fields)


def downstream_rows(plan: Plan, panes: pa.Table) -> pa.Table:
    """Panes as operators downstream get them."""
    schema = downstream_schema(plan)
    if PANE_TIME in schema.names and PANE_TIME not in panes.column_names:
        last = pc.subtract(panes["window_end"].cast(pa.int64()), 1).cast(TIME)
        panes = panes.append_column(PANE_TIME, last)
    return panes.select(schema.names)


def one_batch(graph: Graph, batch: pa.Table | Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """A batch by stream. Raises `UsageError` for an unknown stream, or a single table for several streams."""
    if isinstance(batch, Mapping):
        if strange := sorted(set(batch) - set(graph.streams)):
            raise UsageError(
                "no operator reads these streams: remove them",
                code="streams",
                found=strange,
                streams=list(graph.streams),
            )
        return {name: with_fields(rows, graph.streams[name]) for name, rows in batch.items()}
    if len(graph.streams) > 1:
        raise UsageError("give one table for each stream, by name", code="streams", streams=list(graph.streams))
    return {name: with_fields(batch, columns) for name, columns in graph.streams.items()}
