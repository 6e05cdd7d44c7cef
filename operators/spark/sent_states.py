"""What tasks get to know of state partitions: as much as has changed, not as many as there are.

All go to the workers once, as a broadcast, and with each micro-batch those that have changed since. When
these are many they become a broadcast too, and when such broadcasts are as large as half of the first, a new one has
all. Where there are no broadcasts, on Spark Connect, all are part of what each task gets to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tidestate.operators.engine.micro_batch import MicroBatch, TaskStates
from tidestate.operators.spark.platform import Broadcast
from tidestate.statestore.files.refs import PartitionState

INLINE_BYTES = 256 << 10
"""Up to this size entries are part of what each task gets to run."""
LATER_SHARE = 2
"""Later broadcasts may have half the size of the first."""


_STATES = msgspec.msgpack.Decoder(TaskStates)
Packed = tuple[bytes, ...]
"""The entries of state partitions, for each task its own."""


class HasValue(Protocol):
    """A broadcast of Spark's, in a task."""

    @property
    def value(self) -> Packed:
        """What was broadcast, as the tasks see it."""
        ...


@dataclass(frozen=True)
class StatesOfTasks:
    """The state partitions of a micro-batch, packed, by task: in broadcasts ``before``, and in ``changed`` those that
    have changed since. Of a state partition the last entry counts.
    """

    before: tuple[HasValue, ...] = ()
    changed: Packed = ()

    def of_task(self, batch: MicroBatch, task: int) -> MicroBatch:
        """The micro-batch with the state partitions of one task."""
        states: TaskStates = {name: {} for name in batch.inputs}
        for packed in (*(broadcast.value for broadcast in self.before), self.changed):
            for name, own in _STATES.decode(packed[task]).items() if packed else ():
                states[name] |= own
        return batch.with_states(states)


class SentStates:
    """Sends the state partitions of one job, micro-batch after micro-batch."""

    def __init__(self, broadcast: Callable[[Packed], Broadcast[Packed] | None]) -> None:
        self._broadcast = broadcast
        self._held: list[Broadcast[Packed]] = []
        self._sizes: list[int] = []
        self._known: dict[str, dict[int, PartitionState]] = {}
        self._spans: tuple[tuple[int, int], ...] = ()

    def sent(self, batch: MicroBatch) -> tuple[MicroBatch, StatesOfTasks]:
        """The micro-batch as its tasks get it, and apart from it its state partitions."""
        if self._spans != batch.spans:
            self._forget()
            self._spans = batch.spans
        packed = self._packed(batch, self._known)
        if _size(packed) > INLINE_BYTES:
            if not self._held or LATER_SHARE * (sum(self._sizes[1:]) + _size(packed)) > self._sizes[0]:
                self._forget()
                packed = self._packed(batch, {})
            if (broadcast := self._broadcast(packed)) is not None:
                self._held.append(broadcast)
                self._sizes.append(_size(packed))
                self._known = {name: dict(own.base) for name, own in batch.inputs.items()}
                packed = ()
        return batch.with_states({}), StatesOfTasks(tuple(self._held), packed)

    def _packed(self, batch: MicroBatch, known: Mapping[str, Mapping[int, PartitionState]]) -> Packed:
        """For each task the entries of its state partitions that are not ``known``. An entry that stays is the same
        object from one micro-batch to the next.
        """
        return tuple(msgspec.msgpack.encode(_unknown(batch.states(task), known)) for task in range(len(batch.spans)))

    def _forget(self) -> None:
        # No micro-batch is under way: whatever still runs is a zombie, whose answer nobody reads.
        for one in self._held:
            one.destroy()
        self._held, self._sizes, self._known = [], [], {}


def _unknown(states: TaskStates, known: Mapping[str, Mapping[int, PartitionState]]) -> TaskStates:
    return {
        name: {number: one for number, one in own.items() if known.get(name, {}).get(number) is not one}
        for name, own in states.items()
    }


def _size(packed: Packed) -> int:
    return sum(map(len, packed))
