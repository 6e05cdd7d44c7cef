"""Rows of the input that are combined before anybody here has them: what Spark SQL, or whoever reads the input, must
know to make partials of an operator's rows, and what it gives. Pure.

Combined are only rows that are certain to be accepted, and of which no more is asked than sums and extremes. All
others are given as they are, so that they are judged by the same code as ever (`tidestate.operators.plan.classify`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidestate.operators.aggregates.aggregate import Partial
from tidestate.statestore.arrays import Numbers, Times, Values


@dataclass(frozen=True)
class Slicing:
    """How the rows of an operator are combined: by slice, key and source of the watermark."""

    width_us: int
    """The length of a slice."""
    shift_us: int
    """Slices begin at whole multiples of their length, and this."""
    partials: tuple[Partial, ...]
    """The state columns, in order."""
    taken_from: Callable[[int], int]
    """At a watermark the time from which on no window refuses a row."""


@dataclass(frozen=True)
class SlicedRows:
    """Accepted rows of a piece of input, as one entry for each slice, key and source, or more. All rows of an entry
    are on the same side of the watermark, and of the time from which on rows count as future.
    """

    keys: pa.Table
    """The columns of the key, and the one that names the sources of the watermark, in the types of the input."""
    ends: Times
    """The end of the slice of each entry, as all others of shape ``(entries,)``."""
    rows: Numbers
    """The number of rows in it."""
    first_us: Times
    """Their smallest and largest event time."""
    last_us: Times
    state: Mapping[str, Values]
    """The state columns by name: sums of integers as decimals with 38 digits or as int64."""
    sample_us: Times
    """The times of some rows, drawn evenly."""


@dataclass(frozen=True)
class LeftOutRows:
    """Rows of a piece of input that a condition of its stages leaves out, and whose times are accepted: as one entry
    for each source of the watermark, or more. They are counted, and move time.
    """

    sources: pa.Table
    """The column that names the sources of the watermark, in the type of the input; no column where there is one."""
    rows: Numbers
    """The number of rows in each entry, as all others of shape ``(entries,)``."""
    first_us: Times
    """Their smallest and largest event time."""
    last_us: Times
    sample_us: Times
    """The times of some rows, drawn evenly."""
