"""What a plan announces is what the start then does, and nothing is touched by asking."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from itertools import count as count_up
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.golden.continued import read_root, root_names
from tests.golden.jobs import job_of
from tests.helpers.changed_jobs import CASES, CHANGED, added, changed, events, first, tables, without
from tests.helpers.process import examples, few, forget
from tidestate import Aggregation, OperatorStream, agg, trigger
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.start_plan import StartPlan
from tidestate.operators.embedded.window_operator import WindowOperator
from tidestate.operators.engine.start_plan import plan_start
from tidestate.operators.streams.inputs import stream
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.marker import MARKER
from tidestate.statestore.errors import CorruptionError, TidestateError, UsageError

Change = Callable[[Aggregation], Aggregation]
OTHER: dict[str, Change] = {
    "nothing": lambda d: d,
    "size": lambda d: changed(d, windows=ts.tumbling("10 seconds")),
    "kind": lambda d: changed(d, windows=ts.sessions("10 seconds")),
    "key": lambda d: changed(d, key=()),
    "function": lambda d: added(without(d, "total"), total=agg.max("v")),
    "composite": lambda d: d.trigger(when=trigger.repeatedly(trigger.after_count(3))),
    "an undeclared renaming": lambda d: added(without(d, "total"), s=agg.sum("v")),
    "a name": lambda d: d.named("other"),
    "discarding": lambda d: d.accumulation("discarding"),
    "messages": lambda d: changed(d, offset="v").messages("v"),
    "the delay": lambda d: changed(d, watermark_delay_us=5_000_000),
    "a trigger": lambda d: d.trigger(late=trigger.after_count(3), closing="always"),
}
CHANGES: dict[str, Change] = {**{name: case.change for name, case in CASES.items()}, **OTHER}


OF_EVERY_RUN = ("added", "swapped", "column", "widened", "size", "key", "an undeclared renaming", "a trigger")
"""What each change is to a job is held by tests.operators.bind.test_evolution_rules."""


def contents(root: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def planned(job: OperatorStream | Runnable, root: Path, **options: Any) -> StartPlan:
    """The plan of a job, or of a stored description, which touches nothing."""
    before = contents(root)
    plan = plan_start(job, str(root), **options) if isinstance(job, Runnable) else job.plan(root, **options)
    assert contents(root) == before
    forget()
    return plan


def announced(plan: StartPlan, checkpoint_id: int) -> list[str]:
    """The changes of a plan as the start logs them."""
    marks = {"operator": ""}
    return sorted(marks.get(one.setting, f"checkpoint {checkpoint_id}: ") + one.line for one in plan.changes)


class Lines(logging.Handler):
    """Lines of our log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    @property
    def changes(self) -> list[str]:
        """Those of changes."""
        return sorted(line for line in self.lines if line.startswith("operator ") or ": operator " in line)


def check(description: Any, root: Path, rows: list[pa.Table], **policy: Any) -> None:
    """The plan of a start, and the start."""
    plan = planned(description, root, policy=ts.Policy(**policy), schema=rows[0].schema)
    before, head = contents(root), Checkpoint.open(root).newest()
    assert head is not None
    assert plan.checkpoint == head.manifest.id
    lines = Lines()
    log = logging.getLogger("tidestate")
    log.addHandler(lines)
    refused = None
    try:
        description.standalone(checkpoint=root, policy=ts.Policy(**policy)).run(rows)
    except TidestateError as error:
        refused = error
    finally:
        log.removeHandler(lines)
    if refused is None:
        assert plan.starts, str(plan)
        assert announced(plan, head.manifest.id + 1) == lines.changes
    else:
        assert (plan.refusals[0].code, plan.refusals[0].message) == (refused.code, refused.message)
        assert {path: one for path, (one, _) in contents(root).items()} == {p: one for p, (one, _) in before.items()}


@pytest.fixture(scope="module", autouse=True)
def _begun_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The root that `begun` copies."""
    root = tmp_path_factory.mktemp("begun")
    first("tumbling").standalone(checkpoint=root).run(tables(events(0))[:CHANGED])
    forget()
    BEGUN.append(root)
    yield
    BEGUN.clear()


BEGUN: list[Path] = []


def begun(root: Path) -> list[list[dict[str, Any]]]:
    shutil.copytree(BEGUN[0], root, dirs_exist_ok=True)
    return events(0)


@pytest.mark.parametrize("name", few(CHANGES, *(list(CHANGES).index(name) for name in OF_EVERY_RUN)))
def test_a_change_is_announced_as_it_then_happens(tmp_path: Path, name: str) -> None:
    rows, case = begun(tmp_path), CASES.get(name)
    inputs = tables(rows, case.value, case.kind) if case is not None else tables(rows)
    check(CHANGES[name](first("tumbling")), tmp_path, inputs)


def test_changes_together_are_announced_as_they_then_happen(tmp_path: Path) -> None:
    rows = begun(tmp_path / "root")
    numbers = count_up()

    @given(
        st.lists(st.sampled_from(sorted(CHANGES)), min_size=2, max_size=3, unique=True),
        st.sampled_from(["ask", "refuse", "accept"]),
    )
    @settings(max_examples=examples(20))
    def together(names: list[str], dropped: str) -> None:
        described = first("tumbling")
        try:
            for name in names:
                described = CHANGES[name](described)
        except UsageError:
            reject()
        root = tmp_path / str(next(numbers))
        shutil.copytree(tmp_path / "root", root)
        # No run takes another input: of batches that were read before, values alone are compared.
        inputs = [part.append_column("w", part["v"]) for part in tables(rows)]
        check(described, root, inputs, dropped=dropped)

    together()


def test_the_types_are_those_of_the_newest_checkpoint_or_of_a_schema(tmp_path: Path) -> None:
    begun(tmp_path)
    more = added(first("tumbling"), high=agg.max("w"))
    with pytest.raises(UsageError, match="give schema= for others"):
        planned(more, tmp_path)
    rows = tables(events(0))[0]
    plan = planned(more, tmp_path, schema=rows.append_column("w", rows["v"]).schema)
    assert [str(change) for change in plan.changes] == [
        'operator windows: aggregate high: - -> agg.max("w") (windows that have already begun compute it only '
        "over events from now on)",
    ]
    assert planned(first("tumbling"), tmp_path).changes == ()


def test_values_are_as_they_are_written(tmp_path: Path) -> None:
    begun(tmp_path)
    plan = planned(CHANGES["size"](first("tumbling")), tmp_path)
    assert not plan.starts
    assert str(plan).splitlines()[1:3] == [
        "refused: the job's configuration has changed in a way that its state cannot follow: restore the settings "
        "listed here, or start with a new folder [configuration-changed]",
        '  window: tumbling("20 seconds") -> tumbling("10 seconds"): state is kept by window',
    ]
    assert plan.as_dict()["refusals"][0]["code"] == "configuration-changed"
    late = planned(CHANGES["a trigger"](first("tumbling")), tmp_path)
    assert late.changes[0].now == 'late=trigger.after_count(3), closing="always"'


def test_all_that_is_refused_is_listed_and_losses_are_marked(tmp_path: Path) -> None:
    begun(tmp_path)
    gone = without(first("tumbling"), "total")
    assert [change.setting for change in planned(gone, tmp_path).dropped] == ["aggregate total"]
    kept = planned(gone, tmp_path, policy=ts.Policy(dropped="refuse"))
    assert [one.code for one in kept.refusals] == ["configuration-changed"]
    both = changed(gone, windows=ts.tumbling("10 seconds"), key=())
    assert list(planned(both, tmp_path).refusals[0].context["changed"]) == ["group_by", "window"]


def test_nothing_has_begun_a_root_is_drained_or_a_driver_runs(tmp_path: Path) -> None:
    job, rows = first("tumbling"), tables(events(0))
    (note,) = planned(job, tmp_path / "none").notes
    assert note.startswith("the columns of its input are not known")
    assert not (tmp_path / "none").exists()
    root = tmp_path / "root"
    alone = job.standalone(checkpoint=root)
    running = alone.stream(rows[:2])
    next(running)
    assert "is running this job" in planned(job, root).notes[0]
    (refused,) = planned(job, root, policy=ts.Policy(second="refuse")).refusals
    assert refused.code == "running"
    running.close()  # type: ignore[attr-defined]
    assert planned(job, root).notes == (
        "the standalone runner has been writing this checkpoint: continue with standalone, over the input that it "
        "had; anything else is refused",
    )
    assert ts.Root(root).plan(alone) == planned(job, root)
    alone.drain()
    assert "the input has ended" in planned(without(job, "low"), root).notes[0]
    check(job, root, rows[:1])


def test_a_time_zone_that_there_is_not_is_refused_as_by_the_start(tmp_path: Path) -> None:
    begun(tmp_path)
    for root in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match="time-zone"):
            planned(first("tumbling"), root, time_zone="Mars/X")


def test_graphs_and_sides(tmp_path: Path) -> None:
    row = tables(events(0))[0]
    jobs = {
        "join": ts.stream(event_time="t").join(ts.stream(event_time="t"), on="k", within=("0 s", "5 s")),
        "merge": ts.merge(left=ts.stream(event_time="t"), right=ts.stream(event_time="t"))
        .group_by("k")
        .window(ts.tumbling("5 s"))
        .aggregate(n=agg.count(), x=agg.sum("left_v")),
        "chain": ts.stream(event_time="t")
        .deduplicate("k", within="1 s")
        .group_by("k")
        .window(ts.tumbling("5 s"))
        .aggregate(n=agg.count()),
        "named": ts.stream("a", event_time="t").join(ts.stream("b", event_time="t"), on="k", within=("0 s", "5 s")),
    }
    for name, job in jobs.items():
        root = tmp_path / name
        streams = ["left", "right"] if name in ("join", "merge") else ["a", "b"]
        batch = row if name == "chain" else dict.fromkeys(streams, row)
        job.standalone(checkpoint=root).run([batch])
        forget()
        plan = planned(job, root)
        assert (plan.starts, plan.changes) == (True, ())
        if name != "chain":
            assert planned(job, root, schema=dict.fromkeys(streams, row.schema)).starts
            with pytest.raises(UsageError, match="streams"):
                planned(job, root, schema={"a": row.schema})
    with pytest.raises(UsageError, match="a different number of streams"):
        planned(
            ts.stream(event_time="t").group_by().window(ts.tumbling("5 s")).aggregate(n=agg.count()),
            tmp_path / "join",
        )
    new = stream(event_time="t").join(stream(event_time="t"), on="k", within=("0 s", "9 s"))
    assert not planned(new, tmp_path / "join").starts


@pytest.mark.parametrize("name", root_names("standalone", "spark"))
def test_a_root_of_an_earlier_version_would_go_on(name: str, tmp_path: Path) -> None:
    plan = planned(job_of(name), read_root(name).unpack(tmp_path))
    assert plan.changes == ()
    assert plan.starts


def test_columns_that_have_another_name_are_known_by_it(tmp_path: Path) -> None:
    begun(tmp_path / "windows")
    case = CASES["column"].change(first("tumbling"))
    lines = [change.line for change in planned(case, tmp_path / "windows").changes]
    assert lines == ["operator windows: column v: v -> w (goes on under its new name)"]
    pairs = ts.stream(event_time="t").join(ts.stream(event_time="t"), on="k", within=("0 s", "5 s"))
    row = tables(events(0))[0]
    pairs.standalone(checkpoint=tmp_path / "join").run([{"left": row, "right": row}])
    forget()
    (change,) = planned(pairs.renamed(columns={"left_v": "left_w"}), tmp_path / "join").changes
    assert (change.setting, change.was, change.now) == ("column left_v", "left_v", "left_w")


def test_roots_that_a_start_would_not_take(tmp_path: Path) -> None:
    job, rows = first("tumbling"), tables(events(0))
    begun(tmp_path / "marker")
    (tmp_path / "marker" / MARKER).unlink()
    with pytest.raises(CorruptionError, match="marker-missing"):
        planned(job, tmp_path / "marker")
    with WindowOperator(
        job.graph.description, rows[0].schema, checkpoint=tmp_path / "hand", origin="k", offset="v"
    ) as operator:
        operator.add_messages(rows[0])
    (refused,) = planned(job, tmp_path / "hand").refusals
    assert refused.code == "other-runner"
    begun(tmp_path / "reset")
    newest = max((tmp_path / "reset" / "manifests").iterdir())
    newest.write_bytes(newest.read_bytes()[:-9])
    plan = planned(job, tmp_path / "reset", policy=ts.Policy(damaged="reset"))
    assert (plan.checkpoint, plan.starts) == (int(newest.stem) - 1, True)
    with pytest.raises(CorruptionError, match="tidestate repair"):
        planned(job, tmp_path / "reset")


def test_times_without_a_zone(tmp_path: Path) -> None:
    naive = pa.table({"t": pa.array([1_000_000], pa.timestamp("us")), "k": ["a"], "v": pa.array([1], pa.int32())})
    job = first("tumbling")
    job.standalone(checkpoint=tmp_path, time_zone="Europe/Berlin").run([naive])
    forget()
    assert planned(job, tmp_path, schema=naive.schema, time_zone="Europe/Berlin").changes == ()
    with pytest.raises(UsageError, match="time_zone="):
        planned(job, tmp_path, schema=naive.schema)
