"""A second start on a checkpoint: the same input continues, anything else is refused before anything is changed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.changed_jobs import changed
from tests.helpers.process import few, forget, longer
from tests.helpers.worked_example import EXPECTED, STREAM, batch, example, lines, panes
from tidestate import agg
from tidestate.statestore.errors import CorruptionError, IncompatibleError, UsageError


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def without_id(rows: list[str]) -> list[str]:
    return sorted(line.split(" ", 1)[1] for line in rows)


@pytest.mark.parametrize("stops", few([[1], [2, 4], [1, 2, 3, 4, 5, 6]], 1), ids=str)
def test_the_same_call_continues_where_it_stopped(tmp_path: Path, stops: list[int]) -> None:
    for stop in stops:
        example("retracting").standalone(checkpoint=tmp_path, partitions=2).run(STREAM[:stop])
        forget()
    example("retracting").standalone(checkpoint=tmp_path, partitions=2).run(STREAM, drain=True)
    assert without_id(panes(tmp_path)) == without_id(lines(EXPECTED["retracting"]))
    assert evidence.manifests(tmp_path)[-1]["epoch"] == len(stops) + 1


def test_the_number_of_partitions_is_that_of_the_first_start(tmp_path: Path) -> None:
    example().standalone(checkpoint=tmp_path, partitions=3).run(STREAM[:3])
    example().standalone(checkpoint=tmp_path, partitions=7).run(STREAM, drain=True)
    assert len(evidence.manifests(tmp_path)[-1]["operators"]["windows"]["partitions"]) == 3
    assert without_id(panes(tmp_path)) == without_id(lines(EXPECTED["accumulating"]))


def test_an_input_whose_newest_batch_differs_is_refused(tmp_path: Path) -> None:
    example().standalone(checkpoint=tmp_path).run(STREAM[:2])
    with pytest.raises(IncompatibleError) as caught:
        example().standalone(checkpoint=tmp_path).run([STREAM[0], batch([(13, "a", 5)])])
    assert (caught.value.code, caught.value.context) == ("input-differs", {"batch": 1})
    assert [m["kind"] for m in evidence.manifests(tmp_path)] == ["fence", "batch", "batch", "fence"]


@pytest.mark.parametrize("cuts", [*longer((1,), (0, 2)), (1, 2)], ids=str)
def test_the_same_rows_in_other_chunks_are_the_same_input(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    example().standalone(checkpoint=tmp_path).run(STREAM[:1])
    bounds = zip([0, *cuts], [*cuts, 3], strict=True)
    chunked = pa.concat_tables([STREAM[0].slice(first, last - first) for first, last in bounds])
    assert chunked["t"].num_chunks > 1
    example().standalone(checkpoint=tmp_path).run([chunked, *STREAM[1:]], drain=True)
    assert without_id(panes(tmp_path)) == without_id(lines(EXPECTED["accumulating"]))


def test_the_same_rows_as_a_slice_are_the_same_input(tmp_path: Path) -> None:
    rows = [(1, "a", 1), (2, None, None), (3, "c", 3), (None, "d", None)]
    example().standalone(checkpoint=tmp_path).run([batch([(0, "x", 0), *rows, (9, "y", None)]).slice(1, 4)])
    example().standalone(checkpoint=tmp_path).run([batch(rows)])
    assert evidence.manifests(tmp_path)[-1]["totals"]["events"] == 4


def test_a_drained_checkpoint_takes_no_new_input(tmp_path: Path) -> None:
    example().standalone(checkpoint=tmp_path).run(STREAM[:2], drain=True)
    head = evidence.manifests(tmp_path)[-1]
    with pytest.raises(UsageError) as caught:
        example().standalone(checkpoint=tmp_path).run(STREAM)
    assert caught.value.code == "drained"
    assert evidence.manifests(tmp_path)[-1]["input"] == head["input"]
    assert evidence.manifests(tmp_path)[-1]["drained"]


def test_a_drained_checkpoint_may_be_run_again_without_new_input(tmp_path: Path) -> None:
    example().standalone(checkpoint=tmp_path).run(STREAM, drain=True)
    again = example().standalone(checkpoint=tmp_path).run(STREAM, drain=True)
    assert again.num_rows == 0
    assert panes(tmp_path) == lines(EXPECTED["accumulating"])


def test_a_window_of_another_size_is_emitted_and_refused(tmp_path: Path) -> None:
    example().standalone(checkpoint=tmp_path).run(STREAM[:3])
    before = snapshot(tmp_path)
    smaller = changed(example(), windows=ts.tumbling("5 seconds")).allowed_lateness("30 seconds")
    with pytest.raises(IncompatibleError) as caught:
        smaller.standalone(checkpoint=tmp_path).run(STREAM)
    assert (caught.value.code, caught.value.context) == (
        "configuration-changed",
        {
            "operator": "windows",
            "changed": {"window": 'tumbling("10 seconds") -> tumbling("5 seconds")'},
            "why": {"window": "state is kept by window"},
        },
    )
    assert snapshot(tmp_path) == before


def test_an_input_of_narrower_types_is_refused(tmp_path: Path) -> None:
    example().standalone(checkpoint=tmp_path).run(STREAM[:1])
    before = snapshot(tmp_path)
    narrow = STREAM[0].set_column(2, "v", STREAM[0]["v"].cast(pa.int32()))
    with pytest.raises(IncompatibleError) as caught:
        example().standalone(checkpoint=tmp_path).run([narrow])
    assert caught.value.code == "configuration-changed"
    assert caught.value.context["changed"] == {"column v": "int64 -> int32"}
    assert snapshot(tmp_path) == before


def test_another_jobs_checkpoint_is_refused(tmp_path: Path) -> None:
    example().standalone(checkpoint=tmp_path).run(STREAM[:1])
    before = snapshot(tmp_path)
    other = ts.stream(event_time="t").group_by("k").window(ts.sliding("10 seconds", "5 seconds"))
    with pytest.raises(IncompatibleError) as caught:
        (
            other.aggregate(n=agg.count(), total=agg.sum("v"))
            .named("others")
            .standalone(checkpoint=tmp_path)
            .run(STREAM)
        )
    assert caught.value.code == "other-job"
    assert caught.value.context == {"expected": "others", "found": ["windows"]}
    assert snapshot(tmp_path) == before


def test_a_damaged_state_file_stops_the_job_and_changes_nothing(tmp_path: Path) -> None:
    example().standalone(checkpoint=tmp_path).run(STREAM[:4])
    (state,) = evidence.manifests(tmp_path)[-1]["operators"]["windows"]["partitions"]
    damaged = [one["path"] for one in state["files"] if one["table"] == "parts"][-1]  # read when it is due
    path = tmp_path / damaged
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    forget()
    with pytest.raises(CorruptionError) as caught:
        example().standalone(checkpoint=tmp_path).run(STREAM)
    assert caught.value.context["path"] == damaged
    assert [m["kind"] for m in evidence.manifests(tmp_path)] == ["fence", *["batch"] * 4, "fence"]
    path.write_bytes(whole)
    example().standalone(checkpoint=tmp_path).run(STREAM, drain=True)
    assert without_id(panes(tmp_path)) == without_id(lines(EXPECTED["accumulating"]))
