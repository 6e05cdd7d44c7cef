"""Threads and processes that race to create the same names below one root: each name is won once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

from tests.helpers.checkout import ROOT
from tidestate.statestore.errors import ConflictError
from tidestate.statestore.storage.objects import Objects

RACER = """
import sys
from tidestate.statestore.errors import ConflictError
from tidestate.statestore.storage.objects import Objects
from tests.helpers.races import content
root, me, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
objects = Objects(root)
objects.exists("warm")
print("ready", flush=True)
sys.stdin.readline()
for number in range(rounds):
    try:
        objects.create(f"m/{number}", content(me))
        print(number, flush=True)
    except ConflictError:
        pass
"""


def content(me: int) -> bytes:
    """Longer than a page, different for each racer."""
    return f"written by {me}\n".encode() * 1000


def threads_race(
    objects: Objects, racers: int, rounds: int, name: str = "m/{}", hosts: Sequence[Objects] = ()
) -> dict[int, int]:
    """All racers create the name of each round at once; who won each: one, as its content says, and the others are
    reported so. ``hosts`` are other ways to the same root, which take turns.
    """
    ways = hosts or [objects]
    barrier = threading.Barrier(racers)
    wins: list[tuple[int, int]] = []
    others: list[BaseException] = []

    def race(me: int) -> None:
        for number in range(rounds):
            barrier.wait()
            try:
                ways[me % len(ways)].create(name.format(number), content(me))
                wins.append((number, me))
            except ConflictError:
                pass
            except BaseException as error:
                others.append(error)

    threads = [threading.Thread(target=race, args=(me,)) for me in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert others == []
    won = dict(wins)
    assert len(won) == len(wins)
    assert all(objects.read(name.format(number)) == content(me) for number, me in won.items())
    return won


def processes_race(objects: Objects, racers: int, rounds: int, hosts: Sequence[Objects] = ()) -> dict[int, int]:
    """The same with processes, each for itself from the first name to the last."""
    ways = hosts or [objects]
    children = [child(RACER, ways[me % len(ways)].root, str(me), str(rounds)) for me in range(racers)]
    won: dict[int, int] = {}
    for me, output in enumerate(let_go(children)):
        for line in output.split():
            assert int(line) not in won
            won[int(line)] = me
    assert all(objects.read(f"m/{number}") == content(me) for number, me in won.items())
    return won


def child(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that says "ready" and waits for a line."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def let_go(children: list[subprocess.Popen[str]]) -> list[str]:
    """Start them together once all are ready; what each printed."""
    for process in children:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in children:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60)[0] for process in children]
    assert [process.returncode for process in children] == [0] * len(children)
    return outputs
