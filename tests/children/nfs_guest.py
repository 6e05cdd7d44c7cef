"""What a host does in a root on NFS: ``python -m tests.children.nfs_guest race START ROUNDS ROOT ME [ROOT ME …]``,
``write ROOT``, ``read ROOT`` or ``doctor ROOT``.
"""

from __future__ import annotations

import os
import sys
import time

from tests.helpers.races import content
from tidestate.statestore.errors import ConflictError
from tidestate.statestore.storage.objects import Objects


def race(start: str, rounds: str, *ways: str) -> None:
    """A process for each root, which begins when the clock says so; each prints what it has won."""
    children = []
    for root, me in zip(ways[::2], ways[1::2], strict=True):
        if (child := os.fork()) == 0:
            _create(Objects(root), int(me), float(start), int(rounds))
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)


def _create(objects: Objects, me: int, start: float, rounds: int) -> None:
    objects.exists("warm")
    if start < time.time():
        print("late", flush=True)
    time.sleep(max(0.0, start - time.time()))
    for number in range(rounds):
        try:
            objects.create(f"m/{number}", content(me))
        except ConflictError:
            if f"{number}" not in objects.names("m"):
                print("unseen", number, flush=True)
        else:
            print("won", number, me, flush=True)


def write(root: str) -> None:
    """Names without end, each said when it is created."""
    objects, number = Objects(root), 0
    while True:
        objects.create(f"m/{number}", content(number))
        print("created", number, flush=True)
        number += 1


def read(root: str) -> None:
    """All names, and whose content they have."""
    objects = Objects(root)
    for name in objects.names("m"):
        data = objects.read(f"m/{name}")
        owner = data.decode().partition("\n")[0].removeprefix("written by ")
        print("found", name, owner if data == content(int(owner or -1)) else "torn", flush=True)


def doctor(root: str) -> None:
    """The trial of a root."""
    from tidestate.recovery.inspect.root_trial import try_root

    trial = try_root(root)
    for check in trial.checks:
        print("check", check.name, check.holds, check.found, flush=True)
    print("trial", trial.storage, "|", trial.fit, flush=True)


if __name__ == "__main__":
    {"race": race, "write": write, "read": read, "doctor": doctor}[sys.argv[1]](*sys.argv[2:])
