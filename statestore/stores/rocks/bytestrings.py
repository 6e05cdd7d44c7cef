"""Many byte strings in one buffer, one per row: joined, sorted and handed out without a loop over rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.statestore.arrays import Numbers, ends_of

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Strings:
    """``count`` byte strings: all ``width`` long, or between ``offsets`` of ``data``.

    ``fixed_width`` says that the width follows from a type, so a reader knows it too; it may also be a coincidence.
    """

    data: Bytes
    count: int
    width: int | None
    offsets: Numbers
    fixed: bool = False

    def regrouped(self, bounds: Numbers) -> Strings:
        """Neighbours joined: string ``i`` is all from ``bounds[i]`` up to ``bounds[i + 1]``."""
        return strings_between(self.data, self.ends()[bounds] if self.width is None else bounds * self.width)

    def every(self, size: int, count: int) -> Strings:
        """Groups of ``size`` neighbours joined."""
        if self.width is not None and self.fixed:
            return matrix(self.data.reshape(count, self.width * size), fixed=True)
        return self.regrouped(np.arange(count + 1) * size)

    def rows(self) -> Bytes:
        """The strings as a matrix; only where they are equally long."""
        return self.data.reshape(self.count, self.width or 0)

    def ends(self) -> Numbers:
        """Where the strings begin and end in ``data``."""
        return self.offsets if self.width is None else np.arange(self.count + 1) * self.width

    def arrow(self) -> pa.Array:
        """The strings as an Arrow array of large binary."""
        buffers = [None, pa.py_buffer(np.ascontiguousarray(self.ends())), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), self.count, buffers)

    def to_list(self) -> list[bytes]:
        """The strings as Python bytes."""
        if self.width is not None:
            return self.data.view(f"V{self.width}").tolist() if self.width else [b""] * self.count
        first, last = int(self.offsets[0]), int(self.offsets[-1])
        raw, ends = self.data[first:last].tobytes(), (self.offsets - first).tolist()
        return list(map(raw.__getitem__, map(slice, ends, ends[1:])))

    def slice(self, start: int, count: int) -> Strings:
        """``count`` of the strings, or as many as there are from ``start`` on."""
        start = min(start, self.count)
        count = min(count, self.count - start)
        if self.width is not None:
            return matrix(self.rows()[start : start + count])
        return Strings(self.data, count, None, self.offsets[start : start + count + 1])

    def take(self, places: Numbers) -> Strings:
        """The strings at ``places``, in that order."""
        if self.width is not None:
            return matrix(self.rows()[places])
        return from_arrow(self.arrow().take(pa.array(places)))

    def order(self) -> Numbers | None:
        """Places in the order of the bytes, equal ones as they were; None when they are in order already."""
        if self.count < 2:
            return None
        if self.width:
            whole = self.data.view(f"S{self.width}")  # equally long, so that numpy's cut zeros do not matter
            return None if bool(np.all(whole[1:] >= whole[:-1])) else np.argsort(whole, kind="stable")
        places: Numbers = pc.sort_indices(self.arrow()).to_numpy().astype(np.int64)
        return places

    def starts(self) -> npt.NDArray[np.bool_]:
        """Mask of the sorted strings that differ from the one before."""
        first = np.ones(self.count, bool)
        if self.width and self.count:
            whole = self.data.view(f"S{self.width}")
            first[1:] = whole[1:] != whole[:-1]
        elif self.count:
            texts = self.arrow()
            first[1:] = pc.not_equal(texts[1:], texts[:-1]).to_numpy(zero_copy_only=False)
        return first

    def widest(self) -> int:
        """Bytes of the longest one."""
        return self.width if self.width is not None else int(np.diff(self.offsets).max(initial=0))


def matrix(rows: Bytes, *, fixed: bool = False) -> Strings:
    """Equally long strings, one per row of a matrix."""
    count, width = rows.shape
    return Strings(np.ascontiguousarray(rows).reshape(-1), count, width, np.empty(0, np.int64), fixed)


def strings_between(data: Bytes, offsets: Numbers) -> Strings:
    """The strings between ``offsets``; equally long ones are noticed, they are much cheaper."""
    count = len(offsets) - 1
    sizes = np.diff(offsets)
    if count and sizes[0] == sizes.max() and sizes[0] == sizes.min():
        return matrix(data[offsets[0] : offsets[-1]].reshape(count, int(sizes[0])))
    return Strings(data, count, None, offsets)


def repeated(value: bytes, count: int) -> Strings:
    """The same string ``count`` times."""
    return matrix(np.broadcast_to(np.frombuffer(value, np.uint8), (count, len(value))))


def from_arrow(column: pa.Array) -> Strings:
    """The bytes of an Arrow string or binary array, large or not. A null is any string."""
    ends = ends_of(column)
    if not len(ends):
        return strings_between(np.empty(0, np.uint8), np.zeros(len(column) + 1, np.int64))
    return strings_between(as_bytes(column.buffers()[2]), ends.astype(np.int64))


def flags(column: pa.Array) -> Bytes:
    """A byte for each flag of an Arrow array, 0 or 1. A null is either."""
    bits = np.unpackbits(as_bytes(column.buffers()[1]), bitorder="little")
    return bits[column.offset : column.offset + len(column)]


def fixed_width(column: pa.Array, width: int) -> Bytes:
    """The values of an Arrow array of fixed width as a matrix of bytes."""
    raw = as_bytes(column.buffers()[1])[column.offset * width : (column.offset + len(column)) * width]
    return raw.reshape(len(column), width)


def as_bytes(buffer: pa.Buffer | None) -> Bytes:
    """An Arrow buffer as numpy sees it."""
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(memoryview(buffer), np.uint8)


def concatenated(parts: Sequence[Strings], count: int) -> Strings:
    """Row by row the strings of ``parts`` one after the other."""
    parts = _merged(parts, count)
    if len(parts) == 1:
        return parts[0]
    arrays = [part.arrow() for part in parts]
    return from_arrow(pc.binary_join_element_wise(*arrays, pa.scalar(b"", pa.large_binary())))


def _merged(parts: Sequence[Strings], count: int) -> list[Strings]:
    """Neighbours of constant width as one part."""
    merged: list[Strings] = []
    pending: list[Bytes] = []
    for part in parts:
        if part.width is not None:
            pending.append(part.rows())
            continue
        merged += [matrix(np.concatenate(pending, axis=1))] if pending else []
        merged.append(part)
        pending = []
    if pending or not merged:
        merged.append(matrix(np.concatenate([np.empty((count, 0), np.uint8), *pending], axis=1)))
    return merged


def gather_strings(data: Bytes, starts: Numbers, sizes: Numbers) -> Bytes:
    """The pieces of ``data`` that start at ``starts`` (growing, not overlapping), one after the other."""
    count = len(starts)
    if not count or not sizes.any():
        return np.empty(0, np.uint8)
    # As an Arrow array of piece, gap, piece, …: taking every other string copies whole pieces, not single bytes.
    offsets = np.stack([starts, starts + sizes], axis=1).reshape(-1)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.large_binary(), 2 * count - 1, buffers)
    return as_bytes(pieces.take(pa.array(np.arange(0, 2 * count, 2))).buffers()[2])[: int(sizes.sum())]
