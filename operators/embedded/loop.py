"""The window operator in a loop: messages from an iterator, panes to a sink, back pressure between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidestate.operators.describe.runs import Batch, several
from tidestate.operators.describe.sinks import ArrowSink
from tidestate.operators.embedded.embedded import EmbeddedOperator
from tidestate.recovery.log.checkpoint import now_us


def run_operator(
    operator: EmbeddedOperator[Any],
    batches: Batch | Iterable[Batch],
    sink: ArrowSink,
    *,
    clock: Callable[[], int] = now_us,
    wait: Callable[[float], None] = time.sleep,
    drain: bool = False,
) -> None:
    """Process every batch and give every pane to ``sink``, in order, at least once each under the same id.

    A batch of a join names its sides: ``{"left": …}``, ``{"right": …}`` or both. While the sink refuses, no batch is
    read: pending panes are in files, and memory does not grow. ``wait`` is called between two offers with the seconds
    to wait, which grow; an error that it raises ends the run, and so does any error of the sink except `Refused`.
    Nothing is lost: the next run begins with the pending panes.
    """
    _deliver(operator, sink, wait)
    for batch in several(batches):
        operator.timeout(clock())
        _deliver(operator, sink, wait)
        _take(operator, batch)
        _deliver(operator, sink, wait)
    operator.timeout(clock())
    if drain:
        operator.drain()
    _deliver(operator, sink, wait)
    operator.flush()


def _take(operator: Any, batch: Any) -> None:
    if isinstance(batch, Mapping):
        operator.add_messages(**batch)
    else:
        operator.add_messages(batch)


def _deliver(operator: EmbeddedOperator[Any], sink: ArrowSink, wait: Callable[[float], None]) -> None:
    for delivery_id in operator.ready:
        operator.offers.offer(sink, operator.deliver(delivery_id).panes, delivery_id, wait)
        operator.acknowledge(delivery_id)
