"""Resolve an id or a time to a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from tidestate.recovery.log.absent import not_begun
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Head, Manifest, without_state
from tidestate.statestore.durations import Moment, moment_us
from tidestate.statestore.errors import CorruptionError, NotFoundError, UsageError

CheckpointAt: TypeAlias = Moment | None
"""A checkpoint: its id; a time for the newest one created by then, in UTC unless it says otherwise, as text in ISO
8601; None for the newest.
"""
_ID = re.compile(r"[0-9]{1,19}")


def head_at(checkpoint: Checkpoint, moment: CheckpointAt) -> Head:
    """The checkpoint of ``moment``. Raises `NotFoundError` if it is not there, else as `checkpoint_at`."""
    return checkpoint.chosen(None if moment is None else checkpoint_at(checkpoint, moment))


def checkpoint_at(checkpoint: Checkpoint, moment: Moment) -> int:
    """The id of the checkpoint of ``moment``; of a time among those that count now.

    Raises `UsageError` for anything else, and `NotFoundError` if there was none yet, or those of then were collected.
    """
    check_moment(moment)
    number = _id_of(moment)
    if number is not None:
        return number
    until = moment_us(moment)
    oldest: Manifest | int | None = None
    for oldest in counting(checkpoint):
        if isinstance(oldest, Manifest) and oldest.created_us <= until:
            return oldest.id
    marker = checkpoint.marker
    if oldest is None and not checkpoint.boundary().id:
        raise not_begun(checkpoint.objects.root)
    if until < marker.created_us or (isinstance(oldest, Manifest) and oldest.id == marker.first):
        raise NotFoundError(
            "the first checkpoint of this root is newer than this time: choose a later time",
            code="no-such-checkpoint",
            time=str(moment),
        )
    raise NotFoundError(
        "all checkpoints up to this time have been collected: choose a later time", code="collected", time=str(moment)
    )


def check_moment(moment: Moment) -> None:
    """Raise `UsageError` (``rewind-to``) for what is neither an id nor a time."""
    if _id_of(moment) is not None:
        return
    try:
        moment_us(moment)
    except UsageError:
        raise UsageError(
            "expected a checkpoint id, or a time such as 2026-01-31T12:00",
            code="rewind-to",
            found=str(moment)[:100],
        ) from None


def _id_of(moment: Moment) -> int | None:
    if isinstance(moment, int | np.integer) and not isinstance(moment, np.timedelta64):
        return int(moment)
    return int(moment) if isinstance(moment, str) and _ID.fullmatch(moment) else None


def counting(checkpoint: Checkpoint, first: int = 0) -> Iterator[Manifest | int]:
    """Checkpoints that count, newest first, without their state; the id alone if the manifest cannot be read."""
    newest: Manifest | None = None
    for number, read in checkpoint.load_each([one for one in reversed(checkpoint.present_ids()) if one >= first]):
        if newest is not None and newest.abandons(number):
            continue
        try:
            manifest = without_state(read().manifest)
        except CorruptionError:
            yield number
            continue
        newest = newest or manifest
        yield manifest
