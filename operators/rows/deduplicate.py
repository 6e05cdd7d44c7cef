"""Deduplication: the first row of each id passes; a table has the time until which each id is remembered. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.plan.plan import Plan
from tidestate.operators.plan.transition import Transition
from tidestate.operators.progress.progress import Context
from tidestate.operators.progress.watermarks import BEGINNING_US, END_US, LIMIT_US
from tidestate.statestore.arrays import Flags, Times
from tidestate.statestore.messages.identities import remember, unknown_rows
from tidestate.statestore.spec.arrowtypes import positions
from tidestate.statestore.spec.store import StateView
from tidestate.statestore.spec.tables import Column, TableSpec
from tidestate.statestore.table.sorting import firsts, lasts, ranks, sorting

UNTIL = "remembered_until"


@dataclass(frozen=True)
class DedupPlan(Plan):
    """The key columns are the id of a row. ``follows``: its lateness is the default, not a setting of its own."""

    late_option = "allowed_lateness=…"
    taken_again = "whose ids are not remembered"

    within_us: int | None = None
    follows: bool = False
    has_plain_rows: bool = False

    @property
    def reprocesses(self) -> bool:
        return True

    @cached_property
    def seen(self) -> TableSpec:
        """Ids, and until which watermark each is remembered (int64 microseconds)."""
        return TableSpec(
            "seen", self.input.key_specs, (Column(UNTIL, "int64"),), UNTIL, partition_by=self.partition_by
        )

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return (self.seen, *self.held_tables)

    @property
    def pane_schema(self) -> pa.Schema:  # type: ignore[override]
        return self.input.schema

    def too_late(self, events: pa.Table, times: Times, watermark: int) -> Flags:
        """Rows behind the allowed lateness: their ids may have expired. It refuses none that it is given again."""
        late: Flags = times < (BEGINNING_US if self.reprocessing else self.closed_at(watermark))
        return late

    @property
    def pane_key(self) -> tuple[str, ...]:
        """The id: each passes once."""
        return tuple(self.input.key_names)

    def output_watermark(self, watermark: int, column: str) -> int:
        """Rows pass as they arrive; those behind the watermark are late for who reads them, too."""
        if column != self.input.event_time:
            return super().output_watermark(watermark, column)
        return watermark

    def expiry(self, context: Context) -> dict[str, int]:
        """An id with a time to live expires with it; another one when its duplicates have become late."""
        closed = self.closed_at(context.watermark)
        own = {self.seen.name: min(closed if self.within_us is not None else closed - 1, END_US - 1)}
        return {**(own if closed != BEGINNING_US else {}), **super().expiry(context)}

    def step(self, view: StateView, arriving: pa.Table, context: Context) -> Transition:
        """Pass on the first row of each id that is not remembered."""
        if self.in_order:
            return self.taking(view, arriving, context, lambda rows: self._in_turn(view, rows, context))
        new = unknown_rows(view, self.seen, arriving)
        return self._passed(new, new, arriving.num_rows, context)

    def _in_turn(self, view: StateView, rows: pa.Table, context: Context) -> Transition:
        """The same for rows in the order of their times: an id expires when a row arrives that is late enough."""
        owner, count = ranks(rows.select(self.input.key_names))
        known = view[self.seen.name].lookup(rows.take(pa.array(firsts(owner, count))).select(self.input.key_names))
        # Without `within` an id is remembered for the time of its row only.
        span = 1 if self.within_us is None else self.within_us
        until = pc.fill_null(known.rows[UNTIL], BEGINNING_US).to_numpy() + (self.within_us is None)
        times = positions(rows[self.input.event_time])
        passing = spaced(owner, times, until, span)
        new, last = rows.take(pa.array(passing)), lasts(owner[passing], count)
        return self._passed(new, new.take(pa.array(last[last >= 0])), rows.num_rows, context)

    def _passed(self, new: pa.Table, latest: pa.Table, asked: int, context: Context) -> Transition:
        """``new`` rows pass; the ``latest`` of each id says until when the id is remembered."""
        closed = self.closed_at(context.watermark)
        times = positions(latest[self.input.event_time])
        # The time of a row that is given again may be long over: it is remembered from now on.
        since = np.maximum(times, min(closed, LIMIT_US)) if self.reprocessing else times
        until = pa.array(since + (0 if self.within_us is None else self.within_us))
        changes = {self.seen.name: remember(self.seen, latest, until, self.expiry(context).get(self.seen.name))}
        passed = {"passed": new.num_rows, "duplicates": asked - new.num_rows}
        counters = {name: count for name, count in passed.items() if count}
        return Transition(changes, new.select(self.input.schema.names), counters)


def spaced(owner: Times, times: Times, until: Times, span: int) -> Times:
    """Which of the rows, in the order of their ``times``, pass: of each owner the first that is not before its
    ``until``, then each first that is at least ``span`` after the last one that passed. Shapes ``(rows,)``; that of
    ``until`` is ``(owners,)``.
    """
    count = len(times)
    by_owner = sorting(owner)
    owner, times = owner[by_owner], times[by_owner]
    ranked = np.unique(times, return_inverse=True)
    line = owner * (len(ranked[0]) + 1) + ranked[1]
    after = np.searchsorted(line, owner * (len(ranked[0]) + 1) + np.searchsorted(ranked[0], times + span))
    ends = np.searchsorted(owner, owner, "right")
    # A row does not follow itself, even with a span of nothing, nor a row of another owner.
    following = np.maximum(after, np.arange(count) + 1)
    following = np.append(np.where(following < ends, following, count), count)
    owners = np.arange(len(until))
    first = np.searchsorted(line, owners * (len(ranked[0]) + 1) + np.searchsorted(ranked[0], until))
    begins = first[first < np.searchsorted(owner, owners, "right")]
    passing = np.zeros(count + 1, bool)
    passing[begins] = True
    for _ in range(count.bit_length()):
        # After k rounds all rows that are fewer than 2^k steps from the first have passed.
        passing[following[passing]] = True
        following = following[following]
    return np.sort(by_owner[np.flatnonzero(passing[:count])])
