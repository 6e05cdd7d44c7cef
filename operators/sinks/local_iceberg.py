"""Files of an Iceberg warehouse in a local folder, each durable before a commit names it: Iceberg syncs none, and the
catalogue may be durable before them. pyiceberg loads it by its name.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from tidestate.statestore.storage.local import settle_files


class SyncedIO(PyArrowFileIO):  # type: ignore[misc]
    """The files of pyiceberg, those of this host synced."""

    def new_output(self, location: str) -> Any:
        """A file to be written."""
        scheme, _, path = self.parse_location(location, self.properties)
        found = super().new_output(location)
        return _LocalOutput(found, Path(path)) if scheme == "file" else found


class _LocalOutput(PyArrowFile):  # type: ignore[misc]
    def __init__(self, output: Any, path: Path) -> None:
        super().__init__(output.location, output._path, output._filesystem, output._buffer_size)
        self._local = path

    def create(self, overwrite: bool = False) -> Any:
        """Open a file for writing; when the stream is closed, the file and its name are durable."""
        self._local.parent.mkdir(parents=True, exist_ok=True)
        return io.BufferedWriter(_SyncedFile(self._local, "wb" if overwrite else "xb"))


class _SyncedFile(io.FileIO):
    def close(self) -> None:
        if not self.closed:
            super().close()
            settle_files(Path(self.name).parent, [Path(self.name)])
