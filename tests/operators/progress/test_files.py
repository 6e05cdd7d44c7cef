"""Files as origins: each appears, gives its buffers and ends, in one batch or over several, in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.internals import head_of, job_of, operator_of
from tests.helpers.process import SCRATCH
from tidestate import Aggregation, agg, watermark
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.local.harness import Harness
from tidestate.operators.progress.progress import restarted_progress
from tidestate.statestore.spec.store import Memory

SECOND = 1_000_000
SCHEMA = pa.schema(
    [
        ("t", pa.timestamp("us", tz="UTC")),
        ("file", pa.int64()),
        ("part", pa.int64()),
        ("mark", pa.int64()),
        ("end", pa.bool_()),
    ]
)
Part = tuple[int, int, int, bool]
"""File, number, second of its only event, whether it is the file's last."""


def job(sources: list[str], **given_: str) -> Aggregation:
    progress = watermark.buffers(origin="file", sequence="part", watermark="mark", end="end", **given_)
    events = ts.stream(event_time="t").watermark(progress, sources=sources)
    described = events.group_by().window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    return described.allowed_lateness("0 seconds")


def rows(*parts: Part) -> pa.Table:
    columns = [{"t": t * SECOND, "file": f, "part": p, "mark": t * SECOND, "end": end} for f, p, t, end in parts]
    return pa.Table.from_pylist(columns, SCHEMA)


def harness(folder: str | Path, *sources: str, **given_: str) -> Harness:
    return job([*sources], **given_).harness(SCHEMA, folder=Path(folder) / "root", store=Memory())


def mark(tested: Harness) -> float | None:
    found = head_of(tested).watermark_us
    return None if found is None else found / SECOND


def test_a_file_that_appears_and_ends_in_one_batch_freezes_nothing(tmp_path: Path) -> None:
    tested = harness(tmp_path)
    for number in range(3):
        panes = tested.feed(rows((number, 1, 10 * number + 5, False), (number, 2, 10 * number + 12, True)))
        assert mark(tested) == 10 * number + 12
        assert panes["n"].to_pylist() == [1 + (number > 0)]
    assert tested.ledger().num_rows == 0
    tested.restart()
    tested.feed(rows((7, 1, 40, True), (8, 1, 44, False)))
    assert mark(tested) == 44
    assert _state(tested)[0] == [8]


def test_when_all_declared_origins_have_ended_another_one_may_be_on_time(tmp_path: Path) -> None:
    tested = harness(tmp_path, "1", "2")
    tested.feed(rows((1, 1, 5, True)))
    assert mark(tested) is None  # 2 holds it
    tested.feed(rows((2, 1, 3, True)))
    assert mark(tested) == 5
    for _ in range(2):
        tested.restart()  # a declared one that has ended does not come back
        tested.feed(rows((3, 1, 8, False)))
    tested.feed(rows((3, 2, 12, True)))
    assert mark(tested) == 12
    assert tested.ledger()["reason"].to_pylist() == ["duplicate_buffer"]


def test_what_is_left_of_a_file_that_has_ended_is_no_origin_of_its_own(tmp_path: Path) -> None:
    """A file delivered again, a straggler of it, or a number that is none, would hold the watermark forever."""
    tested = harness(tmp_path)
    tested.feed(rows((1, 1, 5, False), (1, 2, 6, True)))
    tested.feed(rows((1, 1, 5, False), (1, 2, 6, True), (1, 9, 60, False), (2, 0, 30, False), (3, 1, 20, True)))
    assert mark(tested) == 20
    assert _state(tested) == ([], {})
    assert tested.ledger()["reason"].to_pylist() == ["duplicate_buffer"] * 3


def test_a_source_that_is_declared_later_holds_the_watermark(tmp_path: Path) -> None:
    tested = harness(tmp_path, "1")
    tested.feed(rows((1, 1, 5, False)))
    (progress,) = job_of(tested).progress.values()
    (plan,) = bind_graph(job(["1", "2"]).graph.description, SCHEMA).plans.values()
    grown = restarted_progress(plan.input.watermarks, progress)
    assert [origin for origin, *_ in grown.generator.buffers[""].origins.origins] == [1, 2]
    assert sorted(grown.sources) == ["1", "2"]


@st.composite
def histories(draw: st.DrawFn) -> list[list[Part] | None]:
    """Batches of parts of files, and restarts (None)."""
    parts: list[tuple[int, Part]] = []
    for file in range(draw(st.integers(1, 6))):
        seconds = draw(st.lists(st.integers(0, 60), min_size=1, max_size=4))
        first = draw(st.integers(0, 5))
        over = draw(st.sampled_from([0, 0, 3]))
        for number, second in enumerate(seconds, 1):
            parts.append((first + draw(st.integers(0, over)), (file, number, second, number == len(seconds))))
    batches: list[list[Part] | None] = []
    for number in range(9):
        here = [part for place, part in parts if place == number]
        batches += [draw(st.permutations(here))] * bool(here) + [None] * draw(st.integers(0, 1))
    return batches


class Twin:
    """File by file, in plain words."""

    def __init__(self) -> None:
        self.w, self.reached, self.live, self.ended = -1, -1, {}, set()

    def take(self, batch: list[Part]) -> int:
        """How many of these rows come too late."""
        late = sum(second < self.w for _, _, second, _ in batch)
        for file, number, second, end in batch:
            self.live.setdefault(file, {"joined": self.w, "parts": {}, "final": None})["parts"][number] = second
            self.live[file]["final"] = number if end else self.live[file]["final"]
        marks = []
        for file, one in list(self.live.items()):
            whole = 0
            while whole + 1 in one["parts"]:
                whole += 1
            reached = max([one["joined"], *(one["parts"][number] for number in range(1, whole + 1))])
            if one["final"] is not None and whole == one["final"]:
                self.reached = max(self.reached, reached)
                del self.live[file]
            else:
                marks.append(reached)
        self.w = max(self.w, min(marks) if marks else self.reached)
        return late


@settings(max_examples=max(3, settings.default.max_examples // 2))
@given(history=histories())
def test_files_in_any_order_move_the_watermark_and_lose_nothing_that_is_on_time(
    history: list[list[Part] | None],
) -> None:
    twin, late = Twin(), 0
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        tested = harness(folder)
        for batch in history:
            if batch is None:
                tested.restart()
                continue
            late += twin.take(batch)
            tested.feed(rows(*batch))
            assert (-1 if mark(tested) is None else mark(tested)) == twin.w
            assert tested.ledger().num_rows == late
        assert set(tested.ledger()["reason"].to_pylist()) <= {"very_late"}
        assert _state(tested) == ([], {})  # nothing is left of files that have ended
        assert len(_origins(tested)["ended_ids"]) == 1


def _state(tested: Harness) -> tuple[list[int], dict]:
    """What is kept of origins, and of sources."""
    operator = operator_of(tested)
    return [origin for origin, *_ in _origins(tested)["origins"]], operator.progress["sources"]


def _origins(tested: Harness) -> dict:
    operator = operator_of(tested)
    return operator.buffers["origins"]
