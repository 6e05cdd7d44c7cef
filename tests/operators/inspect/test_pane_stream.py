"""The panes as a stream, without Spark: each row once from position to position, whatever is collected or rewound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.moves import rewind
from tests.helpers.scanned import Row, run
from tests.helpers.worked_example import STREAM
from tidestate.operators.inspect.pane_stream import NewestPanes, PaneStream, StreamOffset
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import IncompatibleError, NotFoundError


def read(stream: PaneStream, start: StreamOffset, end: StreamOffset) -> list[Row]:
    return stream.between(start, end).dataset().to_table().to_pylist()


def after(given: list[Row], checkpoint: int) -> list[Row]:
    return [row for row in given if row["checkpoint"] > checkpoint]


def test_from_position_to_position_each_row_comes_once(tmp_path: Path) -> None:
    sink, stream = run(tmp_path), PaneStream(str(tmp_path))
    newest = stream.newest()
    assert newest["checkpoint"] == 6, "the newest checkpoint has no panes"
    assert read(stream, stream.first(), newest) == sink.rows
    for number in range(1, 7):
        here = {"checkpoint": number, "run": newest["run"]}
        assert read(stream, stream.first(), here) == sink.until(number)
        assert read(stream, here, newest) == after(sink.rows, number)
        since = PaneStream(str(tmp_path), since=str(number))
        assert read(since, since.first(), newest) == after(sink.rows, number)
    assert stream.newest(newest) == newest


def test_what_is_published_meanwhile_is_seen(tmp_path: Path) -> None:
    run(tmp_path, stream=STREAM[:3])
    stream = PaneStream(str(tmp_path))
    asked = NewestPanes(stream)
    first = asked.position()
    assert first["checkpoint"] == 4
    sink = run(tmp_path)
    then = asked.position()
    assert (read(stream, first, then), then["run"] != first["run"]) == (sink.rows, True)


def test_a_stream_begins_with_what_is_left_and_misses_nothing_in_between(tmp_path: Path) -> None:
    sink, stream, root = run(tmp_path), PaneStream(str(tmp_path)), Checkpoint.open(tmp_path)
    early: StreamOffset = {"checkpoint": 3, "run": stream.newest()["run"]}
    collect(root, CheckpointRetention(newest=1, grace="0 seconds"))
    assert read(stream, stream.first(), stream.newest()) == sink.rows, "checkpoints have gone, panes have not"
    assert read(stream, early, stream.newest()) == after(sink.rows, 3)
    run(tmp_path)
    collect(root, CheckpointRetention(newest=1, grace="0 seconds", panes="0 seconds"))
    assert stream.first()["checkpoint"] == root.boundary().panes_gone >= 6
    with pytest.raises(NotFoundError, match="collected"):
        stream.between(early, stream.newest())


def test_a_root_that_was_begun_again_is_another_one(tmp_path: Path) -> None:
    """It has as many checkpoints, with the same panes, of other runs."""
    first, second = ([run(tmp_path / name), PaneStream(str(tmp_path / name))] for name in ("first", "second"))
    stream: Any = second[1]
    position = first[1].newest()  # type: ignore[attr-defined]
    assert position["checkpoint"] == stream.newest()["checkpoint"]
    for start, end in ((position, stream.newest()), (stream.first(), position)):
        with pytest.raises(IncompatibleError, match="stream-root"):
            stream.between(start, end)


def test_a_rewind_to_before_a_position_is_seen_and_one_to_after_it_is_not(tmp_path: Path) -> None:
    run(tmp_path)
    stream, again = (PaneStream(str(tmp_path), again=choice) for choice in (False, True))
    run_before = stream.newest()["run"]
    rewind(Checkpoint.open(tmp_path), 4)
    sink: Any = run(tmp_path)
    for number in (3, 4):
        position = {"checkpoint": number, "run": run_before}
        assert after(read(stream, position, stream.newest()), 4) == sink.rows
    for number in (5, 6):
        position = {"checkpoint": number, "run": run_before}
        with pytest.raises(IncompatibleError, match=r"stream-rewound.*withdrawn_from=5"):
            stream.between(position, stream.newest())
        assert read(again, position, again.newest()) == sink.rows
