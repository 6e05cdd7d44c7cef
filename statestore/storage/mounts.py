"""Which file system a folder is on, and what is known about it. Pure.

A checkpoint is published by a hard link, which fails when the name is taken. Mounts of object storage have none: they
translate calls of files into requests, and two hosts that create one name both succeed. So these are refused by
their type, with the URL of the bucket behind them, which has an atomic create of its own. Local file systems and NFS
are believed. Any other is asked: `tidestate.statestore.storage.local_probe`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

BELIEVED = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "reiserfs", "tmpfs", "xfs", "zfs"}
"""Local file systems, whose kernel creates each name once."""
NETWORK = {"nfs", "nfs4"}
"""A hard link is atomic at the server; one whose reply was lost is looked up."""

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """A mounted file system, as a line of ``/proc/self/mounts`` has it."""

    source: str
    """What is mounted: a device, a server with its export, or what a FUSE program says."""
    folder: str
    kind: str
    """The type of the file system, such as ``ext4`` or ``fuse.gcsfuse``."""

    @property
    def program(self) -> str:
        """The program behind a FUSE mount, by the subtype or the source; empty where there is none."""
        kind, _, subtype = self.kind.partition(".")
        if kind not in ("fuse", "fuseblk") and self.kind not in _PROGRAMS:
            return ""
        names = [name for name in (subtype, self.source, kind) if name in _PROGRAMS]
        return names[0] if names else subtype


@dataclass(frozen=True)
class MountRefusal:
    """Why a mount cannot hold a root."""

    name: str
    """Of the file system, for people."""
    instead: str
    """What to give as the root, as the end of a sentence that begins with "use"."""


@dataclass(frozen=True)
class _Program:
    """A program that mounts object storage."""

    name: str
    url: str
    """The URL of what is mounted; ``{source}`` stands for what the mount says it is."""


_ABFS = "abfs://CONTAINER@ACCOUNT.dfs.core.windows.net"
_PROGRAMS = {
    "gcsfuse": _Program("Cloud Storage FUSE", "gs://{source}"),
    "mountpoint-s3": _Program("Mountpoint for Amazon S3", "s3://BUCKET"),
    "mount-s3": _Program("Mountpoint for Amazon S3", "s3://BUCKET"),
    "s3fs": _Program("s3fs-fuse", "s3://BUCKET"),
    "goofys": _Program("goofys", "s3://{source}"),
    "geesefs": _Program("GeeseFS", "s3://{source}"),
    "blobfuse": _Program("blobfuse", _ABFS),
    "blobfuse2": _Program("blobfuse2", _ABFS),
    "rclone": _Program("rclone", "the URL of the bucket behind {source}"),
    "dbfs": _Program("DBFS", "/Volumes/CATALOG/SCHEMA/VOLUME"),
    "dbfs-fuse": _Program("DBFS", "/Volumes/CATALOG/SCHEMA/VOLUME"),
}
"""By subtype or source of the mount. Those that say which bucket they have say it as their source."""
_OWN_NAMES = {*_PROGRAMS, "fuse", "none"}
"""Sources that name the program and not the bucket."""

_OTHERS = {
    "cifs": "SMB",
    "smb3": "SMB",
    "smbfs": "SMB",
    "ntfs": "NTFS",
    "ntfs3": "NTFS",
    "fuseblk": "NTFS",
    "vfat": "FAT",
    "exfat": "exFAT",
    "msdos": "FAT",
    "9p": "a folder of the host of this machine",
    "drvfs": "a drive of Windows",
}
"""File systems that some servers or drivers give hard links, and others do not."""


def mounts_of(text: str) -> list[Mount]:
    """The mounts in a text such as that of ``/proc/self/mounts``, in which spaces are octal. Lines that are none are
    left out.
    """
    lines = [[_OCTAL.sub(_character, field) for field in line.split(" ")] for line in text.splitlines()]
    return [Mount(*fields[:3]) for fields in lines if len(fields) >= 3]


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 8))


def mount_at(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount on which a full path without links lies: the deepest, and of two on one folder the later one."""
    above = [mount for mount in mounts if f"{path}/".startswith(f"{mount.folder.rstrip('/')}/")]
    deepest = max((len(mount.folder) for mount in above), default=0)
    return next((mount for mount in reversed(above) if len(mount.folder) == deepest), None)


def refusal_of(path: str, mount: Mount | None) -> MountRefusal | None:
    """Why a folder with this full path cannot be a root, going by its mount alone; None where nothing is known
    against it. The folders of Databricks are known by their names too, as their mounts differ by runtime.
    """
    if mount is None or mount.kind in BELIEVED:
        return None
    program = _PROGRAMS.get(mount.program)
    if program is not None:
        return MountRefusal(program.name, _url(program.url, path, mount))
    top = "/".join(path.split("/", 2)[:2])
    if top == "/dbfs":
        return MountRefusal("DBFS", _PROGRAMS["dbfs"].url)
    return None


def _url(url: str, path: str, mount: Mount) -> str:
    """The URL of a folder below a mount. A source may have a prefix, as ``bucket:prefix``."""
    source = "BUCKET" if mount.source in _OWN_NAMES else mount.source.replace(":", "/", 1).strip("/")
    if "://" not in url:
        return url.format(source=mount.source)
    below = path[len(mount.folder.rstrip("/")) :] if mount.program not in ("dbfs", "dbfs-fuse") else ""
    return url.format(source=source) + below


def instead_of(mount: Mount | None) -> str:
    """What to use where a file system has turned out to have no atomic create, as the end of a sentence that begins
    with "use".
    """
    name = "" if mount is None else _OTHERS.get(mount.kind, "")
    if name == "SMB":
        return "a mount by NFS, a local disk, or the URL of object storage such as s3://BUCKET/…"
    return "a local disk, NFS, or the URL of object storage such as s3://BUCKET/…"


def name_of(mount: Mount | None) -> str:
    """A file system for people, such as ``ext4``, or ``SMB (cifs)``."""
    if mount is None:
        return "a file system of unknown type"
    program = _PROGRAMS.get(mount.program)
    name = program.name if program is not None else _OTHERS.get(mount.kind, "")
    return f"{name} ({mount.kind})" if name else mount.kind
