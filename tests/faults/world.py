"""Where a scenario takes place: its roots, its clock, and the sinks, which outlive every crash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from msgspec import structs

from tests.faults.places import Place
from tests.helpers.process import forget
from tidestate.operators import Policy
from tidestate.operators.engine import driver
from tidestate.operators.local import standalone
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.lease import this_process
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.recovery.start import heartbeat
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

STORES = ("parquet", "memory", "rocksdb")
SECOND = 1_000_000
T = TypeVar("T")


class WrongAnswerError(Exception):
    """A sink was given what it must never be given."""


def in_order(rows: pa.Table) -> list[str]:
    """Rows by window and key, those of one window as they were emitted: windows have no order among each other, and
    other rows none at all.
    """
    known = [name for name in ("window_start", "window_end", "k") if name in rows.column_names]
    found = rows.to_pylist()
    if "window_start" not in known or "pane" not in rows.column_names:
        return sorted(map(repr, found))
    return [repr(row) for row in sorted(found, key=lambda row: repr([row[name] for name in known]))]


class Receiver:
    """A sink that follows the rule of docs/how-to/own-sink.md: of each run it remembers the highest checkpoint."""

    def __init__(self, taken: Sequence[tuple[DeliveryId, list[str]]] = ()) -> None:
        self.taken = list(taken)

    def __call__(self, rows: pa.Table, delivery: DeliveryId) -> None:
        found = in_order(rows)
        highest = max((one.checkpoint for one, _ in self.taken if one.run == delivery.run), default=0)
        if delivery.checkpoint > highest:
            self.taken.append((delivery, found))
        elif dict(self.taken).get(delivery) != found:
            raise WrongAnswerError(f"{delivery} comes again with other rows, or after a later one")

    @property
    def rows(self) -> list[str]:
        """What it has, delivery by delivery."""
        return [repr(rows) for _, rows in self.taken]


@dataclass
class World:
    """``clock``: the processing time of standalone runs. ``step``: how far the user has come."""

    place: Place
    store_name: str
    receivers: dict[str, Receiver] = field(default_factory=dict)
    clock: int = SECOND
    step: int = 0

    @property
    def store(self) -> StoreConfig:
        """Small limits, so that files are folded."""
        small: dict[str, Any] = {"max_levels": 2, "snapshot_bytes": 1}
        if self.store_name == "rocksdb":
            return RocksDB(cache_dir=str(self.place.cache), **small)
        return {"memory": Memory, "parquet": Parquet}[self.store_name](**small)

    def path(self, root: str = "root") -> str:
        return self.place.path(root)

    def checkpoint(self, root: str = "root") -> Checkpoint:
        return Checkpoint.open(self.path(root))

    def sinks(self, root: str = "root") -> dict[str, Any]:
        """Those of the job at a root."""
        return {kind: self.receivers.setdefault(f"{root}, {kind}", Receiver()) for kind in ("sink", "late_sink")}

    def standalone(self, job: Any, root: str = "root", policy: Policy | None = None) -> Any:
        sinks = self.sinks(root)
        if outputs := job.graph.outputs:
            sinks["sink"] = {name: self.receivers.setdefault(f"{root}, {name}", Receiver()) for name in outputs}
        return job.standalone(checkpoint=self.path(root), store=self.store, partitions=2, policy=policy, **sinks)

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """A batch each three seconds."""
        for number, batch in enumerate(batches, 1):
            self.clock = 3 * number * SECOND
            yield batch

    @property
    def had(self) -> dict[str, int]:
        """How many deliveries each sink has taken."""
        return {name: len(one.taken) for name, one in self.receivers.items()}

    def after(self, step: int, had: Mapping[str, int]) -> World:
        """The same place when a process died in that step; the sinks had taken so much."""
        receivers = {name: Receiver(self.receivers[name].taken[:count]) for name, count in had.items()}
        return World(self.place, self.store_name, receivers, step=step)

    @contextmanager
    def process(self) -> Iterator[None]:
        """A new process, which leaves leases of one that has ended. Its clock is that of this world."""
        forget()
        ended = structs.replace(this_process(), pid=2**31 - 1, started=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(heartbeat, "this_process", lambda: ended)
            for module in (standalone, driver):
                patch.setattr(module, "now_us", lambda: self.clock)
            yield
        forget()


@contextmanager
def done_already(code: str) -> Iterator[None]:
    """A verb that is repeated after a crash may find that it was done."""
    try:
        yield
    except UsageError as error:
        if error.code != code:
            raise
