"""A process that races for names below a root, which `racer_command` starts.

The first line that it reads is the root, see `sent_root`: credentials do not belong among arguments, which every user
of a host can read. It says ``ready`` and waits for a second line; then its threads create the names ``0`` to one less
than their count in the folder that the line names, and it prints what each came to, as JSON.
"""

from __future__ import annotations

import base64
import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

from tidestate.statestore.errors import ConflictError, TidestateError
from tidestate.statestore.storage.objects import Objects

RACING_THREADS = 4
"""Of each process that races."""


def race_for(objects: Objects, folder: str, me: str, count: int) -> list[dict[str, str]]:
    """For each thread the names that it has won (empty text), or failed to create (the error). Names that others have
    won are left out.
    """

    def race(thread: int) -> dict[str, str]:
        outcomes = {}
        for number in range(count):
            try:
                objects.create(f"{folder}/{number}", racer_content(me, thread))
                outcomes[str(number)] = ""
            except ConflictError:
                continue
            except TidestateError as error:
                outcomes[str(number)] = str(error)
        return outcomes

    with ThreadPoolExecutor(RACING_THREADS) as threads:
        return list(threads.map(race, range(RACING_THREADS)))


def racer_content(me: str, thread: int) -> bytes:
    """What a thread of a racing process writes; it is its write id too."""
    return f"racer {me}, thread {thread}\n".encode() * 40


def sent_root(root: str) -> str:
    """A root as a line for a racer, with the options that it carries."""
    return f"{base64.b64encode(pickle.dumps(root)).decode()}\n"


def racer_command(me: str, count: int) -> list[str]:
    """What starts a racer. It imports from where this process does: not from the folder that it starts in, and not by
    variables of Python's, of which a wrong one (``PYTHONHASHSEED``) ends a process as it begins.
    """
    run = (
        f"import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from {__name__} import run_racer; run_racer()"
    )
    return [sys.executable, "-I", "-c", run, json.dumps(sys.path), me, str(count)]


def run_racer() -> None:
    """Race once, when told to."""
    me, count = sys.argv[1], int(sys.argv[2])
    objects = Objects(pickle.loads(base64.b64decode(sys.stdin.readline())))
    objects.exists("warm")  # connections are made before the race
    print("ready", flush=True)
    folder = sys.stdin.readline().strip()
    print(json.dumps(race_for(objects, folder, me, count)), flush=True)
