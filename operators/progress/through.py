"""What operators do to a CTI (a watermark that travels with the stream), and how they number what they put out. Pure.

Instants are int64 microseconds, exclusive: what lies strictly before a CTI is final. The ends of time pass unchanged.
Rules of StreamInsight ("CTIs and Query Operators") and NebulaStream ("ChunkNumber").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from tidestate.operators.progress.instants import BEGINNING_US, END_US, Flags, Times, moved
from tidestate.statestore.errors import UsageError


def join(*sides_us: int) -> int:
    """Up to where a join releases its results: the older CTI of its sides."""
    return min(sides_us)


def union(*sides_us: int) -> int:
    """Up to where a union releases: the older of the most recent CTIs of its sides."""
    return min(sides_us)


def hopping(ctis: Times, size_us: int, slide_us: int, offset_us: int = 0) -> Times:
    """CTIs after a hopping or tumbling window: pulled back to the start of the earliest window that can still change.

    That is the first window that ends after the CTI. A CTI in a gap between windows stays where it is. Shape as
    given.
    """
    inner = np.clip(ctis, BEGINNING_US // 2, END_US // 2)
    phase = offset_us + size_us
    ends = -((phase - inner - 1) // slide_us) * slide_us + phase
    pulled: Times = np.where(inner == ctis, np.minimum(ctis, ends - size_us), ctis)
    return pulled


def shift(ctis: Times, by_us: int) -> Times:
    """CTIs after event times were shifted by ``by_us``: shifted alike. Shape as given."""
    return moved(ctis, by_us)


def alter(ctis: Times, start_of: Callable[[Times], Times]) -> Times:
    """CTIs after ``start_of`` gave events another start: the same transformation. Shape as given.

    A change of durations alone leaves CTIs as they are. ``start_of`` must not swap instants. Raises `UsageError` when
    CTIs in order come out of order: nothing could be promised then.
    """
    real = (ctis != BEGINNING_US) & (ctis != END_US)
    altered = np.array(ctis)
    altered[real] = start_of(ctis[real])
    before, after = ctis[real], altered[real]
    order = np.argsort(before, kind="stable")
    if np.any(np.diff(after[order]) < 0):
        raise UsageError("a change of start times must keep their order", code="cti-order")
    return altered


def released(times: Times, cti_us: int) -> Flags:
    """Which results a query may release: those strictly before the most recent CTI. Shape as given."""
    if cti_us == END_US:
        return np.ones(len(times), bool)
    return times < cti_us


class Numbering(msgspec.Struct, frozen=True):
    """A stateful operator as an origin: the next sequence number it gives, and the input prefix released so far."""

    origin: int
    next_sequence: int = 1
    released: int = 0


@dataclass(frozen=True)
class Numbered:
    """``rows``: indices into the outputs, in the order of their numbers; the others in parallel.

    ``waiting`` and ``repeated`` (rows of the outputs) say which got no number: their input is not whole yet, or was
    released before.
    """

    rows: Times
    sequences: Times
    chunks: Times
    last: Flags
    waiting: Flags
    repeated: Flags
    numbering: Numbering


def number(numbering: Numbering, inputs: Times, prefix: int) -> Numbered:
    """Number output buffers, each made from the input buffer of sequence number ``inputs`` (int64).

    Only outputs of the input's longest whole ``prefix`` get numbers: one sequence number, without gaps, for each
    input that has outputs, in the order of the inputs; its outputs are the chunks of it, in the order given.
    """
    repeated, waiting = inputs <= numbering.released, inputs > prefix
    due = np.flatnonzero(~repeated & ~waiting)
    rows: Times = due[np.argsort(inputs[due], kind="stable")]
    sorted_inputs = inputs[rows]
    first = np.append(True, sorted_inputs[1:] != sorted_inputs[:-1])[: len(rows)]
    heads = np.flatnonzero(first)
    groups = np.cumsum(first) - 1
    return Numbered(
        rows=rows,
        sequences=groups + numbering.next_sequence,
        chunks=np.arange(len(rows)) - heads[groups],
        last=np.append(first[1:], True)[: len(rows)],
        waiting=waiting,
        repeated=repeated,
        numbering=Numbering(numbering.origin, numbering.next_sequence + len(heads), max(numbering.released, prefix)),
    )
