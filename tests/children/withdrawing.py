"""A withdrawal that is killed: ``python -m tests.children.withdrawing TARGET FORM ROOT``, in a folder after its first
file, in a table before its transaction is committed.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tests.helpers.targets import target_of
from tidestate.operators.sinks.postgres import PostgresSink
from tidestate.operators.sinks.withdrawal import execute_withdrawal, plan_withdrawal
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.storage.objects import Objects


def main(target: str, form: str, root: str) -> None:
    """Die on the way."""
    sink = target_of(target).sink(form, delivery_column="delivery")  # type: ignore[arg-type]
    planned = plan_withdrawal(Checkpoint.open(root), sink)
    _die_after(Objects, "delete", times=2 if target.startswith("parquet_by_day:") else 1)  # a mark, then a file
    _die_after(PostgresSink, "_delete")
    if target.startswith(("delta:", "delta_by_day:")):
        import deltalake

        _die_after(deltalake.DeltaTable, "delete", calls=False)
    if target.startswith(("iceberg:", "iceberg_by_day:")):
        from pyiceberg.table import Transaction

        _die_after(Transaction, "commit_transaction", calls=False)
    execute_withdrawal(Checkpoint.open(root), sink, planned)


def _die_after(kind: Any, name: str, *, calls: bool = True, times: int = 1) -> None:
    """At the last of so many calls of a method; of one that is the commit itself before it is called."""
    method, left = getattr(kind, name), times

    def killed(*given: Any, **named: Any) -> None:
        nonlocal left
        left -= 1
        if calls:
            method(*given, **named)
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(kind, name, killed)


if __name__ == "__main__":
    main(*sys.argv[1:])
