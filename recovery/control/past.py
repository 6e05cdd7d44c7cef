"""What has become of a request to a run that can publish nothing more, by the manifests of the line that counts.

A checkpoint that a request has made names it, and those after it do too, until another request makes one. A run
answers a request before it takes the next, so only its newest one can lack an answer. It was done if the last
checkpoint of that run that counts names it; what a rewind has abandoned was not.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Protocol

from tidestate.recovery.log.checkpoint import MANIFESTS, manifest_path, now_us
from tidestate.recovery.log.manifest import AnsweredRequest, Manifest, numbers_in
from tidestate.recovery.log.manifest_file import MANIFEST_BYTES, decode
from tidestate.recovery.log.requests import ControlAnswer, ErrorRecord, RunEnd
from tidestate.statestore.errors import CommitUnknownError, NotFoundError, UsageError


class ControlFiles(Protocol):
    """What an asker needs of a root: three methods of `Objects`, which raise as these do."""

    def names(self, folder: str) -> list[str]:
        """The names directly in a folder; none where it is not there."""

    def read(self, path: str, limit: int | None = None) -> bytes:
        """The bytes of a file. Raises `NotFoundError`."""

    def create(self, path: str, data: bytes) -> None:
        """Create a file. Raises `ConflictError` if the name is taken."""


@dataclass(frozen=True)
class RequestTicket:
    """A request that was made: the run by its writer epoch, and its number there. With it the answer is found."""

    epoch: int
    number: int


def answer_of_past(files: ControlFiles, ticket: RequestTicket) -> ControlAnswer:
    """The answer for a request that its run, which can publish nothing more, has not answered: done, or the error
    ``run-ended``, or ``request-unknown`` where what tells was collected.
    """
    try:
        answered = done_by(files, ticket)
    except CommitUnknownError as error:
        return ControlAnswer(uuid.uuid4().hex, now_us(), error=ErrorRecord.of(error))
    if answered is None:
        return ControlAnswer(uuid.uuid4().hex, now_us(), error=ErrorRecord.of(run_ended(ticket.epoch)))
    return ControlAnswer(uuid.uuid4().hex, now_us(), answered.checkpoint)


def done_by(files: ControlFiles, ticket: RequestTicket) -> AnsweredRequest | None:
    """What the line that counts says of a request without an answer; None if it has made no checkpoint. Raises
    `CommitUnknownError` (``request-unknown``) where what tells was collected.
    """
    while True:
        head, ids = newest_manifest(files), _ids(files)
        try:
            answered = _answered_in(files, ticket, head, ids)
        except NotFoundError:
            if ids == _ids(files):
                raise
            continue  # some were collected since they were listed
        if answered is None or answered.epoch != ticket.epoch or answered.number < ticket.number:
            return None
        if answered.number > ticket.number:
            raise _unknown(ticket)  # it had an answer, which was collected
        return answered


def newest_manifest(files: ControlFiles) -> Manifest:
    """The newest manifest, without partitions that are in parts. Raises `NotFoundError` where there is none."""
    while True:
        ids = _ids(files)
        try:
            return _manifest(files, ids[-1] if ids else 1)
        except NotFoundError:
            if ids == _ids(files):
                raise


def run_ended(epoch: int, end: RunEnd | None = None) -> UsageError:
    """The error for a request to a run that has ended before it did it."""
    facts: dict[str, Any] = {} if end is None else {"why": end.why, "checkpoint": end.checkpoint}
    return UsageError(
        "the run that was asked has ended, and did not do this: start the job and ask again",
        code="run-ended",
        epoch=epoch,
        **facts,
    )


def _answered_in(
    files: ControlFiles, ticket: RequestTicket, head: Manifest, ids: list[int]
) -> AnsweredRequest | None:
    """What the last checkpoint of the run on the line of ``head`` has. Writer epochs only rise along a line."""
    if head.epoch <= ticket.epoch:
        return head.answered
    line = [number for number in ids if number <= head.id and not head.abandons(number)]
    # The first checkpoint of a newer run; what it follows is the last one of the run that was asked.
    newer = bisect_right(line, ticket.epoch, key=lambda number: _manifest(files, number).epoch)
    if newer and _manifest(files, line[newer]).follows == line[newer - 1]:
        return _manifest(files, line[newer - 1]).answered
    if head.answered is not None and head.answered.epoch == ticket.epoch:
        return head.answered
    raise _unknown(ticket)


def _unknown(ticket: RequestTicket) -> CommitUnknownError:
    return CommitUnknownError(
        "the answer was collected, or the checkpoints that would tell: look at the results before you ask again",
        code="request-unknown",
        epoch=ticket.epoch,
        number=ticket.number,
    )


def _ids(files: ControlFiles) -> list[int]:
    return numbers_in(files.names(MANIFESTS))


def _manifest(files: ControlFiles, checkpoint_id: int) -> Manifest:
    path = manifest_path(checkpoint_id)
    return decode(files.read(path, MANIFEST_BYTES), path)[0]
