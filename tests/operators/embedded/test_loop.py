"""The window operator in its loop: a sink that refuses stops the intake, and nothing is lost or doubled.

That one which refuses is asked again, and nothing is taken meanwhile, is held in every run by
`tests.operators.engine.test_driver`, with each runner.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.operator_messages import (
    SECOND,
    STORES,
    Message,
    Receiver,
    description,
    expected,
    operator,
    store_config,
    stream,
    table,
)
from tidestate import watermark
from tidestate.operators import DeliveryId
from tidestate.statestore.errors import UnavailableError
from tidestate.statestore.spec.store import StoreName


class Slow(Receiver):
    """Takes one of three offers; refuses by False and by the exception, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.offers = 0
        self.refusing = False

    def take(self, panes: pa.Table, delivery_id: DeliveryId) -> bool:
        self.offers += 1
        self.refusing = self.offers % 3 != 0
        if self.offers % 3 == 1:
            return False
        if self.refusing:
            raise ts.Refused("not now")
        self(panes, delivery_id)
        return True


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
@pytest.mark.long
def test_a_sink_that_refuses_stops_the_intake(tmp_path: Path, name: StoreName) -> None:
    job, made, slow = description(ts.sessions("3 seconds"), "retracting"), stream(4, 7), Slow()
    panes, _ = expected(job, made, tmp_path / "harness")
    pauses: list[int] = []

    with operator(job, tmp_path / "root", store_config(name, tmp_path / "cache")) as running:

        def source() -> Iterator[pa.Table]:
            for batch in made:
                assert running.ready == [], "nothing is taken in while something is pending"
                yield table(batch)

        def wait(pause_s: float) -> None:
            assert pause_s > 0
            assert slow.refusing
            assert len(running.ready) <= 2
            pauses.append(slow.offers)

        ts.run_operator(running, source(), slow.take, clock=lambda: 0, wait=wait, drain=True)
    assert sorted(slow.panes, key=repr) == sorted(panes, key=repr)
    assert len(pauses) == 2 * len(slow.taken) > 10
    with operator(job, tmp_path / "root", store_config(name, tmp_path / "cache")) as running:
        assert running.ready == []


class Stopped(Exception):
    pass


def test_what_a_stopped_run_had_pending_comes_first_in_the_next(tmp_path: Path) -> None:
    job, receiver = description(ts.tumbling("10 seconds")), Receiver()
    messages = [table([Message("x", at, at, "a", 1)]) for at in (3, 13, 23, 33)]
    taken = iter(messages)

    def give_up(_pause_s: float) -> None:
        raise Stopped

    with operator(job, tmp_path, store_config("parquet", tmp_path)) as running, pytest.raises(Stopped):
        ts.run_operator(running, taken, lambda _panes, _id: False, clock=lambda: 0, wait=give_up)
    assert len(list(taken)) == 2, "the intake stopped with the first pane"

    def breaks(panes: pa.Table, delivery_id: DeliveryId) -> None:
        receiver(panes, delivery_id)
        if len(receiver.taken) == 2:
            raise OSError("after taking it in")

    with operator(job, tmp_path, store_config("parquet", tmp_path)) as running, pytest.raises(OSError):
        ts.run_operator(running, messages, breaks, clock=lambda: 0)
    with operator(job, tmp_path, store_config("parquet", tmp_path)) as running:
        ts.run_operator(running, messages, receiver, clock=lambda: 0, drain=True)
    assert [row[3] for row in receiver.panes] == [1, 1, 1, 1]


def test_the_ledger_has_a_sink_and_one_that_is_not_ready_stops_the_intake(tmp_path: Path) -> None:
    class Late(Receiver):
        asked = 0

        def ready(self) -> bool:
            self.asked += 1
            return self.asked % 3 == 0

    job, panes, late, pauses = description(ts.tumbling("10 seconds")), Receiver(), Late(), list[int]()
    messages = [table([Message("x", at, at, "a", 1)]) for at in (3, 213, 5, 23, 433, 7)]
    with operator(job, tmp_path, store_config("parquet", tmp_path)) as running:

        def wait(_pause_s: float) -> None:
            pauses.append(running.counters.get("events", 0))

        ts.run_operator(running, messages, panes, clock=lambda: 0, wait=wait, late_sink=late)
    assert pauses == sorted(pauses)
    assert len(late.panes) == 3
    assert {one.operator for one in late.taken} == {"windows"}
    assert len(pauses) > 6


def test_a_drained_loop_ends_where_its_sink_refuses_and_the_next_delivers(tmp_path: Path) -> None:
    job, receiver, message = description(ts.tumbling("10 seconds")), Receiver(), table([Message("x", 3, 3, "a", 1)])
    with operator(job, tmp_path, store_config("parquet", tmp_path)) as running:
        refuses = lambda _panes, _id: False  # noqa: E731
        with pytest.raises(UnavailableError, match="sink-refuses"):
            ts.run_operator(
                running, [message], refuses, clock=lambda: 0, wait=lambda _s: None, drain=True, timeout_s=0
            )
    with operator(job, tmp_path, store_config("parquet", tmp_path)) as running:
        ts.run_operator(running, [], receiver, drain=True)
    assert len(receiver.panes) == 1


def test_a_source_is_not_quiet_while_a_sink_is_waited_for(tmp_path: Path) -> None:
    """The first pane waits for ten minutes of the clock; the source says nothing for two of them at most."""
    quiet = watermark.bounded("2 seconds", column="t", quiet="5 minutes")
    job, now = description(ts.tumbling("10 seconds"), generator=quiet), [0]
    refused, receiver = iter([False] * 10), Receiver()

    def sink(panes: pa.Table, delivery_id: DeliveryId) -> bool:
        return next(refused, True) and (receiver(panes, delivery_id) is None)

    def wait(_pause_s: float) -> None:
        now[0] += 60 * SECOND

    def source() -> Iterator[pa.Table]:
        for at in (3, 13):
            now[0] += 60 * SECOND
            yield table([Message("x", at, at, "a", 1)])

    with operator(job, tmp_path, store_config("parquet", tmp_path)) as running:
        ts.run_operator(running, source(), sink, clock=lambda: now[0], wait=wait)
        assert now[0] == 12 * 60 * SECOND
        assert running.watermark_us == 11 * SECOND
        running.timeout(now[0] + 299 * SECOND)
        assert running.watermark_us == 11 * SECOND
        running.timeout(now[0] + 301 * SECOND)
        assert running.watermark_us is not None
        assert running.watermark_us > 11 * SECOND
