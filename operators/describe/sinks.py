"""What takes the panes of a job, and its late rows: functions of the user's. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from tidestate.recovery.log.manifest import OutputKind
from tidestate.recovery.log.outputs import DeliveryId
from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_P = TypeVar("_P")
Sink = Callable[[_P, DeliveryId], bool | None]
"""Called with rows of one checkpoint and the identity of this delivery. False, or `Refused`, is a refusal: the sink
has not taken them, and they are offered again. Any other error ends the job. A sink may have a method ``ready()``;
while that refuses, no input is processed and nothing is offered.
"""
ArrowSink = Sink[pa.Table]
"""A sink that takes tables."""
SparkSink = Callable[["DataFrame", DeliveryId], bool | None]
"""A sink that takes DataFrames of Spark."""


class Refused(Exception):
    """Raised by a sink that cannot accept a delivery now."""


@dataclass(frozen=True)
class Sinks(Generic[_P]):
    """The sinks of a job. Raises `UsageError` for one that is not callable, or whose ``ready`` is not."""

    panes: Sink[_P] | None = None
    late: Sink[_P] | None = None

    def __post_init__(self) -> None:
        for sink in self.each.values():
            if not callable(sink) or not callable(getattr(sink, "ready", callable)):
                raise UsageError("a sink is a function, and its ready() one too", code="sink", found=repr(sink))

    @property
    def each(self) -> dict[OutputKind, Sink[_P]]:
        """The sinks that there are."""
        given: dict[OutputKind, Sink[_P] | None] = {"panes": self.panes, "late": self.late}
        return {kind: sink for kind, sink in given.items() if sink is not None}


def is_ready(sink: Sink[Any]) -> bool:
    """Whether a sink takes deliveries now, as far as it says. Raises what its ``ready`` raises, but not `Refused`."""
    return not hasattr(sink, "ready") or accepts(sink.ready)


def accepts(answer: Callable[[], object]) -> bool:
    """Whether a call of a sink's is no refusal."""
    try:
        return answer() is not False
    except Refused:
        return False
