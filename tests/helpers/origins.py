"""Buffers of origins, in any order of arrival."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tidestate.operators.progress.origins import (
    Origins,
    OriginsState,
    OriginsStep,
    advance_origins,
    buffers,
    restore,
    save,
)


class Buffer(NamedTuple):
    origin: int
    sequence: int
    chunk: int = 0
    last: bool = True
    watermark: Any = 0
    behind: int = 0


def arrive(known: Origins, *arrived: Buffer) -> OriginsStep:
    columns = [list(column) for column in zip(*arrived, strict=True)] or [[]] * 6
    types = [pa.int64(), pa.int64(), pa.int64(), pa.bool_(), None, pa.int64()]
    return advance_origins(known, buffers(*(pa.array(c, t) for c, t in zip(columns, types, strict=True))))


def after(known: Origins, *arrived: Buffer) -> Origins:
    return arrive(known, *arrived).origins


def round_trip(known: Origins) -> Origins:
    return restore(msgspec.json.decode(msgspec.json.encode(save(known)), type=OriginsState))
