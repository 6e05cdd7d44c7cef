"""The first half of a step, next to the input: classify events, assign slices, aggregate, split by partition.

It needs no state, only the watermark at the start of the batch, so it runs wherever the input is read and what
is sent on is already small. Pure and vectorised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from operators.plan import Plan
from statestore.errors import UsageError
from statestore.keyhash import partition_of
from statestore.tables import TIME

VERY_LATE, NULL_KEY, NULL_TIME, OUT_OF_RANGE = "very_late", "null_key", "null_event_time", "event_time_out_of_range"
REASONS = (VERY_LATE, NULL_KEY, NULL_TIME, OUT_OF_RANGE)
LIMIT_US = 2**61
"""Event times lie within 73,000 years of 1970, so that no sum of a time and a span leaves int64."""
Counters = dict[str, int]


@dataclass(frozen=True)
class Prepared:
    """What one piece of input came to.

    ``partials`` has, per state partition, rows of the slices table (a key may repeat); ``rejected`` rows of the
    late ledger; ``max_event_us`` the largest accepted event time, None when there was none.
    """

    partials: list[pa.Table]
    rejected: pa.Table | None
    max_event_us: int | None
    counters: Counters


def prepare(plan: Plan, events: pa.Table, watermark_us: int | None, partitions: int) -> Prepared:
    """Prepare ``events`` (columns of ``plan.input_schema``, more are ignored) for ``partitions`` state partitions."""
    events = _conform(plan, events)
    accepted, rejected, counters = _classify(plan, events, watermark_us)
    if not accepted.num_rows:
        return Prepared([plan.exchanged.schema.empty_table()] * partitions, rejected, None, counters)
    times = _int_times(accepted[plan.event_time])
    if watermark_us is not None and (partly := plan.refused(accepted, times, watermark_us)) is not None:
        rejected = partly if rejected is None else pa.concat_tables([rejected, partly])
        counters["refused_windows"] = partly.num_rows
    partials = plan.arrive(accepted, times, watermark_us)
    return Prepared(_split(plan, partials, partitions), rejected, int(times.max()), counters)


def _conform(plan: Plan, events: pa.Table) -> pa.Table:
    missing = [name for name in plan.input_schema.names if name not in events.column_names]
    if missing:
        raise UsageError("a batch lacks columns of the input", code="column-missing", missing=missing)
    chosen = events.select(plan.input_schema.names)
    if chosen.schema.equals(plan.input_schema):
        return chosen
    try:
        return chosen.cast(plan.input_schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise UsageError(
            f"a batch has other types than the input was bound with ({error})", code="batch-type"
        ) from None


def _classify(plan: Plan, events: pa.Table, watermark_us: int | None) -> tuple[pa.Table, pa.Table | None, Counters]:
    """Split events into accepted and rejected ones, and count the classes of lateness."""
    null_time = _nulls(events, [plan.event_time])
    null_key = _nulls(events, plan.key_names)
    times = _int_times(events[plan.event_time])
    counters = {"events": events.num_rows}
    early = np.zeros(0, bool)
    if watermark_us is not None:
        early = plan.too_late(events, times, watermark_us)
        late = times < watermark_us
        future = times > _clip(watermark_us + plan.future_us)
    reasons = _reasons(null_time, null_key, early, _out_of_range(times))
    accepted = events
    if reasons is None:
        keep = np.ones(events.num_rows, bool)
    else:
        keep = reasons == ""
        accepted = events.filter(pa.array(keep))
    if watermark_us is not None:
        counters["mildly_late"] = int(np.count_nonzero(late & keep))
        counters["future"] = int(np.count_nonzero(future & keep))
    counters["accepted"] = accepted.num_rows
    counters["on_time"] = accepted.num_rows - counters.get("mildly_late", 0) - counters.get("future", 0)
    if reasons is None:
        return accepted, None, counters
    rejected = events.filter(pa.array(~keep))
    why = reasons[~keep]
    counters |= {reason: found for reason in REASONS if (found := int(np.count_nonzero(why == reason)))}
    mark = pa.array([watermark_us], pa.int64()).cast(TIME) if _real(watermark_us) else pa.nulls(1, TIME)
    marks = pc.take(mark, pa.array(np.zeros(len(why), np.int64)))
    rejected = rejected.append_column("reason", pa.array(why, pa.string())).append_column("watermark", marks)
    return accepted, _ledger(plan, rejected), counters


def _ledger(plan: Plan, rejected: pa.Table) -> pa.Table:
    """With all columns of the ledger: no window is named where all of them refused."""
    for field in plan.late_schema:
        if field.name not in rejected.column_names:
            rejected = rejected.append_column(field, pa.nulls(rejected.num_rows, field.type))
    return rejected.cast(plan.late_schema)


def _reasons(
    null_time: npt.NDArray[np.bool_],
    null_key: npt.NDArray[np.bool_],
    early: npt.NDArray[np.bool_],
    beyond: npt.NDArray[np.bool_],
) -> npt.NDArray[np.str_] | None:
    """Why each row is rejected ("" where it is not); None when no row is."""
    masks = ((early, VERY_LATE), (beyond, OUT_OF_RANGE), (null_key, NULL_KEY), (null_time, NULL_TIME))
    if not any(mask.any() for mask, _ in masks):
        return None
    rows = max(len(mask) for mask, _ in masks)
    reasons = np.full(rows, "", dtype="<U24")
    for mask, reason in masks:
        if len(mask):
            reasons[mask] = reason
    return reasons


def _out_of_range(times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Rows whose time no calendar needs; of length 0 when there is none."""
    if not len(times) or (times.max() <= LIMIT_US and times.min() >= -LIMIT_US):
        return np.zeros(0, bool)
    return (times > LIMIT_US) | (times < -LIMIT_US)


def _nulls(events: pa.Table, columns: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Rows with a null in any of ``columns``; of length 0 when there is none."""
    mask = np.zeros(0, bool)
    for name in columns:
        if events[name].null_count:
            own = events[name].is_null().to_numpy()
            mask = own if not len(mask) else mask | own
    return mask


def _int_times(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Microseconds; nulls become the largest time, so that they are never late."""
    whole = column.cast(pa.int64())
    if whole.null_count:
        whole = pc.fill_null(whole, np.iinfo(np.int64).max)
    times: npt.NDArray[np.int64] = whole.to_numpy()
    return times


def _split(plan: Plan, partials: pa.Table, partitions: int) -> list[pa.Table]:
    """``partials`` per state partition, order kept within each."""
    if partitions == 1:
        return [partials]
    owners = partition_of(partials.select(plan.key_names), partitions)
    order = np.argsort(owners.astype(np.uint16 if partitions <= 1 << 16 else np.int64), kind="stable")
    together = partials.take(pa.array(order))
    ends = np.cumsum(np.bincount(owners, minlength=partitions)).tolist()
    return [together.slice(first, last - first) for first, last in zip([0, *ends[:-1]], ends, strict=True)]


def _clip(time_us: int) -> int:
    """Into int64: the ends of time absorb."""
    return max(-(2**63), min(2**63 - 1, time_us))


def _real(watermark_us: int | None) -> bool:
    """Whether a watermark can be shown as a timestamp."""
    return watermark_us is not None and abs(watermark_us) < 2**62
