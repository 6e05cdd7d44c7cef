"""Buffers whose rows arrive in several batches, and buffers without rows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.process import LONG, SCRATCH
from tidestate import Aggregation, agg, watermark
from tidestate.operators.local.harness import Harness
from tidestate.statestore.errors import UsageError

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("t", TIME),
        ("origin", pa.int64()),
        ("sequence", pa.int64()),
        ("chunk", pa.int64()),
        ("last", pa.bool_()),
        ("mark", TIME),
        ("rows", pa.int64()),
        ("last_row", pa.bool_()),
        ("empty", pa.bool_()),
        ("end", pa.bool_()),
    ]
)
Row = dict[str, Any]


def buffer(origin: int, sequence: int, *seconds: int, mark: int, **more: Any) -> list[Row]:
    """The rows of a buffer with an event at each second; without any, the row that announces it."""
    times: list[int | None] = [second * SECOND for second in seconds] or [None]
    whole = {"origin": origin, "sequence": sequence, "chunk": 0, "last": True, "mark": mark * SECOND, **more}
    many = {"rows": len(seconds), "empty": not seconds}
    return [{"t": t, "last_row": n == len(times) - 1, **many, **whole} for n, t in enumerate(times)]


def job(whole: str | None, *sources: str, **more: Any) -> Aggregation:
    named = {} if whole is None else {"whole": whole}
    progress = watermark.buffers(
        origin="origin",
        sequence="sequence",
        watermark="mark",
        chunk="chunk",
        last="last",
        empty="empty",
        end="end",
        **named,
        **more,
    )
    events = ts.stream(event_time="t").watermark(progress, sources=sources)
    described = events.group_by().window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    return described.allowed_lateness("0 seconds", ledger_columns=["sequence"])


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def mark(root: Path | str) -> float | None:
    found = evidence.work(Path(root))[-1].get("watermark_us")
    return None if found is None else found / SECOND


@pytest.mark.parametrize("whole", ["rows", "last_row"])
def test_a_buffer_that_is_cut_is_waited_for(tmp_path: Path, whole: str) -> None:
    tested = job(whole, "1").harness(SCHEMA, folder=tmp_path)
    rows = [*buffer(1, 1, 1, 2, 3, mark=4), *buffer(1, 2, 5, 11, mark=20)]
    tested.feed(table(rows[:2]))
    assert mark(tmp_path) is None
    tested.restart()
    tested.feed(table(rows[2:4]))
    assert mark(tmp_path) == 4
    tested.restart()
    assert tested.feed(table(rows[4:]))["n"].to_pylist() == [4, 1]
    assert mark(tmp_path) == 20
    assert tested.ledger().num_rows == 0
    # All of it again: a buffer that was whole takes no more rows.
    tested.feed(table(rows))
    assert tested.ledger()["reason"].to_pylist() == ["duplicate_buffer"] * 5


def test_without_it_the_rest_of_a_buffer_goes_to_the_ledger(tmp_path: Path) -> None:
    tested = job(None, "1").harness(SCHEMA, folder=tmp_path)
    rows = buffer(1, 1, 1, 2, mark=4)
    tested.feed(table(rows[:1]))
    tested.feed(table(rows[1:]))
    assert tested.ledger()["reason"].to_pylist() == ["duplicate_buffer"]


def test_an_empty_buffer_is_announced(tmp_path: Path) -> None:
    tested = job("rows", "1").harness(SCHEMA, folder=tmp_path)
    tested.feed(table(buffer(1, 1, 1, mark=2)))
    tested.feed(table(buffer(1, 3, 12, mark=13)))
    assert mark(tmp_path) == 2
    assert tested.feed(table(buffer(1, 2, mark=2)))["n"].to_pylist() == [1]
    assert mark(tmp_path) == 13
    assert tested.counters()["control_rows"] == 1
    tested.feed(table(buffer(1, 2, mark=2)))  # again: it says nothing new, and is no event that could be late
    assert tested.ledger().num_rows == 0
    tested.feed(table(buffer(1, 4, mark=30, end=True)))
    assert tested.counters()["events"] == 2
    assert mark(tmp_path) == 30, "the end of an origin may be an empty buffer"


def test_a_cut_buffer_that_is_given_up_takes_no_more_rows(tmp_path: Path) -> None:
    tested = job("rows", "1", patience="5 seconds").harness(SCHEMA, folder=tmp_path)
    rows = buffer(1, 1, 1, 2, mark=3)
    tested.feed(table([rows[0], *buffer(1, 2, 12, mark=13)]))
    tested.advance_processing_time(6 * SECOND)
    assert mark(tmp_path) == 13
    tested.feed(table(rows[1:]))
    assert tested.ledger()["reason"].to_pylist() == ["gap_given_up"]
    assert evidence.operator(evidence.work(tmp_path)[-1])["buffers"]["cut"] == []


def test_a_new_origin_joins_with_its_first_row(tmp_path: Path) -> None:
    tested = job("rows", "1").harness(SCHEMA, folder=tmp_path)
    tested.feed(table(buffer(1, 1, 5, mark=6)))
    tested.feed(table([*buffer(2, 1, 7, 8, mark=9)[:1], *buffer(1, 2, 30, mark=40)]))
    assert mark(tmp_path) == 6, "it holds the watermark until its buffer is whole"
    tested.feed(table(buffer(2, 1, 7, 8, mark=9)[1:]))
    assert mark(tmp_path) == 9


def test_columns_of_other_types_are_refused() -> None:
    for name, kind in (("rows", pa.string()), ("empty", pa.int64())):
        place = SCHEMA.get_field_index(name)
        schema = SCHEMA.set(place, pa.field(name, kind))
        tested = job("rows", "1").harness(schema)
        with pytest.raises(UsageError, match="progress-column"):
            tested.feed(table(buffer(1, 1, 1, mark=2)).set_column(place, name, pa.nulls(1, kind)))


@settings(max_examples=settings.default.max_examples if LONG else 5)
@given(st.data())
def test_any_cut_gives_the_watermark_and_the_counts_of_whole_buffers(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=8))
    numbers = dict.fromkeys((1, 2, 3), 0)
    whole: list[list[Row]] = []
    for origin, size in sizes:
        numbers[origin] += 1
        seconds = data.draw(st.lists(st.integers(0, 40), min_size=size, max_size=size))
        whole.append(buffer(origin, numbers[origin], *seconds, mark=numbers[origin] * 7))
    rows = [row for one in data.draw(st.permutations(whole)) for row in one]
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(rows) - 1)), max_size=5)))
    kind = data.draw(st.sampled_from(["rows", "last_row"]))
    with tempfile.TemporaryDirectory(dir=SCRATCH) as one, tempfile.TemporaryDirectory(dir=SCRATCH) as two:
        known = [str(origin) for origin in numbers if numbers[origin]]
        at_once = job(None, *known).allowed_lateness("1 day").harness(SCHEMA, folder=one)
        cut = job(kind, *known).allowed_lateness("1 day").harness(SCHEMA, folder=two)
        at_once.feed(table(rows))
        for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            cut.feed(table(rows[first:last]))
            if data.draw(st.booleans()):
                cut.restart()
        assert mark(one) == mark(two)
        assert cut.ledger().num_rows == 0
        assert _net(at_once) == _net(cut)


def _net(tested: Harness) -> list[tuple[Any, int]]:
    last = {row["window_start"]: row["n"] for row in tested.windows().to_pylist()}
    return sorted(last.items())
