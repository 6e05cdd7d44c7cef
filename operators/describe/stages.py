"""Stages of a stream, as the operators that read it store them: what happens to its rows, in this order, before
anything of the operator sees them. Pure.

Each kind names the columns that it reads and makes, so that which columns a job reads of its input, and which ones
its operators see, follow from the description alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import msgspec

from tidestate.operators.expressions.tree import ExprNode, columns_needed

TimeUnit = Literal["s", "ms", "us", "ns"]
"""The unit of times that are numbers, counted from 1970 in UTC."""


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """One step of the rows. Kinds that are stored have a tag."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that it needs."""
        raise NotImplementedError

    @property
    def makes(self) -> tuple[str, ...]:
        """The columns that it adds, or puts in the place of those of the same name."""
        raise NotImplementedError

    @property
    def drops(self) -> tuple[str, ...]:
        """The columns that are gone after it, unless it makes them again."""
        return ()


class DecodedField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column that values are decoded into. ``type``: as `tidestate.statestore.spec.arrowtypes` writes it."""

    name: str
    type: str


class Decode(Stage, frozen=True, kw_only=True, tag="decode"):
    """Values of one column are parsed into columns, and take its place. Rows whose value is no such object are in the
    late ledger, ``undecodable``. ``epoch``: the unit of times that are numbers; without one they are ISO 8601 texts.
    """

    format: Literal["json"] = "json"
    column: str
    schema: tuple[DecodedField, ...]
    epoch: TimeUnit | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def makes(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.schema)

    @property
    def drops(self) -> tuple[str, ...]:
        return (self.column,)


class Compute(Stage, frozen=True, kw_only=True, tag="with_columns"):
    """Columns are added or replaced by what is computed of the row as it was before this stage."""

    needs: ClassVar[tuple[str, ...]] = ("expressions/1",)
    columns: dict[str, ExprNode]

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for tree in self.columns.values() for name in columns_needed(tree)))

    @property
    def makes(self) -> tuple[str, ...]:
        return tuple(self.columns)


class Filter(Stage, frozen=True, kw_only=True, tag="where"):
    """Rows whose condition is not true are left out: they are in no result and no ledger, but count for the watermark
    as if they were there.
    """

    needs: ClassVar[tuple[str, ...]] = ("expressions/1",)
    condition: ExprNode

    @property
    def reads(self) -> tuple[str, ...]:
        return columns_needed(self.condition)

    @property
    def makes(self) -> tuple[str, ...]:
        return ()


StoredStage = Decode | Compute | Filter
"""Every kind of stage that a manifest may hold."""


def columns_after(stages: Sequence[Stage], columns: Iterable[str]) -> list[str]:
    """The columns that rows with ``columns`` have after the stages."""
    names = list(columns)
    for stage in stages:
        lost_names = {*stage.drops, *stage.makes}
        names = [*(name for name in names if name not in lost_names), *stage.makes]
    return names


def columns_before(stages: Sequence[Stage], seen_names: Iterable[str]) -> list[str]:
    """The columns of the stream that are read where an operator sees ``seen_names`` after the stages. A
    field of a struct, ``payload.user``, comes from whoever makes the struct.
    """
    names = list(seen_names)
    for stage in reversed(stages):
        made_names = set(stage.makes)
        names = [*stage.reads, *(name for name in names if not {name, name.partition(".")[0]} & made_names)]
    return list(dict.fromkeys(names))
