"""One state partition through one checkpoint: open its store, take the step, write the files.

The same function runs in a Spark task and in the standalone loop. It publishes nothing: the files get fresh names
that nobody refers to until a manifest does. It is safe to run it twice, or in a zombie.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from operators.plan import Plan
from operators.step import step
from statestore.changes import TableChanges
from statestore.checksums import checksum
from statestore.compaction import compact, live_files, plan
from statestore.errors import CorruptionError
from statestore.objects import Objects
from statestore.opening import forget_cache, open_store
from statestore.segments import FileRef, PartitionState, SegmentName, write_segment
from statestore.store import StoreConfig
from statestore.tables import TableSpec


@dataclass(frozen=True)
class Round:
    """What the driver tells every partition of one checkpoint."""

    root: str
    job_id: str
    plan: Plan
    store: StoreConfig
    base: tuple[PartitionState, ...]
    sequence: int
    before_us: int | None

    @property
    def partitions(self) -> int:
        """How many state partitions there are."""
        return len(self.base)


class PartitionResult(msgspec.Struct, frozen=True):
    """What one partition wrote and saw; the driver puts these into a manifest."""

    partition: int
    base_lineage: str
    state: PartitionState
    after_us: int | None
    max_event_us: int | None
    inputs: int
    panes: tuple[FileRef, ...] = ()
    late: tuple[FileRef, ...] = ()
    counters: dict[str, int] = {}


@dataclass(frozen=True)
class Arrivals:
    """What reached a partition: its partials, ledger rows it writes, and what all pieces of input saw."""

    partials: pa.Table
    rejected: pa.Table | None
    max_event_us: int | None
    inputs: int
    counters: dict[str, int]


def total(many: Sequence[dict[str, int]]) -> dict[str, int]:
    """Counters added up by name."""
    names = dict.fromkeys(name for counters in many for name in counters)
    return {name: sum(counters.get(name, 0) for counters in many) for name in names}


def no_arrivals(plan: Plan) -> Arrivals:
    """What arrives in a tick."""
    return Arrivals(plan.slices.schema.empty_table(), None, None, 0, {})


def advance(plan: Plan, before_us: int | None, max_event_us: int | None) -> int | None:
    """The watermark after events up to ``max_event_us``: it never goes back."""
    if max_event_us is None:
        return before_us
    generated = max(-(2**63) + 1, max_event_us - plan.watermark_delay_us)
    return generated if before_us is None else max(before_us, generated)


def run_partition(round_: Round, partition: int, arrivals: Arrivals, after_us: int | None) -> PartitionResult:
    """Take ``arrivals`` into the partition's state; write segments, panes and ledger. Raises on damaged files."""
    objects = Objects(round_.root)
    # The root is part of it: a copy of a checkpoint must not meet the original's caches.
    identity = f"{objects.root}/{round_.job_id}/{round_.plan.name}/{partition}/{round_.partitions}"
    try:
        return _attempt(round_, partition, arrivals, after_us, objects, identity)
    except CorruptionError as error:
        if not error.code.startswith("rocksdb-"):
            raise
        # Only the local cache is damaged. The step is pure, so it is simply taken again.
        forget_cache(round_.store, identity)
        return _attempt(round_, partition, arrivals, after_us, objects, identity)


def _attempt(
    round_: Round, partition: int, arrivals: Arrivals, after_us: int | None, objects: Objects, identity: str
) -> PartitionResult:
    base, attempt = round_.base[partition], uuid.uuid4().hex
    with open_store(round_.store, objects, identity, round_.plan.tables, base) as store:
        moved = step(round_.plan, store, arrivals.partials, round_.before_us, after_us)
        name = _Names(round_, partition, attempt)
        state = _write_state(round_, objects, base, dict(moved.changes), partition, name)
        panes = _write_output(objects, f"panes/{round_.plan.name}", moved.panes, round_.sequence, attempt)
    late = _write_output(objects, f"late/{round_.plan.name}", arrivals.rejected, round_.sequence, attempt)
    return PartitionResult(
        partition=partition,
        base_lineage=base.lineage,
        state=state,
        after_us=after_us,
        max_event_us=arrivals.max_event_us,
        inputs=arrivals.inputs,
        panes=panes,
        late=late,
        counters=arrivals.counters | moved.counters,
    )


@dataclass(frozen=True)
class _Names:
    """Names of this attempt's files of one partition."""

    round: Round
    partition: int
    attempt: str

    def changelog(self, base: PartitionState) -> SegmentName:
        sequence = self.round.sequence
        return self._name(sequence, sequence, self.attempt, base.lineage)

    def folded(self, first: FileRef, last: FileRef) -> SegmentName:
        """A folded file stands for all segments up to the last one it holds, so it carries that one's id."""
        return self._name(first.first, last.last, last.segment, first.previous)

    def _name(self, first: int, last: int, segment: str, previous: str) -> SegmentName:
        operator = self.round.plan.name
        folder = f"data/{operator}/{self.partition}"
        return SegmentName(
            folder,
            operator,
            self.partition,
            self.round.partitions,
            first,
            last,
            segment,
            previous,
            self.attempt,
        )


def _write_state(
    round_: Round,
    objects: Objects,
    base: PartitionState,
    changes: dict[str, TableChanges],
    partition: int,
    name: _Names,
) -> PartitionState:
    asked = {table: c.expire for table, c in changes.items() if c.expire is not None}
    expired = base.expired | {table: max(bound, base.expired.get(table, bound)) for table, bound in asked.items()}
    files: list[FileRef] = []
    wrote, floor = False, base.floor
    for spec in round_.plan.tables:
        kept, folded = _compacted(round_, objects, spec, base, expired, partition, name)
        floor = max(floor, folded)
        layers = changes[spec.name].layers() if spec.name in changes else []
        if layers:
            kept = (*kept, write_segment(objects, spec, layers, "changelog", name.changelog(base)))
            wrote = True
        files += kept
    lineage, sequence = (name.attempt, round_.sequence) if wrote else (base.lineage, base.sequence)
    return PartitionState(tuple(files), expired, lineage, sequence, floor)


def _compacted(
    round_: Round,
    objects: Objects,
    spec: TableSpec,
    base: PartitionState,
    expired: dict[str, int],
    partition: int,
    name: _Names,
) -> tuple[tuple[FileRef, ...], int]:
    """The table's live files, folded where the store's limits ask for it; and up to which sequence they now are."""
    own = live_files([ref for ref in base.files if ref.table == spec.name], expired)
    chosen = plan(
        own,
        max_files=round_.store.max_files,
        snapshot_every=round_.store.snapshot_every,
        sequence=round_.sequence,
        partition=partition,
    )
    if chosen is None:
        return own, 0
    mapped = round_.store.name != "memory"
    made = compact(objects, spec, own, chosen, expired.get(spec.name), name.folded, mapped=mapped)
    return made, own[chosen[1] - 1].last


def _write_output(
    objects: Objects, folder: str, rows: pa.Table | None, sequence: int, attempt: str
) -> tuple[FileRef, ...]:
    """Panes or ledger rows as one Parquet file."""
    if rows is None or not rows.num_rows:
        return ()
    sink = pa.BufferOutputStream()
    repeated = {"window_start", "window_end", "pane", "timing", "kind", "reason", "watermark"}
    dictionary = [field.name for field in rows.schema if field.name in repeated]
    pq.write_table(rows, sink, compression="snappy", use_dictionary=dictionary, write_statistics=True)
    data = sink.getvalue()
    path = f"{folder}/{sequence:020d}-{attempt}.parquet"
    objects.put(path, data)
    return (FileRef(path=path, bytes=data.size, checksum=checksum(data), rows=rows.num_rows),)
