"""Which buffers have arrived, as a manifest has it: plain data. Pure."""

from __future__ import annotations

import msgspec

from tidestate.operators.progress.watermarks import BEGINNING_US

CutRow = tuple[int, int, int, int, int, int, int]
"""Of a buffer that is not whole: origin, sequence and chunk number, whether it is the last chunk, watermark, rows so
far, rows that it has (`UNKNOWN` where a flag says so).
"""
UNKNOWN = -1
"""How many rows a buffer has whose last row has not arrived."""


class OriginCounters(msgspec.Struct, frozen=True):
    """Buffers over the life of a job, by reason. ``gave_up`` counts sequence numbers of gaps that were given up."""

    counted: int = 0
    seen_before: int = 0
    bad_sequence: int = 0
    bad_chunk: int = 0
    chunk_after_last: int = 0
    two_last_chunks: int = 0
    sequence_after_end: int = 0
    watermark_refused: int = 0
    backward: int = 0
    gave_up: int = 0


class OriginsState(msgspec.Struct, frozen=True):
    """Plain data for the manifest: id, prefix, watermark and last sequence number (or `OPEN`) of each origin, by id;
    and the ``pending`` buffers as columns.

    Of origins that have ended: how many, their largest watermark, and their ids as ranges (see `ENDED_RANGES`).
    """

    origins: list[tuple[int, int, int, int]]
    pending: dict[str, list[int]]
    watermark_us: int = BEGINNING_US
    ended: int = 0
    counters: OriginCounters = OriginCounters()
    ended_us: int = BEGINNING_US
    ended_ids: list[tuple[int, int]] = []


class BufferState(msgspec.Struct, frozen=True):
    """Plain data for the manifest. ``waiting``: origins that wait for a gap, and since which processing time (not
    kept across a restart). ``given_up``: origin, first and last sequence number of the gaps that were given up.
    ``cut``: buffers of which rows are still to come. ``ids``: the origin of each source by name, where the engine
    gives them.
    """

    origins: OriginsState
    waiting: list[tuple[int, int]] = []
    given_up: list[tuple[int, int, int]] = []
    cut: list[CutRow] = []
    ids: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
