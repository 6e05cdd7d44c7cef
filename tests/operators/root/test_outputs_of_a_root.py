"""What is read from a root with several outputs, and done to it: every reader and verb that looks at panes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import tidestate as ts
from tests.helpers.outputs import OUTPUT_NAMES, Taken, counted, emitted, net_of, several, streams
from tests.helpers.spark_inputs import sample
from tidestate.operators.inspect.pane_stream import PaneStream
from tidestate.operators.sinks.withdrawal import plan_withdrawal
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.sinks import ParquetSink
from tidestate.statestore.errors import UsageError

BATCHES = sample(5, 50)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    several().standalone(checkpoint=folder).run(BATCHES, drain=True)
    return folder


@pytest.mark.parametrize("name", OUTPUT_NAMES)
def test_the_verb_prints_the_panes_of_an_output(root: Path, tmp_path: Path, name: str) -> None:
    def printed(*options: str) -> list[dict[str, object]]:
        lines = tmp_path / "lines"
        result = CliRunner().invoke(app, ["panes", str(root), "--json", "--output", str(lines), *options])
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in lines.read_text().splitlines()]

    assert len(printed("--operator", name)) == emitted(root, name).total() > 0
    assert printed() == printed("--operator", OUTPUT_NAMES[-1])


def test_show_and_the_report_tell_of_each_output(root: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["show", str(root)]).stdout
    listed = json.loads(CliRunner().invoke(app, ["show", str(root), "--json"]).stdout)
    assert listed["outputs"] == list(OUTPUT_NAMES)
    ts.Root(root).report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for name in OUTPUT_NAMES:
        assert f"panes of {name}" in shown
        assert f"delivered of {name} up to" in page


@pytest.mark.parametrize("name", OUTPUT_NAMES)
def test_a_stream_of_panes_has_those_of_an_output(root: Path, name: str) -> None:
    stream = PaneStream(str(root), operator=name)
    rows = stream.between(stream.first(), stream.newest()).dataset().to_table()
    assert counted(rows) == emitted(root, name)
    with pytest.raises(UsageError, match="retractions"):
        stream.check_retractions()


def test_metrics_name_the_output_of_a_sink(tmp_path: Path) -> None:
    running = several().standalone(checkpoint=tmp_path, sink={name: Taken() for name in OUTPUT_NAMES})
    running.run(BATCHES)
    text = running.prometheus()
    for name in OUTPUT_NAMES:
        assert f'sink="Taken of {name}"' in text


def test_a_repair_keeps_what_a_further_output_is_owed(tmp_path: Path) -> None:
    """A file that a sink still lacks is needed, one that all of its sinks have is not."""
    sinks = {name: Taken(behind=99, down=name == "by_key") for name in OUTPUT_NAMES}
    sinks["by_key"].down = False
    several().standalone(checkpoint=tmp_path, sink=sinks).run(BATCHES[:2])
    sinks["by_key"].down = True
    several().standalone(checkpoint=tmp_path, sink=sinks).run(BATCHES)
    needed, had = (Path(ts.Root(tmp_path).pane_paths(operator=name)[-2]) for name in ("by_key", "of_all"))
    had.unlink()
    assert had.name not in str(ts.Root(tmp_path).repair())
    needed.unlink()
    assert str(needed.relative_to(tmp_path)) in str(ts.Root(tmp_path).repair())


def test_rows_of_an_output_are_withdrawn_from_its_sink(tmp_path: Path) -> None:
    sinks = {name: ParquetSink(tmp_path / name, delivery_column="delivery") for name in ("by_key", "of_all")}
    several().standalone(checkpoint=tmp_path / "root", sink=sinks).run(BATCHES)
    root = ts.Root(tmp_path / "root")
    root.rewind(3).execute()
    for name, sink in sinks.items():
        planned = plan_withdrawal(Checkpoint.open(root.url), sink)
        assert len(planned.deliveries) > 0
        root.withdraw(sink).execute()
        left = pa.concat_tables([pa.parquet.read_table(path) for path in (tmp_path / name).glob("*.parquet")])
        assert counted(left.drop_columns(["delivery"])) == emitted(root.url, name)


def test_history_that_is_withheld_comes_to_no_sink(tmp_path: Path) -> None:
    sinks = {name: Taken() for name in OUTPUT_NAMES}
    running = several().standalone(checkpoint=tmp_path, sink=sinks)
    panes = running.bootstrap(BATCHES[:3], deliver=False)
    assert list(panes) == list(OUTPUT_NAMES)
    running.run(BATCHES[3:], drain=True)
    head = Checkpoint.open(tmp_path)
    first = next(one.id for one in head.history() if one.kind == "bootstrap")
    assert {one.checkpoint > first for sink in sinks.values() for one in sink.calls} == {True}
    for name in OUTPUT_NAMES:
        assert counted(panes[name]) + sinks[name].rows() == emitted(tmp_path, name)


def test_late_rows_that_are_put_back_reach_all_outputs(tmp_path: Path) -> None:
    by_key, _, of_all = (one.allowed_lateness("1 second").retain_windows("1 hour") for one in streams())
    sinks = {name: Taken() for name in ("by_key", "of_all")}
    running = ts.job(by_key, of_all).standalone(checkpoint=tmp_path, sink=sinks)
    running.run(BATCHES)
    panes = running.reprocess_late()
    assert {name for name, rows in panes.items() if rows.num_rows} == {"by_key", "of_all"}
    running.drain()
    for name, sink in sinks.items():
        assert sink.rows() == emitted(tmp_path, name)


def test_a_root_with_more_partitions_goes_on(tmp_path: Path) -> None:
    several().standalone(checkpoint=tmp_path / "a", partitions=2).run(BATCHES[:3])
    ts.Root(tmp_path / "a").rescale(5).execute()
    several().standalone(checkpoint=tmp_path / "a").run(BATCHES, drain=True)
    whole = several().standalone(checkpoint=tmp_path / "b", partitions=2).run(BATCHES, drain=True)
    for name in OUTPUT_NAMES:
        assert net_of(ts.Root(tmp_path / "a").panes(operator=name).to_table()) == net_of(whole[name])


def test_a_plan_of_a_root_takes_a_job_of_outputs(root: Path, tmp_path: Path) -> None:
    assert ts.Root(root).plan(several()).changes == ()
    by_key, by_minute, _ = streams()
    several().standalone(checkpoint=tmp_path).run(BATCHES)
    changes = [str(change) for change in ts.Root(tmp_path).plan(ts.job(by_key, by_minute)).changes]
    assert any("of_all is no longer an output" in line for line in changes)


def test_each_output_counts_for_itself_when_a_root_is_checked(tmp_path: Path) -> None:
    sinks = {name: Taken(behind=99, down=name == "by_minute") for name in OUTPUT_NAMES}
    several().standalone(checkpoint=tmp_path, sink=sinks).run(BATCHES)
    lacking = len(ts.Root(tmp_path).pane_paths(operator="by_minute"))
    assert lacking > 1
    for limit, holds in ((lacking, True), (lacking - 1, False)):
        health = ts.Root(tmp_path).check(max_undelivered=limit)
        assert {check.name: check.holds for check in health.checks}["undelivered"] == holds
    assert Counter(sinks["by_minute"].calls) == Counter()


def undelivered_holds(root: Path) -> bool:
    (check,) = [check for check in ts.Root(root).check(max_undelivered=1).checks if check.name == "undelivered"]
    return check.holds


def test_an_output_without_a_sink_lacks_nothing_when_a_root_is_checked(tmp_path: Path) -> None:
    """It was as far behind as the job was old. One that is given a sink is owed everything from then on."""
    several().standalone(checkpoint=tmp_path, sink={"by_key": Taken()}).run(BATCHES[:4])
    assert undelivered_holds(tmp_path)
    several().standalone(checkpoint=tmp_path, sink={"by_key": Taken(), "of_all": Taken(behind=99, down=True)}).run(
        BATCHES
    )
    assert not undelivered_holds(tmp_path)
    first, *_ = streams()
    first.standalone(checkpoint=tmp_path / "alone").run(BATCHES)
    assert not undelivered_holds(tmp_path / "alone"), "a job without any sink has nobody yet"


def test_a_collection_says_of_each_output_what_is_gone(tmp_path: Path) -> None:
    sinks = {"by_key": Taken(), "by_minute": Taken(behind=100, down=True), "of_all": Taken()}
    several().standalone(checkpoint=tmp_path, sink=sinks).run(BATCHES, drain=False)
    plan = ts.Root(tmp_path).gc(newest=1, panes="0 seconds", grace="0 seconds")
    last_ids = plan.as_dict()["further_gone"]
    assert last_ids.keys() == {"by_key", "of_all"}
    for name, last_id in last_ids.items():
        assert f"panes of {name} only of checkpoints after {last_id}" in str(plan)
    assert "panes of other outputs only of checkpoints after 1" in str(plan)
