"""Going back: a new checkpoint that has all of an older one, and says which ids do not count any more.

Nothing is taken away. Ids only grow, so a reset is appended like any other manifest, of kind ``reset`` and under a
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
from tidestate.recovery.log.input_files import Entries
from tidestate.recovery.log.manifest import Ids, Manifest, without_state
from tidestate.recovery.log.pins import pinned
from tidestate.recovery.log.ranges import joined
from tidestate.recovery.log.traces import STATE, traces, written
from tidestate.recovery.spark.spark_checkpoint import Hook, check_stateless, files_read, finish, no_hook, store_read
from tidestate.statestore.errors import CorruptionError, NotFoundError


@dataclass(frozen=True)
class Reset:
    """What going back to ``to`` does: the id it takes, the ids that stop counting, the panes that come again.

    ``delivered`` is acknowledged of what counts; ``again`` are abandoned checkpoints with panes that a sink had, each
    with its rows: they come under new ids. ``read``: what Spark's sources of files had read by then.
    """

    id: int
    to: int
    abandoned: tuple[Ids, ...]
    delivered: int
    again: tuple[tuple[int, int], ...]
    manifest: Manifest
    read: dict[int, Entries]


def reset(checkpoint: Checkpoint, to: int, *, hook: Hook = no_hook) -> Reset:
    """Publish a reset to checkpoint ``to``, and write Spark's own checkpoint anew, as it was then.

    Raises what `plan_reset` does, and `ConflictError` or `FencedError` where somebody else published meanwhile:
    nothing has happened then. What dies after it has published is finished by the next start of the job.
    """
    planned = plan_reset(checkpoint, to)
    manifest = planned.manifest
    with pinned(checkpoint, to, "reset"):  # until a manifest that counts needs the same
        if manifest.spark is not None:
            spark = store_read(checkpoint.objects, manifest.spark, planned.read, manifest.id)
            manifest = msgspec.structs.replace(manifest, spark=spark)
        hook("reset-prepared", manifest.id)
        checkpoint.publish(manifest)
    hook("reset-published", manifest.id)
    finish(checkpoint, manifest, hook)
    return planned


def plan_reset(checkpoint: Checkpoint, to: int) -> Reset:
    """What `reset` would publish now; nothing is changed.

    Raises `NotFoundError` or `CorruptionError` where ``to`` or a file of it is not there or cut, and
    `IncompatibleError` where Spark's own checkpoint cannot go back with it.
    """
    check_stateless(checkpoint.objects)
    beyond = furthest(checkpoint)
    ids = checkpoint.present()
    chosen = checkpoint.read(to)
    _check_there(checkpoint, chosen.manifest)
    newest = max(*ids[-1:], to, beyond)
    readable = {to: without_state(chosen.manifest)} | dict(_readable(checkpoint, [one for one in ids if one > to]))
    # A damaged manifest, or one that is gone, may have been a fence or a reset: its epoch is taken.
    top = max(readable)
    epoch = readable[top].epoch + 1 + newest - top
    was = chosen.manifest
    abandoned = joined((*was.abandoned, *([(to + 1, newest)] if newest > to else [])))
    acknowledged = delivered(checkpoint, _line({**readable, to: was}, to)[-1])
    manifest = msgspec.structs.replace(
        was,
        id=newest + 1,
        parent=chosen.checksum,
        parent_id=to,
        abandoned=abandoned,
        epoch=epoch,
        writer=checkpoint.writer,
        kind="reset",
        created_us=now_us(),
        spark=msgspec.structs.replace(was.spark, query_id=str(uuid.uuid4())) if was.spark else None,
        panes=(),
        late=(),
        counters={},
        watermark_before_us=was.watermark_us,
        delivered=acknowledged,
        operators={
            name: msgspec.structs.replace(one, watermark_before_us=one.watermark_us)
            for name, one in was.operators.items()
        },
    )
    head = readable[top]
    had = delivered(checkpoint, head)
    lost = [one for one in readable.values() if to < one.id <= had and not head.abandons(one.id)]
    again = tuple((one.id, sum(ref.rows for ref in one.panes)) for one in lost if one.panes)
    read = files_read(checkpoint, was)
    return Reset(manifest.id, to, abandoned, acknowledged, again, manifest, read)


def furthest(checkpoint: Checkpoint) -> int:
    """The highest id that may have been in use above the newest manifest that lies here; 0 where none has been.

    Above it ids are free: who has seen panes under one that is lost is never given others under it.
    """
    # In this order: what leaves a trace has been published, and is listed.
    seen = traces(checkpoint.objects, STATE)
    listing = checkpoint.listed()
    newest, position = (listing.left or [0])[-1], None
    if listing.left:
        with suppress(CorruptionError, NotFoundError):
            position = checkpoint.load(newest).manifest.spark
    beyond = seen.beyond(newest, position) or (0 if listing.left else listing.least)
    if beyond or not listing.left:  # then panes and ledgers may tell of more
        beyond = max(beyond, *written(checkpoint.objects).values(), 0)
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
    for number, read in checkpoint.loads(ids):
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
