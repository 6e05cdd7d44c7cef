"""Traces that published checkpoints leave beside their manifests: they tell how far a root has been.

Ids are dense, so a manifest that is gone from the middle leaves a gap. The newest ones leave none; but drivers note
how far they have come, pins name checkpoints, files are named after the checkpoint they were written for, and Spark
says which batches were done. Traces are read *before* manifests are listed: what they prove was published by then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tidestate.recovery.log import names
from tidestate.recovery.log.manifest import SparkPosition
from tidestate.recovery.log.prefetch import prefetch
from tidestate.recovery.log.records import read_pins
from tidestate.recovery.log.spark_files import SPARK_FOLDER, newest, query_id
from tidestate.statestore.errors import CorruptionError, UnavailableError
from tidestate.statestore.storage.objects import Objects

REACHED = "reached"
FOLDERS = ("data", "panes", "late")
PROBES = "data/probe"
STATE = ("data",)
"""What collections keep small; panes and ledgers may be kept for ever."""
_MOST = 10**18
"""No job comes so far: a name with such a number is not ours."""
_WRITTEN = re.compile(r"([0-9]{1,20})-[0-9a-f]{32}\.")
"""How the name of a file begins: the checkpoint it was written for, and an id of the attempt."""


@dataclass(frozen=True)
class Traces:
    """``noted``: the highest id that a note or a pin names. ``written``: the highest that a file was written for,
    which the attempt at a next checkpoint leaves, published or not. ``committed``: Spark's query and its last batch.
    """

    noted: int = 0
    written: int = 0
    committed: tuple[str, int] | None = None

    def beyond(self, newest: int, position: SparkPosition | None = None) -> int:
        """The highest id that may have been in use, where checkpoints above ``newest``, which holds Spark's
        ``position``, have been published; 0 where nothing proves that.
        """
        noted = self.noted
        if self.committed is not None and position is not None and self.committed[0] == position.query_id:
            noted = max(noted, newest + self.committed[1] - position.batch_id)
        further = noted > newest or self.written > newest + 1
        return max(noted, self.written) if further else 0


def notes(objects: Objects) -> Traces:
    """How far drivers say they have come. One request."""
    return Traces(max(_noted(objects), default=0))


def traces(objects: Objects, files: Sequence[str] = FOLDERS) -> Traces:
    """All traces, those of files in the folders ``files``: one request for each state partition."""
    return with_file_traces(objects, written_files(objects, files))


def with_file_traces(objects: Objects, files: Mapping[str, int]) -> Traces:
    """All traces, with files as `written_files` finds them."""
    noted = [*_noted(objects), *_pinned(objects)]
    return Traces(max(noted, default=0), newest_attempt(files), _committed(objects))


def newest_attempt(files: Mapping[str, int]) -> int:
    """The highest checkpoint that a file was written for, 0 where there is none. A probe is no attempt: it precedes a
    run's first manifest.
    """
    return max((number for path, number in files.items() if not path.startswith(f"{PROBES}/")), default=0)


def note(objects: Objects, checkpoint_id: int) -> None:
    """Leave a word that this checkpoint was published. Not waited for: a power cut may take it."""
    there = _noted(objects)
    if checkpoint_id > max(there, default=0):
        objects.note(_path(checkpoint_id), str(checkpoint_id).encode())
        for older in there:
            objects.delete(_path(older))


def written_files(objects: Objects, folders: Sequence[str] = FOLDERS) -> dict[str, int]:
    """Files of ours in these folders, with the id of the checkpoint that each was written for."""
    found: dict[str, int] = {}
    level = list(folders)
    for _ in range(3):
        inside: list[str] = []
        for folder, inside_it in prefetch(lambda one: _names(objects, one), level):
            for name in inside_it():
                if (match := _WRITTEN.match(name)) and int(match[1]) < _MOST:
                    found[f"{folder}/{name}"] = int(match[1])
                elif "." not in name:
                    inside.append(f"{folder}/{name}")
        level = inside
    return found


def _path(checkpoint_id: int) -> str:
    return f"{REACHED}/{checkpoint_id:0{names.DIGITS}d}"


def _names(objects: Objects, folder: str) -> list[str]:
    try:
        return objects.names(folder)
    except UnavailableError as error:
        if error.context.get("reason") != "ENOTDIR":
            raise
        return []  # a file that is not ours


def _noted(objects: Objects) -> list[int]:
    ids = [names.number_in(name, "") for name in objects.names(REACHED)]
    return [one for one in ids if one is not None and one < _MOST]


def _pinned(objects: Objects) -> list[int]:
    with suppress(CorruptionError):  # who needs the pins says what is wrong with them
        return [pin.checkpoint for pin in read_pins(objects)]
    return []


def _committed(objects: Objects) -> tuple[str, int] | None:
    with suppress(CorruptionError):
        query, batch_id = query_id(objects), newest(objects, f"{SPARK_FOLDER}/commits")
        return (query, batch_id) if query is not None and batch_id is not None else None
    return None
