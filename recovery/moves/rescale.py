"""Change the number of state partitions: a manifest in which each partition takes the files with keys in its range.

No data is read, written or deleted: old files are read through the new ranges until folding has replaced them. Like a
reset, the manifest is appended, with kind ``rescale`` and a new writer epoch, so the next commit of an older run
finds its id taken and the run stops.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from tidestate.recovery.log.absent import not_begun
from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import check_idle
from tidestate.recovery.log.manifest import Manifest, OperatorState
from tidestate.recovery.log.manifest_file import successor
from tidestate.statestore.errors import UsageError, invariant
from tidestate.statestore.files.refs import FileRef, PartitionState, count_files
from tidestate.statestore.spec.keyhash import hash_range
from tidestate.statestore.spec.tables import TableSpec

MAX_PARTITIONS = 1 << 15


@dataclass(frozen=True)
class Rescaled:
    """A planned rescale: its checkpoint id, the number of partitions before and after, how many files have the state,
    and how many of them several partitions share until they are folded.
    """

    id: int
    before: int
    partitions: int
    operators: tuple[str, ...]
    files: int
    shared: int
    manifest: Manifest


def rescale(root: str | os.PathLike[str], partitions: int, *, force: bool = False) -> Rescaled:
    """Divide the state of all operators into so many partitions; the next start uses them.

    Raises as `plan_rescale` and `execute_rescale`; nothing was written.
    """
    checkpoint = Checkpoint.open(root)
    plan = plan_rescale(checkpoint, partitions)
    execute_rescale(checkpoint, plan, force=force)
    return plan


def execute_rescale(checkpoint: Checkpoint, plan: Rescaled, *, force: bool = False) -> None:
    """Publish the planned manifest.

    Raises `UsageError` (``running``) while a driver runs the job, unless ``force``, which fences it; `ConflictError`
    or `FencedError` if another checkpoint was published since it was planned. Nothing was written.
    """
    check_idle(checkpoint, force)
    checkpoint.check_unmoved(plan.manifest.follows)
    checkpoint.publish(plan.manifest)


def plan_rescale(checkpoint: Checkpoint, partitions: int) -> Rescaled:
    """Plan a rescale; nothing is written.

    Raises `UsageError` for a number that is not allowed or not new, for a drained checkpoint, and for tables that
    cannot be divided; `NotFoundError` before the first checkpoint.
    """
    check_partitions(partitions)
    head = checkpoint.head(search=True)
    if head is None:
        raise not_begun(checkpoint.objects.root)
    was = head.manifest
    before = was.partitions
    if was.drained:
        raise UsageError(
            "this checkpoint is drained: no job continues from it, so there is nothing to rescale",
            code="drained",
            id=was.id,
        )
    if before == partitions:
        raise UsageError(
            "the state already has this number of partitions: nothing was changed",
            code="rescale-same",
            partitions=before,
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
            name: operator.with_states(divide_partitions(operator.tables, operator.states, partitions, was.id + 1))
            for name, operator in was.operators.items()
        },
    )
    refs = [ref for operator in manifest.operators.values() for part in operator.partitions for ref in part.files]
    times = Counter(ref.location for ref in refs)
    before_places = {ref.location for operator in was.operators.values() for ref in operator.files}
    invariant(set(times) == before_places, "a rescale keeps all files", lost=before_places - set(times))
    shared_count = count_files(ref for ref in refs if times[ref.location] > 1)
    return Rescaled(manifest.id, before, partitions, tuple(was.operators), count_files(refs), shared_count, manifest)


def check_partitions(partitions: int) -> None:
    """Raise `UsageError` for a number of partitions that is not allowed."""
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise UsageError("the number of partitions must be between 1 and 32768", code="partitions", found=partitions)


def _check_divisible(name: str, operator: OperatorState) -> None:
    tables = [spec.name for spec in operator.tables if spec.partition_by is None]
    if tables:
        raise UsageError(
            "an embedded operator has one partition: its tables cannot be divided",
            code="rescale-table",
            operator=name,
            tables=tables,
        )


def divide_partitions(
    specs: Sequence[TableSpec], old: Sequence[PartitionState], partitions: int, sequence: int
) -> tuple[PartitionState, ...]:
    """The state of the ``old`` partitions in so many new ones, as of checkpoint ``sequence``; only the ids are
    random.

    Each new partition begins its own lineage, so no cached state of an old one matches.
    """
    return tuple(_of_partition(specs, old, number, partitions, sequence) for number in range(partitions))


def _of_partition(
    specs: Sequence[TableSpec], old: Sequence[PartitionState], number: int, partitions: int, sequence: int
) -> PartitionState:
    mine = hash_range(number, partitions)
    files: list[FileRef] = []
    expiries: dict[str, int] = {}
    for spec in specs:
        sources = _overlapping(old, mine) if spec.partition_by else [(0, old[0])] if number == 0 else []
        bounds = [state.expired.get(spec.name) for _, state in sources]
        known_bounds = [bound for bound in bounds if bound is not None]
        # A row expires as it did in its old partition: the lowest bound applies to all files, a file may have a
        # higher.
        common = min(known_bounds) if known_bounds and len(known_bounds) == len(bounds) else None
        if common is not None:
            expiries[spec.name] = common
        if spec.partition_by:
            files += _once(spec, _numbered(_shares(spec, sources, len(old), mine, common)))
        else:  # without a key all rows are in the first partition and stay there
            files += [ref for _, state in sources for ref in state.files if ref.table == spec.name]
    return PartitionState(tuple(files), expiries, uuid.uuid4().hex, sequence, sequence)


def _shares(
    spec: TableSpec,
    sources: Sequence[tuple[int, PartitionState]],
    count: int,
    mine: tuple[int, int],
    common: int | None,
) -> Iterator[tuple[tuple[int, int], FileRef]]:
    """Files of a table with rows in ``mine``, each with its (partition, share) before."""
    for index, state in sources:
        theirs = hash_range(index, count)
        bound = state.expired.get(spec.name)
        for ref in state.files:
            if ref.table != spec.name:
                continue
            hashes = ref.hashes
            if not spec.shared:
                hashes = _part(ref.hashes, theirs, mine)
                if hashes is not None and hashes[0] >= hashes[1]:
                    continue
            above = max((value for value in (bound, ref.expired) if value is not None), default=None)
            expiry = above if above is not None and (common is None or above > common) else None
            yield (index, ref.share), msgspec.structs.replace(ref, hashes=hashes, expired=expiry)


def _part(hashes: tuple[int, int] | None, theirs: tuple[int, int], mine: tuple[int, int]) -> tuple[int, int] | None:
    """The range of hashes of a file's rows that count, None for all of its old partition."""
    if hashes is None and mine[0] <= theirs[0] and theirs[1] <= mine[1]:
        return None
    low, high = hashes or theirs
    return max(low, theirs[0], mine[0]), min(high, theirs[1], mine[1])


def _overlapping(old: Sequence[PartitionState], mine: tuple[int, int]) -> list[tuple[int, PartitionState]]:
    """The old partitions that have some of these hashes, with their numbers."""
    first, last = ((end * len(old)) >> 32 for end in (mine[0], mine[1] - 1))
    return [(index, old[index]) for index in range(first, last + 1)]


def _numbered(refs: Iterator[tuple[tuple[int, int], FileRef]]) -> Iterator[FileRef]:
    """Number the shares: files that an old partition had itself taken over are below its own."""
    by_list: dict[tuple[int, float], list[FileRef]] = {}
    # A share of 0 is a file of its own, which is newer than all that it had taken over.
    for (index, share), ref in refs:
        by_list.setdefault((index, share or float("inf")), []).append(ref)
    for number, key in enumerate(sorted(by_list)):
        for ref in by_list[key]:
            yield msgspec.structs.replace(ref, share=number + 1)


def _once(spec: TableSpec, refs: Iterator[FileRef]) -> list[FileRef]:
    """Each file of a shared table once, each part of a file of another table once."""
    unique: dict[object, FileRef] = {}
    for ref in refs:
        unique.setdefault((ref.location, None if spec.shared else ref.hashes), ref)
    return list(unique.values())
