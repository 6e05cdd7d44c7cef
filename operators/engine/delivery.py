"""Delivering panes: what a sink is, how it is offered panes until it takes them, and how they are read.

At least once, in order. The rows under one `DeliveryId` are always the same, so a sink that remembers the highest
checkpoint that it took of each run has every pane exactly once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow as pa

from tidestate.operators.describe.sinks import Refused, Sink
from tidestate.operators.plan.plan import Plan
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.log.outputs import DeliveryId, Output
from tidestate.statestore.files import tails
from tidestate.statestore.files.refs import FileRef

log = logging.getLogger("tidestate")

_P = TypeVar("_P")
PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0
"""Between two offers to a sink that refuses: at first, and at most; it doubles."""


class Offers:
    """Offers panes to a sink until it takes them, with growing pauses; meanwhile nothing else is done.

    ``check`` is called before each offer; what it raises ends the waiting, with the panes not delivered.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self.waiting_since_us: int | None = None
        """Since when the sink has refused; None while it does not."""

    def make(
        self, sink: Sink[_P], panes: _P, delivery_id: DeliveryId, wait: Callable[[float], None] = time.sleep
    ) -> None:
        """Returns when the sink has taken them. An error of the sink passes through, and one of ``wait``, which is
        called with the seconds of each pause.
        """
        try:
            for pause_s in _pauses():
                self._check()
                if _takes(sink, panes, delivery_id):
                    break
                if self.waiting_since_us is None:
                    self.waiting_since_us = now_us()
                    log.warning(
                        "waiting for the sink since now: it refuses the panes of checkpoint %d, "
                        "and no input is taken until it takes them",
                        delivery_id.checkpoint,
                    )
                wait(pause_s)
            if self.waiting_since_us is not None:
                seconds = (now_us() - self.waiting_since_us) / 1e6
                log.warning("the sink took checkpoint %d after %.0f s", delivery_id.checkpoint, seconds)
        finally:
            self.waiting_since_us = None


def _pauses() -> Iterator[float]:
    pause_s = PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _takes(sink: Sink[_P], panes: _P, delivery_id: DeliveryId) -> bool:
    try:
        return sink(panes, delivery_id) is not False
    except Refused:
        return False


def read_panes(checkpoint: Checkpoint, output: Output, plan: Plan) -> pa.Table:
    """The panes of a checkpoint: of ``plan``, or as they are where another operator was then the last of the job, or
    the same one with other columns.
    """
    tables = as_written(checkpoint, output.panes)
    own = all(ref.path.startswith(f"panes/{plan.name}/") for ref in output.panes)
    if own and all(_columns(table.schema) == _columns(plan.pane_schema) for table in tables):
        tables = [plan.pane_schema.empty_table(), *(table.cast(plan.pane_schema) for table in tables)]
    return pa.concat_tables(tables)


def _columns(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """Names and types, whether columns are written as dictionaries or not."""
    kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
    return list(zip(schema.names, kinds, strict=True))


def read_rows(checkpoint: Checkpoint, files: tuple[FileRef, ...], schema: pa.Schema) -> pa.Table:
    """The rows of pane or ledger files, checked against their checksums."""
    tables = [rows.cast(schema) for rows in as_written(checkpoint, files)]
    return pa.concat_tables([schema.empty_table(), *tables])


def as_written(checkpoint: Checkpoint, files: tuple[FileRef, ...]) -> list[pa.Table]:
    """The rows of each pane or ledger file."""
    return [tails.read_file_rows(checkpoint.objects, ref) for ref in files]
