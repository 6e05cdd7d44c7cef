"""Whether this process sees at the root what another process says it has written there.

The hosts of a job may have different folders under one path: a local path given to a cluster, a mount that is missing
on one host, an endpoint that differs. What is written there is durable and out of reach. So nothing is published that
names a file which the publishing process has not seen, with the size that its writer reported.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from tidestate.recovery.log.prefetch import prefetch
from tidestate.recovery.log.traces import PROBES
from tidestate.statestore.errors import NotFoundError, UsageError
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.storage.objects import Objects

VISIBILITY_TIMEOUT_S = 2.0
"""How long a name may take to appear: network file systems remember for a moment which names are missing."""

ADVICE = "give a root that the driver and all executors share: s3://, or a network file system mounted on every host"


@dataclass(frozen=True)
class WrittenFile:
    """A file and the host of the process that says it has written it."""

    host: str
    ref: FileRef


def check_visible(objects: Objects, files: Iterable[WrittenFile], patience_s: float = VISIBILITY_TIMEOUT_S) -> None:
    """Raise `UsageError` (``file-unseen``) unless every file is here with its size.

    Cost: a stat or HEAD each, many at once.
    """
    until = time.monotonic() + patience_s

    def found(written: WrittenFile) -> int | None:
        return _size(objects, written.ref.path, written.ref.bytes, until)

    for written, size in prefetch(found, files):
        if size() != written.ref.bytes:
            raise UsageError(
                "a file that an executor has written is not at the driver's root, or has another size there, so "
                f"nothing was published: {ADVICE}",
                code="file-unseen",
                host=written.host,
                root=objects.root,
                path=written.ref.path,
                expected=written.ref.bytes,
                found=size(),
            )


def _size(objects: Objects, path: str, expected: int, until: float) -> int | None:
    """The size of an object, None where there is none: the expected one as soon as it is seen, else what is there at
    ``until`` on the monotonic clock.
    """
    pause = 0.05
    while True:
        try:
            size = objects.size(path)
        except NotFoundError:
            size = None
        if size == expected or time.monotonic() >= until:
            return size
        time.sleep(pause)
        pause *= 2


@dataclass(frozen=True)
class Probe:
    """A file with random content that one process leaves at the root for another to find.

    Its name is that of any file of the checkpoint to come, so what a process that died leaves is collected as those.
    """

    path: str
    content: str

    @classmethod
    def leave(cls, objects: Objects, checkpoint_id: int) -> Probe:
        """Write one. Raises `UnavailableError`."""
        probe = cls(f"{PROBES}/{checkpoint_id:020d}-{uuid.uuid4().hex}.txt", uuid.uuid4().hex)
        objects.note(probe.path, probe.content.encode())
        return probe

    def seen(self, objects: Objects, patience_s: float = VISIBILITY_TIMEOUT_S) -> bool:
        """Whether this process finds it, size and content. Raises `UnavailableError`."""
        size = _size(objects, self.path, len(self.content), time.monotonic() + patience_s)
        return size == len(self.content) and objects.read(self.path) == self.content.encode()
