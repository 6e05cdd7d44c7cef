"""Whether this process can read at the root what another process has written there.

The hosts of a job may have different folders under one path: a local path on a cluster, a mount that is missing on
one host, a different endpoint. Files written there are durable but out of reach. So a file is published only after
the publishing process has found it, with the size that its writer reported.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidestate.recovery.log.prefetch import prefetch
from tidestate.recovery.log.traces import PROBES
from tidestate.statestore.errors import NotFoundError, UsageError
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.storage.objects import Objects

VISIBILITY_TIMEOUT_S = 2.0
"""How long a name may take to appear: network file systems cache missing names for a moment."""

ADVICE = "use a root that the driver and all executors share: s3://, or a network file system mounted on every host"


@dataclass(frozen=True)
class WrittenFile:
    """A file and the host of the process that wrote it."""

    host: str
    ref: FileRef


def check_visible(
    objects: Objects,
    files: Iterable[WrittenFile],
    patience_s: float = VISIBILITY_TIMEOUT_S,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Raise `UsageError` (``file-unseen``) unless every file is found with its size.

    ``pause`` waits so many seconds between two looks at a file. Cost: one stat or HEAD for each file, many at a time.
    """
    until = time.monotonic() + patience_s

    def found(written: WrittenFile) -> int | None:
        return _size(objects, written.ref.path, written.ref.file_bytes, until, pause)

    for written, size in prefetch(found, files):
        if size() != written.ref.file_bytes:
            raise UsageError(
                "a file that an executor has written is missing below the driver's root, or has a different size "
                f"there, so nothing was published: {ADVICE}",
                code="file-unseen",
                host=written.host,
                root=objects.root,
                path=written.ref.path,
                expected=written.ref.file_bytes,
                found=size(),
            )


def _size(
    objects: Objects, path: str, expected: int, until: float, pause: Callable[[float], None] = time.sleep
) -> int | None:
    """The size of an object, None if there is none: the expected size as soon as it is found, or else the size at
    ``until`` on the monotonic clock.
    """
    pause_s = 0.05
    while True:
        try:
            size = objects.size(path)
        except NotFoundError:
            size = None
        if size == expected or time.monotonic() >= until:
            return size
        pause(pause_s)
        pause_s *= 2


@dataclass(frozen=True)
class Probe:
    """A file with random content that one process writes at the root for another to find.

    It is named like a file of the next checkpoint, so a probe that a crash leaves behind is collected like one.
    """

    path: str
    content: str

    @classmethod
    def leave(cls, objects: Objects, checkpoint_id: int) -> Probe:
        """Write a probe. Raises `UnavailableError`."""
        probe = cls(f"{PROBES}/{checkpoint_id:020d}-{uuid.uuid4().hex}.txt", uuid.uuid4().hex)
        objects.note(probe.path, probe.content.encode())
        return probe

    def seen(self, objects: Objects, patience_s: float = VISIBILITY_TIMEOUT_S) -> bool:
        """Whether this process finds it with its size and content. Raises `UnavailableError`."""
        size = _size(objects, self.path, len(self.content), time.monotonic() + patience_s)
        return size == len(self.content) and objects.read(self.path) == self.content.encode()
