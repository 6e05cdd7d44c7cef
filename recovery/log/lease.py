"""Who is running: a driver leaves a word in the root while it lives, and renews it.

No exactness rests on this, nor on any clock: the fence decides. A lease only spares two drivers a fight that one of
them must lose, and keeps a verb from taking over a job that works.
"""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from tidestate.recovery.log import names
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.records import RECORD_BYTES, decoded
from tidestate.recovery.log.validation import InvalidManifest, check_natural, check_times, require
from tidestate.statestore.errors import CorruptionError, NotFoundError, TidestateError, UsageError

log = logging.getLogger("tidestate")

LEASE_FOLDER = "alive"
DURATION_US = 30_000_000
"""How long a driver of another host is believed to live after it was last heard of."""


class Process(msgspec.Struct, frozen=True):
    """A process, so that its host can say whether it lives: by pid and start, in the same namespace of pids.

    ``space`` is that namespace since the host's last boot, ``started`` in ticks since then; empty and 0 where the
    system does not say.
    """

    host: str
    pid: int
    space: str = ""
    started: int = 0

    def ended(self) -> bool:
        """Whether it is certainly not there any more; of other hosts nobody knows."""
        own = this_process()
        if (self.host, self.space) != (own.host, own.space) or os.name != "posix":
            return False
        began = _started(self.pid)
        return not _exists(self.pid) or began < 0 or bool(self.started and began and self.started != began)


class Lease(msgspec.Struct, frozen=True):
    """A driver's word that it lived at ``written_us``: who, since when, under which writer epoch.

    ``waiting_us``: since when its sink has refused what it is offered, None where it does not.
    """

    process: Process
    epoch: int
    writer: str
    since_us: int
    written_us: int
    duration_us: int = DURATION_US
    waiting_us: int | None = None

    def left_us(self, now: int) -> int:
        """For how long yet it counts; 0 when it has run out, or its process has ended on this host."""
        left = max(0, self.written_us + self.duration_us - now)
        return 0 if left and self.process.ended() else left

    def who(self) -> str:
        """For people."""
        return f"process {self.process.pid} on {self.process.host}"


def running(checkpoint: Checkpoint) -> Lease | None:
    """The driver that runs this checkpoint, by the newest epoch; None where nobody has said so lately."""
    now = now_us()
    alive = [lease for lease in all_leases(checkpoint).values() if lease.left_us(now)]
    return max(alive, key=lambda one: (one.epoch, one.written_us), default=None)


def check_idle(checkpoint: Checkpoint, force: bool = False, *, instead: str = "--force") -> None:
    """Raise `UsageError` (``running``) while a driver is at work here, unless ``force``; nothing is changed.

    For whoever would append a manifest and so fence that driver. ``instead`` is how its user insists.
    """
    lease = None if force else running(checkpoint)
    if lease is None:
        return
    left = -(-lease.left_us(now_us()) // 1_000_000)
    raise UsageError(
        f"a driver is at work on this checkpoint: stop it, wait {left} s if it has died, "
        f"or say {instead}, which fences it",
        code="running",
        host=lease.process.host,
        pid=lease.process.pid,
        seconds=(now_us() - lease.since_us) // 1_000_000,
    )


def all_leases(checkpoint: Checkpoint) -> dict[str, Lease]:
    """All leases by the path of their file, those that have run out too. What cannot be read is none: a crash may
    leave a torn one, and they go while we look.
    """
    found = {}
    for name in names.lease_names(checkpoint.objects.names(LEASE_FOLDER)):
        with suppress(NotFoundError, CorruptionError, InvalidManifest):
            path = f"{LEASE_FOLDER}/{name}"
            lease = decoded(checkpoint.objects.read(path, RECORD_BYTES), path, Lease)
            _check(lease)
            found[path] = lease
    return found


def clear_leases(checkpoint: Checkpoint, epoch: int) -> None:
    """Remove the leases of older epochs: they are fenced."""
    for path, lease in all_leases(checkpoint).items():
        if lease.epoch < epoch:
            with suppress(TidestateError):
                checkpoint.objects.delete(path)


def _check(lease: Lease) -> None:
    """Raise `Unsound` unless a lease can be one of ours."""
    require(1 <= lease.process.pid < 2**31, "pid")
    for count in (lease.epoch, lease.duration_us, lease.process.started):
        check_natural(count, "a number")
    check_times((lease.since_us, lease.written_us), "a time")


@cache
def _own(pid: int) -> Process:
    return Process(socket.gethostname(), pid, _space(), _started(pid))


def this_process() -> Process:
    """Ours."""
    return _own(os.getpid())


def _space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True


def _started(pid: int) -> int:
    """When a process began, in ticks since boot; -1 for one that has ended, 0 where the system does not say."""
    try:
        # The name, in brackets, may hold anything; the fields are behind it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0 if not Path("/proc/self/stat").exists() else -1
    except OSError:
        return 0
    return -1 if fields[0] in "ZX" else int(fields[19])
