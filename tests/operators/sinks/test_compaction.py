"""Small files become large ones: readers see each row once before and after, whoever dies in the middle."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import tidestate as ts
from tests.children.included_sink import DELIVERED_BATCHES
from tests.helpers.forked import ForkedChild
from tests.helpers.process import LONG
from tests.helpers.spark_inputs import job, sample
from tests.helpers.targets import Target, holds_all_once, target_of
from tidestate import sinks
from tidestate.operators.describe.sinks import Refused
from tidestate.operators.sinks import compaction
from tidestate.operators.sinks.forms import Form
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError

RUN = "f" * 32
HOUR_US = 3_600_000_000
BATCHES = sample(4, 40)


def files_of(target: Target) -> int:
    """The files that a reader of the newest version opens."""
    if target.place.endswith("iceberg"):
        return len(target.catalog().load_table("flights.panes").inspect.files())  # type: ignore[attr-defined]
    return len(deltalake.DeltaTable(target.place).file_uris())


def rows(number: int) -> pa.Table:
    """Of two days and two keys."""
    days = pa.array([0, 24 * HOUR_US] * 2, pa.timestamp("us", "UTC"))
    return pa.table({"window_start": days, "k": ["a", "a", "b", "b"], "n": [number] * 4})


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_files_of_each_partition_become_one_once_in_a_span(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time that the table has of the last one: another process goes on with it."""
    target, now = target_of(f"{kind}_by_day:{tmp_path / kind}"), int(time.time() * 1e6)
    monkeypatch.setattr(compaction, "now_us", lambda: now)
    sink = target.sink(compact="1 hour")
    for number in range(1, 3):
        sink(rows(number), ts.DeliveryId(RUN, number))
    assert files_of(target) == 8
    now += HOUR_US + 60_000_000  # the table was made a moment after the clock was read
    sink(rows(3), ts.DeliveryId(RUN, 3))
    assert files_of(target) == 4, "one for each key and day"
    now += HOUR_US // 2
    sink = target.sink(compact="1 hour")
    sink(rows(4), ts.DeliveryId(RUN, 4))
    assert files_of(target) == 8, "too early, also for another process"
    sink(rows(4), ts.DeliveryId(RUN, 4))
    assert Counter(target.table()["n"].to_pylist()) == dict.fromkeys(range(1, 5), 4)
    assert sink.last(RUN) == 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_one_that_fails_is_tried_again_and_its_delivery_stands(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another writer is faster than each compaction: that commits nothing, and takes nothing away."""
    target = target_of(f"{kind}_by_day:{tmp_path / kind}")
    sink, other, late = target.sink(), target.sink(compact=None), iter(range(101, 200))
    compact = type(sink)._compact  # type: ignore[attr-defined]

    def overtaken(self: Any, time_us: int) -> None:
        if kind == "iceberg":
            from pyiceberg.table import Transaction

            commit = Transaction.commit_transaction

            def second(transaction: Any) -> Any:
                monkeypatch.setattr(Transaction, "commit_transaction", commit)
                other(rows(100), ts.DeliveryId("e" * 32, next(late)))
                return commit(transaction)

            monkeypatch.setattr(Transaction, "commit_transaction", second)
        else:
            monkeypatch.setattr(deltalake.table.TableOptimizer, "compact", _fails)
        compact(self, time_us)

    monkeypatch.setattr(type(sink), "_compact", overtaken)
    with caplog.at_level(logging.WARNING, "tidestate"):
        for number in range(1, 4):
            sink(rows(number), ts.DeliveryId(RUN, number))
    monkeypatch.undo()
    assert "was not compacted" in caplog.text
    found = Counter(target.table()["n"].to_pylist())
    others = {100: found[100]} if kind == "iceberg" else {}
    assert found == dict.fromkeys(range(1, 4), 4) | others
    assert found[100] >= 8 or kind == "delta"


@pytest.mark.slow
@pytest.mark.parametrize("is_own", [True, False], ids=["a sink", "somebody else"])
def test_two_sinks_compact_one_table(
    is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The second one begins and ends within the first: ``deltalake`` would commit both, and each row twice."""
    target = target_of(f"delta:{tmp_path / 'table'}")
    sink, second, plain = target.sink(), target.sink(), target.sink(compact=None)
    for number in range(1, 5):
        plain(rows(number), ts.DeliveryId(RUN, number))
    before = Counter(target.table()["n"].to_pylist())
    compact = deltalake.table.TableOptimizer.compact

    def overtaken(optimizer: Any, **named: Any) -> Any:
        monkeypatch.setattr(deltalake.table.TableOptimizer, "compact", compact)
        if is_own:
            second._compact(1)  # type: ignore[attr-defined]
        else:
            deltalake.DeltaTable(tmp_path / "table").optimize.compact()
        return compact(optimizer, **named)

    monkeypatch.setattr(deltalake.table.TableOptimizer, "compact", overtaken)
    if is_own:
        with pytest.raises(deltalake.exceptions.CommitFailedError, match="Metadata changed"):
            sink._compact(2)  # type: ignore[attr-defined]
    else:
        sink._compact(2)  # type: ignore[attr-defined]
        (logged,) = [record for record in caplog.records if "has rows twice" in record.message]
        table = deltalake.DeltaTable(tmp_path / "table")
        assert f"version {table.version() - 1} " in logged.message
        table.restore(table.version() - 1)
    assert Counter(target.table()["n"].to_pylist()) == before


@pytest.mark.slow
def test_two_sinks_that_compact_all_the_time(tmp_path: Path) -> None:
    """In threads, after each delivery: what one of them cannot commit is left to the next time."""
    target, deliveries = target_of(f"delta:{tmp_path / 'table'}"), 25 if LONG else 6
    target.sink(compact=None)(rows(0), ts.DeliveryId("0" * 32, 1))

    def deliver(run: str) -> None:
        sink = target.sink(compact="1 us")
        for number in range(1, deliveries + 1):
            while True:
                try:
                    sink(rows(number), ts.DeliveryId(run, number))
                except Refused:  # the other one was faster
                    continue
                break

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(deliver, ["a" * 32, "b" * 32]))
    counted = Counter(target.table()["n"].to_pylist())
    assert counted == {0: 4} | dict.fromkeys(range(1, deliveries + 1), 8)


def _fails(*_given: Any, **_named: Any) -> None:
    raise OSError("no space left")


KILLED = [("delta_by_day", "upsert"), pytest.param("iceberg_by_day", "append", marks=pytest.mark.long)]


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.parametrize(("kind", "form"), KILLED)
def test_killed_in_the_middle_of_a_compaction(kind: str, form: Form, tmp_path: Path) -> None:
    """At a moment after a delivery, when a compaction begins, runs, or has just ended; in the long form again and
    again.
    """
    chance, place, root = random.Random(f"{kind}{form}"), f"{kind}:{tmp_path / 'target'}", tmp_path / "root"
    for number in range(40 if LONG else 1):
        child = ForkedChild("tests.children.compacting", place, form, root, log=tmp_path / f"log-{number}")
        seen, until = 0, chance.randint(1, 2)

        def reached(event: dict[str, Any], until: int = until) -> bool:
            nonlocal seen
            seen += event["event"] == "delivered"
            return seen >= until or event["event"] == "done"

        child.wait_for(reached)
        time.sleep(chance.uniform(0, 0.15 if kind.startswith("delta") else 0.6))
        child.kill()
        if (root / "manifests").exists() and Checkpoint.open(root).head().manifest.drained:
            break
    job().standalone(checkpoint=root, sink=target_of(place).sink(form)).run(DELIVERED_BATCHES, drain=True)
    assert holds_all_once(target_of(place), form, root) > 20


def test_a_span_is_above_zero(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"compact= must be a span above 0.*sink-form"):
        sinks.DeltaSink(tmp_path, compact="0 seconds")
