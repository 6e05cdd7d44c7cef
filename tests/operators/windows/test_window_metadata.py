"""Window metadata against twins of dicts: fixed and tuple windows, sessions, crash and replay with messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.process import few, in_turn
from tests.twins.message import added, open_store
from tidestate.operators.plan.dues import with_expiry
from tidestate.operators.windows.messages import window_metadata as metadata
from tidestate.operators.windows.messages.window_metadata import WindowTables
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.keys import choose_layout
from tidestate.statestore.messages.reads import get_messages
from tidestate.statestore.messages.tables import MessageTables
from tidestate.statestore.spec.changes import Applied, ChangeSet
from tidestate.statestore.spec.tables import TIME, Column
from tidestate.statestore.stores.memory import MemoryStore

SHARE = settings.default.max_examples
KEY = (Column("k", "string", "key"),)
SIZE, SLIDE, GAP = 6, 3, 4
EVER = -(2**63), 2**63 - 1
Row = dict[str, Any]


def apply(store: Any, changes: ChangeSet) -> None:
    store.apply(changes, Applied(store.applied.sequence + 1, "x"))


def rows_of(tables: WindowTables, rows: list[Row], names: list[str]) -> pa.Table:
    """Rows as a table; window bounds in the type of the windows."""
    kinds = {"k": pa.string(), "origin": pa.string()}
    table = pa.table({n: pa.array([row[n] for row in rows], kinds.get(n, pa.int64())) for n in names})
    for name in {"window_start", "window_end", "new_start", "new_end"} & set(names):
        kind = tables.windows.schema.field("window_start").type
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(kind))
    return table


def plain(rows: pa.Table) -> list[Row]:
    for place, field in enumerate(rows.schema):
        if field.type == TIME:
            rows = rows.set_column(place, field.name, rows[field.name].cast(pa.int64()))
    return rows.to_pylist()


BATCH = ["window_start", "window_end", "k", "origin", "offset"]
message = st.fixed_dictionaries({
    "k": st.sampled_from(["x", "y"]), "origin": st.sampled_from(["a", "b"]), "offset": st.integers(0, 30),
    "time": st.integers(-20, 20), "total": st.integers(-3, 3),
})  # fmt: skip
streams = st.lists(st.lists(message, max_size=8), max_size=4)


def windows_of(position: int) -> list[tuple[int, int]]:
    starts = range((position - SIZE) // SLIDE * SLIDE, position + 1, SLIDE)
    return [(start, start + SIZE) for start in starts if start <= position < start + SIZE]


def exploded(stream: list[Row], by: str) -> list[Row]:
    return [m | {"window_start": s, "window_end": e} for m in stream for s, e in windows_of(m[by])]


def folded(rows: list[Row]) -> tuple[dict[Any, list[int]], dict[Any, list[int]]]:
    """Per (start, end, key): count; per (start, end, key, origin): first and last offset."""
    windows: dict[Any, list[int]] = {}
    offsets: dict[Any, list[int]] = {}
    for row in rows:
        window = (row["window_start"], row["window_end"], row["k"])
        windows[window] = [windows.get(window, [0])[0] + 1]
        first, last = offsets.get((*window, row["origin"]), [99, -99])
        offsets[*window, row["origin"]] = [min(first, row["offset"]), max(last, row["offset"])]
    return windows, offsets


def found_windows(rows: pa.Table) -> dict[Any, list[int]]:
    return {(r["window_start"], r["window_end"], r["k"]): [r["count"]] for r in plain(rows)}


def found_offsets(rows: pa.Table) -> dict[Any, list[int]]:
    names = ("window_start", "window_end", "k", "origin")
    return {tuple(r[n] for n in names): [r["start_offset"], r["last_offset"]] for r in plain(rows)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "by"), few(in_turn(["memory", "rocksdb", "parquet"], [("time", "time"), ("tuple", "offset")]), 1, 2)
)
@settings(max_examples=SHARE)
@given(stream=streams, bounds=st.tuples(st.integers(-30, 30), st.integers(-30, 40)), forget=st.integers(-30, 30))
def test_fixed_windows_equal_the_twin(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    by: tuple[Any, str],
    stream: list[list[Row]],
    bounds: tuple[int, int],
    forget: int,
) -> None:
    measure, column = by
    tables = WindowTables(measure, SIZE, KEY)
    store = open_store(kind, tables.specs, tmp_path_factory)
    everything: list[Row] = []
    for batch in stream:
        rows = exploded(batch, column)
        apply(store, metadata.add_messages(tables, rows_of(tables, rows, BATCH)))
        everything += rows
    apply(store, with_expiry({}, metadata.windows_expiry(tables, forget)))
    everything = [row for row in everything if row["window_end"] > forget]
    windows, offsets = folded(everything)
    assert found_windows(metadata.get_windows(tables, store, *EVER)) == windows
    assert found_offsets(pa.concat_tables([tables.offsets.no_rows, *store[tables.offsets.name].scan()])) == offsets
    low, high = bounds
    near = metadata.get_windows(tables, store, low, high)
    assert found_windows(near) == {w: v for w, v in windows.items() if w[0] < high and w[1] > low}
    order = [(r["window_start"], r["k"]) for r in plain(near)]
    assert order == sorted(order)
    starts = {r["origin"]: r["start_offset"] for r in metadata.windows_replay_from(tables, [store]).to_pylist()}
    store.close()
    assert starts == {o: min(m["offset"] for m in everything if m["origin"] == o) for o in starts}
    assert set(starts) == {m["origin"] for m in everything}


def sessions_of(stream: list[Row]) -> list[Row]:
    """Each message with its session: neighbours less than a gap apart are one."""
    result: list[Row] = []
    for key in {m["k"] for m in stream}:
        times = sorted(m["time"] for m in stream if m["k"] == key)
        starts = [t for place, t in enumerate(times) if place == 0 or t - times[place - 1] >= GAP]
        for m in (m for m in stream if m["k"] == key):
            start = max(s for s in starts if s <= m["time"])
            later = [s for s in starts if s > start]
            end = max(t for t in times if t >= start and (not later or t < later[0])) + GAP
            result.append(m | {"window_start": start, "window_end": end})
    return result


def replaced_by(before: list[Row], after: list[Row], batch: list[Row]) -> list[Row]:
    """Sessions before that have become others, or have new messages."""
    news = [row for row in after if any(_same(row, m) for m in batch)]
    touched = {(r["k"], r["window_start"], r["window_end"]) for r in news}
    olds = {(r["k"], r["window_start"], r["window_end"]) for r in before}
    return [
        {"k": k, "window_start": s, "window_end": e, "new_start": start, "new_end": end}
        for k, s, e in sorted(olds)
        for key, start, end in touched
        if key == k and start <= s < end
    ]


def _same(row: Row, m: Row) -> bool:
    return all(row[name] == m[name] for name in m)


@pytest.mark.parametrize("kind", few(["memory", "rocksdb", "parquet"], 0))
@settings(max_examples=SHARE)
@given(stream=streams, asked=st.lists(st.tuples(st.sampled_from(["x", "y"]), st.integers(-30, 30)), max_size=3))
def test_sessions_equal_the_twin(
    tmp_path_factory: pytest.TempPathFactory, kind: str, stream: list[list[Row]], asked: list[tuple[str, int]]
) -> None:
    tables = WindowTables("time", None, KEY)
    store = open_store(kind, tables.specs, tmp_path_factory)
    before: list[Row] = []
    for number, drawn in enumerate(stream):
        batch = [m | {"offset": 100 * number + place} for place, m in enumerate(drawn)]
        after = sessions_of([{n: r[n] for n in message_names(r)} for r in before] + batch)
        replaced = replaced_by(before, after, batch)
        own = [row for row in after if any(_same(row, m) for m in batch)]
        gone = rows_of(tables, replaced, ["k", "window_start", "new_start", "new_end"])
        stored = store["windows"].lookup(gone.select(["k", "window_start"])).rows
        gone = pa.table(
            [*stored.columns, gone["new_start"], gone["new_end"]], [*stored.column_names, "new_start", "new_end"]
        )
        apply(store, metadata.extend(tables, store, rows_of(tables, own, BATCH), gone))
        before = after
    windows, offsets = folded(before)[0], offsets_of(before)
    assert (
        found_windows(pa.concat_tables(list(store["windows"].scan()) or [tables.windows.schema.empty_table()]))
        == windows
    )
    assert sorted(ends(metadata.ended_sessions(tables, store, EVER[1]))) == sorted((e, k, s) for s, e, k in windows)
    if asked:
        requests = pa.table(
            {"k": [k for k, _ in asked], "start": [s for _, s in asked], "end": [s + 5 for _, s in asked]}
        )
        found = metadata.get_sessions(tables, store, requests)
        got = [
            (n, r["k"], r["window_start"])
            for n, r in zip(found.request_index.to_pylist(), plain(found.rows), strict=True)
        ]
        assert got == [
            (n, k, w[0])
            for n, (k, s) in enumerate(asked)
            for w in sorted(windows)
            if w[2] == k and w[0] < s + 5 and w[1] > s
        ]
    assert found_offsets(pa.concat_tables([tables.offsets.no_rows, *store[tables.offsets.name].scan()])) == offsets
    apply(store, with_expiry({}, metadata.windows_expiry(tables, 10)))
    assert {e for e, _, _ in ends(metadata.ended_sessions(tables, store, EVER[1]))} == {
        w[1] for w in windows if w[1] > 10
    }
    assert {r["window_end"] for part in store["windows"].scan() for r in plain(part)} == {
        w[1] for w in windows if w[1] > 10
    }
    store.close()


def message_names(row: Row) -> list[str]:
    return [name for name in row if name not in ("window_start", "window_end")]


def offsets_of(rows: list[Row]) -> dict[Any, list[int]]:
    names = ("window_start", "window_end", "k", "origin")
    groups: dict[Any, list[int]] = {}
    for row in rows:
        groups.setdefault(tuple(row[n] for n in names), []).append(row["offset"])
    return {window: [min(found), max(found)] for window, found in groups.items()}


def ends(rows: pa.Table) -> list[tuple[int, str, int]]:
    return [(r["window_end"], r["k"], r["window_start"]) for r in plain(rows)]


def message_tables() -> MessageTables:
    return MessageTables(choose_layout("time"), (Column("k", "string"), Column("total", "int64")))


def step(windows: WindowTables, messages: MessageTables, store: MemoryStore, batch: list[Row]) -> ChangeSet:
    """What an operator does: new messages into the store, and into the metadata of their windows."""
    names = ["origin", "offset", "time", "k", "total"]
    changes, new, _ = added(messages, store, rows_of(windows, batch, names))
    rows = exploded(plain(new), "time")
    return {**changes, **metadata.add_messages(windows, rows_of(windows, rows, BATCH))}


@settings(max_examples=SHARE)
@given(stream=streams, cut=st.integers(0, 4), back=st.integers(0, 4))
def test_a_crash_leaves_metadata_no_later_than_messages_and_a_replay_counts_once(
    stream: list[list[Row]], cut: int, back: int
) -> None:
    windows, messages = WindowTables("time", SIZE, KEY), message_tables()
    specs = (*windows.specs, *messages.specs)
    first = {(m["offset"], m["origin"]): m for batch in reversed(stream) for m in reversed(batch)}
    stream = [[first[m["offset"], m["origin"]] for m in batch] for batch in stream]
    whole, crashed = MemoryStore(specs), MemoryStore(specs)
    for batch in stream:
        apply(whole, step(windows, messages, whole, batch))
        assert_metadata_not_later(windows, messages, whole)
    for batch in stream[:cut]:
        apply(crashed, step(windows, messages, crashed, batch))
    again = MemoryStore(specs)
    again.load(crashed.snapshot(), crashed.applied, crashed.expired)
    assert_metadata_not_later(windows, messages, again)
    for batch in stream[max(0, min(cut, len(stream)) - back) :]:
        apply(again, step(windows, messages, again, batch))
    for name in (spec.name for spec in specs):
        assert [p.to_pylist() for p in again[name].scan()] == [p.to_pylist() for p in whole[name].scan()]


def assert_metadata_not_later(windows: WindowTables, messages: MessageTables, store: MemoryStore) -> None:
    """Every last offset of the metadata is that of a stored message, or an earlier one's."""
    stored: dict[str, int] = {}
    for row in get_messages(messages, store).to_pylist():
        stored[row["origin"]] = max(stored.get(row["origin"], -1), row["offset"])
    for row in metadata.windows_replay_from(windows, [store]).to_pylist():
        assert row["last_offset"] <= stored[row["origin"]]


def test_a_lost_message_store_is_rebuilt_from_the_earliest_window() -> None:
    windows, messages = WindowTables("time", SIZE, KEY), message_tables()
    stream = [{"k": "x", "origin": "ab"[n % 2], "offset": n, "time": n - 3, "total": n} for n in range(20)]
    store = MemoryStore((*windows.specs, *messages.specs))
    apply(store, step(windows, messages, store, stream))
    apply(store, with_expiry({}, metadata.windows_expiry(windows, 6)))
    start = {r["origin"]: r["start_offset"] for r in metadata.windows_replay_from(windows, [store]).to_pylist()}
    assert min(start.values()) > 0
    rebuilt = MemoryStore(messages.specs)
    names = ["origin", "offset", "time", "k", "total"]
    replayed = rows_of(windows, [m for m in stream if m["offset"] >= start[m["origin"]]], names)
    apply(rebuilt, added(messages, rebuilt, replayed)[0])
    for window in plain(metadata.get_windows(windows, store, *EVER)):
        bounds = (window["window_start"],), (window["window_end"] - 1,)
        assert get_messages(messages, rebuilt, *bounds).equals(get_messages(messages, store, *bounds))


def test_windows_without_key_and_bounds_at_the_end_of_time() -> None:
    tables = WindowTables("tuple", 10)
    store = MemoryStore(tables.specs)
    batch = pa.table(
        {"window_start": [0, 0, 10], "window_end": [10, 10, 20], "origin": ["a"] * 3, "offset": [1, 7, 10]}
    )
    apply(store, metadata.add_messages(tables, batch))
    assert metadata.get_windows(tables, store, *EVER).num_rows == 2
    apply(store, with_expiry({}, metadata.windows_expiry(tables, EVER[0])))
    found = [row for part in store[tables.offsets.name].scan() for row in part.to_pylist()]
    assert [(r["start_offset"], r["last_offset"]) for r in found] == [(1, 7), (10, 10)]


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="window-size"):
        WindowTables("time", 0)
    with pytest.raises(UsageError, match="session-key"):
        WindowTables("time", None)
