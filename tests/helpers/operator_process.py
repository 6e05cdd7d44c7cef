"""An operator by hand that runs through its batches in a process of its own, and dies where it is told to."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa

from tests.helpers.operator_messages import plain
from tidestate.operators import JoinOperator, WindowOperator

Operator = WindowOperator | JoinOperator
Batch = dict[str, pa.Table] | pa.Table
"""As `WindowOperator.add_messages` takes it: by side where there are sides."""


def killing_hook(death: str) -> Callable[[str, int], None]:
    """A hook that prints each moment; ``MOMENT:ID`` is where the process kills itself, at that checkpoint or the
    first one after it.
    """
    killed_at, _, least = death.partition(":")

    def hook(moment: str, checkpoint_id: int) -> None:
        print(moment, checkpoint_id, flush=True)
        if moment == killed_at and checkpoint_id >= int(least):
            # No handler and no ``finally`` runs.
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def run_operator(
    operator: Operator, batches: Iterable[Batch], results: str, hook: Callable[[str, int], None]
) -> None:
    """Give it all batches, then drain it. Each result is appended to ``results``, a line per checkpoint, before it is
    acknowledged; between the two the hook is called with ``received``.
    """

    def take_results() -> None:
        for result in operator.get_result():
            with Path(results).open("a") as file:
                file.write(json.dumps([result.id.checkpoint, plain(result.panes)], default=str) + "\n")
            # Killed here it gets the same result again, and the test drops the second one by its checkpoint.
            hook("received", result.id.checkpoint)
            operator.acknowledge(result.id)
        operator.flush()

    with operator:
        for batch in [] if operator.drained else batches:
            operator.add_messages(**batch) if isinstance(batch, dict) else operator.add_messages(batch)
            take_results()
        operator.drain()
        take_results()
    print("done", flush=True)
