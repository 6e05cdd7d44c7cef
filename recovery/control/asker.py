"""The end of who asks: it numbers a request, waits for its answer, and raises the errors of the run again.

It needs three things of the root, `ControlFiles`, so whoever cannot reach it may bring them another way: to list a
folder, to read a file and to create one. Whether a run still lives is read from its lease, by the name that changes
with each renewal, so no clock of another host counts.

Where a run has died, the manifests say whether it has done the request, once it can publish nothing more: after the
fence of a newer run, or its own ``end.json``. Until then a request is withdrawn, unless the run had taken it: what it
has not published might still be, if only by a storage that carries out a request late.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import pyarrow as pa

from tidestate.recovery.control.past import (
    ControlFiles,
    RequestTicket,
    answer_of_past,
    done_by,
    newest_manifest,
    run_ended,
)
from tidestate.recovery.log.checkpoint import now_us
from tidestate.recovery.log.lease import DURATION_US, LEASE_FOLDER, Lease, Process, this_process
from tidestate.recovery.log.manifest import lease_names
from tidestate.recovery.log.records import RECORD_BYTES, decoded
from tidestate.recovery.log.requests import (
    BEGUN,
    ENDED,
    ControlAnswer,
    ControlListing,
    ControlRequest,
    GivenRows,
    ReprocessRequest,
    RequestAction,
    RequestTaken,
    RunBegun,
    RunEnd,
    answer_path,
    control_folder,
    request_path,
    taken_path,
)
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import (
    CommitUnknownError,
    ConflictError,
    CorruptionError,
    NotFoundError,
    UnavailableError,
    UsageError,
)

_T = TypeVar("_T")

PAUSE_S, CHECK_S = 0.2, 1.0
"""How often an asker looks for its answer, and whether the run lives."""
BEGIN_S = 5.0
"""How long a run that has just taken its lease may be without a word."""
UNSEEN_S = DURATION_US / 1e6
"""A lease of which no renewal was seen for so long counts no more."""


@dataclass
class _Sighting:
    """The lease of a run as it was seen last, and when, by the clock of this process."""

    seen_s: float
    name: str = ""
    process: Process | None = None


class Asker:
    """Asks the run that a root has now. Several may ask at a time; what is asked is done in the order of numbers."""

    def __init__(
        self,
        files: ControlFiles,
        *,
        pause_s: float = PAUSE_S,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files, self._pause_s, self._wait, self._clock = files, pause_s, wait, clock

    def run(self) -> RunBegun:
        """The run that can be asked, which may have begun a moment ago. Raises `UsageError`: ``not-running``, or
        ``not-asked`` for one that takes no requests.
        """
        until_s = self._clock() + BEGIN_S
        while True:
            try:
                return self._run()
            except UsageError as error:
                if error.code != "not-asked" or self._clock() >= until_s:
                    raise
            self._wait(PAUSE_S)

    def _run(self) -> RunBegun:
        leases = lease_names(self._files.names(LEASE_FOLDER))
        if not leases:
            raise _not_running()
        name = max(leases, key=_order)
        epoch, process = _epoch_of(name), self._process(name)
        listing = self._listing(epoch)
        if listing.has_ended or (process is not None and process.ended()):
            raise _not_running()
        if not listing.has_begun:
            raise UsageError(
                "the run takes no requests, or none yet: one that has just started delivers first what was left; an "
                "operator by hand and versions before requests take none",
                code="not-asked",
                epoch=epoch,
            )
        return self._record(f"{control_folder(epoch)}/{BEGUN}", RunBegun)

    def check_same(self, run: RunBegun) -> None:
        """Raise `ConflictError` (``plan-moved``) unless this run is still the one that is asked."""
        newest = self.run()
        if newest.id != run.id:
            raise ConflictError(
                "another run has taken over since this was planned: nothing was asked; make a new plan",
                code="plan-moved",
                planned_on=run.epoch,
                newest=newest.epoch,
            )

    def end(self, epoch: int) -> RunEnd | None:
        """How a run has ended; None if it has not said so."""
        with suppress(NotFoundError):
            return self._record(f"{control_folder(epoch)}/{ENDED}", RunEnd)
        return None

    def ask(
        self, action: RequestAction, rows: pa.Table | None = None, *, timeout_s: float | None = None
    ) -> ControlAnswer:
        """Ask the run and wait for its answer. Raises the error of the run, and as `run` and `answer`."""
        return self.answer(self.submit(action, rows), timeout_s=timeout_s)

    def submit(self, action: RequestAction, rows: pa.Table | None = None) -> RequestTicket:
        """Make a request, and do not wait. ``rows`` are for a `ReprocessRequest`. Raises as `run`."""
        epoch = self.run().epoch
        id_ = uuid.uuid4().hex
        if rows is not None:
            if not isinstance(action, ReprocessRequest):
                raise UsageError("rows can be given to a reprocess request only", code="argument", parameter="rows")
            action = msgspec.structs.replace(action, rows=self._give(epoch, id_, rows))
        # The rows are there before the request: a run never sees a request whose rows are still being written.
        data = msgspec.json.encode(ControlRequest(id_, now_us(), this_process(), action))
        while True:
            number = self._listing(epoch).next_number
            try:
                self._files.create(request_path(epoch, number), data)
            except ConflictError:
                continue  # another asker was faster
            return RequestTicket(epoch, number)

    def answer(self, ticket: RequestTicket, *, timeout_s: float | None = None) -> ControlAnswer:
        """Wait for the answer of a request, by whoever it was made. Raises the error of the run, and

        - `UsageError` (``run-ended``): the run has ended without doing it
        - `UnavailableError` (``request-waits``): it did not begin within ``timeout_s``, and is withdrawn
        - `CommitUnknownError` (``request-open``): it has begun, and its outcome is not known yet
        - `CommitUnknownError` (``request-unknown``): it is not known any more: the manifests were collected
        """
        began_s = next_s = self._clock()
        sighting = _Sighting(seen_s=began_s)
        while True:
            answer = self._answer(ticket)
            if answer is not None:
                return _raised(answer)
            if self._clock() >= next_s:
                next_s = self._clock() + CHECK_S
                if self._is_over(ticket.epoch):
                    # Read again: a run answers before it says that it has ended, and a newer one before that.
                    return _raised(self._answer(ticket) or answer_of_past(self._files, ticket))
                if not self._lives(ticket.epoch, sighting):
                    return _raised(self._withdrawn(ticket, run_ended(ticket.epoch)))
            if timeout_s is not None and self._clock() - began_s >= timeout_s:
                return _raised(self._withdrawn(ticket, _waits(ticket)))
            self._wait(self._pause_s)

    def _give(self, epoch: int, id_: str, rows: pa.Table) -> GivenRows:
        """Write rows next to a request that is about to be made. The bytes name it, so that they are no other's."""
        sink = pa.BufferOutputStream()
        marked = rows.replace_schema_metadata({"tidestate.request": id_})
        with pa.ipc.new_file(sink, marked.schema) as writer:
            writer.write_table(marked)
        data = sink.getvalue().to_pybytes()
        path = f"{control_folder(epoch)}/{id_}.arrow"
        self._files.create(path, data)
        return GivenRows(path, len(data), checksum(data))

    def _listing(self, epoch: int) -> ControlListing:
        return ControlListing.of(self._files.names(control_folder(epoch)))

    def _process(self, name: str) -> Process | None:
        """Who holds a lease; None for one that is torn, or gone since it was listed."""
        with suppress(NotFoundError, CorruptionError):
            return self._record(f"{LEASE_FOLDER}/{name}", Lease).process
        return None

    def _answer(self, ticket: RequestTicket) -> ControlAnswer | None:
        with suppress(NotFoundError):
            return self._record(answer_path(ticket.epoch, ticket.number), ControlAnswer)
        return None

    def _record(self, path: str, kind: type[_T]) -> _T:
        return decoded(self._files.read(path, RECORD_BYTES), path, kind)

    def _is_over(self, epoch: int) -> bool:
        """Whether the run can publish nothing more that a request makes."""
        if self._listing(epoch).has_ended:
            return True
        leases = lease_names(self._files.names(LEASE_FOLDER))
        if leases and max(map(_epoch_of, leases)) == epoch:
            return False
        return newest_manifest(self._files).epoch > epoch

    def _lives(self, epoch: int, sighting: _Sighting) -> bool:
        """Whether the lease was renewed within the time that one counts, and its process has not ended here."""
        leases = lease_names(self._files.names(LEASE_FOLDER))
        newest = max((name for name in leases if _epoch_of(name) == epoch), default="", key=_order)
        if newest and newest != sighting.name:
            sighting.name, sighting.seen_s = newest, self._clock()
            sighting.process = self._process(newest)
        if newest and sighting.process is not None and sighting.process.ended():
            return False
        return self._clock() - sighting.seen_s < UNSEEN_S

    def _withdrawn(self, ticket: RequestTicket, why: UsageError | UnavailableError) -> ControlAnswer:
        """Withdraw a request, and raise ``why``. If the run had taken it: its answer, or `CommitUnknownError`."""
        # Whoever creates this name has the request: a run that comes later finds it taken, and does nothing.
        mark = RequestTaken(uuid.uuid4().hex, "asker", now_us())
        try:
            self._files.create(taken_path(ticket.epoch, ticket.number), msgspec.json.encode(mark))
        except ConflictError:
            answer = self._answer(ticket)
            if answer is not None:
                return answer
            if (answered := done_by(self._files, ticket)) is not None:
                return ControlAnswer(mark.id, now_us(), answered.checkpoint)
            if self._record(taken_path(ticket.epoch, ticket.number), RequestTaken).by == "asker":
                raise why from None  # another asker, or this one before, has withdrawn it
            raise CommitUnknownError(
                "the run has begun with this request, and has not answered: ask for the answer by its number later, "
                "which is known at the latest once the job was started again",
                code="request-open",
                epoch=ticket.epoch,
                number=ticket.number,
            ) from None
        raise why


def _order(lease: str) -> tuple[int, int]:
    """The writer epoch in the name of a lease, and how often it was renewed."""
    epoch, _, renewals = lease.removesuffix(".json").partition("-")
    return int(epoch), int(renewals)


def _epoch_of(lease: str) -> int:
    return _order(lease)[0]


def _raised(answer: ControlAnswer) -> ControlAnswer:
    """The answer; raises its error."""
    if answer.error is not None:
        raise answer.error.error()
    return answer


def _not_running() -> UsageError:
    return UsageError("no run of this job can be asked: none is running here", code="not-running")


def _waits(ticket: RequestTicket) -> UnavailableError:
    return UnavailableError(
        "the run has not begun with this request in time, and it is withdrawn: a batch takes longer, or a sink is "
        "waited for; ask again, with more time",
        code="request-waits",
        epoch=ticket.epoch,
        number=ticket.number,
    )
