"""Stages of a stream, as the operators that read it store them: what happens to its rows, in this order, before
anything of the operator sees them. Pure.

Each kind names the columns that it reads and makes, so that which columns a job reads of its input, and which ones
its operators see, follow from the description alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from tidestate.operators.expressions.tree import ExprNode, columns_needed
from tidestate.statestore.errors import UsageError

Otherwise = Literal["ledger", "count", "fail"]
"""What becomes of a row that does not meet an expectation."""
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

    def after(self, names: Iterable[str]) -> list[str]:
        """The columns of rows after it that have these before: what it makes comes last."""
        made_names = self.makes
        return [*(name for name in names if name not in made_names), *made_names]


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

    def after(self, names: Iterable[str]) -> list[str]:
        return super().after(name for name in names if name != self.column)


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


class Select(Compute, frozen=True, kw_only=True, tag="select"):
    """Rows have the columns ``names``, in this order, and behind them those that are computed of the row as it was
    before this stage. ``keeps``: those that stay as well where the rows have them: an operator's output tells its
    readers by them when a row happened and whether it is taken back.
    """

    names: tuple[str, ...]
    keeps: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.names, *super().reads]))

    def after(self, names: Iterable[str]) -> list[str]:
        kept_names = [name for name in names if name in self.keeps and name not in (*self.names, *self.columns)]
        return [*self.names, *kept_names, *self.columns]


class ByCondition(Stage, frozen=True, kw_only=True):
    """Rows are asked for a ``condition``, and keep their columns."""

    needs: ClassVar[tuple[str, ...]] = ("expressions/1",)
    condition: ExprNode

    @property
    def reads(self) -> tuple[str, ...]:
        return columns_needed(self.condition)

    @property
    def makes(self) -> tuple[str, ...]:
        return ()


class Filter(ByCondition, frozen=True, kw_only=True, tag="where"):
    """Rows whose condition is not true are left out: they are in no result and no ledger, but count for the watermark
    as if they were there.
    """


class Expect(ByCondition, frozen=True, kw_only=True, tag="expect", omit_defaults=True):
    """Rows are expected to meet a condition, which is true of them. Those that do not are counted, and ``otherwise``:
    in the late ledger, ``expectation``, instead of the operator; or processed all the same (``count``); or they fail
    the batch, of which nothing is published then. ``at_most``: the batch fails too if this share of its events, and
    at least a hundred of them, do not meet it.
    """

    needs: ClassVar[tuple[str, ...]] = ("expressions/1", "expectations/1")
    name: str
    otherwise: Otherwise = "ledger"
    at_most: float | None = None


StoredStage = Decode | Compute | Select | Filter | Expect
"""Every kind of stage that a manifest may hold."""


def columns_after(stages: Sequence[Stage], columns: Iterable[str]) -> list[str]:
    """The columns that rows with ``columns`` have after the stages."""
    names = list(columns)
    for stage in stages:
        names = stage.after(names)
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


def derivation(stages: Sequence[Stage], column: str) -> list[Any]:
    """How a column comes to be: of each stage, from the last to the first, what it makes that the column is made of.
    Equal where the same values are made; filters make none.
    """
    parts, needed_names = list[Any](), {column, column.partition(".")[0]}
    for stage in reversed(stages):
        made_names = needed_names & set(stage.makes)
        if not made_names:
            continue
        if isinstance(stage, Compute):
            trees = {name: stage.columns[name] for name in sorted(made_names)}
            read_names = {name for tree in trees.values() for name in columns_needed(tree)}
            parts.append(trees)
        else:
            read_names = set(stage.reads)
            parts.append((stage.reads, sorted(made_names)))
        needed_names = (needed_names - made_names) | read_names
    return [*parts, sorted(needed_names)]


def computed_columns(stages: Iterable[Stage]) -> set[str]:
    """The columns that expressions make."""
    return {name for stage in stages if isinstance(stage, Compute) for name in stage.makes}


def check_raw_identity(stages: Iterable[Stage], identity: Iterable[str | None], **whose: str | None) -> None:
    """Check that what messages are known by is not computed. Raises `UsageError` (``stage-identity``)."""
    if names := sorted(computed_columns(stages).intersection(identity)):
        raise UsageError(
            "messages are known by columns as they arrive, and these are computed: name the columns of the source",
            code="stage-identity",
            **whose,
            columns=names,
        )
