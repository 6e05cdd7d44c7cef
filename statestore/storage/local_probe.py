"""Whether the file system of a folder creates a name once. What is known of its type decides, else a try.

The two things that a root needs of a file system, besides files that stay: a hard link fails when its name is taken,
and a rename replaces what was there. Network drives and FUSE programs may refuse links, or overwrite.
"""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.mounts import (
    BELIEVED,
    NETWORK,
    Mount,
    instead_of,
    mount_at,
    mounts_of,
    name_of,
    refusal_of,
)

LINKERS = 4
LINK_ROUNDS = 3
"""How many threads link how many names at once."""

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_MOUNTS = Path("/proc/self/mounts")

_sound: set[str] = set()
"""Folders that this process has found fit for a root."""


def mount_of(folder: str) -> Mount | None:
    """The mount of a folder, also of one that is yet to be made; None where this system has no list of mounts."""
    try:
        text = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return None
    return mount_at(os.path.realpath(folder), mounts_of(text))


def check_type(folder: str) -> Mount | None:
    """The mount of a folder. Raises `UsageError` (``no-atomic-create``) if its type alone says that it is unfit, as
    of mounts of object storage; nothing was written.
    """
    mount = mount_of(folder)
    refusal = refusal_of(os.path.realpath(folder), mount)
    if refusal is not None:
        raise UsageError(
            f"this folder is a mount by {refusal.name}, which lets two writers create the same name, so a checkpoint "
            f"could be lost: use {refusal.instead}",
            code="no-atomic-create",
            folder=folder,
            mounted="-" if mount is None else mount.kind,
        )
    return mount


def check_folder(folder: Path) -> None:
    """Raise `UsageError` (``no-atomic-create``) unless the file system of an existing folder creates a name once.

    Costs one look at the list of mounts, once in a process; where the type is not believed also some small files,
    which are removed again.
    """
    if str(folder) in _sound:
        return
    mount = check_type(str(folder))
    if mount is None or mount.kind not in BELIEVED | NETWORK:
        fault = fault_of(folder)
        if fault is not None:
            raise unfit(str(folder), fault)
    _sound.add(str(folder))


def unfit(folder: str, fault: str) -> UsageError:
    """The error for a file system that has shown this fault."""
    mount = mount_of(folder)
    return UsageError(
        f"{name_of(mount)} {fault}, so a checkpoint could be lost: use {instead_of(mount)}",
        code="no-atomic-create",
        folder=folder,
        mounted="-" if mount is None else mount.kind,
    )


def refuses_links(error: OSError) -> bool:
    """Whether a file system says by this error of a link that it has none."""
    return error.errno in _NO_LINKS


def fault_of(folder: Path) -> str | None:
    """What a folder's file system does wrong, tried with small files that are removed again; None if nothing."""
    trial = folder / f".probe.{uuid.uuid4().hex}"
    trial.mkdir()
    try:
        return _links(trial) or _creates(trial) or _renames(trial)
    finally:
        for name in os.listdir(trial):
            with suppress(OSError):
                (trial / name).unlink()
        with suppress(OSError):
            trial.rmdir()


def _links(folder: Path) -> str | None:
    rival, taken = folder / "rival", folder / "taken"
    rival.write_bytes(b"second")
    try:
        os.link(rival, folder / "fresh")  # a name that is taken is refused by the kernel, without asking
    except OSError as error:
        return f"refuses hard links ({(error.strerror or '').lower()})"
    taken.write_bytes(b"first")
    if _won(lambda: os.link(rival, taken)) or taken.read_bytes() != b"first":
        return "lets a hard link replace a file"
    winners = [_race(folder, number) for number in range(LINK_ROUNDS)]
    return None if winners == [1] * LINK_ROUNDS else "lets two writers link the same name"


def _race(folder: Path, number: int) -> int:
    """How many of the threads that link one name at once say that they did."""
    barrier = threading.Barrier(LINKERS)

    def link(me: int) -> bool:
        own = folder / f"own-{number}-{me}"
        own.write_bytes(b"%d" % me)
        barrier.wait()
        return _won(lambda: os.link(own, folder / f"name-{number}"))

    with ThreadPoolExecutor(LINKERS) as threads:
        return sum(threads.map(link, range(LINKERS)))


def _creates(folder: Path) -> str | None:
    name = folder / "created"
    attempts = [_won(lambda: open(name, "xb").close()) for _ in range(2)]
    return None if attempts == [True, False] else "creates a file that is there already"


def _renames(folder: Path) -> str | None:
    new, old = folder / "new", folder / "old"
    new.write_bytes(b"new")
    old.write_bytes(b"old")
    try:
        new.rename(old)
    except OSError as error:
        return f"does not rename over a file ({(error.strerror or '').lower()})"
    return None if old.read_bytes() == b"new" and not new.exists() else "does not rename over a file"


def _won(create: Callable[[], None]) -> bool:
    try:
        create()
    except FileExistsError:
        return False
    return True
