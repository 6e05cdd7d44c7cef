"""Session joins by hand: windows and messages of each side in all forms, against a naive look at what is kept."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.internals import unflushed_of
from tests.helpers.operator_messages import SECOND, STORES, TIME, store_config
from tests.helpers.process import examples, few
from tidestate import OperatorStream
from tidestate.operators import JoinOperator
from tidestate.operators.inspect.query import query
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreConfig, StoreName

GAP, LATE = 3, 6
COLUMNS = [("part", pa.string()), ("at", pa.int64()), ("t", TIME), ("user", pa.string()), ("item", pa.int64())]
LEFT, RIGHT = (pa.schema([*COLUMNS, (name, pa.int64())]) for name in ("v", "w"))
SIDES = {"left": LEFT, "right": RIGHT}


class Row(NamedTuple):
    side: str
    part: str
    at: int
    t: int
    user: str
    item: int

    def key(self, names: Sequence[str]) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in names)


def sided(rows: Sequence[Row]) -> dict[str, pa.Table]:
    made = {}
    for side, schema in SIDES.items():
        own = [(row.part, row.at, row.t * SECOND, row.user, row.item, row.at) for row in rows if row.side == side]
        columns = [pa.array([row[i] for row in own], one.type) for i, one in enumerate(schema)]
        made[side] = pa.table(columns, schema=schema)
    return made


def job(session: Any = None, on: Any = ("user", "item"), offset: str | None = "at", **more: Any) -> OperatorStream:
    origin = "part" if offset else None
    left, right = (ts.stream(event_time="t", offset=offset, origin=origin) for _ in "lr")
    given: dict[str, Any] = {"gap": f"{GAP} seconds", "identity": True, "allowed_lateness": f"{LATE} seconds"} | more
    return left.join_sessions(right, on=on, session_key=session, **given)


def operator(made: Any, root: Path, store: StoreConfig | None = None) -> JoinOperator:
    return made.by_hand({"left": LEFT, "right": RIGHT}, checkpoint=root, store=store)


JOBS = {
    "both": (job(), ("user", "item")),
    "user": (job(on="user"), ("user",)),
    "apart": (job("user"), ("user",)),
    "all": (job((), on="item"), ()),
    "nothing": (job(on=None), ()),
}


@dataclass
class Session:
    start: int
    end: int
    rows: list[Row] = field(default_factory=list)


class Naive:
    """Sessions that are kept, row by row, of messages that are new and not too late. Whether one that is too late had
    come before is forgotten.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.live = names, list[Session]()
        self.seen: set[tuple[str, str, int]] = set()
        self.newest: dict[str, int] = {}
        self.watermark = -(10**9)

    def batch(self, rows: Sequence[Row]) -> int:
        """How many were duplicates."""
        fresh: dict[tuple[str, str, int], Row] = {}
        known = 0
        for row in rows:
            name = (row.side, row.part, row.at)
            if row.t + GAP + LATE > self.watermark:
                known += name in fresh or name in self.seen
                if name not in self.seen:
                    fresh.setdefault(name, row)
        for row in fresh.values():
            self.add(row)
            self.newest[row.side] = max(self.newest.get(row.side, -(10**9)), row.t)
        self.seen |= set(fresh)
        if len(self.newest) == 2:
            self.watermark = max(self.watermark, min(self.newest.values()))
        self.live = [one for one in self.live if one.end + LATE > self.watermark]
        return known

    def add(self, row: Row) -> None:
        new, others = Session(row.t, row.t + GAP, [row]), []
        for one in self.live:
            same = one.rows[0].key(self.names) == row.key(self.names)
            if same and one.start < new.end and new.start < one.end:
                new = Session(min(one.start, new.start), max(one.end, new.end), [*one.rows, *new.rows])
            else:
                others.append(one)
        self.live = [*others, new]

    def windows(self, side: str, low: int | None, high: int | None, key: tuple[Any, ...] | None) -> list[Any]:
        found = []
        for one in self.live:
            own, name = [row for row in one.rows if row.side == side], one.rows[0].key(self.names)
            near = (low is None or one.end > low) and (high is None or one.start <= high)
            for part in sorted({row.part for row in own}) if near and key in (None, name) else []:
                at = [row.at for row in own if row.part == part]
                found.append((one.start, one.end, *name, len(own), part, min(at), max(at)))
        return sorted(found, key=lambda row: (row[0], row[2:-4], row[-3]))

    def messages(self, side: str, low: tuple[int, int], high: tuple[int, int]) -> list[Row]:
        rows = [row for one in self.live for row in one.rows if row.side == side]
        return sorted((row for row in rows if low <= (row.t, row.at) <= high), key=lambda r: (r.t, r.at, r.part))


def ask(asked: Any, what: str, side: str, *given: Any, **by: Any) -> pa.Table:
    call = getattr(asked, what)
    return call(side, *given, **by) if isinstance(asked, JoinOperator) else call(*given, side=side, **by)


def check(asked: Any, naive: Naive, on: Sequence[str]) -> None:
    """All forms of both questions."""
    apart = [name for name in on if name not in naive.names]
    for side in SIDES:
        every = naive.messages(side, (-(10**9), 0), (10**9, 0))
        keys = [None, *sorted({row.key(naive.names) for row in every})[:2], ("none", 7)[: len(naive.names)]]
        for low, high in ((None, None), (4, 9), (6, None), (None, 5)):
            bounds = [None if one is None else one * SECOND for one in (low, high)]
            for key in keys if naive.names else [None]:
                found = ask(asked, "get_windows", side, *bounds, key=key)
                assert windows_of(found) == naive.windows(side, low, high, key)
        first, last = (3, 20), (9, 40)
        bounds = [first[0] * SECOND, first[1], last[0] * SECOND, last[1]]
        for key in keys if naive.names else [None]:
            for value in [None, 0, (1,)] if apart else [None]:
                wanted = [
                    row
                    for row in naive.messages(side, first, last)
                    if key in (None, row.key(naive.names)) and value in (None, row.item, (row.item,))
                ]
                found = ask(asked, "get_messages", side, *bounds, session=key, equal=value).to_pylist()
                assert [(row["offset"], row["origin"]) for row in found] == [(row.at, row.part) for row in wanted]
        found = ask(asked, "get_messages", side).to_pylist()
        observed = [(int(row["time"].timestamp()), row["offset"], row["origin"]) for row in found]
        assert observed == [(row.t, row.at, row.part) for row in every]


def windows_of(windows: pa.Table) -> list[Any]:
    rows = [(*row.values(), *of.values()) for row in windows.to_pylist() for of in row.pop("offsets")]
    return [(*(int(bound.timestamp()) for bound in row[:2]), *row[2:]) for row in rows]


def message(side: str, part: str, at: int) -> Row:
    """A message: its place in the input says when it was, so that a replay is what it was the first time."""
    t = (at * 5 + 3 * (part == "y") + (side == "left")) % 13 + at // 4
    return Row(side, part, at, t, "ab"[(at // 2) % 2], at // 3 % 2)


rows = st.builds(
    message,
    side=st.sampled_from(sorted(SIDES)),
    part=st.sampled_from("xy"),
    at=st.integers(0, 60),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", few(STORES, STORES.index("rocksdb")))
@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(kind=st.sampled_from(sorted(JOBS)), made=st.lists(st.lists(rows, max_size=14), min_size=1, max_size=4))
def test_windows_and_messages_are_those_of_a_naive_look(name: StoreName, kind: str, made: list[list[Row]]) -> None:
    description, names = JOBS[kind]
    naive = Naive(names)
    with tempfile.TemporaryDirectory() as folder:
        root, store = Path(folder) / "root", store_config(name, Path(folder) / "cache")
        running = operator(description, root, store)
        for number, batch in enumerate(made):
            counters = running.add_messages(**sided(sorted(batch, key=lambda row: row.side)))
            known = naive.batch(sorted(batch, key=lambda row: row.side))
            assert counters.get("duplicates", 0) == known
            check(running, naive, description.graph.description.on)
            then = running.flush().checkpoint
            check(query(root, checkpoint=then), naive, description.graph.description.on)
            if number % 2:
                running.close()
                running = operator(description, root, store)
        running.drain()
        assert running.get_windows("left").num_rows == 0
        running.close()
        assert query(root).get_messages(side="right").num_rows == 0


def test_sessions_that_begin_together_have_their_own_offsets(tmp_path: Path) -> None:
    """Also where the key that comes last in order was there first."""
    with operator(job("user"), tmp_path) as running:
        running.add_messages(
            **sided([Row("left", "x", *of, 0) for of in ((3, 3, "b"), (12, 12, "a"), (27, 12, "b"))])
        )
        assert windows_of(running.get_windows("left")) == [
            (3, 6, "b", 1, "x", 3, 3),
            (12, 15, "a", 1, "x", 12, 12),
            (12, 15, "b", 1, "x", 27, 27),
        ]


@pytest.mark.slow
def test_identities_are_forgotten_when_a_message_would_be_too_late(tmp_path: Path) -> None:
    with operator(job(), tmp_path) as running:
        for at in range(20):
            both = [Row(side, "x", at, at, "a", 0) for side in SIDES]
            running.add_messages(**sided(both))
            again = running.add_messages(**sided(both))
            assert again["duplicates"] == 2
        running.flush()
        assert query(tmp_path).state("left_seen").num_rows == GAP + LATE
        old = running.add_messages(**sided([Row("left", "x", 5, 5, "a", 0)]))
        assert (old.get("duplicates", 0), old["very_late"]) == (0, 1)
        assert [row["events"] for row in running.get_windows("left").to_pylist()] == [20], "one long session"


def test_it_flushes_when_a_later_session_begins_pairs_are_emitted_or_one_is_forgotten(tmp_path: Path) -> None:
    with operator(job(on="user"), tmp_path) as running:
        first = running.flush().checkpoint
        running.add_messages(**sided([Row("left", "x", 1, 10, "a", 0)]))
        assert running.flush().checkpoint == first + 1, "it had: a session has begun"
        running.add_messages(**sided([Row("left", "x", 2, 11, "a", 0), Row("left", "x", 3, 5, "b", 0)]))
        assert unflushed_of(running).since.messages == 2, "no later one"
        running.add_messages(**sided([Row("left", "x", 4, 12, "c", 0), Row("right", "x", 4, 9, "b", 0)]))
        assert unflushed_of(running).since.messages == 0
        running.timeout(0, watermark_us=14 * SECOND)
        assert unflushed_of(running).since.messages == 0
        assert running.get_windows("left", key="b").num_rows == 0, "forgotten"
        assert running.get_windows("left", key="a").num_rows == 1


def test_pairs_of_a_session_where_more_is_equal(tmp_path: Path) -> None:
    """Sessions of a user; pairs where the item agrees too."""
    with operator(job("user", how="full"), tmp_path) as running:
        assert {side: str(layout) for side, layout in running.layouts.items()} == dict.fromkeys(
            SIDES, "<session>_<ts>_<eq>_<offset>"
        )
        made = [("left", 1, 0), ("left", 3, 1), ("right", 5, 1), ("right", 6, 2), ("left", 6, 1)]
        running.add_messages(**sided([Row(side, "x", at, at, "a", item) for at, (side, _, item) in enumerate(made)]))
        running.drain()
        (result,) = running.get_result()
        names = ["user", "item", "left_at", "right_at", "left_part", "right_part"]
        assert sorted(map(str, result.panes.select(names).to_pylist())) == sorted(
            str(dict(zip(names, row, strict=True)))
            for row in [
                ("a", 0, 0, None, "x", None),
                ("a", 1, 1, 2, "x", "x"),
                ("a", 1, 4, 2, "x", "x"),
                ("a", 2, None, 3, None, "x"),
            ]
        )
        assert set(result.panes["window_start"].to_pylist()) == {datetime.fromtimestamp(0, UTC)}


def test_what_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="join-offset"):
        operator(job(offset=None), tmp_path / "unnamed")
    with pytest.raises(UsageError, match="column-missing"):
        operator(job(offset="number"), tmp_path / "missing")
    with operator(job("user"), tmp_path / "root") as running:
        running.add_messages(**sided([Row("left", "x", 1, 1, "a", 1)]))
        running.flush()
        for asked in (running, query(tmp_path / "root")):
            for what, by in (("get_windows", "key"), ("get_messages", "session")):
                with pytest.raises(UsageError, match="message-range"):
                    ask(asked, what, "left", **{by: ("a", 1)})
                with pytest.raises(UsageError, match="message-range"):
                    ask(asked, what, "left", **{by: 1.5})
                with pytest.raises(UsageError, match="sides"):
                    ask(asked, what, "middle")
        with pytest.raises(UsageError, match="query-windows"):
            list(query(tmp_path / "root").scan_windows())
    with operator(job(on=None), tmp_path / "alone") as running:
        for what, by in (("get_windows", "key"), ("get_messages", "session")):
            with pytest.raises(UsageError, match=f"remove {by}="):
                ask(running, what, "left", **{by: "a"})


def test_offsets_that_are_none_and_nulls_are_in_the_ledger_whole(tmp_path: Path) -> None:
    schema = pa.schema([*LEFT, ("gap", pa.int64())])
    made = job("user", gap=None, gap_column="gap")
    bad = [("x", -1, 1), ("x", None, 1), (None, 1, 1), ("x", 2, None), ("x", 3, 1)]
    table = pa.Table.from_pylist(
        [
            {"part": part, "at": at, "t": SECOND, "user": "a", "item": item, "v": 0, "gap": 3 * SECOND}
            for part, at, item in bad
        ],
        schema.set(2, pa.field("t", pa.int64())),
    ).cast(schema)
    harness = made.harness({"left": schema, "right": schema}, folder=tmp_path)
    harness.feed({"left": table})
    ledger = harness.ledger().select(["left_at", "left_part", "item", "gap", "time", "reason"]).to_pylist()
    assert sorted(row["reason"] for row in ledger) == ["bad_offset"] * 3 + ["null_key"]
    assert {row["gap"] for row in ledger} == {3 * SECOND}
    assert all(row["time"] is not None for row in ledger)
    assert query(tmp_path).get_messages(side="left")["offset"].to_pylist() == [3]


@pytest.mark.parametrize("name", ["first", "events"])
def test_windows_keep_a_key_of_any_name(tmp_path: Path, name: str) -> None:
    schema = pa.schema([("at", pa.int64()), ("part", pa.string()), ("t", TIME), (name, pa.string())])
    made = ts.stream(event_time="t", offset="at", origin="part").join_sessions(
        ts.stream(event_time="t", offset="at", origin="part"), on=name, gap="6 seconds", identity=True
    )
    with made.by_hand({"left": schema, "right": schema}, checkpoint=tmp_path) as running:
        times = pa.array([0, 1, 20]).cast(TIME)
        rows = pa.table([pa.array([1, 2, 3]), pa.array(["x"] * 3), times, pa.array(["a", "b", "b"])], schema=schema)
        running.add_messages(left=rows)
        found = running.get_windows("left")
    assert found.column_names[2:] == [name, "events_" if name == "events" else "events", "offsets"]
    assert found.column(2).to_pylist() == ["a", "b"]


@pytest.mark.parametrize("partitions", [1, 3])
def test_keys_are_called_as_they_are_and_partitions_make_no_difference(tmp_path: Path, partitions: int) -> None:
    """Also where the message store has a column of that name."""
    schema = pa.schema([("offset", pa.int64()), ("origin", pa.string()), ("t", TIME), ("n", pa.int64())])
    rows = [{"offset": at % 5, "origin": "ab"[at % 2], "t": at * SECOND, "n": at} for at in range(20)]
    table = pa.Table.from_pylist(rows, schema.set(2, pa.field("t", pa.int64()))).cast(schema)
    kinds: list[Any] = [
        ts.stream(event_time="t", offset="n").join_sessions(
            ts.stream(event_time="t", offset="n"),
            on=("offset", "origin"),
            gap="6 seconds",
            session_key="offset",
            identity=True,
        ),
        ts.stream(event_time="t", offset="n").join(
            ts.stream(event_time="t", offset="n"),
            on=("offset", "origin"),
            within=("0 seconds", "1 hour"),
            identity=True,
        ),
    ]
    for place, made in enumerate(kinds):
        harness = made.harness({"left": schema, "right": schema}, folder=tmp_path / str(place), partitions=partitions)
        harness.feed({"left": table, "right": table})
        asked = query(tmp_path / str(place))
        one: dict[str, Any] = {"session": 3, "equal": "a"} if place == 0 else {"equal": (3, "a")}
        assert asked.get_messages(side="left", **one)["offset"].to_pylist() == [8, 18]
        assert asked.get_messages(side="left")["offset"].to_pylist() == list(range(20))
        panes = harness.finish()
        assert panes.column_names[:2] == ["offset", "origin"]
        if place == 0:
            windows = asked.get_windows(side="left", key=3)
            assert windows["events"].to_pylist() == [4]
            assert asked.get_windows(side="left").select([0, 3]).to_pylist() == [
                {"window_start": datetime.fromtimestamp(at, UTC), "events": 4} for at in range(5)
            ]
