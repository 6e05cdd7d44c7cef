"""What else would be done to a root: a fork, a pin, a collection, another number of partitions."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from tidestate.recovery.log.boundary import Pin
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.moments import CheckpointAt
from tidestate.recovery.log.pins import check_pin, find_pin, pin, unpin
from tidestate.recovery.log.summary import pluralize, size_text
from tidestate.recovery.moves.fork import Fork, execute_fork, plan_fork
from tidestate.recovery.moves.rescale import Rescaled, execute_rescale, plan_rescale
from tidestate.recovery.moves.root_plan import LISTED, Fact, RootPlan
from tidestate.recovery.retention.collection import Collected, Collection, execute_collection, plan_collection
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.durations import text_of
from tidestate.statestore.secrets import public_url
from tidestate.statestore.storage.prefetch import ProgressCallback, no_progress

_RESCALED = ("id", "before", "partitions", "operators", "files", "shared")


@dataclass(frozen=True, repr=False, eq=False)
class ForkPlan(RootPlan):
    """A new job in another folder, which goes on from a checkpoint of ``root``."""

    root: str
    fork: Fork
    done: bool = False

    @classmethod
    def of(
        cls,
        root: str | os.PathLike[str],
        destination: str | os.PathLike[str],
        checkpoint: CheckpointAt = None,
        on_progress: ProgressCallback = no_progress,
    ) -> Self:
        """From the newest checkpoint, or this one. Raises as `plan_fork`."""
        return cls(os.fspath(root), plan_fork(root, destination, checkpoint, on_progress))

    def execute(self) -> Self:
        """Make it. Raises as `execute_fork`."""
        execute_fork(self.fork)
        return replace(self, done=True)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self.fork.result)

    def facts(self, limit: int = LISTED) -> Iterator[Fact]:
        result = self.fork.result
        yield (
            "forked" if self.done else "to fork",
            f"checkpoint {result.checkpoint_id} into {public_url(result.root)}",
        )
        yield "job", result.job_id
        yield "shares", f"{pluralize(result.files, 'file')}, {size_text(result.bytes)}"
        yield "pin", f"{result.pin}, in {public_url(self.root)}"


@dataclass(frozen=True, repr=False, eq=False)
class PinPlan(RootPlan):
    """Keeping a checkpoint under a name, whatever is collected."""

    checkpoint: Checkpoint
    number: int
    name: str
    note: str = ""
    done: bool = False

    @classmethod
    def of(cls, checkpoint: Checkpoint, number: int, name: str = "", note: str = "") -> Self:
        """By default under a random name. Raises as `pin`."""
        name = name or f"pin-{uuid.uuid4().hex[:12]}"
        check_pin(checkpoint, number, name)
        return cls(checkpoint, number, name, note)

    def execute(self) -> Self:
        """Keep it. Raises `NotFoundError` if it was collected meanwhile."""
        pin(self.checkpoint, self.number, self.name, note=self.note)
        return replace(self, done=True)

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "checkpoint": self.number, "note": self.note}

    def facts(self, limit: int = LISTED) -> Iterator[Fact]:
        yield "pinned" if self.done else "to pin", f"checkpoint {self.number} as {self.name}"
        if self.note:
            yield "note", self.note


@dataclass(frozen=True, repr=False, eq=False)
class UnpinPlan(RootPlan):
    """Removing a pin: a collection may delete its checkpoint then."""

    checkpoint: Checkpoint
    pin: Pin
    force: bool = False
    done: bool = False

    @classmethod
    def of(cls, checkpoint: Checkpoint, name: str, *, force: bool = False) -> Self:
        """The pin that would be removed; nothing is written. Raises as `unpin`."""
        return cls(checkpoint, find_pin(checkpoint, name, force=force), force)

    def execute(self) -> Self:
        """Remove it. Raises `NotFoundError` if somebody else has."""
        unpin(self.checkpoint, self.pin.name, force=self.force)
        return replace(self, done=True)

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.pin.name, "checkpoint": self.pin.checkpoint, "fork": self.pin.fork or None}

    def facts(self, limit: int = LISTED) -> Iterator[Fact]:
        yield "removed" if self.done else "to remove", f"pin {self.pin.name} of checkpoint {self.pin.checkpoint}"


@dataclass(frozen=True, repr=False, eq=False)
class CollectionPlan(RootPlan):
    """Deleting old checkpoints, and the files that no other one needs; ``result`` is what is deleted."""

    checkpoint: Checkpoint
    retention: CheckpointRetention
    collection: Collection
    result: Collected
    done: bool = False

    @classmethod
    def of(cls, checkpoint: Checkpoint, retention: CheckpointRetention) -> Self:
        """What ``retention`` does not keep. Raises as `plan_collection`."""
        collection = plan_collection(checkpoint, retention)
        return cls(checkpoint, retention, collection, collection.result)

    def execute(self) -> Self:
        """Delete it, except what is needed by now. Raises as `execute_collection`."""
        return replace(self, result=execute_collection(self.checkpoint, self.collection), done=True)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self.result), "done": self.done}

    def facts(self, limit: int = LISTED) -> Iterator[Fact]:
        result, count = self.result, len(self.result.checkpoints)
        deletions = f"{pluralize(count, 'checkpoint')}, up to {result.boundary}" if count else "no checkpoint"
        yield "deleted" if self.done else "to delete", deletions
        yield "", f"{pluralize(len(result.files), 'file')}, {size_text(result.bytes)}"
        pins = f", pinned: {', '.join(map(str, result.pinned))}" if result.pinned else ""
        yield "kept" if self.done else "to keep", f"{pluralize(result.kept, 'checkpoint')}{pins}"
        if result.within_grace:
            young, grace = pluralize(result.within_grace, "checkpoint"), text_of(self.retention.grace_us)
            yield "", f"{young} only because of grace=: those that were the newest within {grace} stay for readers"
        suffix = " of other outputs" if result.further_gone else ""
        last_ids = {f"panes of {name}": last_id for name, last_id in result.further_gone.items()}
        for rows, last_id in {**last_ids, f"panes{suffix}": result.panes_gone, "ledgers": result.late_gone}.items():
            if last_id:
                yield "", f"{rows} only of checkpoints after {last_id}"
        if result.unacknowledged:
            yield "", f"{result.unacknowledged:,} old files of panes and late rows that no sink has acknowledged"
        for root in result.freed:
            yield "unpinned" if self.done else "to unpin", f"{public_url(root)}: none of its files is needed any more"


@dataclass(frozen=True, repr=False, eq=False)
class RescalePlan(RootPlan):
    """Another number of state partitions, from the next start on."""

    checkpoint: Checkpoint
    rescaled: Rescaled
    force: bool = False
    done: bool = False

    @classmethod
    def of(cls, checkpoint: Checkpoint, partitions: int, *, force: bool = False) -> Self:
        """What a rescale would do; nothing is written. Raises as `plan_rescale`."""
        return cls(checkpoint, plan_rescale(checkpoint, partitions), force)

    def execute(self) -> Self:
        """Append the checkpoint. Raises as `execute_rescale`."""
        execute_rescale(self.checkpoint, self.rescaled, force=self.force)
        return replace(self, done=True)

    def as_dict(self) -> dict[str, Any]:
        return {"done": self.done, **{name: getattr(self.rescaled, name) for name in _RESCALED}}

    def facts(self, limit: int = LISTED) -> Iterator[Fact]:
        result = self.rescaled
        name = "rescaled" if self.done else "to rescale"
        yield name, f"{result.before:,} to {result.partitions:,} partitions"
        yield "operators", ", ".join(result.operators)
        yield "checkpoint", str(result.id)
        yield "files", f"{result.files:,}, of which {result.shared:,} are shared until they are folded"
