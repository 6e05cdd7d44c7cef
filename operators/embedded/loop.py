"""The window operator in a loop: messages from an iterator, panes to a sink, back pressure between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidestate.operators.describe.runs import Batch, several
from tidestate.operators.describe.sinks import ArrowSinks, Sinks
from tidestate.operators.embedded.operator import EmbeddedOperator
from tidestate.operators.engine.delivery import PATIENCE_S
from tidestate.recovery.log.checkpoint import now_us
from tidestate.statestore.arguments import checked


@checked
def run_operator(
    operator: EmbeddedOperator[Any],
    batches: Batch | Iterable[Batch],
    sink: ArrowSinks,
    *,
    clock: Callable[[], int] = now_us,
    wait: Callable[[float], None] = time.sleep,
    drain: bool = False,
    late_sink: ArrowSinks | None = None,
    timeout_s: float | None = PATIENCE_S,
) -> None:
    """Process every batch and give every pane to ``sink``, in order, at least once each under the same id; and the
    rows of the late ledger to ``late_sink``.

    A batch of a join names its sides: ``{"left": …}``, ``{"right": …}`` or both. While a sink refuses, or its
    ``ready()`` does, no batch is processed and no source is idle: pending output is in files, and memory does not
    grow. ``wait`` is called between two offers with the seconds to wait, which grow; an error that it raises ends the
    run, and so does any error of a sink except `Refused`. Nothing is lost: the next run begins with what is pending.
    After a ``drain`` the last panes are offered for ``timeout_s`` (None: forever), then `UnavailableError`
    (``sink-refuses``) is raised.
    """
    sinks = Sinks(sink, late_sink)

    def deliver() -> None:
        operator.deliver_to(sinks, wait)
        operator.skip_idle_time(clock())

    deliver()
    for batch in several(batches):
        arrived = clock()  # time stands still while a sink holds the batch
        operator.hold(sinks, wait)
        operator.timeout(arrived)
        operator.deliver_to(sinks, wait)
        _take(operator, batch)
        deliver()
    if not operator.drained:
        operator.timeout(clock())
    if drain:
        operator.drain()
    if late_sink is not None:
        operator.flush()  # rows of the ledger may not be in a checkpoint yet
    operator.deliver_to(sinks, wait, timeout_s if drain else None)
    operator.flush()


def _take(operator: Any, batch: Any) -> None:
    if isinstance(batch, Mapping):
        operator.add_messages(**batch)
    else:
        operator.add_messages(batch)
