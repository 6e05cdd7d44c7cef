"""Does a storage that nobody has tried have an atomic create? Ask it, with objects that are removed again."""

from __future__ import annotations

import contextlib
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.dialects.dialect import Dialect

RACERS = 8
ROUNDS = 5


def probe(fs: Any, root: str, scheme: str, dialect: Dialect) -> None:
    """Create objects under ``probe/`` of a root twice, and in races unless the service is known to keep its word
    about them: one creator must win each name.

    Raises `UsageError` when the storage is not fit for a root, and whatever it raises when it could not be asked.
    """
    folder = f"{root}/probe"
    names = [f"{folder}/{uuid.uuid4().hex}" for _ in range(ROUNDS + 1 if dialect.races else 1)]
    try:
        fit = _is_fit(fs, names, dialect)
    finally:
        _remove(fs, names)
    if not fit:
        raise UsageError(
            "this storage lets two writers create the same name, so a checkpoint could be lost: put the "
            "checkpoint root on a local path or on s3, gs or abfs",
            code="no-atomic-create",
            scheme=scheme,
        )


def _is_fit(fs: Any, names: list[str], dialect: Dialect) -> bool:
    try:
        return _one_after_the_other(fs, names[0], dialect) and all(_at_once(fs, name, dialect) for name in names[1:])
    except (NotImplementedError, TypeError, ValueError) as error:
        if dialect.reply(error) is not None:
            raise
        return False  # it knows no such mode, or cannot write at all


def _one_after_the_other(fs: Any, name: str, dialect: Dialect) -> bool:
    try:
        won = _creates(fs, name, b"first", dialect)
    except FileNotFoundError:
        if not dialect.has_folders:  # then it is the bucket that is missing, and that is not ours to make
            raise
        fs.makedirs(fs._parent(name), exist_ok=True)
        won = _creates(fs, name, b"first", dialect)
    return won and not _creates(fs, name, b"second", dialect) and fs.cat_file(name) == b"first"


def _at_once(fs: Any, name: str, dialect: Dialect) -> bool:
    barrier = threading.Barrier(RACERS)

    def race(me: int) -> bytes | None:
        data = f"racer {me}".encode()
        barrier.wait()
        return data if _creates(fs, name, data, dialect) else None

    with ThreadPoolExecutor(RACERS) as threads:
        winners = [data for data in threads.map(race, range(RACERS)) if data is not None]
    return len(winners) == 1 and fs.cat_file(name) == winners[0]


def _creates(fs: Any, name: str, data: bytes, dialect: Dialect) -> bool:
    """Whether this create won, by what it says and, where it says nothing clear, by what is there."""
    try:
        dialect.create(fs, name, data, dialect.upload_limits(len(data)))
    except FileExistsError:
        return False
    except (NotImplementedError, TypeError, ValueError):
        raise
    except Exception:
        stored = _stored(fs, name)
        if stored is None:
            raise
        return stored == data
    return True


def _stored(fs: Any, name: str) -> bytes | None:
    try:
        return bytes(fs.cat_file(name))
    except FileNotFoundError:
        return None


def _remove(fs: Any, names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(Exception):
            fs.rm_file(name)
    with contextlib.suppress(Exception):
        fs.rmdir(fs._parent(names[0]))
