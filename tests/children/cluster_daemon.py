"""The parent of Spark's Python workers on a cluster of the tests: Spark's own, but its workers can be stopped in the
middle of a task. A setting of Spark names this module.

A file ``MOMENT-CHECKPOINT`` in the folder ``TIDESTATE_CONTROL`` is an order for one task of that checkpoint. The
first one that comes there renames it to ``stopped-PID`` and stops itself by SIGSTOP. It stays so when its executor
dies, as one on a host that is cut off. If it goes on, it leaves
``wrote-PID`` once its files of state are written. Moments: ``before`` and ``after`` these files.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from pyspark import daemon

from tools.python_daemon import begin_with_imports

_started = daemon.worker


def _stop_at(moment: str, checkpoint: int) -> bool:
    """Stop here if there is an order to; whether there was."""
    folder = Path(os.environ["TIDESTATE_CONTROL"])
    try:
        (folder / f"{moment}-{checkpoint}").rename(folder / f"stopped-{os.getpid()}")
    except FileNotFoundError:
        return False
    os.setsid()  # what ends its executor and the daemon does not reach it
    os.kill(os.getpid(), signal.SIGSTOP)
    return True


def _can_be_stopped() -> None:
    from tidestate.statestore.files.partition_log import PartitionLog

    append = PartitionLog.append

    def stopping(self: PartitionLog, base: Any, changes: Any, sequence: int) -> Any:
        stopped = _stop_at("before", sequence)
        state = append(self, base, changes, sequence)
        if stopped:
            (Path(os.environ["TIDESTATE_CONTROL"]) / f"wrote-{os.getpid()}").touch()
        _stop_at("after", sequence)
        return state

    PartitionLog.append = stopping  # type: ignore[method-assign]


def worker(*arguments: Any) -> int:
    """In the new process."""
    _can_be_stopped()
    return _started(*arguments)


if __name__ == "__main__":
    daemon.worker = worker
    begin_with_imports()
    daemon.manager()
