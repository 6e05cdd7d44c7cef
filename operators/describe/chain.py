"""What the user writes to let several operators work on each other's panes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidestate.operators.describe.runnable import Runnable, Sided, checked_name
from tidestate.operators.describe.sinks import Sinks, SparkSinks
from tidestate.operators.progress.watermarks import INPUT
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import UsageError

if TYPE_CHECKING:
    from os import PathLike

    from pyspark.sql import DataFrame

    from tidestate.operators.describe.runs import SparkJob
    from tidestate.recovery.retention.rules import CheckpointRetention
    from tidestate.recovery.start.policy import Policy
    from tidestate.statestore.durations import Span
    from tidestate.statestore.spec.store import StoreConfig


class Chain(Runnable, frozen=True):
    """Several operators in one job.

    ``operators`` are ordered: each comes after those it reads. ``inputs`` are parallel to them: the names of the
    streams or earlier operators that each one reads. The job has the name of the last operator and emits its panes.
    Each operator has a configuration of its own.
    """

    operators: tuple[Runnable, ...]
    inputs: tuple[tuple[str, ...], ...]

    @property
    def names(self) -> list[str]:
        """Names of the operators, in order."""
        return [one.name for one in self.operators]

    @property
    def streams(self) -> list[str]:
        """Names of the streams it reads, in order of first use."""
        return list(dict.fromkeys(name for names in self.inputs for name in names if name not in self.names))

    @checked
    def renamed(self, *_: Any, **__: Any) -> Chain:  # type: ignore[override]
        """Raises `UsageError`: call it on the operator whose names have changed."""
        raise UsageError("say it of the operator whose names have changed", code="renamed")

    @checked
    def watermark(self, *_: Any, **__: Any) -> Chain:  # type: ignore[override]
        """Raises `UsageError`: call it on each operator that reads a stream."""
        raise UsageError("say it of the operator that reads the stream", code="chain-watermark")

    @checked
    def on_spark(  # type: ignore[override]
        self,
        streams: DataFrame | Mapping[str, DataFrame],
        *,
        checkpoint: str | PathLike[str],
        store: StoreConfig | None = None,
        sink: SparkSinks | None = None,
        late_sink: SparkSinks | None = None,
        partitions: int | None = None,
        tick: Span | None = None,
        policy: Policy | None = None,
        retain: CheckpointRetention | None = None,
        metrics: int | str | None = None,
        direct_scan: bool = True,
        in_driver: bool = True,
    ) -> SparkJob:
        """Run over streaming DataFrames, by stream name (a single one needs no name), in one Spark query that has the
        offsets of all. An operator with another key adds a shuffle to the batch. Otherwise as `Runnable.on_spark`.
        """
        named = streams if isinstance(streams, Mapping) else dict.fromkeys(self.streams, streams)
        if set(named) != set(self.streams) or (not isinstance(streams, Mapping) and len(named) > 1):
            raise UsageError("give each stream by its name", code="streams", streams=self.streams, found=list(named))
        return self._on_spark(
            named,
            checkpoint=checkpoint,
            store=store,
            sinks=Sinks(sink, late_sink),
            partitions=partitions,
            tick=tick,
            policy=policy,
            retain=retain,
            metrics=metrics,
            direct_scan=direct_scan,
            in_driver=in_driver,
        )


@checked
def chain(*operators: Runnable, inputs: Mapping[str, str | Sequence[str]] | None = None) -> Chain:
    """Several operators in one job. Each reads the panes of the one before it; the first reads the stream ``input``.

    ``inputs`` overrides that, by operator name: the name of an earlier operator or of a stream, one for each side of
    a join, merge or union. An operator's name is its identity in a checkpoint: an added operator begins empty, and
    the others keep their state.
    """
    if not operators or not all(isinstance(one, Runnable) and not isinstance(one, Chain) for one in operators):
        raise UsageError("a chain is of operators: windowed(...), join(...) and so on", code="chain")
    names = [one.name for one in operators]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError("each operator has a name of its own: name=...", code="chain-names", twice=twice)
    given = {name: (one,) if isinstance(one, str) else tuple(one) for name, one in (inputs or {}).items()}
    if strange := sorted(set(given) - set(names)):
        raise UsageError(
            "inputs are of operators of this chain", code="chain-inputs", strange=strange, operators=names
        )
    read = tuple(given.get(name, (names[place - 1] if place else INPUT,)) for place, name in enumerate(names))
    for place, (one, those) in enumerate(zip(operators, read, strict=True)):
        _check_inputs(one, those, names, place)
    made = Chain(tuple(operators), read, name=names[-1])
    if unused := sorted(set(names[:-1]) - {name for those in read for name in those}):
        raise UsageError("no operator reads the panes of these", code="chain-inputs", operators=unused)
    if not made.streams:
        raise UsageError("no operator reads a stream", code="chain-inputs", inputs=given)
    return made


def _check_inputs(one: Runnable, those: tuple[str, ...], names: list[str], place: int) -> None:
    sides = one.sides.names if isinstance(one, Sided) else None
    if len(those) != (len(sides) if sides else 1):
        raise UsageError(
            "an operator reads one stream or operator, and one for each side where it has sides",
            code="chain-inputs",
            operator=one.name,
            sides=sides,
            found=those,
        )
    if later := [name for name in those if name in names[place:]]:
        raise UsageError(
            "an operator reads those before it: put them first", code="chain-inputs", operator=one.name, later=later
        )
    for name in those:
        # Where several streams travel as one, their names stand before their columns, with two of these between.
        if "__" in checked_name(name) and name not in names:
            raise UsageError(
                "the name of a stream has no two underscores side by side", code="chain-inputs", found=name
            )


def streams_of(description: Runnable) -> list[str]:
    """The names of the streams or sides that a description reads, in Spark's order."""
    if isinstance(description, Chain):
        return description.streams
    return list(description.sides.names) if isinstance(description, Sided) else [INPUT]
