"""Reset: a new checkpoint with the content of an older one, which lists the ids that no longer count.

Nothing is deleted. Ids only grow, so a reset is appended like any other manifest, with kind ``reset`` and a new
writer epoch: the next commit of an older run finds its id taken and the run stops. Rewind, repair and fall-back are
resets.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import msgspec

from tidestate.recovery.inspect.verify import file_finding
from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import check_idle
from tidestate.recovery.log.manifest import (
    OUTPUT_KINDS,
    Delivered,
    Ids,
    Manifest,
    delivered_for,
    output_of,
    without_state,
)
from tidestate.recovery.log.manifest_file import successor
from tidestate.recovery.log.parts import spared
from tidestate.recovery.log.pins import pinned
from tidestate.recovery.log.ranges import merged_ranges, outside
from tidestate.recovery.log.spark_log import with_lists
from tidestate.recovery.log.traces import STATE, traces, written_files
from tidestate.recovery.spark.spark_checkpoint import (
    CrashHook,
    check_stateless,
    files_read,
    finish_checkpoint,
    no_crash_hook,
)
from tidestate.statestore.errors import CorruptionError, NotFoundError, invariant
from tidestate.statestore.storage.objects import put_all


@dataclass(frozen=True)
class Reset:
    """A planned reset to checkpoint ``to``: its own id, and the ids that it abandons.

    ``delivered`` is what is acknowledged and still counts; ``again`` are abandoned checkpoints with delivered panes
    or ledger rows, each with the number of these, which are delivered again under new ids. ``newest``: the newest
    manifest when this was planned. ``manifest`` is published after ``files`` are written.
    """

    id: int
    to: int
    abandoned: tuple[Ids, ...]
    delivered: Delivered
    again: tuple[tuple[int, int], ...]
    newest: int
    manifest: Manifest
    files: dict[str, bytes]


def execute_reset(
    checkpoint: Checkpoint, reset: Reset, *, force: bool = False, hook: CrashHook = no_crash_hook
) -> None:
    """Publish the reset as planned, and rewrite Spark's own checkpoint as it was then.

    Raises `UsageError` (``running``) while a driver runs the job, unless ``force``, which fences it; `ConflictError`
    or `FencedError` if another checkpoint was published since it was planned, and `NotFoundError` if the chosen one
    was collected. Nothing was published then. After a crash the next start of the job finishes a published reset.
    """
    manifest = reset.manifest
    check_idle(checkpoint, force)
    checkpoint.check_unmoved(reset.newest)
    with pinned(checkpoint, reset.to, "reset"):  # until the reset itself needs the files
        put_all(checkpoint.objects, reset.files)
        hook("reset-prepared", manifest.id)
        checkpoint.publish(manifest)
    hook("reset-published", manifest.id)
    finish_checkpoint(checkpoint, manifest, hook)


def plan_reset(checkpoint: Checkpoint, to: int) -> Reset:
    """Plan a reset to checkpoint ``to``; nothing is written.

    Raises `NotFoundError` or `CorruptionError` if ``to`` or a file of it is missing or cut, and `IncompatibleError`
    if Spark's own checkpoint cannot go back with it.
    """
    check_stateless(checkpoint.objects)
    beyond = highest_used_id(checkpoint)
    ids = checkpoint.present_ids()
    head = checkpoint.read(to)
    was = head.manifest
    _check_there(checkpoint, was)
    newest = max(*ids[-1:], to, beyond)
    readable = {to: without_state(was)} | dict(_readable(checkpoint, [number for number in ids if number > to]))
    top = max(readable)
    ranges = merged_ranges((*was.abandoned, *([(to + 1, newest)] if newest > to else [])))
    spark, files = was.spark, dict[str, bytes]()
    read = files_read(checkpoint, was)
    if spark is not None:
        spark, files = with_lists(msgspec.structs.replace(spark, query_id=str(uuid.uuid4())), newest + 1, read)
    manifest = successor(
        head,
        "reset",
        checkpoint.writer,
        now_us(),
        id=newest + 1,
        parent_id=to,
        abandoned=ranges,
        # A damaged or missing manifest may have been a fence or a reset, with an epoch of its own.
        epoch=readable[top].epoch + 1 + newest - top,
        delivered=_delivered_on(checkpoint, _line({**readable, to: was}, to)[-1], was),
        spark=spark,
    )
    _check_line(manifest, to)
    had = delivered(checkpoint, readable[top])
    undone = [old for old in readable.values() if to < old.id and not readable[top].abandons(old.id)]
    outputs = [output_of(old) for old in undone]
    repeats = [(put.id, sum(ref.rows for kind in OUTPUT_KINDS for ref in put.accepted(kind, had))) for put in outputs]
    twice = tuple((number, rows) for number, rows in repeats if rows)
    return Reset(manifest.id, to, ranges, manifest.delivered, twice, max(ids, default=0), manifest, files)


def _delivered_on(checkpoint: Checkpoint, last: Manifest, was: Manifest) -> Delivered:
    """What sinks had of the outputs of the job as it ``was``, by the ``last`` checkpoint of its line."""
    names, then = was.output_names, was.delivered
    return delivered_for(delivered(checkpoint, last), last, names, partial(then.up_to, "panes"))


def _check_line(manifest: Manifest, to: int) -> None:
    """After a reset the chosen checkpoint counts, and nothing between the two."""
    between = outside([(to + 1, manifest.id - 1)], manifest.abandoned) if to + 1 < manifest.id else []
    invariant(not between, "a reset abandons everything after the chosen checkpoint", to=to, left=between)
    invariant(not manifest.abandons(to), "a reset does not abandon the chosen checkpoint", to=to)


def highest_used_id(checkpoint: Checkpoint) -> int:
    """The highest id that may have been in use above the newest manifest, 0 for none.

    Ids above it are free: panes are never delivered under an id that was lost.
    """
    # Traces first: what has left one is published, so the listing contains it.
    signs = traces(checkpoint.objects, STATE)
    listing = checkpoint.listing()
    newest, position = (listing.ids or [0])[-1], None
    if listing.ids:
        with suppress(CorruptionError, NotFoundError):
            position = checkpoint.load(newest).manifest.spark
    beyond = signs.beyond(newest, position) or (0 if listing.ids else listing.least_head)
    if beyond or not listing.ids:  # the names of panes and ledgers may prove more
        beyond = max(beyond, *written_files(checkpoint.objects).values(), 0)
    if beyond and not listing.ids and checkpoint.present_ids():
        return highest_used_id(checkpoint)  # the job has begun meanwhile
    return beyond


def _check_there(checkpoint: Checkpoint, manifest: Manifest) -> None:
    """Raise `CorruptionError` unless all its files have the right size, `NotFoundError` if it has been collected."""
    refs = {ref.location: ref for ref in checkpoint.boundary().needed(manifest)}
    findings = {key: file_finding(checkpoint, ref, manifest.id, read=False) for key, ref in refs.items()}
    bad = {key: finding for key, finding in findings.items() if finding is not None}
    if bad:  # it may have been collected meanwhile, or its output deleted by its age
        checkpoint.read(manifest.id)
        refs = {ref.location: ref for ref in checkpoint.boundary().needed(manifest)}
    harmless = spared(manifest, bad)
    for key, wrong in bad.items():
        if key in refs and key not in harmless:
            raise CorruptionError(
                f"a file of this checkpoint cannot be used ({wrong.why}): choose another checkpoint, "
                "or the newest intact one (tidestate repair ROOT --to newest-good)",
                code="reset-damaged",
                id=manifest.id,
                path=wrong.path,
            )


def _readable(checkpoint: Checkpoint, ids: list[int]) -> Iterator[tuple[int, Manifest]]:
    for number, read in checkpoint.load_each(ids):
        try:
            yield number, without_state(read().manifest)
        except CorruptionError:
            continue


def _line(readable: dict[int, Manifest], to: int) -> list[Manifest]:
    """Checkpoints from ``to`` on, up to the reset that abandoned it, if any."""
    manifests = (readable[number] for number in sorted(readable))
    return list(takewhile(lambda manifest: not manifest.abandons(to), manifests))
