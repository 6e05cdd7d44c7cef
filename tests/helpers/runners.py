"""One description on each runner that needs no Spark, fed in the same way; and the table of runners."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidestate as ts
from tests.helpers.checkout import ROOT
from tidestate import OperatorStream
from tidestate.operators import WindowOperator
from tidestate.operators.engine.delivery import read_rows
from tidestate.operators.inspect.plan_from_manifest import plan_from
from tidestate.operators.streams.stream import JoinedStream
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy

PAGE = ROOT / "docs" / "reference" / "runners.md"
Given = pa.Table | Mapping[str, pa.Table]
Schemas = pa.Schema | Mapping[str, pa.Schema]


def table_of_runners() -> dict[str, dict[str, str]]:
    """Each row of the table by its first cell: the cells by runner."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: dict(zip(heads[1:], cells, strict=True)) for first, *cells in rows}


def notes() -> set[str]:
    """The numbers of the notes below the table."""
    return set(re.findall(r"^(\d+)\. ", PAGE.read_text(), flags=re.M))


class Runner:
    """A description on a root. ``feed`` takes a table, or tables by side, and commits."""

    def __init__(
        self,
        job: OperatorStream,
        schema: Schemas,
        root: Path,
        *,
        policy: Policy | None = None,
        sink: Any = None,
        late_sink: Any = None,
        partitions: int | None = 1,
        had: Sequence[Given] = (),
        retain: CheckpointRetention | None = None,
    ) -> None:
        """``had``: the batches that the root has taken already."""
        self.had, self.retain = had, retain
        self.job, self.schema, self.root, self.policy = job, schema, root, policy
        self.sink, self.late_sink, self.partitions = sink, late_sink, partitions
        self.start()

    def start(self) -> None: ...
    def feed(self, batch: Given) -> None: ...
    def drain(self) -> None: ...
    def reprocess(self) -> None: ...
    def rebuild(self, batch: Given) -> None: ...
    def close(self) -> None: ...

    @property
    def totals(self) -> Mapping[str, int]:
        head = Checkpoint.open(self.root).newest()
        assert head is not None
        return head.manifest.totals

    def run(self, batches: Iterable[Given]) -> list[dict[str, Any]]:
        """All of it, to the end: what is left of the panes, each with what was retracted."""
        for batch in batches:
            self.feed(batch)
        self.drain()
        self.close()
        return panes(self.root)


class Alone(Runner):
    def start(self) -> None:
        self.batches: list[Given] = list(self.had)
        self.running = self.job.standalone(
            checkpoint=self.root,
            sink=self.sink,
            late_sink=self.late_sink,
            policy=self.policy,
            partitions=self.partitions,
            checkpoints=self.retain,
        )

    def feed(self, batch: Given) -> None:
        self.batches.append(batch)
        self.running.run(self.batches)

    def drain(self) -> None:
        self.running.drain()

    def reprocess(self) -> None:
        self.running.reprocess_late()

    def rebuild(self, batch: Given) -> None:
        self.running.rebuild(batch)


class InHarness(Runner):
    def start(self) -> None:
        self.running = self.job.harness(
            self.schema, folder=self.root, partitions=self.partitions, sink=self.sink, late_sink=self.late_sink
        )
        if self.policy is not None:
            self.running.restart(self.policy)

    def feed(self, batch: Given) -> None:
        self.running.feed(batch)

    def drain(self) -> None:
        self.running.finish()

    def reprocess(self) -> None:
        self.running.reprocess_late()

    def rebuild(self, batch: Given) -> None:
        self.running.rebuild(batch)


class ByHand(Runner):
    """With messages of (part, at), unless the description has its own. A sink takes a `run_operator`."""

    def start(self) -> None:
        how: dict[str, Any] = {"checkpoint": self.root, "policy": self.policy, "partitions": self.partitions}
        how["checkpoints" if isinstance(self.job, JoinedStream) else "retain"] = self.retain
        self.running: Any
        if isinstance(self.job, JoinedStream):
            self.running = self.job.by_hand(self.schema, **how)
        else:
            windows = self.job.graph.description
            self.running = WindowOperator(windows, self.schema, origin="part", offset="at", **how)  # type: ignore[arg-type]

    def feed(self, batch: Given) -> None:
        if self.sink is not None:
            ts.run_operator(
                self.running, [batch], self.sink, late_sink=self.late_sink, clock=lambda: 0, wait=lambda _: None
            )
        elif isinstance(batch, Mapping):
            self.running.add_messages(**batch)
        else:
            self.running.add_messages(batch)
        self.running.flush()

    def drain(self) -> None:
        self.running.drain()
        self.running.flush()

    def reprocess(self) -> None:
        self.running.reprocess_late()

    def rebuild(self, batch: Given) -> None:
        self.running.rebuild([batch]) if isinstance(self.running, WindowOperator) else self.running.rebuild(**batch)

    def close(self) -> None:
        self.running.close()


RUNNERS: dict[str, type[Runner]] = {"standalone": Alone, "harness": InHarness, "by hand": ByHand}


def panes(root: Path) -> list[dict[str, Any]]:
    """The pane rows of the output operator that manifests name, without those retracted since."""
    checkpoint = Checkpoint.open(root)
    head = checkpoint.newest()
    assert head is not None
    found: Counter[str] = Counter()
    rows: dict[str, dict[str, Any]] = {}
    for name, state in head.manifest.operators.items():
        schema = plan_from(name, state).pane_schema
        refs = [ref for one in checkpoint.outputs() for ref in one.panes if ref.path.startswith(f"panes/{name}/")]
        for row in read_rows(checkpoint, tuple(refs), schema).to_pylist():
            kind = row.pop("kind", "emit")
            kept = {key: value for key, value in row.items() if key not in ("pane", "last", "timing")}
            rows[repr(kept)] = kept
            found[repr(kept)] += -1 if kind == "retract" else 1
    assert all(number >= 0 for number in found.values())
    return [rows[text] for text, number in sorted(found.items()) for _ in range(number)]


def columns(found: Sequence[Mapping[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    """Some columns of rows, sorted; times as seconds since 1970."""
    plain = [tuple(v.timestamp() if hasattr(v, "timestamp") else v for v in map(row.get, names)) for row in found]
    return sorted(plain, key=repr)
