"""A run counts its batches for a bar, where there is somebody to look at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidestate.agg import count
from tidestate.operators import tumbling
from tidestate.operators.describe.windowed import windowed

TABLE = pa.table({"t": pa.array([1_000_000], pa.timestamp("us", "UTC"))})
JOB = windowed(event_time="t").window(tumbling("10 seconds")).aggregate(n=count())


class Sought:
    schema = TABLE.schema

    def seek(self, position: Any) -> Iterator[tuple[int, pa.Table]]:
        yield from ((number, TABLE) for number in range((position or 0) + 1, 4))


INPUTS: dict[str, tuple[Any, list[tuple[int, int | None]]]] = {
    "a list": ([TABLE, TABLE], [(0, 2), (1, 2)]),
    "a table": (TABLE, [(0, 1)]),
    "a generator": ((TABLE for _ in range(2)), [(0, None), (1, None)]),
    "what is sought": (Sought(), [(1, None), (2, None), (3, None)]),
}


@pytest.mark.parametrize("name", INPUTS)
def test_batches_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    counted: list[tuple[str, int, int | None]] = []

    @contextmanager
    def bar() -> Iterator[Any]:
        yield lambda *counts: counted.append(counts)

    monkeypatch.setattr("tidestate.recovery.cli.progress_bar.bar", bar)
    batches, expected = INPUTS[name]
    JOB.standalone(checkpoint=tmp_path / "no terminal").run(TABLE)
    monkeypatch.setattr("tidestate.operators.local.standalone.shows_bars", lambda: True)
    JOB.standalone(checkpoint=tmp_path / "not wanted").run(TABLE, progress=False)
    assert counted == []
    panes = JOB.standalone(checkpoint=tmp_path / "root").run(batches, drain=True)
    assert panes["n"].to_pylist() == [len(expected)]
    assert counted == [("batches", *counts) for counts in expected]
