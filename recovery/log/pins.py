"""Pins: a pinned checkpoint stays readable, with all its files, whatever is collected.

A pin is published before the boundary is read; a collection publishes its boundary before it reads the pins. So the
second of the two always sees the first. A pin that came in time is marked as held; below the boundary, only a
checkpoint that is already held can be pinned again. The mark repeats the content of the pin, so either of the two
files keeps the checkpoint when the other is lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tidestate.recovery.log.absent import collected
from tidestate.recovery.log.boundary import Pin
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.manifest import Head, is_pin
from tidestate.recovery.log.records import HELD_SUFFIX, PINS, held_pins, pin_path, read_pins, read_record, seal
from tidestate.statestore.errors import ConflictError, NotFoundError, UnavailableError, UsageError
from tidestate.statestore.storage.objects import Objects


def pin(checkpoint: Checkpoint, checkpoint_id: int, name: str = "", *, note: str = "", fork: str = "") -> Pin:
    """Keep a checkpoint until `unpin`. ``fork`` is the root of a job that reads its files.

    Safe while the job runs, and idempotent. Raises `NotFoundError` if there is no such checkpoint any more,
    `UsageError` for a name that is taken or not allowed, and `IncompatibleError` if a newer version runs the job.
    """
    name = name or f"pin-{uuid.uuid4().hex[:12]}"
    check_pin(checkpoint, checkpoint_id, name)
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
        raise collected(checkpoint_id, checkpoint.listing())
    with suppress(ConflictError):  # another process has written the same mark
        checkpoint.objects.create(f"{PINS}/{name}{HELD_SUFFIX}", seal(made))
    return made


def check_pin(checkpoint: Checkpoint, checkpoint_id: int, name: str) -> None:
    """Raise as `pin` for a checkpoint that cannot be pinned under this name; nothing is written."""
    if not is_pin(name):
        raise UsageError(
            'the name of a pin has up to 100 letters, digits, "-", "_" and dots, and begins with no "-" or dot',
            code="pin-name",
            found=name[:200],
        )
    checkpoint.read(checkpoint_id)
    checkpoint.check_known()
    pins = read_pins(checkpoint.objects)
    _check_letter_case(name, pins)
    if taken := [one for one in pins if one.name == name and one.checkpoint != checkpoint_id]:
        raise _taken(taken[0])


def unpin(checkpoint: Checkpoint, name: str, *, force: bool = False) -> Pin:
    """Remove a pin and return it: the next collection may delete the checkpoint. Raises as `find_pin`."""
    removed = find_pin(checkpoint, name, force=force)
    remove_pin(checkpoint.objects, name)
    return removed


def find_pin(checkpoint: Checkpoint, name: str, *, force: bool = False) -> Pin:
    """A pin that may be removed. Raises `NotFoundError` if there is none, `UsageError` if a fork needs it, unless
    ``force``, and `IncompatibleError` if a newer version runs the job.
    """
    checkpoint.check_known()
    found = {one.name: one for one in read_pins(checkpoint.objects)}
    if name not in found:
        raise NotFoundError(
            "no pin has this name: choose one of those listed", code="no-such-pin", found=name, there=list(found)
        )
    if found[name].fork and not force:
        raise UsageError(
            "a forked job reads the files of this checkpoint: use force=True only if that job has been deleted or "
            "has replaced all of these files",
            code="pin-fork",
            name=name,
            fork=found[name].fork,
        )
    return found[name]


def fork_pins(base: Objects, fork: str) -> list[Pin]:
    """Pins that keep files below ``base`` for a fork; none if that root is gone or unreachable."""
    with suppress(UnavailableError):
        return [one for one in read_pins(base) if one.fork == fork]
    return []


@contextmanager
def pinned(checkpoint: Checkpoint, checkpoint_id: int, why: str) -> Iterator[Head]:
    """Pin a checkpoint within a ``with`` block. A process that dies inside leaves the pin behind, for `unpin`.

    Raises `NotFoundError` if the checkpoint does not exist or was collected.
    """
    name = pin(checkpoint, checkpoint_id, f"{why}-{uuid.uuid4().hex[:12]}", note=why).name
    try:
        yield checkpoint.read(checkpoint_id)
    finally:
        remove_pin(checkpoint.objects, name)


def remove_pin(objects: Objects, name: str) -> None:
    """Remove a pin without the checks of `unpin`. Once this returns, a power cut does not bring it back."""
    # In this order: while the mark exists, the pin does.
    objects.delete(f"{PINS}/{name}{HELD_SUFFIX}")
    objects.delete(pin_path(name))
    objects.settle(PINS)


def _held(checkpoint: Checkpoint, checkpoint_id: int) -> set[str]:
    """Names of the held pins of a checkpoint."""
    names = {one.name for one in read_pins(checkpoint.objects) if one.checkpoint == checkpoint_id}
    return names & held_pins(checkpoint.objects)


def _check_letter_case(name: str, pins: Sequence[Pin]) -> None:
    """Raise `UsageError` (``pin-taken``) for a name that a file system may take for that of another pin."""
    if other := [one.name for one in pins if one.name != name and one.name.casefold() == name.casefold()]:
        raise UsageError(
            "a pin has the same name in other letter case, which some file systems cannot tell apart: choose "
            "another name",
            code="pin-taken",
            name=name,
            there=other,
        )


def _same(checkpoint: Checkpoint, wanted: Pin) -> Pin:
    """The existing pin of this name. Raises `UsageError` if it keeps another checkpoint."""
    existing = read_record(checkpoint.objects, pin_path(wanted.name), Pin)
    _check_letter_case(wanted.name, [existing])
    if (existing.checkpoint, existing.fork) != (wanted.checkpoint, wanted.fork):
        raise _taken(existing)
    return existing


def _taken(existing: Pin) -> UsageError:
    return UsageError(
        "a pin of this name already keeps another checkpoint: unpin that first, or choose another name",
        code="pin-taken",
        name=existing.name,
        checkpoint=existing.checkpoint,
    )
