"""Unions, time shifts and deduplications that hold rows until the watermark passes them, as those of CTIs do."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.advance_time import Row
from tests.helpers.bundles import other_needs
from tests.helpers.process import SCRATCH, examples
from tests.helpers.two_streams import STORES, TIME
from tests.twins.cti import CtiTwin
from tidestate import OperatorStream, Stream
from tidestate.operators.progress.watermarks import BEGINNING_US
from tidestate.operators.streams.watermarks import stored_settings
from tidestate.statestore.errors import IncompatibleError
from tidestate.statestore.spec.store import StoreConfig

SCHEMA = pa.schema([("k", "string"), ("t", TIME), ("off", "int64")])
SETTINGS = ts.watermark.cti_settings("drop", generate=ts.watermark.generate_ctis(2))
Batch = dict[str, list[int]]
two_sided = st.lists(
    st.fixed_dictionaries({side: st.lists(st.integers(-30, 60), max_size=5) for side in ("a", "b")}),
    min_size=1,
    max_size=5,
)


def rows(times: list[int], first: int) -> pa.Table:
    offsets = list(range(first, first + len(times)))
    columns = [pa.array([f"k{at % 3}" for at in times], pa.string()), pa.array(times, pa.int64()).cast(TIME)]
    return pa.table([*columns, pa.array(offsets, pa.int64())], schema=SCHEMA)


def numbered(batches: list[Batch]) -> Iterator[dict[str, pa.Table]]:
    """The rows of each side, with offsets that go on."""
    first = {"a": 0, "b": 0}
    for batch in batches:
        yield {side: rows(times, first[side]) for side, times in batch.items()}
        first = {side: first[side] + len(times) for side, times in batch.items()}


def with_ctis(name: str) -> Stream:
    return ts.stream(name, event_time="t", offset="off", cti_settings=SETTINGS)


def passed(panes: pa.Table) -> list[tuple[str, int, int]]:
    times = panes["time"].cast(pa.int64()).to_pylist()
    return list(zip(panes["side"].to_pylist(), panes["off"].to_pylist(), times, strict=True))


class UnionTwin:
    """Rows of two sides with CTIs, one after the other; what neither CTI has passed waits."""

    def __init__(self) -> None:
        self.ctis = {side: CtiTwin(stored_settings(SETTINGS)) for side in ("a", "b")}
        self.waiting: list[tuple[str, int, int]] = []

    def take(self, batch: dict[str, pa.Table]) -> Counter[tuple[str, int, int]]:
        for side, table in batch.items():
            for offset, at in zip(table["off"].to_pylist(), table["t"].cast(pa.int64()).to_pylist(), strict=True):
                taken = self.ctis[side].take(offset, Row("point", at))
                if taken and taken[0]:
                    self.waiting.append((side, offset, at))
        older = min(twin.cti for twin in self.ctis.values())
        released = [row for row in self.waiting if row[2] < older]
        self.waiting = [row for row in self.waiting if row[2] >= older]
        return Counter(released)


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_a_union_releases_up_to_the_older_cti(store: StoreConfig) -> None:
    """StreamInsight: "Union operators release the older result of the most recent CTIs from either side"."""

    @settings(deadline=None, max_examples=examples(20))
    @given(two_sided, st.integers(1, 3), st.booleans())
    def check(batches: list[Batch], partitions: int, restart: bool) -> None:
        job, twin = ts.union(with_ctis("a"), with_ctis("b")), UnionTwin()
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            tested = job.harness({"a": SCHEMA, "b": SCHEMA}, store=store, folder=folder, partitions=partitions)
            for batch in numbered(batches):
                assert Counter(passed(tested.feed(batch))) == twin.take(batch)
                if restart:
                    tested.restart()
            # At the end of the input everything has been committed.
            assert Counter(passed(tested.finish())) == Counter(twin.waiting)

    check()


@given(two_sided, st.integers(0, 20))
def test_in_order_rows_wait_for_any_watermark_and_come_by_time(batches: list[Batch], delay: int) -> None:
    late = {"event_time": "t", "watermark_delay": f"{delay} microseconds", "offset": "off"}
    job = ts.union(ts.stream("a", **late), ts.stream("b", **late), in_order=True)
    newest: dict[str, int] = {}
    waiting: list[tuple[str, int, int]] = []
    watermark = BEGINNING_US
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = job.harness({"a": SCHEMA, "b": SCHEMA}, folder=folder, partitions=1)
        for batch in numbered(batches):
            for side, table in batch.items():
                times = table["t"].cast(pa.int64()).to_pylist()
                waiting += [(side, off, at) for off, at in zip(table["off"].to_pylist(), times, strict=True)]
                newest |= {side: max([*times, *([newest[side]] if side in newest else [])])} if times else {}
            if len(newest) == 2:
                watermark = max(watermark, min(newest.values()) - delay)
            panes = passed(tested.feed(batch))
            assert Counter(panes) == Counter(row for row in waiting if row[2] < watermark)
            assert [at for *_, at in panes] == sorted(at for *_, at in panes)
            waiting = [row for row in waiting if row[2] >= watermark]
        assert Counter(passed(tested.finish())) == Counter(waiting)


@given(st.lists(st.lists(st.integers(-30, 60), max_size=6), max_size=5), st.integers(-9, 9).filter(bool))
def test_a_query_releases_up_to_its_newest_cti(batches: list[list[int]], shift: int) -> None:
    """StreamInsight: "The entire query will release its result only up to the most recent CTI"."""
    job = with_ctis("a").shift_time(f"{shift} us", name="moved").deduplicate(["k", "t"], name="distinct")
    twin, number, waiting = CtiTwin(stored_settings(SETTINGS)), 0, set[tuple[str, int]]()
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = job.harness(SCHEMA, folder=folder, partitions=2)
        for times in batches:
            table = rows(times, number)
            for at in times:
                taken = twin.take(number, Row("point", at))
                if taken and taken[0]:
                    waiting.add((f"k{at % 3}", at))
                number += 1
            panes = tested.feed(table)
            columns = (panes["k"].to_pylist(), panes["t"].cast(pa.int64()).to_pylist())
            due = {row for row in waiting if row[1] < twin.cti}
            assert Counter(zip(*columns, strict=True)) == Counter((k, at + shift) for k, at in due)
            waiting -= due
        assert tested.finish().num_rows == len(waiting)


def at_once(in_order: bool | None) -> dict[str, OperatorStream]:
    moved = with_ctis("a").shift_time("1 us", in_order=in_order, name="moved")
    return {
        "union": ts.union(with_ctis("a"), with_ctis("b"), in_order=in_order),
        "shift": moved,
        "dedup": moved.deduplicate("k", in_order=in_order),
        "behind a union": ts.union(x=moved, y=ts.stream("c", event_time="t", offset="off"), in_order=in_order),
    }


@pytest.mark.parametrize("name", at_once(None))
def test_ctis_hold_rows_unless_they_are_to_pass_at_once(name: str) -> None:
    def waits(job: OperatorStream) -> bool:
        return bool(job.operator.description.in_order)

    assert waits(at_once(None)[name])
    assert not waits(at_once(False)[name])
    assert "in_order=False passes them at once" in at_once(None)[name].explain()
    assert "in_order=False passes" not in at_once(False)["shift"].explain()


def test_without_ctis_rows_pass_at_once() -> None:
    stream = ts.stream("a", event_time="t")
    jobs = ts.union(a=stream, b=stream), stream.shift_time("1 us"), stream.deduplicate("k")
    assert not any(job.operator.description.in_order for job in jobs)  # type: ignore[attr-defined]


def test_a_root_that_passed_rows_at_once_holds_them_from_now_on(tmp_path: Path) -> None:
    batches = [{"a": [1, 9], "b": [2]}, {"a": [11, 12], "b": [5, 30]}, {"a": [40, 41], "b": [50, 51]}]
    tables = list(numbered(batches))

    def job(in_order: bool | None) -> OperatorStream:
        return ts.union(with_ctis("a"), with_ctis("b"), in_order=in_order)

    first = job(False).standalone(checkpoint=tmp_path).run(tables[:1])
    assert Counter(passed(first)) == Counter([("a", 0, 1), ("a", 1, 9), ("b", 0, 2)])
    assert not other_needs(evidence.manifests(tmp_path)[-1].get("needs"))
    rest = job(None).standalone(checkpoint=tmp_path).run(tables[:2])
    # The CTIs are at 12 and 5: the row of b at 5 waits, too.
    assert passed(rest) == []
    assert other_needs(evidence.manifests(tmp_path)[-1]["needs"]) == ["rows-in-order/1"]
    with pytest.raises(IncompatibleError, match="rows that wait for the watermark would be lost"):
        job(False).standalone(checkpoint=tmp_path).run(tables)
    last = job(None).standalone(checkpoint=tmp_path).run(tables)
    assert Counter(passed(last)) == Counter([("b", 1, 5), ("a", 2, 11), ("a", 3, 12), ("b", 2, 30), ("a", 4, 40)])


def test_a_deduplication_that_passed_rows_at_once_keeps_its_ids(tmp_path: Path) -> None:
    def job(in_order: bool) -> OperatorStream:
        return ts.stream(event_time="t").deduplicate("k", within="20 us", in_order=in_order)

    tables = [rows([1, 2, 3], 0), rows([4, 5, 6, 50], 3)]
    first = job(False).standalone(checkpoint=tmp_path).run(tables[:1])
    assert first["off"].to_pylist() == [0, 1, 2]
    rest = job(True).standalone(checkpoint=tmp_path).run(tables)
    assert rest.num_rows == 0
    assert job(True).standalone(checkpoint=tmp_path).run(tables, drain=True)["off"].to_pylist() == [6]


def test_windows_that_were_not_in_order_stay_so(tmp_path: Path) -> None:
    kept = ts.stream(event_time="t").group_by("k").window(ts.tumbling("9 us")).aggregate(n=ts.agg.count())
    kept.standalone(checkpoint=tmp_path).run([rows([1], 0)])
    with pytest.raises(IncompatibleError, match="in_order"):
        kept.in_order().standalone(checkpoint=tmp_path).run([rows([1], 0), rows([2], 1)])
