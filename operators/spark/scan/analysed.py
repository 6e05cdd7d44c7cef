"""The analysed plan of a DataFrame as plain values. Pure.

Only what the direct scan knows has a kind of its own; anything else has the name of its Java class, and no
expressions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Expression:
    """``id`` is Spark's id of the column that the expression is or makes; ``type`` as in ``simpleString``."""

    kind: str
    id: int = -1
    name: str = ""
    type: str = ""
    value: Any = None
    inside: tuple[Expression, ...] = ()


@dataclass(frozen=True)
class StreamColumn:
    """A column of a relation; ``metadata``: the keys of what Spark knows about it."""

    id: int
    name: str
    type: str
    metadata: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeltaFiles:
    """The files of a Delta table that a batch has, as its connector planned them; all but ``folder`` is JSON of its
    log.
    """

    folder: str
    """Of the table, as a path of Hadoop's, which is not escaped."""
    protocol: str
    metadata: str
    added: str
    """A list of entries."""


@dataclass(frozen=True)
class StreamRelation:
    """A source: its number in Spark's log, the class that reads it, and the columns of the stream; ``partitions``:
    the names of those whose values are in the paths of its files, from the top. ``delta``: the files of a batch, of a
    Delta table in the plan of one.
    """

    source: int
    format: str
    options: Mapping[str, str]
    columns: tuple[StreamColumn, ...]
    partitions: tuple[str, ...] = ()
    bucketed: bool = False
    table: bool = False
    delta: DeltaFiles | None = None


@dataclass(frozen=True)
class PlanStep:
    """A step of the plan. ``expressions``: the columns of a projection, or the condition of a filter; ``source``:
    what Spark calls the source that this leaf reads as a stream, with its ``columns`` and ``options``; ``streaming``:
    whether its rows are a stream.
    """

    kind: str
    expressions: tuple[Expression, ...] = ()
    below: tuple[PlanStep, ...] = ()
    relation: StreamRelation | None = None
    name: str = ""
    source: str | None = None
    streaming: bool = False
    columns: tuple[StreamColumn, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def steps(self) -> Iterator[PlanStep]:
        """This step and all below it, from left to right."""
        yield self
        for step in self.below:
            yield from step.steps()


@dataclass(frozen=True)
class ReaderSettings:
    """Settings of a session by name, and the names of Hadoop's settings that begin with ``parquet.``."""

    spark: Mapping[str, str] = field(default_factory=dict)
    hadoop: tuple[str, ...] = ()
