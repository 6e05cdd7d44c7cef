"""The types that JSON values can have as columns: how Arrow's reader is asked for them, and what is made of its
answer. Pure.

============================  ======================================================================================
column                        value
============================  ======================================================================================
bool, string                  ``true`` and ``false``; a text
integers                      a number without a fraction or an exponent that fits
float, double                 a number; ``NaN``, ``Infinity``, ``-Infinity``
decimal                       a number, or a text of one, that needs no more digits than the type has
timestamp with a time zone    ISO 8601 text, with a T or a space; without an offset it is UTC; digits beyond
                              microseconds are cut. With ``epoch`` a whole number of that unit instead
date                          ``2026-01-31``
struct, list                  an object, an array, of these
============================  ======================================================================================
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidestate.operators.describe.stages import TimeUnit
from tidestate.operators.stages.bad_rows import failing_rows
from tidestate.statestore.arrays import Flags, flags_at
from tidestate.statestore.spec.plain import floored

_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DAY = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_HOUR, _SIXTIETH = r"(?:[01][0-9]|2[0-3])", r"[0-5][0-9]"
_INSTANT = (
    rf"\A(?P<date>{_DAY})"
    rf"(?:[Tt ](?:(?P<time>{_HOUR}(?::{_SIXTIETH}(?::{_SIXTIETH}(?:\.[0-9]{{1,6}})?)?)?)"
    rf"|(?P<fine>{_HOUR}:{_SIXTIETH}:{_SIXTIETH}\.[0-9]{{6}})[0-9]+))?"
    rf" ?(?P<zone>[Zz]|[+-]{_HOUR}(?::?{_SIXTIETH})?)?\z"
)
"""All that Arrow takes for an instant, and more: other letters, no offset, no time, further digits. No day that the
calendar does not have, and no hour that the day does not.
"""
_DAYS_OF_NANOSECONDS = "1677-09-20", "2262-04-13"
"""A day before the first and behind the last that 64 bits of nanoseconds have, as offsets move an instant."""
_FINER, _CUT = r"\A(.{19}\.[0-9]{6})[0-9]+", r"\1"
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_FAILED = (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError)


def why_not_json(kind: pa.DataType) -> str:
    """Why no JSON value becomes a column of this type, and what to take instead; empty if some do."""
    if pt.is_timestamp(kind):
        return "" if kind.tz is not None else 'give the timestamp a time zone, pa.timestamp("us", "UTC")'
    if pt.is_list(kind):
        return why_not_json(kind.value_type)
    if pt.is_struct(kind):
        if len({field.name for field in kind}) < kind.num_fields:
            return "name each field once"
        reasons = [f"{field.name}: {reason}" for field in kind if (reason := why_not_json(field.type))]
        return reasons[0] if reasons else "" if kind.num_fields else "name its fields"
    if pt.is_map(kind):
        return "name the fields that are read, pa.struct(…), or leave the column out"
    if pt.is_decimal(kind) and kind.scale < 0:
        return "give the decimal no digits, or some, behind its point: a scale from 0 on"
    floating = pt.is_float32(kind) or pt.is_float64(kind)
    text = pt.is_string(kind) or pt.is_boolean(kind) or pt.is_date32(kind)
    if text or floating or pt.is_integer(kind) or pt.is_decimal128(kind):
        return ""
    return "use text, a number, a decimal, a bool, a date, a timestamp, or structs and lists of these"


def wire_type(kind: pa.DataType, epoch: TimeUnit | None) -> pa.DataType:
    """As what Arrow's reader is asked for a column of this type."""
    if pt.is_timestamp(kind):
        return pa.string() if epoch is None else pa.int64()
    if pt.is_date32(kind):
        return pa.string()
    if pt.is_decimal128(kind):
        # Arrow 26 does not see that 12345678e2 has too many digits for ten of them; a cast does.
        return pa.decimal256(76, kind.scale)
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(wire_type(kind.value_type, epoch)))
    if pt.is_struct(kind):
        return pa.struct([field.with_type(wire_type(field.type, epoch)) for field in kind])
    return kind


def converted(column: pa.ChunkedArray, kind: pa.DataType, epoch: TimeUnit | None) -> tuple[pa.ChunkedArray, Flags]:
    """A column of `wire_type` as one of this type, and the rows with a value that is none, which are null there.
    ``epoch``: the unit of timestamps, which are numbers then. Shape ``(rows,)``.
    """
    if column.type.equals(kind):
        return column, np.zeros(len(column), bool)
    values = column.combine_chunks()
    values = values if isinstance(values, pa.Array) else pa.concat_arrays(values.chunks)

    if (instances := _attempt(values, kind, epoch)) is not None:
        return pa.chunked_array([instances], kind), np.zeros(len(values), bool)
    # What is bad for a reason that a whole column can be asked for is found so; halving takes some calls for each.
    bad = _misfits(values, kind, epoch)
    values = _without(values, bad)
    if (instances := _attempt(values, kind, epoch)) is None:
        bad |= failing_rows(len(values), lambda start, end: _attempt(values[start:end], kind, epoch) is None)
        instances = _as_type(_without(values, bad), kind, epoch)
    return pa.chunked_array([instances], kind), bad


def _attempt(values: pa.Array, kind: pa.DataType, epoch: TimeUnit | None) -> pa.Array | None:
    try:
        return _as_type(values, kind, epoch)
    except _FAILED:
        return None


def _without(values: pa.Array, bad: Flags) -> pa.Array:
    """The values with nulls for those that are bad."""
    return pc.if_else(pa.array(~bad), values, pa.nulls(len(values), values.type)) if bad.any() else values


def _misfits(values: pa.Array, kind: pa.DataType, epoch: TimeUnit | None) -> Flags:
    """Which values are surely none of this type: there may be more. Shape ``(values,)``."""
    if pt.is_struct(kind) and isinstance(values, pa.StructArray):
        parts = [_misfits(part, field.type, epoch) for part, field in zip(values.flatten(), kind, strict=True)]
        flags: Flags = np.logical_or.reduce(parts)
        return flags
    if pt.is_list(kind) and isinstance(values, pa.ListArray):
        parents = pc.list_parent_indices(values).to_numpy(zero_copy_only=False)
        return flags_at(len(values), parents[_misfits(values.flatten(), kind.value_type, epoch)])
    return pc.fill_null(pc.invert(_fits(values, kind, epoch)), False).to_numpy(zero_copy_only=False)


def _fits(values: pa.Array, kind: pa.DataType, epoch: TimeUnit | None) -> pa.Array:
    """Whether texts and numbers may be of this type."""
    if pt.is_date32(kind):
        return pc.match_substring_regex(values, rf"\A{_DAY}\z")
    if pt.is_timestamp(kind) and epoch is None:
        well_formed = pc.match_substring_regex(values, _INSTANT)
        # 64 bits of nanoseconds have few years.
        return pc.and_(well_formed, _between(values, *_DAYS_OF_NANOSECONDS)) if kind.unit == "ns" else well_formed
    if pt.is_timestamp(kind):
        return _between(values, *_counts(kind, epoch or "us"))
    if pt.is_decimal(kind):
        digits = Decimal(10) ** (kind.precision - kind.scale)
        unit = Decimal(10) ** -kind.scale
        return _between(values, unit - digits, digits - unit)
    return pa.array(np.ones(len(values), bool))


def _between(values: pa.Array, least: object, greatest: object) -> pa.Array:
    low, high = (pa.scalar(bound, values.type) for bound in (least, greatest))
    return pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))


def _counts(kind: pa.TimestampType, epoch: TimeUnit) -> tuple[int, int]:
    """Numbers between which are all those that `_counted` takes, and few others."""
    have, want = _PER_SECOND[epoch], max(_PER_SECOND[kind.unit], _PER_SECOND["us"])
    # Of 64 bits in the type and in microseconds; a second more, as what is cut from a number may make it fit.
    bound = min(2**63 * have // want + have, 2**63 - 1)
    return -bound - 1, bound


def _as_type(values: pa.Array, kind: pa.DataType, epoch: TimeUnit | None) -> pa.Array:
    """Raises what Arrow raises for a value that is none."""
    if values.type.equals(kind):
        return values
    if pt.is_timestamp(kind):
        return _instants(values, kind) if epoch is None else _counted(values, kind, epoch)
    if pt.is_struct(kind) and isinstance(values, pa.StructArray):
        parts = [_as_type(part, field.type, epoch) for part, field in zip(values.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=values.is_null())
    if pt.is_list(kind) and isinstance(values, pa.ListArray):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        items = _as_type(values.flatten(), kind.value_type, epoch)
        return pa.ListArray.from_arrays(offsets, items, type=kind, mask=values.is_null())
    return values.cast(kind)


def _instants(texts: pa.Array, kind: pa.TimestampType) -> pa.Array:
    if (usual := _usual_instants(texts, kind)) is not None:
        return usual
    if pc.any(pc.invert(pc.match_substring_regex(texts, _INSTANT))).as_py():
        raise pa.ArrowInvalid("some texts are no instants")
    if (usual := _usual_instants(pc.replace_substring_regex(texts, _FINER, _CUT), kind)) is not None:
        return usual
    parts = pc.extract_regex(texts, _INSTANT)
    date, time, fine, zone = (pc.struct_field(parts, name) for name in ("date", "time", "fine", "zone"))
    time = pc.binary_join_element_wise(time, fine, "")
    # Arrow reads an offset behind hours and minutes, but behind no date alone.
    time = pc.if_else(pc.equal(time, ""), "00", time)
    zone = pc.if_else(pc.equal(zone, ""), "Z", pc.utf8_upper(zone))
    return pc.binary_join_element_wise(pc.binary_join_element_wise(date, time, "T"), zone, "").cast(kind)


def _usual_instants(texts: pa.Array, kind: pa.TimestampType) -> pa.Array | None:
    """The instants of texts that all have an offset, or all none; None where there are others."""
    for offset_kind in (kind, pa.timestamp(kind.unit)):
        try:
            return texts.cast(offset_kind).cast(kind)
        except _FAILED:
            pass
    return None


def _counted(numbers: pa.Array, kind: pa.TimestampType, epoch: TimeUnit) -> pa.Array:
    """Instants of numbers; what is finer than the type is cut, towards the past. Raises for an instant that is none
    in microseconds, as which event times are compared.
    """
    have, want = _PER_SECOND[epoch], _PER_SECOND[kind.unit]
    counts = pc.multiply_checked(numbers, want // have) if want >= have else floored(numbers, have // want)
    instants = counts.cast(kind)
    instants.cast(pa.timestamp("us", kind.tz), safe=kind.unit != "ns")
    return instants
