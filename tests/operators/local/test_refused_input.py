"""What a standalone run refuses: input that is none, and values of another kind than they are for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tidestate import agg
from tidestate.statestore.errors import UsageError

TIME = pa.timestamp("us", tz="UTC")
ROWS = pa.table({"t": pa.array([datetime(2026, 1, 1, tzinfo=UTC)], TIME), "k": ["a"]})
JOB = ts.stream(event_time="t").group_by("k").window(ts.tumbling("1 minute")).aggregate(n=agg.count())


class Seeking:
    """A source that can seek, and returns this."""

    schema = ROWS.schema

    def __init__(self, following: Any) -> None:
        self.following = following

    def seek(self, _position: Any) -> Any:
        return self.following


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a batch of no stream": (lambda run: run.run({}), "streams"),
    "a source that returns nothing": (lambda run: run.run(Seeking(None)), "position"),
    "a source without positions": (lambda run: run.run(Seeking(iter([5]))), "position"),
    "text for a drain": (lambda run: run.run([ROWS], drain="no"), "argument"),
    "text for a bar": (lambda run: run.run([ROWS], progress="no"), "argument"),
    "text for a time": (lambda run: (run.run([ROWS]), run.drain(timeout_s="x")), "argument"),
    "a provider that is none": (lambda run: (run.run([ROWS]), run.opentelemetry(5)), "argument"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str) -> None:
    call, code = REFUSED[name]
    running = JOB.standalone(checkpoint=tmp_path / "root")
    with pytest.raises(UsageError) as caught:
        call(running)
    assert caught.value.code == code
    assert running.run([ROWS], drain=True).num_rows == 1


def test_decimals_in_hundreds_are_whole_numbers(tmp_path: Path) -> None:
    hundreds = pa.array([Decimal("1E2"), Decimal("-3E2"), None], pa.decimal128(5, -2))
    times = pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 3, TIME)
    job = ts.stream(event_time="t").group_by().window(ts.tumbling("1 minute")).aggregate(total=agg.sum("v"))
    panes = job.standalone(checkpoint=tmp_path).run([pa.table({"t": times, "v": hundreds})], drain=True)
    assert panes["total"].to_pylist() == [Decimal(-200)]
    far = pa.table({"t": times, "v": pa.nulls(3, pa.decimal256(76, -1))})
    with pytest.raises(UsageError, match="batch-type"):
        job.standalone(checkpoint=tmp_path / "far").run([far])
