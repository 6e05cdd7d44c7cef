"""Rows through advance-time settings, a batch after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tidestate.operators.progress.advance_time import Advance, Advanced, advance, lifetimes
from tidestate.operators.progress.cti_settings import AdvanceTime, Generation
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.streams.generators import generate_ctis
from tidestate.operators.streams.inputs import cti_settings


class Row(NamedTuple):
    shape: str | None
    start: int | None
    end: int | None = None


def table(rows: list[Row]) -> pa.Table:
    columns = [[row.shape for row in rows], [row.start for row in rows], [row.end for row in rows]]
    types = [pa.string(), pa.int64(), pa.int64()]
    return pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=["shape", "start", "end"])


@dataclass(frozen=True)
class WithCtis(Advanced):
    """Also the CTIs, each with the row that it comes after; -1 is before the first."""

    ctis: list[tuple[int, int]]


def run(
    settings: AdvanceTime, rows: list[Row], state: Advance | None = None, imported: int = BEGINNING_US
) -> WithCtis:
    before = state or Advance()
    together = _advanced(settings, rows, before, imported)
    ctis = list[tuple[int, int]]()
    # Row by row, as a batch does not say where in it they are; it must come to the same.
    for number, piece in enumerate([[], *([row] for row in rows)], -1):
        after = _advanced(settings, piece, before, imported).state
        ctis += [(number, after.cti_us)] if after.cti_us > before.cti_us else []
        before = after
    assert msgspec.structs.asdict(before) == msgspec.structs.asdict(together.state)
    return WithCtis(**vars(together), ctis=ctis)


def _advanced(settings: AdvanceTime, rows: list[Row], state: Advance, imported: int) -> Advanced:
    return advance(settings, state, lifetimes(table(rows), "start", "end", shape_column="shape"), imported)


def ctis(found: WithCtis) -> list[tuple[int, int]]:
    return found.ctis


def generation(every: Any, delay: str = "0 seconds", *, final: bool = False) -> Generation:
    return generate_ctis(every, delay=delay, final=final)


def advance_time(policy: Any, generate: Generation | None = None, import_from: str | None = None) -> AdvanceTime:
    """What a user sets, as it is stored."""
    settings = cti_settings(policy, generate=generate, import_from=import_from)
    return AdvanceTime(settings.policy, settings.generate, settings.import_from)
