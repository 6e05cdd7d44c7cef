"""Retention as part of a running job: a thread collects, with the same `collect` as ``tidestate gc``.

It never stops a job and never holds up a batch: what fails is logged, counted, and tried again later. A collection
may die anywhere, so nothing waits for it but `Upkeep.end`, for a moment.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from dataclasses import replace

from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.summary import pluralize, size_text
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention, Upkept
from tidestate.statestore.errors import TidestateError

log = logging.getLogger("tidestate")

LEAST_PAUSE_S = 60.0
"""The shortest pause between two collections."""
TIMES_AS_LONG = 20
"""A pause is at least so many times as long as the collection before it, which reads every kept manifest."""
LONGEST_END_S = 10.0
"""How long the end of a job waits for a collection that runs."""


class Upkeep:
    """Collects the root of a running job of writer epoch ``epoch``: at `begin`, and after checkpoints."""

    def __init__(self, checkpoint: Checkpoint, epoch: int, retention: CheckpointRetention) -> None:
        self._checkpoint, self._epoch = checkpoint, epoch
        self._retention, self._collector = retention, _Collector()

    @property
    def done(self) -> Upkept:
        """What this run has collected so far."""
        return self._collector.done

    def begin(self) -> None:
        """Collect on a thread, until `end` or until this object is deleted. Idempotent."""
        if self._collector.running:
            return
        # Of its own: a checkpoint object is used by one thread.
        own = Checkpoint(self._checkpoint.objects, self._checkpoint.marker)
        self._collector = _Collector(self._collector.done)
        self._collector.start(own, self._epoch, self._retention)
        weakref.finalize(self, self._collector.end).atexit = False

    def published(self) -> None:
        """There is a new checkpoint, so an older one may go."""
        self._collector.due.set()

    def end(self) -> None:
        """Begin no more collections; waits for a running one, but no longer than `LONGEST_END_S`. Idempotent."""
        self._collector.end()
        self._collector.join()


class _Collector:
    """What the thread refers to: not the `Upkeep`, whose deletion ends it."""

    def __init__(self, done: Upkept | None = None) -> None:
        self.done, self.due, self._ended = done or Upkept(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @property
    def running(self) -> bool:
        """Whether a retention is set and the upkeep has not been ended."""
        return self._thread is not None and self._thread.is_alive() and not self._ended.is_set()

    def start(self, checkpoint: Checkpoint, epoch: int, retention: CheckpointRetention) -> None:
        self.due.set()
        arguments = (checkpoint, epoch, retention)
        self._thread = threading.Thread(target=self._run, args=arguments, name="tidestate-retention", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self.due.set()

    def join(self) -> None:
        if self._thread is not None and self._pid == os.getpid():  # a forked process has no such thread
            self._thread.join(LONGEST_END_S)

    def _run(self, checkpoint: Checkpoint, epoch: int, retention: CheckpointRetention) -> None:
        while True:
            self.due.wait()
            if self._ended.is_set():
                return
            self.due.clear()
            began = time.monotonic()
            if not self._collect(checkpoint, epoch, retention):
                return
            if self._ended.wait(max(LEAST_PAUSE_S, TIMES_AS_LONG * (time.monotonic() - began))):
                return

    def _collect(self, checkpoint: Checkpoint, epoch: int, retention: CheckpointRetention) -> bool:
        """One collection. False if a newer run has taken over: what is kept is its choice from then on."""
        began = time.monotonic()
        try:
            head = checkpoint.newest()
            if head is not None and head.manifest.epoch != epoch:
                return False
            found = collect(checkpoint, retention)
        except Exception as error:
            why = error if isinstance(error, TidestateError) else repr(error)
            log.warning("old checkpoints could not be deleted: this is tried again later: %s", why)
            self.done = replace(self.done, failures=self.done.failures + 1)
            return True
        count = (len(found.checkpoints), len(found.files), found.bytes)
        self.done = self.done.after(*count, at_us=now_us(), seconds=time.monotonic() - began)
        if found.checkpoints or found.files:
            log.info(
                "retention: deleted %s and %s, %s, in %.1f s",
                pluralize(len(found.checkpoints), "checkpoint"),
                pluralize(len(found.files), "file"),
                size_text(found.bytes),
                self.done.last_s,
            )
        return True
