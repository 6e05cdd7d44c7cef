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
    """A process for each root. When all are there for a name it says ``ready``; the next line of its input lets
    them go at once.
    """
    there, is_there = os.pipe()
    gates = []
    for root, me in zip(ways[::2], ways[1::2], strict=True):
        gate, opens = os.pipe()
        if os.fork() == 0:
            _race(Objects(root), int(me), int(rounds), is_there, gate)
            os._exit(0)
        gates.append(opens)
    for _ in range(int(rounds)):
        _all_are(gates, there)
        sys.stdin.readline()
        for opens in gates:
            os.write(opens, b".")
    _all_are(gates, there)


def _all_are(gates: list[int], there: int) -> None:
    for _ in gates:
        os.read(there, 1)
    print("ready", flush=True)


def _race(objects: Objects, me: int, rounds: int, is_there: int, gate: int) -> None:
    objects.exists("warm")
    for number in range(rounds):
        os.write(is_there, b".")
        os.read(gate, 1)
        try:
            objects.create(f"m/{number}", content(me))
        except ConflictError:
            seen = "lost" if str(number) in objects.names("m") else "unseen"
            print(seen, number, me, flush=True)
        else:
            print("won", number, me, flush=True)
    os.write(is_there, b".")


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
