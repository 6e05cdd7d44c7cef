"""The message store against a twin of dicts: each message once, any layout, reads, retention, crash and replay."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.checkout import ROOT
from tests.helpers.process import longer
from tests.twins.message import (
    DUPLICATE,
    EVERY_LAYOUT,
    LIMITS,
    OUT_OF_RETENTION,
    SESSION,
    Message,
    Store,
    Twin,
    added,
    asks,
    batch_of,
    batches,
    expired,
    messages,
    open_store,
    plain_rows,
    request_table,
    simple,
    tables_of,
)
from tidestate.statestore.errors import UsageError
from tidestate.statestore.messages.keys import choose_layout, parse_layout
from tidestate.statestore.messages.reads import get_messages, messages_for
from tidestate.statestore.messages.retire import retire
from tidestate.statestore.messages.sizes import row_bytes
from tidestate.statestore.messages.tables import MessageTables, Retention
from tidestate.statestore.spec.changes import Applied
from tidestate.statestore.spec.tables import Column
from tidestate.statestore.stores.memory import MemoryStore

SHARE = settings.default.max_examples
IN_TURN = [*EVERY_LAYOUT[::2], *longer(*EVERY_LAYOUT[1::2])]
MATRIX = [
    ("tuple", "aggregate", {}, "<offset>"),
    ("tuple", "join", {"equal": False}, "<offset>"),
    ("tuple", "join", {"equal": True, "large": False}, "<offset>"),
    ("tuple", "join", {"equal": True, "large": True}, "<eq>_<offset>"),
    ("time", "aggregate", {}, "<ts>_<offset>"),
    ("time", "join", {"equal": False, "time_range": False}, "<ts>_<offset>"),
    ("time", "join", {"equal": False, "time_range": True}, "<ts>_<offset>"),
    ("time", "join", {"equal": True, "time_range": False, "large": False}, "<eq>_<ts>_<offset>"),
    ("time", "join", {"equal": True, "time_range": False, "large": True}, "<eq>_<ts>_<offset>"),
    ("time", "join", {"equal": True, "time_range": True, "large": False}, "<ts>_<eq>_<offset>"),
    ("time", "join", {"equal": True, "time_range": True, "large": True}, "<eq>_<ts>_<offset>"),
]


@pytest.mark.parametrize(("measure", "use", "facts", "key"), MATRIX)
def test_the_matrix_chooses_the_message_key(measure: Any, use: Any, facts: dict[str, bool], key: str) -> None:
    layout = choose_layout(measure, use, **facts)
    assert str(layout) == key
    assert str(choose_layout(measure, use, **facts, session=True)) == f"<session>_{key}"
    assert parse_layout(layout.name) == layout
    spec = tables_of(layout.name).messages
    columns = {"ts": "time", "eq": "k", "offset": "offset"}
    assert spec.key_names == [*(columns[part] for part in layout.parts), "origin"]


def test_an_aggregate_has_no_equal_fields_whatever_is_reported() -> None:
    assert choose_layout("time", "aggregate", equal=True, large=True).name == "ts_offset"


@pytest.mark.slow
@pytest.mark.parametrize("layout", EVERY_LAYOUT)
@settings(max_examples=max(4, SHARE // 2))
@given(data=st.data())
def test_each_message_once_and_reads_as_the_twin(layout: str, data: st.DataObject) -> None:
    tables = tables_of(layout, data.draw(st.sampled_from([Retention(), *LIMITS])))
    store, twin = Store(tables), Twin(tables)
    for batch in data.draw(batches):
        asked = data.draw(st.none() | st.integers(-12, 4))
        assert store.add(batch, asked) == twin.add(batch, asked)
        assert store.everything() == twin.read({})
        if asked := data.draw(asks(tables)):
            found = messages_for(tables, store.store, request_table(tables, asked))
            expected = [(number, message) for number, ask in enumerate(asked) for message in twin.read(ask)]
            assert list(zip(found.request_index.to_pylist(), plain_rows(tables, found.rows), strict=True)) == expected
    known = {(row["offset"], row["origin"]) for row in store.state()[tables.seen.name]}
    assert known == set(twin.seen)


@pytest.mark.slow
@pytest.mark.parametrize("layout", IN_TURN)
@settings(max_examples=max(3, SHARE // 4))
@given(data=st.data())
def test_retired_messages_do_not_come_back(layout: str, data: st.DataObject) -> None:
    tables = tables_of(layout, data.draw(st.sampled_from([Retention(), Retention(count=5), Retention(time=9)])))
    store, twin = Store(tables), Twin(tables)
    for batch in data.draw(batches):
        assert store.add(batch) == twin.add(batch)
        if asked := data.draw(asks(tables)):
            found = messages_for(tables, store.store, request_table(tables, asked)).rows
            store.apply(retire(tables, store.store, found))
            gone = {(m["offset"], m["origin"]) for ask in asked for m in twin.read(ask)}
            twin.kept = {identity: m for identity, m in twin.kept.items() if identity not in gone}
            slots = {twin.slot(m) for m in twin.kept.values()}
            twin.newest_of = [(slot, time) for slot, time in twin.newest_of if slot in slots]
        assert store.everything() == twin.read({})


@pytest.mark.slow
@pytest.mark.parametrize("layout", IN_TURN)
@settings(max_examples=max(3, SHARE // 4))
@given(data=st.data())
def test_a_crash_at_any_batch_and_a_replay_give_the_same_state(layout: str, data: st.DataObject) -> None:
    tables = tables_of(layout, data.draw(st.sampled_from([Retention(), *LIMITS])))
    given_batches = data.draw(batches)
    # A message is delivered again as it was.
    first = {(m["offset"], m["origin"]): m for batch in reversed(given_batches) for m in reversed(batch)}
    stream = [[first[m["offset"], m["origin"]] for m in batch] for batch in given_batches]
    if tables.position == "offset":  # a limit by time then counts on offsets in order of arrival
        flat = iter(sorted((m for batch in stream for m in batch), key=lambda m: m["offset"]))
        stream = [[next(flat) for _ in batch] for batch in stream]
    whole = Store(tables)
    for batch in stream:
        whole.add(batch)
    cut = data.draw(st.integers(0, len(stream)))
    before = Store(tables)
    for batch in stream[:cut]:
        before.add(batch)
    if cut < len(stream):
        added(tables, before.store, batch_of(tables, stream[cut]))  # computed, never applied
    again = MemoryStore(tables.specs)
    again.load(before.store.snapshot(), before.store.applied, before.store.expired)
    resumed = Store(tables, again)
    replayed = [m for batch in stream[data.draw(st.integers(0, cut)) :] for m in batch]
    width = data.draw(st.integers(1, 9))
    for start in range(0, len(replayed), width):
        resumed.add(replayed[start : start + width])
    assert resumed.state() == whole.state()


@settings(max_examples=SHARE)
@given(st.lists(messages, unique_by=lambda m: (m["offset"], m["origin"])), st.sampled_from(LIMITS), st.randoms())
def test_what_is_kept_does_not_depend_on_how_input_is_split_or_ordered(
    stream: list[Message], limits: Retention, random: Any
) -> None:
    kept = []
    for width in (1, 3, 99):
        store = Store(tables_of("ts_offset", limits))
        for start in range(0, len(stream), width):
            store.add(stream[start : start + width])
        kept.append(store.everything())
        random.shuffle(stream)
    assert kept[0] == kept[1] == kept[2]


def test_the_newest_are_kept_and_those_as_old_as_the_oldest_of_them() -> None:
    store = Store(tables_of("ts_offset", Retention(count=2)))
    store.add([simple(1, 5), simple(2, 5), simple(3, 5), simple(4, 9), simple(5, 1)])
    assert [m["offset"] for m in store.everything()] == [1, 2, 3, 4]
    assert store.add([simple(5, 1), simple(6, 4)]) == [OUT_OF_RETENTION, OUT_OF_RETENTION]


@pytest.mark.parametrize("limits", [Retention(count=4), Retention(time=4)], ids=["count", "time"])
def test_a_limit_that_is_just_reached_forgets_nothing_of_it(limits: Retention) -> None:
    store = Store(tables_of("ts_offset", limits))
    store.add([simple(1, 5), simple(2, 5), simple(3, 5), simple(4, 9), simple(5, 4)])
    assert [m["offset"] for m in store.everything()] == [1, 2, 3, 4]


def test_a_forgotten_message_is_not_stored_again_and_a_bound_never_goes_back() -> None:
    tables = tables_of("eq_ts_offset")
    store = Store(tables)
    store.add([simple(1, 5), simple(2, 9)])
    store.apply(expired(tables, store.store, 5))
    store.apply(expired(tables, store.store, 3))
    assert store.add([simple(1, 5), simple(7, 4), simple(2, 99)]) == [OUT_OF_RETENTION, OUT_OF_RETENTION, DUPLICATE]
    assert [m["time"] for m in store.everything()] == [9]


def test_the_four_forms_of_get_messages() -> None:
    tables = tables_of("session_eq_ts_offset")
    store = Store(tables)
    store.add([{**simple(n, n // 2), "s": "xy"[n % 2], "k": n % 3} for n in range(12)])

    def offsets(**given: Any) -> list[int]:
        return list(get_messages(tables, store.store, (1, 3), (4, 8), **given)["offset"].to_pylist())

    assert offsets() == [3, 4, 5, 6, 7, 8]
    assert offsets(equal=(0,)) == [3, 6]
    assert offsets(session=("y",)) == [3, 5, 7]
    assert offsets(session=("y",), equal=(0,)) == [3]


@pytest.mark.parametrize("kind", ["int64", "int16", "date32[day]", "timestamp[s, tz=UTC]"])
def test_time_may_be_any_position(kind: str) -> None:
    tables = MessageTables(parse_layout("ts_offset"), (), time=kind, retention=Retention(time=3, count=3))
    store = MemoryStore(tables.specs)
    time = pa.array([1, 2, 3, 9], pa.int64() if kind.startswith("timestamp") else pa.int32())
    batch = pa.table(
        {"origin": ["a"] * 4, "offset": [1, 2, 3, 4], "time": time.cast(tables.schema.field("time").type)}
    )
    store.apply(added(tables, store, batch)[0], Applied(1, "x"))
    assert get_messages(tables, store, (-(2**63),), (2**63 - 1,))["offset"].to_pylist() == [4]
    assert (
        get_messages(tables, store, (10,), (11,)).num_rows == get_messages(tables, store, (0,), (-5,)).num_rows == 0
    )


def test_bytes_of_a_row_do_not_depend_on_where_it_lies() -> None:
    kinds = {
        "m": pa.map_(pa.string(), pa.int64()),
        "t": pa.list_(pa.string()),
        "b": pa.bool_(),
        "f": pa.list_(pa.int8(), 2),
    }
    rows = [
        {"m": [("ab", 1)], "t": ["x", None], "b": True, "f": [1, 2]},
        {"m": None, "t": None, "b": None, "f": None},
        {"m": [("a", None), ("b", 2)], "t": [], "b": False, "f": [1, None]},
    ]
    table = pa.Table.from_pylist(rows, schema=pa.schema(kinds))
    expected = [10 + 1 + 1 + 2, 0, 10 + 0 + 1 + 1]
    assert row_bytes(table).tolist() == expected
    assert row_bytes(pa.concat_tables([table.slice(1), table.slice(0, 1)])).tolist() == [*expected[1:], expected[0]]


@pytest.mark.parametrize("layout", ["ts_eq_offset", *longer("session_eq_offset")])
@pytest.mark.parametrize("kind", ["rocksdb", "parquet"])
@settings(max_examples=max(3, SHARE // 4))
@given(data=st.data())
def test_the_other_stores_hold_the_same(
    kind: str, layout: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tables = tables_of(layout, data.draw(st.sampled_from(LIMITS)))
    opened = open_store(kind, tables.specs, tmp_path_factory)
    store, memory = Store(tables, opened), Store(tables)
    for batch in data.draw(batches):
        assert store.add(batch) == memory.add(batch)
        assert store.everything() == memory.everything()
        if asked := data.draw(asks(tables)):
            requests = request_table(tables, asked)
            found, expected = messages_for(tables, opened, requests), messages_for(tables, memory.store, requests)
            assert found.request_index.equals(expected.request_index)
            assert found.rows.to_pylist() == expected.rows.to_pylist()
    assert store.state() == memory.state()
    opened.close()


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("message-layout", lambda: parse_layout("offset_ts")),
        ("message-layout", lambda: MessageTables(parse_layout("eq_offset"), ())),
        ("message-layout", lambda: MessageTables(parse_layout("offset"), (), session=SESSION)),
        ("message-retention", lambda: Retention(count=0)),
        ("message-retention", lambda: Retention(time=-1)),
        ("message-retention", lambda: Retention(time="1 hour")),  # type: ignore[arg-type]
        ("message-time", lambda: MessageTables(parse_layout("offset"), (), time="string")),
        ("key-type", lambda: MessageTables(parse_layout("offset"), (), (Column("k", "double"),))),
        ("name-taken", lambda: MessageTables(parse_layout("offset"), (), (Column("end_time", "int64"),))),
        ("table-columns", lambda: MessageTables(parse_layout("offset"), (Column("time", "int64"),))),
    ],
)
def test_declarations_that_are_refused(code: str, call: Any) -> None:
    with pytest.raises(UsageError) as raised:
        call()
    assert raised.value.code == code


def test_batches_and_requests_that_are_refused() -> None:
    tables = tables_of("session_ts_offset")
    store = MemoryStore(tables.specs)
    good = batch_of(tables, [simple(1)])
    short, text = good.drop_columns(["v"]), good.set_column(1, "offset", pa.array(["x"]))
    null = good.set_column(0, "origin", pa.nulls(1, pa.string()))
    for code, batch in (("column-missing", short), ("batch-type", text), ("message-null", null)):
        with pytest.raises(UsageError, match=code):
            added(tables, store, batch)
    wrong = [{"v": [1]}, {"start_offset": [1]}, {"start_time": ["x"]}]
    for requests in (*(pa.table(columns) for columns in wrong), pa.table({})):
        with pytest.raises(UsageError, match="message-range"):
            messages_for(tables, store, requests)
    calls = [{"start": (1, 2, 3)}, {"equal": (1, 2)}, {"start": ("x",)}, {"session": (7,)}]
    for call in calls:
        with pytest.raises(UsageError, match="message-range"):
            get_messages(tables, store, **call)


def test_the_document_runs() -> None:
    page = ROOT / "docs" / "how-it-works" / "message-store.md"
    block = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile("\n".join(block), str(page), "exec"), {"__name__": "__main__"})
    assert printed.getvalue().splitlines()[-1] == "[0, 1, 2, 3]"
