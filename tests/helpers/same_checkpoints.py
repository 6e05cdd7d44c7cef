"""A job that each runner runs: the same checkpoints, deliveries and warnings are expected of all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.apis import Notes
from tests.helpers.arrow_rows import arrow_of
from tests.helpers.spark_inputs import batch, job, rows
from tidestate import OperatorStream
from tidestate.operators import DeliveryId
from tidestate.operators.engine import delivery, job_log
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.spec.store import Parquet

IDENTITIES = {"job_id", "writer", "parent", "path", "segment", "previous", "lineage"}
OF_THE_CLOCK = {"created_us", "processing_us", "quiet_us"}
OF_THE_RUNNER = {"answered", "input", "spark", "restored", "scan", "spent"}
OF_BYTES = {"bytes", "checksum", "tail", "start", "bundle_bytes"}
"""Files hold the ids of their segments, so their bytes differ, and by that where one begins in a bundle."""


@dataclass
class Sink:
    """Takes each ``takes``-th offer, refuses the others by False and by the exception in turn."""

    root: Path
    takes: int = 1

    def __post_init__(self) -> None:
        noted = self.root.with_name(f"{self.root.name}-sink")
        self.offers: Notes[tuple[DeliveryId, int]] = Notes(noted / "offers")
        self.took: Notes[tuple[DeliveryId, list[tuple[object, ...]]]] = Notes(noted / "took")

    def __call__(self, panes: Any, delivery_id: DeliveryId) -> bool:
        self.offers.append((delivery_id, len(list((self.root / "manifests").glob("*.json")))))
        if number := len(self.offers) % self.takes:
            if number % 2:
                return False
            raise ts.Refused("not now")
        self.took.append((delivery_id, rows(panes if isinstance(panes, pa.Table) else arrow_of(panes))))
        return True


Run = Callable[[OperatorStream, Path, Sequence[pa.Table], Any], None]


def by_harness(described: OperatorStream, root: Path, batches: Sequence[pa.Table], sink: Any) -> None:
    tested = described.harness(batches[0].schema, store=Parquet(), folder=root, partitions=2, sink=sink)
    for one in batches:
        tested.feed(one)
    tested.reprocess_late()
    tested.finish()


def by_standalone(described: OperatorStream, root: Path, batches: Sequence[pa.Table], sink: Any) -> None:
    started = described.standalone(checkpoint=root, sink=sink, partitions=2)
    started.run(batches)
    started.reprocess_late()
    started.drain()


def by_hand(described: OperatorStream, root: Path, batches: Sequence[pa.Table], sink: Any) -> None:
    """Each message with an offset of its own."""
    numbered = [one.append_column("offset", one["id"]).append_column("origin", one["k"]) for one in batches]
    with described.by_hand(numbered[0].schema, checkpoint=root) as running:  # type: ignore[arg-type]
        ts.run_operator(running, numbered, sink, clock=lambda: 0, drain=True)


def without(found: Any, names: set[str]) -> Any:
    """``found`` without what has these names, at any depth."""
    if isinstance(found, dict):
        return {name: without(value, names) for name, value in found.items() if name not in names}
    return [without(one, names) for one in found] if isinstance(found, list) else found


def deliveries(sink: Sink) -> list[tuple[int, int, list[tuple[object, ...]]]]:
    """What was taken, runs by their number."""
    runs = list(dict.fromkeys(one.run for one, _ in sink.took))
    return [(runs.index(one.run), one.checkpoint, found) for one, found in sink.took]


def what_came(
    run: Run, described: OperatorStream, root: Path, batches: Sequence[pa.Table], *dropped: set[str]
) -> Any:
    """Manifests, rows of panes and ledger, and deliveries; in how many files these rows are depends on the tasks."""
    sink = Sink(root)
    run(described, root, batches, sink)
    manifests = evidence.manifests(root)
    files = [{kind: sorted(evidence.rows(root, m[kind]), key=repr) for kind in ("panes", "late")} for m in manifests]
    dropped = (*dropped, {"panes", "late"})
    return without(manifests, set[str]().union(*dropped)), files, deliveries(sink)


@pytest.fixture
def warnings(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Path], list[str]]]:
    """What was logged since the last call, without the name of the root; of every checkpoint, as some runners make
    one run of what others make several of.
    """
    monkeypatch.setattr(job_log, "WARN_EVERY_S", 0.0)

    def answered(root: Path) -> list[str]:
        found = [one.getMessage().replace(str(root), "ROOT") for one in caplog.records]
        caplog.clear()
        return found

    with caplog.at_level(logging.WARNING, "tidestate"):
        yield answered


def check_asked_again(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that says no is asked again, and nothing is taken meanwhile."""
    monkeypatch.setattr(delivery, "PAUSE_S", 0.001)
    sink = Sink(root, takes=3)
    run(job(), root, [batch([(second, "a", second)], second) for second in (1, 30, 45)], sink)
    there = [one.delivery_id for one in Checkpoint.open(root).outputs() if one.panes]
    assert [one for one, _ in sink.took] == there
    assert len(there) >= 3
    assert [one for one, _ in sink.offers] == [one for one in there for _ in range(3)]
    manifests = [[at for _, at in sink.offers[n : n + 3]] for n in range(0, len(sink.offers), 3)]
    assert all(len({*at}) == 1 for at in manifests), "no checkpoint while something is refused"
