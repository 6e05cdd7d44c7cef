"""Composite triggers: a tree of conditions, with the progress of each part in columns of the group. Vectorised.

If the condition of the whole tree holds, the window emits a pane, and every part that contributed is finished;
`repeatedly` restarts its part. A tree that is finished closes its window.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidestate.operators.describe.triggers import Trigger
from tidestate.operators.progress.progress import Context
from tidestate.operators.windows.groups import NEVER, Phases, column_numbers
from tidestate.operators.windows.names import CLOSED, PENDING
from tidestate.operators.windows.tables import GroupTables
from tidestate.statestore.arrays import Flags, Numbers


class Tree:
    """A composite trigger for all groups of a step."""

    def __init__(self, plan: GroupTables, groups: pa.Table, phase: Phases, touched: Flags, context: Context) -> None:
        self._groups, self._now_us = groups, context.now_us
        self._retained = phase.closed & ~phase.closing & ~touched
        self._passed, self._passing = phase.behind | phase.passing, phase.passing
        self._pending = column_numbers(groups, PENDING) > 0
        self._nodes = plan.nodes
        self._closed = column_numbers(groups, CLOSED) > 0
        many = range(len(plan.nodes))
        self._count = [column_numbers(groups, f"_count_{node}") for node in many]
        self._since = [column_numbers(groups, f"_since_{node}", NEVER) for node in many]
        self._done = [column_numbers(groups, f"_done_{node}") > 0 for node in many]

    def fire(self) -> Flags:
        """Which groups fire. The progress of the parts changes."""
        holds = self._holds(0) & ~self._closed & ~self._retained
        # The watermark passes the end once: after that only new elements make a pane.
        shows = self._pending | self._passing
        # What another trigger ends is over with nothing new too, without a pane.
        self._fire(0, holds & (shows | self._ends(0)))
        self._closed = self._closed | self._done[0]
        return holds & shows

    def progress(self) -> dict[str, Numbers]:
        """The progress as columns of groups; null in ``_since`` is `NEVER`."""
        columns = {CLOSED: self._closed.astype(np.int64)}
        for node in range(len(self._nodes)):
            columns[f"_count_{node}"] = self._count[node]
            columns[f"_since_{node}"] = self._since[node]
            columns[f"_done_{node}"] = self._done[node].astype(np.int64)
        return columns

    def _parts(self, node: int) -> list[int]:
        """The numbers of a node's parts: they follow it, each with its own parts."""
        parts, place = [], node + 1
        for part in self._nodes[node].of:
            parts.append(place)
            place += len(part.nodes)
        return parts

    def _holds(self, node: int) -> Flags:
        trigger, parts = self._nodes[node], [self._holds(part) for part in self._parts(node)]
        if trigger.kind == "all_of":
            holds = np.logical_and.reduce([h | self._done[p] for h, p in zip(parts, self._parts(node), strict=True)])
        elif parts:
            holds = np.logical_or.reduce(parts)
        else:
            holds = self._leaf(node, trigger)
        held: Flags = holds & ~self._done[node]
        return held

    def _ends(self, node: int) -> Flags:
        """Whether the condition that ends an `or_finally` holds, of this node or of one of its parts."""
        parts = self._parts(node)
        ends = np.logical_or.reduce([np.zeros_like(self._pending), *(self._ends(part) for part in parts)])
        until: Flags = self._holds(parts[1]) | ends if self._nodes[node].kind == "or_finally" else ends
        return until & self._holds(node)

    def _leaf(self, node: int, trigger: Trigger) -> Flags:
        if trigger.kind == "after_count":
            counted: Flags = self._count[node] >= trigger.count
            return counted
        if trigger.kind == "after_watermark":
            return self._passed
        since = self._since[node]
        elapsed: Flags = (since != NEVER) & (since <= self._now_us - trigger.span_us)
        return elapsed

    def _fire(self, node: int, where: Flags) -> None:
        """Record that the node has fired in the groups ``where``."""
        kind, parts = self._nodes[node].kind, self._parts(node)
        held = [where & self._holds(part) for part in parts]
        for part, share in zip(parts, held, strict=True):
            self._fire(part, share)
        if kind == "repeatedly":
            self._restart(parts[0], where & self._done[parts[0]])
        elif kind == "or_finally":
            self._done[node] = self._done[node] | (where & (self._done[parts[1]] | self._done[parts[0]]))
        else:
            self._done[node] = self._done[node] | where

    def _restart(self, node: int, where: Flags) -> None:
        for place in range(node, node + len(self._nodes[node].nodes)):
            self._count[place] = np.where(where, 0, self._count[place])
            self._since[place] = np.where(where, NEVER, self._since[place])
            self._done[place] = self._done[place] & ~where
