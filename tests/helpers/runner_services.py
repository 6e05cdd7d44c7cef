"""Experiments on what a runner offers around its operators: identities, answers, sinks, clocks, rebuilding, verbs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidestate as ts
from tests.helpers.changed_jobs import added
from tests.helpers.command import tidestate
from tests.helpers.lost_messages import REBUILD, lose
from tests.helpers.operator_messages import SCHEMA, SECOND, Message, table
from tests.helpers.runner_inputs import BATCHES, MESSAGES, SIDED, SIDES, WINDOWS, by_sides, job
from tests.helpers.runners import Alone, ByHand, Given, Runner, columns, panes
from tidestate import Aggregation, agg, watermark
from tidestate.operators import WindowOperator
from tidestate.operators.inspect.query import query
from tidestate.operators.local.harness import Harness
from tidestate.operators.sinks.parquet import ParquetSink
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import IncompatibleError, TidestateError, UsageError


def messages(runner: type[Runner], tmp: Path) -> None:
    described = job(ts.tumbling("4 seconds")).allowed_lateness("1 hour").messages(identity=("part", "at"))
    running = runner(described, SCHEMA, tmp)
    found = running.run([*BATCHES[:2], BATCHES[0], table([*MESSAGES[10:], *MESSAGES[5:]])])
    assert columns(found, "window_start", "k", "n", "total") == sorted(WINDOWS["tumbling"][1], key=repr)
    assert running.totals["duplicates"] == 20


def answers(runner: type[Runner], tmp: Path) -> None:
    described = added(job(ts.tumbling("4 seconds")), values=agg.list("v"))
    described = described.allowed_lateness("1 hour").messages(identity=("part", "at"))
    running = runner(described, SCHEMA, tmp / "windows")
    for number, batch in enumerate(BATCHES):
        running.feed(batch)
        asked = query(tmp / "windows")  # while it runs
        assert asked.get_messages()["offset"].to_pylist() == list(range(5 * number + 5))
        assert sum(asked.get_windows()["n"].to_pylist()) == 5 * number + 5
    whole = query(tmp / "windows").get_windows(key="a")
    wanted = [row for row in WINDOWS["tumbling"][1] if row[1] == "a"]
    assert columns(whole.to_pylist(), "window_start", "k", "n", "total") == sorted(wanted, key=repr)
    if isinstance(running, ByHand):
        assert running.running.get_windows(key="a").equals(whole)
        assert running.running.get_messages().equals(query(tmp / "windows").get_messages())
    running.close()
    sides = ts.stream(event_time="t", offset="at").join_sessions(
        ts.stream(event_time="t", offset="at"), on="k", gap="2 seconds", allowed_lateness="1 hour", identity=True
    )
    joined = runner(sides, SIDES, tmp / "join")
    joined.feed(by_sides(MESSAGES))
    asked = query(tmp / "join")
    assert asked.get_messages(side="right")["offset"].to_pylist() == list(range(1, 20, 2))
    assert sum(asked.get_windows(side="left")["events"].to_pylist()) == 10
    joined.close()


class Taken:
    """A sink that takes rows by id, and is ready now and then."""

    def __init__(self, ready: Callable[[int], bool] = lambda _: True) -> None:
        self.rows: dict[Any, list[Any]] = {}
        self.asked, self.opens = 0, ready

    def __call__(self, rows: pa.Table, delivery_id: Any) -> bool:
        self.rows.setdefault(delivery_id, []).extend(rows.to_pylist())
        return True

    def ready(self) -> bool:
        self.asked += 1
        return self.opens(self.asked)

    @property
    def all(self) -> list[Any]:
        return [row for one in self.rows.values() for row in one]


def sinks(runner: type[Runner], tmp: Path) -> None:
    """One of one's own and one that is included."""
    sink, ledger, folder = Taken(), Taken(), tmp.with_name(f"{tmp.name}-files")
    described = job(ts.tumbling("4 seconds")).allowed_lateness("0 seconds", ledger_columns=("at",))
    running = runner(described, SCHEMA, tmp, sink=[sink, ParquetSink(folder)], late_sink=ledger)
    for batch in [*BATCHES, table([Message("x", 100, 1, "a", 1)])]:
        running.feed(batch)
    running.close()
    assert [row["at"] for row in ledger.all] == [100]
    assert columns(sink.all, "window_start", "n") == columns(panes(tmp), "window_start", "n") != []
    stored = pa.concat_tables([pq.read_table(path) for path in folder.iterdir()]).to_pylist()
    assert columns(stored, "window_start", "n") == columns(sink.all, "window_start", "n")


def back_pressure(runner: type[Runner], tmp: Path) -> None:
    """While the sink is not ready no batch is taken."""
    seen: list[int] = []

    def opens(asked: int) -> bool:
        newest = query(tmp).watermark_us if asked > 4 else None
        seen.append(newest if newest is not None else -1)
        return asked % 4 == 0

    sink = Taken(opens)
    running = runner(job(ts.tumbling("4 seconds")), SCHEMA, tmp, sink=sink)
    for batch in BATCHES:
        running.feed(batch)
    running.close()
    waits = [seen[at : at + 4] for at in range(4, len(seen) - len(seen) % 4, 4)]
    assert len(waits) >= 3
    assert all(len(set(one)) == 1 for one in waits)  # it stands still during a wait
    assert len({one[0] for one in waits}) > 1
    assert sink.all


def quiet(runner: type[Runner], tmp: Path) -> None:
    """The last window comes, once the source has been quiet, by the clock of the runner."""
    events = ts.stream(event_time="t").watermark(watermark.bounded(quiet="5 seconds"))
    counted = events.group_by("k").window(ts.tumbling("4 seconds")).aggregate(n=agg.count(), total=agg.sum("v"))
    described, clock = counted.accumulation("retracting"), [0]
    with patch("tidestate.operators.local.standalone.now_us", lambda: clock[0]):
        running: Any = runner(described, SCHEMA, tmp)
        for second in range(12):
            clock[0] = second * SECOND
            if isinstance(running, Alone):
                running.feed(BATCHES[0].slice(0, 0 if second else 5))  # its clock goes on with each batch
                continue
            move = running.running.timeout if runner is ByHand else running.running.advance_processing_time
            move(clock[0])
            if second == 0:
                running.feed(BATCHES[0])
        running.close()
    assert [row for row in columns(panes(tmp), "window_start", "total") if row[0] == 4.0] == [(4.0, 4)]


def partitions(runner: type[Runner], tmp: Path) -> None:
    found = {}
    for number in (1, 3):
        described = WINDOWS["tumbling"][0]
        found[number] = runner(described, SCHEMA, tmp / str(number), partitions=number).run(BATCHES)
        assert query(tmp / str(number)).partitions == number
    assert columns(found[3], "window_start", "k", "n", "total") == columns(
        found[1], "window_start", "k", "n", "total"
    )


def rebuilt(runner: type[Runner], tmp: Path) -> None:
    described = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour")).aggregate(values=agg.list("v"))
    described = described.messages(identity=("part", "at"))
    cases: list[tuple[Any, Any, list[Given], tuple[str, ...]]] = [
        (described, SCHEMA, list(BATCHES), ("messages",)),
        (
            ts.stream(event_time="t", offset="at").join(
                ts.stream(event_time="t", offset="at"), on="k", within=("-1 hour", "1 hour"), identity=True
            ),
            SIDES,
            list(SIDED),
            ("left", "right"),
        ),
        (
            ts.stream(event_time="t", offset="at").join_sessions(
                ts.stream(event_time="t", offset="at"), on="k", gap="1 hour", identity=True
            ),
            SIDES,
            list(SIDED),
            ("left", "right"),
        ),
    ]
    for number, (one, schema, batches, tables) in enumerate(cases):
        wanted = runner(one, schema, tmp / f"{number} whole").run(batches)
        root = tmp / f"{number} lost"
        running = runner(one, schema, root)
        for batch in batches[:3]:
            running.feed(batch)
        running.close()
        assert lose(root, tables=tables)
        with pytest.raises(TidestateError, match="file-missing"):
            runner(one, schema, root, had=batches[:3]).run(batches[3:])
        done = batches if isinstance(running, Alone) else batches[:3]
        again = runner(one, schema, root, policy=REBUILD, had=done)
        for batch in batches:
            again.rebuild(batch)
        assert again.run(batches[3:]) == wanted != []


def bootstrapped(runner: type[Runner], tmp: Path) -> None:
    described = job(ts.tumbling("4 seconds")).allowed_lateness("1 hour")
    described.standalone(checkpoint=tmp, partitions=2).bootstrap(BATCHES[:2])
    found = runner(described, SCHEMA, tmp).run(BATCHES[2:])
    assert columns(found, "window_start", "k", "n", "total") == sorted(WINDOWS["tumbling"][1], key=repr)


def retained(runner: type[Runner], tmp: Path) -> None:
    """A run that begins deletes what it does not keep, and nothing that its output needs."""
    running = runner(job(ts.tumbling("4 seconds")), SCHEMA, tmp)
    for batch in BATCHES[:-1]:
        running.feed(batch)
    running.close()
    had = Checkpoint.open(tmp).stored_ids()
    few = CheckpointRetention(newest=1, grace="0 seconds")
    found = runner(job(ts.tumbling("4 seconds")), SCHEMA, tmp, had=BATCHES[:-1], retain=few).run(BATCHES[-1:])
    assert min(Checkpoint.open(tmp).stored_ids()) >= had[-1] > had[0]
    assert columns(found, "window_start", "k", "n", "total") == sorted(WINDOWS["tumbling"][1], key=repr)


REPLAY = ts.Policy(messages="replay")


def _of_lists() -> Aggregation:
    lists = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 hour")).aggregate(values=agg.list("v"))
    return lists.messages(identity=("part", "at"))


def read_again(runner: type[Runner], tmp: Path) -> None:
    wanted = runner(_of_lists(), SCHEMA, tmp / "whole").run(BATCHES)
    running = runner(_of_lists(), SCHEMA, tmp / "lost")
    for batch in BATCHES[:3]:
        running.feed(batch)
    running.close()
    assert lose(tmp / "lost")
    again = runner(_of_lists(), SCHEMA, tmp / "lost", policy=REPLAY, had=BATCHES[:3])
    assert again.run(BATCHES[3:]) == wanted


def not_read_again(runner: type[Runner], tmp: Path) -> None:
    """Who gives the rows has the source."""
    running = runner(_of_lists(), SCHEMA, tmp)
    running.feed(BATCHES[0])
    running.close()
    with pytest.raises(UsageError) as caught:
        runner(_of_lists(), SCHEMA, tmp, policy=REPLAY)
    assert caught.value.code == "replay-source"


def not_retained(_runner: type[Runner], tmp: Path) -> None:
    """A test has no time in which its root grows."""
    with pytest.raises(TypeError, match="retain"):
        job(ts.tumbling("4 seconds")).harness(SCHEMA, folder=tmp, retain=CheckpointRetention(newest=1))  # type: ignore[call-arg]


def not_bootstrapped(runner: type[Runner], tmp: Path) -> None:
    described = job(ts.tumbling("4 seconds")).messages(identity=("part", "at"))
    described.standalone(checkpoint=tmp, partitions=2).bootstrap(BATCHES[:2])
    with pytest.raises(IncompatibleError) as caught:
        runner(described, SCHEMA, tmp)
    assert caught.value.code == "other-runner"
    assert not hasattr(Harness, "bootstrap")
    assert not hasattr(WindowOperator, "bootstrap")


class Log:
    """A source that can seek: positions count batches."""

    schema = SCHEMA

    def __init__(self) -> None:
        self.sought: list[Any] = []

    def seek(self, position: Any) -> Iterator[tuple[int, pa.Table]]:
        self.sought.append(position)
        for number in range(position or 0, len(BATCHES)):
            yield number + 1, BATCHES[number]


def restarted(runner: type[Runner], tmp: Path) -> None:
    described = job(ts.tumbling("4 seconds")).allowed_lateness("1 hour")
    if runner is Alone:
        log = Log()
        first = described.standalone(checkpoint=tmp, partitions=2).stream(log)
        next(iter(first))
        first.close()  # type: ignore[attr-defined]
        again = described.standalone(checkpoint=tmp)
        assert again.position() == 1
        again.run(log, drain=True)
        assert log.sought == [None, 1]
    else:
        running: Any = runner(described.messages(identity=("part", "at")), SCHEMA, tmp)
        running.feed(BATCHES[0])
        (since,) = running.running.replay_from().to_pylist()
        assert (since["start_offset"], since["last_offset"]) == (0, 4)
        running.close()
        again: Any = runner(described.messages(identity=("part", "at")), SCHEMA, tmp)
        again.run([table([m for m in MESSAGES if m.at > since["last_offset"]])])
    assert columns(panes(tmp), "window_start", "k", "n", "total") == sorted(WINDOWS["tumbling"][1], key=repr)


def no_position(_runner: type[Runner], _tmp: Path) -> None:
    """A harness is fed by the test, which knows what it gave."""
    assert not hasattr(Harness, "position")
    assert not hasattr(Harness, "replay_from")


VERBS = {
    "list": [],
    "show": [],
    "watch": [],
    "serve": ["--port", "0", "--for", "0 seconds"],
    "state": [],
    "windows": [],
    "messages": [],
    "panes": [],
    "late": [],
    "diff": ["2", "3"],
    "verify": ["--read-data"],
    "check": ["--max-rejected", "1%", "--max-undelivered", "9"],
    "report": ["--output", "{}/report.html"],
    "history": ["--key", "k=a", "--window", "1970-01-01T00:00:04"],
    "restore": [],
    "pin": ["3", "--name", "kept"],
    "fork": ["{}/fork"],
    "rewind": ["--to", "3", "--confirm"],
    "plan": ["tests.helpers.runner_services:listed"],
    "reprocess": ["tests.helpers.runner_services:listed"],
    "withdraw": ["tests.helpers.targets:nowhere", "--confirm"],
    "window": ["delete", "--start", "1970-01-01", "--key", "k=a", "--confirm"],
    "rescale": ["--partitions", "3", "--confirm"],
    "repair": ["--to", "newest-good", "--confirm"],
    "gc": ["--newest", "1", "--grace", "0 seconds", "--confirm"],
    "unpin": ["kept"],
}
"""Arguments after the root, in an order in which each can run."""
MAKE_ROOTS = {"bootstrap", "adopt", "chaos"}
"""Verbs that make a root: a bootstrap has a row of its own, an adoption begins with a query of Spark's, chaos with a
job and its input.
"""
TRY_STORAGE = {"doctor"}
"""Verbs for a place that need not be a root: tests/recovery/cli/test_doctor.py."""
ASK_RUNS = {"stop"}
"""Verbs that need a run: `tests.recovery.control.test_verbs`."""


def listed() -> Aggregation:
    """The job whose root all verbs are run on."""
    described = added(job(ts.tumbling("4 seconds")), values=agg.list("v"))
    return described.allowed_lateness("1 hour").messages(identity=("part", "at"))


def lines_of(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def command(*given: object) -> str:
    """What the command prints, in this process; it ends well and warns of nothing."""
    from tidestate.recovery.cli.main import main

    printed, warned = io.StringIO(), io.StringIO()
    with (
        patch("sys.argv", ["tidestate", *map(str, given)]),
        redirect_stdout(printed),
        redirect_stderr(warned),
        suppress(SystemExit),
    ):
        main()
    assert not warned.getvalue(), (given, warned.getvalue())
    return printed.getvalue()


def verbs(runner: type[Runner], tmp: Path) -> None:
    root = tmp / "root"
    described = listed()
    running = runner(described, SCHEMA, root)
    for batch in BATCHES[:3]:
        running.feed(batch)
    running.close()
    for verb, given in VERBS.items():
        if verb == "windows":
            observed = lines_of(tidestate(verb, root, "--json").stdout)
            assert sum(row["n"] for row in observed) == 15
        elif verb == "messages":
            assert len(lines_of(tidestate(verb, root, "--json").stdout)) == 15
        else:
            command(verb, root, *(one.format(tmp) for one in given))
    for place, rest in ((root, BATCHES[2:]), (tmp / "fork", BATCHES[3:])):
        taken = BATCHES[:2] if place == root else BATCHES[:3]
        again = runner(described, SCHEMA, place, partitions=None, had=taken)
        again.run(rest)
        if place == root:
            found = columns(panes(root), "window_start", "k", "n", "total")
            assert found == sorted(WINDOWS["tumbling"][1], key=repr)
