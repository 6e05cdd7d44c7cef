"""The windows of any checkpoint, of any kind of window, against a naive twin: values, events, panes, bounds, keys."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.every_store import STORES, new_folder, store_config
from tests.helpers.internals import head_of
from tests.helpers.operator_messages import SCHEMA as MESSAGES
from tests.helpers.operator_messages import SECOND, WINDOWS, Message, stream, table
from tests.helpers.process import longer, some
from tests.helpers.waiting_windows import fed
from tests.twins import general_streams as streams
from tests.twins.general_streams import HarnessPlayer, History, TwinPlayer, bounds, plain
from tests.twins.words import Row, Setting, session, sliding, tumbling
from tidestate import agg, trigger
from tidestate.operators.inspect.query import query
from tidestate.operators.windows import slice_previews
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreName

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
FEW = run_settings(max_examples=max(2, run_settings.default.max_examples // 5))
LONG_WINDOWS = [sliding(70, 1), sliding(9, 2, 1), sliding(2, 5), tumbling(3), session(2), session(7)]
"""Those that wait in parts, one with coarse ones."""


@st.composite
def settings_of_parts(draw: st.DrawFn) -> Setting:
    mode = draw(st.sampled_from(["accumulating", "discarding"]))
    return Setting(
        draw(st.sampled_from(LONG_WINDOWS)),
        allowed=draw(st.sampled_from([0, 2, 30])),
        rule=draw(st.sampled_from(["event", "window"])),
        mode=mode,
        key=draw(st.sampled_from([(), ("k",), ("k",), ("k", "j")])),
    )


MOMENTS = st.none() | st.integers(-20, 40)


@pytest.mark.parametrize("name", STORES)
@FEW
@given(
    setting=st.one_of(settings_of_parts(), streams.settings()),
    history=streams.histories(),
    band=st.sampled_from([1, 3, 1 << 18]),
    partitions=st.sampled_from([1, 3]),
    asked=st.lists(st.tuples(MOMENTS, MOMENTS), min_size=1, max_size=3),
)
def test_every_checkpoint_has_the_windows_of_the_twin(
    name: StoreName,
    setting: Setting,
    history: History,
    band: int,
    partitions: int,
    asked: list[tuple[int | None, int | None]],
) -> None:
    with new_folder() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(slice_previews, "BAND_ROWS", band)
        store = store_config(name, folder, (2, 4 << 20))
        real = HarnessPlayer(setting, history, False, store, folder / "root", partitions)
        twin, then = TwinPlayer(setting, history, False), []
        emitted: Counter[tuple[Any, ...]] = Counter()
        for step in history.steps:
            emitted.update(identity(row) for row in real.play(step) if row.kind == "emit")
            twin.play(step)
            then.append((head_of(real.harness).id, twin.twin.live_windows(), emitted.copy()))
        for number, windows, panes in then[:: max(1, len(then) // 3)]:
            check(folder / "root", real, number, windows, panes, asked)


def identity(row: Row) -> tuple[Any, ...]:
    return (row.window_start, row.window_end, row.key)


def check(
    root: Path,
    real: HarnessPlayer,
    number: int,
    windows: list[Any],
    panes: Counter[tuple[Any, ...]],
    asked: list[tuple[int | None, int | None]],
) -> None:
    """All of a checkpoint, those in a range, and those of each key."""
    at = query(root, checkpoint=number)
    width = len(real.setting.key)

    def rows(table: pa.Table) -> list[Any]:
        found = [
            (*bounds(real.setting, row), row[2 : 2 + width], row[2 + width : -2], *row[-2:]) for row in plain(table)
        ]
        for start, end, key, values, events, observed in found:
            # A session that has merged with others is another one; it cannot have the bounds of one before.
            assert observed == panes[start, end, key]
            assert events >= values[0] if real.setting.mode == "discarding" else events == values[0]
        return sorted((row[:4] for row in found), key=str)

    assert rows(at.get_windows()) == sorted(windows, key=str)
    for start, end in asked:
        wanted = [w for w in windows if (start is None or w[1] > start) and (end is None or w[0] <= end)]
        assert rows(at.get_windows(start, end)) == sorted(wanted, key=str)
        for key in {w[2] for w in windows}:
            of_key = [w for w in wanted if w[2] == key]
            if width:
                assert rows(at.get_windows(start, end, key=key)) == sorted(of_key, key=str)
            some = dict(list(zip(real.setting.key, key, strict=True))[-1:])
            of_some = [w for w in wanted if w[2][-1:] == key[-1:]]
            assert rows(at.get_windows(start, end, key=some)) == sorted(of_some, key=str)


@pytest.mark.parametrize("kind", [ts.sliding("10 seconds", "1 second"), *longer(ts.sessions("2 seconds"))])
def test_bands_are_bounded(tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fed(tmp_path, kind, delay="1 hour")
    whole = query(tmp_path).get_windows()
    monkeypatch.setattr(slice_previews, "BAND_ROWS", 4)
    tables = list(query(tmp_path).scan_windows())
    assert tables[0].num_rows == 0
    assert len(tables) > 8
    assert max(rows.num_rows for rows in tables) <= 3 * slice_previews.BAND_ROWS
    assert query(tmp_path).get_windows().equals(whole)


def test_with_the_whole_key_one_partition_is_read(tmp_path: Path) -> None:
    fed(tmp_path, ts.sliding("10 seconds", "5 seconds"))
    asked = query(tmp_path)
    assert asked.window_partitions() == range(4)
    (number,) = asked.window_partitions("a")
    apart = [
        pa.concat_tables(asked.scan_windows(partition=partition)).filter(pa.compute.field("k") == "a").num_rows
        for partition in range(4)
    ]
    assert sum(apart) == apart[number] == asked.get_windows(key="a").num_rows > 0
    assert pa.concat_tables(asked.scan_windows(key="a", partition=(number + 1) % 4)).num_rows == 0


def test_columns_of_its_own_give_way_to_yours(tmp_path: Path) -> None:
    fed(tmp_path, ts.sliding("10 seconds", "5 seconds"), events=agg.sum("v"), panes=agg.count("v"))
    rows = query(tmp_path).get_windows()
    assert rows.column_names[-4:] == ["events", "panes", "events_", "panes_"]
    assert rows["events_"].equals(rows["n"])


def test_what_is_no_key_and_no_result(tmp_path: Path) -> None:
    fed(tmp_path, ts.sliding("10 seconds", "5 seconds"))
    asked = query(tmp_path)
    for key in (("a", "b"), {"x": 1}, 7):
        with pytest.raises(UsageError, match="window-key"):
            asked.get_windows(key=key)
    with pytest.raises(UsageError, match="read-column"):
        asked.get_windows(values=["m"])
    with pytest.raises(UsageError, match="sides"):
        asked.get_windows(side="left")
    assert asked.get_windows(values=[]).column_names == ["window_start", "window_end", "k", "events", "panes"]


@pytest.mark.parametrize("kind", ["session", *longer("tumbling", "sliding")])
def test_messages_of_any_job_give_offsets(tmp_path: Path, kind: str) -> None:
    """Over several state partitions, of windows that wait in parts and of those that have fired."""
    plain_job = ts.stream(event_time="t", watermark_delay="6 seconds").group_by("k").window(WINDOWS[kind])
    plain_job = plain_job.aggregate(n=agg.count(), total=agg.sum("v")).allowed_lateness("8 seconds")
    job = plain_job.messages(identity=("part", "at"))
    without = plain_job.harness(MESSAGES, folder=tmp_path / "without", partitions=3)
    harness = job.harness(MESSAGES, folder=tmp_path / "with", partitions=3)
    every = {}
    for batch in stream(2, 3):
        rows = [m for m in dict.fromkeys(batch) if (m.part, m.at) not in every]
        every |= {(m.part, m.at): m for m in rows}
        without.feed(table(rows))
        harness.feed(table(rows))
        asked = query(tmp_path / "with")
        found = asked.get_windows()
        values = found.filter(pa.compute.field("n").is_valid())
        assert values.drop_columns(["offsets"]).equals(query(tmp_path / "without").get_windows())
        assert found.group_by(["window_start", "k"]).aggregate([]).num_rows == found.num_rows, "each window once"
        for row in found.to_pylist():
            held = [m for m in every.values() if m.k == row["k"] and within(row, m)]
            spans = {part: [m.at for m in held if m.part == part] for part in {m.part for m in held}}
            offsets = {of["origin"]: (of["start_offset"], of["last_offset"]) for of in row["offsets"]}
            assert offsets.keys() <= spans.keys()
            assert all(min(spans[one]) <= low <= high <= max(spans[one]) for one, (low, high) in offsets.items())
    assert found.num_rows > 2


def within(row: dict[str, Any], m: Message) -> bool:
    return m.t is not None and row["window_start"].timestamp() <= m.t < row["window_end"].timestamp()


@pytest.mark.parametrize("kind", ["session", *longer("tumbling")])
def test_messages_of_several_partitions_are_in_order(tmp_path: Path, kind: str) -> None:
    job = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(WINDOWS[kind])
        .aggregate(n=agg.count())
        .allowed_lateness("1 hour")
    )
    job = job.messages(identity=("part", "at"), retain=ts.Retention(span=f"{1 << 60} microseconds"))
    harness = job.harness(MESSAGES, folder=tmp_path, partitions=3)
    made = {(m.part, m.at): m for batch in stream(5, 3) for m in batch}.values()
    harness.feed(table(list(made)))
    asked, form = query(tmp_path), "session" if kind == "session" else "equal"
    found = asked.get_messages()
    rows = [(int(row["time"].timestamp()), row["offset"], row["origin"]) for row in found.to_pylist()]
    assert rows == sorted((m.t, m.at, m.part) for m in made if m.t is not None and m.k is not None)
    scanned = pa.concat_tables(asked.scan_messages()).sort_by(
        [(name, "ascending") for name in ("time", "offset", "origin")]
    )
    assert scanned.equals(found)
    (number,) = asked.message_partitions(**{form: "a"})
    mine = pa.concat_tables(asked.scan_messages(**{form: "a"}, partition=number))
    assert mine.num_rows == asked.get_messages(**{form: "a"}).num_rows == sum(m.k == "a" for m in made) > 0
    some = pa.concat_tables(asked.scan_messages(0, None, 9 * SECOND))
    assert some.num_rows == asked.get_messages(0, None, 9 * SECOND).num_rows > 0


PLACED = pa.schema(
    [
        ("t", pa.timestamp("us", tz="UTC")),
        ("until", pa.timestamp("us", tz="UTC")),
        ("n", pa.int64()),
        ("k", pa.string()),
    ]
)
OTHER_KINDS: dict[str, Any] = {
    "offsets": ts.stream(offset="n").group_by("k").window(ts.offset_windows(8, 3, late=40)),
    "offset sessions": ts.stream(offset="n").group_by("k").window(ts.offset_sessions(4, late=40)),
    "message sessions": ts.stream(offset="n").group_by("k").window(ts.message_sessions(4)),
    "tumbling lifetimes": ts.stream(event_time="t", lifetime=ts.lifetime("until"))
    .group_by("k")
    .window(ts.tumbling("5 seconds", of="lifetime")),
    "sliding lifetimes": ts.stream(event_time="t", lifetime=ts.lifetime("until"))
    .group_by("k")
    .window(ts.sliding("6 seconds", "2 seconds", of="lifetime")),
    "gaps": ts.stream(event_time="t").group_by("k").window(ts.sessions(gap_column="n")),
    "counted": ts.stream(event_time="t").group_by("k").window(ts.count_windows(5, 2)),
    "global": ts.stream(event_time="t").group_by("k").window(ts.global_window()),
    "early": ts.stream(event_time="t").group_by("k").window(ts.sliding("6 seconds", "2 seconds")),
}


@pytest.mark.parametrize("kind", some(OTHER_KINDS, 4))
def test_every_other_kind_of_window_in_bands_and_ranges(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each band alone gives what all at once give, and a range what a filter of all gives."""
    job = OTHER_KINDS[kind].aggregate(sum=agg.sum("n"), m=agg.count())
    if kind == "early":
        job = job.trigger(early=trigger.each_batch())
    harness = job.harness(PLACED, folder=tmp_path, partitions=2)
    for first in (0, 30):
        harness.feed(
            [
                {"t": at * SECOND, "until": (at + at % 9) * SECOND, "n": at + 1, "k": "abc"[at % 3]}
                for at in range(first, first + 30)
            ]
        )
    asked = query(tmp_path)
    whole = asked.get_windows()
    assert rows_of(whole) == rows_of(harness.windows())
    assert whole.num_rows >= 3
    by_time = asked.timed()
    monkeypatch.setattr(slice_previews, "BAND_ROWS", 1)
    assert asked.get_windows().equals(whole)
    for low, high in ((None, 20), (20, None), (12, 24), (24, 24), (-5, -1)):
        start, end = (None if at is None else at * SECOND if by_time else at for at in (low, high))
        bounds = [whole[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
        inside = [(start is None or e > start) and (end is None or s <= end) for s, e in zip(*bounds, strict=True)]
        assert asked.get_windows(start, end).equals(whole.filter(pa.array(inside, pa.bool_())))


def rows_of(windows: pa.Table) -> list[str]:
    names = ["window_start", "window_end", "k", "sum", "m"]
    return sorted(map(repr, windows.select(names).to_pylist()))
