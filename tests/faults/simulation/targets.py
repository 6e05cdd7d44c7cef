"""Where panes and late rows go: targets outside of the job, which remember what they have.

As docs/how-to/own-sink.md asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tests.faults.simulation.jobs import Rows, rows_of
from tidestate.operators import DeliveryId
from tidestate.statestore.testing.faults import Crash

if TYPE_CHECKING:
    from tests.faults.simulation.auditor import Site
    from tests.faults.simulation.world import World

CALL_US = (200, 20_000)


class SinkError(RuntimeError):
    """The target has failed: this ends a job."""


class Target:
    """Stores the rows of a delivery and its id at once. Of each run it remembers the highest checkpoint. It takes the
    panes of an ``output``, if the job has several.
    """

    def __init__(self, world: World, site: Site, kind: str, number: int, behind: int = 0, output: str = "") -> None:
        self._world, self._site, self.kind, self.name = world, site, kind, f"{site.name}/{kind}-{number}"
        self.behind, self.output = behind, output
        self.rows: dict[tuple[str, int], Rows] = {}
        self._highest: dict[str, int] = {}

    def __str__(self) -> str:
        return self.name

    def ready(self) -> bool:
        """Whether it takes deliveries now."""
        me = self._world.scheduler.running()
        if me is None:
            return True
        return not self._world.chance.happens("refuse", me.process.name, next(me.process.steps))

    def __call__(self, rows: pa.Table, delivery: DeliveryId) -> bool:
        world = self._world
        me = world.scheduler.running()
        if me is None:
            self._store(rows, delivery, "auditor", world.scheduler.now)
            return True
        chance, process = world.chance, me.process
        place = (process.name, next(process.steps))
        checked_us = process.checked_us
        world.scheduler.sleep(int(chance.between(*CALL_US, "time", *place)))
        if chance.happens("refuse", *place):
            world.trace(me, "deliver", f"{self.name} {delivery}", "refused")
            return False
        if chance.happens("sink-error", *place):
            world.trace(me, "deliver", f"{self.name} {delivery}", "error")
            raise SinkError("the target has failed")
        dies = chance.happens("die", *place)
        if not dies or chance.share("die-when", *place) < 0.5:
            self._store(rows, delivery, me.name, checked_us)
            world.trace(me, "deliver", f"{self.name} {delivery}", f"stored {rows.num_rows} rows")
        if dies:
            world.scheduler.kill(process, "killed")
            raise Crash("killed")
        if chance.happens("sink-lost", *place):
            world.trace(me, "deliver", f"{self.name} {delivery}", "stored, but an error")
            raise SinkError("the target has stored it and failed")
        return True

    def _store(self, rows: pa.Table, delivery: DeliveryId, who: str, checked_us: int) -> None:
        world, key, found = self._world, (delivery.run, delivery.checkpoint), rows_of(rows)
        world.auditor.delivered(self, delivery, found, who, checked_us)
        if self._highest.get(delivery.run, 0) >= delivery.checkpoint:
            if key not in self.rows:
                world.broken("out of order", f"{self.name} gets {delivery} after a later one of that run")
            if world.planted == "sink-forgets":
                self.rows[key] = self.rows[key] + found
            return
        self.rows[key] = found
        self._highest[delivery.run] = delivery.checkpoint
