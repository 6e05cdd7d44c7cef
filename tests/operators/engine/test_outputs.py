"""Several outputs of one graph: each is what its operator alone emits, with identities, sinks and readers of its own,
and one checkpoint has all of them.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.forked import ForkedChild
from tests.helpers.outputs import OUTPUT_NAMES, Taken, counted, emitted, net_of, several, streams
from tests.helpers.process import LONG
from tests.helpers.spark_inputs import at, sample
from tests.helpers.targets import holds_once, target_of
from tests.twins.several_outputs import Counting, Fact, Standing, standing
from tidestate import agg
from tidestate.operators.engine import delivery
from tidestate.recovery.log.acknowledgements import acknowledge, delivered
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Delivered
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.recovery.start.policy import Policy
from tidestate.sinks import DeltaSink, ParquetSink
from tidestate.statestore.errors import NotFoundError, UsageError

BATCHES = sample(6, 60)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PAUSE_S", 0.001)
    monkeypatch.setattr("tidestate.operators.engine.driver.PAUSE_S", 0.0)
    monkeypatch.setattr("tidestate.operators.engine.driver.LONGEST_PAUSE_S", 0.0)
    monkeypatch.setattr("tidestate.operators.engine.driver.LEFT_ALONE", 0)


# What each output has


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Counting], list[int]]:
    """Operators of which each reads the stream or one before it, and which of them are outputs: also those that no
    other reads, which would be in no job else.
    """
    operators: list[Counting] = []
    for number in range(draw(st.integers(2, 4))):
        reads = draw(st.one_of(st.none(), st.integers(0, number - 1))) if number else None
        known = ("a", "b") if reads is None else operators[reads].keys
        keys = tuple(name for name in known if draw(st.booleans()))
        operators.append(Counting(reads, keys, draw(st.sampled_from([4, 6, 10]))))
    read = {operator.reads for operator in operators}
    outputs = [number for number in range(len(operators)) if number not in read or draw(st.booleans())]
    return operators, draw(st.permutations(outputs))


def built(operators: list[Counting]) -> list[ts.Aggregation]:
    made: list[ts.Aggregation] = []
    stream = ts.stream(event_time="t", watermark_delay="3 seconds")
    for number, operator in enumerate(operators):
        source: Any = stream if operator.reads is None else made[operator.reads]
        column = "v" if operator.reads is None else "total"
        windows = source.group_by(*operator.keys).window(ts.tumbling(f"{operator.size} seconds"))
        results = windows.aggregate(n=agg.count(), total=agg.sum(column)).allowed_lateness("1 hour")
        made.append(results.accumulation("retracting").named(f"operator_{number}"))
    return made


facts = st.tuples(st.integers(0, 60), st.sampled_from("xy"), st.sampled_from("pq"), st.integers(-3, 3))


def table_of(rows: list[Fact]) -> pa.Table:
    times = pa.array([at(time) for time, *_ in rows], pa.timestamp("us", "UTC"))
    columns = {name: [row[place] for row in rows] for place, name in ((1, "a"), (2, "b"), (3, "v"))}
    kinds = {"a": pa.string(), "b": pa.string(), "v": pa.int64()}
    return pa.table({"t": times, **{name: pa.array(values, kinds[name]) for name, values in columns.items()}})


def stood(panes: list[pa.Table]) -> Standing:
    """What stands of an output after all of its panes."""
    rows: Standing = Counter()
    for pane in (row for table in panes for row in table.to_pylist()):
        start, end = (int((pane[name] - at(0)).total_seconds()) for name in ("window_start", "window_end"))
        row = start, end, pane.get("a", ""), pane.get("b", ""), pane["n"], pane["total"]
        rows[row] += 1 if pane["kind"] == "emit" else -1
    assert all(count in (0, 1) for count in rows.values())
    return +rows


@pytest.mark.slow
@settings(max_examples=LONG or 40)
@given(graphs(), st.lists(st.lists(facts, max_size=12), min_size=1, max_size=4), st.integers(1, 3), st.booleans())
def test_each_output_is_that_of_the_twin(
    graph: tuple[list[Counting], list[int]], batches: list[list[Fact]], partitions: int, restarts: bool
) -> None:
    operators, outputs = graph
    made = built(operators)
    job = ts.job(*(made[number] for number in outputs))
    found: dict[str, list[pa.Table]] = {f"operator_{number}": [] for number in outputs}
    with job.harness(table_of([]).schema, partitions=partitions) as harness:
        for rows in batches:
            emitted_now: Any = harness.feed(table_of(rows))
            for name, panes in _by_name(emitted_now, found).items():
                found[name].append(panes)
            if restarts:
                harness.restart()
        for name, panes in _by_name(harness.finish(), found).items():
            found[name].append(panes)
    expected = standing(operators, [row for rows in batches for row in rows])
    assert {name: stood(panes) for name, panes in found.items()} == {
        f"operator_{number}": expected[number] for number in outputs
    }


def _by_name(panes: Any, outputs: dict[str, list[pa.Table]]) -> dict[str, pa.Table]:
    """A job of one output returns a table."""
    return panes if isinstance(panes, dict) else dict.fromkeys(outputs, panes)


@pytest.mark.slow
def test_each_output_is_what_its_operator_alone_emits(tmp_path: Path) -> None:
    panes = several().standalone(checkpoint=tmp_path / "all", partitions=2).run(BATCHES, drain=True)
    assert list(panes) == list(OUTPUT_NAMES)
    for name, alone in zip(OUTPUT_NAMES, streams(), strict=True):
        of_alone = alone.standalone(checkpoint=tmp_path / name, partitions=2).run(BATCHES, drain=True)
        assert panes[name].equals(of_alone)
        root = ts.Root(tmp_path / "all")
        assert emitted(root.url, name) == counted(of_alone)
        assert net_of(root.panes(operator=name, net=True).to_table()) == net_of(of_alone)


def test_what_is_no_output_is_not_kept(tmp_path: Path) -> None:
    _, by_minute, of_all = streams()
    ts.job(by_minute, of_all).standalone(checkpoint=tmp_path).run(BATCHES, drain=True)
    assert sorted(path.name for path in (tmp_path / "panes").iterdir()) == ["by_minute", "of_all"]
    root = ts.Root(tmp_path)
    assert root.manifest().outputs == ("by_minute", "of_all")
    assert "several-outputs/1" in root.manifest().needs
    for read in (root.panes, root.pane_paths):
        with pytest.raises(NotFoundError, match="not kept") as refused:
            read(operator="by_key")
        assert refused.value.code == "no-such-output"
    with pytest.raises(NotFoundError):
        root.changes(0, operator="by_key")


def test_one_output_is_stored_as_ever(tmp_path: Path) -> None:
    by_key, by_minute, _ = streams()
    ts.job(by_minute).standalone(checkpoint=tmp_path / "job", partitions=1).run(BATCHES)
    by_minute.standalone(checkpoint=tmp_path / "alone", partitions=1).run(BATCHES)
    for root in ("job", "alone"):
        newest = sorted((tmp_path / root / "manifests").iterdir())[-1]
        manifest = json.loads(newest.read_bytes())["manifest"]
        assert "outputs" not in manifest
        assert "several-outputs/1" not in manifest.get("needs", [])
        assert manifest["delivered"] == {}
    assert ts.job(by_key).graph.description == by_key.graph.description


# Identities and sinks


def test_the_last_output_has_the_identity_that_it_has_alone(tmp_path: Path) -> None:
    sinks = {name: Taken() for name in OUTPUT_NAMES}
    late = Taken()
    several().standalone(checkpoint=tmp_path, sink=sinks, late_sink=late).run(BATCHES, drain=True)
    run = Checkpoint.open(tmp_path).chosen(None).manifest.writer
    assert {one.run for one in sinks["of_all"].calls} == {run}
    assert {one.run for one in sinks["by_key"].calls} == {f"{run}-by_key.panes"}
    assert {(one.operator, one.kind) for one in sinks["by_key"].calls} == {("by_key", "panes")}
    assert {(one.operator, one.kind) for one in sinks["of_all"].calls} == {("", "panes")}
    assert {(one.operator, one.kind) for one in late.calls} >= {("by_key", "late"), ("of_all", "late")}
    identities = [one for sink in (*sinks.values(), late) for one in sink.calls]
    assert len(identities) == len(set(identities)), "one function may be the sink of all"
    assert {name: sink.rows() for name, sink in sinks.items()} == {
        name: emitted(tmp_path, name) for name in OUTPUT_NAMES
    }


def test_sinks_of_several_outputs_are_given_by_name(tmp_path: Path) -> None:
    job = several()
    for sink in (Taken(), [Taken()]):
        with pytest.raises(UsageError, match="say which of them") as refused:
            job.standalone(checkpoint=tmp_path, sink=sink)
        assert refused.value.code == "sink-output"
    with pytest.raises(UsageError, match="no output of the job") as refused:
        job.harness(BATCHES[0].schema, sink={"by_keys": Taken()})
    assert refused.value.context["found"] == ["by_keys"]
    by_key, by_minute, _ = streams()
    with pytest.raises(UsageError, match="no output of the job"):
        by_minute.standalone(checkpoint=tmp_path, sink={"by_key": Taken()})
    alone = Taken()
    by_key.standalone(checkpoint=tmp_path, sink={"by_key": alone}).run(BATCHES)
    assert alone.rows() == emitted(tmp_path, "by_key") != Counter()


def test_a_sink_that_is_included_has_one_output(tmp_path: Path) -> None:
    shared = ParquetSink(tmp_path / "panes")
    running = several().standalone(checkpoint=tmp_path / "root", sink={"by_key": shared, "of_all": [Taken(), shared]})
    with pytest.raises(UsageError, match="one for each output") as refused:
        running.run(BATCHES)
    assert refused.value.code == "sink-output"
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("changes", [("upsert", "upsert"), ("append", "upsert"), ("append", "append")])
def test_two_outputs_do_not_upsert_into_one_table(changes: tuple[str, str], tmp_path: Path) -> None:
    first, second = (DeltaSink(tmp_path / "table", changes=each) for each in changes)
    running = several().standalone(checkpoint=tmp_path / "root", sink={"by_key": first, "of_all": [Taken(), second]})
    if "upsert" not in changes:
        # Both append: whether the rows fit one table is the table's matter.
        assert first.target == second.target
        return
    with pytest.raises(UsageError, match="overwrite each other's rows") as refused:
        running.run(BATCHES)
    assert refused.value.code == "sink-output"
    assert not (tmp_path / "root").exists()
    assert not (tmp_path / "table").exists()


def test_what_cannot_be_a_job_is_refused() -> None:
    by_key, by_minute, _ = streams()
    for wrong in ((), (by_key, by_minute, by_key), tuple(by_key.named(f"n{number}") for number in range(17))):
        with pytest.raises(UsageError, match="from one to 16 outputs") as refused:
            ts.job(*wrong)
        assert refused.value.code == "job-outputs"
    with pytest.raises(UsageError, match="only what an operator puts out"):
        ts.job(by_key, ts.stream(event_time="t"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"\.named"):
        ts.job(by_key, by_minute.named("by_key")).explain()
    with pytest.raises(UsageError, match="fed by hand"):
        ts.job(by_key, by_minute).by_hand(BATCHES[0].schema)


def test_a_sink_that_is_behind_holds_only_its_own_output(tmp_path: Path) -> None:
    sinks = {"by_key": Taken(), "by_minute": Taken(behind=100, down=True), "of_all": Taken()}
    running = several().standalone(checkpoint=tmp_path, sink=sinks)
    running.run(BATCHES, drain=False)
    assert sinks["by_minute"].calls == []
    assert running.waits.behind[0][0] == "Taken of by_key"
    checkpoint = Checkpoint.open(tmp_path)
    had = delivered(checkpoint, checkpoint.chosen(None).manifest)
    newest = checkpoint.chosen(None).manifest.id
    assert [had.up_to("panes", name) for name in OUTPUT_NAMES] == [newest, 1, newest], "of its own it has the fence"
    collect(checkpoint, CheckpointRetention(newest=1, panes="0 seconds", grace="0 seconds"))
    left = {name: len(list((tmp_path / "panes" / name).iterdir())) for name in OUTPUT_NAMES}
    assert left["by_minute"] == len(ts.Root(tmp_path).pane_paths(operator="by_minute")) > 0
    assert left["by_key"] <= 1 >= left["of_all"], "but for the newest checkpoint, nothing that its own sinks have"
    sinks["by_minute"].down = False
    again = {name: Taken() for name in OUTPUT_NAMES}
    again["by_minute"] = sinks["by_minute"]
    several().standalone(checkpoint=tmp_path, sink=again).run(BATCHES, drain=True)
    assert sinks["by_minute"].rows() == emitted(tmp_path, "by_minute")
    # Of checkpoints that were collected too.
    assert {one.run.partition("-")[2] for one in sinks["by_minute"].calls} == {"by_minute.panes"}
    assert {one.checkpoint > newest for one in again["by_key"].calls} == {True}, "nothing was offered to it again"


def test_an_output_without_a_sink_waits_for_one(tmp_path: Path) -> None:
    first, second, third = Taken(), Taken(), Taken()
    several().standalone(checkpoint=tmp_path, sink={"by_key": first}).run(BATCHES[:3])
    several().standalone(checkpoint=tmp_path, sink={"by_key": second, "of_all": third}).run(BATCHES, drain=True)
    assert third.rows() == emitted(tmp_path, "of_all")
    assert not {*first.calls} & {*second.calls}
    assert first.rows() + second.rows() == emitted(tmp_path, "by_key")


@pytest.mark.parametrize("up_to", [{}, {"a": 5}, {"a": 7, "c": 6}])
def test_a_record_of_what_sinks_have_tells_of_each_output(up_to: dict[str, int], tmp_path: Path) -> None:
    by_key, _, of_all = streams()
    job = ts.job(by_key.named("a"), by_key.named("b"), of_all.named("c"))
    job.standalone(checkpoint=tmp_path).run(BATCHES)
    checkpoint = Checkpoint.open(tmp_path)
    head = checkpoint.chosen(None).manifest
    so_far = Delivered(panes=4, late=2, further=up_to)
    acknowledge(checkpoint, head, so_far)
    acknowledge(checkpoint, head, so_far)
    assert delivered(checkpoint, head) == so_far
    acknowledge(checkpoint, head, Delivered(panes=5))
    known = delivered(checkpoint, head)
    assert [known.up_to("panes", name) for name in "abc"] == [max(5, up_to.get(name, 4)) for name in "abc"]
    assert known.late == 2


# What happens to a root


def test_a_rewind_goes_back_with_all_outputs(tmp_path: Path) -> None:
    sinks = {name: Taken() for name in OUTPUT_NAMES}
    several().standalone(checkpoint=tmp_path, sink=sinks).run(BATCHES[:5])
    plan = ts.Root(tmp_path).rewind(3)
    assert "already delivered" in str(plan)
    plan.execute()
    again = {name: Taken() for name in OUTPUT_NAMES}
    several().standalone(checkpoint=tmp_path, sink=again).run(BATCHES, drain=True)
    head = Checkpoint.open(tmp_path).chosen(None).manifest
    assert head.outputs == OUTPUT_NAMES
    for name in OUTPUT_NAMES:
        counting = sum(
            (Counter(_rows(table)) for one, table in sinks[name].tables.items() if not head.abandons(one.checkpoint)),
            Counter(),
        )
        assert counting + again[name].rows() == emitted(tmp_path, name)
        changes = ts.Root(tmp_path).changes(5, operator=name).to_table()
        assert {"added", "removed"} >= set(changes["change"].to_pylist())
    whole = several().standalone(checkpoint=tmp_path / "whole").run(BATCHES, drain=True)
    for name in OUTPUT_NAMES:
        assert net_of(whole[name]) == net_of(ts.Root(tmp_path).panes(operator=name).to_table())


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))


def test_a_rewind_over_a_change_of_outputs(tmp_path: Path) -> None:
    """Back to where the job had one output, and to where it had three."""
    by_key, _, _ = streams()
    sinks = {name: Taken() for name in OUTPUT_NAMES}
    by_key.standalone(checkpoint=tmp_path, sink=sinks["by_key"]).run(BATCHES[:2])
    several().standalone(checkpoint=tmp_path, sink=sinks).run(BATCHES[:4])
    three = Checkpoint.open(tmp_path).chosen(None).manifest
    ts.job(*streams()[::2]).standalone(
        checkpoint=tmp_path, sink={"by_key": Taken(), "of_all": Taken()}, policy=Policy(dropped="accept")
    ).run(BATCHES[:5])
    ts.Root(tmp_path).rewind(three.id).execute()
    head = Checkpoint.open(tmp_path).chosen(None).manifest
    assert head.outputs == OUTPUT_NAMES
    assert head.delivered.up_to("panes", "by_minute") == three.delivered.up_to("panes", "by_minute")
    ts.Root(tmp_path).rewind(2).execute()
    head = Checkpoint.open(tmp_path).chosen(None).manifest
    assert (head.outputs, head.delivered.further) == ((), {})
    by_key.standalone(checkpoint=tmp_path).run(BATCHES, drain=True)
    alone = by_key.standalone(checkpoint=tmp_path / "alone").run(BATCHES, drain=True)
    assert net_of(ts.Root(tmp_path).panes().to_table()) == net_of(alone)


def test_a_new_output_begins_with_the_next_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The sinks of the old one get nothing again, though it is no longer the last operator."""
    by_key, by_minute, _ = streams()
    both = ts.job(by_key, by_minute)
    before, behind = Taken(), Taken(behind=9, down=True)
    by_key.standalone(checkpoint=tmp_path, sink=[before, behind]).run(BATCHES[:3])
    began = Checkpoint.open(tmp_path).chosen(None).manifest.id
    plan = both.plan(tmp_path)
    assert any("by_minute is an output now" in str(change) for change in plan.changes)
    behind.down = False
    after, new = Taken(), Taken()
    both.standalone(checkpoint=tmp_path, sink={"by_key": [after, behind], "by_minute": new}).run(BATCHES, drain=True)
    assert "operator by_minute is an output now" in caplog.text
    assert {one.checkpoint > began for one in new.calls} == {True}
    assert new.rows() == emitted(tmp_path, "by_minute")
    assert behind.rows() == emitted(tmp_path, "by_key")
    assert {one.run for one in behind.calls if one.checkpoint <= began} == {one.run for one in before.calls}
    assert before.rows() + Counter(
        row for one, table in after.tables.items() if one not in before.tables for row in _rows(table)
    ) == emitted(tmp_path, "by_key")


def test_what_an_output_has_put_out_stays_when_it_is_one_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    by_key, by_minute, _ = streams()
    sinks = {"by_key": Taken(behind=99, down=True), "by_minute": Taken(behind=99, down=True)}
    ts.job(by_key, by_minute).standalone(checkpoint=tmp_path, sink=sinks).run(BATCHES[:4])
    then, was = Checkpoint.open(tmp_path).chosen(None).manifest.id, emitted(tmp_path, "by_key")
    left = Taken()
    by_minute.standalone(checkpoint=tmp_path, sink=left).run(BATCHES, drain=True)
    assert "operator by_key is no longer an output" in caplog.text
    assert left.rows() == emitted(tmp_path, "by_minute"), "and nothing of the other one"
    with pytest.raises(NotFoundError):
        ts.Root(tmp_path).panes(operator="by_key")
    assert emitted_at(tmp_path, then, "by_key") == was != Counter()
    assert ts.Root(tmp_path).verify().findings == ()
    # It is one again: what it has put out before is owed to nobody.
    more = Taken()
    root = tmp_path / "again"
    ts.job(by_key, by_minute).standalone(checkpoint=root).run(BATCHES[:2])
    by_minute.standalone(checkpoint=root).run(BATCHES[:3])
    began = Checkpoint.open(root).chosen(None).manifest.id
    ts.job(by_key, by_minute).standalone(checkpoint=root, sink={"by_key": more}).run(BATCHES, drain=True)
    assert {one.checkpoint > began for one in more.calls} == {True}


def emitted_at(root: Path, checkpoint_id: int, name: str) -> Counter[tuple[Any, ...]]:
    table = ts.Root(root).at(checkpoint_id).panes(operator=name).to_table().drop_columns(["checkpoint"])
    return Counter(_rows(table))


def test_a_fork_and_a_repair_know_the_panes_of_all(tmp_path: Path) -> None:
    sinks = {name: Taken(behind=99, down=name == "by_minute") for name in OUTPUT_NAMES}
    several().standalone(checkpoint=tmp_path / "a", sink=sinks).run(BATCHES[:4])
    ts.Root(tmp_path / "a").fork(tmp_path / "b").execute()
    fork = Checkpoint.open(tmp_path / "b").chosen(None).manifest
    assert (fork.outputs, fork.delivered.panes, fork.delivered.further) == (OUTPUT_NAMES, fork.id, {})
    forked = {name: Taken() for name in OUTPUT_NAMES}
    several().standalone(checkpoint=tmp_path / "b", sink=forked).run(BATCHES, drain=True)
    assert {one.checkpoint > fork.id for sink in forked.values() for one in sink.calls} == {True}
    assert {name: sink.rows() for name, sink in forked.items()} == {
        name: emitted(tmp_path / "b", name) for name in OUTPUT_NAMES
    }


def test_verify_reads_the_panes_of_all(tmp_path: Path) -> None:
    several().standalone(checkpoint=tmp_path).run(BATCHES, drain=True)
    for name in OUTPUT_NAMES:
        path = Path(ts.Root(tmp_path).pane_paths(operator=name)[-1])
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        assert [finding.path for finding in ts.Root(tmp_path).verify().findings] == [f"panes/{name}/{path.name}"]
        path.write_bytes(whole)


def test_history_tells_of_an_output_that_others_read(tmp_path: Path) -> None:
    several().standalone(checkpoint=tmp_path).run(BATCHES, drain=True)
    told = str(ts.Root(tmp_path).history(key="a", window=at(10), operator="by_key"))
    assert "pane 0" in told


def test_origins_are_numbered_for_each_output(tmp_path: Path) -> None:
    by_key, _, of_all = streams()
    job = ts.job(by_key.origins(), of_all.origins())
    panes = job.standalone(checkpoint=tmp_path, partitions=3).run(BATCHES, drain=True)
    for name in ("by_key", "of_all"):
        numbers = sorted(set(panes[name]["sequence"].to_pylist()))
        assert numbers == list(range(1, len(numbers) + 1)) != []
    assert len({panes[name]["origin_id"][0].as_py() for name in panes}) == 2


@pytest.mark.slow
def test_killed_at_random_while_one_is_behind(tmp_path: Path) -> None:
    chance = random.Random(11)
    targets = [f"delta:{tmp_path / 'a'}", f"parquet:{tmp_path / 'b'}", f"iceberg:{tmp_path / 'c'}"]
    command = ("tests.children.outputs", tmp_path / "root", *targets)
    for _ in range(30 if LONG else 6):
        child = ForkedChild(*command, log=tmp_path / "log")
        child.wait_for(lambda event: event["event"] in ("batch", "done"))
        # In whatever it does next: a task, a sink, or the commit.
        time.sleep(chance.uniform(0, 0.25))
        with suppress(ProcessLookupError):  # it was done
            child.kill()
    child = ForkedChild(*command, log=tmp_path / "log")
    child.wait_for(lambda event: event["event"] == "done")
    child.finish()
    for name, target in zip(OUTPUT_NAMES, targets, strict=True):
        assert holds_once(target_of(target), "append", tmp_path / "root", operator=name) > 10
