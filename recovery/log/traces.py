"""Traces of published checkpoints: they prove that manifests once existed which are now gone.

Ids have no gaps, so a missing manifest in the middle is noticed. For the newest ones there are traces: notes of
drivers, pins, the names of files, which contain the checkpoint they were written for, and Spark's log of committed
batches. Traces are read *before* manifests are listed: what they prove was published by then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tidestate.recovery.log.manifest import DIGITS, LAST_NUMBER, SparkPosition, number_in
from tidestate.recovery.log.records import read_pins
from tidestate.recovery.log.spark_log import SparkLog
from tidestate.statestore.errors import CorruptionError, UnavailableError
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.prefetch import prefetch

REACHED = "reached"
FOLDERS = ("data", "panes", "late")
PROBES = "data/probe"
STATE = ("data",)
"""The folder that collections keep small; panes and ledgers may be kept forever."""
_WRITTEN = re.compile(r"([0-9]{1,20})-[0-9a-f]{32}\.")
"""How the name of a file begins: the checkpoint that it was written for, and the id of the attempt."""


@dataclass(frozen=True)
class Traces:
    """``noted``: the highest id in a note or a pin. ``written``: the highest id that a file was written for, whether
    the checkpoint was published or not. ``committed``: Spark's query and its last committed batch.
    """

    noted: int = 0
    written: int = 0
    committed: tuple[str, int] | None = None

    def beyond(self, newest: int, position: SparkPosition | None = None) -> int:
        """The highest id that may have been in use, if checkpoints above ``newest``, which is at Spark's
        ``position``, were published; 0 if nothing proves that.
        """
        noted = self.noted
        if self.committed is not None and position is not None and self.committed[0] == position.query_id:
            noted = max(noted, newest + self.committed[1] - position.batch_id)
        further = noted > newest or self.written > newest + 1
        return max(noted, self.written) if further else 0


def notes(objects: Objects) -> Traces:
    """Traces that drivers noted. Cost: one request."""
    return Traces(max(_noted(objects), default=0))


def traces(objects: Objects, files: Sequence[str] = FOLDERS) -> Traces:
    """All traces, with those of files in the folders ``files``. Cost: one request for each state partition."""
    return with_file_traces(objects, written_files(objects, files))


def with_file_traces(objects: Objects, files: Mapping[str, int]) -> Traces:
    """All traces, with ``files`` from `written_files`."""
    noted = [*_noted(objects), *_pinned(objects)]
    return Traces(max(noted, default=0), newest_attempt(files), _committed(objects))


def newest_attempt(files: Mapping[str, int]) -> int:
    """The highest checkpoint that a file was written for, 0 for none; probes, which precede a run's first manifest,
    do not count.
    """
    return max((number for path, number in files.items() if not path.startswith(f"{PROBES}/")), default=0)


def note(objects: Objects, checkpoint_id: int) -> None:
    """Note that this checkpoint was published. Not durable: a power cut may lose it."""
    noted = _noted(objects)
    if checkpoint_id > max(noted, default=0):
        objects.note(_path(checkpoint_id), str(checkpoint_id).encode())
        for older in noted:
            objects.delete(_path(older))


def written_files(objects: Objects, folders: Sequence[str] = FOLDERS) -> dict[str, int]:
    """Files in these folders, with the id of the checkpoint that each was written for. Not those behind a link to a
    folder: they have another name, perhaps in another root, and a collection would take them for unneeded.
    """
    found: dict[str, int] = {}
    level = list(folders)
    for _ in range(3):
        inside: list[str] = []
        for folder, inside_it in prefetch(lambda one: _names(objects, one), level):
            for name in inside_it():
                if (match := _WRITTEN.match(name)) and int(match[1]) <= LAST_NUMBER:
                    found[f"{folder}/{name}"] = int(match[1])
                elif "." not in name:
                    inside.append(f"{folder}/{name}")
        level = inside
    return found


def _path(checkpoint_id: int) -> str:
    return f"{REACHED}/{checkpoint_id:0{DIGITS}d}"


def _names(objects: Objects, folder: str) -> list[str]:
    try:
        return [] if objects.linked(folder) else objects.names(folder)
    except UnavailableError as error:
        if error.context.get("reason") != "ENOTDIR":
            raise
        return []  # a file that is not ours


def _noted(objects: Objects) -> list[int]:
    numbers = [number_in(name, "") for name in objects.names(REACHED)]
    return [number for number in numbers if number is not None]


def _pinned(objects: Objects) -> list[int]:
    with suppress(CorruptionError):  # reported where the pins are needed
        return [pin.checkpoint for pin in read_pins(objects)]
    return []


def _committed(objects: Objects) -> tuple[str, int] | None:
    with suppress(CorruptionError):
        spark_log = SparkLog(objects)
        query, batch_id = spark_log.query_id(), spark_log.newest("commits")
        return (query, batch_id) if query is not None and batch_id is not None else None
    return None
