"""Rows of a late ledger are put back by reason: those of other reasons wait for their turn, and each comes once."""

from __future__ import annotations

import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.children.by_reason import LATE, PRICED_BATCHES, PRICES, UNEXPECTED, arriving, pricing
from tests.children.by_reason import run as put_back_by_reason
from tests.helpers import evidence
from tests.helpers.bundles import other_needs
from tests.helpers.forked import Forked
from tests.helpers.moves import fork, reset_to
from tests.helpers.process import SCRATCH, examples
from tests.helpers.requests import asker, until
from tidestate import agg
from tidestate.operators.local.harness import Harness
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.requests import ReprocessRequest
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.spec.store import Memory

NEED = "fed-by-reason/1"
LATENESS_S = {"short": 0, "wide": 30}
Row = tuple[int, int]


def described(least: int = 0) -> Any:
    """Two operators over one stream, each with a ledger; all windows are kept."""
    source = ts.stream(event_time="t").expect("price", f"p >= {least}")
    made = {}
    for name, lateness_s in LATENESS_S.items():
        lists = source.group_by("k").window(ts.tumbling("1 minute")).aggregate(values=agg.list("v"))
        kept = lists.allowed_lateness(f"{lateness_s} seconds").retain_windows("1 day")
        made[name] = kept.accumulation("retracting").named(name)
    return ts.job(*made.values())


def head(root: Path) -> Manifest:
    return Checkpoint.open(root).chosen(None).manifest


def standing(root: Path, operator: str) -> Counter[int]:
    """The numbers of the rows that are in windows, by the net of the panes."""
    rows = ts.Root(root).panes(operator=operator, net=True).to_table()
    return Counter(value for values in rows["values"].to_pylist() for value in values)


def waiting(root: Path, job: Any, **chosen: Any) -> dict[tuple[str, str], int]:
    listed = ts.Root(root).reprocess(job, **chosen).as_dict()["waiting"]
    return {(row["operator"], row["reason"]): row["rows"] for row in listed}


def test_one_reason_then_the_other_then_all(tmp_path: Path) -> None:
    running = pricing().standalone(checkpoint=tmp_path)
    running.run(PRICED_BATCHES)
    fed_at = head(tmp_path).id
    assert waiting(tmp_path, pricing()) == {("short", LATE): 1, ("short", UNEXPECTED): 2}
    assert other_needs(head(tmp_path).needs) == ["expectations/1", "expressions/1", "stages/1"]
    running.reprocess_late(reason=LATE)
    manifest = evidence.manifests(tmp_path)[-1]
    assert (manifest["fed"], manifest["fed_by_reason"]) == (0, {"short": {LATE: fed_at}})
    assert NEED in manifest["needs"]
    assert waiting(tmp_path, pricing()) == {("short", UNEXPECTED): 2}
    running.reprocess_late(reason=LATE)
    assert head(tmp_path).id == fed_at + 1, "nothing waits, so nothing is written"
    # The condition is loosened, so that some of what was refused is as expected now.
    running = pricing(-1).standalone(checkpoint=tmp_path)
    running.run(PRICED_BATCHES)
    running.reprocess_late(reason=UNEXPECTED)
    assert standing(tmp_path, "short") == Counter([2, 3])
    assert waiting(tmp_path, pricing()) == {("short", UNEXPECTED): 1}, "4 is still not as expected"
    running = pricing(-2).standalone(checkpoint=tmp_path)
    running.run(PRICED_BATCHES)
    running.reprocess_late()
    manifest = evidence.manifests(tmp_path)[-1]
    assert "fed_by_reason" not in manifest
    assert NEED in manifest["needs"], "it goes on from checkpoints that have it"
    running.run(PRICED_BATCHES, drain=True)
    assert standing(tmp_path, "short") == Counter([1, 2, 3, 4, 5])


def test_where_no_other_reason_waits_the_root_is_stored_as_before(tmp_path: Path) -> None:
    running = pricing().standalone(checkpoint=tmp_path)
    running.run([arriving([(100, 1, 1), (10, -1, 2)])])
    fed_at = head(tmp_path).id
    running.reprocess_late(reason=UNEXPECTED)
    manifest = evidence.manifests(tmp_path)[-1]
    assert (manifest["fed"], manifest.get("fed_by_reason")) == (fed_at, None)
    assert NEED not in manifest["needs"]


def test_an_operator_without_rows_of_the_reason_is_not_concerned(tmp_path: Path) -> None:
    tested = described().harness(PRICES, folder=tmp_path, store=Memory())
    tested.feed(arriving([(100, 1, 1)]))
    tested.feed(arriving([(80, 1, 2), (110, -1, 3)]))  # 2 is too late for one of them
    fed_at = head(tmp_path).id
    tested.reprocess_late(reason=LATE)
    assert head(tmp_path).fed_by_reason == {"short": {LATE: fed_at}}
    tested.reprocess_late(operator="wide")
    assert head(tmp_path).fed_by_reason == {"short": {LATE: fed_at}}
    assert waiting(tmp_path, described()) == {("short", UNEXPECTED): 1, ("wide", UNEXPECTED): 1}


def test_a_plan_says_what_waits_on(tmp_path: Path) -> None:
    pricing().standalone(checkpoint=tmp_path).run(PRICED_BATCHES)
    plan = ts.Root(tmp_path).reprocess(pricing(), reason=LATE)
    text = " ".join(str(plan).split())
    assert "to put back 1 event of short (very_late)" in text
    assert "stay 2 rows of short (expectation): wait, as they have another reason" in text
    assert plan.execute().put_back == 1
    assert ts.Root(tmp_path).reprocess(pricing(), reason=LATE).execute().put_back == 0
    assert waiting(tmp_path, pricing()) == {("short", UNEXPECTED): 2}
    assert ts.Root(tmp_path).reprocess(pricing(-2), reason=UNEXPECTED).execute().put_back == 2
    assert waiting(tmp_path, pricing()) == {}


def test_the_history_of_a_window_says_when_late_rows_were_put_back(tmp_path: Path) -> None:
    running = pricing().standalone(checkpoint=tmp_path)
    running.run(PRICED_BATCHES)
    running.reprocess_late(reason=UNEXPECTED)
    assert not any("reprocessed" in text for text in rejections(tmp_path)), "other rows were put back"
    running.reprocess_late(reason=LATE)
    late_in = head(tmp_path).id
    [text] = [text for text in rejections(tmp_path) if "reprocessed" in text]
    assert text.startswith("rejected: very late")
    assert text.endswith(f"reprocessed in checkpoint {late_in}")


def rejections(root: Path) -> list[str]:
    return [event.what for event in ts.Root(root).history(0, key="a").events if event.kind == "rejected"]


def test_moves_of_a_root_keep_what_was_put_back(tmp_path: Path) -> None:
    root, job = tmp_path / "root", pricing()
    running = job.standalone(checkpoint=root)
    running.run(PRICED_BATCHES)
    before = head(root).id
    running.reprocess_late(reason=LATE)
    after = head(root).id
    running.reprocess_late()
    # Back to between the two calls: one reason is put back there, and the other waits.
    reset_to(Checkpoint.open(root), after)
    assert waiting(root, job) == {("short", UNEXPECTED): 2}
    assert NEED in head(root).needs
    rescale(str(root), 3)
    assert waiting(root, job) == {("short", UNEXPECTED): 2}
    fork(root, tmp_path / "fork")
    assert waiting(tmp_path / "fork", job) == {}
    reset_to(Checkpoint.open(root), before)
    assert waiting(root, job) == {("short", LATE): 1, ("short", UNEXPECTED): 2}
    assert NEED not in head(root).needs
    # What was put back on the line that was left is put back again, once.
    running = pricing(-2).standalone(checkpoint=root)
    running.run(PRICED_BATCHES)
    running.reprocess_late(reason=LATE)
    running.reprocess_late()
    running.run(PRICED_BATCHES, drain=True)
    assert standing(root, "short") == Counter([1, 2, 3, 4, 5])


def test_by_hand_too(tmp_path: Path) -> None:
    source = ts.stream(event_time="t", offset="v").expect("price", "p >= 0")
    lists = source.group_by("k").window(ts.tumbling("1 minute")).aggregate(values=agg.list("v"))
    job = lists.allowed_lateness("0 seconds").retain_windows("1 day").accumulation("retracting").named("short")
    operator = job.by_hand(PRICES, checkpoint=tmp_path)
    for rows in PRICED_BATCHES:
        operator.add_messages(rows)
    assert operator.reprocess_late(reason=LATE)["fed"] == 1
    assert [*head(tmp_path).fed_by_reason["short"]] == [LATE]
    assert operator.reprocess_late(reason=LATE) == {}
    assert operator.reprocess_late(reason=UNEXPECTED)["fed"] == 2
    assert operator.reprocess_late()["fed"] == 2, "they are refused each time"
    assert head(tmp_path).fed_by_reason == {}
    operator.drain()
    operator.flush()
    operator.close()
    assert standing(tmp_path, "short") == Counter([1, 3, 5])


DEATHS = [f"{moment}-manifest:{number}" for moment in ("before", "after") for number in (4, 6)]


@pytest.mark.parametrize("death", DEATHS)
def test_killed_at_a_side_of_a_commit_each_row_is_put_back_once(death: str, tmp_path: Path) -> None:
    """The fourth checkpoint puts back what was too late, the sixth what was not as expected."""
    process = Forked("tests.children.by_reason", tmp_path, death)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    done = {"before-manifest:4": [], "after-manifest:6": [LATE, UNEXPECTED]}.get(death, [LATE])
    assert [*head(tmp_path).fed_by_reason.get("short", {})] == done
    put_back_by_reason(str(tmp_path))
    assert standing(tmp_path, "short") == Counter([1, 2, 3, 4, 5])
    assert ts.Root(tmp_path).manifest().totals["fed"] == 3


@pytest.mark.slow
def test_a_run_that_is_asked_puts_back_each_once(tmp_path: Path) -> None:
    answers: list[int | None] = []

    def source() -> Iterator[pa.Table]:
        # A call is answered by a run that is under way, so the input ends only after the answers.
        yield from PRICED_BATCHES
        until((tmp_path / "control" / "1" / "begun.json").exists)
        asked = asker(tmp_path)
        reasons = (LATE, LATE, UNEXPECTED, None, None)
        answers.extend(asked.ask(ReprocessRequest(None, reason=reason)).rows for reason in reasons)

    pricing().standalone(checkpoint=tmp_path).run(source(), drain=True)
    assert answers == [1, 0, 2, 2, 2], "rows that are refused again wait again"
    assert standing(tmp_path, "short") == Counter([1, 3, 5])


@dataclass
class Twin:
    """What the windows and the ledgers have, by plain rules: a row waits until it is put back, for any reason."""

    least: int = 0
    rows: dict[int, Row] = field(default_factory=dict)
    newest: int | None = None
    taken: dict[str, Counter[int]] = field(default_factory=lambda: {name: Counter() for name in LATENESS_S})
    waiting: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: {name: [] for name in LATENESS_S})

    def feed(self, rows: list[tuple[int, int, int]]) -> None:
        newest = self.newest
        for second, price, number in rows:
            self.rows[number] = (second, price)
            # A row that is not as expected is judged before it is late, and moves no watermark.
            if price < self.least:
                for waiting in self.waiting.values():
                    waiting.append((number, UNEXPECTED))
                continue
            for name, lateness in LATENESS_S.items():
                if self.newest is not None and second < self.newest - lateness:
                    self.waiting[name].append((number, LATE))
                else:
                    self.taken[name][number] += 1
            newest = second if newest is None else max(newest, second)
        self.newest = newest

    def put_back(self, operator: str | None, reason: str | None) -> int:
        count = 0
        for name in LATENESS_S if operator is None else [operator]:
            back = [number for number, why in self.waiting[name] if reason in (None, why)]
            self.waiting[name] = [(number, why) for number, why in self.waiting[name] if reason not in (None, why)]
            for number in back:
                if self.rows[number][1] < self.least:
                    self.waiting[name].append((number, UNEXPECTED))
                else:
                    self.taken[name][number] += 1
            count += len(back)
        return count

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        return dict(Counter((name, why) for name, rows in self.waiting.items() for _, why in rows))


class Both:
    """A job and its twin."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.twin, self.numbers = folder, Twin(), iter(range(1, 1_000))
        self.tested = self.opened()
        self.kept: dict[int, Twin] = {}

    def opened(self) -> Harness:
        return described(self.twin.least).harness(PRICES, folder=self.folder, partitions=2, store=Memory())

    @property
    def fed(self) -> int:
        return sum(head(self.folder).totals.get(f"{name}.fed", 0) for name in LATENESS_S)

    def act(self, step: Any) -> None:
        if isinstance(step, list):
            rows = [(second, price, next(self.numbers)) for second, price in step]
            self.tested.feed(arriving(rows))
            self.twin.feed(rows)
        elif isinstance(step, int):
            self.twin.least = step
            self.tested = self.opened()
        elif step == "rewind":
            # Not the newest: what was put back since must wait again.
            checkpoint_id = sorted(self.kept)[len(self.kept) // 2]
            reset_to(Checkpoint.open(self.folder), checkpoint_id)
            self.twin = deepcopy(self.kept[checkpoint_id])
            self.kept = {number: twin for number, twin in self.kept.items() if number <= checkpoint_id}
            self.tested = self.opened()
        else:
            operator, reason = step
            before = self.fed
            self.tested.reprocess_late(operator=operator, reason=reason)
            assert self.fed - before == self.twin.put_back(operator, reason)
        assert waiting(self.folder, described(self.twin.least)) == self.twin.counts
        self.kept[head(self.folder).id] = deepcopy(self.twin)


CALLS = st.tuples(st.sampled_from([None, "short", "wide"]), st.sampled_from([None, LATE, UNEXPECTED]))
STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(st.integers(0, 200), st.integers(-3, 3)), min_size=1, max_size=5),
        CALLS,
        st.sampled_from([0, -1, -2, 1, "rewind"]),
    ),
    min_size=3,
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(steps=STEPS)
def test_each_row_is_put_back_once_by_any_sequence_of_calls(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        both = Both(Path(folder, "root"))
        for step in [[(150, 1), (20, -1)], [(20, 1), (130, 2)], *steps, -3, (None, None)]:
            both.act(step)
        both.tested.finish()
        for name in LATENESS_S:
            assert standing(both.folder, name) == both.twin.taken[name] == Counter([*both.twin.rows])
