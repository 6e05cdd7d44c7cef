"""Input that can seek: a run begins where the one before ended, whatever dies, and reads nothing twice."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.moves import rewind
from tests.helpers.process import LONG, SCRATCH, few
from tests.helpers.worked_example import EXPECTED, STREAM, example, lines, panes
from tidestate import agg
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Parquet


class Log:
    """Batches with positions of their own; it counts what is read."""

    def __init__(self, batches: list[pa.Table], fails_at: int | None = None) -> None:
        self.batches, self.fails_at = batches, fails_at
        self.sought: list[Any] = []
        self.read: list[int] = []

    @property
    def schema(self) -> pa.Schema:
        return self.batches[0].schema

    def seek(self, position: Any) -> Iterator[tuple[Any, pa.Table]]:
        self.sought.append(position)
        for number in range(0 if position is None else position["next"], len(self.batches)):
            if number == self.fails_at:
                raise OSError("the source is gone")
            self.read.append(number)
            yield {"next": number + 1, "of": ["log"]}, self.batches[number]


def test_a_run_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    assert example().standalone(checkpoint=tmp_path).position() is None
    first = Log(STREAM[:2])
    job = example().standalone(checkpoint=tmp_path)
    job.run(first)
    assert job.position() == {"next": 2, "of": ["log"]} == example().standalone(checkpoint=tmp_path).position()
    second = Log(STREAM)
    example().standalone(checkpoint=tmp_path).run(second, drain=True)
    assert (first.sought, second.sought) == ([None], [{"next": 2, "of": ["log"]}])
    assert second.read == [2, 3, 4, 5]
    assert [line.split(" ", 1)[1] for line in panes(tmp_path)] == [
        line.split(" ", 1)[1] for line in lines(EXPECTED["accumulating"])
    ]


@settings(max_examples=settings.default.max_examples if LONG else 2)
@given(st.lists(st.integers(0, len(STREAM)), max_size=5))
def test_wherever_the_source_fails_each_batch_takes_part_once(fails: list[int]) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        for at in fails:
            with contextlib.suppress(OSError):
                example().standalone(checkpoint=folder).run(Log(STREAM, at))
        example().standalone(checkpoint=folder).run(Log(STREAM), drain=True)
        made = [m for m in evidence.manifests(Path(folder)) if m["kind"] == "batch"]
        assert [m["input"]["position"]["next"] for m in made] == [1, 2, 3, 4, 5, 6]
        assert sorted(line.split(" ", 1)[1] for line in panes(Path(folder))) == sorted(
            line.split(" ", 1)[1] for line in lines(EXPECTED["accumulating"])
        )


def test_with_nothing_new_it_drains_and_delivers(tmp_path: Path) -> None:
    example().standalone(checkpoint=tmp_path).run(Log(STREAM))
    taken: list[int] = []
    job = example().standalone(checkpoint=tmp_path, sink=lambda found, _id: taken.append(found.num_rows))
    assert job.run(Log(STREAM)).num_rows == 0
    assert sum(taken) == 6
    assert job.drain().num_rows == 1


def test_lists_have_the_number_of_their_batches(tmp_path: Path) -> None:
    job = example().standalone(checkpoint=tmp_path)
    job.run(STREAM[:3])
    assert job.position() == 3
    history = example().standalone(checkpoint=tmp_path / "history")
    history.bootstrap(STREAM[0])
    assert history.position() is None


def test_after_a_rewind_it_is_the_position_of_that_checkpoint(tmp_path: Path) -> None:
    example().standalone(checkpoint=tmp_path).run(Log(STREAM[:4]))
    checkpoint = Checkpoint.open(tmp_path)
    rewind(checkpoint, 3)
    assert example().standalone(checkpoint=tmp_path).position() == {"next": 2, "of": ["log"]}
    again = Log(STREAM)
    example().standalone(checkpoint=tmp_path).run(again, drain=True)
    assert again.read == [2, 3, 4, 5]


@pytest.mark.parametrize("wrong", [None, (1, 2), {1: 2}, object(), float("nan"), b"5"])
def test_what_is_no_position_is_refused_and_nothing_is_taken(tmp_path: Path, wrong: Any) -> None:
    class Wrong(Log):
        def seek(self, position: Any) -> Iterator[tuple[Any, pa.Table]]:
            yield wrong, self.batches[0]

    with pytest.raises(UsageError, match=r"\[position\]"):
        example().standalone(checkpoint=tmp_path).run(Wrong(STREAM))
    assert [m["kind"] for m in evidence.manifests(tmp_path)] == ["fence"]


def test_streams_by_name(tmp_path: Path) -> None:
    schema = pa.schema([("t", pa.timestamp("us", tz="UTC"))])

    class Both:
        schema = {"one": pa.schema([("t", pa.timestamp("ns", tz="UTC"))])}

        def seek(self, position: Any) -> Iterator[tuple[Any, Any]]:
            for number in range(position or 0, 3):
                yield number + 1, {"one": pa.table({"t": pa.array([number * 10**10]).cast(schema.field("t").type)})}

    only = (
        ts.stream("one", event_time="t")
        .group_by()
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count())
        .named("w")
    )
    described = only
    for _ in range(2):
        described.standalone(checkpoint=tmp_path).run(Both())
    assert described.standalone(checkpoint=tmp_path).position() == 3


@pytest.mark.parametrize("moment", ["before-manifest", "after-manifest"])
@pytest.mark.parametrize("checkpoint", few([2, 4, 7], 1))
def test_whichever_side_of_a_commit_it_dies_on(tmp_path: Path, moment: str, checkpoint: int) -> None:
    class DiedError(Exception):
        pass

    def hook(now: str, number: int) -> None:
        if (now, number) == (moment, checkpoint):
            raise DiedError

    dying = StandaloneRunner(example().graph.description, str(tmp_path), Parquet(), Sinks(), 1, hook=hook)
    with pytest.raises(DiedError):
        dying.run(Log(STREAM))
    again = Log(STREAM)
    example().standalone(checkpoint=tmp_path).run(again, drain=True)
    taken = checkpoint - 1 - (moment == "before-manifest")
    assert again.read == list(range(taken, len(STREAM)))
    assert [line.split(" ", 1)[1] for line in panes(tmp_path)] == [
        line.split(" ", 1)[1] for line in lines(EXPECTED["accumulating"])
    ]
