"""Under what panes are delivered: an identity that no copy, rewind or fork gives a second time; and what is
acknowledged when a job stops.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.helpers import evidence
from tests.helpers.internals import job_of
from tests.helpers.moves import fork, rewind
from tests.helpers.process import few
from tests.helpers.worked_example import STREAM, batch, example
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.engine.job import Job
from tidestate.operators.local.harness import Harness
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.recovery.log.acknowledgements import DELIVERED_FOLDER, delivered
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.recovery.moves.repair import plan_repair
from tidestate.recovery.moves.rescale import rescale
from tidestate.recovery.moves.reset import plan_reset
from tidestate.recovery.moves.rewind import plan_replay
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import FencedError
from tidestate.statestore.spec.store import Parquet
from tidestate.statestore.testing.faults import FaultyObjects

OTHER = [batch([(60 + 10 * n, key, n) for key in "abc"]) for n in range(4)]
"""What comes in place of the rest of the stream, or after it."""


class Remembers:
    """Has every pane once: it takes a delivery when its run has not got so far."""

    def __init__(self) -> None:
        self.highest: dict[str, int] = {}
        self.rows: Counter[evidence.Row] = Counter()
        self.offered: list[DeliveryId] = []

    def __call__(self, panes: pa.Table, delivery_id: DeliveryId) -> None:
        self.offered.append(delivery_id)
        if delivery_id.checkpoint > self.highest.get(delivery_id.run, 0):
            self.rows += Counter(evidence.plain(panes))
            self.highest[delivery_id.run] = delivery_id.checkpoint


def run(root: Path, sink: Remembers | None, batches: list[pa.Table], *, drain: bool = False) -> None:
    StandaloneRunner(example("retracting").graph.description, str(root), Parquet(), Sinks(sink), 2).run(
        batches, drain=drain
    )


def output(root: Path) -> list[tuple[DeliveryId, Counter[evidence.Row]]]:
    """The panes that count, as the files have them."""
    return [
        (one.delivery_id, Counter(evidence.rows(root, [{"path": ref.path} for ref in one.panes])))
        for one in Checkpoint.open(root).outputs()
        if one.panes
    ]


def rows_of(root: Path) -> Counter[evidence.Row]:
    return sum((rows for _, rows in output(root)), Counter())


@pytest.mark.slow
@pytest.mark.parametrize("cut", few([2, 3, 4, 5, 6], 1))
def test_a_root_put_back_from_a_copy_loses_no_row(tmp_path: Path, cut: int) -> None:
    """The original goes on and delivers; then the copy is put back in its place, and other input comes."""
    root, sink = tmp_path / "root", Remembers()
    run(root, sink, STREAM[:cut])
    shutil.copytree(root, tmp_path / "copy")
    run(root, sink, STREAM, drain=True)
    went_on = rows_of(root)
    kept = rows_of(tmp_path / "copy")
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "copy", root)
    run(root, sink, STREAM[:cut] + OTHER, drain=True)
    assert sink.rows == went_on + rows_of(root) - kept
    numbers = Counter(one.checkpoint for one in {*sink.offered})
    assert (max(numbers.values()) == 2) is (cut != 5), "the copy has used numbers again"


def test_rewound_forked_and_rescaled_no_identity_comes_twice(tmp_path: Path) -> None:
    root, sink = tmp_path / "root", Remembers()
    run(root, sink, STREAM)
    rewind(Checkpoint.open(root), 4)
    fork(root, tmp_path / "fork", 4)
    rescale(root, 3)
    run(root, sink, STREAM[:3] + OTHER)
    run(tmp_path / "fork", sink, STREAM, drain=True)
    assert len(sink.offered) == len({*sink.offered}) == len({*map(str, sink.offered)})
    assert sum(sink.rows.values()) > sum(rows_of(root).values())
    assert {one for one, _ in [*output(root), *output(tmp_path / "fork")]} <= {*sink.offered}


def test_a_delivery_that_is_made_later_is_that_of_the_run_that_made_the_panes(tmp_path: Path) -> None:
    """Also when they were collected meanwhile, and the output index has them."""
    sink = Remembers()
    for number in (2, 4, 6):
        run(tmp_path, None, STREAM[:number])
    before = [one for one, _ in output(tmp_path)]
    assert len({one.run for one in before}) == 3
    collect(Checkpoint.open(tmp_path), CheckpointRetention(newest=1, grace="0 seconds"))
    run(tmp_path, sink, STREAM)
    assert sink.offered == before


def test_each_start_is_a_run_of_its_own_after_any_opener(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open_or_create(tmp_path)
    graph = bind_graph(example().graph.description, STREAM[0].schema)
    runs = [Job.begin(graph, checkpoint, Parquet(), partitions=1).head.writer for _ in range(3)]
    assert len({*runs, checkpoint.writer}) == 4


def test_a_harness_on_a_root_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    def harness(to: Remembers | None = None) -> Harness:
        return example("retracting").harness(STREAM[0].schema, folder=tmp_path, partitions=2, sink=to)

    sink = Remembers()
    before = harness(sink)
    for one in STREAM[:4]:
        before.feed(one)
    tested = harness()
    tested.feed(batch([(60, "a", 1)]))
    tested.reprocess_late()
    tested.finish()
    assert [one["delivered"]["panes"] for one in evidence.manifests(tmp_path)[5:]] == [4] * 3
    checkpoint = Checkpoint.open(tmp_path)
    rewind(checkpoint, checkpoint.ids()[-2])
    harness(sink).feed(batch([(60, "a", 1)]))
    # A harness has no clean stop, so the last delivery of the first one may be offered a second time.
    assert list(dict.fromkeys(sink.offered)) == [one for one, _ in output(tmp_path)]


def words(root: Path) -> list[Path]:
    return sorted((root / DELIVERED_FOLDER).glob("*"))


def test_a_clean_stop_acknowledges_and_a_plan_says_so(tmp_path: Path) -> None:
    run(tmp_path, Remembers(), STREAM[:5])
    checkpoint, again = Checkpoint.open(tmp_path), Remembers()
    head = checkpoint.head()
    assert head is not None
    assert (head.manifest.delivered.panes, delivered(checkpoint, head.manifest).panes) == (5, 6)
    replay = plan_replay(checkpoint, plan_reset(checkpoint, 3))
    assert [one.delivered for one in replay.panes] == [True] * 3
    run(tmp_path, again, STREAM[:5])
    assert again.offered == []
    there = words(tmp_path)
    run(tmp_path, again, STREAM[:5])
    assert words(tmp_path) == there, "where nothing was delivered nothing is recorded"


@pytest.mark.parametrize("damage", ["deleted", "emptied", "swapped", "stray"])
def test_whatever_becomes_of_the_record_nothing_is_lost(tmp_path: Path, damage: str) -> None:
    sink = Remembers()
    for number in (2, 4, 5):
        run(tmp_path, sink, STREAM[:number])
    newest, older = words(tmp_path)[-1], words(tmp_path)[0]
    if damage == "deleted":
        newest.unlink()
    elif damage == "emptied":
        newest.write_bytes(b"")
    elif damage == "swapped":
        data = newest.read_bytes()
        newest.write_bytes(older.read_bytes())
        older.write_bytes(data)
    else:
        for name in ("notes.txt", newest.name.replace(".", "x."), f"{newest.name.split('.')[0]}.{10**19}-0.json"):
            newest.with_name(name).write_bytes(b"?")
    assert plan_repair(Checkpoint.open(tmp_path)).reset is None
    offered = len(sink.offered)
    run(tmp_path, sink, STREAM, drain=True)
    assert sink.rows == rows_of(tmp_path)
    assert len(sink.offered) - len({*sink.offered}) == (damage == "deleted")
    assert offered < len(sink.offered)


def test_a_record_says_nothing_of_another_run_under_the_same_number(tmp_path: Path) -> None:
    """A root is put back from a copy, but the folder of records is still that of the original."""
    root, sink = tmp_path / "root", Remembers()
    run(root, sink, STREAM[:3])
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    run(root, sink, STREAM[:5])  # its last batch has panes, so a record
    shutil.copytree(root / DELIVERED_FOLDER, copy / DELIVERED_FOLDER, dirs_exist_ok=True)
    run(copy, None, STREAM[:5])
    assert int(words(copy)[-1].name[:20]) == Checkpoint.open(copy).ids()[-1]
    run(copy, sink, STREAM, drain=True)
    assert {one for one, _ in output(copy)} <= {*sink.offered}


def test_records_go_with_their_checkpoints(tmp_path: Path) -> None:
    for number in (2, 3, 4, 5, 6):
        run(tmp_path, Remembers(), STREAM[:number])
    newest = words(tmp_path)[-1]
    assert len(words(tmp_path)) > 2
    done = collect(Checkpoint.open(tmp_path), CheckpointRetention(newest=1, grace="0 seconds"))
    assert [one for one in done.files if one.startswith(DELIVERED_FOLDER)]
    assert words(tmp_path) == [newest] * (int(newest.name[:20]) > done.boundary)


def test_where_it_cannot_be_recorded_the_stop_is_as_clean(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = Remembers()
    runner = StandaloneRunner(example("retracting").graph.description, str(tmp_path), Parquet(), Sinks(sink), 2)
    panes = runner.stream(STREAM)
    for _ in range(5):
        next(panes)
    begun = job_of(runner)
    checkpoint = begun.checkpoint
    begun.checkpoint = replace(checkpoint, objects=FaultyObjects(checkpoint.objects, 1))
    with caplog.at_level(logging.WARNING, "tidestate"):
        panes.close()
    assert "could not be recorded" in caplog.text
    run(tmp_path, sink, STREAM)
    assert sink.offered[-1] == sink.offered[-2]
    assert sink.rows == rows_of(tmp_path)


@pytest.mark.parametrize("gone", [False, True])
def test_an_older_self_delivers_nothing_that_a_rewind_has_abandoned(tmp_path: Path, gone: bool) -> None:
    """It was stopped between its manifest and the delivery; what abandoned that may have been collected since."""
    sink = Remembers()

    def hook(moment: str, checkpoint_id: int) -> None:
        if (moment, checkpoint_id) == ("after-manifest", 4):
            rewind(Checkpoint.open(tmp_path), 3, force=True)
            if gone:
                run(tmp_path, None, STREAM[:2] + OTHER)
                collect(Checkpoint.open(tmp_path), CheckpointRetention(newest=1, grace="0 seconds"))

    older = StandaloneRunner(
        example("retracting").graph.description, str(tmp_path), Parquet(), Sinks(sink), 2, hook=hook
    )
    with pytest.raises(FencedError):
        older.run(STREAM)
    assert [one.checkpoint for one in sink.offered] == [3]
    run(tmp_path, sink, STREAM[:2] + OTHER, drain=True)
    assert sink.rows == rows_of(tmp_path)
