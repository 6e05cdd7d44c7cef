"""More lateness than before: all late events of a window that is kept are taken, whatever refused them before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.process import few
from tests.helpers.root_scans import scan_late
from tidestate import Aggregation, agg
from tidestate.operators.describe.windows import Windows
from tidestate.operators.inspect.query import query
from tidestate.statestore.spec.tables import TIME

FIRST, THEN = [[1], [15]], [[9], [3], [-5]]
"""With W at 15 and 8 seconds of lateness windows that end by 7 are forgotten. Later there are 60 seconds."""


def rows_of(seconds: list[int]) -> pa.Table:
    times = pa.array([second * 1_000_000 for second in seconds], TIME)
    return pa.table({"t": times, "v": pa.array(seconds, pa.int64())})


def described(windows: Windows, lateness: str, rule: Any) -> Aggregation:
    began = ts.stream(event_time="t").group_by().window(windows).aggregate(n=agg.count(), values=agg.list("v"))
    return began.allowed_lateness(lateness, rule=rule).accumulation("retracting")


def kept_and_rejected(root: Path, windows: Windows, rule: Any) -> tuple[dict[int, list[int]], list[int]]:
    described(windows, "8 seconds", rule).standalone(checkpoint=root).run([rows_of(part) for part in FIRST])
    described(windows, "60 seconds", rule).standalone(checkpoint=root).run(
        [rows_of(part) for part in [*FIRST, *THEN]]
    )
    kept = {
        row["window_start"].timestamp(): sorted(row["values"])
        for row in query(root).get_windows().to_pylist()
        if row["values"]
    }
    ledger = scan_late(root).to_table()["t"].cast(pa.int64())
    return kept, [us // 1_000_000 for us in ledger.to_pylist()]


@pytest.mark.parametrize("rule", few(["event", "window"], 1))
@pytest.mark.parametrize(
    ("windows", "kept", "rejected"),
    [
        (ts.tumbling("10 seconds"), {0: [1, 3, 9], 10: [15]}, [-5]),
        (ts.sliding("10 seconds", "5 seconds"), {0: [1, 3, 9], 5: [9], 10: [15], 15: [15]}, [3, -5]),
    ],
    ids=["tumbling", "sliding"],
)
def test_a_window_that_is_kept_takes_all_of_its_events(
    tmp_path: Path, windows: Windows, kept: dict[int, list[int]], rejected: list[int], rule: str
) -> None:
    """Of sliding windows [-5, 5) was forgotten: it refuses 3, which [0, 10) takes. All of those of -5 were."""
    assert kept_and_rejected(tmp_path, windows, rule) == (kept, rejected)


@pytest.mark.parametrize("windows", few([ts.global_window(), ts.count_windows(10)], 0), ids=["global", "counted"])
def test_windows_that_never_end_refuse_nothing_by_what_was_forgotten(tmp_path: Path, windows: Windows) -> None:
    root = tmp_path / "root"
    described(windows, "8 seconds", "event").standalone(checkpoint=root).run([rows_of(part) for part in FIRST])
    more = described(windows, "60 seconds", "event").standalone(checkpoint=root)
    more.run([rows_of(part) for part in [*FIRST, *THEN]])
    assert query(root).get_windows()["n"].to_pylist() == [5]
    assert scan_late(root).to_table().num_rows == 0


def test_a_session_takes_none_from_before_what_was_forgotten(tmp_path: Path) -> None:
    """A session that ended by 7 is forgotten: an event at 3 could have been one of its own."""
    kept, rejected = kept_and_rejected(tmp_path, ts.sessions("10 seconds"), "event")
    assert kept == {1: [1, 9, 15]}
    assert rejected == [3, -5]


def test_identities_that_were_forgotten_are_not_taken_again(tmp_path: Path) -> None:
    """The message at 3 came before the restart: whether it did is not known any more."""

    def job(lateness: str) -> Aggregation:
        began = ts.stream(event_time="t", offset="i", origin="o").group_by().window(ts.tumbling("10 seconds"))
        return began.aggregate(n=agg.count()).messages(identity=["o", "i"]).allowed_lateness(lateness)

    parts = [rows_of(part) for part in [[1, 3], [15], [3], [9]]]
    numbers = [[0, 1], [2], [1], [3]]
    batches = [
        part.append_column("o", pa.array([0] * len(own), pa.int64())).append_column("i", pa.array(own, pa.int64()))
        for part, own in zip(parts, numbers, strict=True)
    ]
    job("8 seconds").standalone(checkpoint=tmp_path).run(batches[:2])
    job("60 seconds").standalone(checkpoint=tmp_path).run(batches)
    assert query(tmp_path).get_windows()["n"].to_pylist()[0] == 3
