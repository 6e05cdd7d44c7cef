"""Origin progress alone: buffers a second through `operators.progress`, a loop over Python objects as the peer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tidestate.operators.progress.origins import Buffers, Origins, advance_origins, buffers, origins, restore, save

BATCH = 100_000
BATCHES = 20
WINDOW = 1_000
PEER_BUFFERS = 200_000
ORIGINS = 8

Numbers = npt.NDArray[np.int64]


def run() -> Iterator[dict[str, Any]]:
    """One row each: in order, interleaved, in random order within a window, and in chunks."""
    count = BATCH * BATCHES
    one = np.arange(1, count + 1)
    nowhere = np.zeros(count, np.int64)
    random = np.random.default_rng(5)
    yield _row("in order, one origin", nowhere, one, 5_000_000)
    by_turns = np.arange(count)
    yield _row(f"in order, {ORIGINS} origins by turns", by_turns % ORIGINS, by_turns // ORIGINS + 1, 5_000_000)
    mixed = shuffled(count, random)
    yield _row(f"random within {WINDOW:,}, one origin", nowhere, one[mixed], 1_000_000)
    yield _row(
        f"random within {WINDOW:,}, {ORIGINS} origins",
        (by_turns % ORIGINS)[mixed],
        by_turns[mixed] // ORIGINS + 1,
        1_000_000,
    )
    chunks, sequences = by_turns % 4, by_turns // 4 + 1
    yield _row(f"random within {WINDOW:,}, four chunks", nowhere, sequences[mixed], 1_000_000, chunks[mixed])
    yield _small(one[mixed])


def shuffled(count: int, random: np.random.Generator, window: int = WINDOW) -> Numbers:
    """A permutation in which nothing is further than ``window`` from its place."""
    order: Numbers = np.argsort(np.arange(count) + random.integers(0, window, count), kind="stable")
    return order


def _row(name: str, ids: Numbers, sequences: Numbers, aim: int, chunks: Numbers | None = None) -> dict[str, Any]:
    parts = np.zeros(len(ids), np.int64) if chunks is None else chunks
    last = np.ones(len(ids), bool) if chunks is None else chunks == 3

    def batch(start: int, end: int) -> Buffers:
        here = slice(start, end)
        return buffers(ids[here], sequences[here], parts[here], last[here], sequences[here])

    known, most_pending = origins(np.unique(ids).tolist()), 0
    advance_origins(known, batch(0, BATCH))  # the first call of a process pays for its memory
    started = time.perf_counter()
    for start in range(0, len(ids), BATCH):
        known = advance_origins(known, batch(start, start + BATCH)).origins
        most_pending = max(most_pending, len(known.pending))
    ours = len(ids) / (time.perf_counter() - started)
    peer = _peer(ids[:PEER_BUFFERS], sequences[:PEER_BUFFERS], parts[:PEER_BUFFERS], last[:PEER_BUFFERS])
    return {
        "name": name,
        "buffers_per_s": round(ours),
        "aim": aim,
        "peer": "python: a dict of sets of chunks per origin",
        "ratio": round(ours / peer, 1),
        "most_pending": most_pending,
        "whole": not len(known.pending),
    }


def _small(sequences: Numbers) -> dict[str, Any]:
    """Batches of 1,000, each followed by a save and a restore: what a checkpoint a batch costs."""
    known = origins([0])
    took = _timed(lambda: _saved(known, sequences[:200_000]))
    return {"name": "batches of 1,000, saved and restored after each", "buffers_per_s": round(200_000 / took)}


def _saved(known: Origins, sequences: Numbers) -> None:
    nowhere = np.zeros(1_000, np.int64)
    for start in range(0, len(sequences), 1_000):
        here = sequences[start : start + 1_000]
        known = restore(save(advance_origins(known, buffers(nowhere, here, watermarks=here)).origins))


def _timed(action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _peer(ids: Numbers, sequences: Numbers, chunks: Numbers, last: npt.NDArray[np.bool_]) -> float:
    """Buffers a second of the plain loop."""
    rows = list(zip(ids.tolist(), sequences.tolist(), chunks.tolist(), last.tolist(), strict=True))
    prefixes = dict.fromkeys(set(ids.tolist()), 0)
    marks: dict[int, int] = {}
    seen: dict[tuple[int, int], set[int]] = {}
    ends: dict[tuple[int, int], int] = {}
    started = time.perf_counter()
    for origin, sequence, chunk, is_last in rows:
        unit = (origin, sequence)
        seen.setdefault(unit, set()).add(chunk)
        if is_last:
            ends[unit] = chunk
        following = (origin, prefixes[origin] + 1)
        while following in ends and len(seen[following]) == ends[following] + 1:
            marks[origin] = following[1]
            prefixes[origin] += 1
            del seen[following], ends[following]
            following = (origin, prefixes[origin] + 1)
    return len(rows) / (time.perf_counter() - started)
