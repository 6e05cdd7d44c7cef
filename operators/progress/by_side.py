"""A generator of watermarks for each side of an operator that reads several streams. Pure.

The rows of a piece are of several sides. Each side's generator reads those of its side, as if they were the whole
input, and what it claims is of sources that are named as the side, or ``side/value``: so claims, states and reports
of all sides are kept together, and taken apart by these names. That is exact, as no source is of two sides. Only CTIs
look beyond their side: one may import those of another, which therefore comes first.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.progress.advance_time import Advance
from tidestate.operators.progress.origins import BufferState
from tidestate.operators.progress.progress import (
    Claims,
    GeneratorState,
    InputReading,
    Reports,
    WatermarkGenerator,
    joined_claims,
    merged,
    source_column,
)
from tidestate.operators.progress.watermarks import Claimant
from tidestate.statestore.arrays import Counters, one_table, total
from tidestate.statestore.errors import of_type

_Value = TypeVar("_Value")


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
    def of_sides(self) -> dict[str, Claimant]:
        """The generator of each side that reads a stream."""
        return {name: side.generator for name, side in self.sides.items()}

    def by_of(self, side: str) -> str | None:
        """The column that names the sources of a side; None if the side is one."""
        return self.sides[side].by if side in self.sides else None

    def of_operator(self, name: str, side: str | None = None) -> BySide:
        """The same with the generator of each side as part of this operator."""
        sides = {
            side: msgspec.structs.replace(settings, generator=settings.generator.of_operator(name, side))
            for side, settings in self.sides.items()
        }
        return msgspec.structs.replace(self, sides=sides)

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns that any of them reads."""
        names = [name for side in self.sides.values() for name in (*side.generator.columns, side.by)]
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def filters_rows(self) -> bool:
        """Whether any of them reads rows before they are judged."""
        return any(generator.filters_rows for generator in self._generators)

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that order the rows of any side."""
        return tuple(dict.fromkeys(name for order in self.orders.values() for name in order))

    @property
    def orders(self) -> dict[str, Sequence[str]]:
        """The columns that order the rows of each side where the order matters."""
        return {side: order for side, generator in self.of_sides.items() if (order := generator.order)}

    @property
    def by_clock(self) -> bool:
        """Whether all of them go on with the clock."""
        return not self.followed and all(generator.by_clock for generator in self._generators)

    @property
    def waits(self) -> bool:
        """Whether time alone may move the watermark of any side."""
        return any(generator.waits or generator.by_clock for generator in self._generators)

    @property
    def least_quiet_us(self) -> int | None:
        """How long a side must have no rows before its watermark goes on with the clock: none for one that always
        does.
        """
        spans = [0 if generator.by_clock else generator.least_quiet_us for generator in self._generators]
        return min((span for span in spans if span is not None), default=None)

    def quiet_after(self, source: str) -> int | None:
        """How long this source must have no rows before its watermark goes on with the clock; None: it never does."""
        side = self.sides.get(_side_of(source))
        return None if side is None else side.generator.quiet_after(source)

    @property
    def delay_us(self) -> int:
        """The longest delay: the watermark is that of the side that is behind."""
        return max(generator.delay_us for generator in self._generators)

    @property
    def has_edges(self) -> bool:
        """Whether rows of any side may be edges, whose ends arrive later."""
        return any(generator.has_edges for generator in self._generators)

    @property
    def in_parts(self) -> tuple[str, ...]:
        """The sides that have several sources."""
        return tuple(name for name, side in self.sides.items() if side.by is not None)

    def begin(self, names: Iterable[str], side: str = "") -> GeneratorState:
        """The states of all sides before the first rows. A side that is declared itself has no declared sources."""
        sources: list[str] = list(names)
        buffers: dict[str, BufferState] = {}
        for name, settings in self.sides.items():
            of_side = [source for source in sources if source != name and _side_of(source) == name]
            buffers |= settings.reader.begin(of_side, name).buffers
        return GeneratorState(buffers=buffers)

    def before_checks(
        self, rows: pa.Table, source: str, by: str | None, now_us: int, began: GeneratorState, so_far: GeneratorState
    ) -> InputReading | None:
        """The rows that go on, of sides whose generator filters them, and all rows of the others."""
        if not self.filters_rows:
            return None
        readings = []
        for name, side_rows in _rows_by_side(rows, by):
            side = self.sides.get(name)
            reading = side and side.reader.before_checks(side_rows, name, side.by, now_us, began, so_far)
            # A side that follows an operator, or reads accepted rows, claims nothing yet.
            readings.append(reading or InputReading(side_rows, Claims()))
        return _joined(readings) if readings else InputReading(rows, Claims())

    def after_checks(
        self, accepted: pa.Table, rejected: pa.Table | None, source: str, by: str | None, now_us: int
    ) -> tuple[Claims, Counters]:
        """What accepted rows claim, of sides whose generator does not filter rows."""
        accepted_rows = dict(_rows_by_side(accepted, by))
        rejected_rows = {} if rejected is None else dict(_rows_by_side(rejected, by))
        empty = accepted.slice(0, 0)
        readings = [
            side.reader.after_checks(accepted_rows.get(name, empty), rejected_rows.get(name), name, side.by, now_us)
            for name, side in self.sides.items()
            # A side that has no rows in this piece claims nothing.
            if name in accepted_rows or name in rejected_rows
        ]
        return joined_claims(claims for claims, _ in readings), total([counters for _, counters in readings])

    def combine(
        self, began: GeneratorState, claims: Sequence[Claims], known: Iterable[str], now_us: int, side: str = ""
    ) -> tuple[GeneratorState, Reports]:
        """The states and reports of all sides."""
        sources, state = list(known), began
        # The watermarks of operators go on as they came.
        reports = [_of_sides(piece.reports, self.followed) for piece in claims]
        for name in self._imported_first():
            side_claims = [_claims_of_side(piece, name) for piece in claims]
            side_sources = [source for source in sources if _side_of(source) == name]
            # A generator sees the states of all sides, to import CTIs, but moves those of its own side alone.
            side_state, side_reports = self.sides[name].reader.combine(state, side_claims, side_sources, now_us, name)
            state = GeneratorState(
                state.advances | _of_sides(side_state.advances, {name}),
                state.buffers | _of_sides(side_state.buffers, {name}),
            )
            reports.append(_of_sides(side_reports, {name}))
        return state, merged(reports)

    def finish(self, state: GeneratorState) -> GeneratorState:
        """The states of all sides at the end of the input."""
        advances: dict[str, Advance] = {}
        for name, side in self.sides.items():
            advances |= side.reader.finish(GeneratorState(_of_sides(state.advances, {name}))).advances
        return GeneratorState(advances, state.buffers)

    @property
    def _generators(self) -> list[Claimant]:
        return [side.generator for side in self.sides.values()]

    def _imported_first(self) -> list[str]:
        """The sides, each after the one whose CTIs it imports."""
        imports = {side: generator.imports_of(side) for side, generator in self.of_sides.items()}
        ordered: dict[str, None] = {}
        for side in self.sides:
            # From the side to the one that it imports from, and on from there; then backwards. A side that names
            # itself imports nothing, so that ends the path.
            path = [side]
            while (imported := imports.get(path[-1])) in self.sides and imported not in (*ordered, *path):
                path.append(imported)
            ordered |= dict.fromkeys(reversed(path))
        return list(ordered)


def _side_of(source: str) -> str:
    """The side of a source, which is named as the side, or ``side/value``."""
    return source.partition("/")[0]


def _of_sides(values: Mapping[str, _Value], sides: Container[str]) -> dict[str, _Value]:
    """What there is, by source, of the sources of these sides."""
    return {source: value for source, value in values.items() if _side_of(source) in sides}


def _claims_of_side(piece: Claims, side: str) -> Claims:
    """What rows of this side alone claim."""
    return Claims(
        _of_sides(piece.reports, {side}),
        advances=_of_sides(piece.advances, {side}),
        buffers=_of_sides(piece.buffers, {side}),
        ends=_of_sides(piece.ends, {side}),
    )


def _rows_by_side(rows: pa.Table, by: str | None) -> Iterator[tuple[str, pa.Table]]:
    """Each side that has rows, with these; ``by`` is the column of sides."""
    column = source_column(rows, by or "")
    sides = pc.unique(column).to_pylist()
    for side in sides:
        # Most pieces are of one side: no rows are copied then.
        yield side, rows if len(sides) == 1 else rows.filter(pc.equal(column, side))


def _joined(readings: Sequence[InputReading]) -> InputReading:
    """The readings of all sides of a piece as one."""
    refused = [reading.refused for reading in readings if reading.refused is not None]
    rows, reasons = zip(*refused, strict=True) if refused else ((), ())
    return InputReading(
        pa.concat_tables([reading.events for reading in readings]),
        joined_claims(reading.claims for reading in readings),
        total([reading.counters for reading in readings]),
        (pa.concat_tables(rows), pa.concat_arrays(reasons)) if refused else None,
        one_table(reading.ends for reading in readings),
    )
