"""Leases: a running driver keeps a file in the root and renews it.

Correctness does not depend on leases or on any clock: the fence decides. A lease only keeps a second driver, or a
verb, from taking over a job that runs. Its age is what the storage says of its file, so the clocks of the hosts may
differ; only where a storage does not tell, they must agree to within some seconds.
"""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.manifest import Natural, TimeUs, lease_names
from tidestate.recovery.log.records import RECORD_BYTES, decoded
from tidestate.statestore.decoding import prepare
from tidestate.statestore.errors import CorruptionError, NotFoundError, TidestateError, UsageError

log = logging.getLogger("tidestate")

LEASE_FOLDER = "alive"
DURATION_US = 30_000_000
"""How long a lease counts after its last renewal, unless its process has ended on this host."""


class Process(msgspec.Struct, frozen=True):
    """A process by pid and start time, so that its host can check whether it is alive.

    ``space`` is the pid namespace and boot of the host, ``started`` in ticks since that boot; empty and 0 where the
    system does not provide them.
    """

    host: str
    pid: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    space: str = ""
    started: Natural = 0

    def ended(self) -> bool:
        """Whether it has certainly ended; always false for a process of another host."""
        this = this_process()
        if (self.host, self.space) != (this.host, this.space) or os.name != "posix":
            return False
        began = _started(self.pid)
        return not _exists(self.pid) or began < 0 or bool(self.started and began and self.started != began)


class Lease(msgspec.Struct, frozen=True):
    """Which driver was running at ``written_us``, since when, and under which writer epoch.

    ``waiting_us``: since when its sink has refused deliveries, None if it accepts them.
    """

    process: Process
    epoch: Natural
    writer: str
    since_us: TimeUs
    written_us: TimeUs
    duration_us: Natural = DURATION_US
    waiting_us: int | None = None

    def left_us(self, age_us: int) -> int:
        """How long it still counts if it was written so long ago; 0 once it has expired, or its process has ended on
        this host.
        """
        left = max(0, self.duration_us - age_us)
        return 0 if left and self.process.ended() else left

    def who(self) -> str:
        """The process that holds the lease and its host, as errors name them."""
        return f"process {self.process.pid} on {self.process.host}"


prepare(Lease)


def running(checkpoint: Checkpoint) -> Lease | None:
    """The lease of the driver that runs this job, by the newest epoch; None if there is none."""
    return _newest_left(checkpoint)[0]


def _newest_left(checkpoint: Checkpoint) -> tuple[Lease | None, int]:
    """The lease of the newest epoch that counts, and for how long."""
    left = [(lease, _left_us(checkpoint, path, lease)) for path, lease in all_leases(checkpoint).items()]
    valid = [(lease, left_us) for lease, left_us in left if left_us]
    return max(valid, key=lambda pair: (pair[0].epoch, pair[0].written_us), default=(None, 0))


def _left_us(checkpoint: Checkpoint, path: str, lease: Lease) -> int:
    try:
        age_us = checkpoint.objects.age_us(path)
    except NotFoundError:  # given back, or renewed under another name
        return 0
    return lease.left_us(now_us() - lease.written_us if age_us is None else age_us)


def check_idle(checkpoint: Checkpoint, force: bool = False, *, instead: str = "force=True") -> None:
    """Raise `UsageError` (``running``) while a driver runs this job, unless ``force``.

    Called before a move appends a manifest, which fences the driver. ``instead`` is what the user sets to force it;
    empty where nothing does.
    """
    lease, left_us = (None, 0) if force else _newest_left(checkpoint)
    if lease is None:
        return
    left, hosts = -(-left_us // 1_000_000), "" if checkpoint.objects.tells_age else " (if the hosts' clocks agree)"
    waits = f"wait {left} s{hosts} if it has died"
    advice = f"stop it, {waits}, or use {instead}, which fences it" if instead else f"stop it, or {waits}"
    raise UsageError(
        f"a driver is running this job: {advice}",
        code="running",
        host=lease.process.host,
        pid=lease.process.pid,
        seconds=max(0, now_us() - lease.since_us) // 1_000_000,
    )


def all_leases(checkpoint: Checkpoint) -> dict[str, Lease]:
    """All leases by the path of their file, expired ones too. Files that cannot be read are skipped: a crash may
    leave a torn one, and leases disappear at any time.
    """
    found = {}
    for name in lease_names(checkpoint.objects.names(LEASE_FOLDER)):
        with suppress(NotFoundError, CorruptionError):
            path = f"{LEASE_FOLDER}/{name}"
            found[path] = decoded(checkpoint.objects.read(path, RECORD_BYTES), path, Lease)
    return found


def clear_leases(checkpoint: Checkpoint, epoch: int) -> None:
    """Remove the leases of older epochs: they are fenced."""
    for path, lease in all_leases(checkpoint).items():
        if lease.epoch < epoch:
            with suppress(TidestateError):
                checkpoint.objects.delete(path)


@cache
def _own(pid: int) -> Process:
    return Process(socket.gethostname(), pid, _space(), _started(pid))


def this_process() -> Process:
    """The host and process id of this process."""
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
    """When a process started, in ticks since boot; -1 if it has ended, 0 where the system does not provide it."""
    try:
        # The name, in brackets, may contain anything; the fields follow it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0 if not Path("/proc/self/stat").exists() else -1
    except OSError:
        return 0
    return -1 if fields[0] in "ZX" else int(fields[19])
