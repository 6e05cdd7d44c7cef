"""A file being written: counted and checksummed as the bytes pass, whole or gone."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import xxhash

from tidestate.statestore.storage.faults import storage_errors


class ObjectSink(io.RawIOBase):
    """Takes bytes for one object; `pyarrow` writes to it like to a file. Its writer closes what is beneath."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        super().__init__()
        self._file = file
        self._path = path
        self._digest = xxhash.xxh3_64()
        self._count = 0

    @property
    def bytes(self) -> int:
        """How many bytes were written."""
        return self._count

    @property
    def checksum(self) -> str:
        """`tidestate.statestore.checksums.checksum` of the bytes written."""
        return f"xxh3:{self._digest.hexdigest()}"

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        """How many bytes were written."""
        return self._count

    def write(self, data: Any) -> int:
        """Take all of ``data``. Raises `UnavailableError`; then there is no object."""
        if self.closed:
            raise ValueError("the sink is closed")
        view = memoryview(data)
        with storage_errors(self._path, writing=True):
            self._file.write(view)
        self._digest.update(view)
        self._count += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Hand what is buffered to the operating system. Raises `UnavailableError`."""
        if not self._file.closed:
            with storage_errors(self._path, writing=True):
                self._file.flush()


@contextmanager
def sink_into(target: Path, path: str) -> Iterator[ObjectSink]:
    """A sink into a new local file, durable after a clean exit and gone after an exception."""
    with storage_errors(path, writing=True):
        file = open(target, "xb")  # noqa: SIM115  (closed below, where its errors no longer count)
    sink = ObjectSink(file, path)
    try:
        yield sink
        sink.close()
        with storage_errors(path, writing=True):
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):  # what stays is collected later
            target.unlink(missing_ok=True)
        raise
    finally:
        # After an error closing fails once more for the same reason; after fsync there is nothing left to fail.
        with contextlib.suppress(Exception):
            sink.close()
        with contextlib.suppress(OSError):
            file.close()
