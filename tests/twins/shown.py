"""A naive twin of windows that count some rows, compute columns of results, and show only some panes: one event at a
time, each window computed again from the list of its events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.twins.naive import Event, Key, Row, Twin, Values, Window, row

Group = tuple[Window, Key]


@dataclass
class ShownTwin(Twin):
    """``some``: the rows of a filtered aggregate; ``shown``: which values are emitted."""

    some: Callable[[Event], bool] = bool
    shown: Callable[[Values], bool] = bool
    stands: set[Group] = field(default_factory=set)

    def values(self, events: list[Event]) -> Values:
        """Rows; rows that count, and the sum of their v; and the share that is derived of two of these."""
        part = [event for event in events if self.some(event)]
        v = [event.v for event in part if event.v is not None]
        return (len(events), len(part), sum(v) if v else None, len(part) / len(events))

    def on_time(self, before: int | None) -> list[Row]:
        panes = []
        for group, events in self.accepted.items():
            end = group[0][1]
            passed = self.drained or (self.watermark is not None and end <= self.watermark)
            if passed and (before is None or end > before):
                panes += self.emitted(group, self.values(events), "on_time")
        return panes

    def late(self, group: Group, new: list[Event]) -> list[Row]:
        number, last = self.fired.get(group, (-1, ()))
        values = self.values(self.accepted[group])
        if group in self.stands and values == last:
            return []
        back = [row(group, last, number, "late", "retract", False)] if group in self.stands else []
        self.stands.discard(group)
        return [*back, *self.emitted(group, values, "late")]

    def emitted(self, group: Group, values: Values, timing: str) -> list[Row]:
        """The next pane of a window, if it is shown; a hidden one takes no number."""
        if not self.shown(values):
            return []
        number = self.fired.get(group, (-1, ()))[0] + 1
        self.fired[group] = (number, values)
        self.stands.add(group)
        return [row(group, values, number, timing, "emit", self.forgotten(group[0][1]))]
