"""Lanes: each sink of a job has one, which knows how far the sink has come in this run.

A sink that refuses holds the intake, unless it may be behind: then its output waits in files of the root, which no
collection takes, and it is asked again later. A job that restarts goes on from what all of its sinks have accepted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from tidestate.operators.describe.sinks import Refused, Sink, Sinks, may_be_behind, sink_name
from tidestate.operators.engine.delivery import (
    LONGEST_PAUSE_S,
    PAUSE_S,
    CountedRows,
    Delivery,
    NotAskedError,
    Offers,
    delivered_to,
    deliveries,
)
from tidestate.operators.engine.job import Job
from tidestate.operators.progress.figures import SinkWaits
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import DeliveryId, Manifest, Output, OutputKind, output_of
from tidestate.statestore.errors import invariant

log = logging.getLogger("tidestate")

_P = TypeVar("_P")
LEFT_ALONE = 9
"""A sink that is behind is left alone for so many times as long as its refusal took: the job has nine tenths."""


@dataclass
class Lane(Generic[_P]):
    """A sink of these rows, which has accepted everything up to checkpoint ``had``, and ``parts`` of the next one."""

    name: str
    kind: OutputKind
    sink: Sink[_P]
    behind: int
    had: int
    parts: set[DeliveryId] = field(default_factory=set)
    lagging: bool = False
    """Whether it was refused, and is behind."""
    counted: int = 0
    """Up to which checkpoint the root counts everything as delivered, as far as this lane has heard."""
    asked: bool = False
    """Whether its target has answered what it has, if it can, or has taken something since."""
    tried: bool = False
    _pause_s: float = PAUSE_S
    _asked_again_s: float = 0.0

    def due(self, head: Manifest) -> int:
        """Up to which checkpoint it has to accept everything, before more is processed."""
        return head.id if head.drained else head.id - self.behind

    def full(self, head: Manifest) -> bool:
        """Whether the sink is as far behind as it may be."""
        return head.id - self.had >= self.behind

    def lags(self, head: Manifest) -> bool:
        """Whether the sink is behind and its retry delay has passed."""
        return self.had < head.id and time.monotonic() >= self._asked_again_s

    def refused(self, took_s: float) -> None:
        """Leave it alone for a while."""
        self._asked_again_s = time.monotonic() + max(self._pause_s, LEFT_ALONE * took_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        if not self.lagging:
            self.lagging = True
            log.warning(
                "%s refuses rows: it may fall behind by up to %d checkpoints, while input is processed",
                self.name,
                self.behind,
            )

    def hear(self, counted: int) -> None:
        """What the root counts as delivered: what was acknowledged by hand, or withheld, this sink has too."""
        if counted > self.counted:
            self.had, self.counted = max(self.had, counted), counted

    def accepted(self, output: Output, head: Manifest) -> None:
        """Record that the sink has accepted this output."""
        self.had, self.parts, self._pause_s, self._asked_again_s = output.id, set(), PAUSE_S, 0.0
        if self.lagging and self.had == head.id:
            self.lagging = False
            log.warning("%s is no longer behind", self.name)


class _BehindError(Exception):
    """A target has answered only now that it lacks more than was thought."""


@dataclass
class _Asking(Generic[_P]):
    """A sink that is asked what it has before it is called."""

    sink: Sink[_P]
    ask: Callable[[], None]

    def __call__(self, rows: _P, delivery: DeliveryId) -> bool | None:
        self.ask()
        return self.sink(rows, delivery)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sink, name)


class Lanes(Generic[_P]):
    """All lanes of a job. ``read`` reads what is offered."""

    def __init__(
        self, job: Job, read: Callable[[Checkpoint, Delivery], _P], offers: Offers, sinks: Sinks[_P]
    ) -> None:
        self.sinks, self._job, self._offers, self._read = sinks, job, offers, read
        self._each = [
            Lane(name, kind, sink, may_be_behind(sink), up_to, counted=up_to, asked=not hasattr(sink, "last"))
            for kind, several in sinks.each.items()
            for up_to in [job.delivered.up_to(kind)]
            for name, sink in zip(_names(several), several, strict=True)
        ]
        job.late_sink = job.late_sink or "late" in sinks.each

    def hold(self, wait: Callable[[float], None]) -> None:
        """Wait until all sinks that can be no further behind are ready to take more."""
        self._offers.hold(self._full(), wait)

    def ready(self) -> bool:
        """Whether they are ready now. Sinks that are behind are offered what they lack first."""
        self.catch_up()
        return self._offers.ready(self._full())

    def deliver(self, wait: Callable[[float], None]) -> None:
        """Offer all that is outstanding, the newest checkpoint included; wait for sinks until they are no further
        behind than they may be, and after a drain until they have everything.
        """
        while not self._delivered(wait):
            pass

    def _delivered(self, wait: Callable[[float], None]) -> bool:
        """As `deliver`; False where a target has answered only now that it lacks more."""
        head, lanes = self._job.head, self._asked()
        held = [lane for lane in lanes if lane.had < lane.due(head)]
        for output in outstanding(self._job, min((lane.had for lane in held), default=head.id)):
            rows: dict[DeliveryId, _P] = {}
            for lane in held:
                if lane.had < output.id <= lane.due(head):
                    try:
                        self._hand_over(lane, output, self._offered(lane, rows, wait))
                    except _BehindError:
                        return False
        self.catch_up()
        return True

    def catch_up(self) -> None:
        """Offer sinks that are behind what they lack, until they refuse; does not wait."""
        head = self._job.head
        for lane in self._asked():
            if lane.lags(head):
                with suppress(_BehindError):  # it is asked for more the next time
                    for output in outstanding(self._job, lane.had):
                        if not self._hand_over(lane, output, self._attempted(lane)):
                            break

    def waits(self) -> SinkWaits:
        """How this run has waited for its sinks, and what is not delivered to each."""
        head, lanes = self._job.head.id, self._known()
        behind = tuple((lane.name, lane.kind, head - lane.had) for lane in lanes)
        most = max((found for _, _, found in behind), default=0)
        return SinkWaits(self._offers.waiting_since_us, self._offers.waited_us, most, behind)

    def _full(self) -> list[Sink[_P]]:
        return [lane.sink for lane in self._known() if lane.full(self._job.head)]

    def _known(self) -> list[Lane[_P]]:
        """The lanes, which have heard of what was acknowledged."""
        for lane in self._each:
            lane.hear(self._job.delivered.up_to(lane.kind))
        return self._each

    def _asked(self) -> list[Lane[_P]]:
        """The lanes, whose targets have been asked once what they have."""
        for lane in self._known():
            if not (lane.asked or lane.tried):
                lane.tried = True
                try:
                    self._ask(lane)
                except (Refused, NotAskedError) as error:
                    log.warning(
                        "%s cannot be asked what it has stored, so rows that it may lack are not delivered again: %s",
                        lane.name,
                        error,
                    )
        return self._each

    def _ask(self, lane: Lane[_P]) -> bool:
        """Ask the target what it has of what counts as delivered; whether it lacks some. Raises as `delivered_to`."""
        counted = self._job.delivered.up_to(lane.kind)
        root = CountedRows(self._job.checkpoint, self._job.graph.plans, lane.kind, counted)
        had = delivered_to(root, lane.name, getattr(lane.sink, "last")) if counted else 0  # noqa: B009
        lane.asked = True
        if had < counted:
            lane.had, lane.parts = min(lane.had, had), set()
        return had < counted

    def _ask_again(self, lane: Lane[_P]) -> None:
        """As it is offered something: it was down before. Raises `Refused`, and `_BehindError`."""
        with suppress(NotAskedError):
            if self._ask(lane):
                raise _BehindError

    def _sink(self, lane: Lane[_P]) -> Sink[_P]:
        if lane.asked:
            return lane.sink
        return _Asking(lane.sink, partial(self._ask_again, lane))

    def _hand_over(self, lane: Lane[_P], output: Output, offer: Callable[[Delivery], bool]) -> bool:
        """Offer what a sink lacks of an output; False once it is refused."""
        job, head = self._job, self._job.head
        invariant(output.id <= head.id, "what is delivered is published", id=output.id)
        due = deliveries(lane.kind, output, job.graph.plans, head.operators)
        for one in due:
            if one.id not in lane.parts:
                if not offer(one):
                    return False
                lane.parts.add(one.id)
        lane.accepted(output, head)
        least = min(other.had for other in self._each if other.kind == lane.kind)
        if least > job.delivered.up_to(lane.kind):
            job.mark_delivered(least, lane.kind, any_rows=bool(due))
        return True

    def _offered(
        self, lane: Lane[_P], rows: dict[DeliveryId, _P], wait: Callable[[float], None]
    ) -> Callable[[Delivery], bool]:
        def offer(one: Delivery) -> bool:
            if one.id not in rows:  # several sinks get the same
                rows[one.id] = self._read(self._job.checkpoint, one)
            self._offers.offer(self._sink(lane), rows[one.id], one, wait)
            lane.asked = True  # or it cannot be asked
            return True

        return offer

    def _attempted(self, lane: Lane[_P]) -> Callable[[Delivery], bool]:
        def attempt(one: Delivery) -> bool:
            began = time.monotonic()
            found = self._offers.attempt(self._sink(lane), lambda: self._read(self._job.checkpoint, one), one)
            lane.asked = lane.asked or found
            if not found:
                lane.refused(time.monotonic() - began)
            return found

        return attempt


def _names(sinks: Sequence[Sink[_P]]) -> list[str]:
    """The name of each, with its number where two have the same."""
    names = [sink_name(sink) for sink in sinks]
    return [name if names.count(name) == 1 else f"{name} {place}" for place, name in enumerate(names, 1)]


def outstanding(job: Job, had: int) -> Iterator[Output]:
    """The outputs after checkpoint ``had``, oldest first; also those without any rows."""
    head = job.head
    if had < head.id - 1:
        yield from job.checkpoint.outputs(had + 1, head.id - 1)
    if had < head.id:
        yield output_of(head)
