"""Drivers of a job: each a process that takes what the input has so far, until it ends, dies or is taken over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.faults.simulation.auditor import Site
from tests.faults.simulation.targets import SinkError
from tidestate.operators.describe.runs import Schemas
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import (
    CommitUnknownError,
    ConflictError,
    FencedError,
    UnavailableError,
    UsageError,
)
from tidestate.statestore.spec.store import Memory, Parquet, StoreConfig

if TYPE_CHECKING:
    from tests.faults.simulation.world import World

STORES: tuple[StoreConfig, ...] = (Parquet(), Parquet(max_levels=2, snapshot_bytes=1), Memory(), Memory(max_levels=2))
SECOND = 1_000_000


@dataclass(frozen=True)
class Start:
    """A driver that starts at a time: how it is set up. ``stops_after``: it is stopped after so many batches;
    ``goes_back``: if the newest checkpoint were damaged, it would go back to an older one; ``strict``: batches with
    poison fail, where the job knows any.
    """

    number: int
    at_us: int
    store: int
    seeks: bool
    refuses: bool
    retains: bool
    stops_after: int | None
    goes_back: bool = False
    strict: bool = False

    def __str__(self) -> str:
        return f"driver {self.number} starts at {self.at_us:,} us"


class Source:
    """The input: batch by batch it becomes available."""

    def __init__(self, world: World, batches: tuple[pa.Table, ...]) -> None:
        chance = world.chance
        self._world, self._batches = world, batches
        gaps = [int(chance.between(1_000, 4 * SECOND, "arrives", number)) for number in range(len(batches))]
        self._arrive = [sum(gaps[: number + 1]) for number in range(len(batches))]

    @property
    def schema(self) -> Schemas:
        """Of all batches, by stream where there are several."""
        first = self._batches[0]
        return first.schema if isinstance(first, pa.Table) else {name: rows.schema for name, rows in first.items()}

    def seek(self, position: Any) -> Iterator[tuple[int, pa.Table]]:
        """The batches after so many."""
        for number in range(position or 0, len(self._batches)):
            self._world.scheduler.sleep(self._arrive[number] - self._world.scheduler.now)
            yield number + 1, self._batches[number]

    def batches(self) -> Iterator[pa.Table]:
        """All, from the beginning."""
        return (batch for _, batch in self.seek(None))


def drive(world: World, site: Site, start: Start, *, to_the_end: bool = False) -> None:
    """Run the job as this process, and leave in one of the ways in which a driver may."""
    case = world.auditor.case
    sinks = {name: [one for one in site.targets if one.output == name] for name in case.outputs}
    description = case.strict if start.strict and case.strict is not None else case.description
    job = description.standalone(
        checkpoint=site.url,
        store=STORES[start.store],
        sink=sinks or site.targets,
        late_sink=site.late_targets,
        partitions=world.chance.whole(1, 2, "partitions"),
        policy=Policy("refuse" if start.refuses else "takeover", "reset" if start.goes_back else "stop"),
        checkpoints=CheckpointRetention(newest=2, grace="0 seconds") if start.retains else None,
    )
    source = Source(world, case.batches)
    try:
        stream = job.stream(source if start.seeks else source.batches())
        for number, _ in enumerate(stream, 1):
            if number == start.stops_after:
                break
        stream.close()  # type: ignore[attr-defined]
        if to_the_end:
            job.drain(timeout_s=None)
        ended = "stopped"
    except SinkError as error:
        ended = str(error)
    except (FencedError, ConflictError, CommitUnknownError, UnavailableError) as error:
        if to_the_end:
            raise
        ended = f"{error.code}: {error.message}"
    except UsageError as error:
        fails = start.strict and error.code == "expectation"
        if to_the_end or not (fails or error.code in ("running", "drained")):
            raise
        ended = error.code
    world.trace(world.scheduler.running(), "ends", site.name, ended)


def starts(world: World) -> list[Start]:
    """The drivers of a seed."""
    chance, made = world.chance, []
    for number in range(chance.whole(2, 6, "drivers")):
        place = ("driver", number)
        made.append(
            Start(
                number,
                int(chance.between(10_000, 60 * SECOND, "starts", number)) if number else 0,
                chance.whole(0, len(STORES) - 1, "store", *place),
                chance.share("seeks", *place) < 0.4,
                chance.share("refuses", *place) < 0.15,
                chance.share("retains", *place) < 0.25,
                chance.whole(1, 4, "stops", *place) if chance.share("stopped", *place) < 0.3 else None,
                chance.share("goes back", *place) < 0.2,
                chance.share("strict", *place) < 0.5,
            )
        )
    return made
