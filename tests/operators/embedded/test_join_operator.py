"""The join operator by hand: the design's examples to the letter, each message once, questions to its sides."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.changed_jobs import changed
from tests.helpers.internals import head_of
from tests.helpers.join_operator_messages import (
    LEFT,
    RIGHT,
    Row,
    expected,
    held,
    near,
    operator,
    plain,
    sessions,
    sided,
    two_streams,
)
from tests.helpers.operator_messages import SECOND, STORES, TIME, Receiver, store_config
from tests.helpers.process import LONG, examples, few, in_turn, some
from tidestate.operators import JoinOperator
from tidestate.operators.inspect.query import query
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import Parquet, StoreName

ORDERS = pa.schema([("offset", pa.int64()), ("value", pa.int64()), ("id", pa.int64()), ("time", TIME)])
SHIPMENTS = pa.schema([("offset", pa.int64()), ("cost", pa.int64()), ("id", pa.int64()), ("time", TIME)])


def clock(text: str) -> datetime:
    hour, minute, second = (int(part) for part in text.split(":"))
    return datetime(2015, 3, 1, hour, minute, second, tzinfo=UTC)


def micros(text: str) -> int:
    return int(clock(text).timestamp()) * SECOND


def message(offset: int, value: int, id: int, time: str, schema: pa.Schema) -> pa.Table:
    row = (offset, value, id, clock(time))
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True))], schema)


ARRIVALS = [  # by system wall clock
    ("9:00:00", "left", message(1, 0, 1, "8:59:10", ORDERS)),
    ("9:00:00", "right", message(1000, 0, 3, "9:00:10", SHIPMENTS)),
    ("9:00:10", "right", message(1001, 2, 1, "9:00:10", SHIPMENTS)),
    ("9:00:59", "left", message(2, 5, 3, "9:00:00", ORDERS)),
    ("9:01:01", "right", message(1002, 3, 1, "9:01:10", SHIPMENTS)),
    ("9:01:01", "right", message(1003, 1, 9, "9:01:20", SHIPMENTS)),
    ("9:02:01", "left", message(3, 9, 9, "8:59:30", ORDERS)),
]
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, list[tuple[int, int, int]]]]] = {
    "tuples": (
        {
            "left": ts.side(window=ts.offset_windows(3, 1)),
            "sides": ts.side(update="1 minute", late_update="1 minute"),
        },
        {"9:01:00": [(3, 5, 0), (1, 0, 2)], "9:02:00": [(1, 0, 3)], "9:03:00": [(9, 9, 1)]},
    ),
    "time": (
        {
            "left": ts.side(
                window=ts.tumbling("2 minutes", offset="1 minute"), update=ts.period("2 minutes", offset="59 seconds")
            ),
            "right": ts.side(update=ts.period("1 minute", offset="59 seconds")),
        },
        {"9:00:59": [(3, 5, 0), (1, 0, 2)], "9:01:59": [(1, 0, 3)], "9:02:59": [(9, 9, 1)]},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "example", "restarts"), few(in_turn(STORES, sorted(EXAMPLES), [True, False]), 1))
def test_orders_and_shipments_as_in_the_design(tmp_path: Path, name: StoreName, restarts: bool, example: str) -> None:
    """Case 2 of SAMZA-552: what is observed, in which order, and when."""
    options, wanted = EXAMPLES[example]
    orders, shipments = (ts.stream(event_time="time", offset="offset") for _ in "os")
    job = orders.join(shipments, on="id", identity=True, **options)
    observed: dict[str, list[tuple[int, int, int]]] = {}
    store, waiting = store_config(name, tmp_path / "cache"), list(ARRIVALS)

    def begin() -> JoinOperator:
        return job.by_hand({"left": ORDERS, "right": SHIPMENTS}, checkpoint=tmp_path / "root", store=store)

    running = begin()
    for second in range(8 * 3600 + 59 * 60, 9 * 3600 + 4 * 60):
        now = f"{second // 3600}:{second // 60 % 60:02}:{second % 60:02}"
        while waiting and waiting[0][0] == now:
            _, side, rows = waiting.pop(0)
            running.add_messages(**{side: rows}, now_us=micros(now))
        if running.due_us is not None and micros(now) >= running.due_us:
            running.timeout(micros(now))
        for result in running.get_result():
            rows = result.panes.select(["id", "left_value", "right_cost"]).to_pylist()
            observed.setdefault(now, []).extend(tuple(row.values()) for row in rows)
            running.acknowledge(result.id)
        if restarts and second % (20 if LONG else 75) == 0:
            running.flush()
            running.close()
            running = begin()
    assert observed == wanted
    assert running.get_windows("right").to_pylist() == [
        {
            "window_start": None,
            "window_end": None,
            "events": 4,
            "offsets": [{"origin": 0, "start_offset": 1000, "last_offset": 1003}],
        }
    ]
    (window, *_) = running.get_windows("left").to_pylist() if example == "time" else [None]
    if window is not None:
        assert (window["window_start"], window["window_end"]) == (clock("8:59:00"), clock("9:01:00"))
        assert (window["events"], *window["offsets"][0].values()) == (3, 0, 1, 3)
    else:  # [1, 3]
        offsets = running.get_windows("left", 1, 1)
        assert (1, 4, 3, [{"origin": 0, "start_offset": 1, "last_offset": 3}]) in [
            tuple(row.values()) for row in offsets.to_pylist()
        ]
    running.close()


JOBS: dict[str, Any] = {
    "full": near(),
    "left": near("left", unmatched="final"),
    "inner": near("inner"),
    "windows": ts.stream(event_time="t", offset="at", origin="part").join(
        ts.stream(event_time="t", offset="at", origin="part"),
        on="k",
        window=ts.tumbling("6 seconds"),
        how="full",
        allowed_lateness="6 seconds",
        identity=True,
    ),
    "sliding": ts.stream(event_time="t", offset="at", origin="part").join(
        ts.stream(event_time="t", offset="at", origin="part"),
        on="k",
        window=ts.sliding("6 seconds", "2 seconds"),
        allowed_lateness="6 seconds",
        identity=True,
    ),
    "held": near("inner", update="4 seconds"),
    "sessions": sessions(),
    "sessions apart": sessions("left", session_key=()),
    "own in order": held(),
    "own": ts.stream(event_time="t", offset="at", origin="part").join(
        ts.stream(event_time="t", offset="at", origin="part"),
        on="k",
        left=ts.side(window=ts.sliding("6 seconds", "2 seconds")),
        identity=True,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", some(STORES, 1))
@settings(
    max_examples=examples(16),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(data=st.data(), seed=st.integers(0, 1000), kind=st.sampled_from(sorted(JOBS)))
def test_each_message_once_under_replay_duplicates_and_crashes(
    name: StoreName, data: st.DataObject, seed: int, kind: str
) -> None:
    job, made = JOBS[kind], two_streams(seed, 6 if LONG else 4, 6)
    with tempfile.TemporaryDirectory() as folder:
        root, receiver = Path(folder) / "root", Receiver()
        panes = expected(job, made, Path(folder) / "harness")
        store = store_config(name, Path(folder) / "cache")
        running = operator(job, root, store, partitions=data.draw(st.sampled_from([1, 1, 3])))
        for number, batch in enumerate(made):
            earlier = [m for b in made[:number] for m in b]
            again = data.draw(st.lists(st.sampled_from(earlier or [None]), max_size=6))
            twice = data.draw(st.lists(st.sampled_from(batch), max_size=3))
            running.add_messages(**sided([*batch, *twice]))
            running.add_messages(**sided([m for m in again if m]))
            take(running, receiver)
            after = data.draw(st.sampled_from(["", "flush", "crash", "rescale"]))
            if after == "flush":
                running.flush()
            if after in ("crash", "rescale"):
                running.close()
                if after == "rescale":
                    rescale(root, {1: 3, 3: 2, 2: 1}[head_of(running).partitions])
                running = operator(job, root, store)
                for one in made[: number + 1]:
                    running.add_messages(**sided(one))
        running.drain()
        take(running, receiver)
        running.flush()
        running.close()
    assert sorted(receiver.panes, key=repr) == sorted(panes, key=repr)


def take(running: JoinOperator, receiver: Receiver) -> None:
    for result in running.get_result():
        receiver(result.panes, result.id)
        running.acknowledge(result.id)


def requests(asked: Any, what: str, side: str, *given: Any, **by: Any) -> pa.Table:
    """The same question to an operator and to a checkpoint."""
    call = getattr(asked, what)
    return call(side, *given, **by) if isinstance(asked, JoinOperator) else call(*given, side=side, **by)


def test_windows_and_messages_of_each_side(tmp_path: Path) -> None:
    job = changed(JOBS["own"], in_order=False)
    made = [Row(side, "x", at, at, "ab"[at % 2], at) for at in range(12) for side in ("left", "right")]
    with operator(job, tmp_path) as running:
        running.add_messages(**sided(made))
        assert {side: str(layout) for side, layout in running.layouts.items()} == {
            "left": "<eq>_<ts>_<offset>",
            "right": "<eq>_<ts>_<offset>",
        }
        running.flush()
        for asked in (running, query(tmp_path)):
            ask = partial(requests, asked)
            every_ = ask("get_messages", "right")["offset"].to_pylist()
            assert every_ == list(range(12)), "all of a side without windows"
            some = ask("get_messages", "right", 3 * SECOND, 3, 9 * SECOND, 8)["offset"].to_pylist()
            assert some == [3, 4, 5, 6, 7, 8]
            mine = ask("get_messages", "right", 3 * SECOND, None, 9 * SECOND, equal="a")["offset"].to_pylist()
            assert mine == [4, 6, 8]
            kept = ask("get_messages", "left")["offset"].to_pylist()
            assert kept == [m for m in range(12) if m >= 6], "what the newest windows hold"
            windows = ask("get_windows", "left", 9 * SECOND, 11 * SECOND).to_pylist()
            found = [
                (w["window_start"].timestamp(), w["events"], *list(w["offsets"][0].values())[1:]) for w in windows
            ]
            assert found == [(4, 4, 6, 9), (6, 6, 6, 11), (8, 4, 8, 11), (10, 2, 10, 11)]
            (whole,) = ask("get_windows", "right").to_pylist()
            assert (whole["window_start"], whole["events"], whole["offsets"][0]["last_offset"]) == (None, 12, 11)
            with pytest.raises(UsageError, match="no session key"):
                ask("get_messages", "left", session="a")
            with pytest.raises(UsageError, match="key="):
                ask("get_windows", "left", key="a")
            with pytest.raises(UsageError, match="sides"):
                ask("get_messages", "middle")
        with pytest.raises(UsageError, match="sides"):
            query(tmp_path).get_messages()
    with operator(near(), tmp_path / "near") as running:
        running.add_messages(**sided(made))
        running.flush()
        with pytest.raises(UsageError, match="query-windows"):
            running.get_windows("left")
        with pytest.raises(UsageError, match="query-windows"):
            query(tmp_path / "near").get_windows(side="left")
        with pytest.raises(UsageError, match="query-windows"):
            list(query(tmp_path / "near").scan_windows())


@pytest.mark.long
def test_a_loop_takes_sides_by_name(tmp_path: Path) -> None:
    made, taken = two_streams(3, 3), Receiver()
    with operator(near(), tmp_path / "root", Parquet()) as running:
        ts.run_operator(running, [sided(batch) for batch in made], taken, clock=lambda: 0, drain=True)
    assert sorted(taken.panes, key=repr) == sorted(expected(near(), made, tmp_path / "harness"), key=repr)


def test_what_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="join-offset"):
        ts.stream(event_time="t").join(ts.stream(event_time="t"), on="k", within=("0 s", "1 s")).by_hand(
            {"left": LEFT, "right": RIGHT}, checkpoint=tmp_path
        )
    with operator(near(), tmp_path) as running:
        with pytest.raises(UsageError, match="column-missing"):
            running.add_messages(left=sided([Row("left", "x", 1, 1, "a", 1)])["left"].drop_columns(["t"]))
        counted = running.add_messages(**sided([Row("left", "x", 1, 1, "a", 1)] * 2))
        assert (counted["accepted"], counted["duplicates"]) == (2, 1)
        running.drain()
        with pytest.raises(UsageError, match="drained"):
            running.add_messages(**sided([Row("left", "x", 2, 1, "a", 1)]))
        (last,) = running.get_result()
        assert plain(last.panes)[0][-1] == "emit"
    job = near()
    with pytest.raises(IncompatibleError, match="other-runner"):
        job.standalone(checkpoint=tmp_path).run([sided([])])
