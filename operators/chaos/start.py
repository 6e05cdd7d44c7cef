"""One start of the job in a process of its own: what it is given, and what it writes down as it goes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidestate.operators.chaos.faults import Injected
from tidestate.operators.local.history_files import FORMATS
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

STORE_CONFIGS: dict[str, StoreConfig] = {"parquet": Parquet(), "memory": Memory(), "rocksdb": RocksDB()}
BEGIN_PARTITIONS = 2
"""State partitions of each root, until a rescale."""


BatchCut = tuple[tuple[tuple[int, ...], ...], ...]
"""Batches: for each stream the numbers of the files that it has in a batch."""


@dataclass(frozen=True)
class JobInput:
    """The folders of all streams by name, in the order of the job. Files in them have ascending names and times."""

    folders: Mapping[str, Path]
    columns: str | None = None
    """Their columns as Spark writes them; None: those of the first file."""

    def files(self, name: str) -> list[Path]:
        """The input files of one stream."""
        return sorted(self.folders[name].iterdir())

    @property
    def cut(self) -> BatchCut:
        """A file of each stream in each batch, as long as it has any."""
        counts = [len(self.files(name)) for name in self.folders]
        return tuple(tuple((number,) if number < count else () for count in counts) for number in range(max(counts)))

    def form(self, name: str) -> str:
        """The format of a stream's files."""
        return FORMATS[self.files(name)[0].suffix]


@dataclass(frozen=True)
class UserJob:
    """What the user named: a description, perhaps a sink and what reads its target; and the input."""

    description: str
    input: JobInput
    sink: str | None = None
    sink_rows: str | None = None


@dataclass(frozen=True)
class RoundFolders:
    """The folders of a round: the root, what the sink's target has, and what is written down about it."""

    folder: Path

    @property
    def root(self) -> Path:
        """The folder of the job's checkpoint root, on the disk of the round."""
        return self.folder / "disk" / "root"

    @property
    def disk(self) -> Path:
        """What a power cut can reach."""
        return self.folder / "disk"

    @property
    def target(self) -> Path:
        """Given to the sink's factory."""
        return self.folder / "target"

    @property
    def offered(self) -> Path:
        """What the sink was offered."""
        return self.folder / "offered"

    @property
    def evidence(self) -> Path:
        """What was found of all that."""
        return self.folder / "evidence.pickle"

    def made(self) -> RoundFolders:
        """These folders, once they are created."""
        for folder in (self.disk, self.target, self.offered):
            folder.mkdir(parents=True, exist_ok=True)
        return self


@dataclass(frozen=True)
class ChildStart:
    """A start. ``at_call`` is the number of the call at which ``fault`` is put in; ``batches`` ends it before its
    time.

    ``cut`` or ``pieces`` is how the input is cut into batches; ``net``: the net of the panes is wanted too.
    """

    job: UserJob
    folders: RoundFolders
    notes: Path
    store: str = "parquet"
    partitions: int = BEGIN_PARTITIONS
    fault: Injected | None = None
    at_call: int = 0
    batches: int | None = None
    cut: BatchCut | None = None
    pieces: int | None = None
    in_driver: bool = True
    net: bool = False


class Notes:
    """What a process has written down: lines of JSON that survive its death."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def write(self, event: str, **facts: Any) -> None:
        """Append an event with its facts as a line of JSON, in one system call."""
        if self._handle is None:
            self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        line = json.dumps({"event": event, "at": time.time(), **facts}, default=str)
        os.write(self._handle, line.encode() + b"\n")

    def read(self) -> Iterator[dict[str, Any]]:
        """All whole lines so far."""
        if self.path.exists():
            for line in self.path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    yield json.loads(line)

    def last(self, event: str) -> dict[str, Any] | None:
        """The last line about this."""
        return next((note for note in reversed(list(self.read())) if note["event"] == event), None)
