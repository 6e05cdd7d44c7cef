"""A local file system that fails at any one system call: all errors are ours, and tell the truth about a create."""

from __future__ import annotations

import builtins
import errno
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tidestate.statestore.errors import CommitUnknownError, ConflictError, UnavailableError
from tidestate.statestore.storage.objects import Objects

CALLS = [(os, name) for name in ("link", "unlink", "fsync", "open", "mkdir", "rename", "listdir", "stat")]
PLACES: list[tuple[Any, str]] = [*CALLS, (builtins, "open")]
UNLINK = (os, "unlink")


class Failing:
    """System calls of which number ``at`` fails, before or after its effect; if ``stuck``, each `os.unlink` too."""

    def __init__(self, at: int, *, after: bool = False, stuck: bool = False) -> None:
        self.at, self.after, self.stuck = at, after, stuck
        self.count = 0

    def wrapped(self, place: tuple[Any, str], call: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            fails = self.count == self.at or (self.stuck and place == UNLINK)
            if fails and not self.after:
                raise OSError(errno.EIO, "Input/output error")
            found = call(*arguments, **options)
            if fails:
                if hasattr(found, "close"):
                    found.close()
                raise OSError(errno.EIO, "Input/output error")
            return found

        return attempt


@contextmanager
def failing(faults: Failing) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in PLACES:
            patch.setattr(owner, name, faults.wrapped((owner, name), getattr(owner, name)))
        yield


def write_big(objects: Objects) -> None:
    with objects.writer("new/big") as sink:
        sink.write(b"data")


ACTS: dict[str, Callable[[Objects], object]] = {
    "put": lambda objects: objects.put("new/put", b"data"),
    "note": lambda objects: objects.note("new/note", b"data"),
    "writer": write_big,
    "read": lambda objects: objects.read("old"),
    "map": lambda objects: objects.map("old"),
    "open": lambda objects: objects.open_input("old").close(),
    "size": lambda objects: objects.size("old"),
    "names": lambda objects: objects.names(""),
    "unfinished": lambda objects: objects.unfinished(""),
    "delete": lambda objects: objects.delete("old"),
    "move": lambda objects: objects.move("folder", "aside/folder"),
}


def every(folder: Path) -> Iterator[tuple[Failing, Objects]]:
    """Each fault with a root of its own, until there is no such call."""
    for number in itertools.count(1):
        met = False
        for after, stuck in ((False, False), (True, False), (False, True)):
            objects = Objects(folder / f"{number}-{after}-{stuck}")
            objects.put("old", b"data")
            objects.put("folder/file", b"data")
            faults = Failing(number, after=after, stuck=stuck)
            yield faults, objects
            met |= faults.count >= number
        if not met:
            return


@pytest.mark.parametrize("act", ACTS)
def test_errors_are_ours_whatever_call_fails(act: str, tmp_path: Path) -> None:
    for faults, objects in every(tmp_path):
        with failing(faults), suppress(UnavailableError):
            ACTS[act](objects)
        if act == "note" and objects.exists("new/note"):
            assert objects.read("new/note") == b"data"


@pytest.mark.parametrize("taken", [False, True])
def test_a_create_says_what_has_happened(taken: bool, tmp_path: Path) -> None:
    answered = set()
    for faults, objects in every(tmp_path):
        if taken:
            objects.create("m/1", b"first")
        with failing(faults):
            try:
                objects.create("m/1", b"data")
                outcome = "made"
            except ConflictError:
                outcome = "taken"
            except UnavailableError:
                outcome = "nothing"
            except CommitUnknownError:
                outcome = "unknown"
        there = objects.read("m/1") if objects.exists("m/1") else None
        expected = {"made": [b"data"], "taken": [b"first"], "nothing": [b"first" if taken else None]}
        assert there in expected.get(outcome, [b"data", b"first" if taken else None]), (vars(faults), outcome)
        answered.add(outcome)
    assert answered == {"taken" if taken else "made", "nothing", "unknown"}


def test_a_link_whose_reply_was_lost_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        if Path(target).is_relative_to(tmp_path):
            link(source, target)  # as a network file system repeats it, which finds its own

    monkeypatch.setattr(os, "link", twice)
    objects = Objects(tmp_path)
    objects.create("m/1", b"data")
    write_big(objects)
    assert (objects.read("m/1"), objects.read("new/big")) == (b"data", b"data")
    with pytest.raises(ConflictError):
        objects.create("m/1", b"other")
