"""The windows in a report: of sessions, of sides of joins, counted."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tests.helpers.join_operator_messages import Row, of_offsets, sessions, sided
from tests.helpers.join_operator_messages import operator as join_operator
from tests.helpers.report_page import charts, text_of
from tidestate.agg import count
from tidestate.operators import tumbling
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.describe.windows import count_window
from tidestate.operators.inspect.report.document import write_report
from tidestate.operators.local.harness import Harness

SCHEMA = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("k", pa.string())])


@pytest.mark.parametrize(
    ("kind", "session"),
    [("times", "1970-01-01 00:00:04 to 1970-01-01 00:00:08 a open 2"), ("offsets", "4 to 8 a open 2")],
)
def test_sessions_of_joins_are_by_their_key_with_times_as_times(kind: str, session: str, tmp_path: Path) -> None:
    job = sessions(gap="3 seconds") if kind == "times" else of_offsets()
    made = [Row(side, side, at, at, "a", 1) for at, side in enumerate(["left", "right"] * 3) if at in (0, 1, 4, 5)]
    with join_operator(job, tmp_path / "root", partitions=2) as running:
        running.add_messages(**sided(made))
        running.flush()
    write_report(tmp_path / "root", tmp_path / "report.html")
    assert session in text_of(tmp_path / "report.html")
    assert "left open" not in text_of(tmp_path / "report.html")


def test_windows_of_sides_by_offset_are_numbers(tmp_path: Path) -> None:
    windows = (count_window(4, by="offset"), tumbling("6 seconds"))
    made = [Row(side, "x", at, at, "a", 1) for at in range(6) for side in ("left", "right")]
    for own, observed in ((windows[:1], "4 to 8 left open"), (windows, "00:00:06 right open")):
        root = tmp_path / observed[:4].strip()
        described = join(event_time="t", on="k", offset="at", window=own if len(own) == 2 else own * 2)
        with join_operator(described, root) as running:
            running.add_messages(**sided(made))
            running.flush()
        (tmp_path / "report.html").unlink(missing_ok=True)
        write_report(root, tmp_path / "report.html")
        answered = text_of(tmp_path / "report.html")
        assert observed in answered
        assert "00:00:00.000004" not in answered
    assert "windows of the side left are of offsets" in answered


def test_counted_windows_have_no_line_of_a_watermark_that_is_a_time(tmp_path: Path) -> None:
    base = windowed(event_time="t", key="k", name="one").window(count_window(3)).aggregate(n=count())
    tested = Harness(base, SCHEMA, folder=tmp_path / "root")
    tested.feed([{"t": second * 1_000_000, "k": "a"} for second in range(7)])
    write_report(tmp_path / "root", tmp_path / "report.html")
    assert "7000000" not in json.dumps(charts(tmp_path / "report.html")["windows-0"])
    assert "6 to 9 a open" in text_of(tmp_path / "report.html")
