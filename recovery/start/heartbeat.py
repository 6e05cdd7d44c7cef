"""A running driver's heartbeat: a lease in the root, renewed by a thread."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable

import msgspec

from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.lease import DURATION_US, LEASE_FOLDER, Lease, clear_leases, this_process
from tidestate.recovery.log.traces import note
from tidestate.statestore.errors import TidestateError

log = logging.getLogger("tidestate")

EVERY_S = DURATION_US / 3e6
"""How often a lease is renewed: it survives two failed renewals."""


class Heartbeat:
    """Keeps the lease of a writer epoch. It never stops a job: failures are logged.

    ``still`` is called before each renewal, on the thread; once it returns false the lease is removed. ``waiting``
    returns since when the sink has refused deliveries, for the lease.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        epoch: int,
        *,
        still: Callable[[], bool] = lambda: True,
        waiting: Callable[[], int | None] = lambda: None,
        every_s: float = EVERY_S,
    ) -> None:
        self._checkpoint, self._epoch, self._every_s = checkpoint, epoch, every_s
        self._still, self._waiting = still, waiting
        self._numbers = itertools.count(1)
        self._keeper: _LeaseKeeper | None = None
        self._first = True

    def begin(self) -> None:
        """Keep a lease until `end` or until this object is deleted; remove leases of older epochs. Idempotent."""
        if self._keeper is not None and not self._keeper.ended.is_set():
            return
        if self._first:
            with _only_logged("the leases of older runs could not be removed"):
                clear_leases(self._checkpoint, self._epoch)
        self._first = False
        keeper = _LeaseKeeper(self._checkpoint, self._epoch, self._numbers, self._still, self._waiting, self._every_s)
        keeper.write()
        # The thread removes the lease, for garbage collection may run anywhere. At exit nothing needs to: its process
        # ends.
        weakref.finalize(self, keeper.ended.set).atexit = False
        threading.Thread(target=keeper.run, name="tidestate-heartbeat", daemon=True).start()
        self._keeper = keeper

    def end(self) -> None:
        """Remove the lease, if it is still there."""
        if self._keeper is not None:
            self._keeper.end()


class _LeaseKeeper:
    """What the thread refers to: not the `Heartbeat`, whose deletion ends it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        epoch: int,
        numbers: itertools.count[int],
        still: Callable[[], bool],
        waiting: Callable[[], int | None],
        every_s: float,
    ) -> None:
        self.ended = threading.Event()
        self._checkpoint, self._epoch, self._numbers = checkpoint, epoch, numbers
        self._still, self._waiting, self._every_s = still, waiting, every_s
        self._since_us, self._pid = now_us(), os.getpid()
        self._path: str | None = None
        self._giving = threading.Lock()

    def run(self) -> None:
        while not self.ended.wait(self._every_s):
            with _only_logged("the lease of this run could not be renewed"):
                if not self._still() or self._taken():
                    self.ended.set()
                else:
                    self._note()
                    self.write()
        self._give_back()

    def write(self) -> None:
        """Write a newer lease under a fresh name, then remove the older one."""
        writer, waiting = self._checkpoint.writer, self._waiting()
        lease = Lease(this_process(), self._epoch, writer, self._since_us, now_us(), waiting_us=waiting)
        path, older = f"{LEASE_FOLDER}/{self._epoch}-{next(self._numbers)}.json", self._path
        with _only_logged("the lease of this run could not be written"):
            self._checkpoint.objects.note(path, msgspec.json.encode(lease))
            self._path = path
        if self._path != older:
            self._remove(older)
        if self.ended.is_set():  # meanwhile: `end` removed the older path only
            self._remove(path)

    def end(self) -> None:
        if os.getpid() == self._pid:  # not in a forked process, which has a copy of this object
            self.ended.set()
            self._give_back()

    def _give_back(self) -> None:
        """Remove the lease once, from whichever thread is first."""
        with self._giving:
            path, self._path = self._path, None
        if path is None:
            return
        with _only_logged("the id of the newest checkpoint could not be written to the lease of this run"):
            if self._checkpoint.objects.exists(path):  # otherwise a newer run has taken over
                self._note()
        self._remove(path)

    def _note(self) -> None:
        """Leave a trace of the newest checkpoint that this run published."""
        if self._checkpoint.published:
            note(self._checkpoint.objects, self._checkpoint.published)

    def _taken(self) -> bool:
        """Whether our lease was removed: by a newer run, which has fenced us, or with the whole root."""
        return self._path is not None and not self._checkpoint.objects.exists(self._path)

    def _remove(self, path: str | None) -> None:
        if path is not None:
            with _only_logged("a lease could not be removed: it expires by itself"):
                self._checkpoint.objects.delete(path)


class _only_logged(contextlib.AbstractContextManager[None]):  # noqa: N801  read as a statement
    """Log errors as warnings."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, Exception):
            log.warning("%s: %s", self._what, error if isinstance(error, TidestateError) else repr(error))
            return True
        return False
