"""Delivery of panes: a sink is offered the panes of a checkpoint until it accepts them.

At least once, in order. The rows of a `DeliveryId` never change, so a sink that remembers the highest checkpoint it
accepted from each run has every pane exactly once.
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
"""The first and the longest pause between two offers to a sink that refuses; each is twice the one before."""


class Offers:
    """Offers panes to a sink until it accepts them, with growing pauses. Blocks meanwhile.

    ``check`` is called before each offer; its error ends the wait, and the panes stay undelivered.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self.waiting_since_us: int | None = None
        """The processing time since which the sink has refused; None if it does not."""

    def offer(
        self, sink: Sink[_P], panes: _P, delivery_id: DeliveryId, wait: Callable[[float], None] = time.sleep
    ) -> None:
        """Returns when the sink has accepted them. ``wait`` is called with the seconds of each pause. Raises what the
        sink and ``wait`` raise.
        """
        try:
            for pause_s in _pauses():
                self._check()
                if _accepts(sink, panes, delivery_id):
                    break
                if self.waiting_since_us is None:
                    self.waiting_since_us = now_us()
                    log.warning(
                        "the sink refuses the panes of checkpoint %d: no input is processed until it accepts them",
                        delivery_id.checkpoint,
                    )
                wait(pause_s)
            if self.waiting_since_us is not None:
                seconds = (now_us() - self.waiting_since_us) / 1e6
                log.warning("the sink accepted checkpoint %d after %.0f s", delivery_id.checkpoint, seconds)
        finally:
            self.waiting_since_us = None


def _pauses() -> Iterator[float]:
    pause_s = PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _accepts(sink: Sink[_P], panes: _P, delivery_id: DeliveryId) -> bool:
    try:
        return sink(panes, delivery_id) is not False
    except Refused:
        return False


def read_panes(checkpoint: Checkpoint, output: Output, plan: Plan) -> pa.Table:
    """The panes of a checkpoint, in the columns of ``plan`` if it wrote them in these: the output operator of the
    job, or its columns, may have been different then.
    """
    tables = as_written(checkpoint, output.panes)
    of_plan = all(ref.path.startswith(f"panes/{plan.name}/") for ref in output.panes)
    if of_plan and all(_columns(table.schema) == _columns(plan.pane_schema) for table in tables):
        tables = [plan.pane_schema.empty_table(), *(table.cast(plan.pane_schema) for table in tables)]
    return pa.concat_tables(tables)


def _columns(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """Names and types of columns; dictionaries have the type of their values."""
    kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
    return list(zip(schema.names, kinds, strict=True))


def read_rows(checkpoint: Checkpoint, files: tuple[FileRef, ...], schema: pa.Schema) -> pa.Table:
    """The rows of pane or ledger files, whose checksums are verified."""
    tables = [rows.cast(schema) for rows in as_written(checkpoint, files)]
    return pa.concat_tables([schema.empty_table(), *tables])


def as_written(checkpoint: Checkpoint, files: tuple[FileRef, ...]) -> list[pa.Table]:
    """The rows of each pane or ledger file, in its own schema."""
    return [tails.read_file_rows(checkpoint.objects, ref) for ref in files]
