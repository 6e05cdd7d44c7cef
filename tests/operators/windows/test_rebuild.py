"""Message files are lost: the job serves at once, and a replay makes it what it would have been."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.children.rebuild import BATCHES, JOB, LOST_AFTER
from tests.children.rebuild import main as finish
from tests.helpers.command import tidestate
from tests.helpers.forked import forked
from tests.helpers.internals import operator_of
from tests.helpers.lost_messages import REBUILD, lose, noted
from tests.helpers.operator_messages import SCHEMA, WINDOWS, Message, description, plain, store_config, stream, table
from tests.helpers.process import LONG, few, in_turn
from tidestate import Aggregation, agg, trigger
from tidestate.operators.engine.delivery import read_rows
from tidestate.operators.inspect.query import query
from tidestate.operators.local.harness import Harness
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Rebuilding
from tidestate.recovery.moves.rescale import rescale
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import CorruptionError, FencedError, UsageError
from tidestate.statestore.messages.tables import Retention
from tidestate.statestore.spec.store import StoreName

KINDS = [name for name in WINDOWS if name != "counted"]


def job(name: str, allowed: int = 20, key: str | None = "k") -> Aggregation:
    return description(WINDOWS[name], "retracting", key, allowed).messages(identity=("part", "at"))


def rebuilding(harness: Harness) -> Rebuilding | None:
    operator = operator_of(harness)
    return operator.rebuilding


def net(panes: list[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """What is left of panes: start, end, key and values."""
    left: Counter[tuple[Any, ...]] = Counter()
    for *values, _pane, _timing, kind, _last in panes:
        left[tuple(values)] += 1 if kind == "emit" else -1
    assert min(left.values(), default=0) >= 0
    return +left


def state(harness: Harness, name: str) -> list[Any]:
    return sorted(plain(harness.state(name)), key=repr)


@settings(
    max_examples=12,
    phases=settings.default.phases if LONG else [Phase.explicit],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 9999),
    name=st.sampled_from(KINDS),
    store=st.sampled_from(("memory", "parquet")),
    partitions=st.integers(1, 2),
)
@example(seed=1617, name="gaps", store="memory", partitions=1)
def test_after_a_replay_nothing_is_lost(
    tmp_path_factory: pytest.TempPathFactory, seed: int, name: str, store: StoreName, partitions: int
) -> None:
    chance, folder = random.Random(seed), tmp_path_factory.mktemp("lost")
    batches = stream(seed, batches=8, size=7)
    at, replayed = sorted(chance.choices(range(1, len(batches)), k=2))
    # What expires before the replay cannot be corrected, and identities expire before a long session.
    short = at == replayed and name != "session"
    described = job(name, 20 if short else 200, chance.choice(["k", "k", None]))
    config = store_config(store, folder / "cache")
    whole = described.harness(SCHEMA, partitions=partitions, store=config)
    made = described.harness(SCHEMA, partitions=partitions, store=config, folder=folder)
    wanted: list[Any] = []
    panes: list[Any] = []
    rescaled = random.Random(seed + 1).random() < 0.4
    for number, batch in enumerate(batches):
        if number == at and lose(folder, chance):
            made.restart(REBUILD)
        if number == at and rescaled:
            rescale(folder, 5 - 2 * partitions, force=True)
            made.restart()
        if number == replayed:
            replay = [message for one in batches[:number] for message in one]
            chance.shuffle(replay)
            half = chance.randrange(len(replay))
            for part in (replay[:half], replay[half:], replay[half:]):
                panes += plain(made.rebuild(table(part)))
            assert rebuilding(made) is None
            for each in ("messages", "messages_seen", "metadata"):
                # Identities name no key: after a rescale several state partitions have the same ones.
                assert rescaled or state(made, each) == state(whole, each)
        wanted += plain(whole.feed(table(batch)))
        panes += plain(made.feed(table(batch)))
    wanted += plain(whole.finish())
    panes += plain(made.finish())
    assert net(panes) == net(wanted)


FORMS: dict[str, tuple[str, dict[str, Any], Retention | None]] = {
    "accumulating": ("accumulating", {}, None),
    "each element": ("retracting", {"early": trigger.each_batch()}, None),
    "late by three": ("retracting", {"late": trigger.after_count(3)}, None),
    "closing": ("retracting", {"on_time": "never", "closing": "always"}, None),
    "updated": ("retracting", {"only_updated": True}, None),
    "composite": (
        "retracting",
        {"when": trigger.repeatedly(trigger.any_of(trigger.after_count(2), trigger.after_watermark()))},
        None,
    ),
    "few": ("retracting", {}, ts.Retention(messages=20)),
    "recent": ("accumulating", {}, ts.Retention(span="30 seconds")),
    "discarding": ("discarding", {}, ts.Retention(messages=20)),
}


@pytest.mark.parametrize(("name", "form"), few(in_turn(["tumbling", "session"], FORMS), 8))
def test_each_mode_and_trigger_ends_with_the_same_results(tmp_path: Path, name: str, form: str) -> None:
    mode, triggers, retention = FORMS[form]
    described = description(WINDOWS[name], mode, allowed=40)
    if retention is not None:  # and no lateness: then it is a horizon
        described = ts.stream(event_time="t", watermark_delay="2 seconds").group_by("k").window(WINDOWS[name])
        described = described.aggregate(n=agg.count(), total=agg.sum("v"), each=agg.sorted_list("v")).accumulation(
            mode
        )
    described = described.messages(identity=("part", "at"), retain=retention).trigger(**triggers)
    batches, results = stream(len(form), batches=4, size=6), []
    for lost in (False, True):
        store = store_config("parquet" if lost else "memory", tmp_path)
        made = described.harness(SCHEMA, folder=tmp_path / str(lost), store=store)
        panes: list[Any] = []
        for number, batch in enumerate(batches):
            if lost and number == 2:
                assert lose(tmp_path / "True")
                made.restart(REBUILD)
            panes += plain(made.feed(table(batch)))
            if lost and number == 2:
                panes += plain(made.rebuild(table([message for one in batches[:3] for message in one])))
                assert rebuilding(made) is None
        panes += plain(made.finish())
        panes = [(*map(str, pane[:-4]), *pane[-4:]) for pane in panes]  # lists as texts
        last = {pane[:3]: pane for pane in panes} if mode == "accumulating" else dict(enumerate(panes))
        results.append(net(list(last.values())))
    assert results[0] == results[1]


ORDERS = [Message("x", at, 10 + at, "a", 2**at) for at in range(1, 6)]
"""In the window from 12 to 18, but for the first; the median of the others is 6, 12."""


def served(folder: Path) -> Harness:
    """A job whose window has been emitted, whose messages were lost, and which goes on."""
    made = job("tumbling").harness(SCHEMA, folder=folder, store=store_config("parquet", folder))
    made.feed(table(ORDERS[:4]))
    made.feed(table([Message("x", 90, 30, "b", 0)]))
    assert lose(folder)
    made.restart(REBUILD)
    return made


def values(panes: pa.Table) -> list[tuple[Any, ...]]:
    return [(row["kind"], row["timing"], row["n"], row["middle"]) for row in panes.to_pylist()]


def test_a_window_is_served_at_once_and_corrected_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = served(tmp_path)
    assert noted(rebuilding(made)) == (4, None)
    assert "lost messages" in caplog.text
    assert values(made.feed(table(ORDERS[4:]))) == [("retract", "late", 3, 8.0), ("emit", "late", 4, 32.0)]
    assert made.counters()["incomplete_panes"] == 1
    asked = query(tmp_path)
    assert asked.replay_from().to_pylist() == [{"origin": "x", "start_offset": 1, "last_offset": 90}]
    assert asked.incomplete_windows()["count"].to_pylist() == [1, 4, 1]
    assert not made.rebuild(table(ORDERS[:3])).num_rows, "not all are back"
    assert noted(rebuilding(made)) == (4, 2)
    assert "2 windows lack messages" in caplog.text
    assert "checkpoint 4; 2 windows or rows are incomplete" in tidestate("show", tmp_path).stdout
    assert query(tmp_path).incomplete_windows()["count"].to_pylist() == [4, 1]
    assert values(made.rebuild(table(ORDERS))) == [("retract", "late", 4, 32.0), ("emit", "late", 4, 12.0)]
    assert not made.rebuild(table([*ORDERS, Message("x", 90, 30, "b", 0), Message("x", 91, 30, "b", 0)])).num_rows
    assert rebuilding(made) is None
    assert made.counters()["put_back"] == 5
    assert made.counters()["accepted"] == 6, "what the job never had is not taken from a replay"
    assert made.state("messages").num_rows == 6
    made.feed(table([Message("x", 91, 30, "b", 2)]))
    assert values(made.finish()) == [("emit", "on_time", 2, 1.0)]
    assert made.counters()["incomplete_panes"] == 1


def test_messages_are_lost_again_before_all_are_back(tmp_path: Path) -> None:
    made = served(tmp_path)
    made.feed(table(ORDERS[4:]))
    made.rebuild(table(ORDERS[:3]))
    assert lose(tmp_path)
    made.restart(REBUILD)
    made.rebuild(table(ORDERS[3:]))
    assert values(made.rebuild(table(ORDERS))) == [("retract", "late", 4, 32.0), ("emit", "late", 4, 12.0)]
    made.rebuild(table([Message("x", 90, 30, "b", 0)]))
    assert rebuilding(made) is None


def test_lost_messages_stop_a_job_and_the_error_names_the_way(tmp_path: Path) -> None:
    made = job("tumbling").harness(SCHEMA, folder=tmp_path, store=store_config("memory", tmp_path))
    made.feed(table(ORDERS))
    lose(tmp_path)
    made.restart()
    with pytest.raises(CorruptionError, match=r'messages="rebuild".*file-missing'):
        made.feed(table([Message("x", 90, 30, "b", 0)]))
    made.restart(REBUILD)
    made.feed(table([Message("x", 90, 30, "b", 0)]))


def test_an_older_run_is_fenced(tmp_path: Path) -> None:
    older = job("tumbling").harness(SCHEMA, folder=tmp_path, store=store_config("parquet", tmp_path))
    older.feed(table(ORDERS[:4]))
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*.messages.*")}
    lose(tmp_path)
    made = job("tumbling").harness(SCHEMA, folder=tmp_path, store=store_config("parquet", tmp_path))
    made.restart(REBUILD)
    for path, data in kept.items():
        path.write_bytes(data)
    with pytest.raises(FencedError):
        older.feed(table(ORDERS[4:]))
    with pytest.raises(FencedError):
        older.rebuild(table(ORDERS))
    made.rebuild(table(ORDERS))
    assert made.state("messages").num_rows == 4


def test_what_was_rejected_is_not_put_back_unless_it_was_reprocessed(tmp_path: Path) -> None:
    described = (
        description(WINDOWS["tumbling"], allowed=2).retain_windows("90 seconds").messages(identity=("part", "at"))
    )
    made = described.harness(SCHEMA, folder=tmp_path, store=store_config("parquet", tmp_path))
    late = [Message("x", 7, 1, "a", 7), Message("x", 8, 2, "a", 8)]
    made.feed(table([*ORDERS, Message("x", 90, 40, "b", 0)]))
    made.feed(table([*late, late[0]]))
    assert made.counters()["duplicates"] == 1
    made.reprocess_late(table(late[1:]))
    lose(tmp_path)
    made.restart(REBUILD)
    made.rebuild(table([*ORDERS, *late, Message("x", 90, 40, "b", 0)]))
    assert rebuilding(made) is None
    assert sorted(made.state("messages")["offset"].to_pylist()) == [1, 2, 3, 4, 5, 8, 90]
    made.feed(table(late))
    assert made.counters()["duplicates"] == 3


def test_the_first_of_two_deliveries_comes_back(tmp_path: Path) -> None:
    made = job("tumbling").harness(SCHEMA, folder=tmp_path, store=store_config("parquet", tmp_path))
    first, again = Message("x", 1, 10, "a", 1), Message("x", 1, 11, "a", 2)
    made.feed(table([first]))
    made.feed(table([again]))
    lose(tmp_path)
    made.restart(REBUILD)
    made.rebuild(table([again, first]))
    assert made.state("messages")["v"].to_pylist() == [1]


def test_a_message_whose_identity_has_expired_before_its_session_is_missed(tmp_path: Path) -> None:
    made = job("session").harness(SCHEMA, folder=tmp_path, store=store_config("parquet", tmp_path))
    made.feed(table([Message("x", at, 2 * at, "a", at) for at in range(30)]))
    lose(tmp_path)
    made.restart(REBUILD)
    made.rebuild(table([Message("x", at, 2 * at, "a", at) for at in range(30)]))
    assert noted(rebuilding(made)) == (3, 1)
    assert query(tmp_path).incomplete_windows()["count"].to_pylist() == [30]
    assert made.feed(table([Message("y", 1, 90, "b", 0)])).num_rows == 1
    assert made.counters()["incomplete_panes"] == 1


def test_another_delivery_with_another_key_is_no_message_that_was_lost(tmp_path: Path) -> None:
    """Nothing was lost where no window lacks a message, and the window of the other key has all of its own."""
    made = job("tumbling").harness(SCHEMA, folder=tmp_path, store=store_config("parquet", tmp_path))
    again = Message("x", 2, 12, "b", 9)
    made.feed(table([*ORDERS, again, Message("x", 7, 13, "b", 1)]))
    for lost in (False, True):
        if lost:
            assert lose(tmp_path)
            made.restart(REBUILD)
        made.rebuild(table([*ORDERS, again, Message("x", 7, 13, "b", 1)]))
        assert rebuilding(made) is None
        assert sorted(made.state("messages")["offset"].to_pylist()) == [1, 2, 3, 4, 5, 7]


def test_a_window_that_a_trigger_has_finished_is_not_corrected(tmp_path: Path) -> None:
    """What it has refused is not put back. Its lists are in the state, so messages are stored by a retention."""
    described = description(WINDOWS["tumbling"], "retracting", allowed=90)
    described = described.messages(identity=("part", "at"), retain=ts.Retention(span=f"{10**12} microseconds"))
    described = described.trigger(when=trigger.after_count(2))
    made = described.harness(SCHEMA, folder=tmp_path, store=store_config("parquet", tmp_path))
    for order in ORDERS[1:]:
        made.feed(table([order]))
    assert made.ledger().num_rows == 2
    assert lose(tmp_path)
    made.restart(REBUILD)
    assert not made.rebuild(table(ORDERS)).num_rows
    assert rebuilding(made) is None


def test_messages_of_windows_of_processing_time(tmp_path: Path) -> None:
    described = (
        ts.stream(processing_time=True)
        .group_by("k")
        .window(ts.tumbling("10 seconds"))
        .aggregate(each=agg.sorted_list("v"))
    )
    described = described.messages(identity=("part", "at"))
    made = described.harness(SCHEMA, folder=tmp_path, store=store_config("parquet", tmp_path))
    made.advance_processing_time(3_000_000)
    refused = Message("x", 9, 12, None, 7)
    made.feed(table([*ORDERS[:3], refused]))
    lose(tmp_path)
    made.restart(REBUILD)
    made.advance_processing_time(7_000_000)
    made.feed(table(ORDERS[3:]))
    made.rebuild(table([*ORDERS, refused]))
    assert rebuilding(made) is None
    assert made.finish()["each"].to_pylist() == [[2, 4, 8, 16, 32]]


def test_what_cannot_be_rebuilt_is_refused(tmp_path: Path) -> None:
    bare = ts.stream(event_time="t").group_by("k").window(ts.tumbling("6 seconds")).aggregate(total=agg.sum("v"))
    living = (
        ts.stream(event_time="t", lifetime=ts.lifetime("until"))
        .group_by("k")
        .window(ts.tumbling("6 seconds", of="lifetime"))
        .aggregate(total=agg.sum("v"))
    )
    living = living.messages(identity=("part", "at"), retain=ts.Retention(messages=9))
    later = pc.add(table(ORDERS)["t"], pa.scalar(9, pa.duration("s")))
    made = living.harness(SCHEMA.append(pa.field("until", SCHEMA.field("t").type)))
    made.feed(table(ORDERS).append_column("until", later))
    with pytest.raises(UsageError, match="no-messages"):
        made.rebuild(table(ORDERS).append_column("until", later))
    apart = description(WINDOWS["sliding"]).allowed_lateness("0 seconds", rule="window").retain_windows("90 seconds")
    apart = apart.messages(identity=("part", "at"))
    for described in (job("counted"), apart, bare, bare.messages(identity=("part", "at"))):
        made = described.harness(SCHEMA, folder=tmp_path / str(id(described)))
        made.feed(table(ORDERS))
        with pytest.raises(UsageError, match="no-messages"):
            made.rebuild(table(ORDERS))
    made = job("counted").harness(SCHEMA, folder=tmp_path / "counted", store=store_config("parquet", tmp_path))
    made.feed(table(ORDERS))
    lose(tmp_path / "counted")
    made.restart(REBUILD)
    with pytest.raises(CorruptionError, match="file-missing") as caught:
        made.finish()
    assert "rebuild" not in caught.value.message
    with pytest.raises(UsageError, match=r"cannot be combined.*\[policy\]"):
        Policy(messages="rebuild", damaged="reset")


def test_corrections_reach_the_operators_that_follow(tmp_path: Path) -> None:
    """They have no part in the replay itself."""
    grouped = ts.stream(event_time="t").group_by("k").window(ts.tumbling("6 seconds"))
    first = grouped.aggregate(n=agg.count(), most=agg.quantile("v", 1.0)).allowed_lateness("90 seconds")
    first = first.accumulation("retracting").messages(identity=("part", "at")).named("first")
    both = (
        first.group_by()
        .window(ts.tumbling("6 seconds"))
        .aggregate(n=agg.sum("n"), most=agg.sum("most"))
        .allowed_lateness("90 seconds")
        .accumulation("retracting")
        .named("last")
    )
    made = both.harness(SCHEMA, folder=tmp_path, store=store_config("parquet", tmp_path))
    made.feed(table([*ORDERS[:4], Message("x", 90, 30, "b", 0)]))
    lose(tmp_path)
    made.restart(REBUILD)
    panes = made.feed(table([Message("x", 6, 12, "a", 1)])).to_pylist()
    assert [(row["kind"], row["n"], row["most"]) for row in panes] == [("retract", 3, 16.0), ("emit", 4, 1.0)]
    panes = made.rebuild(table(ORDERS)).to_pylist()
    assert [(row["kind"], row["n"], row["most"]) for row in panes] == [("retract", 4, 1.0), ("emit", 4, 16.0)]


@pytest.mark.kill
def test_a_replay_that_is_killed_at_its_manifest_is_given_again(tmp_path: Path) -> None:
    whole = JOB.standalone(checkpoint=tmp_path / "whole", partitions=2).run(BATCHES, drain=True)
    root = tmp_path / "root"
    JOB.standalone(checkpoint=root, partitions=2, store=store_config("parquet", tmp_path)).run(BATCHES[:LOST_AFTER])
    lose(root)
    # After the fence come a batch that is served, and a replay in two pieces: it dies in the second.
    death = f"before-manifest:{Checkpoint.open(root).present_ids()[-1] + 4}"
    assert forked("tests.children.rebuild", root, death) == -signal.SIGKILL
    finish(str(root))
    found = Checkpoint.open(root)
    panes = [read_rows(found, output.panes, whole.schema) for output in found.outputs()]
    assert net(plain(pa.concat_tables(panes))) == net(plain(whole))
