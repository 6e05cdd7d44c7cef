"""The rules of a zone: instants to the clock on its walls and back, vectorised. Pure.

A zone is two arrays: the instants at which its offset from UTC changes, and the offset from each of them on. Local
time is ``instant + offset``. The way back is ambiguous where clocks were turned back (two instants have one local
time; the first is taken) and empty where they were turned forward (the moment of the change is taken), so a local
time always has an instant, and later local times never have earlier ones. ::

    instants   ──────────┬───────────────┬────────►     from starts[i] on: offsets[i]
    local            gap │        fold ┌─┘
                     ────┘  ───────────┘

Outside of 1900 to 2099 the first and the last offset are taken. Nothing here reads the tzdata of the host, so two
hosts with the same table give the same answer.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from tidestate.statestore.arrays import Flags, Numbers, Times

_SECOND_US = 1_000_000
MAX_TRANSITIONS = 4_096
MAX_TEXT = 16_384
"""Letters of the stored form; the longest zone of tzdata has about 2,100."""
MAX_OFFSET_S = 86_400
ZONE_NAME = re.compile(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+)*")
_ROW = np.dtype([("start", "<i8"), ("offset", "<i4")])
"""A transition as it is stored: both in seconds."""
_BEFORE_ALL = np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False)
class ZoneRules:
    """The transitions of a zone, all of it in microseconds, as int64 of shape ``(transitions + 1,)``."""

    name: str
    starts: Times
    """Instants in ascending order, each with ``offsets`` from it on. Invariant: the first is before all times."""
    offsets: Numbers
    """Local time minus UTC."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ZoneRules) or self.name != other.name:
            return False
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.offsets, other.offsets)

    def __hash__(self) -> int:
        return hash((self.name, self.starts.tobytes(), self.offsets.tobytes()))

    def offsets_at(self, instants: Times) -> Numbers:
        """The offset at each of these instants, of their shape."""
        if len(self.starts) == 1 or not len(instants):
            return np.full(len(instants), self.offsets[0])
        first, last = (int(np.searchsorted(self.starts, end, "right")) - 1 for end in _bounds(instants))
        if last == first:
            return np.full(len(instants), self.offsets[first])
        # Rows of a batch lie close together: a search in the few transitions between them is quick.
        indices = np.searchsorted(self.starts[first + 1 : last + 1], instants, "right")
        return self.offsets[first : last + 1][indices]

    def local(self, instants: Times) -> Times:
        """What clocks show at these instants, as microseconds since 1970 on that clock."""
        return instants + self.offsets_at(instants)

    def instants(self, local: Times) -> Times:
        """The instants at which clocks show ``local``: of two the first, in a gap the moment of the change."""
        if len(self.starts) == 1 or not len(local):
            earliest_instants: Times = local - self.offsets[0]
            return earliest_instants
        # The first stretch of one offset that ends after ``local``; where it begins after it too, that is a gap.
        indices = np.searchsorted(self._ends, local, "right")
        result: Times = np.maximum(local - self.offsets[indices], self.starts[indices])
        return result

    def first_difference(self, other: ZoneRules, first: int, last: int) -> tuple[int, int, int] | None:
        """The first time from ``first`` to ``last`` at which other rules have another offset, and both offsets."""
        starts = np.concatenate([self.starts, other.starts])
        times = np.unique(np.append(starts[(starts > first) & (starts <= last)], first))
        offsets, other_offsets = self.offsets_at(times), other.offsets_at(times)
        differing = np.flatnonzero(offsets != other_offsets)
        if not len(differing):
            return None
        index = differing[0]
        return int(times[index]), int(offsets[index]), int(other_offsets[index])

    @cached_property
    def _ends(self) -> Times:
        """By stretch but the last, the local time at which it ends, or the latest end of one before it."""
        ends: Times = np.maximum.accumulate(self.starts[1:] + self.offsets[:-1])
        return ends

    @cached_property
    def text(self) -> str:
        """The stored form: rows of seconds, zlib, base64. `rules_from` is its inverse."""
        rows = np.zeros(len(self.starts), _ROW)
        rows["start"][1:] = self.starts[1:] // _SECOND_US
        rows["offset"] = self.offsets // _SECOND_US
        return b64encode(zlib.compress(rows.tobytes(), 9)).decode("ascii")


KeptRules: TypeAlias = Callable[[str], ZoneRules | None]
"""The rules that a checkpoint has of a zone, by its name; it is called for a zone that this host does not know."""


def rules_of(name: str, starts_s: Numbers, offsets_s: Numbers) -> ZoneRules:
    """Rules of transitions in seconds: ``offsets_s`` has one more, the offset before all of them."""
    starts = np.concatenate([[_BEFORE_ALL], starts_s.astype(np.int64) * _SECOND_US])
    return ZoneRules(name, starts, offsets_s.astype(np.int64) * _SECOND_US)


def rules_from(name: str, text: str) -> ZoneRules:
    """The rules that a manifest holds. Raises `ValueError` for what `ZoneRules.text` never makes."""
    if not ZONE_NAME.fullmatch(name) or len(text) > MAX_TEXT:
        raise ValueError(f"no rules of a zone: {name!r:.100}, {len(text)} letters")
    try:
        unpacker = zlib.decompressobj()
        rows = unpacker.decompress(b64decode(text, validate=True), (MAX_TRANSITIONS + 1) * _ROW.itemsize)
    except (ValueError, zlib.error) as error:  # of base64 a ValueError, too
        raise ValueError(f"the rules of a zone cannot be read: {error}") from None
    if not unpacker.eof or unpacker.unused_data or not rows or len(rows) % _ROW.itemsize:
        raise ValueError(f"the rules of a zone have a wrong length: {len(rows)}")
    table = np.frombuffer(rows, _ROW)
    starts, offsets = table["start"][1:].astype(np.int64), table["offset"].astype(np.int64)
    if not _is_plausible(starts, offsets) or table["start"][0]:
        raise ValueError("the rules of a zone are out of order or out of range")
    return rules_of(name, starts, offsets)


def _is_plausible(starts: Numbers, offsets: Numbers) -> bool:
    is_ascending: Flags = starts[1:] > starts[:-1]
    near = np.abs(starts) < 2**40
    return bool(is_ascending.all() and near.all() and (np.abs(offsets) < MAX_OFFSET_S).all())


def _bounds(instants: Times) -> tuple[int, int]:
    return int(instants.min()), int(instants.max())


UTC = rules_of("UTC", np.zeros(0, np.int64), np.zeros(1, np.int64))
