"""Another number of state partitions: a manifest in which each takes over the files that hold keys of its range.

No data is read or written, and nothing is taken away: old files are read through the new ranges until folding has
made new ones. Like a reset it is appended, of kind ``rescale`` and under a new writer epoch, so an older run's next
commit finds its id taken and stops.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import check_idle
from tidestate.recovery.log.manifest import Manifest, OperatorState, state_files
from tidestate.recovery.log.successor import successor
from tidestate.statestore.errors import UsageError, invariant
from tidestate.statestore.files.refs import FileRef, PartitionState
from tidestate.statestore.spec.keyhash import hash_range
from tidestate.statestore.spec.tables import TableSpec

MAX_PARTITIONS = 1 << 15


@dataclass(frozen=True)
class Rescaled:
    """What dividing the state anew does: the id it takes, how many partitions there were and will be, how many files
    hold the state, and how many of them are shared by several partitions until they are folded.
    """

    id: int
    before: int
    partitions: int
    operators: tuple[str, ...]
    files: int
    shared: int
    manifest: Manifest


def rescale(root: str | os.PathLike[str], partitions: int, *, force: bool = False) -> Rescaled:
    """Divide the state of all operators into so many partitions; the next start goes on with them.

    Raises what `plan_rescale` and `execute_rescale` do. Nothing has happened then.
    """
    checkpoint = Checkpoint.open(root)
    planned = plan_rescale(checkpoint, partitions)
    execute_rescale(checkpoint, planned, force=force)
    return planned


def execute_rescale(checkpoint: Checkpoint, planned: Rescaled, *, force: bool = False) -> None:
    """Publish what was planned.

    Raises `UsageError` (``running``) while a driver is at work, unless ``force``, which fences it; `ConflictError`
    (``plan-moved``) where another checkpoint came since it was planned, `ConflictError` or `FencedError` where
    somebody publishes meanwhile. Nothing has happened then.
    """
    check_idle(checkpoint, force)
    checkpoint.check_unmoved(planned.manifest.follows)
    checkpoint.publish(planned.manifest)


def plan_rescale(checkpoint: Checkpoint, partitions: int) -> Rescaled:
    """What dividing the state would do now; nothing is changed.

    Raises `UsageError` for a number that cannot be or that it is already, for a drained checkpoint, and for tables
    that cannot be divided; `NotFoundError` where there is no checkpoint yet.
    """
    check_partitions(partitions)
    head = checkpoint.head(search=True)
    if head is None:
        raise checkpoint.not_begun()
    was = head.manifest
    before = was.partitions
    if was.drained:
        raise UsageError(
            "this checkpoint is drained: no job goes on from it, so there is nothing to divide",
            code="drained",
            id=was.id,
        )
    if before == partitions:
        raise UsageError(
            "the state has so many partitions already: nothing was written", code="rescale-same", partitions=before
        )
    for name, operator in was.operators.items():
        _check_divisible(name, operator)
    manifest = successor(
        head,
        "rescale",
        checkpoint.writer,
        now_us(),
        delivered=delivered(checkpoint, was),
        operators={
            name: msgspec.structs.replace(
                one, partitions=divide_partitions(one.tables, one.partitions, partitions, was.id + 1)
            )
            for name, one in was.operators.items()
        },
    )
    refs = [ref for one in manifest.operators.values() for part in one.partitions for ref in part.files]
    times = Counter((ref.root, ref.path) for ref in refs)
    before_files = {(ref.root, ref.path) for ref in state_files(was)}
    invariant(set(times) == before_files, "no file is lost or made by a rescale", lost=before_files - set(times))
    shared = sum(count > 1 for count in times.values())
    return Rescaled(manifest.id, before, partitions, tuple(was.operators), len(times), shared, manifest)


def check_partitions(partitions: int) -> None:
    """Raise `UsageError` for a number that cannot be."""
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise UsageError("state has between 1 and 32768 partitions", code="partitions", found=partitions)


def _check_divisible(name: str, operator: OperatorState) -> None:
    whole = [spec.name for spec in operator.tables if spec.partition_by is None]
    if whole:
        raise UsageError(
            "an operator that is fed by hand has one partition: its tables cannot be divided",
            code="rescale-table",
            operator=name,
            tables=whole,
        )


def divide_partitions(
    specs: Sequence[TableSpec], old: Sequence[PartitionState], partitions: int, sequence: int
) -> tuple[PartitionState, ...]:
    """The state of ``old`` partitions in so many new ones, as of checkpoint ``sequence``. Pure but for fresh ids.

    No cache of before fits: each partition begins a lineage of its own, with all that was before it folded.
    """
    return tuple(_of_partition(specs, old, number, partitions, sequence) for number in range(partitions))


def _of_partition(
    specs: Sequence[TableSpec], old: Sequence[PartitionState], number: int, partitions: int, sequence: int
) -> PartitionState:
    mine = hash_range(number, partitions)
    files: list[FileRef] = []
    expired: dict[str, int] = {}
    for spec in specs:
        near = _near(old, mine) if spec.partition_by else [(0, old[0])] if number == 0 else []
        bounds = [state.expired.get(spec.name) for _, state in near]
        known = [bound for bound in bounds if bound is not None]
        # A row counts as long as it did where it was. So the lowest bound is that of all, and files say the rest.
        common = min(known) if known and len(known) == len(bounds) else None
        if common is not None:
            expired[spec.name] = common
        if spec.partition_by:
            files += _once(spec, _numbered(_shares(spec, near, len(old), mine, common)))
        else:  # without a key all rows are in the first partition, and stay there as they are
            files += [ref for _, state in near for ref in state.files if ref.table == spec.name]
    return PartitionState(tuple(files), expired, uuid.uuid4().hex, sequence, sequence)


def _shares(
    spec: TableSpec,
    near: Sequence[tuple[int, PartitionState]],
    count: int,
    mine: tuple[int, int],
    common: int | None,
) -> Iterator[tuple[tuple[int, int], FileRef]]:
    """Files of a table that hold something of ``mine``, each with the list it is of: (partition, share) before."""
    for place, state in near:
        theirs = hash_range(place, count)
        bound = state.expired.get(spec.name)
        for ref in state.files:
            if ref.table != spec.name:
                continue
            hashes = ref.hashes
            if not spec.shared:
                hashes = _part(ref.hashes, theirs, mine)
                if hashes is not None and hashes[0] >= hashes[1]:
                    continue
            above = max((one for one in (bound, ref.expired) if one is not None), default=None)
            kept = above if above is not None and (common is None or above > common) else None
            yield (place, ref.share), msgspec.structs.replace(ref, hashes=hashes, expired=kept)


def _part(own: tuple[int, int] | None, theirs: tuple[int, int], mine: tuple[int, int]) -> tuple[int, int] | None:
    """The hashes of a file's rows that count; None where all of them do, as those of its partition."""
    if own is None and mine[0] <= theirs[0] and theirs[1] <= mine[1]:
        return None
    low, high = own or theirs
    return max(low, theirs[0], mine[0]), min(high, theirs[1], mine[1])


def _near(old: Sequence[PartitionState], mine: tuple[int, int]) -> list[tuple[int, PartitionState]]:
    """The old partitions that hold some of these hashes, with their numbers."""
    first, last = ((end * len(old)) >> 32 for end in (mine[0], mine[1] - 1))
    return [(place, old[place]) for place in range(first, last + 1)]


def _numbered(found: Iterator[tuple[tuple[int, int], FileRef]]) -> Iterator[FileRef]:
    """With the number of the list that each is of: what a partition had taken over lies below its own."""
    by_list: dict[tuple[int, float], list[FileRef]] = {}
    for (place, share), ref in found:
        by_list.setdefault((place, share or float("inf")), []).append(ref)
    for number, key in enumerate(sorted(by_list)):
        for ref in by_list[key]:
            yield msgspec.structs.replace(ref, share=number + 1)


def _once(spec: TableSpec, refs: Iterator[FileRef]) -> list[FileRef]:
    """Of a shared table a file says all it has when it is read once."""
    found: dict[object, FileRef] = {}
    for ref in refs:
        found.setdefault((ref.root, ref.path, None if spec.shared else ref.hashes), ref)
    return list(found.values())
