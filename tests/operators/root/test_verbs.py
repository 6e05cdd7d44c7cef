"""`Root` does what the verbs do: its plans touch nothing, and executed they leave what the verb leaves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tidestate as ts
from tests.helpers.example_root import damaged
from tests.helpers.process import few
from tests.helpers.worked_example import STREAM, example
from tidestate import NotFoundError, Root, UsageError, agg
from tidestate.recovery.cli.main import app
from tidestate.recovery.moves.root_plan import RootPlan
from tidestate.sinks import ParquetSink
from tidestate.stores import Parquet


@pytest.fixture(scope="module")
def example_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fence and six batches, whose panes are in a folder of Parquet files too."""
    folder = tmp_path_factory.mktemp("verbs")
    sink = ParquetSink(folder / "target")
    example("retracting").standalone(checkpoint=folder / "root", store=Parquet(), partitions=2, sink=sink).run(STREAM)
    return folder


@pytest.fixture
def folders(example_root: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two copies, one for each way, as ``root`` and ``target``."""
    return tuple(shutil.copytree(example_root, tmp_path / name) for name in ("first", "second"))  # type: ignore[return-value]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def printed(*arguments: object) -> Any:
    """What a verb prints as JSON."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return json.loads(done.stdout)


def plain(values: Any) -> Any:
    return json.loads(json.dumps(values, default=str))


MOVES: dict[str, tuple[Callable[[Root, Path], RootPlan], Callable[[Path], list[object]]]] = {
    "rewind": (lambda root, _: root.rewind(3), lambda _: ["--to", 3, "--confirm"]),
    "repair": (lambda root, _: root.repair(), lambda _: ["--to", "newest-good", "--confirm"]),
    "gc": (
        lambda root, _: root.gc(newest=1, grace=timedelta(0)),
        lambda _: ["--newest", 1, "--grace", "0 seconds", "--confirm"],
    ),
    "rescale": (lambda root, _: root.rescale(3), lambda _: ["--partitions", 3, "--confirm"]),
    "pin": (lambda root, _: root.at(4).pin("kept", note="why"), lambda _: [4, "--name", "kept", "--note", "why"]),
    "unpin": (lambda root, _: root.unpin("before"), lambda _: ["before"]),
    "fork": (lambda root, to: root.at(4).fork(to / "forked"), lambda to: [to / "forked", "--at", 4]),
}


@pytest.mark.parametrize("verb", MOVES)
def test_a_plan_touches_nothing_and_does_what_the_verb_does(verb: str, folders: tuple[Path, Path]) -> None:
    first, second = folders
    for folder in folders:
        if verb == "repair":
            damaged(folder / "root", "gone")
        if verb == "unpin":
            Root(folder / "root").at(3).pin("before").execute()
    planned, options = MOVES[verb]
    before = files(first)
    plan = planned(Root(first / "root"), first)
    assert not plan.done
    text = repr(plan)
    assert text.splitlines()[-1] == "nothing was changed: .execute() does it"
    assert len(text.splitlines()) < 14
    assert plan.as_dict()
    assert files(first) == before

    done = plan.execute()
    assert files(first) != before
    assert (done.done, plan.done, repr(done).splitlines()[-1]) == (True, False, "done")
    found, expected = plain(done.as_dict()), printed(verb, second / "root", *options(second))
    random = {"root", "job_id", "pin"} if verb == "fork" else set()
    assert {name: found[name] for name in found.keys() - random} == {
        name: expected[name] for name in expected.keys() - random
    }
    roots = [Root(folder / "root").checkpoints().to_table().select(["checkpoint", "kind"]) for folder in folders]
    assert roots[0] == roots[1]


def test_withdraw_takes_out_what_a_rewind_has_abandoned(folders: tuple[Path, Path]) -> None:
    first, second = folders
    for folder in folders:
        Root(folder / "root").rewind(3).execute()
    root, before = Root(first / "root"), files(first)
    plan = root.withdraw(ParquetSink(first / "target"))
    assert "to remove  3 deliveries of checkpoints 4-6" in repr(plan)
    assert files(first) == before
    done = plan.execute()
    (second / "sinks.py").write_text(
        f"from tidestate.sinks import ParquetSink\nsink = ParquetSink({str(second / 'target')!r})\n"
    )
    expected = printed("withdraw", second / "root", f"{second / 'sinks.py'}:sink", "--confirm")
    assert plain({**done.as_dict(), "sink": ""}) == {**expected, "sink": ""}
    assert {path.name for path in (first / "target").iterdir()} == {
        path.name for path in (second / "target").iterdir()
    }
    with pytest.raises(UsageError, match="withdraw-sink"):
        root.withdraw(print)


def test_what_is_found_out_is_what_the_verbs_print(folders: tuple[Path, Path], tmp_path: Path) -> None:
    folder = folders[0] / "root"
    root, before = Root(folder), files(folder)
    assert plain(vars(root.verify(read_data=100.0))) == printed("verify", folder, "--read-data")
    history = root.history("1970-01-01T00:00:05", key="a")
    rows = printed("history", folder, "--window", "1970-01-01T00:00:05", "--key", "k=a")["events"]
    assert [event.what for event in history.events] == [event["what"] for event in rows]
    assert repr(history).splitlines()[-1] == "result: n=4 total=15"
    assert repr(history) == repr(root.history(5_000_000, key={"k": "a"}, operator="windows"))
    drill = root.at(4).measure_restore(store="memory")
    assert drill.checkpoint == 4 == printed("restore", folder, "--at", 4, "--store", "memory")["checkpoint"]
    health = root.check(max_lag="10m", max_rejected="1%", within=timedelta(hours=1), max_undelivered=2)
    assert [check.name for check in health.checks if not check.holds] == ["lag of input", "rejected"]
    assert "it does not hold" in repr(health)
    assert root.check(max_rejected=3).holds
    report = root.report(tmp_path / "report.html", last=3)
    assert (report.checkpoints, Path(report.output).exists()) == (3, True)
    assert files(folder) == before


@pytest.mark.parametrize("more", few([{}, {"key": "a"}, {"since": "1970-01-01T00:01"}, {"table": "groups"}], 1, 3))
def test_diff_is_what_the_verb_prints(folders: tuple[Path, Path], more: dict[str, Any]) -> None:
    folder, output = folders[0] / "root", folders[0] / "diff.parquet"
    options = [f"--{name}={'k=' if name == 'key' else ''}{value}" for name, value in more.items()]
    command = ["diff", str(folder), "3", "5", "--format", "parquet", "--output", str(output), *options]
    assert CliRunner().invoke(app, command).exit_code == 0
    difference = Root(folder).diff(3, 5, **more)
    rows = pq.read_table(output)
    assert sorted(map(repr, difference.to_table().to_pylist())) == sorted(map(repr, rows.to_pylist()))
    assert difference.schema.names == rows.column_names
    assert sum(batch.num_rows for batch in difference.batches()) == difference.to_table().num_rows


def test_a_root_is_made_from_files_of_past_events(tmp_path: Path) -> None:
    for number, batch in enumerate(STREAM[:3]):
        pq.write_table(batch, tmp_path / f"{number}.parquet")
    root = Root(tmp_path / "root")
    plan = root.bootstrap(example("retracting"), tmp_path / "*.parquet", standalone=True, partitions=2)
    assert "3 files, 6 rows" in repr(plan)
    assert not (tmp_path / "root").exists()
    done = plan.execute()
    assert "of which 0 were rejected" in repr(done)
    assert (done.as_dict()["kind"], root.operator().partitions) == ("bootstrap", 2)
    for refused in ({}, [], {"input": []}, 5):
        with pytest.raises(UsageError, match="argument"):
            root.bootstrap(example("retracting"), refused)
    with pytest.raises(UsageError, match="streams"):
        root.bootstrap(example("retracting"), {"no_such_stream": tmp_path / "*.parquet"})
    for wrong in (-1, 101, float("nan")):
        with pytest.raises(UsageError, match="argument"):
            root.verify(read_data=wrong)
    with pytest.raises(UsageError, match="bootstrap-used"):
        root.bootstrap(example("retracting"), tmp_path / "*.parquet").execute()


def test_a_plan_of_a_start_touches_nothing(folders: tuple[Path, Path]) -> None:
    folder = folders[0] / "root"
    root, before = Root(folder), files(folder)
    assert "nothing has changed" in repr(root.plan(example("retracting")))
    assert not root.plan(example("discarding")).starts
    assert files(folder) == before
    with pytest.raises(UsageError, match="argument"):
        root.plan("flights:job")


def test_where_there_is_nothing_to_do_nothing_is_done(folders: tuple[Path, Path]) -> None:
    root, before = Root(folders[0] / "root"), files(folders[0])
    for plan, expected in [
        (root.rewind(7), "checkpoint 7 is the newest: there is nothing to undo"),
        (root.repair(), "nothing to repair"),
    ]:
        assert repr(plan) == repr(plan.execute()) == expected
    assert files(folders[0]) == before


def test_a_plan_of_what_runs_a_job_says_what_its_sinks_cannot_store(example_root: Path, tmp_path: Path) -> None:
    """Of a root that has begun, and of one that has not."""
    sink = ParquetSink(tmp_path / "target", columns=["window_start", "gone"])
    for folder, schema in ((example_root / "root", None), (tmp_path / "new", STREAM[0].schema)):
        runs = example("retracting").standalone(checkpoint=folder, sink=sink)
        assert [refusal.code for refusal in Root(folder).plan(runs, schema=schema).refusals] == ["sink-columns"]
        assert Root(folder).plan(example("retracting"), schema=schema).starts
    assert not list(tmp_path.iterdir())


def test_a_plan_that_is_out_of_date_refuses(folders: tuple[Path, Path]) -> None:
    root = Root(folders[0] / "root")
    plan, other = root.rewind(3), root.rescale(4)
    root.rescale(3).execute()
    before = files(folders[0])
    for late in (plan, other):
        with pytest.raises(Exception, match="plan-moved"):
            late.execute()
    assert files(folders[0]) == before


def test_errors_name_arguments_of_python(folders: tuple[Path, Path]) -> None:
    root: Any = Root(folders[0] / "root")
    for call, expected in [
        (lambda: root.history("1970-01-01", key=("a", "b")), "window-key"),
        (lambda: root.history("1970-01-01"), r"key column: key=… \[history-key\]"),
        (lambda: root.check(max_undelivered=-1), "parameter=max_undelivered"),
        (lambda: root.check(max_lag="-1 hour"), "parameter=max_lag"),
        (lambda: root.check(max_lag=5), r"max_lag=.* takes a span of time.* found=5"),
        (lambda: root.gc(newest="all"), r"gc\(newest=…\) takes a whole number"),
        (lambda: root.gc(), "retention-none"),
        (lambda: root.rescale("3"), r"rescale\(partitions=…\)"),
        (lambda: root.rewind("soon"), "rewind-to"),
        (lambda: root.pin("a b"), "pin-name"),
        (lambda: root.fork(folders[0] / "root"), "fork-used"),
        (lambda: root.measure_restore(store="parquet"), "restore"),
    ]:
        with pytest.raises(UsageError, match=expected) as caught:
            call()
        assert "--" not in caught.value.message
    with pytest.raises(NotFoundError, match="no-such-pin"):
        root.unpin("none")


def test_what_is_of_the_whole_root_refuses_to_be_as_of_a_checkpoint(folders: tuple[Path, Path]) -> None:
    root = Root(folders[0] / "root").at(4)
    for call in (
        lambda: root.history("1970-01-01", key="a"),
        root.verify,
        root.check,
        lambda: root.plan(example()),
        lambda: root.rewind(3),
        root.repair,
        lambda: root.unpin("x"),
        lambda: root.gc(newest=1),
        lambda: root.rescale(3),
        lambda: root.withdraw(None),
        lambda: root.diff(1, 2),
        root.report,
    ):
        with pytest.raises(UsageError, match="root-at"):
            call()


def test_a_fork_begins_with_the_state_of_its_checkpoint(folders: tuple[Path, Path]) -> None:
    root = Root(folders[0] / "root")
    root.at(4).fork(folders[0] / "forked").execute()
    forked = Root(folders[0] / "forked")
    assert forked.windows().to_table() == root.at(4).windows().to_table()
    assert forked.panes().to_table().num_rows == 0


def test_a_single_stream_is_known_by_its_name(tmp_path: Path) -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string())])
    orders = ts.stream("orders", event_time="t").group_by("k").window(ts.tumbling("1 hour"))
    job = orders.aggregate(n=agg.count())
    rows = pa.table({"t": pa.array([0], pa.timestamp("us", "UTC")), "k": ["a"]})
    pq.write_table(rows, tmp_path / "past.parquet")
    plan = Root(tmp_path / "root").bootstrap(job, {"orders": tmp_path / "past.parquet"}, standalone=True)
    assert plan.execute().done
    job.standalone(checkpoint=tmp_path / "root").run([{"orders": rows}])
    assert Root(tmp_path / "root").plan(job, schema={"orders": schema}).changes == ()


def test_a_notebook_shows_roots_plans_and_rows_as_tables(folders: tuple[Path, Path], tmp_path: Path) -> None:
    root = Root(folders[0] / "root")
    html, plan, rows = root._repr_html_(), root.rewind(3), root.windows()
    assert html is not None
    assert repr(str(folders[0] / "root")).strip("'") in html
    assert f">{root.manifest().id}</td>" in html
    assert "nothing was changed: .execute() does it" in plan._repr_html_()
    assert all(f">{text}</td>" in plan._repr_html_() for name, _ in plan.facts() for text in [name])
    assert all(f">{name}</td>" in rows._repr_html_() for name in rows.schema.names)
    assert Root(tmp_path / "none")._repr_html_() is None
