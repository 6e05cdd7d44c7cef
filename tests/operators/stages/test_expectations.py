"""Expectations: against the job over the rows that meet them, with what the ledger and the counters say of others."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.children import expected
from tests.helpers.arriving_rows import DRAWN_BATCHES, STAGED_SCHEMA, arriving
from tests.helpers.forked import Forked
from tests.helpers.hostile import run
from tests.helpers.process import SCRATCH
from tests.helpers.runners import RUNNERS
from tidestate import agg, col
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.statestore.errors import IncompatibleError, UsageError

Row = tuple[int, Any, int, str]


def windows(stream: Any, lateness: str = "1 minute", **more: Any) -> Any:
    grouped = stream.group_by("k").window(ts.tumbling("1 minute"))
    made = grouped.aggregate(n=agg.count(), total=agg.sum("p")).allowed_lateness(lateness, **more)
    return made.accumulation("retracting")


def head_of(root: Path) -> Manifest:
    head = Checkpoint.open(root).newest()
    assert head is not None
    return head.manifest


def expecting(stream: Any) -> Any:
    """Three expectations, of which the last two come after rows were left out."""
    first = stream.expect("not c", col("k") != "c")
    filtered = first.where("q > 0")
    return filtered.expect("positive", "p > 0").expect("small", "p < 8", otherwise="count")


def judged(row: Row) -> tuple[str, list[str]]:
    """What becomes of a row by plain Python, and which expectations it misses."""
    _, p, q, k = row
    if k == "c":
        return "rejected", ["not c"]
    if not q > 0:
        return "filtered", []
    missed = [
        name for name, met in (("positive", p is not None and p > 0), ("small", p is not None and p < 8)) if not met
    ]
    return "rejected" if "positive" in missed else "taken", missed


@settings(max_examples=settings.default.max_examples * 2)  # type: ignore[union-attr]
@given(DRAWN_BATCHES, st.lists(st.booleans(), max_size=3))
def test_the_rows_that_meet_them_are_taken_and_the_others_are_in_the_ledger(
    batches: list[list[Row]], restarts: list[bool]
) -> None:
    source = ts.stream(event_time="at")
    taken = [[row for row in rows if judged(row)[0] != "rejected"] for rows in batches]
    with TemporaryDirectory(dir=SCRATCH) as folder:
        plain, root = Path(folder, "plain"), Path(folder, "root")
        windows(source.where("q > 0")).standalone(checkpoint=plain).run(
            [arriving(rows) for rows in taken], drain=True
        )
        job, tables = windows(expecting(source)), [arriving(rows) for rows in batches]
        running = job.standalone(checkpoint=root)
        for number, again in enumerate(restarts[: len(batches)], 1):
            running.run(tables[:number])
            running = job.standalone(checkpoint=root) if again else running
        running.run(tables, drain=True)
        assert panes(root) == panes(plain)
        ledger = [row for row in ts.Root(root).late().to_table().to_pylist() if row["reason"] == "expectation"]
        found = Counter(
            (int(row["at"].timestamp()), row["p"], row["q"], row["k"], *row["expectations"]) for row in ledger
        )
        everything = [(row, *judged(row)) for rows in batches for row in rows]
        assert found == Counter((*row, *missed) for row, verdict, missed in everything if verdict == "rejected")
        totals = head_of(root).totals
        misses = Counter(name for _, _, missed in everything for name in missed)
        assert {name: totals.get(f"expectation:{name}", 0) for name in ("not c", "positive", "small")} == {
            name: misses[name] for name in ("not c", "positive", "small")
        }
        assert totals.get("expectation", 0) == sum(found.values())
        assert totals.get("filtered", 0) == sum(verdict == "filtered" for _, verdict, _ in everything)


def panes(root: Path) -> list[str]:
    rows = ts.Root(root).panes().to_table().to_pylist()
    return sorted(repr({name: value for name, value in row.items() if name != "checkpoint"}) for row in rows)


def net(root: Path, key: str = "k") -> list[str]:
    rows = ts.Root(root).panes(net=True).to_table().select(["window_start", key, "n", "total"])
    return sorted(map(repr, rows.to_pylist()))


@settings(max_examples=settings.default.max_examples)
@given(DRAWN_BATCHES, DRAWN_BATCHES, st.booleans())
def test_after_the_condition_was_mended_the_net_is_that_of_a_job_that_had_it_from_the_start(
    before: list[list[Row]], after: list[list[Row]], is_named: bool
) -> None:
    """Windows are retained all the time, so nothing else is late."""
    source = ts.stream(event_time="at").with_columns(p="p * 2", raw=col("p"))
    strict, loose = (windows(source.expect("price", text), "1 day") for text in ("raw > 0", "raw > 0 or raw < -1"))
    tables = [arriving(rows) for rows in (*before, *after)]
    with TemporaryDirectory(dir=SCRATCH) as folder:
        root, other = Path(folder, "root"), Path(folder, "other")
        strict.standalone(checkpoint=root).run(tables[: len(before)])
        running = loose.standalone(checkpoint=root)
        running.run(tables[: len(before)])
        running.reprocess_late(reason="expectation" if is_named else None)
        running.run(tables, drain=True)
        loose.standalone(checkpoint=other).run(tables, drain=True)
        assert net(root) == net(other)


@pytest.mark.parametrize("fixes", [["p > -2"], ["p > -2", "p > -3"], ["p > -3"]])
def test_a_row_that_misses_it_again_waits_for_the_next_fix(fixes: list[str], tmp_path: Path) -> None:
    tables = [arriving([(1, 5, 1, "a"), (2, -1, 1, "a"), (3, -2, 1, "a")])]
    for text in ["p > 0", *fixes]:
        running = windows(ts.stream(event_time="at").expect("price", text), "1 day").standalone(checkpoint=tmp_path)
        running.run(tables)
        if text != "p > 0":
            running.reprocess_late(reason="expectation")
    running.run(tables, drain=True)
    [pane] = ts.Root(tmp_path).panes(net=True).to_table().to_pylist()
    assert (pane["n"], pane["total"]) == ((3, 2) if "p > -3" in fixes else (2, 4))


def test_a_row_has_the_names_of_all_that_it_misses(tmp_path: Path) -> None:
    source = ts.stream(event_time="at").expect_all({"q": "q > 0", "p": "p > 0"})
    windows(source, "1 day").standalone(checkpoint=tmp_path).run([arriving([(1, -1, -1, "a"), (2, 1, -1, "a")])])
    ledger = ts.Root(tmp_path).late().to_table()["expectations"].to_pylist()
    assert sorted(ledger) == [["p", "q"], ["q"]]


def test_rows_whose_columns_the_ledger_lacks_stay_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is read now was not read then: nothing is taken unjudged. `ledger_columns` is what one has for that."""
    tables = [arriving([(1, 5, 1, "a"), (2, -1, 5, "a")])]
    source = ts.stream(event_time="at")
    for columns, total in (([], 5), (["q"], 4)):
        root = tmp_path / f"root{len(columns)}"
        strict, loose = (
            windows(source.expect("price", text), "1 day", ledger_columns=columns)
            for text in ("p > 0", "p > 0 or q = 5")
        )
        strict.standalone(checkpoint=root).run(tables)
        running = loose.standalone(checkpoint=root)
        running.run(tables)
        running.reprocess_late(reason="expectation")
        running.run(tables, drain=True)
        assert ts.Root(root).panes(net=True).to_table()["total"].to_pylist() == [total]
        assert ("stay in the ledger" in caplog.text) == (not columns)
        caplog.clear()


@pytest.mark.parametrize("is_computed", [False, True])
def test_without_the_expectation_rows_come_back_unless_columns_are_missing(is_computed: bool, tmp_path: Path) -> None:
    tables = [arriving([(1, 5, 1, "a"), (2, -1, 5, "a")])]
    source: Any = ts.stream(event_time="at")
    expecting_it = source.with_columns(p="p * 2") if is_computed else source
    windows(expecting_it.expect("price", "p > 0"), "1 day").standalone(checkpoint=tmp_path).run(tables)
    running = windows(source, "1 day").standalone(checkpoint=tmp_path)
    running.run(tables)
    running.reprocess_late()
    running.run(tables, drain=True)
    assert ts.Root(tmp_path).panes(net=True).to_table()["n"].to_pylist() == [1 if is_computed else 2]


FAILING: dict[str, tuple[dict[str, Any], int, int, bool]] = {
    "fail, none": ({"otherwise": "fail"}, 0, 50, False),
    "fail, one": ({"otherwise": "fail"}, 1, 50, True),
    "share, few rows": ({"at_most": 0.1}, 99, 50, False),
    "share, enough rows": ({"at_most": 0.1}, 100, 50, True),
    "share, just met": ({"at_most": 0.5}, 100, 100, False),
    "share, just missed": ({"at_most": 0.5}, 101, 100, True),
    "share, counted": ({"at_most": 0.1, "otherwise": "count"}, 100, 50, True),
    "none may": ({"at_most": 0.0}, 100, 5000, True),
    "all may": ({"at_most": 1.0}, 100, 0, False),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_batch_that_fails_leaves_nothing(case: str, tmp_path: Path) -> None:
    """Neither state nor panes nor a ledger row; after a change the same batch is taken."""
    settings_of, misses, others, fails = FAILING[case]
    rows: list[Row] = [(1, -n, 1, "a") for n in range(1, misses + 1)] + [(2, 1, 1, "a")] * others
    tables = [arriving([(0, 1, 1, "a")]), arriving(rows)]
    source = ts.stream(event_time="at")
    job = windows(source.expect("price", "p > 0", **settings_of), "1 day")
    running = job.standalone(checkpoint=tmp_path)
    if not fails:
        running.run(tables)
        assert head_of(tmp_path).totals.get("expectation:price", 0) == misses
        return
    for _ in range(2):
        with pytest.raises(UsageError) as error:
            job.standalone(checkpoint=tmp_path).run(tables)
        assert error.value.code == "expectation"
        assert "p > 0" in str(error.value)
        assert "p=-1" in str(error.value) or settings_of.get("otherwise") == "count"
        head = head_of(tmp_path)
        assert (head.totals["events"], head.input.batches if head.input else 0) == (1, 1)
        assert ts.Root(tmp_path).late().to_table().num_rows == 0
    mended = windows(source.expect("price", "p > 0"), "1 day").standalone(checkpoint=tmp_path)
    mended.run(tables, drain=True)
    assert ts.Root(tmp_path).panes().to_table()["n"].to_pylist() == [1 + others]
    assert head_of(tmp_path).totals["expectation"] == misses


@pytest.mark.parametrize("runner", ["standalone", "harness", "by hand"])
def test_runners(runner: str, tmp_path: Path) -> None:
    source = ts.stream(event_time="at", offset="q").expect("price", "p > 0")
    job = windows(source.expect("k", "k = 'a'", otherwise="count")).messages(retain="1 hour")
    running = RUNNERS[runner](job, STAGED_SCHEMA, tmp_path)
    found = running.run([arriving([(1, 5, 1, "a"), (2, 0, 2, "a"), (3, 2, 3, "b")])])
    assert sorted((row["k"], row["n"]) for row in found) == [("a", 1), ("b", 1)]
    totals = head_of(tmp_path).totals
    assert (totals["expectation"], totals["expectation:price"], totals["expectation:k"]) == (1, 1, 1)


def test_by_hand_no_batch_can_fail(tmp_path: Path) -> None:
    for more in ({"otherwise": "fail"}, {"at_most": 0.5}):
        job = windows(ts.stream(event_time="at", offset="q").expect("price", "p > 0", **more))
        with pytest.raises(UsageError) as error:
            job.by_hand(STAGED_SCHEMA, checkpoint=tmp_path)
        assert error.value.code == "expectation-by-hand"


@pytest.mark.parametrize(("name", "count"), [("price", 2), ("k", 2), ("other", 0)])
def test_the_command_finds_them_by_name(name: str, count: int, tmp_path: Path) -> None:
    job = windows(ts.stream(event_time="at").expect("price", "p > 0").expect("k", "k = 'a'"))
    job.standalone(checkpoint=tmp_path).run(
        [arriving([(1, 0, 1, "a"), (1, 0, 1, "b"), (1, 1, 1, "b"), (1, 1, 1, "a")])]
    )
    done = run(tmp_path, ["late", "--key", f"expectations={name}"])
    assert done.stdout.count("1970-01-01 00:00:01") == count


def test_rejected_rows_do_not_move_time(tmp_path: Path) -> None:
    source = ts.stream(event_time="at")
    harness = windows(source.expect("price", "p > 0")).harness(STAGED_SCHEMA)
    assert harness.feed(arriving([(1, 1, 1, "a"), (200, -1, 1, "a")])).num_rows == 0
    assert harness.feed(arriving([(100, 1, 1, "a")])).num_rows == 1


def test_between_operators_a_result_and_what_takes_it_back_are_rejected_together() -> None:
    per_key = windows(ts.stream(event_time="at"), "1 hour").expect("n is small", "n < 3")
    grouped = per_key.group_by().window(ts.tumbling("1 hour")).aggregate(rows=agg.count(), sum=agg.sum("total"))
    harness = grouped.allowed_lateness("1 day").named("all").harness(STAGED_SCHEMA)
    harness.feed(arriving([(1, 1, 1, "a"), (1, 2, 1, "b"), (1, 2, 1, "b")]))
    harness.feed(arriving([(100, 1, 1, "a")]))  # a with 1, b with 2
    harness.feed(arriving([(2, 5, 1, "b"), (300, 1, 1, "a")]))  # b with 3 is rejected, b with 2 taken back
    harness.feed(arriving([(3, 5, 1, "b"), (400, 1, 1, "a")]))  # so is what takes b with 3 back
    rows = [row for row in harness.finish().to_pylist() if row["kind"] == "emit"]
    assert (rows[0]["rows"], rows[0]["sum"]) == (4, 4)
    assert harness.counters()["all.expectation"] == 3


BAD_NAMES = ("", " price", "x" * 81, "a\nb")


def test_what_is_refused_at_once() -> None:
    source = ts.stream(event_time="at")
    calls: list[tuple[str, Any]] = [
        ("expectation-name", lambda name=name: source.expect(name, "p > 0")) for name in BAD_NAMES
    ]
    calls += [
        ("expectation-name", lambda: source.expect("price", "p > 0").where("q > 0").expect("price", "p > 1")),
        ("expectation-name", lambda: source.expect_all({})),
        ("expectation-share", lambda: source.expect("price", "p > 0", at_most=1.5)),
        ("expectation-otherwise", lambda: source.expect("price", "p > 0", otherwise="drop")),
        ("expression-text", lambda: source.expect("price", "p >")),
        ("expression-name", lambda: windows(source.expect("price", "pp > 0")).harness(STAGED_SCHEMA)),
        ("expression-type", lambda: windows(source.expect("price", "p + 1")).harness(STAGED_SCHEMA)),
    ]
    for code, call in calls:
        with pytest.raises(UsageError) as error:
            call()
        assert error.value.code == code


def test_they_may_change_but_on_input_that_takes_rows_back(tmp_path: Path) -> None:
    source = ts.stream(event_time="at")
    tables = [arriving([(1, 5, 1, "a")]), arriving([(2, 5, 1, "a")])]
    windows(source.expect("price", "p > 0")).standalone(checkpoint=tmp_path / "a").run(tables[:1])
    changed = windows(source.expect("price", "p > 1", at_most=0.5).expect("more", "q > 0", otherwise="count"))
    plan = changed.plan(tmp_path / "a", schema=STAGED_SCHEMA)
    assert not plan.refusals
    assert 'expect("price", "p > 0") -> expect("price", "p > 1", at_most=0.5)' in str(plan)
    changed.standalone(checkpoint=tmp_path / "a").run(tables)

    def chained(text: str) -> Any:
        grouped = windows(source, "1 hour").expect("small", text).group_by().window(ts.tumbling("1 hour"))
        return grouped.aggregate(n=agg.count()).allowed_lateness("1 day").named("all")

    chained("n < 3").standalone(checkpoint=tmp_path / "b").run(tables[:1])
    with pytest.raises(IncompatibleError, match="takes rows back"):
        chained("n < 4").standalone(checkpoint=tmp_path / "b").run(tables)


def test_the_manifest_says_it(tmp_path: Path) -> None:
    job = windows(ts.stream(event_time="at").expect_all({"a": "p > 0", "b": col("q") > 0}, at_most=0.5))
    assert 'expect_all({"a": "p > 0", "b": "q > 0"}, at_most=0.5)' in str(job.explain())
    job.standalone(checkpoint=tmp_path).run([arriving([(1, 5, 1, "a")])])
    head = head_of(tmp_path)
    assert {"stages/1", "expressions/1", "expectations/1"} <= {*head.needs}
    stages = head.operators["windows"].configuration["stages"]
    assert [(stage["kind"], stage["name"], stage["at_most"]) for stage in stages] == [
        ("expect", "a", 0.5),
        ("expect", "b", 0.5),
    ]
    assert "otherwise" not in stages[0]


@pytest.mark.parametrize("checkpoint", range(2, 11))
@pytest.mark.parametrize("moment", ["before-manifest", "after-manifest"])
def test_killed_anywhere_rows_come_back_once(moment: str, checkpoint: int, tmp_path: Path) -> None:
    process = Forked("tests.children.expected", tmp_path / "killed", f"{moment}:{checkpoint}")
    process.communicate()
    # A fence is no commit of a job.
    assert process.returncode in (-signal.SIGKILL, 0)
    assert (process.returncode == 0) == (checkpoint == 5)
    roots = [tmp_path / "killed", tmp_path / "alone"]
    for root in roots:
        expected.run(os.fspath(root))
    assert net(roots[0], "shop") == net(roots[1], "shop") != []
    ledgers = [
        Counter(
            (row["at"], row["shop"], row["price"], *row["expectations"])
            for row in ts.Root(r).late().to_table().to_pylist()
        )
        for r in roots
    ]
    assert ledgers[0] == ledgers[1]
    assert head_of(roots[0]).totals == head_of(roots[1]).totals
