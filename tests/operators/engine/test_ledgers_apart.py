"""Late rows of one operator are put back without those of others: each waits until it is its turn, and comes once."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.bundles import other_needs
from tests.helpers.moves import fork, reset_to
from tests.helpers.process import SCRATCH, examples
from tests.helpers.requests import asker, until
from tests.helpers.two_ledgers import (
    ARRIVING,
    EACH_ONCE,
    LENGTH_S,
    SHORT,
    WIDE,
    events,
    numbers_by_operator,
    put_out,
    united,
)
from tidestate.operators.local.harness import Harness
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.requests import ReprocessRequest
from tidestate.statestore.spec.store import Memory

NEED = "fed-by-operator/1"


def job(folder: Path) -> Harness:
    return united().harness(ARRIVING[0].schema, folder=folder, partitions=2, store=Memory())


def begun(folder: Path) -> Harness:
    tested = job(folder)
    for batch in ARRIVING:
        tested.feed(batch)
    return tested


def put_back(tested: Harness, operator: str | None = None) -> dict[str, list[int]]:
    """What is put back, by operator; an operator that gets nothing is left out."""
    numbers = numbers_by_operator(tested.reprocess_late(operator=operator))
    return {name: sorted(counted.elements()) for name, counted in numbers.items() if counted}


def head(root: Path) -> Manifest:
    return Checkpoint.open(root).chosen(None).manifest


def waiting(root: Path, operator: str | None = None) -> dict[str, int]:
    plan = ts.Root(root).reprocess(united(), operator=operator)
    return {row["operator"]: row["rows"] for row in plan.as_dict()["waiting"]}


@pytest.mark.parametrize("restart", [False, True])
def test_one_operator_then_the_other_then_all(restart: bool, tmp_path: Path) -> None:
    tested, found = begun(tmp_path), []
    for operator in ("short", "short", "wide", None):
        found.append(put_back(tested, operator))
        if restart:
            tested.restart()
    assert found == [{"short": SHORT}, {}, {"wide": WIDE}, {}]
    tested.finish()
    assert put_out(tmp_path) == EACH_ONCE


def test_all_are_put_back_after_some_of_them(tmp_path: Path) -> None:
    tested = begun(tmp_path)
    assert put_back(tested, "wide") == {"wide": WIDE}
    tested.feed(events((7, 9)))
    assert put_back(tested) == {"short": [*SHORT, 9], "wide": [9]}
    tested.finish()
    assert put_out(tmp_path) == {name: Counter(range(1, 10)) for name in LENGTH_S}


def test_the_manifest_says_it_by_operator_while_they_differ(tmp_path: Path) -> None:
    tested = begun(tmp_path)
    fed_at = head(tmp_path).id
    assert "fed_by_operator" not in evidence.manifests(tmp_path)[-1]
    put_back(tested, "short")
    tested.restart()
    manifest = evidence.manifests(tmp_path)[-1]
    assert (manifest["fed"], manifest["fed_by_operator"]) == (0, {"short": fed_at})
    assert other_needs(manifest["needs"]) == [NEED]
    put_back(tested, "wide")
    assert (head(tmp_path).fed, head(tmp_path).fed_by_operator) == (fed_at, {"wide": fed_at + 2})
    tested.feed(events((7, 9)))
    tested.reprocess_late()
    manifest = evidence.manifests(tmp_path)[-1]
    assert manifest["fed"] == fed_at + 4
    assert "fed_by_operator" not in manifest
    assert other_needs(manifest["needs"]) == [NEED], "it goes on from checkpoints that have it"


def test_a_job_in_which_one_operator_alone_takes_late_rows_is_stored_as_before(tmp_path: Path) -> None:
    once = ts.stream(event_time="t").deduplicate("v", within="1 hour", name="once")
    tested = once.shift_time(by="1 second", name="moved").harness(ARRIVING[0].schema, folder=tmp_path)
    for batch in ARRIVING:
        tested.feed(batch)
    fed_at = head(tmp_path).id
    assert tested.reprocess_late(operator="once")["v"].to_pylist() == [4, 5, 6, 7], "all behind 55 s"
    manifest = evidence.manifests(tmp_path)[-1]
    assert (manifest["fed"], manifest.get("fed_by_operator")) == (fed_at, None)
    assert other_needs(manifest.get("needs")) == []


def test_a_rewind_takes_back_what_was_put_back_since(tmp_path: Path) -> None:
    tested = begun(tmp_path)
    before = head(tmp_path).id
    put_back(tested, "short")
    after_short = head(tmp_path).id
    put_back(tested, "wide")
    reset_to(Checkpoint.open(tmp_path), after_short)
    assert waiting(tmp_path) == {"wide": 2}
    assert put_back(job(tmp_path), "short") == {}
    reset_to(Checkpoint.open(tmp_path), before)
    assert waiting(tmp_path) == {"short": 4, "wide": 2}
    assert other_needs(head(tmp_path).needs) == []
    tested = job(tmp_path)
    assert [put_back(tested, operator) for operator in ("wide", None)] == [{"wide": WIDE}, {"short": SHORT}]
    tested.finish()
    assert put_out(tmp_path) == EACH_ONCE


def test_a_fork_has_a_ledger_of_its_own_and_takes_nothing_from_its_base(tmp_path: Path) -> None:
    put_back(begun(tmp_path / "root"), "short")
    fork(tmp_path / "root", tmp_path / "fork")
    assert other_needs(head(tmp_path / "fork").needs) == [NEED]
    assert waiting(tmp_path / "fork") == {}
    tested = job(tmp_path / "fork")
    tested.feed(events((7, 9)))
    assert waiting(tmp_path / "fork") == {"short": 1, "wide": 1}
    assert [put_back(tested, operator) for operator in ("wide", "wide", None)] == [{"wide": [9]}, {}, {"short": [9]}]
    own = job(tmp_path / "root")
    assert [put_back(own, operator) for operator in ("short", None)] == [{}, {"wide": WIDE}]
    own.finish()
    assert put_out(tmp_path / "root") == EACH_ONCE


def test_a_root_counts_what_waits_for_each_and_puts_it_back(tmp_path: Path) -> None:
    united().standalone(checkpoint=tmp_path).run(ARRIVING)
    assert waiting(tmp_path, "short") == {"short": 4}
    assert ts.Root(tmp_path).reprocess(united(), operator="short").execute().put_back == 4
    assert [waiting(tmp_path, operator) for operator in ("short", "wide", None)] == [{}, {"wide": 2}, {"wide": 2}]
    assert "to put back  2 events of wide (very_late)" in str(ts.Root(tmp_path).reprocess(united()))
    assert ts.Root(tmp_path).reprocess(united()).execute().put_back == 2
    assert waiting(tmp_path) == {}
    united().standalone(checkpoint=tmp_path).run(ARRIVING, drain=True)
    assert put_out(tmp_path) == EACH_ONCE


@pytest.mark.slow
def test_a_run_that_is_asked_puts_back_each_once(tmp_path: Path) -> None:
    answers: list[int | None] = []

    def source() -> Iterator[pa.Table]:
        yield from ARRIVING
        until((tmp_path / "control" / "1" / "begun.json").exists)
        asked = asker(tmp_path)
        answers.extend(asked.ask(ReprocessRequest(operator)).rows for operator in ("wide", "wide", "short", None))
        yield events((8, 9))
        answers.extend(asked.ask(ReprocessRequest(operator)).rows for operator in ("short", None))

    united().standalone(checkpoint=tmp_path).run(source(), drain=True)
    assert answers == [2, 0, 4, 0, 1, 1]
    assert put_out(tmp_path) == {name: Counter(range(1, 10)) for name in LENGTH_S}


def test_the_history_of_a_window_says_when_its_own_rows_were_put_back(tmp_path: Path) -> None:
    tested = begun(tmp_path)
    put_back(tested, "short")
    short_in = head(tmp_path).id
    put_back(tested, "wide")
    root = ts.Root(tmp_path)
    for operator, fed_in in (("short", short_in), ("wide", short_in + 1)):
        events_of = root.history(0, key="a", operator=operator).events
        rejected = [event.what for event in events_of if event.kind == "rejected"]
        assert rejected
        assert {text.rpartition("; ")[2] for text in rejected} == {f"reprocessed in checkpoint {fed_in}"}


Ledger = dict[str, list[int]]


@dataclass
class Twin:
    """The rule: a call without rows puts back the ledger rows of its operators that no such call has put back."""

    rows: list[int] = field(default_factory=list)
    ledger: Ledger = field(default_factory=lambda: {name: [] for name in LENGTH_S})
    done: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in LENGTH_S})

    def put_back(self, operator: str | None) -> Ledger:
        """What the call puts back, by operator; one that gets nothing is left out."""
        fresh = {
            name: sorted(set(numbers) - self.done[name])
            for name, numbers in self.ledger.items()
            if operator in (None, name)
        }
        for name, numbers in fresh.items():
            self.done[name].update(numbers)
        return {name: numbers for name, numbers in fresh.items() if numbers}

    def copied(self) -> Twin:
        ledger = {name: list(numbers) for name, numbers in self.ledger.items()}
        return Twin(list(self.rows), ledger, {name: set(numbers) for name, numbers in self.done.items()})


class Both:
    """A job and its twin; the twin reads the ledgers alone."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tested, self.twin = folder, job(folder), Twin()
        self.numbers = iter(range(1, 1_000))
        self.kept: dict[int, Twin] = {}

    def act(self, step: Any) -> None:
        """A batch of events by second, or what the step is called."""
        if isinstance(step, list):
            rows = [(second, next(self.numbers)) for second in step]
            self.tested.feed(events(*rows))
            self.twin.rows += [number for _, number in rows]
        elif step == "restart":
            self.tested.restart()
        elif step == "rewind":
            to = sorted(self.kept)[len(self.kept) // 2]
            reset_to(Checkpoint.open(self.folder), to)
            self.twin = self.kept[to].copied()
            self.kept = {number: twin for number, twin in self.kept.items() if number <= to}
            self.tested = job(self.folder)
        else:
            operator = None if step == "all" else step
            counts, expected = waiting(self.folder, operator), self.twin.put_back(operator)
            assert counts == {name: len(numbers) for name, numbers in expected.items()}
            assert put_back(self.tested, operator) == expected
        self.twin.ledger = {name: self.tested.ledger(name)["v"].to_pylist() for name in LENGTH_S}
        self.kept[head(self.folder).id] = self.twin.copied()


STEPS = st.lists(
    st.one_of(
        st.lists(st.integers(0, 200), min_size=1, max_size=5),
        st.sampled_from(["short", "wide", "all", "restart", "rewind"]),
    ),
    min_size=3,
    max_size=14,
)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(steps=STEPS)
def test_each_late_row_is_put_back_once_by_any_sequence_of_calls(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        both = Both(Path(folder, "root"))
        for step in [[150, 20], *steps, "all"]:
            both.act(step)
        both.tested.finish()
        assert put_out(both.folder) == {name: Counter(both.twin.rows) for name in LENGTH_S}
