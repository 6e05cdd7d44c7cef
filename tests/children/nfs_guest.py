"""What a host does in a root on NFS: ``python -m tests.children.nfs_guest race ROUNDS ROOT ME [ROOT ME …]``,
``write ROOT``, ``read ROOT`` or ``doctor ROOT``.
"""

from __future__ import annotations

import os
import sys

from tests.helpers.races import content
from tidestate.statestore.errors import ConflictError
from tidestate.statestore.storage.objects import Objects


def race(rounds: str, *ways: str) -> None:
    """A process for each root. It says ``ready`` when all are, and lets them go at the next line of its input."""
    warm, is_warm = os.pipe()
    gate, keeps_shut = os.pipe()
    racers = []
    for root, me in zip(ways[::2], ways[1::2], strict=True):
        if (racer := os.fork()) == 0:
            os.close(keeps_shut)
            objects = Objects(root)
            objects.exists("warm")
            os.write(is_warm, b".")
            os.read(gate, 1)  # until nobody keeps it shut
            _create(objects, int(me), int(rounds))
            os._exit(0)
        racers.append(racer)
    for _ in racers:
        os.read(warm, 1)
    print("ready", flush=True)
    sys.stdin.readline()
    os.close(keeps_shut)
    assert all(os.waitpid(racer, 0)[1] == 0 for racer in racers)


def _create(objects: Objects, me: int, rounds: int) -> None:
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
