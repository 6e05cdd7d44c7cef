"""A run whose message files were lost reads its input again by itself, and is what it would have been."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.cti_rows import SETTINGS
from tests.helpers.join_jobs import SCHEMA as SIDE_SCHEMA
from tests.helpers.join_jobs import described
from tests.helpers.join_jobs import table as side_table
from tests.helpers.lost_joins import TABLES, drawn
from tests.helpers.lost_joins import stream as rows_of_sides
from tests.helpers.lost_messages import lose, noted
from tests.helpers.operator_messages import SCHEMA, SECOND, WINDOWS, description, plain, store_config, stream, table
from tests.helpers.process import LONG
from tests.helpers.runs_again import REPLAYING
from tests.twins.join import SIDES, Asked, Row
from tidestate import Aggregation, agg
from tidestate.operators.inspect.query import query
from tidestate.operators.local import replay as module
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.pins import pin
from tidestate.recovery.moves.rescale import rescale
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy
from tidestate.statestore.errors import UsageError

KINDS = [name for name in WINDOWS if name != "counted"]


class Log:
    """Batches behind positions of their own; ``read``: which were. Those before ``kept`` are gone."""

    def __init__(self, batches: list[Any], schema: Any = SCHEMA, kept: int = 0) -> None:
        self.batches, self.schema, self.kept = batches, schema, kept
        self.read: list[int] = []

    def seek(self, position: Any) -> Iterator[tuple[Any, Any]]:
        first = 0 if position is None else position["next"]
        if first < self.kept:
            raise OSError(f"batch {first} is gone")
        for number in range(first, len(self.batches)):
            self.read.append(number)
            yield {"next": number + 1}, self.batches[number]


def head_of(root: Path) -> Manifest:
    newest = Checkpoint.open(root).newest()
    assert newest is not None
    return newest.manifest


def messages_of(root: Path) -> list[Any]:
    return sorted(plain(query(root).state("messages")), key=repr)


def disturbed(
    job: Any, batches: list[Any], root: Path, chance: random.Random, schema: Any, names: tuple[str, ...], store: Any
) -> list[tuple[Any, ...]]:
    """The panes of a job that loses files at random, between runs of random length of both kinds of input."""
    panes: list[tuple[Any, ...]] = []
    done, seeks = 0, chance.random() < 0.5
    while done < len(batches):
        done = min(len(batches), done + chance.randint(1, 3))
        runner = job.standalone(checkpoint=root, policy=REPLAYING, store=store, partitions=2)
        given = batches[:done]
        panes += plain(runner.run(Log(given, schema) if seeks else iter(given)))
        assert all(one.rebuilding is None for one in head_of(root).operators.values())
        if chance.random() < 0.3:
            folder = Checkpoint.open(root)
            pin(folder, chance.choice(folder.present_ids()))
        if chance.random() < 0.3:
            collect(Checkpoint.open(root), CheckpointRetention(newest=2, grace="0 seconds"))
        lose(root, chance, names)
        # A join may count rows twice after a rescale.
        if chance.random() < 0.2 and names != TABLES:
            rescale(root, head_of(root).partitions + 1)
    runner = job.standalone(checkpoint=root, policy=REPLAYING, store=store)
    panes += plain(runner.run(Log(batches, schema) if seeks else batches))
    return panes


@settings(max_examples=40 if LONG else 1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 9999), name=st.sampled_from(KINDS), store=st.sampled_from(("memory", "parquet")))
@example(seed=2, name="sliding", store="memory")
def test_windows_are_those_of_a_job_that_lost_nothing(
    tmp_path_factory: pytest.TempPathFactory, seed: int, name: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, folder = random.Random(seed), tmp_path_factory.mktemp("replay")
    # Identities expire before a long session.
    job = description(WINDOWS[name], "retracting", "k", 200 if name == "session" else 20)
    job = job.messages(identity=("part", "at"))
    batches = [table(batch) for batch in stream(seed, batches=8 if LONG else 5, size=7)]
    wanted = plain(job.standalone(checkpoint=folder / "whole", partitions=2).run(batches))
    monkeypatch.setattr(module, "PIECE_BYTES", chance.choice([1, 1000, 10**9]))
    config = store_config(store, folder / "cache")
    found = disturbed(job, batches, folder / "made", chance, SCHEMA, ("messages",), config)
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert messages_of(folder / "made") == messages_of(folder / "whole")


@settings(max_examples=40 if LONG else 3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_joins_are_those_of_a_job_that_lost_nothing(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance, folder = random.Random(seed), tmp_path_factory.mktemp("replay")
    asked = drawn(chance)
    asked = Asked(**{**vars(asked), "how": chance.choice(["inner", "left", "full"]), "in_order": False})
    job = described(asked)
    batches = [
        {side: side_table([one for one in batch if one.side == side]) for side in SIDES}
        for batch in rows_of_sides(chance)
    ]
    wanted = plain(job.standalone(checkpoint=folder / "whole", partitions=2).run(batches))
    schema = {"left": SIDE_SCHEMA, "right": SIDE_SCHEMA}
    found = disturbed(job, batches, folder / "made", chance, schema, TABLES, store_config("memory", folder))
    assert sorted(found, key=repr) == sorted(wanted, key=repr), asked


@settings(max_examples=40 if LONG else 2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 9999))
def test_several_outputs_are_those_of_a_job_that_lost_nothing(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance, folder = random.Random(seed), tmp_path_factory.mktemp("replay")
    events = ts.stream(event_time="t", watermark_delay="2 seconds")
    grouped = {"by_key": events.group_by("k"), "of_all": events.group_by()}
    jobs = [
        rows.window(WINDOWS[window]).aggregate(n=agg.count(), total=agg.sum("v"), all=agg.list("v")).named(name)
        for (name, rows), window in zip(grouped.items(), ("sliding", "tumbling"), strict=True)
    ]
    jobs = [one.allowed_lateness("20 seconds").messages(identity=("part", "at")) for one in jobs]
    job = ts.job(*(one.accumulation("retracting") for one in jobs))
    batches = [table(batch) for batch in stream(seed, batches=8 if LONG else 5, size=7)]
    wanted = plain(job.standalone(checkpoint=folder / "whole", partitions=2).run(batches))
    config = store_config(chance.choice(["memory", "parquet"]), folder / "cache")
    found = disturbed(job, batches, folder / "made", chance, SCHEMA, ("messages",), config)
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    for name in grouped:
        stored = [query(folder / root, operator=name).state("messages") for root in ("made", "whole")]
        assert sorted(plain(stored[0]), key=repr) == sorted(plain(stored[1]), key=repr)


BATCHES = [table(batch) for batch in stream(5, batches=8, size=7)]


def windows(name: str = "tumbling") -> Aggregation:
    return description(WINDOWS[name], "retracting", allowed=6).messages(identity=("part", "at"))


def collect_one(root: Path) -> None:
    """Collect the checkpoint before the newest one, so that the clock of its batch is not known any more."""
    folder = Checkpoint.open(root)
    for number in folder.present_ids()[:-2]:
        pin(folder, number)
    collect(folder, CheckpointRetention(newest=1, grace="0 seconds"))


def test_the_newest_position_before_what_is_missing_is_read_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidestate")
    windows().standalone(checkpoint=tmp_path).run(Log(BATCHES[:7]))
    collect_one(tmp_path)
    assert lose(tmp_path)
    source = Log(BATCHES)
    windows().standalone(checkpoint=tmp_path, policy=REPLAYING).run(source)
    assert "batches cannot be run again: manifests of its batches were collected" in caplog.text
    first = source.read[0]
    assert first > 0
    assert source.read == [*range(first, 7), 7]
    assert f"replay: the input is read again from batch {first}" in caplog.text
    assert "all messages are back" in caplog.text
    # Nothing is read in vain: the first batch has a message that was missing.
    there = {(row["origin"], row["offset"]) for row in query(tmp_path, checkpoint=10).state("messages").to_pylist()}
    assert there & {(row["part"], row["at"]) for row in BATCHES[first].to_pylist()}


def test_checkpoints_that_are_pinned_have_positions_and_without_any_it_is_the_beginning(tmp_path: Path) -> None:
    for name, kept in (("none", False), ("pinned", True)):
        root = tmp_path / name
        windows().standalone(checkpoint=root).run(Log(BATCHES[:7]))
        folder = Checkpoint.open(root)
        if kept:
            pin(folder, 3)  # after the fence and two batches
        collect(folder, CheckpointRetention(newest=1, grace="0 seconds"))
        lose(root)
        source = Log(BATCHES)
        windows().standalone(checkpoint=root, policy=REPLAYING).run(source)
        assert source.read[0] == (2 if kept else 0)
        assert head_of(root).operators["windows"].rebuilding is None


def test_a_source_that_has_nothing_that_old_is_reported_and_the_job_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    windows().standalone(checkpoint=tmp_path).run(Log(BATCHES[:7]))
    lose(tmp_path)
    job = windows().standalone(checkpoint=tmp_path, policy=REPLAYING)
    job.run(Log(BATCHES, kept=7))
    assert "the source could not be read again from position" in caplog.text
    assert "batch" in caplog.text
    assert job.position() == {"next": 8}
    rebuilding = head_of(tmp_path).operators["windows"].rebuilding
    assert rebuilding is not None
    assert rebuilding.lacking
    job.rebuild(BATCHES)
    assert head_of(tmp_path).operators["windows"].rebuilding is None


def test_what_a_replay_by_the_job_lacks_the_next_start_looks_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    windows().standalone(checkpoint=tmp_path).run(Log(BATCHES[:7]))
    lose(tmp_path)
    windows().standalone(checkpoint=tmp_path, policy=REPLAYING).run(Log(BATCHES[:7], kept=7))
    assert "the next start with this policy looks for them again" in caplog.text
    source = Log(BATCHES)
    windows().standalone(checkpoint=tmp_path, policy=REPLAYING).run(source, drain=True)
    whole = windows().standalone(checkpoint=tmp_path / "whole").run(BATCHES, drain=True)
    assert head_of(tmp_path).operators["windows"].rebuilding is None
    assert whole.num_rows
    again = Log(BATCHES)
    windows().standalone(checkpoint=tmp_path, policy=REPLAYING).run(again)
    assert again.read == [], "a drained checkpoint lacks nothing"


def table_of(*rows: tuple[int, int]) -> pa.Table:
    """Messages of one origin and key: at which second, and their value, which is their offset, too."""
    values = [value for _, value in rows]
    times = pa.array([second * SECOND for second, _ in rows]).cast(SCHEMA.field("t").type)
    return pa.table({"part": ["x"] * len(rows), "at": values, "t": times, "k": ["a"] * len(rows), "v": values}).cast(
        SCHEMA
    )


def lists(window: Any, **setting: Any) -> Aggregation:
    """What windows of one origin have, which is known by its offsets."""
    counted = ts.stream(event_time="t").group_by("k").window(window).aggregate(n=agg.count(), l=agg.list("v"))
    return counted.allowed_lateness("0 seconds").trigger(**setting).messages(identity=("part", "at"))


@pytest.mark.parametrize(
    "job",
    [
        # Its first messages are too late to come again, so their identities are gone.
        lists(ts.sessions("7 seconds")),
        # Messages that no pane has had yet.
        lists(ts.tumbling("1 minute"), early=ts.trigger.after_count(3)),
        lists(ts.global_window(), early=ts.trigger.after_count(4)),
    ],
    ids=["long session", "not shown", "never ends"],
)
def test_a_job_is_what_it_would_have_been_where_identities_say_less(tmp_path: Path, job: Aggregation) -> None:
    batches = [table_of((5 * number, number)) for number in range(8)]
    wanted = plain(job.standalone(checkpoint=tmp_path / "whole").run(batches, drain=True))
    root = tmp_path / "root"
    found = plain(job.standalone(checkpoint=root).run(batches[:6]))
    assert lose(root)
    found += plain(job.standalone(checkpoint=root, policy=REPLAYING).run(batches, drain=True))
    assert found == wanted


def test_a_source_with_other_values_puts_nothing_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    windows().standalone(checkpoint=tmp_path).run(Log(BATCHES[:7]))
    assert lose(tmp_path)
    column = BATCHES[6].schema.get_field_index("v")
    other = BATCHES[6].set_column(column, "v", pc.add(BATCHES[6]["v"], 50))
    windows().standalone(checkpoint=tmp_path, policy=REPLAYING).run(Log([*BATCHES[:6], other]))
    assert "batch 6 of the source differs" in caplog.text
    assert head_of(tmp_path).operators["windows"].rebuilding is not None
    windows().standalone(checkpoint=tmp_path, policy=REPLAYING).run(Log(BATCHES[:7]))
    assert head_of(tmp_path).operators["windows"].rebuilding is None


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_rows_that_were_held_come_back(tmp_path: Path, how: Any, collected: bool) -> None:
    """A checkpoint has a row that is held, and does not know it yet."""
    asked = Asked(how=how, low=-20, high=20, late=20, delays=(5, 5), in_order=True, named=True)
    job, root = described(asked), tmp_path
    batches = [{side: side_table([Row(side, "a", at, at, at)]) for side in SIDES} for at in (10, 17, 24, 31)]
    wanted = plain(job.standalone(checkpoint=root / "whole").run(batches, drain=True))
    found = plain(job.standalone(checkpoint=root / "made").run(batches[:2]))
    if collected:
        collect_one(root / "made")
    assert lose(root / "made", tables=TABLES)
    found += plain(job.standalone(checkpoint=root / "made", policy=REPLAYING).run(batches, drain=True))
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


def test_nothing_is_read_again_where_nothing_is_lost(tmp_path: Path) -> None:
    windows().standalone(checkpoint=tmp_path, policy=REPLAYING).run(Log(BATCHES[:3]))
    source = Log(BATCHES[:5])
    windows().standalone(checkpoint=tmp_path, policy=REPLAYING).run(source)
    assert source.read == [3, 4]


def test_history_is_no_part_of_the_source(tmp_path: Path) -> None:
    windows().standalone(checkpoint=tmp_path).bootstrap(BATCHES[0])
    lose(tmp_path)
    job = windows().standalone(checkpoint=tmp_path, policy=REPLAYING)
    job.run(Log(BATCHES[1:3]))
    assert noted(head_of(tmp_path).operators["windows"].rebuilding) is not None
    job.rebuild(BATCHES[0])
    assert head_of(tmp_path).operators["windows"].rebuilding is None


@pytest.mark.parametrize(
    ("position", "goal", "there"),
    [
        (3, 3, True),
        (4, 3, True),
        (2, 3, False),
        ({"a": 3, "b": [1, 2]}, {"a": 2, "b": [1, 2]}, True),
        ({"a": 3, "b": [1, 1]}, {"a": 2, "b": [1, 2]}, False),
        ({"a": 3}, {"a": 2, "b": 1}, False),
        ([1], [1, 2], False),
        ("0/AB", "0/AB", True),
        ("0/AC", "0/AB", False),
        (None, 3, False),
    ],
)
def test_a_position_is_reached(position: Any, goal: Any, there: bool) -> None:
    assert module.reached(position, goal) is there


def lives() -> Any:
    """A join of rows that live at one time."""
    left, right = (
        ts.stream(
            event_time="t", offset="off", cti_settings=SETTINGS[0], lifetime=ts.lifetime(shape="point")
        ).watermark(ts.watermark.ctis())
        for _ in SIDES
    )
    return left.join_lifetimes(right, on="key")


SIDES_OF_ROWS = {"left": SIDE_SCHEMA, "right": SIDE_SCHEMA}
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "without offsets": (described(Asked(low=0, high=9)), SIDES_OF_ROWS, "identity=True"),
    "lives": (lives(), SIDES_OF_ROWS, "nothing but its rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_be_put_back_is_refused_at_the_start(tmp_path: Path, name: str) -> None:
    job, schema, why = REFUSED[name]
    with pytest.raises(UsageError, match=r"\[not-replayable\]") as caught:
        job.standalone(checkpoint=tmp_path, policy=REPLAYING).run(Log([], schema))
    assert why in str(caught.value.context["operators"])
    assert Checkpoint.open(tmp_path).newest() is None, "nothing was written"
    (refused,) = job.plan(tmp_path / "new", schema=schema, policy=REPLAYING).refusals
    assert refused.code == "not-replayable"


def test_a_job_without_messages_and_one_by_hand_are_refused(tmp_path: Path) -> None:
    bare = ts.stream(event_time="t").group_by("k").window(ts.tumbling("6 seconds")).aggregate(n=agg.count())
    with pytest.raises(UsageError, match=r"\[no-messages\]"):
        bare.standalone(checkpoint=tmp_path / "bare", policy=REPLAYING).run(Log(BATCHES))
    made = windows().harness(SCHEMA, folder=tmp_path / "hand")
    with pytest.raises(UsageError, match=r"\[replay-source\]"):
        made.restart(REPLAYING)
    with pytest.raises(UsageError, match=r"\[policy\]"):
        Policy(messages="replay", damaged="reset")
