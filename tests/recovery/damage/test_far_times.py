"""Times that Python's calendar does not hold, and numbers without end: verbs print the ones and refuse the others."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import Result
from typer.testing import CliRunner

import tidestate as ts
from tests.helpers.process import LONG, longer
from tidestate import agg, trigger
from tidestate.operators.engine.bootstrap import offset_text
from tidestate.operators.inspect.history.bounds import BoundUnit
from tidestate.recovery.cli.main import app
from tidestate.recovery.cli.printing import values_of
from tidestate.recovery.inspect.rows import Wanted
from tidestate.recovery.log.summary import time_text
from tidestate.statestore.durations import span_us
from tidestate.statestore.errors import TidestateError, UsageError

US = pa.timestamp("us", tz="UTC")
DAY = 86_400_000_000
FAR = 400_000_000 * 1_000_000_000  # the year 14645
LONG_AGO = -70_000_000_000 * 1_000_000  # the year -248
SCHEMA = pa.schema([("t", US), ("k", pa.string()), ("seen", US)])
NUMBERS = ["9" * 5000, "9" * 20, str(2**63 - 1), str(2**63), f"-{2**63 + 1}", "-1", "0", "²", "٣", "1e3", "1_0"]


def root_with(folder: Path, kind: str) -> Path:
    """Windows that have observed panes and refused events, of times before the first year and after the last."""
    described = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 day") if kind == "tumbling" else ts.sessions("1 day"))
    )
    described = described.aggregate(n=agg.count(), seen=agg.max("seen"), all=agg.list("seen")).trigger(
        early=trigger.each_batch()
    )
    tested = described.allowed_lateness("0 seconds").harness(SCHEMA, folder=folder)
    for at in (FAR, 0, 10 * DAY, LONG_AGO, FAR + 3 * DAY):
        tested.feed([{"t": at, "k": "a", "seen": at}])
    return folder


@pytest.fixture(scope="module", params=["tumbling", "session"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return root_with(tmp_path_factory.mktemp("far") / "root", request.param)


TUMBLING = pytest.mark.parametrize("root", ["tumbling", *longer("session")], indirect=True)


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [arguments[0], str(root), *arguments[1:]], env={"COLUMNS": "300"})


@pytest.mark.parametrize("verb", ["panes", "late", "state"])
def test_rows_of_far_times_are_printed(root: Path, verb: str, tmp_path: Path) -> None:
    far = f"{LONG_AGO} us" if verb == "late" else f"{FAR} us"
    table = run(root, verb)
    assert table.exception is None
    assert far in table.output
    for form in ("json", "csv"):
        path = tmp_path / form
        done = run(root, verb, "--format", form, "--output", str(path))
        assert done.exception is None
        text = path.read_text()
        assert far in text
        rows = (
            [json.loads(line) for line in text.splitlines()]
            if form == "json"
            else list(csv.DictReader(io.StringIO(text)))
        )
        assert all(isinstance(row["k"], str) for row in rows)
    for form in ("arrow", "parquet"):
        assert run(root, verb, "--format", form, "--output", str(tmp_path / form)).exception is None


@pytest.mark.slow
@TUMBLING
def test_the_history_and_the_report_of_a_far_window(root: Path, tmp_path: Path) -> None:
    for extra in ([], ["--json"]):
        done = run(root, "history", "--key", "k=a", "--window", f"{FAR} us", *extra)
        assert done.exception is None
        assert f"{FAR} us" in done.output
    rows = run(root, "panes", "--since", f"{FAR} us")
    assert rows.exception is None
    assert "1970" not in rows.output
    assert f"{FAR} us" in rows.output
    for verb in (["list"], ["show", "2"], ["verify"], ["diff", "1", "5"]):
        assert run(root, *verb).exception is None
    assert run(root, "report", "--output", str(tmp_path / "report.html")).exception is None


def test_values_of_all_kinds_that_python_cannot_hold() -> None:
    moments = pa.array([FAR, None, 0], US)
    (far, nothing, known) = values_of(pa.chunked_array([moments]))
    assert (far, nothing, known.year) == (f"{FAR} us", None, 1970)
    entries = pa.array([[("k", FAR)]], pa.map_(pa.string(), US))
    fields = pa.array([{"x": [FAR], "y": 1}], pa.struct([("x", pa.list_(US)), ("y", pa.int8())]))
    assert values_of(pa.chunked_array([entries])) == [[("k", f"{FAR} us")]]
    assert values_of(pa.chunked_array([fields])) == [{"x": [f"{FAR} us"], "y": 1}]
    assert values_of(pa.chunked_array([moments.dictionary_encode()]))[0] == f"{FAR} us"
    for kind, unit in ((pa.date32(), "days"), (pa.date64(), "ms"), (pa.timestamp("s"), "s"), (pa.duration("s"), "s")):
        number = 2**31 - 1 if unit == "days" else 86_400_000 * 2**33
        ((text),) = values_of(
            pa.chunked_array(
                [pa.array([number], pa.int64()).cast(pa.int32() if unit == "days" else pa.int64()).view(kind)]
            )
        )
        assert text == f"{number} {unit}"
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff")]
    )
    assert values_of(pa.chunked_array([broken])) == ["a\ufffd"]


def test_a_time_that_is_printed_is_read_again() -> None:
    for place in (FAR, LONG_AGO, 0, 2**63 - 2, -(2**63)):
        text = time_text(place) or ""
        assert BoundUnit(True).place(text) == place
        assert Wanted(window=text).of(pa.table({"window_start": pa.array([place], US)})).num_rows == 1
    for number in NUMBERS:
        for measure, text in ((BoundUnit(True), f"{number} us"), (BoundUnit(False), number)):
            try:
                assert -(2**63) <= measure.place(text) < 2**63
            except UsageError as error:
                assert len(str(error)) < 1000  # noqa: PT017


@pytest.mark.slow
@TUMBLING
@pytest.mark.parametrize(
    "verb",
    [
        ["state", "--limit", "N"],
        ["panes", "--limit", "N"],
        ["rewind", "--to", "N"],
        ["show", "N"],
        ["list", "--last", "N"],
        ["gc", "--age", "N s"],
        ["gc", "--newest", "1", "--grace", "N"],
        ["history", "--key", "k=a", "--window", "N"],
        ["state", "--window", "N us"],
    ],
)
def test_numbers_without_end(root: Path, verb: list[str]) -> None:
    """A third of them with each verb; in the long form all."""
    for number in NUMBERS if LONG else NUMBERS[len(verb[0]) % 3 :: 3]:
        done = run(root, *(part.replace("N", number) for part in verb))
        assert isinstance(done.exception, TidestateError | SystemExit | None), (
            number[:30],
            repr(done.exception)[:200],
        )
        assert len(str(done.exception)) < 1000


def test_spans_and_offsets_of_numbers_without_end() -> None:
    for number in NUMBERS:
        for text in (f"{number} s", f"1 hour {number} us"):
            try:
                span_us(text)
            except UsageError as error:
                assert error.code == "span"  # noqa: PT017
    assert offset_text({"flights": {0: 5}}, "kafka") == '{"flights":{"0":5}}'
    with pytest.raises(UsageError):
        offset_text({"flights": {"²": 5}}, "kafka")
