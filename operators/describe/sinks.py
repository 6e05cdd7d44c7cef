"""What takes the panes of a job, and its late rows: functions of the user's. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from tidestate.recovery.log.manifest import DeliveryId, OutputKind
from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_P = TypeVar("_P")
Sink = Callable[[_P, DeliveryId], bool | None]
"""Called with rows of one checkpoint and the identity of this delivery. False, or `Refused`, is a refusal: the sink
has not taken them, and they are offered again. Any other error ends the job. A sink may have a method ``ready()``;
while that refuses, no input is processed and nothing is offered. Its attribute ``behind``, a number, is how many
checkpoints it may be behind instead.
"""
ArrowSink = Sink[pa.Table]
"""A sink that takes tables."""
ArrowSinks = ArrowSink | Sequence[ArrowSink]
"""One, or several."""
SparkSink = Callable[["DataFrame", DeliveryId], bool | None]
"""A sink that takes DataFrames of Spark."""
SparkSinks = SparkSink | Sequence[SparkSink]
"""One, or several."""


class Refused(Exception):
    """Raised by a sink that cannot accept a delivery now."""


@dataclass(frozen=True)
class Emitted:
    """What a job emits, for sinks that store it in a form of their own.

    ``key``: the columns that identify a row together with its window; None for rows that have no identity but
    themselves, as those of a join. ``withdraws``: what no longer counts is retracted. ``partial``: why the newest
    pane of a window is not its result; empty if it is. ``late``: the columns of late rows, by operator.
    """

    operator: str
    schema: pa.Schema
    key: tuple[str, ...] | None
    withdraws: bool
    partial: str = ""
    late: tuple[pa.Schema, ...] = ()


@dataclass(frozen=True)
class Sinks(Generic[_P]):
    """The sinks of a job, one or several of each kind of rows. Raises `UsageError` for one that is not callable,
    whose ``ready`` is not, whose ``behind`` is no number, or that would store late rows as changes.
    """

    panes: Sink[_P] | Sequence[Sink[_P]] | None = None
    late: Sink[_P] | Sequence[Sink[_P]] | None = None

    def __post_init__(self) -> None:
        for sink in (one for several in self.each.values() for one in several):
            if not callable(sink) or not callable(getattr(sink, "ready", callable)):
                raise UsageError("a sink must be a function, and so must its ready()", code="sink", found=repr(sink))
            if type(may_be_behind(sink)) is not int or may_be_behind(sink) < 0:
                raise UsageError(
                    "behind must be the number of checkpoints that the sink may be behind, 0 or more",
                    code="sink",
                    found=may_be_behind(sink),
                )
        for sink in self.each.get("late", ()):
            if getattr(sink, "changes", "append") != "append":
                raise UsageError(
                    "late rows change nothing that was emitted, so there is nothing to update: give this sink "
                    'changes="append"',
                    code="sink-form",
                    sink=sink_name(sink),
                )

    @property
    def each(self) -> dict[OutputKind, tuple[Sink[_P], ...]]:
        """The sinks that there are."""
        given: dict[OutputKind, tuple[Sink[_P], ...]] = {"panes": _several(self.panes), "late": _several(self.late)}
        return {kind: sinks for kind, sinks in given.items() if sinks}

    def fit(self, emitted: Emitted, *, on_spark: bool = False) -> None:
        """Before anything is written: let sinks that have a method ``check_settings`` check these, and tell those
        that have a method ``fit``, for late rows ``fit_late``, what the job emits. Raises what they raise, and
        `UsageError` (``sink-runner``) for one that has ``needs_spark`` where the job is not on Spark.
        """
        for sink in (one for several in self.each.values() for one in several):
            if getattr(sink, "needs_spark", False) and not on_spark:
                raise runner_error(sink_name(sink))
            if hasattr(sink, "check_settings"):
                sink.check_settings()
        for sink in self.each.get("panes", ()):
            if hasattr(sink, "fit"):
                sink.fit(emitted)
        for sink in self.each.get("late", ()):
            if hasattr(sink, "fit_late"):
                sink.fit_late(emitted.late)

    @property
    def may_lag(self) -> bool:
        """Whether one of them may be behind."""
        return any(may_be_behind(sink) for several in self.each.values() for sink in several)


def runner_error(sink: str) -> UsageError:
    """The error for a job without Spark, where a sink needs it."""
    return UsageError(
        "this sink writes through a catalogue of Spark, and this job has no Spark: use DeltaSink or IcebergSink",
        code="sink-runner",
        sink=sink,
    )


def _several(given: Sink[_P] | Sequence[Sink[_P]] | None) -> tuple[Sink[_P], ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Sequence) and not callable(given) else (given,)  # type: ignore[arg-type]


def may_be_behind(sink: Sink[Any]) -> int:
    """How many checkpoints a sink may be behind, before it holds the intake."""
    found: int = getattr(sink, "behind", 0)
    return found


def sink_name(sink: Sink[Any]) -> str:
    """A sink as logs and metrics name it."""
    kind = type(sink)
    named: str = getattr(sink, "__qualname__", kind.__qualname__)
    return str(sink) if "__str__" in vars(kind) else named
