"""The end of a running job: it looks for requests below ``control/<epoch>/``, does them in order, and answers.

Each request is done at most once, whoever dies: it is taken before anything is done (`RequestTaken`), the checkpoint
that it makes names it (`AnsweredRequest`), and its answer is written before the next one is taken. What an older run
has left without an answer gets one when a newer run begins: after its fence an older run can publish nothing any
more, and the manifests say whether it was done (`past`). See docs/internals/protocol.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import pyarrow as pa

from tidestate.recovery.control.past import RequestTicket, answer_of_past, run_ended
from tidestate.recovery.log.checkpoint import now_us
from tidestate.recovery.log.manifest import AnsweredRequest
from tidestate.recovery.log.records import RECORD_BYTES, decoded
from tidestate.recovery.log.requests import (
    BEGUN,
    CONTROL,
    ENDED,
    ControlAnswer,
    ControlListing,
    ControlRequest,
    ErrorRecord,
    GivenRows,
    ReprocessRequest,
    RequestAction,
    RequestTaken,
    RunBegun,
    RunEnd,
    answer_path,
    control_epochs,
    control_folder,
    request_path,
    taken_path,
)
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import ConflictError, CorruptionError, TidestateError, UsageError
from tidestate.statestore.storage.local import is_local
from tidestate.statestore.storage.objects import Objects

log = logging.getLogger("tidestate")

LOCAL_PAUSE_S, REMOTE_PAUSE_S = 0.5, 2.0
"""How often a run looks: each look lists one folder, which a remote storage counts as a request."""
LAST_TRIES = 3
"""How often a run that ends tries to write what it owes."""


@dataclass(frozen=True)
class RequestOutcome:
    """What a request that was done has given, see `ControlAnswer`."""

    rows: int | None = None
    text: str = ""


class AskedRun(Protocol):
    """A run as its requests see it. All of it is called on the thread of the watch."""

    def begun(self) -> RunBegun:
        """What others may know of the run."""

    def is_going_on(self) -> bool:
        """Whether the run takes requests; once not, the watch ends."""

    def execute(self, number: int, action: RequestAction, rows: pa.Table | None) -> RequestOutcome:
        """Do a request, between two batches. What it raises is the answer."""

    def give_way(self) -> None:
        """End the run if a newer one has taken over, which says that this one has ended: a run that waits for input
        would find out with its next batch only.
        """

    def answered(self) -> AnsweredRequest | None:
        """The newest request that has made a checkpoint."""

    def ended(self) -> RunEnd:
        """Why the run has ended."""


class RequestWatch:
    """Looks for requests to the run of writer ``epoch``, until `end`, or until the run goes on no more.

    It never stops a job: failures of storage are logged, and tried again with the next look.
    """

    def __init__(self, objects: Objects, epoch: int, run: AskedRun, *, pause_s: float | None = None) -> None:
        pause = LOCAL_PAUSE_S if is_local(objects.root) else REMOTE_PAUSE_S
        self._objects, self._epoch, self._run = objects, epoch, run
        self._pause_s = pause if pause_s is None else pause_s
        self._folder = control_folder(epoch)
        self._ended, self._pid = threading.Event(), os.getpid()
        self._thread = threading.Thread(target=self._watch, name="tidestate-requests", daemon=True)
        self._has_begun = self._warned = False
        self._done, self._owed = set[int](), dict[int, ControlAnswer]()

    def begin(self) -> None:
        """Look from now on, on a thread of its own."""
        self._thread.start()

    def end(self) -> None:
        """Take no more requests, and wait until the one that is being done is answered. While the run goes on, this
        does nothing; a request that ends the run calls it itself, and does not wait then. Idempotent.
        """
        if self._run.is_going_on():
            return
        self._ended.set()
        alone = self._pid == os.getpid() and self._thread is not threading.current_thread()
        if alone and self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        # A run that is over within the first pause writes nothing.
        self._ended.wait(min(LOCAL_PAUSE_S, self._pause_s))
        while not self._is_over():
            self._tried(self._look)
            self._ended.wait(self._pause_s)
        for _ in range(LAST_TRIES):
            if self._tried(self._finish):
                return

    def _is_over(self) -> bool:
        return self._ended.is_set() or not self._run.is_going_on()

    def _tried(self, act: Callable[[], None]) -> bool:
        """Whether it went well. The first of several failures in a row is logged."""
        try:
            act()
        except Exception as error:
            why = error if isinstance(error, TidestateError) else repr(error)
            level = logging.DEBUG if self._warned else logging.WARNING
            log.log(level, "requests to this job could not be read or answered, which is tried again: %s", why)
            self._warned = True
            return False
        self._warned = False
        return True

    def _look(self) -> None:
        if not self._has_begun:
            self._settle()
            self._create(f"{self._folder}/{BEGUN}", self._run.begun())
            self._has_begun = True
        listing = self._listing()
        if listing.has_ended:
            self._run.give_way()
            return
        for number in self._waiting(listing):
            if self._is_over():
                return
            self._serve(number)

    def _listing(self) -> ControlListing:
        """What the folder has, after what is owed was written."""
        self._pay()
        return ControlListing.of(self._objects.names(self._folder))

    def _waiting(self, listing: ControlListing) -> list[int]:
        """The requests that have no answer, in order."""
        return sorted(listing.requests - listing.answered - self._done)

    def _serve(self, number: int) -> None:
        """Take a request, do it and answer."""
        # Taken before anything is done: who dies from here on leaves a request that nobody does twice.
        if not self._take(number):
            withdrawn = UsageError("this request was withdrawn before it began", code="request-withdrawn")
            self._answer(number, error=withdrawn)
            return
        try:
            request = self._read(number)
            rows = self._rows(request)
            outcome = self._run.execute(number, request.action, rows)
        except Exception as error:
            log.warning("request %d could not be done: %s", number, error)
            self._answer(number, error=error)
        else:
            log.info("request %d was done: %s", number, type(request.action).__struct_config__.tag)
            self._answer(number, outcome)

    def _take(self, number: int) -> bool:
        """Whether the request is this run's: False if who asks has withdrawn it."""
        taken = RequestTaken(uuid.uuid4().hex, "run", now_us())
        return self._create(taken_path(self._epoch, number), taken)

    def _read(self, number: int) -> ControlRequest:
        path = request_path(self._epoch, number)
        try:
            return decoded(self._objects.read(path, RECORD_BYTES), path, ControlRequest)
        except CorruptionError as error:
            raise UsageError(
                "this request cannot be read by the version that runs the job: ask with the same version",
                code="request-unreadable",
                path=path,
                reason=error.message,
            ) from None

    def _rows(self, request: ControlRequest) -> pa.Table | None:
        """The rows that came along. Raises `CorruptionError` for a file that is not the one that was sent."""
        rows = request.action.rows if isinstance(request.action, ReprocessRequest) else None
        return None if rows is None else read_given_rows(self._objects, rows)

    def _answer(self, number: int, outcome: RequestOutcome | None = None, *, error: Exception | None = None) -> None:
        """Write an answer, or owe it: nothing else is taken before it is written."""
        newest, outcome = self._run.answered(), outcome or RequestOutcome()
        is_of_request = newest is not None and (newest.epoch, newest.number) == (self._epoch, number)
        self._done.add(number)
        self._owed[number] = ControlAnswer(
            uuid.uuid4().hex,
            now_us(),
            newest.checkpoint if is_of_request and newest is not None else 0,
            outcome.rows,
            outcome.text,
            ErrorRecord.of(error) if error is not None else None,
        )
        self._pay()

    def _pay(self) -> None:
        for number, answer in list(self._owed.items()):
            self._create(answer_path(self._epoch, number), answer)
            del self._owed[number]

    def _finish(self) -> None:
        """Refuse what came too late, then say that nothing more is answered."""
        if not self._has_begun:
            return
        end = self._run.ended()
        for number in self._waiting(self._listing()):
            self._take(number)
            self._answer(number, error=run_ended(self._epoch, end))
        self._create(f"{self._folder}/{ENDED}", end)

    def _settle(self) -> None:
        """Answer what older runs have not, before this run takes any request. Runs before one that is closed, or
        collected, were closed before.
        """
        older = [epoch for epoch in control_epochs(self._objects.names(CONTROL)) if epoch < self._epoch]
        for epoch in reversed(older):
            names = self._objects.names(control_folder(epoch))
            listing = ControlListing.of(names)
            if listing.has_ended or not names:
                return
            for number in sorted(listing.requests - listing.answered):
                self._create(answer_path(epoch, number), answer_of_past(self._objects, RequestTicket(epoch, number)))
            end = RunEnd(uuid.uuid4().hex, now_us(), "lost")
            self._create(f"{control_folder(epoch)}/{ENDED}", end)

    def _create(self, path: str, record: msgspec.Struct) -> bool:
        """Whether the name was free."""
        with contextlib.suppress(ConflictError):
            self._objects.create(path, msgspec.json.encode(record))
            return True
        return False


def read_given_rows(objects: Objects, given: GivenRows) -> pa.Table:
    """The rows of a request. Raises `CorruptionError` or `NotFoundError`."""
    data = objects.read(given.path)
    if len(data) != given.bytes or checksum(data) != given.checksum:
        raise CorruptionError(
            "the rows of a request are damaged: nothing was done; ask again",
            code="record-damaged",
            path=given.path,
        )
    return pa.ipc.open_file(pa.BufferReader(data)).read_all().replace_schema_metadata(None)
