"""A Delta table in a folder of this host. No writer of Delta syncs what it has written, so a power cut may leave an
empty entry of the log, which readers take for a commit of nothing, or an entry that names a torn file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tidestate.statestore.errors import CorruptionError, UsageError
from tidestate.statestore.storage.local import is_local, settle_files

LOG = "_delta_log"
_ENTRY = re.compile(r"(\d{20})\.json")
_UNREADABLE = frozenset("[]^|\\")
"""What a URL of a host may not contain, which the package makes of a path; it takes a backslash for a slash."""


class LocalDelta:
    """The folder of a table, by its path or URL; of a table that is elsewhere nothing is done."""

    def __init__(self, table: str) -> None:
        path = unquote(urlsplit(table).path) if "://" in table else table
        self._top = Path(os.path.abspath(path)) if is_local(table) else None
        self._whole, self._settled = False, -1

    def check_path(self) -> None:
        """Raise `UsageError` for a folder that the package ``deltalake`` cannot open: it would end the process."""
        unreadable = sorted(_UNREADABLE & {*str(self._top or "")})
        if unreadable:
            raise UsageError(
                "the package deltalake cannot open a folder with these signs in its path: choose another one",
                code="argument",
                signs=unreadable,
                table=str(self._top),
            )

    def settle(self) -> None:
        """Make durable what was written since the last call, in the first one all that is there: an older self may
        have died before it came so far. Raises `OSError`.
        """
        if self._top is None or not (self._top / LOG).is_dir():
            return
        entries = self._entries()
        if self._settled < 0:
            data = [Path(folder, name) for folder, _, names in os.walk(self._top) for name in names]
            data = [file for file in data if file.parent.name != LOG]
        else:
            data = [file for version in entries if version > self._settled for file in self._added(version)]
        settle_files(self._top, _with_sums(data))  # before what names them
        settle_files(self._top / LOG, _with_sums(self._log_since(self._settled)))
        self._settled = max(entries, default=-1)

    def check_whole(self, table: Any) -> None:
        """Raise `CorruptionError` (``sink-torn``) where the ``table`` names files that are torn or gone."""
        if self._top is None or self._whole or table is None:
            return
        actions = table.get_add_actions(flatten=True)
        named = zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True)
        if torn := [path for path, size in named if "://" not in path and self._size(path) != size]:
            raise CorruptionError(
                "the table names files that are truncated or missing, as after a power cut: restore it from a "
                "copy, or delete the entries of its log from the first that names one of them on, then start "
                "again, which delivers their rows again",
                code="sink-torn",
                table=str(self._top),
                files=torn[:3],
                entries=[version for version in self._entries() if {*torn} & {*self._named(version)}],
            )
        self._whole = True

    def _size(self, path: str) -> int | None:
        places = (self._file(path), self._file(unquote(path)))
        return next((place.stat().st_size for place in places if place.is_file()), None)

    def _entries(self) -> list[int]:
        log = self._file(LOG)
        names = map(_ENTRY.fullmatch, os.listdir(log) if log.is_dir() else [])
        return sorted(int(name[1]) for name in names if name)

    def _added(self, version: int) -> list[Path]:
        return [self._file(unquote(path)) for path in self._named(version) if "://" not in path]

    def _named(self, version: int) -> Iterator[str]:
        """The files that an entry of the log adds."""
        for line in self._file(f"{LOG}/{version:020d}.json").read_text().splitlines():
            for kind, action in json.loads(line).items():
                if kind in ("add", "cdc"):
                    yield action["path"]

    def _log_since(self, version: int) -> list[Path]:
        """Entries, checkpoints and the note of the last one, which is written again."""
        first = f"{max(version, 0):020d}"
        files = [self._file(f"{LOG}/{name}") for name in os.listdir(self._file(LOG)) if name >= first]
        return [file for file in files if file.is_file()]

    def _file(self, path: str) -> Path:
        return Path(self._top or "", path)


def _with_sums(files: list[Path]) -> Iterator[Path]:
    """Each with the checksums that Hadoop keeps next to it, where there are any."""
    for file in files:
        yield file
        sums = file.with_name(f".{file.name}.crc")
        if sums.exists():
            yield sums
