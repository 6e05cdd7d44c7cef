"""JSON objects in the values of a column, as columns: by Arrow, a block at a time, and exact for each value. Pure.

Arrow's reader takes a text in which one object follows another. Three things must hold for that to be the same as
reading each value by itself, and are seen to before it is called:

- **One value is one object.** A value that begins with ``{`` and in which, outside of strings, a ``}`` is followed by
  nothing but ``,``, ``}``, ``]`` and white space has at most one object of its own. So a block with as many objects
  as values has one in each. (Without this ``{"a":[``, ``{}]}`` and ``{}{}`` would be three objects, of none of them.
  And Arrow 26 crashes over a block of nothing but ``null``.)
- **A value is UTF-8**, which Arrow does not look at in values that are left out.
- **A block that fails is read without the rows that do.** `tidestate.operators.stages.json_screen` finds most of them
  in a pass over the block; what Arrow still refuses is found by halves. Only what Arrow has read is a row.

Times are read as text and parsed here: Arrow's reader has no more digits than the type.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tidestate.operators.describe.stages import TimeUnit
from tidestate.operators.stages.bad_rows import failing_rows
from tidestate.operators.stages.json_screen import refused_values, repeated_names
from tidestate.operators.stages.json_types import converted, wire_type
from tidestate.statestore.arrays import Flags, Numbers
from tidestate.statestore.errors import of_type

PARSED_ROWS = 1 << 14
PARSED_BYTES = 8 << 20
"""What is parsed in one call at most, unless a single value is larger."""
ROWS_SEARCHED = 1 << 10
"""Blocks in which bad rows are looked for."""
_BEGINS = rb"\A[ \t\r\n]*\{"
_GOES_ON = rb"\}[ \t\r\n]*[^,}\] \t\r\n]"
_STRING = rb'"(?:[^"\\]|\\.)*"'
_LONG_NUMBER = rb"[0-9]{200}|[eE]\+?0*[1-9][0-9]{2}"
"""What a number that no double holds has: that many digits, or an exponent above 99."""
_NUMBER = re.compile(rb"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_FAILED = (pa.ArrowInvalid, pa.ArrowNotImplementedError)


@dataclass(frozen=True)
class JsonReader:
    """Reads JSON objects into columns of ``schema``. A null value is an object without fields; so is, of each object,
    a field that it lacks null, and fields that are not in the schema are ignored. ``epoch``: see `converted`.
    """

    schema: pa.Schema
    epoch: TimeUnit | None = None

    @property
    def wire(self) -> pa.Schema:
        """What is asked of Arrow's reader."""
        return pa.schema([field.with_type(wire_type(field.type, self.epoch)) for field in self.schema])

    def read(self, values: pa.ChunkedArray) -> tuple[pa.Table, Flags | None]:
        """Parse values, texts or bytes: columns of those that are such objects, and which these are, None for all of
        them. Nothing raises for a value.
        """
        texts = pc.fill_null(values.cast(pa.large_binary()), b"{}").combine_chunks()
        tables, masks = [self.schema.empty_table()], [np.zeros(0, bool)]
        doubtful = False
        for start, end in pairwise(_block_edges(texts)):
            table, bad, doubtful = self._block(texts[start:end], doubtful=doubtful)
            tables.append(table)
            masks.append(bad)
        bad = np.concatenate(masks)
        return pa.concat_tables(tables), ~bad if bad.any() else None

    def _block(self, texts: pa.Array, *, doubtful: bool) -> tuple[pa.Table, Flags, bool]:
        """The rows of a block that are objects, which texts are none, and whether Arrow refused some of them.
        ``doubtful``: it will, so the block is not tried as a whole first.
        """
        bad = _not_one_object(texts)
        rows, failures = self._parsed(texts.filter(pa.array(~bad)) if bad.any() else texts, doubtful=doubtful)
        doubtful = bool(failures.any())
        bad[np.flatnonzero(~bad)[failures]] = True
        columns, misfits = list[pa.ChunkedArray](), np.zeros(rows.num_rows, bool)
        for field in self.schema:
            column, flags = converted(rows[field.name], field.type, self.epoch)
            columns.append(column)
            misfits |= flags
        table = pa.table(columns, schema=self.schema)
        if not misfits.any():
            return table, bad, doubtful
        bad[np.flatnonzero(~bad)[misfits]] = True
        return table.filter(pa.array(~misfits)), bad, doubtful

    def _parsed(self, texts: pa.Array, *, doubtful: bool) -> tuple[pa.Table, Flags]:
        """The rows that Arrow reads, and which texts it does not."""
        if not doubtful and (rows := self._attempt(texts)) is not None:
            return rows, np.zeros(len(texts), bool)
        bad = refused_values(texts, self.schema, self.epoch)
        # The cheaper search first: each is for what Arrow still refuses after the one before.
        for search in (partial(repeated_names, schema=self.schema), self._failing):
            remainder = texts.filter(pa.array(~bad))
            if (rows := self._attempt(remainder)) is not None:
                return rows, bad
            bad[np.flatnonzero(~bad)[search(remainder)]] = True
        return self._read(texts.filter(pa.array(~bad))), bad

    def _failing(self, texts: pa.Array) -> Flags:
        """Which rows Arrow does not read, by Arrow alone. Rare: numbers that two parsers see differently."""
        parts = [texts[first : first + ROWS_SEARCHED] for first in range(0, len(texts), ROWS_SEARCHED)]
        return np.concatenate([np.zeros(0, bool), *map(self._failing_of_few, parts)])

    def _failing_of_few(self, texts: pa.Array) -> Flags:
        return failing_rows(len(texts), lambda start, end: self._attempt(texts[start:end]) is None)

    def _attempt(self, texts: pa.Array) -> pa.Table | None:
        try:
            return self._read(texts)
        except _FAILED:
            return None

    def _read(self, texts: pa.Array) -> pa.Table:
        """Rows of texts that are one object each. Raises what Arrow raises if one of them is none."""
        if not len(texts):
            return self.wire.empty_table()
        block = pa.LargeListArray.from_arrays(pa.array([0, len(texts)], pa.int64()), texts)
        lines = pc.binary_join(block, pa.scalar(b"\n", pa.large_binary()))
        text = of_type(of_type(lines[0], pa.BinaryScalar).as_buffer(), pa.Buffer)
        rows = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pj.ParseOptions(explicit_schema=self.wire, unexpected_field_behavior="ignore"),
        )
        if rows.num_rows != len(texts):
            raise pa.ArrowInvalid("values are not one object each")
        return rows


def _block_edges(texts: pa.Array) -> list[int]:
    """Where blocks begin and end: of few enough rows and bytes."""
    if not len(texts):
        return [0]
    ends: Numbers = np.cumsum(pc.binary_length(texts).to_numpy(zero_copy_only=False), dtype=np.int64)
    edges = [0]
    while edges[-1] < len(texts):
        start = edges[-1]
        before = int(ends[start - 1]) if start else 0
        by_size = int(np.searchsorted(ends, before + PARSED_BYTES, side="right"))
        edges.append(min(len(texts), max(start + 1, min(by_size, start + PARSED_ROWS))))
    return edges


def _not_one_object(texts: pa.Array) -> Flags:
    """Values that are no text, begin with something else than an object, or go on behind it. Shape ``(rows,)``."""
    bad: Flags = ~_matches(texts, _BEGINS)
    doubtful = np.flatnonzero(_matches(texts, _GOES_ON))
    if len(doubtful):  # most often a brace inside of a string
        bare = pc.replace_substring_regex(texts.take(pa.array(doubtful)), pattern=_STRING, replacement=b'""')
        bad[doubtful[_matches(bare, _GOES_ON)]] = True
    return bad | _not_utf8(texts) | _beyond_doubles(texts)


def _beyond_doubles(texts: pa.Array) -> Flags:
    """Values with a number that no double holds, which Arrow takes for infinity if its exponent is below 309. Only
    values with so long a number are looked at one by one.
    """
    bad = np.zeros(len(texts), bool)
    long = np.flatnonzero(_matches(texts, _LONG_NUMBER))
    if len(long):
        bare = pc.replace_substring_regex(texts.take(pa.array(long)), pattern=_STRING, replacement=b'""')
        for row, text in zip(long.tolist(), bare.to_pylist(), strict=True):
            bad[row] = any(math.isinf(float(number)) for number in _NUMBER.findall(text))
    return bad


def _matches(texts: pa.Array, pattern: bytes) -> Flags:
    flags: Flags = pc.match_substring_regex(texts, pattern=pattern).to_numpy(zero_copy_only=False)
    return flags


def _not_utf8(texts: pa.Array) -> Flags:
    try:
        texts.cast(pa.large_string())
    except pa.ArrowInvalid:
        return np.array([not _is_utf8(text) for text in texts.to_pylist()], bool)
    return np.zeros(len(texts), bool)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
