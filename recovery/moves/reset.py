"""Going back: a new checkpoint that has all of an older one, and says which ids do not count any more.

Nothing is taken away. Ids only grow, so a reset is appended like any other manifest, of kind ``reset_to`` and under a
new writer epoch: an older run's next commit finds its id taken and stops. Rewind, repair and fall-back are all this.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from tidestate.recovery.inspect.verify import file_finding
from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import check_idle
from tidestate.recovery.log.manifest import Ids, Manifest, without_state
from tidestate.recovery.log.pins import pinned
from tidestate.recovery.log.ranges import merged_ranges, outside
from tidestate.recovery.log.successor import successor
from tidestate.recovery.log.traces import STATE, traces, written_files
from tidestate.recovery.spark.position import with_lists
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
    """What going back to ``to`` does: the id it takes, the ids that stop counting, the panes that come again.

    ``delivered`` is acknowledged of what counts; ``again`` are abandoned checkpoints with panes that a sink had, each
    with its rows: they come under new ids. ``newest``: the newest manifest that lies here. ``manifest`` is what is
    published, ``files`` are written before it.
    """

    id: int
    to: int
    abandoned: tuple[Ids, ...]
    delivered: int
    again: tuple[tuple[int, int], ...]
    newest: int
    manifest: Manifest
    files: dict[str, bytes]


def reset_to(checkpoint: Checkpoint, to: int, *, force: bool = True, hook: CrashHook = no_crash_hook) -> Reset:
    """Go back to checkpoint ``to``. Raises what `plan_reset` and `execute_reset` do."""
    planned = plan_reset(checkpoint, to)
    execute_reset(checkpoint, planned, force=force, hook=hook)
    return planned


def execute_reset(
    checkpoint: Checkpoint, planned: Reset, *, force: bool = False, hook: CrashHook = no_crash_hook
) -> None:
    """Publish the reset as planned, and write Spark's own checkpoint anew, as it was then.

    Raises `UsageError` (``running``) beside a running driver unless ``force`` fences it, `ConflictError`
    (``plan-moved``) where another checkpoint came since it was planned, `NotFoundError` where the chosen one was
    collected, `ConflictError` or `FencedError` where somebody publishes meanwhile: nothing has happened then. What
    dies after it has published is finished by the next start of the job.
    """
    manifest = planned.manifest
    check_idle(checkpoint, force)
    checkpoint.check_unmoved(planned.newest)
    with pinned(checkpoint, planned.to, "reset"):  # until a manifest that counts needs the same
        put_all(checkpoint.objects, planned.files)
        hook("reset-prepared", manifest.id)
        checkpoint.publish(manifest)
    hook("reset-published", manifest.id)
    finish_checkpoint(checkpoint, manifest, hook)


def plan_reset(checkpoint: Checkpoint, to: int) -> Reset:
    """What going back to checkpoint ``to`` would do now; nothing is changed.

    Raises `NotFoundError` or `CorruptionError` where ``to`` or a file of it is not there or cut, and
    `IncompatibleError` where Spark's own checkpoint cannot go back with it.
    """
    check_stateless(checkpoint.objects)
    beyond = highest_used_id(checkpoint)
    ids = checkpoint.present_ids()
    chosen = checkpoint.read(to)
    was = chosen.manifest
    _check_there(checkpoint, was)
    newest = max(*ids[-1:], to, beyond)
    readable = {to: without_state(was)} | dict(_readable(checkpoint, [one for one in ids if one > to]))
    top = max(readable)
    abandoned = merged_ranges((*was.abandoned, *([(to + 1, newest)] if newest > to else [])))
    spark, files = was.spark, dict[str, bytes]()
    read = files_read(checkpoint, was)
    if spark is not None:
        spark, files = with_lists(msgspec.structs.replace(spark, query_id=str(uuid.uuid4())), newest + 1, read)
    manifest = successor(
        chosen,
        "reset",
        checkpoint.writer,
        now_us(),
        id=newest + 1,
        parent_id=to,
        abandoned=abandoned,
        # A damaged manifest, or one that is gone, may have been a fence or a reset: its epoch is taken.
        epoch=readable[top].epoch + 1 + newest - top,
        delivered=delivered(checkpoint, _line({**readable, to: was}, to)[-1]),
        spark=spark,
    )
    _check_line(manifest, to)
    had = delivered(checkpoint, readable[top])
    lost = [one for one in readable.values() if to < one.id <= had and not readable[top].abandons(one.id)]
    again = tuple((one.id, sum(ref.rows for ref in one.panes)) for one in lost if one.panes)
    return Reset(manifest.id, to, abandoned, manifest.delivered, again, max(ids, default=0), manifest, files)


def _check_line(manifest: Manifest, to: int) -> None:
    """What counts after a reset is the chosen checkpoint and what led to it."""
    between = outside([(to + 1, manifest.id - 1)], manifest.abandoned) if to + 1 < manifest.id else []
    invariant(not between, "a reset abandons all that came after the chosen one", to=to, left=between)
    invariant(not manifest.abandons(to), "a reset goes back to what counts from then on", to=to)


def highest_used_id(checkpoint: Checkpoint) -> int:
    """The highest id that may have been in use above the newest manifest that lies here; 0 where none has been.

    Above it ids are free: who has seen panes under one that is lost is never given others under it.
    """
    # In this order: what leaves a trace has been published, and is listed.
    seen = traces(checkpoint.objects, STATE)
    listing = checkpoint.listing()
    newest, position = (listing.left or [0])[-1], None
    if listing.left:
        with suppress(CorruptionError, NotFoundError):
            position = checkpoint.load(newest).manifest.spark
    beyond = seen.beyond(newest, position) or (0 if listing.left else listing.least)
    if beyond or not listing.left:  # then panes and ledgers may tell of more
        beyond = max(beyond, *written_files(checkpoint.objects).values(), 0)
    return beyond


def _check_there(checkpoint: Checkpoint, chosen: Manifest) -> None:
    """That its files are there, whole by their sizes."""
    for ref in checkpoint.boundary().needed(chosen):
        if (wrong := file_finding(checkpoint, ref, chosen.id, read=False)) is not None:
            raise CorruptionError(
                f"a file of this checkpoint cannot be used ({wrong.why}): choose another one, "
                "or the newest that is whole (tidestate repair ROOT --to newest-good)",
                code="reset-damaged",
                id=chosen.id,
                path=wrong.path,
            )


def _readable(checkpoint: Checkpoint, ids: list[int]) -> Iterator[tuple[int, Manifest]]:
    for number, read in checkpoint.load_each(ids):
        try:
            yield number, without_state(read().manifest)
        except CorruptionError:
            continue


def _line(readable: dict[int, Manifest], to: int) -> list[Manifest]:
    """Checkpoints from ``to`` on, up to the reset that abandoned it, if any did."""
    found: list[Manifest] = []
    for number in sorted(readable):
        if readable[number].abandons(to):
            break
        found.append(readable[number])
    return found
