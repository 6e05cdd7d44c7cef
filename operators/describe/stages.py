"""Stages of a stream, as the operators that read it store them: what happens to its rows, in this order, before
anything of the operator sees them. Pure.

Each kind names the columns that it reads and makes, so that which columns a job reads of its input, and which ones
its operators see, follow from the description alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

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


StoredStage = Decode
"""Every kind of stage that a manifest may hold."""


def columns_after(stages: Sequence[Stage], columns: Iterable[str]) -> list[str]:
    """The columns that rows with ``columns`` have after the stages."""
    names = list(columns)
    for stage in stages:
        lost_names = {*stage.drops, *stage.makes}
        names = [*(name for name in names if name not in lost_names), *stage.makes]
    return names


def types_after(stages: Sequence[StoredStage], types: Mapping[str, str]) -> dict[str, str]:
    """The types of columns after the stages, as manifests write them."""
    after = dict(types)
    for stage in stages:
        lost_names = {*stage.drops, *stage.makes}
        after = {name: kind for name, kind in after.items() if name not in lost_names}
        after |= {field.name: field.type for field in stage.schema}
    return after


def columns_before(stages: Sequence[Stage], seen_names: Iterable[str]) -> list[str]:
    """The columns of the stream that are read where an operator sees ``seen_names`` after the stages. A
    field of a struct, ``payload.user``, comes from whoever makes the struct.
    """
    names = list(seen_names)
    for stage in reversed(stages):
        made_names = set(stage.makes)
        names = [*stage.reads, *(name for name in names if not {name, name.partition(".")[0]} & made_names)]
    return list(dict.fromkeys(names))
