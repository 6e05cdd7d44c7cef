"""What a plan announces is what the start then does, and nothing is touched by asking."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from itertools import count as count_up
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.golden.continued import read_root, root_names
from tests.helpers.changed_jobs import CASES, CHANGED, events, first, tables, without
from tests.helpers.process import examples, forget
from tidestate.agg import count
from tidestate.agg import max as max_
from tidestate.agg import sum as sum_
from tidestate.operators import Policy, WindowOperator, tumbling
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.start_plan import StartPlan
from tidestate.operators.describe.windowed import Windowed, windowed
from tidestate.operators.describe.windows import session
from tidestate.operators.streams.inputs import stream
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.marker import MARKER
from tidestate.statestore.errors import CorruptionError, TidestateError, UsageError
from tidestate.trigger import after_count, repeatedly

Change = Callable[[Windowed], Windowed]
OTHER: dict[str, Change] = {
    "nothing": lambda d: d,
    "size": lambda d: d.window(tumbling("10 seconds")),
    "kind": lambda d: d.window(session("10 seconds")),
    "key": lambda d: replace(d, key=()),
    "function": lambda d: without(d, "total").aggregate(total=max_("v")),
    "composite": lambda d: d.trigger(when=repeatedly(after_count(3))),
    "an undeclared renaming": lambda d: without(d, "total").aggregate(s=sum_("v")),
    "a name": lambda d: replace(d, name="other"),
    "discarding": lambda d: d.accumulation("discarding"),
    "messages": lambda d: replace(d, offset="v").messages("v"),
    "the delay": lambda d: replace(d, watermark_delay_us=5_000_000),
    "a trigger": lambda d: d.trigger(late=after_count(3), closing="always"),
}
CHANGES: dict[str, Change] = {**{name: case.change for name, case in CASES.items()}, **OTHER}


def contents(root: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def planned(description: Any, root: Path, **options: Any) -> StartPlan:
    """The plan, which touches nothing."""
    before = contents(root)
    plan: StartPlan = description.plan(root, **options)
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
    plan = planned(description, root, policy=Policy(**policy), schema=rows[0].schema)
    before, head = contents(root), Checkpoint.open(root).newest()
    assert head is not None
    assert plan.checkpoint == head.manifest.id
    lines = Lines()
    log = logging.getLogger("tidestate")
    log.addHandler(lines)
    refused = None
    try:
        description.standalone(checkpoint=root, policy=Policy(**policy)).run(rows)
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


def begun(root: Path, seed: int = 0) -> list[list[dict[str, Any]]]:
    rows = events(seed)
    first("tumbling").standalone(checkpoint=root).run(tables(rows)[:CHANGED])
    forget()
    return rows


@pytest.mark.parametrize("name", CHANGES)
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
    added = first("tumbling").aggregate(high=max_("w"))
    with pytest.raises(UsageError, match="give schema= for more"):
        planned(added, tmp_path)
    rows = tables(events(0))[0]
    plan = planned(added, tmp_path, schema=rows.append_column("w", rows["v"]).schema)
    assert [str(change) for change in plan.changes] == [
        'operator windows: aggregate high: - -> agg.max("w") (windows that have begun compute it over what comes '
        "from now on)",
    ]
    assert planned(first("tumbling"), tmp_path).changes == ()


def test_values_are_as_they_are_written(tmp_path: Path) -> None:
    begun(tmp_path)
    plan = planned(CHANGES["size"](first("tumbling")), tmp_path)
    assert not plan.starts
    assert str(plan).splitlines()[1:3] == [
        "refused: the job's configuration has changed and its state cannot follow: put back the settings listed "
        "here, or start with a new folder [configuration-changed]",
        '  window: tumbling("20 seconds") -> tumbling("10 seconds"): state is kept by window',
    ]
    assert plan.as_dict()["refusals"][0]["code"] == "configuration-changed"
    late = planned(CHANGES["a trigger"](first("tumbling")), tmp_path)
    assert late.changes[0].now == 'late=trigger.after_count(3), closing="always"'


def test_all_that_is_refused_is_listed_and_losses_are_marked(tmp_path: Path) -> None:
    begun(tmp_path)
    gone = without(first("tumbling"), "total")
    assert [change.setting for change in planned(gone, tmp_path).dropped] == ["aggregate total"]
    kept = planned(gone, tmp_path, policy=Policy(dropped="refuse"))
    assert [one.code for one in kept.refusals] == ["configuration-changed"]
    both = replace(gone.window(tumbling("10 seconds")), key=())
    assert list(planned(both, tmp_path).refusals[0].context["changed"]) == ["group_by", "window"]


def test_nothing_has_begun_a_root_is_drained_or_a_driver_runs(tmp_path: Path) -> None:
    job, rows = first("tumbling"), tables(events(0))
    assert planned(job, tmp_path / "none").notes == ("the columns of its input are not known here",)
    assert not (tmp_path / "none").exists()
    root = tmp_path / "root"
    alone = job.standalone(checkpoint=root)
    running = alone.stream(rows[:2])
    next(running)
    assert "is running this job" in planned(job, root).notes[0]
    (refused,) = planned(job, root, policy=Policy(second="refuse")).refusals
    assert refused.code == "running"
    running.close()  # type: ignore[attr-defined]
    alone.drain()
    assert "the input has ended" in planned(without(job, "low"), root).notes[0]
    check(job, root, rows[:1])


def test_graphs_and_sides(tmp_path: Path) -> None:
    times = ("t", "t")
    row = tables(events(0))[0]
    jobs = {
        "join": join(event_time=times, on="k", within=("0 s", "5 s")),
        "merge": merge(event_time=times, key="k").window(tumbling("5 s")).aggregate(n=count(), x=sum_("left_v")),
        "chain": chain(
            deduplicated(event_time="t", on="k", within="1 s"),
            windowed(event_time="t", key="k").window(tumbling("5 s")).aggregate(n=count()),
        ),
        "named": chain(
            join(event_time=times, on="k", within=("0 s", "5 s")),
            inputs={"joined": ["a", "b"]},
        ),
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
    with pytest.raises(UsageError, match="another number of streams"):
        planned(windowed(event_time="t").window(tumbling("5 s")).aggregate(n=count()), tmp_path / "join")
    new = stream(event_time="t").join(stream(event_time="t"), on="k", within=("0 s", "9 s"))
    assert not planned(new.graph.description, tmp_path / "join").starts


@pytest.mark.parametrize("name", root_names("standalone", "spark"))
def test_a_root_of_an_earlier_version_would_go_on(name: str, tmp_path: Path) -> None:
    stored = read_root(name)
    plan = planned(stored.description, stored.unpack(tmp_path))
    assert plan.changes == ()
    assert plan.starts


def test_columns_that_have_another_name_are_known_by_it(tmp_path: Path) -> None:
    begun(tmp_path / "windows")
    case = CASES["column"].change(first("tumbling"))
    lines = [change.line for change in planned(case, tmp_path / "windows").changes]
    assert lines == ["operator windows: column v: v -> w (goes on under its new name)"]
    pairs = join(event_time=("t", "t"), on="k", within=("0 s", "5 s"))
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
    with WindowOperator(job, rows[0].schema, checkpoint=tmp_path / "hand", origin="k", offset="v") as operator:
        operator.add_messages(rows[0])
    (refused,) = planned(job, tmp_path / "hand").refusals
    assert refused.code == "other-runner"
    begun(tmp_path / "reset")
    newest = max((tmp_path / "reset" / "manifests").iterdir())
    newest.write_bytes(newest.read_bytes()[:-9])
    plan = planned(job, tmp_path / "reset", policy=Policy(damaged="reset"))
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
