"""A mount of an NFS server in user space, for hosts that may not mount one by their kernel.

``python -m tests.children.nfs_mount PORT EXPORT MOUNT [soft]``. It prints ``mounted`` and serves until it is
unmounted. Each request of the kernel is one to the server, by libnfs and NFSv4, and nothing is kept here: several
mounts of an export are several clients, as hosts are. A connection that breaks is made again, and what had no reply
is sent again, as by a hard mount; files that were open are not opened again. With ``soft`` the break is an error.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.children.fuse_mount import Passed, mount, serve

LIBNFS_NAMES = ("libnfs.so.13", "libnfs.so.14")
"""Of libnfs 4 and 5, whose functions take the same arguments."""
WRITE_BYTES = 3072
"""In a request: libnfs 4 finds no room for a page, and says "not permitted"."""
KIND = "fuse.libnfs"
_FLAGS = os.O_ACCMODE | os.O_CREAT | os.O_EXCL
_POINTER = ctypes.c_void_p


class _Status(ctypes.Structure):
    """What libnfs calls ``nfs_stat_64``, with the names of ``os.stat_result``."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("st_dev", "st_ino", "st_mode", "st_nlink", "st_uid", "st_gid", "st_rdev", "st_size", "st_blksize"),
            *("st_blocks", "atime", "mtime", "ctime", "atime_nsec", "mtime_nsec", "ctime_nsec", "used"),
        )
    )

    @property
    def st_atime_ns(self) -> int:
        return int(self.atime * 10**9 + self.atime_nsec)

    @property
    def st_mtime_ns(self) -> int:
        return int(self.mtime * 10**9 + self.mtime_nsec)

    @property
    def st_ctime_ns(self) -> int:
        return int(self.ctime * 10**9 + self.ctime_nsec)


class _Url(ctypes.Structure):
    _fields_ = (("server", ctypes.c_char_p), ("path", ctypes.c_char_p), ("file", ctypes.c_char_p))


class _Entry(ctypes.Structure):
    """The head of ``struct nfsdirent``."""


_Entry._fields_ = (("next", ctypes.POINTER(_Entry)), ("name", ctypes.c_char_p))


def libnfs() -> ctypes.CDLL | None:
    """The library; None where it is not installed."""
    for name in LIBNFS_NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


class NfsFiles:
    """The functions of ``os`` that `Passed` calls, each a call of libnfs. Paths begin at the export."""

    def __init__(self, port: int, export: str, *, soft: bool = False) -> None:
        library = libnfs()
        assert library is not None
        self._library, self._soft = library, soft
        library.nfs_init_context.restype = _POINTER
        library.nfs_parse_url_dir.restype = ctypes.POINTER(_Url)
        library.nfs_readdir.restype = ctypes.POINTER(_Entry)
        library.nfs_get_error.restype = ctypes.c_char_p
        self._handles: dict[int, ctypes.c_void_p] = {}
        self._address = f"nfs://127.0.0.1{export}?version=4&nfsport={port}&dircache=0".encode()
        self._connect()

    def _connect(self) -> None:
        self._context = _POINTER(self._library.nfs_init_context())
        url = self._library.nfs_parse_url_dir(self._context, self._address)
        self._sent("mount", url.contents.server, url.contents.path)

    def _call(self, name: str, *arguments: object) -> int:
        """What a call returns. Raises `OSError` with the number that the server has said."""
        try:
            return self._sent(name, *arguments)
        except OSError as error:
            if self._soft or error.errno != errno.EIO or self._handles:
                raise
        self._connect()
        return self._sent(name, *arguments)

    def _sent(self, name: str, *arguments: object) -> int:
        result: int = getattr(self._library, f"nfs_{name}")(self._context, *arguments)
        if result < 0:
            raise OSError(-result, str(self._library.nfs_get_error(self._context)))
        return result

    def lstat(self, path: Path) -> _Status:
        status = _Status()
        self._call("lstat64", bytes(path), ctypes.byref(status))
        return status

    def truncate(self, path: Path, size: int) -> None:
        self._call("truncate", bytes(path), ctypes.c_uint64(size))

    def mkdir(self, path: Path) -> None:
        self._call("mkdir", bytes(path))

    def rmdir(self, path: Path) -> None:
        self._call("rmdir", bytes(path))

    def unlink(self, path: Path) -> None:
        self._call("unlink", bytes(path))

    def rename(self, source: Path, target: Path) -> None:
        self._call("rename", bytes(source), bytes(target))

    def link(self, source: Path, target: Path) -> None:
        self._call("link", bytes(source), bytes(target))

    def open(self, path: Path, flags: int, mode: int = 0) -> int:
        opened = _POINTER()
        if flags & os.O_CREAT:
            self._call("open2", bytes(path), flags & _FLAGS, mode, ctypes.byref(opened))
        else:
            self._call("open", bytes(path), flags & _FLAGS, ctypes.byref(opened))
        handle = max(self._handles, default=0) + 1
        self._handles[handle] = opened
        return handle

    def close(self, handle: int) -> None:
        self._call("close", self._handles.pop(handle))

    def fsync(self, handle: int) -> None:
        self._call("fsync", self._handles[handle])

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        count = self._call("pread", self._handles[handle], ctypes.c_uint64(offset), ctypes.c_uint64(size), data)
        return data.raw[:count]

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        for start in range(0, len(data), WRITE_BYTES):
            part = data[start : start + WRITE_BYTES]
            position, size = ctypes.c_uint64(offset + start), ctypes.c_uint64(len(part))
            written = self._call("pwrite", self._handles[handle], position, size, part)
            if written < len(part):
                return start + written
        return len(data)

    def listdir(self, path: Path) -> list[str]:
        return [name for name in self._names(path) if name not in (".", "..")]

    def _names(self, path: Path) -> Iterator[str]:
        folder = _POINTER()
        self._call("opendir", bytes(path), ctypes.byref(folder))
        try:
            while entry := self._library.nfs_readdir(self._context, folder):
                yield os.fsdecode(entry.contents.name)
        finally:
            self._library.nfs_closedir(self._context, folder)


def main(port: int, export: str, target: Path, *, soft: bool) -> None:
    """Serve a mount until it is taken away."""
    if libnfs() is None:
        raise OSError(errno.ENOENT, "libnfs is not installed")
    files = NfsFiles(port, export, soft=soft)
    descriptor = mount(target, f"127.0.0.1:{export}", KIND)
    print("mounted", flush=True)
    serve(descriptor, Passed(Path("/"), "links", files).calls)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), soft="soft" in sys.argv[4:])
