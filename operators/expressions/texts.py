"""Functions of text. Letters are code points, places count from 1. Pure and vectorised.

Patterns, separators and lengths are literals, so that what they cost is known before a row is seen. Regular
expressions are those of RE2, which never backtracks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidestate.operators.expressions.arrays import (
    Datum,
    as_arrays,
    by_distinct,
    elements_at,
    nulls_of,
    numbers_of,
    repeat_value,
    run,
    text_bytes,
    without,
)
from tidestate.operators.expressions.coercion import brought_to
from tidestate.operators.expressions.operands import Binders, BoundCall, Kernel, Operand, apply_kernel

MAX_PATTERN = 1_000
MAX_PADDING = 1_000
_TEXT, _BOOL = pa.string(), pa.bool_()
_EMPTY = pa.scalar("", _TEXT)
_PLACES = range(-(2**31), 2**31)
_SPECIAL = frozenset(".^$*+?()[]{}|\\")


def texts_of(call: BoundCall, *numbers: int) -> list[Operand]:
    """The arguments at these places as text; a null alone is one too."""
    operands = [call.operands[number] for number in numbers]
    if not all(pa.types.is_string(operand.type) or pa.types.is_null(operand.type) for operand in operands):
        call.refuse("text; convert other values with cast(… as string)")
    return [brought_to(call, operand, _TEXT) for operand in operands]


def _bind_plain(call: BoundCall, kernel: Kernel, kind: pa.DataType = _TEXT) -> Operand:
    return apply_kernel(kind, kernel, *texts_of(call, 0))


def _cased(column: pa.Array, name: str) -> pa.Array:
    """Upper or lower case: by the kernel where all is ASCII, as Python and Java have it otherwise (ß becomes SS)."""
    if (text_bytes(column) < 128).all():
        return run(f"ascii_{name}", column)
    return by_distinct(column, str.upper if name == "upper" else str.lower, _TEXT)


def _bind_substring(call: BoundCall) -> Operand:
    start, length = call.constant_whole(1, _PLACES), call.constant_whole(2, _PLACES)
    return apply_kernel(_TEXT, partial(_substring, start=start, length=length), *texts_of(call, 0))


def _substring(column: pa.Array, start: int, length: int) -> pa.Array:
    """From place ``start``, of which 0 is as 1 and -1 is the last letter."""
    first = start - 1 if start > 0 else start
    if length <= 0:
        return pc.utf8_slice_codeunits(column, 0, 0)
    # Counted from the end, a slice that reaches it has no other bound; Python's would be place 0.
    open_end = first < 0 <= first + length
    return pc.utf8_slice_codeunits(column, first, None if open_end else first + length)


def _bind_concat(call: BoundCall) -> Operand:
    return apply_kernel(_TEXT, _concat, *texts_of(call, *range(len(call.operands))))


def _concat(*data: Datum) -> pa.Array:
    columns = as_arrays(*data)
    return pc.binary_join_element_wise(*columns, _EMPTY) if len(columns) > 1 else columns[0]


def _bind_concat_ws(call: BoundCall) -> Operand:
    separator = call.constant_text(0)
    return apply_kernel(_TEXT, partial(_joined, separator=separator), *texts_of(call, *range(1, len(call.operands))))


def _joined(*data: Datum, separator: str) -> pa.Array:
    """With ``separator`` between those that are not null; empty, not null, where all are."""
    first, *other_texts = as_arrays(*data)
    all_null = reduce(partial(run, "and"), (column.is_null() for column in (first, *other_texts)))
    # Arrow 26 leaves a row out of the result, not empty, if all of it is skipped.
    first = pc.if_else(all_null, _EMPTY, first)
    return pc.binary_join_element_wise(first, *other_texts, pa.scalar(separator, _TEXT), null_handling="skip")


def _bind_search(call: BoundCall, kernel: Callable[..., pa.Array]) -> Operand:
    return apply_kernel(_BOOL, partial(kernel, pattern=call.constant_text(1)), *texts_of(call, 0))


def _bind_like(call: BoundCall) -> Operand:
    pattern = _regular(call, call.constant_text(1))
    return apply_kernel(_BOOL, partial(pc.match_substring_regex, pattern=pattern), *texts_of(call, 0))


def _regular(call: BoundCall, pattern: str) -> str:
    """The regular expression of a pattern of LIKE."""
    parts, letters = [], iter(_bounded(call, pattern))
    for letter in letters:
        if letter == "\\":
            letter = next(letters, "")
            if letter not in ("%", "_", "\\"):
                call.refuse("a pattern in which a backslash stands before %, _ or another backslash")
            parts.append(_literal(letter))
        else:
            parts.append({"%": ".*", "_": "."}.get(letter, _literal(letter)))
    return f"(?s)^{''.join(parts)}$"


def _literal(letter: str) -> str:
    return f"\\{letter}" if letter in _SPECIAL else letter


def _bounded(call: BoundCall, pattern: str) -> str:
    if len(pattern) > MAX_PATTERN:
        call.refuse(f"a pattern of at most {MAX_PATTERN} letters")
    return pattern


def _bind_rlike(call: BoundCall) -> Operand:
    pattern = _bounded(call, call.constant_text(1))
    try:
        pc.match_substring_regex(pa.array(["", None]), pattern)
    except pa.ArrowInvalid as error:
        call.refuse(f"a regular expression of RE2: {error!s:.200}")
    return apply_kernel(_BOOL, partial(pc.match_substring_regex, pattern=pattern), *texts_of(call, 0))


def _bind_replace(call: BoundCall) -> Operand:
    search, replacement = call.constant_text(1), call.constant_text(2)
    (operand,) = texts_of(call, 0)
    if not search:
        return operand
    return apply_kernel(_TEXT, partial(pc.replace_substring, pattern=search, replacement=replacement), operand)


def _bind_split_part(call: BoundCall) -> Operand:
    separator, position = call.constant_text(1), call.constant_whole(2, _PLACES)
    if not position:
        call.refuse("a part from 1 on, or from -1 back, as argument 3")
    return apply_kernel(_TEXT, partial(_part, separator=separator, position=position), *texts_of(call, 0))


def _part(column: pa.Array, separator: str, position: int) -> pa.Array:
    """The part between separators, from the end if ``position`` is negative; empty where there are fewer parts."""
    if not separator:
        return column if position in (1, -1) else without(repeat_value(_EMPTY, len(column)), nulls_of(column))
    parts = cast(pa.ListArray, pc.split_pattern(column.fill_null(""), separator))
    indices, is_missing = elements_at(parts, position)
    # Each text has a part: there is something to take where the one that is asked for is missing.
    part_texts = parts.values.take(pa.array(np.where(is_missing, np.asarray(parts.offsets[:-1]), indices)))
    results = pc.if_else(pa.array(is_missing), _EMPTY, part_texts)
    return without(results, nulls_of(column))


def _bind_lpad(call: BoundCall) -> Operand:
    width, padding = call.constant_whole(1, range(MAX_PADDING + 1)), call.constant_text(2)
    return apply_kernel(_TEXT, partial(_padded, width=width, padding=padding), *texts_of(call, 0))


def _padded(column: pa.Array, width: int, padding: str) -> pa.Array:
    """To ``width`` letters: what is longer is cut, what is shorter gets repetitions of ``padding`` in front."""
    cut_texts = pc.utf8_slice_codeunits(column, 0, width)
    if not padding:
        return cut_texts
    lengths_to_fill = width - numbers_of(run("utf8_length", cut_texts)).astype(np.int64)
    # One text for each length that can be missing, as Arrow pads by a single letter alone.
    fronts = pa.array([(padding * width)[:letters] for letters in range(width + 1)], _TEXT)
    return _concat(fronts.take(pa.array(np.minimum(lengths_to_fill, width))), cut_texts)


def _bind_length(call: BoundCall) -> Operand:
    """Letters of a text, or bytes."""
    if pa.types.is_binary(call.types[0]):
        return apply_kernel(pa.int32(), pc.binary_length, *call.operands)
    return _bind_plain(call, partial(run, "utf8_length"), pa.int32())


TEXT_BINDERS: Binders = {
    "length": _bind_length,
    "lower": partial(_bind_plain, kernel=partial(_cased, name="lower")),
    "upper": partial(_bind_plain, kernel=partial(_cased, name="upper")),
    "trim": partial(_bind_plain, kernel=partial(pc.utf8_trim, characters=" ")),
    "ltrim": partial(_bind_plain, kernel=partial(pc.utf8_ltrim, characters=" ")),
    "rtrim": partial(_bind_plain, kernel=partial(pc.utf8_rtrim, characters=" ")),
    "substring": _bind_substring,
    "concat": _bind_concat,
    "concat_ws": _bind_concat_ws,
    "contains": partial(_bind_search, kernel=pc.match_substring),
    "startswith": partial(_bind_search, kernel=pc.starts_with),
    "endswith": partial(_bind_search, kernel=pc.ends_with),
    "like": _bind_like,
    "rlike": _bind_rlike,
    "replace": _bind_replace,
    "split_part": _bind_split_part,
    "lpad": _bind_lpad,
}
