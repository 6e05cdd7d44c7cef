"""The window operator in a loop: messages from an iterator, panes to a sink, back pressure between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from operators.window_operator.joining import JoinOperator
from operators.window_operator.operator import WindowOperator
from recovery.checkpoint import now_us

Sink = Callable[[pa.Table, int], bool | None]
"""Called with the panes of one checkpoint and its id. False, or `Refused`, is a refusal: they are offered again."""


class Refused(Exception):
    """A sink raises it when it can take nothing now."""


def pause() -> None:
    """Between two offers to a sink that refuses."""
    time.sleep(0.05)


def run_operator(
    operator: WindowOperator | JoinOperator,
    batches: Iterable[pa.Table | pa.RecordBatch] | Iterable[Mapping[str, pa.Table | pa.RecordBatch]],
    sink: Sink,
    *,
    clock: Callable[[], int] = now_us,
    wait: Callable[[], None] = pause,
    drain: bool = False,
) -> None:
    """Take every batch in and give every pane to ``sink``, in order, at least once each under the same id.

    A batch of a join has its sides by name, ``{"left": …}`` or ``{"right": …}`` or both.
    While the sink refuses, nothing is taken from ``batches``: what is pending is in files, and memory stays as it
    is. ``wait`` is called between two offers; what it raises ends the run, and so does any error of the sink but
    `Refused`. Nothing is lost by that: the next run begins with what was not taken.
    """
    _deliver(operator, sink, wait)
    for batch in batches:
        operator.timeout(clock())
        _deliver(operator, sink, wait)
        _take(operator, batch)
        _deliver(operator, sink, wait)
    operator.timeout(clock())
    if drain:
        operator.drain()
    _deliver(operator, sink, wait)
    operator.flush()


def _take(operator: WindowOperator | JoinOperator, batch: Any) -> None:
    if isinstance(operator, JoinOperator):
        operator.add_messages(**batch)
    else:
        operator.add_messages(batch)


def _deliver(operator: WindowOperator | JoinOperator, sink: Sink, wait: Callable[[], None]) -> None:
    for checkpoint_id in operator.ready:
        result = operator.deliver(checkpoint_id)
        while not _takes(sink, result.panes, result.id):
            wait()
        operator.delivered(result.id)


def _takes(sink: Sink, panes: pa.Table, checkpoint_id: int) -> bool:
    try:
        return sink(panes, checkpoint_id) is not False
    except Refused:
        return False
