"""Folders for what this host caches: of one user alone, never one that somebody else has made.

The temporary folder belongs to everybody. Who makes a folder there first under a name that can be guessed, or a link
of that name, would read our state or put their own into it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidestate.statestore.errors import UnavailableError, UsageError


def of_this_user(name: str) -> Path:
    """The path of a folder in the system's temporary one, which ``TMPDIR`` chooses. Nothing is made."""
    return Path(temporary_folder()) / f"{name}-{_user()}"


def temporary_folder() -> str:
    """The system's temporary folder. Raises `UnavailableError` where there is none."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise UnavailableError(
            "this host has no writable temporary folder: create one, and name it in TMPDIR",
            code="no-temporary-folder",
        ) from None


def make_private(folder: Path) -> None:
    """Make ``folder`` where it is missing, for this user alone (0700).

    Raises as `check_private`, and `UnavailableError` where it cannot be made.
    """
    if not check_private(folder):
        with _failing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # somebody was faster, maybe another process of ours
                os.mkdir(folder, 0o700)
        check_private(folder)


def check_private(folder: Path) -> bool:
    """Whether it is there.

    Raises `UsageError` (``folder-shared``) for one that is not a folder, belongs to somebody else, or that others may
    read or write; nothing in it was used or changed.
    """
    with _failing(folder):
        try:
            found = os.lstat(folder)  # a link is not followed
        except FileNotFoundError:
            return False
    if reason := _reason(found):
        raise UsageError(
            f"the cache folder of this host {reason}, so it is not used: if you trust its contents, make it "
            "private (chmod 700), else choose another one with cache_dir= or in TMPDIR",
            code="folder-shared",
            folder=str(folder),
        )
    return True


@contextmanager
def _failing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"the cache folder of this host cannot be created ({error.strerror}): choose another one with "
            "cache_dir= or in TMPDIR",
            code="cache-folder",
            folder=str(folder),
        ) from error


def _reason(found: os.stat_result) -> str:
    """Why the folder cannot be used; empty if it can."""
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    if os.name != "posix":
        return ""  # temporary folders are of one user there
    if found.st_uid != _user():
        return "belongs to another user"
    return "can be read or written by others" if found.st_mode & 0o077 else ""


def _user() -> int:
    return os.getuid() if os.name == "posix" else 0
