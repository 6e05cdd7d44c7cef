"""Keeping a checkpoint on purpose: whatever is collected, a pinned one can be read, and its files stay.

A pin is published first and the boundary read after it; a collection publishes its boundary first and reads the pins
after it. So of the two whoever comes second sees the other. A pin that came in time is marked as held; below the
boundary, only a checkpoint that is held already can be pinned once more. The mark repeats what the pin says, so
either of the two files keeps the checkpoint when the other one is lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tidestate.recovery.log import names
from tidestate.recovery.log.boundary import Pin
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.manifest import Head
from tidestate.recovery.log.records import HELD_SUFFIX, PINS, held_pins, pin_path, read_pins, read_record, seal
from tidestate.statestore.errors import ConflictError, NotFoundError, UnavailableError, UsageError
from tidestate.statestore.storage.objects import Objects


def pin(checkpoint: Checkpoint, checkpoint_id: int, name: str = "", *, note: str = "", fork: str = "") -> Pin:
    """Keep a checkpoint until `unpin`. ``fork`` is the root of a job that reads its files.

    Raises `NotFoundError` where it is not there or was collected, `UsageError` for a name that is taken or none.
    The same pin again is fine. Beside a running job.
    """
    name = name or f"pin-{uuid.uuid4().hex[:12]}"
    if not names.is_pin(name):
        raise UsageError("a pin's name is letters, digits, - _ and dots", code="pin-name", found=name)
    checkpoint.read(checkpoint_id)
    checkpoint.settle()
    sheltered = _held(checkpoint, checkpoint_id)
    made = Pin(name, checkpoint_id, now_us(), checkpoint.writer, note, fork)
    try:
        checkpoint.objects.create(pin_path(name), seal(made))
    except ConflictError:
        made = _same(checkpoint, made)
    if name in held_pins(checkpoint.objects):
        checkpoint.objects.settle(PINS)
        return made
    below = checkpoint_id <= checkpoint.boundary().id
    if below and not sheltered & _held(checkpoint, checkpoint_id):
        checkpoint.objects.delete(pin_path(name))
        raise checkpoint.collected(checkpoint_id)
    with suppress(ConflictError):  # whoever wrote it, it is true
        checkpoint.objects.create(f"{PINS}/{name}{HELD_SUFFIX}", seal(made))
    return made


def unpin(checkpoint: Checkpoint, name: str, *, force: bool = False) -> Pin:
    """Keep it no longer: the next collection may take it. Returns what was taken out.

    Raises `NotFoundError` for a pin that is not there; `UsageError` for one that a fork needs, without ``force``.
    """
    found = {one.name: one for one in read_pins(checkpoint.objects)}
    if name not in found:
        raise NotFoundError("no such pin", code="no-such-pin", found=name, there=list(found))
    if found[name].fork and not force:
        raise UsageError(
            "a forked job reads the files of this checkpoint: when that job is gone, or has files of its own for all "
            "of them, use --force",
            code="pin-fork",
            name=name,
            fork=found[name].fork,
        )
    remove_pin(checkpoint.objects, name)
    return found[name]


def fork_pins(base: Objects, fork: str) -> list[Pin]:
    """Pins that keep files below ``base`` for a fork; none where that root is gone, or refuses to answer."""
    with suppress(UnavailableError):
        return [one for one in read_pins(base) if one.fork == fork]
    return []


@contextmanager
def pinned(checkpoint: Checkpoint, checkpoint_id: int, why: str) -> Iterator[Head]:
    """A checkpoint that nobody collects meanwhile. A process that dies in here leaves the pin, for `unpin`.

    Raises `NotFoundError` where it is not there or was collected.
    """
    name = pin(checkpoint, checkpoint_id, f"{why}-{uuid.uuid4().hex[:12]}", note=why).name
    try:
        yield checkpoint.read(checkpoint_id)
    finally:
        remove_pin(checkpoint.objects, name)


def remove_pin(objects: Objects, name: str) -> None:
    """Take out a pin that nobody needs; `unpin` asks first."""
    # In this order: as long as a pin is held by name, it is there.
    objects.delete(f"{PINS}/{name}{HELD_SUFFIX}")
    objects.delete(pin_path(name))


def _held(checkpoint: Checkpoint, checkpoint_id: int) -> set[str]:
    """Names of pins that keep a checkpoint for certain."""
    names = {one.name for one in read_pins(checkpoint.objects) if one.checkpoint == checkpoint_id}
    return names & held_pins(checkpoint.objects)


def _same(checkpoint: Checkpoint, wanted: Pin) -> Pin:
    """The pin that has the name, where it is the one that is wanted."""
    there = read_record(checkpoint.objects, pin_path(wanted.name), Pin)
    if (there.checkpoint, there.fork) != (wanted.checkpoint, wanted.fork):
        raise UsageError(
            "a pin of this name keeps another checkpoint: unpin it first, or choose another name",
            code="pin-taken",
            name=wanted.name,
            checkpoint=there.checkpoint,
        )
    return there
