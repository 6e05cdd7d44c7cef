"""`Root` reads what the functions behind it read, as of any checkpoint."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import tidestate as ts
from tests.helpers.join_operator_messages import near, sessions, sided, two_streams
from tests.helpers.join_operator_messages import operator as join_operator
from tests.helpers.moves import rewind
from tests.helpers.operator_messages import SCHEMA, description, operator, stream, table
from tests.helpers.root_scans import scan_changes, scan_checkpoints, scan_late, scan_panes, scan_state
from tests.helpers.scanned import run
from tests.helpers.worked_example import STREAM, example
from tidestate import NotFoundError, Root, UsageError, agg, sliding
from tidestate.operators.inspect.query import query
from tidestate.operators.root.rows import AnsweredRows
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.messages.tables import Retention
from tidestate.stores import Parquet


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worked example after its six batches, checkpoints 1 to 7."""
    made = tmp_path_factory.mktemp("readers") / "root"
    run(made)
    return made


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An operator by hand, which keeps messages and has a result of a function of its own."""
    made = tmp_path_factory.mktemp("kept")
    job = description(sliding("6 seconds", "2 seconds"))
    with operator(job, made, Parquet(), retention=Retention(count=1000)) as running:
        for batch in stream(1)[:3]:
            running.add_messages(table(batch))
            running.flush()
    return made


def rows(dataset: ds.Dataset) -> list[dict[str, Any]]:
    return dataset.to_table().to_pylist()


@pytest.mark.parametrize("moment", [None, 4])
def test_tables_are_those_of_the_functions(folder: Path, moment: int | None) -> None:
    root = Root(folder) if moment is None else Root(folder).at(moment)
    for found, expected in [
        (root.panes(), scan_panes(folder, moment)),
        (root.panes(net=True), scan_panes(folder, moment, net=True)),
        (root.late(), scan_late(folder, moment)),
        (root.late(operator="windows"), scan_late(folder, moment, operator="windows")),
        (root.state(), scan_state(folder, moment)),
        (root.changes(3), scan_changes(folder, 3, moment)),
        (root.changes(0, of="late"), scan_changes(folder, 0, moment, kind="late")),
    ]:
        assert found.schema == expected.schema
        assert rows(found) == rows(expected)
    assert root.manifest().id == (moment or 7)
    assert len(root.pane_paths()) == (4 if moment is None else 2)


def test_of_the_whole_root(folder: Path) -> None:
    root = Root(folder)
    assert rows(root.checkpoints()) == rows(scan_checkpoints(folder))
    assert root.pane_paths() == Checkpoint.open(folder).pane_paths()
    assert (root.manifest(3).id, root.at(5).manifest(3).id, root.at(5).manifest().id) == (3, 3, 5)
    assert rows(root.changes(3, 4)) == rows(scan_changes(folder, 3, 4))
    with pytest.raises(UsageError, match="root-at"):
        root.at(4).checkpoints()
    with pytest.raises(UsageError, match=r"remove until= \[root-at\]"):
        root.at(4).changes(1, 3)


def test_a_filter_leaves_rows_and_files_out(folder: Path) -> None:
    found = Root(folder).panes(where=ds.field("checkpoint") > 4)
    assert found.to_table() == scan_panes(folder).to_table(filter=ds.field("checkpoint") > 4)
    assert found.count_rows() == 2 + 1
    assert duckdb.connect().register("panes", found).sql("select count(*) from panes").fetchall() == [(3,)]


def test_as_of_a_time_is_the_newest_checkpoint_of_then(folder: Path) -> None:
    manifest = Root(folder).manifest(4)
    created = datetime.fromtimestamp(manifest.created_us / 1e6, UTC)
    root = Root(folder).at(created)
    assert root.manifest().id == 4
    assert root.at(6).manifest().id == 6
    assert root.manifest().id == 4
    with pytest.raises(NotFoundError, match="no-such-checkpoint"):
        Root(folder).at(99).panes()
    with pytest.raises(UsageError, match="rewind-to"):
        Root(folder).at("soon")


def test_as_of_an_abandoned_checkpoint_is_what_counted_then(tmp_path: Path) -> None:
    example("retracting").standalone(checkpoint=tmp_path).run(STREAM)
    before = rows(Root(tmp_path).at(6).panes())
    rewind(Checkpoint.open(tmp_path), 3)
    assert rows(Root(tmp_path).at(6).panes()) == before != rows(Root(tmp_path).panes())


def test_windows_and_messages_are_those_of_a_query(kept: Path) -> None:
    root, asked = Root(kept), query(kept)
    windows = root.windows(values=["n"])
    assert isinstance(windows, AnsweredRows)
    assert windows.to_table() == asked.get_windows(values=["n"])
    assert sorted(map(repr, pa.Table.from_batches(windows.batches()).to_pylist())) == sorted(
        map(repr, windows.to_table().to_pylist())
    )
    assert root.windows(2_000_000, 5_000_000, key="a", values=["n"]).to_table() == asked.get_windows(
        2_000_000, 5_000_000, key="a", values=["n"]
    )
    messages = root.messages(equal="a")
    assert messages.to_table() == asked.get_messages(equal="a")
    assert messages.to_table().num_rows
    assert root.operator().watermark_us == asked.watermark_us
    older = root.at(2)
    assert older.messages().to_table() == query(kept, checkpoint=2).get_messages() != root.messages().to_table()


def test_rows_are_taken_by_other_programs(kept: Path) -> None:
    windows = Root(kept).windows(values=["n"])
    count = windows.to_table().num_rows
    assert pa.table(windows).num_rows == count == len(polars.DataFrame(windows))
    at = f"operator windows at checkpoint {Root(kept).manifest().id}"
    assert repr(windows) == f"windows of {at}, not read yet: .to_table(), .batches()"
    assert repr(Root(kept).operator()) == f"operator windows as of checkpoint {Root(kept).manifest().id}"


def test_a_job_brings_functions_of_its_own(kept: Path) -> None:
    job = description(sliding("6 seconds", "2 seconds"))
    expected = query(kept, description=job.graph.description, schema=SCHEMA).get_windows()
    assert Root(kept).windows(job=job).to_table() == expected
    assert "middle" in expected.column_names
    with pytest.raises(UsageError, match="query-description"):
        Root(kept).windows()
    with pytest.raises(UsageError, match=r"job must be what a verb.*argument"):
        Root(kept).windows(job="flights")


def test_windows_of_a_side(tmp_path: Path) -> None:
    for name, job in (("sessions", sessions()), ("near", near())):
        with join_operator(job, tmp_path / name) as running:
            running.add_messages(**sided([row for batch in two_streams(4, 3) for row in batch]))
            running.flush()
    root, asked = Root(tmp_path / "sessions"), query(tmp_path / "sessions")
    assert root.windows(side="left").to_table() == asked.get_windows(side="left")
    assert root.windows(side="left").schema.names == asked.get_windows(side="left").column_names
    assert root.messages(side="right").to_table() == asked.get_messages(side="right")
    with pytest.raises(UsageError, match="choose one of the sides"):
        root.windows()
    with pytest.raises(UsageError, match="root-spark"):
        root.windows(side="left", spark=object())  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="query-windows"):
        Root(tmp_path / "near").windows(side="left")


def test_what_is_wrong_with_a_question_is_an_error_of_the_call(folder: Path) -> None:
    root = Root(folder)
    for call, code in [
        (lambda: root.windows(side="left"), "sides"),
        (lambda: root.windows(values=["other"]), "read-column"),
        (lambda: root.windows(key=("a", "b")), "window-key"),
        (root.messages, "no-messages"),
        (lambda: root.diff(3, 5, key={"other": 1}), "read-column"),
        (lambda: root.diff(3, 5, window="soon"), "read-value"),
    ]:
        with pytest.raises(UsageError, match=code):
            call()


def test_nothing_is_opened_before_a_reader_is_called(tmp_path: Path) -> None:
    root = Root(tmp_path / "later")
    assert list(tmp_path.iterdir()) == []
    for reader in (root.panes, root.late, root.state, root.checkpoints, root.windows, root.operator, root.manifest):
        with pytest.raises(NotFoundError, match="no-checkpoint"):
            reader()
    assert root.check(starting_ok=True).holds
    assert list(tmp_path.iterdir()) == []


def test_a_root_prints_as_it_is_written_without_secrets() -> None:
    assert repr(Root("s3://bucket/flights")) == "Root('s3://bucket/flights')"
    assert repr(Root(Path("/data/flights")).at(42)) == "Root('/data/flights').at(42)"
    assert repr(Root("s3://user:secret@bucket/flights?password=other")) == "Root('s3://bucket/flights')"
    assert Root("/a") == Root(Path("/a")) != Root("/a").at(1)


def test_roots_of_one_place_are_equal_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    name = str(tmp_path / "flights")
    spellings = [name, f"{name}/", f"file://{name}", f"file:{name}//", f"local://{name}", "flights", "./flights/"]
    spellings += ["~/flights", f"{tmp_path}/./flights"]
    assert {Root(spelling) for spelling in spellings} == {Root(name)}
    assert {Root(spelling).at(1) for spelling in spellings} == {Root(name).at(1)} != {Root(name)}
    assert Root("s3a://bucket/flights/") == Root("s3://bucket/flights") != Root("s3://bucket/Flights")
    assert len({Root("s3://bucket/a"), Root("s3a://bucket/a"), Root("gs://bucket/a"), Root("/bucket/a")}) == 3
    assert Root(name) != Root(f"{name}2")
    assert Root(name) != name


def test_wrong_kinds_are_refused_at_the_door(folder: Path) -> None:
    root: Any = Root(folder)
    for call in (
        lambda: root.panes(net="yes"),
        lambda: root.late(operator=5),
        lambda: root.manifest("newest"),
        lambda: root.windows(values="n"),
        lambda: root.at(None),
        lambda: root.operator(7),
        lambda: root.panes(spark="local"),
        lambda: root.panes(where="n > 1"),
    ):
        with pytest.raises(UsageError, match="argument"):
            call()
    for empty in ("", None, 5):
        for call in (lambda: Root(empty), lambda: root.fork(empty), lambda: root.report(empty)):  # noqa: B023
            with pytest.raises(UsageError, match="root-url"):
                call()


@pytest.mark.parametrize(
    ("where", "code"),
    [
        (ds.field("nope") > 1, "read-column"),
        (ds.field(("nope", "x")) > 1, "read-column"),
        (ds.field("checkpoint") > "a", "read-value"),
        (ds.field("checkpoint").isin(["a"]), "read-value"),
        (ds.field("checkpoint"), "read-value"),
        (ds.scalar(5), "read-value"),
    ],
    ids=str,
)
def test_a_filter_that_does_not_fit_the_rows(folder: Path, where: ds.Expression, code: str) -> None:
    root = Root(folder)
    for read in (root.panes, root.late, lambda where: root.changes(0, where=where)):
        with pytest.raises(UsageError) as caught:
            read(where=where)
        assert caught.value.code == code
    with pytest.raises(UsageError, match="read-column"):
        root.state(where=ds.field("nope") > 1)


def test_a_question_takes_what_runs_the_job(tmp_path: Path) -> None:
    counted = agg.apply_rows(lambda _rows: 1, columns=["t"], result_type=pa.int64(), per_group=True)
    job = ts.stream(event_time="t").group_by().window(ts.tumbling("1 minute")).aggregate(n=counted)
    rows = pa.table({"t": pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))})
    running = job.standalone(checkpoint=tmp_path / "standalone")
    running.run([rows])
    tested = job.harness(rows.schema, folder=tmp_path / "harness")
    tested.feed(rows)
    for name, runner in {"standalone": running, "harness": tested}.items():
        assert Root(tmp_path / name).windows(job=runner).to_table()["n"].to_pylist() == [1]
