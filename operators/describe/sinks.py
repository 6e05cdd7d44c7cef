"""What takes the panes of a job, and its late rows: functions of the user's. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
ArrowSinksByOutput = Mapping[str, ArrowSinks]
"""Those of each output of a job that has several."""
SparkSink = Callable[["DataFrame", DeliveryId], bool | None]
"""A sink that takes DataFrames of Spark."""
SparkSinks = SparkSink | Sequence[SparkSink]
"""One, or several."""
SparkSinksByOutput = Mapping[str, SparkSinks]
"""Those of each output of a job that has several."""


class Refused(Exception):
    """Raised by a sink that cannot accept a delivery now."""


@dataclass(frozen=True)
class Emitted:
    """What a job emits of an output, for sinks that store it in a form of their own.

    ``key``: the columns that identify a row together with its window; None for rows that have no identity but
    themselves, as those of a join. ``withdraws``: what no longer counts is retracted. ``partial``: why the newest
    pane of a window is not its result; empty if it is. ``late``: the columns of late rows, by operator. ``is_plain``:
    rows have none of the columns of panes, whatever theirs are called.
    """

    operator: str
    schema: pa.Schema
    key: tuple[str, ...] | None
    withdraws: bool
    partial: str = ""
    late: tuple[pa.Schema, ...] = ()
    is_plain: bool = False


@dataclass(frozen=True)
class Sinks(Generic[_P]):
    """The sinks of a job, one or several of each kind of rows, those of panes by output where there are several
    outputs. Raises `UsageError` for one that is not callable, whose ``ready`` is not, whose ``behind`` is no number,
    or that would store late rows as changes.
    """

    panes: Sink[_P] | Sequence[Sink[_P]] | Mapping[str, Sink[_P] | Sequence[Sink[_P]]] | None = None
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
        each: dict[OutputKind, tuple[Sink[_P], ...]] = {}
        for kind, _, sinks in self.by_output:
            each[kind] = (*each.get(kind, ()), *sinks)
        return each

    @property
    def by_output(self) -> list[tuple[OutputKind, str, tuple[Sink[_P], ...]]]:
        """The sinks that there are, those of panes with their output; without a name where there is one."""
        panes = self.panes if isinstance(self.panes, Mapping) else {"": self.panes}
        given: list[tuple[OutputKind, str, tuple[Sink[_P], ...]]] = [
            *(("panes", name, _several(sinks)) for name, sinks in panes.items()),
            ("late", "", _several(self.late)),
        ]
        return [(kind, name, sinks) for kind, name, sinks in given if sinks]

    def of(self, job: str, several: Sequence[str]) -> Sinks[_P]:
        """The same for a job of this name, or with ``several`` outputs: sinks by output are for outputs that there
        are. Raises `UsageError` (``sink-output``) for others, and for sinks of no output where there are several.
        """
        if not isinstance(self.panes, Mapping):
            if several and self.panes is not None:
                raise UsageError(
                    "this job has several outputs, so say which of them each sink is for: "
                    f'sink={{"{several[0]}": …, "{several[-1]}": …}}',
                    code="sink-output",
                    outputs=list(several),
                )
            return self
        if strange := sorted(map(str, set(self.panes) - {*(several or (job,))})):
            raise UsageError(
                "these sinks are for no output of the job: choose from those listed, or make the operator an output, "
                "job(…)",
                code="sink-output",
                found=strange,
                outputs=list(several or (job,)),
            )
        return self if several else replace(self, panes=self.panes.get(job))

    def fit(self, emitted: Sequence[Emitted], *, on_spark: bool = False) -> None:
        """Before anything is written: let sinks that have a method ``check_settings`` check these, and tell those
        that have a method ``fit``, for late rows ``fit_late``, what the job emits, by output. Raises what they raise,
        and `UsageError`: ``sink-runner`` for one that has ``needs_spark`` where the job is not on Spark,
        ``sink-output`` for one with ``fit`` that gets several outputs.
        """
        for sink in (one for several in self.each.values() for one in several):
            if getattr(sink, "needs_spark", False) and not on_spark:
                raise runner_error(sink_name(sink))
            if hasattr(sink, "check_settings"):
                sink.check_settings()
        fitted: list[Sink[_P]] = []
        by_name = {output.operator: output for output in emitted}
        for kind, name, sinks in self.by_output:
            for sink in sinks if kind == "panes" else ():
                if hasattr(sink, "fit"):
                    _check_once(sink, fitted)
                    sink.fit(by_name[name] if name else emitted[-1])
        for sink in self.each.get("late", ()):
            if hasattr(sink, "fit_late"):
                sink.fit_late(emitted[-1].late)

    @property
    def may_lag(self) -> bool:
        """Whether one of them may be behind."""
        return any(may_be_behind(sink) for several in self.each.values() for sink in several)


def _check_once(sink: Sink[Any], fitted: list[Sink[Any]]) -> None:
    """Raise `UsageError` for a sink that stores the rows of another output already, or upserts into the target of
    one: rows of equal keys would overwrite each other.
    """
    target = getattr(sink, "target", None)
    upserts = [other for other in fitted if target is not None and getattr(other, "target", None) == target]
    if any("upsert" in (sink.changes, other.changes) for other in upserts):  # type: ignore[attr-defined]
        raise UsageError(
            "two outputs would upsert into one target, and overwrite each other's rows: give each its own, or write "
            'changes="append"',
            code="sink-output",
            sink=sink_name(sink),
        )
    if any(sink is other for other in fitted):
        raise UsageError(
            "this sink stores the rows of one output, and is given to several: make one for each output, with a "
            "target of its own",
            code="sink-output",
            sink=sink_name(sink),
        )
    fitted.append(sink)


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
