"""Files of Spark's own checkpoint, read strictly: the query id, and the planned and committed batches."""

from __future__ import annotations

import json
import zlib
from contextlib import suppress

from tidestate.recovery.log.manifest import spark_number
from tidestate.statestore.errors import CorruptionError, NotFoundError
from tidestate.statestore.storage.objects import Objects

SPARK_FOLDER = "spark"
UNREADABLE = (ValueError, KeyError, TypeError, RecursionError)
"""What is raised where JSON is not of the expected form."""
_HADOOP_SUMS = b"crc\x00"


def query_id(objects: Objects, folder: str = SPARK_FOLDER) -> str | None:
    """Spark's id of the query, None while Spark has no checkpoint."""
    path = f"{folder}/metadata"
    try:
        data = read_file(objects, path)
    except NotFoundError:
        return None
    try:
        found = json.loads(data)["id"]
        if not isinstance(found, str):
            raise TypeError("the id is not text")
        found.encode()  # half a character passes as JSON
    except UNREADABLE:
        raise garbled(path, data) from None
    return found


def newest(objects: Objects, folder: str) -> int | None:
    """The highest batch id in a folder of the log, ``offsets`` or ``commits``."""
    numbers = map(spark_number, objects.names(folder))
    return max((number for number in numbers if number is not None), default=None)


def read_file(objects: Objects, path: str) -> bytes:
    """All bytes of a file. Raises `CorruptionError` if they do not match Hadoop's checksums."""
    data = objects.read(path)
    if objects.atomic_create == "link":  # Hadoop writes them for local files alone
        folder, _, name = path.rpartition("/")
        with suppress(NotFoundError):
            if not _fits(data, objects.read(f"{folder}/.{name}.crc")):
                raise unusable(path, "it does not match its checksums")
    return data


def _fits(data: bytes, sums: bytes) -> bool:
    """Whether bytes match Hadoop's checksums: a header, the bytes per sum, CRC-32 of each. As in Hadoop, a damaged
    header is ignored and damaged sums are an error.
    """
    if not sums.startswith(_HADOOP_SUMS) or len(sums) < 8:
        return True
    size = int.from_bytes(sums[4:8], "big")
    if size <= 0:
        return False
    expected = [zlib.crc32(data[at : at + size]).to_bytes(4, "big") for at in range(0, len(data), size)]
    return sums[8 : 8 + 4 * len(expected)] == b"".join(expected)


def garbled(path: str, data: bytes) -> CorruptionError:
    """The error for a file whose bytes are not what Spark writes."""
    if not data:
        return unusable(path, "it is empty")
    return unusable(path, "it is truncated or garbled" if data.strip(b"\x00") else "it is full of zeros")


def lost(path: str) -> CorruptionError:
    """The error for a file that is missing."""
    return unusable(path, "it is gone")


def unusable(path: str, why: str) -> CorruptionError:
    """The error for a file that cannot be trusted."""
    return CorruptionError(
        f"a file of spark's checkpoint cannot be used ({why}): rewrite it with tidestate repair ROOT --resync-spark",
        code="spark-log-damaged",
        path=path,
        why=why,
    )
