"""The operators of a job bound to the types of their inputs, and how far time goes through them. Pure.

A job of one operator is a graph of one node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.sides import Sides
from tidestate.operators.plan.plan import PANE_TIME, Plan
from tidestate.operators.progress.instants import BEGINNING_US, END_US
from tidestate.operators.progress.rounds import Claims, Progress, Rounds, advanced_to
from tidestate.operators.progress.watermarks import INPUT, SourceReport
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME

STREAM = "__stream"
"""Which stream a row is of, where several travel as one."""
OF_PANES = ("pane", "timing", "last")
"""Columns of panes that nobody downstream reads."""


@dataclass(frozen=True)
class Feed:
    """One input of an operator: a stream or another operator, which side that is, and its column of event times."""

    origin: str
    side: str | None
    time: str


@dataclass(frozen=True)
class Node:
    """An operator and what it reads. ``level``: behind how many others it comes, the first being 1."""

    plan: Plan
    feeds: tuple[Feed, ...]
    level: int = 1
    sides: Sides | None = None

    @property
    def origins(self) -> tuple[str, ...]:
        """The streams and operators it reads."""
        return tuple(feed.origin for feed in self.feeds)

    def rows(self, feed: Feed, rows: pa.Table) -> pa.Table:
        """What a feed brings, as the operator's input has it."""
        if self.sides is None or feed.side is None:
            return rows
        return self.sides.rows(self.plan.input_schema, feed.side, rows)


@dataclass(frozen=True)
class Graph:
    """All operators in order; ``streams``: the columns that are read of each, by name."""

    nodes: tuple[Node, ...]
    streams: dict[str, tuple[str, ...]]

    @property
    def output(self) -> Plan:
        """The operator whose panes the job shows."""
        return self.nodes[-1].plan

    @property
    def single(self) -> bool:
        """Whether there is one operator."""
        return len(self.nodes) == 1

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """By name."""
        return {node.plan.name: node.plan for node in self.nodes}

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return max(node.level for node in self.nodes)

    def at(self, level: int) -> list[tuple[int, Node]]:
        """The operators of a level, with their numbers."""
        return [(number, node) for number, node in enumerate(self.nodes) if node.level == level]

    def readers(self, origin: str) -> list[tuple[int, Node, int, Feed]]:
        """Who reads a stream or operator: number and node, number and feed."""
        return [
            (number, node, place, feed)
            for number, node in enumerate(self.nodes)
            for place, feed in enumerate(node.feeds)
            if feed.origin == origin
        ]

    def split(self, rows: pa.Table) -> dict[str, pa.Table]:
        """Rows of the one stream in which all travel, by stream."""
        if len(self.streams) == 1:
            return dict.fromkeys(self.streams, rows)
        found = {}
        for name, columns in self.streams.items():
            own = rows.filter(pc.equal(rows[STREAM], name)).select([f"{name}__{column}" for column in columns])
            found[name] = own.rename_columns(list(columns))
        return found

    @property
    def columns(self) -> list[str]:
        """The columns of the one stream in which all travel."""
        if len(self.streams) == 1:
            return list(next(iter(self.streams.values())))
        return [STREAM, *(f"{name}__{column}" for name, columns in self.streams.items() for column in columns)]

    @property
    def clocked(self) -> bool:
        """Whether time alone may show panes."""
        return any(node.plan.clocked for node in self.nodes)

    @property
    def order(self) -> tuple[str, ...]:
        """The columns in whose order the stream is read; there is one stream then."""
        return next((node.plan.watermarks.order for node in self.nodes if node.plan.watermarks.order), ())

    @property
    def by(self) -> str | None:
        """The column that tells sources of that stream apart."""
        return next((node.plan.watermarks.by for node in self.nodes if node.plan.watermarks.order), None)

    def begin(self) -> dict[str, Progress]:
        """Before the first round."""
        return {name: Rounds(plan.watermarks).begin() for name, plan in self.plans.items()}

    def after(
        self, before: Mapping[str, Progress], claims: Mapping[str, Sequence[Claims]], now_us: int
    ) -> dict[str, Progress]:
        """Progress of all operators after a round at processing time ``now_us`` in which streams claim this of those
        that read them.
        """
        found: dict[str, Progress] = {}
        for node in self.nodes:
            name = node.plan.name
            said = [*claims.get(name, ()), *self._claimed(node, found)]
            found[name] = Rounds(node.plan.watermarks).after(before[name], said, now_us)
        return found

    def reached(self, before: Mapping[str, Progress], time_us: int, now_us: int) -> dict[str, Progress]:
        """Progress of all operators where every stream has come as far as ``time_us``."""
        found: dict[str, Progress] = {}
        for node in self.nodes:
            name, said = node.plan.name, self._claimed(node, found)
            if said:
                here = {feed.side or INPUT: SourceReport(time_us, generated=True) for feed in node.feeds}
                fed = {name for claims in said for name in claims.reports}
                streams = Claims({side: report for side, report in here.items() if side not in fed})
                found[name] = Rounds(node.plan.watermarks).after(before[name], [*said, streams], now_us)
            else:
                found[name] = advanced_to(before[name], time_us)
        return found

    def finished(self, before: Mapping[str, Progress]) -> dict[str, Progress]:
        """At the end of time."""
        return {name: Rounds(plan.watermarks).finished(before[name]) for name, plan in self.plans.items()}

    def _claimed(self, node: Node, after: Mapping[str, Progress]) -> list[Claims]:
        """What operators upstream claim of a node."""
        return [
            Claims({feed.side or INPUT: _report(self.plans[feed.origin], after[feed.origin].watermark_us, feed.time)})
            for feed in node.feeds
            if feed.origin in self.plans
        ]


def single_operator(plan: Plan) -> Graph:
    """The graph of a job of one operator."""
    return Graph((Node(plan, (Feed(INPUT, None, plan.event_time),)),), {INPUT: tuple(plan.read_names)})


def _report(plan: Plan, watermark: int, time: str) -> SourceReport:
    """What an operator at this watermark says to who reads its panes by their column ``time``."""
    if watermark == END_US:
        return SourceReport(ended=True)
    return SourceReport(
        BEGINNING_US if watermark == BEGINNING_US else plan.output_watermark(watermark, time), generated=True
    )


def downstream_schema(plan: Plan) -> pa.Schema:
    """Columns of an operator's panes as those downstream see them."""
    dropped = {*OF_PANES, *(() if plan.retracts else ("kind",))}
    fields = [field for field in plan.pane_schema if field.name not in dropped]
    there = {field.name: field.type for field in fields}
    if there.get("window_end") == TIME:
        fields.append(pa.field(PANE_TIME, TIME))
    return pa.schema(fields)


def downstream_rows(plan: Plan, panes: pa.Table) -> pa.Table:
    """Panes as those downstream see them."""
    schema = downstream_schema(plan)
    if PANE_TIME in schema.names and PANE_TIME not in panes.column_names:
        last = pc.subtract(panes["window_end"].cast(pa.int64()), 1).cast(TIME)
        panes = panes.append_column(PANE_TIME, last)
    return panes.select(schema.names)


def one_batch(graph: Graph, batch: pa.Table | Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """A batch by stream. Raises `UsageError` for a stream that nobody reads, or a table where there are several."""
    if isinstance(batch, Mapping):
        if strange := sorted(set(batch) - set(graph.streams)):
            raise UsageError("nobody reads these streams", code="streams", found=strange, streams=list(graph.streams))
        return dict(batch)
    if len(graph.streams) > 1:
        raise UsageError("give a table for each stream, by name", code="streams", streams=list(graph.streams))
    return dict.fromkeys(graph.streams, batch)
