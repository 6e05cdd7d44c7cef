"""Joins whose sides have numbered buffers, their input as tables, and what they put out, for tests with the twin."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import tidestate as ts
from tests.helpers.join_jobs import SECOND, TIME
from tests.twins.buffered_join import Chunk
from tests.twins.join import SIDES, Asked, Pane, Row
from tidestate import Stream, watermark
from tidestate.operators.progress.buffered import BufferProgress
from tidestate.operators.streams.stream import JoinedStream

CHUNK_SCHEMA = pa.schema(
    [
        *(("key", pa.string()), ("t", TIME), ("value", pa.int64()), ("off", pa.int64())),
        *(("origin", pa.int64()), ("sequence", pa.int64()), ("chunk", pa.int64()), ("last", pa.bool_())),
        *(("mark", TIME), ("empty", pa.bool_()), ("final", pa.bool_())),
    ]
)
SCHEMAS = dict.fromkeys(SIDES, CHUNK_SCHEMA)
JOIN_BOUNDS = ((0, 10), (-4, 4), (-6, -2))


def progress(patience: int | None = None) -> BufferProgress:
    """Buffers in chunks, of which some are empty, of origins that end."""
    return watermark.buffers(
        origin="origin",
        sequence="sequence",
        watermark="mark",
        chunk="chunk",
        last="last",
        empty="empty",
        end="final",
        patience=None if patience is None else f"{patience} s",
    )


def side(name: str, declared: dict[str, list[int]], patience: int | None = None) -> Stream:
    """A stream whose sources are the origins of its buffers."""
    numbered = ts.stream(name, event_time="t", offset="off")
    return numbered.watermark(progress(patience), sources=[str(one) for one in declared.get(name, [])])


def joined(asked: Asked, declared: dict[str, list[int]], patience: int | None = None) -> JoinedStream:
    """A join by distance, as the twin is asked for it."""
    left, right = (side(name, declared, patience) for name in SIDES)
    within = (f"{asked.low} s", f"{asked.high} s")
    how: Any = asked.how
    return left.join(
        right, on="key", within=within, how=how, allowed_lateness=f"{asked.late} s", identity=asked.named, name="job"
    )


def tables(chunks: Sequence[Chunk]) -> dict[str, pa.Table]:
    """The rows of a batch, by side."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SIDES}
    for number, chunk in enumerate(chunks):
        about = {"origin": chunk.origin, "sequence": chunk.sequence, "chunk": chunk.number, "last": chunk.last}
        about |= {"mark": chunk.mark * SECOND, "final": chunk.final}
        nothing = {"key": "a", "t": None, "value": None, "off": 10_000 + number, "empty": True}
        events = [
            {"key": row.key, "t": row.at * SECOND, "value": row.value, "off": row.offset, "empty": False}
            for row in chunk.rows
        ]
        rows[chunk.side] += [{**event, **about} for event in events or [nothing]]
    return {name: pa.Table.from_pylist(own, CHUNK_SCHEMA) for name, own in rows.items()}


def observed(panes: pa.Table) -> Counter[Pane]:
    """The panes as the twin has them."""
    columns = [panes[name].to_pylist() for name in ("kind", "key", "left_value", "right_value")]
    return Counter((*row, None) for row in zip(*columns, strict=True))


def sent(chance: random.Random, *, ends: bool) -> list[Chunk]:
    """All chunks of both sides in order of time. The numbers of origins are the same on both."""
    made: list[tuple[int, Chunk]] = []
    values = iter(range(10_000))
    for name in SIDES:
        for origin in range(1, chance.choice([1, 2, 2]) + 1):
            mark, buffers = chance.randint(0, 20), chance.randint(2, 5)
            for sequence in range(1, buffers + 1):
                mark += chance.randint(1, 9)
                chunks = chance.choice([1, 1, 2, 3])
                for number in range(chunks):
                    rows = [
                        Row(name, chance.choice("ab"), max(0, mark - chance.choice([0, 1, 3, 8, 15])), value, value)
                        for value in (next(values) for _ in range(chance.choice([0, 1, 1, 2])))
                    ]
                    last, final = number == chunks - 1, ends and sequence == buffers
                    chunk = Chunk(name, origin, sequence, number, last, mark, tuple(rows), final)
                    made.append((mark, chunk))
    return [chunk for _, chunk in sorted(made, key=lambda one: one[0])]


def arrivals(chance: random.Random, chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """Batches: chunks in any order nearby, some in a much later batch or never, some a second time."""
    later = sorted(chunks, key=lambda _: 0)
    places = {number: number + chance.choice([0, 0, 0, 2, 5, 30]) for number in range(len(later))}
    order = sorted(range(len(later)), key=lambda number: (places[number], chance.random()))
    kept = [later[number] for number in order if chance.random() < 0.97]
    batches: list[list[Chunk]] = []
    while kept:
        size = chance.randint(1, 6)
        batch, kept = kept[:size], kept[size:]
        came = [chunk for one in batches for chunk in one]
        if came and chance.random() < 0.3:
            batch += chance.sample(came, 1)
        batches.append(batch)
    return batches
