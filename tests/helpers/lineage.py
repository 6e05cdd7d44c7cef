"""Durable partition state for tests, written as a task writes it, for any tables and changes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from tidestate.statestore.files.partition_log import PartitionLog
from tidestate.statestore.files.refs import PartitionState, SegmentName, levels_of
from tidestate.statestore.spec.changes import TableChanges
from tidestate.statestore.spec.store import Parquet, StoreConfig
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects


def segment_name(first: int, last: int, segment: str, previous: str = "") -> SegmentName:
    """A name as an attempt would choose it."""
    attempt = uuid.uuid4().hex
    return SegmentName("windows", 0, 1, first, last, segment, previous, attempt, last)


def advance(
    objects: Objects,
    specs: Sequence[TableSpec],
    base: PartitionState,
    changes: Mapping[str, TableChanges],
    sequence: int,
    config: StoreConfig = Parquet(),  # noqa: B008  immutable
) -> PartitionState:
    """Write ``changes`` over ``base`` as checkpoint ``sequence``, folding files first where the limits ask for it."""
    log = PartitionLog(objects, specs, config, "windows", 0, 1, uuid.uuid4().hex)
    after = log.append(base, changes, sequence)
    for spec in specs:
        assert len(levels_of([ref for ref in after.files if ref.table == spec.name])) <= config.max_levels
    return after
