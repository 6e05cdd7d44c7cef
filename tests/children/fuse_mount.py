"""A file system in user space over a folder, straight on ``/dev/fuse``, as programs that mount object storage are.

``python -m tests.children.fuse_mount FOLDER MOUNT SOURCE TYPE [LINKS]``. It prints ``mounted`` and serves until it is
unmounted. Hard links are refused, as by programs that mount object storage, unless LINKS is ``links``. With ``lost``
or ``repeated`` those of manifests are made, but their replies are an error of the line, or that the name is taken:
what a server of files answers to a request that it gets for the second time.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_WRITE = 128 << 10
HEADER = struct.Struct("<IIQQIIII")
ROOT_ID = 1
_REPLIES = {"lost": errno.EIO, "repeated": errno.EEXIST}
NO_REPLY = (2, 42)
"""Requests to forget nodes."""


class Passed:
    """Each request of the kernel, passed on to a folder. ``files`` has the functions of ``os`` that reach it."""

    def __init__(self, folder: Path, links: str, files: Any = os) -> None:
        self._files = files
        self._paths = {ROOT_ID: folder}
        self._links = links
        self._opened: dict[int, int] = {}
        self.calls: dict[int, Callable[[int, bytes], bytes]] = {
            1: lambda node, body: self._entry(self._below(node, body)),
            3: lambda node, body: self._attributes(node),
            4: self._set,
            9: self._make_folder,
            10: lambda node, body: _nothing(files.unlink(self._below(node, body))),
            11: lambda node, body: _nothing(files.rmdir(self._below(node, body))),
            12: lambda node, body: self._rename(node, body, 8),
            13: self._link,
            14: self._open,
            15: self._read,
            16: self._write,
            17: lambda node, body: struct.pack(
                "<5Q4I24x", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096, 0
            ),
            18: lambda node, body: _nothing(files.close(struct.unpack_from("<Q", body)[0])),
            20: lambda node, body: _nothing(files.fsync(struct.unpack_from("<Q", body)[0])),
            25: lambda node, body: b"",
            26: lambda node, body: struct.pack("<IIIIHHIIHHI28x", 7, 31, MAX_WRITE, 0, 12, 9, MAX_WRITE, 1, 0, 0, 0),
            27: lambda node, body: struct.pack("<QII", 0, 0, 0),
            28: self._list,
            29: lambda node, body: b"",
            30: lambda node, body: b"",
            34: lambda node, body: b"",
            35: self._create,
            45: lambda node, body: self._rename(node, body, 16),
        }

    def _below(self, node: int, body: bytes) -> Path:
        return self._paths[node] / os.fsdecode(body.split(b"\0")[0])

    def _entry(self, path: Path) -> bytes:
        status = self._files.lstat(path)
        self._paths[status.st_ino] = path
        return struct.pack("<QQQQII", status.st_ino, 0, 0, 0, 0, 0) + _attributes_of(status)

    def _attributes(self, node: int) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + _attributes_of(self._files.lstat(self._paths[node]))

    def _set(self, node: int, body: bytes) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        if valid & 8:
            self._files.truncate(self._paths[node], size)
        return self._attributes(node)

    def _make_folder(self, node: int, body: bytes) -> bytes:
        path = self._below(node, body[8:])
        self._files.mkdir(path)
        return self._entry(path)

    def _rename(self, node: int, body: bytes, start: int) -> bytes:
        (into,) = struct.unpack_from("<Q", body)
        old, new = body[start:].split(b"\0")[:2]
        source, target = self._below(node, old), self._below(into, new)
        self._files.rename(source, target)
        self._paths[self._files.lstat(target).st_ino] = target
        return b""

    def _link(self, node: int, body: bytes) -> bytes:
        if not self._links:
            raise OSError(errno.ENOSYS, "no links")
        (old,) = struct.unpack_from("<Q", body)
        target = self._below(node, body[8:])
        self._files.link(self._paths[old], target)
        if self._links in _REPLIES and target.parent.name == "manifests":
            raise OSError(_REPLIES[self._links], "the reply of a link that was made")
        return self._entry(target)

    def _open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        return struct.pack("<QII", self._files.open(self._paths[node], flags & ~os.O_NOFOLLOW), 0, 0)

    def _create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        path = self._below(node, body[16:])
        handle = self._files.open(path, flags | os.O_CREAT, mode)
        return self._entry(path) + struct.pack("<QII", handle, 0, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return self._files.pread(handle, size, offset)

    def _write(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", self._files.pwrite(handle, body[40 : 40 + size], offset), 0)

    def _list(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        listed = b""
        for number, name in enumerate(sorted(self._files.listdir(self._paths[node]))[offset:], offset + 1):
            raw = os.fsencode(name)
            entry = struct.pack("<QQII", 1000 + number, number, len(raw), 0) + raw
            entry += b"\0" * (-len(entry) % 8)
            if len(listed) + len(entry) > size:
                break
            listed += entry
        return listed


def _nothing(_: None) -> bytes:
    return b""


def _attributes_of(status: Any) -> bytes:
    times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    seconds, parts = [time // 10**9 for time in times], [time % 10**9 for time in times]
    sizes = (status.st_ino, status.st_size, (status.st_size + 511) // 512)
    return struct.pack(
        "<6Q10I", *sizes, *seconds, *parts, status.st_mode, status.st_nlink, status.st_uid, status.st_gid, 0, 4096, 0
    )


def mount(target: Path, source: str, kind: str) -> int:
    """Mount a folder; the descriptor on which its requests come. Raises `OSError`."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode={stat.S_IFDIR:o},user_id={os.getuid()},group_id={os.getgid()}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), bytes(target), kind.encode(), 0, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return device


def unmount(target: Path) -> None:
    """Take a mount away, also one in use."""
    ctypes.CDLL(None).umount2(bytes(target), 2)


def serve(device: int, calls: dict[int, Callable[[int, bytes], bytes]]) -> None:
    """Answer until the mount is taken away."""
    while True:
        try:
            request = os.read(device, MAX_WRITE + 4096)
        except OSError:
            return
        size, opcode, unique, node, *_ = HEADER.unpack_from(request)
        if opcode in NO_REPLY:
            continue
        body, number = b"", 0
        try:
            call = calls.get(opcode)
            body = call(node, request[HEADER.size : size]) if call else b""
            number = 0 if call else errno.ENOSYS
        except OSError as error:
            number = error.errno or errno.EIO
        os.write(device, struct.pack("<IiQ", 16 + len(body), -number, unique) + body)


if __name__ == "__main__":
    descriptor = mount(Path(sys.argv[2]), sys.argv[3], sys.argv[4])
    print("mounted", flush=True)
    serve(descriptor, Passed(Path(sys.argv[1]), "".join(sys.argv[5:])).calls)
