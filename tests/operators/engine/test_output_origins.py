"""An operator is an origin of its own: its output comes in numbered buffers, against a naive count of them.

NebulaStream: "the OriginId that is unique for each source or stateful operator in a query plan".
"""

from __future__ import annotations

import random
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.bundles import other_needs
from tests.helpers.moves import fork, rewind
from tests.helpers.output_origins import BUFFER_COLUMNS, BUFFERS, EVENT_SCHEMA, Event, Rows, check_line, plain, table
from tests.helpers.process import SCRATCH, examples, few
from tests.helpers.two_streams import TIME
from tidestate import OperatorStream, agg, trigger, watermark
from tidestate.operators import Root
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.engine.job import Job
from tidestate.operators.engine.tasks import InProcess
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.errors import IncompatibleError, UsageError


def _stream(name: str | None = None) -> Any:
    settings = {"event_time": "t", "watermark_delay": "5 us"}
    return ts.stream(**settings) if name is None else ts.stream(name, **settings)


def _windows(window: Any = None) -> Any:
    return _stream().group_by("k").window(window or ts.tumbling("10 us")).aggregate(n=agg.count()).named("job")


LAST_US = 253_402_300_799_999_999
JOBS: dict[str, Callable[[], OperatorStream]] = {
    "windows": lambda: _windows().allowed_lateness("20 us"),
    "retracting": lambda: (
        _windows().allowed_lateness("20 us").accumulation("retracting").trigger(early=trigger.each_batch())
    ),
    "discarding": lambda: _windows(ts.sliding("10 us", "5 us")).accumulation("discarding"),
    "sessions": lambda: _windows(ts.sessions("4 us")).allowed_lateness("0 us"),
    "rolling": lambda: _windows(ts.rolling("6 us")),
    "chain": lambda: (
        _windows()
        .allowed_lateness("0 us")
        .named("first")
        .group_by("k")
        .window(ts.tumbling("20 us"))
        .aggregate(n=agg.sum("n"))
        .named("job")
    ),
    "deduplicated": lambda: _stream().deduplicate("k", within="10 us", name="job"),
    "shifted": lambda: _stream().shift_time("3 us", name="job"),
}


@dataclass
class Twin:
    """A naive count of buffers; ``before``: what it was at each checkpoint."""

    partitions: int
    sequence: int = 0
    newest: int | None = None
    before: dict[int, tuple[int, int | None]] = field(default_factory=dict)

    def numbered(self, panes: pa.Table, origin: int) -> Rows:
        """The rows of a checkpoint with their buffer, chunks by state partition."""
        if not panes.num_rows:
            return []
        self.sequence += 1
        of = [self.partition(key) for key in panes["k"].to_pylist()]
        ranks = {number: rank for rank, number in enumerate(sorted(set(of)))}
        last = max(ranks.values())
        return [
            row
            | {
                "origin_id": origin,
                "sequence": self.sequence,
                "chunk": ranks[number],
                "last_chunk": ranks[number] == last,
            }
            for row, number in zip(plain(panes), of, strict=True)
        ]

    def partition(self, key: str) -> int:
        text = f"{len(key)}:{key}".encode()
        return (zlib.crc32(text) * self.partitions) >> 32


batches = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 60)), max_size=6), min_size=1, max_size=5
)
acts = st.lists(st.sampled_from(["go on", "restart", "rewind", "rescale"]), min_size=5, max_size=5)


# Late panes are also those of a job that takes back, and what is new alone is also what a deduplication passes.
@pytest.mark.parametrize("kind", few(JOBS, 1, *range(3, len(JOBS))))
def test_buffers_are_those_of_a_naive_count(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random cuts, restarts, rewinds, partitions and tasks: rows are those of the job without numbers. Each
    checkpoint with rows is the next buffer, each state partition with rows the next chunk.
    """
    # A time shift has no key: rows go by their times.
    unknown = ("origin_watermark", *(("chunk", "last_chunk") if kind == "shifted" else ()))

    @settings(deadline=None, max_examples=examples(8))
    @given(batches, acts, st.sampled_from([1, 3, 4]), st.sampled_from([1, 3]))
    def check(events: list[list[Event]], done: list[str], partitions: int, tasks: int) -> None:
        monkeypatch.setattr(InProcess, "max_tasks", tasks)
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
            roots = [f"{folder}/plain", f"{folder}/numbered"]
            jobs = [JOBS[kind](), JOBS[kind]().origins(9)]
            runs = [
                job.harness(EVENT_SCHEMA, folder=root, partitions=partitions)
                for job, root in zip(jobs, roots, strict=True)
            ]
            twin, every = Twin(partitions), list[Rows]()

            def counted(panes: pa.Table) -> Rows:
                return [without(row, *unknown) for row in twin.numbered(panes, 9)]

            for batch, act in zip(events, done, strict=False):
                panes, numbered = (run.feed(table(batch)) for run in runs)
                found = plain(numbered)
                assert [without(row, *unknown) for row in found] == counted(panes)
                every.append(found)
                ids = [Checkpoint.open(root).chosen(None).manifest.id for root in roots]
                twin.before[ids[0]] = twin.sequence, len(every)
                assert ids[0] == ids[1]
                if act == "rescale":
                    twin.partitions = twin.partitions % 4 + 1
                    for root in roots:
                        rescale(root, twin.partitions)
                if act == "rewind":
                    to = random.Random(len(batch)).choice(list(twin.before))
                    for root in roots:
                        rewind(Checkpoint.open(root), to)
                    twin.sequence, kept = twin.before[to]
                    twin.partitions = Checkpoint.open(roots[0]).chosen(None).manifest.partitions
                    twin.before = {number: one for number, one in twin.before.items() if number <= to}
                    every = every[:kept]
                if act != "go on":
                    for run in runs:
                        run.restart()
            panes, numbered = (run.finish() for run in runs)
            found = plain(numbered)
            assert [without(row, *unknown) for row in found] == counted(panes)
            assert all(row["origin_watermark"] == LAST_US for row in found)
            every.append(found)
            check_line([row for rows in every for row in rows])
            counting = Root(roots[1]).panes().to_table().select(["k", *BUFFER_COLUMNS])
            line = [{name: row[name] for name in ("k", *BUFFER_COLUMNS)} for rows in every for row in rows]
            assert plain(counting) == line

    check()


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


SIDES: dict[str, Callable[[], OperatorStream]] = {
    "by distance": lambda: _stream("l").join(_stream("r"), on="k", within=("-4 us", "4 us"), name="job"),
    "full": lambda: _stream("l").join(_stream("r"), on="k", within=("0 us", "4 us"), how="full", name="job"),
    "by windows": lambda: _stream("l").join(_stream("r"), on="k", window=ts.tumbling("10 us"), name="job"),
    "by sessions": lambda: _stream("l").join_sessions(
        _stream("r"), on="k", gap="4 us", allowed_lateness="9 us", name="job"
    ),
    "merge": lambda: (
        ts.merge(_stream("l"), _stream("r"))
        .group_by("k")
        .window(ts.tumbling("10 us"))
        .aggregate(n=agg.count())
        .named("job")
    ),
    "union": lambda: ts.union(_stream("l"), _stream("r"), name="job"),
}


# The first is also in the full join, whose rows wait alone as well.
@pytest.mark.parametrize("kind", few(SIDES, *range(1, len(SIDES))))
@settings(deadline=None, max_examples=examples(8))
@given(left=batches, right=batches, partitions=st.sampled_from([1, 4]))
def test_the_buffers_of_two_streams(
    kind: str, left: list[list[Event]], right: list[list[Event]], partitions: int
) -> None:
    jobs = [SIDES[kind](), SIDES[kind]().origins()]
    schemas = {"l": EVENT_SCHEMA, "r": EVENT_SCHEMA}
    runs = [job.harness(schemas, partitions=partitions) for job in jobs]
    rows, twin = Rows(), Twin(partitions)
    for pair in zip(left, right, strict=False):
        given_rows = dict(zip("lr", map(table, pair), strict=True))
        panes, numbered = (run.feed(given_rows) for run in runs)
        assert numbered.drop_columns(BUFFER_COLUMNS).equals(panes)
        if kind == "union":
            rows += plain(numbered)
            continue
        assert [without(row, "origin_watermark") for row in plain(numbered)] == twin.numbered(panes, 3)
        rows += plain(numbered)
        runs[1].restart()
    panes, numbered = (run.finish() for run in runs)
    assert numbered.drop_columns(BUFFER_COLUMNS).equals(panes)
    check_line([*rows, *plain(numbered)])
    for one, after in pairwise(plain(numbered)):
        assert one["origin_id"] == after["origin_id"] == 3


LEFT, RIGHT = [("a", 10), ("b", 11)], [("a", 12), ("b", 13)]
ORDERS: dict[str, list[dict[str, list[Event]]]] = {
    "the left one first": [{"l": LEFT}, {"r": RIGHT}],
    "the right one first": [{"r": RIGHT}, {"l": LEFT}],
    "both at once": [{"l": LEFT, "r": RIGHT}],
}


def diagram_join() -> OperatorStream:
    left, right = (ts.stream(name, event_time="t") for name in "lr")
    return left.join(right, on="k", within=("0 us", "5 us"), name="joined").origins()


@pytest.mark.parametrize("order", ORDERS)
def test_the_three_buffers_of_the_diagram_come_out_of_a_join(order: str, tmp_path: Path) -> None:
    """OriginId 3: SequenceNumber 1 in the chunks 0 and 1, of which the second is the last, then SequenceNumber 2."""
    run = diagram_join().harness({"l": EVENT_SCHEMA, "r": EVENT_SCHEMA}, folder=tmp_path, partitions=4)
    rows = Rows()
    for batch in [*ORDERS[order], {"l": [("a", 20)], "r": [("a", 21)]}]:
        rows += plain(run.feed({name: table(events) for name, events in batch.items()}))
    buffers = list(dict.fromkeys(tuple(row[name] for name in BUFFER_COLUMNS) for row in rows))
    assert buffers == [(3, 1, 0, False, 11), (3, 1, 1, True, 11), (3, 2, 0, True, 20)] or order != "both at once"
    assert [one[:4] for one in buffers] == [(3, 1, 0, False), (3, 1, 1, True), (3, 2, 0, True)]


def written_chunks(root: Path) -> list[pa.Table]:
    """What each chunk of the first job's panes has, as its files have them."""
    found = pa.concat_tables([pq.read_table(path) for path in sorted(Root(root).pane_paths())])
    keys = list(dict.fromkeys(zip(found["sequence"].to_pylist(), found["chunk"].to_pylist(), strict=True)))
    return [
        found.filter(pc.and_(pc.equal(found["sequence"], sequence), pc.equal(found["chunk"], chunk)))
        for sequence, chunk in keys
    ]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_another_job_that_reads_them_knows_what_is_missing(order: tuple[int, ...], tmp_path: Path) -> None:
    """The buffers of the diagram in each order: until all before it have come, none counts for the watermark."""
    run = diagram_join().harness({"l": EVENT_SCHEMA, "r": EVENT_SCHEMA}, folder=tmp_path / "first", partitions=4)
    for batch in (LEFT, RIGHT), ([("a", 20)], [("a", 21)]), ([("b", 40)], [("b", 41)]):
        run.feed(dict(zip("lr", map(table, batch), strict=True)))
    chunks = written_chunks(tmp_path / "first")
    marks = [(one["sequence"][0].as_py(), one["origin_watermark"].cast(pa.int64())[0].as_py()) for one in chunks]
    assert marks == [(1, 11), (1, 11), (2, 20), (3, 40)]
    reads = ts.stream(event_time="time").watermark(
        watermark.buffers(**BUFFERS, watermark="origin_watermark"), sources=["3"]
    )
    pairs = reads.group_by().window(ts.tumbling("10 us")).aggregate(n=agg.count(), ks=agg.list("k"))
    job = pairs.allowed_lateness("0 us").harness(chunks[0].schema, folder=tmp_path / "second")
    reader, came, panes = Checkpoint.open(tmp_path / "second"), set[int](), Rows()
    for place in order:
        panes += plain(job.feed(chunks[place]))
        came.add(place)
        (state,) = reader.chosen(None).manifest.operators.values()
        whole = 2 if came == {0, 1, 2} else 1 if {0, 1} <= came else 0
        assert state.watermark_us == (None, 11, 20)[whole]
        waits = {2} & came if whole < 2 else set()
        assert bool(waits or (came & {0, 1} and whole == 0)) == bool(state.buffers and state.buffers["waiting"])
    panes += plain(job.feed(chunks[3]))
    assert [(row["window_start"], row["n"], sorted(row["ks"])) for row in panes] == [
        (10, 2, ["a", "b"]),
        (20, 1, ["a"]),
    ]
    assert job.ledger().num_rows == 0


def test_a_missing_file_is_waited_for_and_then_the_results_are_the_same(tmp_path: Path) -> None:
    """Windows of one job, read by another: its files in three orders, one of them missing at first."""
    first = _windows().allowed_lateness("0 us").origins(origin=5, time="window_start")
    run = first.harness(EVENT_SCHEMA, folder=tmp_path / "first", partitions=3)
    chance = random.Random(7)
    for number in range(8):
        run.feed(table([(chance.choice("abcdef"), 9 * number + chance.randrange(12)) for _ in range(9)]))
    run.finish()
    files = [pq.read_table(path) for path in sorted(Root(tmp_path / "first").pane_paths())]
    assert len(files) > 4
    reads = ts.stream(event_time="window_start").watermark(watermark.buffers(**BUFFERS, watermark="origin_watermark"))
    second = reads.group_by("k").window(ts.tumbling("20 us")).aggregate(n=agg.sum("n")).allowed_lateness("0 us")
    results = []
    for order in (files, files[::-1], files[1:2] + files[3:] + files[2:3] + files[:1]):
        job = second.harness(files[0].schema)
        panes = [job.feed(file) for file in order[:-1]]
        if order is not files:
            assert not any(one.num_rows for one in panes)  # the first file is missing so far
        panes.append(job.feed(order[-1]))
        assert job.ledger().num_rows == 0
        rows = [without(row, "last") for row in plain(pa.concat_tables(panes))]
        results.append(sorted(map(repr, rows)))
    assert results[0] == results[1] == results[2]
    assert len(results[0]) > 4


def test_what_is_told_goes_no_further_than_the_longest_whole_prefix(tmp_path: Path) -> None:
    """The input of the operator comes in buffers too: what follows a gap does not move what its output tells."""
    schema = pa.schema([*EVENT_SCHEMA, ("of", "int64"), ("number", "int64"), ("reached", TIME)])
    marks = watermark.buffers(origin="of", sequence="number", watermark="reached")
    stream = ts.stream(event_time="t").watermark(marks, sources=["1"])
    job = stream.group_by("k").window(ts.tumbling("10 us")).aggregate(n=agg.count())
    run = job.trigger(early=trigger.each_batch()).origins().harness(schema, folder=tmp_path)
    told = []
    for number, at in ((1, 8), (3, 38), (4, 47), (2, 18), (5, 59)):
        row = {"k": "a", "t": at, "v": 0, "of": 1, "number": number, "reached": at + 1}
        told.append({(row["sequence"], row["origin_watermark"]) for row in plain(run.feed([row]))})
    assert told == [{(1, 9)}, {(2, 9)}, {(3, 9)}, {(4, 48)}, {(5, 60)}]


def test_a_checkpoint_without_rows_is_no_buffer(tmp_path: Path) -> None:
    run = _windows().origins().harness(EVENT_SCHEMA, folder=tmp_path)
    for at in (1, 2, 30, 31, 60):
        run.feed(table([("a", at)]))
    sequences = Root(tmp_path).panes().to_table()["sequence"].to_pylist()
    assert sequences == [1, 2]
    newest = evidence.manifests(tmp_path)[-1]
    assert other_needs(newest["needs"]) == ["origins-of-output/1"]
    assert newest["operators"]["job"]["emitted"] == {"2": 2}
    assert "emitted" not in evidence.manifests(tmp_path)[0]["operators"]["job"]


def test_ids_follow_those_of_streams_and_operators_in_front() -> None:
    left, right = _stream("l"), _stream("r")
    counted = left.group_by("k").window(ts.tumbling("10 us")).aggregate(n=agg.count()).allowed_lateness("0 us")
    chain = (
        counted.named("counted")
        .origins(3)
        .timed_by("window_end")
        .join(right, on="k", within=("0 us", "9 us"), name="joined")
    )
    panes = chain.origins().harness({"l": EVENT_SCHEMA, "r": EVENT_SCHEMA})
    found = panes.feed({"l": table([("a", 1), ("a", 30)]), "r": table([("a", 12), ("a", 40)])})
    # 1 and 2 are the streams, 3 was given to the operator in front, whose rows come without columns of buffers.
    assert set(found["origin_id"].to_pylist()) == {4}
    assert not [name for name in found.column_names if name.startswith("left_") and name[5:] in BUFFER_COLUMNS]
    with pytest.raises(UsageError) as caught:
        chain.origins(3).harness({"l": EVENT_SCHEMA, "r": EVENT_SCHEMA})
    assert caught.value.code == "origins"


def test_before_the_first_watermark_the_column_is_null(tmp_path: Path) -> None:
    """Early panes come before all sources have been seen."""
    stream = ts.stream(event_time="t").watermark(by="k", sources=["a", "b"])
    job = stream.group_by("k").window(ts.tumbling("10 us")).aggregate(n=agg.count())
    run = job.trigger(early=trigger.each_batch()).origins().harness(EVENT_SCHEMA, folder=tmp_path)
    assert run.feed(table([("a", 1)]))["origin_watermark"].to_pylist() == [None]
    assert plain(run.feed(table([("b", 2)])))[0]["origin_watermark"] == 1


class DiedError(Exception):
    """Raised in place of a commit."""


def test_died_after_chunks_were_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of several tasks are there twice, and no manifest names them; the same batch has the same numbers."""
    monkeypatch.setattr(InProcess, "max_tasks", 3)
    batches = [table([(key, 10 * number + at) for at, key in enumerate("abcdef")]) for number in range(4)]
    whole = _windows().origins().standalone(checkpoint=tmp_path / "whole", partitions=5).run(batches)
    publish = Job._publish
    died: list[int] = []

    def dying(job: Job, manifest: Manifest) -> None:
        taken = manifest.input.batches if manifest.input is not None else 0
        if manifest.panes and taken not in died:
            died.append(taken)
            raise DiedError
        publish(job, manifest)

    monkeypatch.setattr(Job, "_publish", dying)
    for _ in range(3):
        with pytest.raises(DiedError):
            _windows().origins().standalone(checkpoint=tmp_path / "died", partitions=5).run(batches)
    _windows().origins().standalone(checkpoint=tmp_path / "died", partitions=5).run(batches)
    assert max(whole["chunk"].to_pylist()) > 1
    assert len(set(whole["sequence"].to_pylist())) == 3
    assert plain(Root(tmp_path / "died").panes().to_table().drop_columns("checkpoint")) == plain(whole)
    named = {Path(path).name for path in Root(tmp_path / "died").pane_paths()}
    assert {path.name for path in (tmp_path / "died").glob("panes/*/*")} > named


def test_a_job_gets_origins_loses_them_and_gets_them_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job, root = _windows(), tmp_path / "root"
    given_batches = [table([("a", 10 * number), ("a", 10 * number + 6)]) for number in range(1, 9)]
    shapes = [job, job.origins(), job.origins(), job, job.origins(), job.origins(origin=8)]
    with caplog.at_level("WARNING"):
        for until, shape in enumerate(shapes, 2):
            shape.standalone(checkpoint=root).run(given_batches[:until])
    assert 'origins: - -> 2, time="window_end" (for rows from now on' in caplog.text
    assert 'origins: 2, time="window_end" -> - (' in caplog.text
    assert 'origins: 2, time="window_end" -> 8, time="window_end" (' in caplog.text
    rows = plain(Root(root).panes().to_table())
    found = [(row["origin_id"], row["sequence"]) for row in rows]
    assert found == [(None, None), (2, 1), (2, 2), (None, None), (2, 3), (8, 1)]
    fork(root, tmp_path / "fork", Checkpoint.open(root).chosen(None).manifest.id)
    shapes[-1].standalone(checkpoint=tmp_path / "fork").run(given_batches)
    newest = plain(Root(tmp_path / "fork").panes().to_table())[-1]
    assert (newest["origin_id"], newest["sequence"]) == (8, 2)


def test_by_hand_each_result_is_a_buffer(tmp_path: Path) -> None:
    schema = pa.schema([*EVENT_SCHEMA, ("origin", "string"), ("offset", "int64")])

    def messages(events: Sequence[Event], first: int) -> pa.Table:
        rows = table(events)
        offsets = pa.array(range(first, first + len(events)), pa.int64())
        return rows.append_column("origin", pa.array(["p"] * len(events))).append_column("offset", offsets)

    job = _windows().origins()
    with job.by_hand(schema, checkpoint=tmp_path, partitions=3) as operator:
        operator.add_messages(messages([("a", 1), ("b", 2), ("c", 3)], 0))
        operator.add_messages(messages([("a", 31)], 3))
        (result,) = operator.get_result()
        operator.acknowledge(result.id)
        operator.flush()
    with job.by_hand(schema, checkpoint=tmp_path) as operator:
        operator.add_messages(messages([("b", 32), ("c", 70)], 4))
        (again,) = operator.get_result()
    check_line([*plain(result.panes), *plain(again.panes)])
    assert {row["chunk"] for row in plain(result.panes)} == set(range(len({Twin(3).partition(key) for key in "abc"})))


def test_the_net_of_pairs_does_not_know_of_buffers(tmp_path: Path) -> None:
    """A retraction comes in another buffer than what it takes back."""
    job = SIDES["by sessions"]().origins()
    run = job.harness({"l": EVENT_SCHEMA, "r": EVENT_SCHEMA}, folder=tmp_path)
    run.feed({"l": table([("a", 10)]), "r": table([("a", 11)])})
    run.feed({"l": table([("b", 22)]), "r": table([("b", 23)])})
    run.feed({"l": table([("a", 13), ("b", 23)]), "r": table([("b", 24)])})
    kinds = Root(tmp_path).panes().to_table()["kind"].to_pylist()
    assert "retract" in kinds
    left = plain(Root(tmp_path).panes(net=True).to_table())
    assert len(left) == kinds.count("emit") - kinds.count("retract")
    assert {row["sequence"] for row in left} == {2}


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (lambda: _windows(ts.count_windows(3)), "origins-time"),
        (lambda: _windows(ts.global_window()), "origins-time"),
        (lambda: _windows().pane_timestamp("end_of_window"), None),
        (lambda: _windows(ts.sessions("4 us")).pane_timestamp("earliest"), "origins-time"),
    ],
)
def test_an_output_without_a_watermark_is_no_origin(job: Callable[[], Any], code: str | None) -> None:
    if code is None:
        job().origins().harness(EVENT_SCHEMA)
        return
    with pytest.raises(UsageError) as caught:
        bind_plan(job().origins().graph.description, EVENT_SCHEMA)
    assert caught.value.code == code


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    taken = _stream().group_by("k").window(ts.tumbling("10 us")).aggregate(sequence=agg.count())
    own = ts.side(window=ts.tumbling("10 us"))
    held = _stream("l").join(_stream("r"), on="k", sides=own, name="job")
    for job, schema, code in (
        (taken.origins(), EVENT_SCHEMA, "name-taken"),
        (_windows().origins(time="n"), EVENT_SCHEMA, "origins-time"),
        (held.origins(), {"l": EVENT_SCHEMA, "r": EVENT_SCHEMA}, "origins-time"),
    ):
        with pytest.raises(UsageError) as caught:
            job.harness(schema)
        assert caught.value.code == code, job
    with pytest.raises(UsageError) as caught:
        _windows().origins(2**63)
    assert caught.value.code == "argument"
    with pytest.raises(UsageError) as caught:
        _windows().origins().standalone(checkpoint=tmp_path).bootstrap([table([("a", 1)])], deliver=False)
    assert caught.value.code == "origins-withheld"
    schema = pa.schema([*EVENT_SCHEMA, ("origin", "string"), ("offset", "int64")])
    _windows().by_hand(schema, checkpoint=tmp_path / "hand").close()
    with pytest.raises(IncompatibleError, match="keeps its settings"):
        _windows().origins().by_hand(schema, checkpoint=tmp_path / "hand")
