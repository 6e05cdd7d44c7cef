"""A generator of watermarks for each side of an operator that reads several streams. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.advance_time import Advance
from tidestate.operators.progress.progress import (
    Claims,
    GeneratorState,
    InputReading,
    WatermarkGenerator,
    joined_claims,
)
from tidestate.operators.progress.sources import source_column
from tidestate.operators.progress.tracker import Reports, merged
from tidestate.operators.progress.watermarks import Claimant
from tidestate.statestore.arrays import Counters, total
from tidestate.statestore.errors import of_type


class SideGenerator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The generator of a side, over the columns of all sides; ``by`` names the column whose values are its sources,
    where the side is not one source.
    """

    generator: Claimant
    by: str | None = None

    @property
    def reader(self) -> WatermarkGenerator:
        """The generator as the engine uses it."""
        return of_type(self.generator, WatermarkGenerator)


class BySide(
    WatermarkGenerator, msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="by_side"
):
    """A generator for each side; the watermark is the smallest of the sides. The sides in ``followed`` read
    operators, whose watermarks are theirs.

    A side is a source of its name, or several that are named ``side/value``: until the first of these has a row, the
    side holds the watermark under its own name, unless they are declared.
    """

    sides: dict[str, SideGenerator]
    followed: tuple[str, ...] = ()
    needs: ClassVar[tuple[str, ...]] = ("generator-by-side/1",)

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns that any of them reads."""
        named = [name for each in self.sides.values() for name in (*each.generator.columns, each.by)]
        return tuple(dict.fromkeys(name for name in named if name))

    @property
    def filters_rows(self) -> bool:
        """Whether any of them reads rows before they are judged."""
        return any(each.filters_rows for each in self._generators)

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that order the rows of any side."""
        return tuple(dict.fromkeys(name for order in self.orders.values() for name in order))

    @property
    def orders(self) -> dict[str, Sequence[str]]:
        """The columns that order the rows of each side where the order matters."""
        return {side: order for side, each in self.sides.items() if (order := each.generator.order)}

    def by_of(self, side: str) -> str | None:
        """The column that names the sources of a side; None if the side is one."""
        return self.sides[side].by if side in self.sides else None

    @property
    def by_clock(self) -> bool:
        """Whether all of them go on with the clock."""
        return not self.followed and all(each.by_clock for each in self._generators)

    @property
    def waits(self) -> bool:
        """Whether time alone may move the watermark of any side."""
        return any(each.waits or each.by_clock for each in self._generators)

    @property
    def least_quiet_us(self) -> int | None:
        """How long a side must have no rows before its watermark goes on with the clock: none for one that always
        does.
        """
        spans = [0 if each.by_clock else each.least_quiet_us for each in self._generators]
        return min((span for span in spans if span is not None), default=None)

    def quiet_after(self, source: str) -> int | None:
        """How long this source must have no rows before its watermark goes on with the clock; None: it never does."""
        side = source.partition("/")[0]
        return self.sides[side].generator.quiet_after(source) if side in self.sides else None

    @property
    def delay_us(self) -> int:
        """The longest delay: the watermark is that of the side that is behind."""
        return max(each.delay_us for each in self._generators)

    @property
    def has_edges(self) -> bool:
        """Whether rows of any side may be edges, whose ends arrive later."""
        return any(each.has_edges for each in self._generators)

    @property
    def in_parts(self) -> tuple[str, ...]:
        """The sides that have several sources."""
        return tuple(side for side, each in self.sides.items() if each.by is not None)

    def before_checks(
        self, rows: pa.Table, source: str, by: str | None, now_us: int, began: GeneratorState, so_far: GeneratorState
    ) -> InputReading | None:
        """The rows that go on, of sides whose generator filters them, and all rows of the others."""
        if not self.filters_rows:
            return None
        readings = []
        for side, of_side in self._parts(rows, by):
            each = self.sides.get(side)
            reading = each and each.reader.before_checks(of_side, side, each.by, now_us, began, so_far)
            readings.append(reading or InputReading(of_side, Claims()))
        return _together(readings) if readings else InputReading(rows, Claims())

    def after_checks(
        self, accepted: pa.Table, rejected: pa.Table | None, source: str, by: str | None, now_us: int
    ) -> tuple[Claims, Counters]:
        """What accepted rows claim, of sides whose generator does not filter rows."""
        refused = dict(self._parts(rejected, by)) if rejected is not None else {}
        taken = dict(self._parts(accepted, by))
        answers = [
            each.reader.after_checks(taken.get(side, accepted.slice(0, 0)), refused.get(side), side, each.by, now_us)
            for side, each in self.sides.items()
            if side in taken or side in refused
        ]
        return joined_claims(claims for claims, _ in answers), total([counters for _, counters in answers])

    def combine(
        self, began: GeneratorState, claims: Sequence[Claims], known: Iterable[str], now_us: int
    ) -> tuple[GeneratorState, Reports]:
        """The states and reports of all sides."""
        names, state = list(known), began
        of_others = [
            {name: one for name, one in piece.reports.items() if self._side(name) is None} for piece in claims
        ]
        reports = [*of_others]
        for side in self._imported_first():
            own = [_of_side(piece, side) for piece in claims]
            declared = [name for name in names if self._side(name) == side]
            after, of_side = self.sides[side].reader.combine(state, own, declared, now_us)
            advances = {name: one for name, one in after.advances.items() if self._side(name) == side}
            state = GeneratorState(state.advances | advances)
            reports.append({name: report for name, report in of_side.items() if self._side(name) == side})
        return state, merged(reports)

    def finish(self, state: GeneratorState) -> GeneratorState:
        """The states of all sides at the end of the input."""
        advances: dict[str, Advance] = {}
        for side, each in self.sides.items():
            own = {name: one for name, one in state.advances.items() if self._side(name) == side}
            advances |= each.reader.finish(GeneratorState(own)).advances
        return GeneratorState(advances)

    @property
    def _generators(self) -> list[Claimant]:
        return [each.generator for each in self.sides.values()]

    def _side(self, source: str) -> str | None:
        """The side of a source; None of one that follows an operator."""
        side = source.partition("/")[0]
        return side if side in self.sides else None

    def _imported_first(self) -> list[str]:
        """The sides, each after the one whose CTIs it imports."""
        imported = {side: each.generator.imports_of(side) for side, each in self.sides.items()}
        ordered: dict[str, None] = {}
        for side in self.sides:
            path = [side]
            while (source := imported.get(path[-1])) in self.sides and source not in (*ordered, *path):
                path.append(source)
            ordered |= dict.fromkeys(reversed(path))
        return list(ordered)

    def _parts(self, rows: pa.Table, by: str | None) -> Iterator[tuple[str, pa.Table]]:
        """Each side that has rows, with these."""
        column = source_column(rows, by or "")
        present = pc.unique(column).to_pylist()
        for side in present:
            yield side, rows if len(present) == 1 else rows.filter(pc.equal(column, side))


def _of_side(claims: Claims, side: str) -> Claims:
    def own(values: Mapping[str, object]) -> dict[str, object]:
        return {name: value for name, value in values.items() if name.partition("/")[0] == side}

    return Claims(own(claims.reports), own(claims.rejected), own(claims.advances))  # type: ignore[arg-type]


def _together(readings: Sequence[InputReading]) -> InputReading:
    """The readings of all sides of a piece as one."""
    refused = [one.refused for one in readings if one.refused is not None]
    ends = [one.ends for one in readings if one.ends is not None]
    reading = replace(
        readings[0],
        events=pa.concat_tables([one.events for one in readings]),
        claims=joined_claims(one.claims for one in readings),
        counters=total([one.counters for one in readings]),
    )
    if refused:
        rows, reasons = zip(*refused, strict=True)
        reading = replace(reading, refused=(pa.concat_tables(rows), pa.concat_arrays(reasons)))
    return replace(reading, ends=pa.concat_tables(ends) if ends else None)
