"""A process that applies seeded change sets to a store until it is killed, and says how far it has come."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from random import Random
from typing import IO, cast

from tidestate.statestore.testing.contract_opening import Opening
from tidestate.statestore.testing.generated import applied, seeded_changes
from tidestate.statestore.testing.rows import promise
from tidestate.statestore.testing.tables import SPECS

MOST_STEPS = 400
"""Change sets after which a child that nobody kills gives up."""


def child_main(contract: str, folder: str, seed: str) -> None:
    """Apply change sets to the store of ``module:Class`` in ``folder``; one line for each that is applied."""
    module, _, name = contract.partition(":")
    kind: type[Opening] = getattr(import_module(module), name)
    store = kind().open(SPECS, Path(folder))
    print(store.applied.sequence, flush=True)
    for sequence in range(store.applied.sequence + 1, MOST_STEPS):
        store.apply(seeded_changes(int(seed), sequence), applied(sequence))
        print(sequence, flush=True)
    store.close()


def killed_child(kind: type[Opening], folder: Path, seed: int) -> int:
    """Run a child and kill it at a random moment; the last sequence that it reported as applied."""
    random = Random(seed)
    command = [sys.executable, "-m", "tidestate.statestore.testing.child", f"{kind.__module__}:{kind.__qualname__}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [*command, str(folder), str(seed)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        lines = cast(IO[str], process.stdout)
        lines_read = [lines.readline() for _ in range(random.randrange(1, 40))]
        time.sleep(random.random() / 100)  # into the middle of something
        process.kill()
        lines_read += lines.read().split("\n")
    promise(process.returncode <= 0, "change sets apply in a process of their own", status=process.returncode)
    return max(int(line) for line in lines_read if line.strip())


if __name__ == "__main__":
    child_main(*sys.argv[1:])
