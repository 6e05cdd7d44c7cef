"""A Spark batch in a manifest: its lists of files, and whether a batch that Spark plans is the same or the next."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from tidestate.recovery.log.input_files import Entries
from tidestate.recovery.log.manifest import SparkPosition
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import IncompatibleError
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.segments import damaged, read_verified
from tidestate.statestore.storage.objects import Objects, put_all

INLINE_FILES = 100
"""Longer lists of files are written to a separate file, so that a manifest stays small."""


def with_lists(
    position: SparkPosition, checkpoint_id: int, read: Mapping[int, Entries] | None = None
) -> tuple[SparkPosition, dict[str, bytes]]:
    """``position`` for a manifest, with references to its long list of files and to ``read``, all files read up to
    it; and the contents of the files that are referred to, by path.
    """
    files: dict[str, bytes] = {}
    if sum(map(len, position.files.values())) > INLINE_FILES:
        ref = _list(files, f"{checkpoint_id}-{uuid.uuid4().hex}.files.json", position.files, len(position.files))
        position = msgspec.structs.replace(position, files={}, files_ref=ref)
    if read:
        rows = sum(map(len, read.values()))
        ref = _list(files, f"{checkpoint_id}-{uuid.uuid4().hex}.read.json", read, rows)
        position = msgspec.structs.replace(position, read_ref=ref)
    return position, files


def _list(files: dict[str, bytes], name: str, values: Mapping[Any, Any], rows: int) -> FileRef:
    data, path = msgspec.json.encode(values), f"data/spark/{name}"
    files[path] = data
    return FileRef(path=path, bytes=len(data), checksum=checksum(data), rows=rows)


def store_lists(
    objects: Objects, position: SparkPosition, checkpoint_id: int, read: Mapping[int, Entries] | None = None
) -> SparkPosition:
    """`with_lists`, with the files written."""
    position, files = with_lists(position, checkpoint_id, read)
    put_all(objects, files)
    return position


def load_files(objects: Objects, position: SparkPosition | None) -> SparkPosition | None:
    """``position`` with its list of files, wherever it lies."""
    if position is None or position.files_ref is None:
        return position
    data = read_verified(objects, position.files_ref).to_pybytes()
    try:
        files = msgspec.json.decode(data, type=dict[str, tuple[str, ...]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(position.files_ref, str(error)) from None
    return msgspec.structs.replace(position, files=files, files_ref=None)


def check_same(ours: SparkPosition, planned: SparkPosition) -> None:
    """Raise `IncompatibleError` unless Spark's batch is the one that was committed under its id."""
    for part in ("query_id", "batch_id", "start", "end", "files"):
        expected, found = getattr(ours, part), getattr(planned, part)
        if expected != found:
            raise IncompatibleError(
                f"spark planned a committed batch again with a different {part.replace('_', ' ')}: nothing was "
                "processed; start again, and spark's checkpoint is rewritten from ours",
                code="spark-batch-differs",
                batch=ours.batch_id,
                part=part,
                expected=_short(expected),
                found=_short(found),
            )


def check_follows(head: SparkPosition | None, planned: SparkPosition) -> None:
    """Raise `IncompatibleError` unless Spark's batch begins exactly where our newest checkpoint ends."""
    expected_id, expected_start = (0, ()) if head is None else (head.batch_id + 1, head.end)
    same_query = head is None or head.query_id == planned.query_id
    if planned.batch_id != expected_id or planned.start != expected_start or not same_query:
        raise IncompatibleError(
            "spark's batch does not follow the newest checkpoint: nothing was processed; restore the spark "
            "folder and the manifests from copies made at the same time",
            code="spark-batch-gap",
            expected_batch=expected_id,
            found_batch=planned.batch_id,
            expected_start=_short(expected_start),
            found_start=_short(planned.start),
        )


def check_sources(head: SparkPosition | None, sources: int | None) -> None:
    """Raise `IncompatibleError` unless a query of so many ``sources`` can go on from our newest batch; None is not
    known. Spark's log has a line for each source and no names, so Spark goes on with as many as there were.
    """
    if head is not None and sources is not None and len(head.end) != sources:
        raise IncompatibleError(
            "the job reads another number of sources than spark's checkpoint has offsets of, and spark cannot add or "
            "remove one: give it the DataFrames that it had before, or start with a new folder, which can be "
            "bootstrapped from the history of all sources",
            code="configuration-changed",
            sources_before=len(head.end),
            sources_now=sources,
        )


def _short(value: object, limit: int = 200) -> str:
    text = str(value)
    return text if len(text) <= limit else text[:limit] + "…"
