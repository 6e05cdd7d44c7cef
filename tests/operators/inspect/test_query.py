"""Questions to a checkpoint: the same answers as the operator gives, as of any checkpoint, and nothing is touched."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.internals import head_of
from tests.helpers.join_operator_messages import LEFT, RIGHT, near, sided, two_streams
from tests.helpers.operator_messages import (
    SCHEMA,
    SECOND,
    WINDOWS,
    Message,
    description,
    operator,
    plain,
    store_config,
    stream,
    table,
)
from tests.helpers.process import LONG, in_turn, some
from tidestate import agg
from tidestate.operators.inspect.query import query
from tidestate.recovery.log.lease import LEASE_FOLDER
from tidestate.recovery.log.traces import REACHED
from tidestate.statestore.errors import NotFoundError, UsageError
from tidestate.statestore.messages.tables import Retention
from tidestate.statestore.spec.store import Parquet, StoreName


def answers(asked: Any, kind: str) -> list[list[dict[str, Any]]]:
    """To all forms of both questions; without the results of functions, which a checkpoint has not."""
    values = ["n", "total"]
    by_number, key = kind == "counted", {"session" if kind == "session" else "equal": "b"}
    times: dict[str, Any] = {} if by_number else {"start_time": 11 * SECOND, "end_time": 30 * SECOND}
    offsets = {"start_offset": 4, "end_offset": 40}
    low, high = (2, 6) if by_number else (11 * SECOND, 30 * SECOND)
    found = [
        asked.get_windows(values=values),
        asked.get_windows(low, high, values=values),
        asked.get_windows(low, high, key="b", values=values),
        asked.get_windows(None, high, values=values),
        asked.get_windows(low, values=values),
        asked.get_messages(),
        asked.get_messages(**times, **offsets),
        asked.get_messages(**times, **offsets, **key),
        asked.get_messages(**key),
    ]
    return [rows.to_pylist() for rows in found]


def files(root: Path) -> dict[str, float]:
    """When each file was written, but for those of the operator's heartbeat, which goes on while a query reads."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.parent.name not in (LEASE_FOLDER, REACHED)]
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in paths}


BATCHES = 3 if LONG else 2
KINDS = ("sliding", "counted", "session", *(("tumbling",) if LONG else ()))
CASES = in_turn(("parquet", "memory", "rocksdb"), KINDS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_checkpoint_answers_as_the_operator_did(tmp_path: Path, name: StoreName, kind: str) -> None:
    root, then = tmp_path / "root", {}
    with operator(description(WINDOWS[kind]), root, store_config(name, tmp_path / "cache")) as running:
        for batch in stream(11, BATCHES):
            running.add_messages(table(batch))
            then[running.flush().checkpoint] = answers(running, kind)
            lying = files(root)
            assert answers(query(root), kind) == then[head_of(running).id], "while the operator runs"
            assert files(root) == lying, "nothing is written"
    assert len(then) == BATCHES
    for checkpoint_id, wanted in then.items():
        asked = query(root, checkpoint=checkpoint_id)
        assert asked.checkpoint == checkpoint_id
        assert answers(asked, kind) == wanted, "and any time later"
    assert str(asked.layouts[""]) == str(running.layout)
    assert all(wanted[0] and wanted[5] for wanted in then.values())


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session", "gaps"])
def test_windows_and_messages_are_those_of_a_naive_look(tmp_path: Path, kind: str) -> None:
    """All kept: nothing expires within the lateness."""
    made = [m for batch in stream(2, 5) for m in batch]
    with operator(description(WINDOWS[kind], allowed=10_000), tmp_path, Parquet()) as running:
        running.add_messages(table(made))
        windows: dict[tuple[int, int, str], list[Message]] = defaultdict(list)
        for m in sorted(made, key=lambda m: (m.k or "", m.t or 0)):
            assert m.t is not None
            assert m.k is not None
            for low, high in holding(kind, m, windows):
                windows[low, high, m.k].append(m)
        for low, high in ((-100, 100), (0, 0), (3, 9), (5, 5), (8, 20)):
            found = running.get_windows(low * SECOND, high * SECOND)
            wanted = [
                (start, end, key, len(ms), part, min(at), max(at))
                for (start, end, key), ms in sorted(windows.items(), key=lambda w: (w[0][0], w[0][2]))
                if start <= high and end > low
                for part in "xy"
                if (at := [m.at for m in ms if m.part == part])
            ]
            assert by_origin(found) == wanted
            mine = running.get_windows(low * SECOND, high * SECOND, key="a")
            assert by_origin(mine) == [w for w in wanted if w[2] == "a"]
            assert mine["n"].equals(mine["events"])
            inside = sorted((m.t, m.at, m.part) for m in made if m.t is not None and low <= m.t <= high)
            got = running.get_messages(low * SECOND, None, high * SECOND)
            assert [(row["time"].timestamp(), row["offset"], row["origin"]) for row in got.to_pylist()] == inside


def holding(kind: str, m: Message, windows: dict[tuple[int, int, str], list[Message]]) -> list[tuple[int, int]]:
    """Windows of a message; a session grows as messages come in order of time."""
    t, k = m.t or 0, m.k or ""
    if kind == "session":
        for low, high, key in list(windows):
            if key == k and low <= t < high:
                windows[low, max(high, t + 3), key] = windows.pop((low, high, key))
                return [(low, max(high, t + 3))]
        return [(t, t + 3)]
    size, slide = {"tumbling": (6, 6), "sliding": (6, 2), "gaps": (3, 5)}[kind]
    return [(low, low + size) for low in range(t - 10, t + 1) if low % slide == 0 and low <= t < low + size]


def by_origin(windows: pa.Table) -> list[tuple[Any, ...]]:
    """Start, end, key, events; and an origin with its offsets."""
    rows = windows.select(["window_start", "window_end", "k", "events", "offsets"]).to_pylist()
    return [
        (*(int(bound.timestamp()) for bound in bounds), key, events, *origin.values())
        for *bounds, key, events, offsets in (tuple(row.values()) for row in rows)
        for origin in offsets
    ]


def test_all_four_forms_with_a_session_key_and_join_keys(tmp_path: Path) -> None:
    job = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.sessions("5 seconds"))
        .aggregate(n=agg.count())
        .allowed_lateness("1 hour")
    )
    made = [Message("x", at, at // 2, "ab"[at % 2], at % 3) for at in range(30)]
    with operator(job, tmp_path, Parquet(), equal="v") as running:
        running.add_messages(table(made))
        running.flush()
        assert str(running.layout) == "<session>_<eq>_<ts>_<offset>"
        bounds = (2 * SECOND, 5, 11 * SECOND, 22)
        for asked in (running, query(tmp_path)):
            for key in (None, "a", ("b",)):
                for value in (None, 1, (2,)):
                    got = asked.get_messages(*bounds, session=key, equal=value)
                    wanted = [
                        m.at
                        for m in made
                        if (2, 5) <= (m.t or 0, m.at) <= (11, 22)
                        and (key is None or m.k == key[0])
                        and (value is None or m.v == (value if isinstance(value, int) else value[0]))
                    ]
                    assert got["offset"].to_pylist() == wanted
                    assert wanted
    plain_job = (
        ts.stream(event_time="t")
        .group_by()
        .window(ts.tumbling("5 seconds"))
        .aggregate(n=agg.count())
        .allowed_lateness("1 hour")
    )
    with operator(plain_job, tmp_path / "plain", Parquet(), equal=("k", "v")) as running:
        running.add_messages(table(made))
        assert str(running.layout) == "<eq>_<ts>_<offset>"
        found = running.get_messages(equal=("a", 0))["offset"].to_pylist()
        assert found == [m.at for m in made if (m.k, m.v) == ("a", 0)]
        with pytest.raises(UsageError, match="no session key"):
            running.get_messages(session="a")
        with pytest.raises(UsageError, match="windows have no key"):
            running.get_windows(key="a")
    with pytest.raises(UsageError, match=r"\[message-layout\]"):
        operator(description(ts.tumbling("5 seconds")), tmp_path / "twice", Parquet(), equal="v")


@pytest.mark.parametrize("by_offset", [False, True], ids=["time", "tuples"])
def test_sessions_are_found_by_their_key_and_start(tmp_path: Path, by_offset: bool) -> None:
    """Samza: "<session_key>_<start_offset>" of messages, "<session_key>_<start_time>" of time."""
    stream_ = ts.stream(offset="at", origin="part") if by_offset else ts.stream(event_time="t")
    sessions = stream_.group_by("k").window(ts.offset_sessions(3, late=20) if by_offset else ts.sessions("3 seconds"))
    made = [Message("x", at, at, key, 0) for at, key in ((5, "a"), (6, "b"), (7, "a"), (12, "a"), (13, "b"))]
    with operator(sessions.aggregate(n=agg.count()).accumulation("retracting"), tmp_path, Parquet()) as running:
        running.add_messages(table(made))
        running.flush()
        for asked in (running, query(tmp_path)):
            for key, starts, ends in (("a", [5, 12], [10, 15]), ("b", [6, 13], [9, 16])):
                found = asked.get_windows(key=key)
                bounds = [found[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
                assert bounds == [[at * (1 if by_offset else SECOND) for at in each] for each in (starts, ends)]
                assert [one["start_offset"] for (one,) in found["offsets"].to_pylist()] == starts


def test_by_tuples_there_are_offsets_only(tmp_path: Path) -> None:
    with operator(description(ts.count_windows(4, 3)), tmp_path, Parquet()) as running:
        running.add_messages(table([Message("x", at, at, "a", at) for at in range(10)]))
        assert running.get_messages(start_offset=3, end_offset=5)["offset"].to_pylist() == [3, 4, 5]
        with pytest.raises(UsageError, match="message-range"):
            running.get_messages(start_time=0)
    with operator(description(ts.tumbling("4 seconds")), tmp_path / "time", Parquet()) as running:
        with pytest.raises(UsageError, match=r"\[message-range\]"):
            running.get_messages(start_offset=3)
        with pytest.raises(UsageError, match="no session key"):
            running.get_messages(session="a")


AGGREGATES: dict[str, Any] = {
    "n": agg.count(),
    "known": agg.count("v"),
    "total": agg.sum("v"),
    "low": agg.min("v"),
    "high": agg.max("v"),
    "mid": agg.mean("v"),
    "half": agg.median("v"),
    "spread": agg.variance("v"),
    "soon": agg.earliest("v"),
    "most": agg.arg_max("part", by="v"),
    "all": agg.list("v"),
    "sorted": agg.sorted_list("part", by="v"),
    "kinds": agg.count_distinct("part"),
    "tally": agg.count_by_value("part"),
    "top": agg.top_n("v", 2),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mode"),
    some(
        [
            ("tumbling", "accumulating"),
            ("sliding", "retracting"),
            ("session", "retracting"),
            ("counted", "accumulating"),
            ("global", "accumulating"),
        ],
        3,
    ),
)
def test_values_of_windows_without_the_description(tmp_path: Path, kind: str, mode: Any) -> None:
    job = ts.stream(event_time="t").group_by("k").window(WINDOWS[kind]).aggregate(**AGGREGATES).named("values")
    job = job.allowed_lateness("20 seconds").accumulation(mode)
    harness = job.harness(SCHEMA, folder=tmp_path, partitions=2, store=Parquet())
    for batch in stream(6, 2):
        harness.feed(table(batch))
        asked, given = query(tmp_path), query(tmp_path, description=job.graph.description, schema=SCHEMA)
        assert rows_of(asked.get_windows()) == rows_of(harness.windows())
        assert given.get_windows().equals(asked.get_windows())
    assert asked.tables
    for name in asked.tables:
        assert asked.state(name).equals(harness.state(name))
    assert asked.get_windows().num_rows > 2
    assert asked.operator == "values"
    harness.finish()
    assert query(tmp_path).get_windows().num_rows == 0
    with pytest.raises(UsageError, match="no-messages"):
        asked.get_messages()


def rows_of(windows: pa.Table) -> list[str]:
    """Start, end, key and results, in any order."""
    names = [name for name in windows.column_names if name not in ("events", "panes")]
    return sorted(map(repr, windows.select(names).to_pylist()))


def test_values_by_functions_of_ones_own_need_the_description(tmp_path: Path) -> None:
    job = description(ts.sliding("6 seconds", "2 seconds"))
    with operator(job, tmp_path, Parquet(), retention=Retention(count=1000)) as running:
        running.add_messages(table(stream(1)[0]))
        running.flush()
        asked = query(tmp_path, description=job.graph.description, schema=SCHEMA)
        assert plain(asked.get_windows()) == plain(running.get_windows())
        assert len(set(asked.get_windows()["middle"].to_pylist())) > 2
    with pytest.raises(UsageError, match="query-description"):
        query(tmp_path).get_windows()
    assert query(tmp_path).own_functions == ["middle"]
    assert "middle" not in query(tmp_path).get_windows(values=["n"]).column_names
    for wrong in (
        ts.stream(event_time="t").group_by().window(ts.tumbling("1 second")).aggregate(n=agg.count()),
        description(ts.tumbling("1 second")),
    ):
        with pytest.raises(UsageError, match="query-description"):
            query(tmp_path, description=wrong.graph.description, schema=SCHEMA)
    with pytest.raises(UsageError, match="schema="):
        query(tmp_path, description=job.graph.description)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no-checkpoint"):
        query(tmp_path / "nowhere")
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    with operator(job, tmp_path, Parquet()) as running:
        running.add_messages(table([Message("x", 1, 3, "a", 1)]))
    with pytest.raises(NotFoundError, match="no-such-checkpoint"):
        query(tmp_path, checkpoint=99)
    with pytest.raises(NotFoundError, match="no-such-operator"):
        query(tmp_path, operator="other")
    asked = query(tmp_path)
    assert asked.get_windows()["n"].to_pylist() == [1]
    offsets = [[{"origin": "x", "start_offset": 1, "last_offset": 1}]]
    assert asked.get_windows()["offsets"].to_pylist() == offsets, "metadata is kept without messages too"
    with pytest.raises(UsageError, match="no-messages"):
        asked.get_messages()
    with pytest.raises(UsageError, match="query-table"):
        asked.state("nothing")


def test_each_operator_of_a_chain_is_asked_by_its_name(tmp_path: Path) -> None:
    first = ts.stream(event_time="t").group_by("k", "part").window(ts.tumbling("6 seconds"))
    first = (
        first.aggregate(n=agg.count(), total=agg.sum("v"))
        .named("parts")
        .allowed_lateness("20 seconds")
        .accumulation("retracting")
    )
    second = first.group_by("k").aggregate(parts=agg.count(), most=agg.max("n"), total=agg.sum("total")).named("keys")
    job = second.allowed_lateness("20 seconds")
    harness = job.harness(SCHEMA, folder=tmp_path, partitions=2, store=Parquet())
    for batch in stream(6, 4):
        harness.feed(table(batch))
    assert query(tmp_path).operator == "keys"
    for name in ("parts", "keys"):
        given = query(tmp_path, operator=name, description=job.graph.description, schema=SCHEMA)
        assert given.get_windows().num_rows
        assert rows_of(given.get_windows()) == rows_of(harness.windows(name))
        assert query(tmp_path, operator=name).get_windows().equals(given.get_windows()), "no description is needed"


def test_messages_that_only_a_function_reads_need_no_description(tmp_path: Path) -> None:
    middle = agg.apply_rows(len, columns=["v"], result_type=pa.int64(), per_group=True)
    job = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("6 seconds"))
        .aggregate(middle=middle)
        .allowed_lateness("1 day")
    )
    with operator(job, tmp_path, Parquet()) as running:
        running.add_messages(table(stream(3, 1)[0]))
        running.flush()
        asked, kept = query(tmp_path), running.get_messages()
        assert kept.num_rows
        assert asked.get_messages().equals(kept)
        assert asked.get_windows(values=[]).equals(running.get_windows(values=[]))
        with pytest.raises(UsageError, match="query-description"):
            asked.get_windows()
        given = query(tmp_path, description=job.graph.description, schema=SCHEMA).get_windows()
    assert sum(given["middle"].to_pylist()) == kept.num_rows


def test_sides_of_a_join_over_all_partitions(tmp_path: Path) -> None:
    job, made = near(), [row for batch in two_streams(4, 3) for row in batch]
    schema = {"left": LEFT, "right": RIGHT}
    harness = job.harness(schema, folder=tmp_path, partitions=3)
    harness.feed(sided(made))
    asked = query(tmp_path)
    for side, first in (("left", 2), ("right", 5)):
        found = asked.get_messages(first * SECOND, side=side)
        own = sorted((m.t, m.at, m.part, m.k) for m in made if m.side == side and m.t is not None and m.t >= first)
        names = ("time", "offset", "origin", "k")
        rows = [tuple(row[name] for name in names) for row in found.to_pylist()]
        assert [(time.timestamp(), *rest) for time, *rest in rows] == own
        only = asked.get_messages(first * SECOND, side=side, equal="a")
        assert only["offset"].to_pylist() == [at for _, at, _, key in own if key == "a"]
    assert {side: str(layout) for side, layout in asked.layouts.items()} == dict.fromkeys(
        ("left", "right"), "<ts>_<eq>_<offset>"
    )
