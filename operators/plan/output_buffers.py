"""What an operator that is an origin puts out: each row with the buffer and chunk that it came in. Pure, vectorised.

What a checkpoint emits is a buffer, and what one state partition emits of it is a chunk. A checkpoint without rows is
no buffer, and takes no number. After NebulaStream, "Watermarking and Progress".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.describe.output_origin import CHUNK, LAST_CHUNK, ORIGIN_FIELDS, OutputOrigin
from tidestate.operators.plan.plan import Plan
from tidestate.operators.progress.watermarks import FIRST_US, LAST_US
from tidestate.statestore.errors import expect
from tidestate.statestore.spec.tables import TIME


def in_chunk(rows: pa.Table, *, origin: int, sequence: int, chunk: int, last: bool, mark: int | None) -> pa.Table:
    """Rows of one chunk, with its numbers and the watermark that its origin has reached."""
    values = (origin, sequence, chunk, last, mark)
    for field, value in zip(ORIGIN_FIELDS, values, strict=True):
        # As an integer: a time of the year 9999 and a zone have no Python value everywhere.
        kind = pa.int64() if field.type == TIME else field.type
        column = pa.repeat(pa.scalar(value, kind), rows.num_rows).cast(field.type)
        rows = rows.append_column(field, column)
    return rows


def in_buffer(
    plan: Plan, origin: OutputOrigin, panes: Iterable[pa.Table], sequence: int, watermark: int
) -> Iterator[pa.Table]:
    """``panes``, of one state partition after the other, as the chunks of the buffer ``sequence`` of an ``origin``,
    after a step that ends at ``watermark``.
    """
    number = expect(origin.origin, "what is stored of an origin has its number")
    chunked = partial(in_chunk, origin=number, sequence=sequence, mark=output_mark(plan, origin, watermark))
    waiting, chunk = None, -1
    for chunk, rows in enumerate(panes):
        # A chunk is held back until it is known whether another one follows.
        if waiting is not None:
            yield chunked(waiting, chunk=chunk - 1, last=False)
        waiting = rows
    if waiting is not None:
        yield chunked(waiting, chunk=chunk, last=True)


def numbered_from(rows: pa.Table, first: int, *, ends: bool) -> pa.Table:
    """Rows of chunks that were counted from 0, counted from ``first``; none is the last unless the buffer ``ends``
    with them.
    """
    chunks, last = (rows.schema.get_field_index(name) for name in (CHUNK, LAST_CHUNK))
    rows = rows.set_column(chunks, rows.schema.field(chunks), pc.add(rows[CHUNK], first))
    if ends:
        return rows
    return rows.set_column(last, rows.schema.field(last), pa.array(np.zeros(rows.num_rows, bool)))


def output_mark(plan: Plan, origin: OutputOrigin, watermark: int) -> int | None:
    """The watermark that the rows of a buffer carry after a step that ends at ``watermark``; None where none can be
    told, as before the first one. It lies in the years 1 to 9999, as readers of buffers ask: at the end of the input
    it is the last moment of them.
    """
    reached = plan.output_watermark(watermark, origin.time or plan.input.event_time)
    return None if reached < FIRST_US else min(reached, LAST_US)
