"""Faults of our own in the package, in a sink or in storage, each of which the simulation must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa

from tidestate.operators.engine import driver, job, tasks
from tidestate.operators.engine.delivery import Offers
from tidestate.operators.engine.job import Job
from tidestate.operators.plan import classify
from tidestate.operators.plan.graph import Graph
from tidestate.operators.progress.progress import Claims
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Delivered, Head, Manifest
from tidestate.recovery.log.records import BOUNDARIES
from tidestate.recovery.moves import reset
from tidestate.recovery.retention import collection
from tidestate.statestore.errors import ConflictError, FencedError
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.remote import RemoteStorage


@dataclass(frozen=True)
class Planted:
    """A fault, what it does, and the kinds of broken promises as which it is found; the first ``seed`` to find it."""

    does: str
    found_as: tuple[str, ...]
    seed: int = 0
    replaced: Callable[[], Iterator[tuple[Any, str, Any]]] = lambda: iter(())
    verbs: tuple[str, ...] = ()
    """What people do, where it takes that to notice it."""

    @contextmanager
    def put(self) -> Iterator[None]:
        """Inside, the fault is there."""
        with ExitStack() as stack:
            for place, name, value in self.replaced():
                stack.enter_context(patch.object(place, name, value))
            yield


def _publishes_anyway() -> Iterator[tuple[Any, str, Any]]:
    real = Checkpoint.publish

    def publish(self: Checkpoint, manifest: Manifest) -> Head:
        try:
            return real(self, manifest)
        except (FencedError, ConflictError):
            head = self.newest()
            if head is None or manifest.kind != "batch":
                raise
            moved = msgspec.structs.replace(manifest, id=head.manifest.id + 1, parent=head.checksum, parent_id=0)
            return real(self, moved)

    yield Checkpoint, "publish", publish


def _loses_an_event() -> Iterator[tuple[Any, str, Any]]:
    real = tasks.one_batch

    def one_batch(graph: Graph, batch: Any) -> Any:
        return {name: rows.slice(0, max(1, rows.num_rows - 1)) for name, rows in real(graph, batch).items()}

    yield tasks, "one_batch", one_batch


def _takes_too_much() -> Iterator[tuple[Any, str, Any]]:
    real = collection.deletable_files

    def deletable_files(known: Any, boundary: Any, needed: set[str], aged_us: int) -> list[str]:
        return [*real(known, boundary, needed, aged_us), *sorted(needed)[:1]]

    yield collection, "deletable_files", deletable_files


def _no_pins_again() -> Iterator[tuple[Any, str, Any]]:
    real = collection.read_pins

    def read_pins(objects: Objects) -> Any:
        # Before the first boundary is published, a collection is still being planned.
        return [] if objects.names(BOUNDARIES) else real(objects)

    yield collection, "read_pins", read_pins


def _never_checks() -> Iterator[tuple[Any, str, Any]]:
    def offers(check: Callable[[], None]) -> Offers:
        def looks() -> None:
            with suppress(FencedError):
                check()

        return Offers(looks)

    yield driver, "Offers", offers


def _acknowledges_early() -> Iterator[tuple[Any, str, Any]]:
    real = Job._delivered

    def delivered(self: Job, withheld: bool) -> Delivered:
        found = real(self, withheld)
        return found.reached("panes", self.head.id + 1).reached("late", self.head.id + 1)

    yield Job, "_delivered", delivered


def _forgets_errors() -> Iterator[tuple[Any, str, Any]]:
    def send(self: RemoteStorage, path: str, act: Callable[[Any], None]) -> None:
        with suppress(OSError):
            act(self._fs())

    yield RemoteStorage, "_send", send


def _abandons_nothing() -> Iterator[tuple[Any, str, Any]]:
    real = reset.successor

    def successor(*args: Any, **how: Any) -> Manifest:
        made = real(*args, **how)
        return msgspec.structs.replace(made, abandoned=made.abandoned[:-1])

    yield reset, "successor", successor
    yield reset, "_check_line", lambda _manifest, _to: None


def _passes_over_fail() -> Iterator[tuple[Any, str, Any]]:
    yield job, "check_expectation", lambda *_: None


def _filters_stop_time() -> Iterator[tuple[Any, str, Any]]:
    def timely(_plan: Any, arrived: Any, passes: Any, keep: Any, *_: Any) -> tuple[Any, Claims]:
        passing = arrived.filter(pa.array(passes))
        return passing if keep is None else passing.filter(pa.array(keep)), Claims()

    yield classify, "_timely", timely


PLANTED: dict[str, Planted] = {
    "create-overwrites": Planted("Storage lets a create replace an object.", ("two manifests of one id",), 1),
    "ignores-the-fence": Planted(
        "A driver that finds its id taken publishes under the next one.",
        # Where the manifest names the panes of another id, it is not even published: nothing could read it.
        (
            "a fenced writer publishes",
            "the chain is broken",
            "the auditor cannot read",
            "an unexpected error, invariant",
        ),
        1,
        _publishes_anyway,
    ),
    "loses-an-event": Planted(
        "The last event of a batch is not processed.",
        ("panes are wrong", "the state is wrong", "the ledger is wrong", "the watermark is wrong"),
        0,
        _loses_an_event,
    ),
    "sink-forgets": Planted("A sink stores again what it has.", ("a sink lacks rows or has some twice",), 3),
    "takes-too-much": Planted(
        "A collection deletes a file that a kept checkpoint needs.",
        ("a file that is needed is deleted",),
        2,
        _takes_too_much,
    ),
    "pins-not-read": Planted(
        "A collection does not see pins.",
        ("a pinned manifest is deleted", "a file that is needed is deleted", "a pinned checkpoint cannot be read"),
        6,
        _no_pins_again,
        ("pin", "gc", "gc"),
    ),
    "never-checks": Planted(
        "A driver delivers whatever newer checkpoints it sees.",
        ("what was abandoned is delivered",),
        35,
        _never_checks,
        ("rewind",),
    ),
    "acknowledges-early": Planted(
        "A manifest says that its own output was delivered.",
        ("a sink lacks rows or has some twice",),
        0,
        _acknowledges_early,
    ),
    "forgets-errors": Planted(
        "A write that fails counts as done.",
        ("a manifest names a file that is not there", "an unexpected error, file-unseen"),
        4,
        _forgets_errors,
    ),
    "abandons-nothing": Planted(
        "A rewind lets what came after the chosen checkpoint count.",
        ("a reset leaves something",),
        2,
        _abandons_nothing,
        ("rewind",),
    ),
    "passes-over-fail": Planted(
        "A batch with rows that fail it is published.",
        ("a batch that was to fail is published", "the ledger is wrong", "panes are wrong"),
        27,
        _passes_over_fail,
    ),
    "filters-stop-time": Planted(
        "Rows that a filter leaves out do not move the watermark.",
        ("the watermark is wrong", "panes are wrong", "the ledger is wrong", "the state is wrong"),
        16,
        _filters_stop_time,
    ),
}
