"""Files of a session join's rows are lost: it goes on at once, and a replay corrects what it emitted without them."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.children.lost_sessions import JOB, LOST_AFTER, batches
from tests.children.lost_sessions import main as finish
from tests.helpers.forked import forked
from tests.helpers.internals import operator_of
from tests.helpers.join_jobs import SCHEMA, SECOND, STORES, table
from tests.helpers.lost_messages import FORGET, REBUILD, lose
from tests.helpers.process import LONG
from tests.helpers.two_streams import Row as Plain
from tests.twins.join import SIDES, Row
from tests.twins.sessions import ENDED, Brute, Pair
from tidestate import OperatorStream
from tidestate.operators import JoinOperator
from tidestate.operators.engine.delivery import read_rows
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Rebuilding
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.errors import CorruptionError, UsageError

TABLES = ("left", "right")


def described(
    late: int = 1000, how: Any = "inner", offset: str | None = "off", session: Any = None
) -> OperatorStream:
    left, right = (ts.stream(event_time="t", offset=offset) for _ in "lr")
    return left.join_sessions(
        right,
        on="key",
        gap="5 s",
        allowed_lateness=f"{late} s",
        how=how,
        session_key=session,
        identity=offset is not None,
    )


class Joined:
    """A session join in the harness; ``net`` is what stands of all it has emitted."""

    def __init__(self, description: OperatorStream, folder: Path, store: str = "memory", partitions: int = 1) -> None:
        self.description, self.schema = description, {"left": SCHEMA, "right": SCHEMA}
        self.harness = description.harness(
            self.schema, store=STORES[store], folder=folder, partitions=partitions, generate=False
        )
        self.net: Counter[Pair] = Counter()
        self.emitted: Counter[Pair] = Counter()

    def rows(self, rows: list[Row]) -> pa.Table:
        return {s: table([one for one in rows if one.side == s]) for s in SIDES}

    def take(self, panes: pa.Table) -> Counter[Pair]:
        """Nothing is taken back that does not stand, and nothing emitted that stands."""
        come: Counter[Pair] = Counter()
        for row in panes.to_pylist():
            bounds = [row[name].timestamp() for name in ("window_start", "window_end")]
            pair = (*map(int, bounds), row["key"], row["left_value"], row["key"], row["right_value"])
            come[pair] += 1 if row["kind"] == "emit" else -1
            self.net[pair] += 1 if row["kind"] == "emit" else -1
        assert set(self.net.values()) <= {0, 1}
        self.net = +self.net
        return Counter({pair: count for pair, count in come.items() if count})

    def feed(self, rows: list[Row]) -> Counter[Pair]:
        return self.take(self.harness.feed(self.rows(rows)))

    def rebuild(self, rows: list[Row]) -> Counter[Pair]:
        return self.take(self.harness.rebuild(self.rows(rows)))

    def reach(self, watermark: int) -> Counter[Pair]:
        return self.take(self.harness.advance_watermark(watermark * SECOND))

    @property
    def rebuilding(self) -> Rebuilding | None:
        operator = operator_of(self.harness)
        return operator.rebuilding


def stream(pick: random.Random) -> list[list[Row]]:
    """Offsets grow, times more or less; some messages come again."""
    offsets, had, batches = dict.fromkeys(SIDES, 0), list[Row](), []
    for number in range(6):
        batch = []
        for place in range(pick.randint(1, 7)):
            side = pick.choice(SIDES)
            offsets[side] += 1
            at = max(0, 8 * number + pick.choice([0, 3, 7, -4, -9, -17, -30]))
            batch.append(Row(side, pick.choice("aab"), at, 100 * number + place, offsets[side]))
        batches.append([*batch, *pick.choices([*batch, *had], k=pick.choice([0, 2]))])
        had += batch
    return batches


def plain(batch: list[Row], known: set[tuple[str, int]]) -> list[Plain]:
    """The rows that have not been here."""
    fresh = []
    for row in batch:
        if (row.side, row.offset) not in known:
            known.add((row.side, row.offset))
            fresh.append(Plain(row.side, row.key, row.at, row.value))
    return fresh


@pytest.mark.long
@settings(max_examples=12 if LONG else 1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), store=st.sampled_from(list(STORES)), partitions=st.integers(1, 3))
def test_once_all_rows_are_back_what_stands_is_the_product_of_sessions(
    tmp_path_factory: pytest.TempPathFactory, seed: int, store: str, partitions: int
) -> None:
    """Nothing that stands is wrong meanwhile but for pairs of sessions that have changed since."""
    pick, folder = random.Random(seed), tmp_path_factory.mktemp("lost")
    apart = pick.random() < 0.3
    made = Joined(described(session=() if apart else None), folder, store, partitions)
    brute, known, each = Brute("inner", 5, 1000, keyed=True, apart=apart), set[tuple[str, int]](), stream(pick)
    losses = sorted(pick.sample(range(1, 6), k=2))
    rescaled = pick.choice([*losses, 7])
    for number, batch in enumerate(each):
        if number in losses and made.rebuilding is None and lose(folder, pick, tables=TABLES):
            made.harness.restart(REBUILD)
        if number == rescaled:
            rescale(folder, partitions % 3 + 1, force=True)
            made.harness.restart(REBUILD)
        brute.batch(plain(batch, known))
        made.feed(batch)
        had = [row for one in each[: number + 1] for row in one]
        while made.rebuilding is not None and pick.random() < 0.5:
            made.rebuild(pick.choices(had, k=pick.randint(0, 2 * len(had))))
            if pick.random() < 0.3:
                made.harness.restart(REBUILD)
        if made.rebuilding is not None and (pick.random() < 0.3 or number == 5):
            made.rebuild(pick.sample(had, len(had)))
            assert made.rebuilding is None or rescaled <= number
            if made.rebuilding is not None:
                made.harness.restart(FORGET)  # what others have now is counted in more than one state partition
        mark = number * 8 + pick.choice([-12, 0, 4])
        brute.passed(mark)
        made.reach(mark)
        values = {pair[2:] for pair in brute.observed()}
        assert all(pair[2:] in values for pair in made.net), "no pair of rows that are in no session"
        if made.rebuilding is None:
            assert made.net == brute.observed()
    brute.passed(ENDED)
    made.take(made.harness.finish())
    assert made.net == brute.observed()


@settings(max_examples=12 if LONG else 1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), partitions=st.integers(1, 3), late=st.sampled_from([0, 6, 15]))
@pytest.mark.long
def test_what_is_over_before_the_replay_is_left_as_it_stands(
    tmp_path_factory: pytest.TempPathFactory, seed: int, partitions: int, late: int
) -> None:
    """Each pair stands once at most, and only pairs of one session do."""
    pick, folder = random.Random(seed), tmp_path_factory.mktemp("lost")
    made, each = Joined(described(late), folder, "memory", partitions), stream(pick)
    brute, known, at = Brute("inner", 5, late, keyed=True), set[tuple[str, int]](), pick.randrange(1, 5)
    for number, batch in enumerate(each):
        if number == at and lose(folder, pick, tables=TABLES):
            made.harness.restart(REBUILD)
        brute.batch(plain(batch, known))
        made.feed(batch)
        had = [row for one in each[: number + 1] for row in one]
        if pick.random() < 0.4:
            made.rebuild(pick.choices(had, k=len(had)))
        mark = number * 8 + pick.choice([-12, 0, 4])
        brute.passed(mark)
        made.reach(mark)
        if made.rebuilding is not None and pick.random() < 0.2:
            made.harness.restart(FORGET)
    brute.passed(ENDED)
    made.take(made.harness.finish())
    pairs = [pair[2:] for pair in made.net]
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) <= {pair[2:] for pair in brute.observed()}


L1, R1, L2, R2 = (
    Row("left", "a", 1, 1, 1),
    Row("right", "a", 3, 11, 1),
    Row("left", "a", 10, 2, 2),
    Row("right", "a", 6, 12, 2),
)


def pair(start: int, end: int, left: int, right: int) -> Pair:
    return (start, end, "a", left, "a", right)


def test_a_session_that_has_changed_since_is_corrected(tmp_path: Path) -> None:
    made = Joined(described(), tmp_path)
    made.feed([L1, R1])
    assert made.reach(9) == {pair(1, 8, 1, 11): 1}
    assert lose(tmp_path, tables=TABLES)
    made.harness.restart(REBUILD)
    assert made.feed([R2, L2]) == Counter()
    assert made.reach(20) == {pair(1, 15, 2, 12): 1}
    assert made.rebuild([L1]) == {pair(1, 15, 1, 12): 1}
    corrected = {pair(1, 8, 1, 11): -1, pair(1, 15, 1, 11): 1, pair(1, 15, 2, 11): 1}
    assert made.rebuild([R1, L1]) == corrected
    assert made.rebuilding is None
    assert made.rebuild([L1, R1]) == Counter()
    assert made.harness.counters()["put_back"] == 2


def test_what_was_given_up_is_not_put_back(tmp_path: Path) -> None:
    made = Joined(described(), tmp_path)
    made.feed([L1, R1])
    assert lose(tmp_path, tables=TABLES)
    made.harness.restart(REBUILD)
    assert made.feed([R2]) == Counter()
    made.rebuild([L1])
    assert lose(tmp_path, tables=TABLES)
    with pytest.raises(CorruptionError, match="lost-again"):
        made.harness.restart(REBUILD)
    made.harness.restart(FORGET)
    assert made.feed([L2]) == made.rebuild([L1, R1, R2]) == Counter()
    assert made.take(made.harness.finish()) == Counter()


def test_a_session_join_by_hand(tmp_path: Path) -> None:
    def opened(**how: Any) -> JoinOperator:
        return described().by_hand({"left": SCHEMA, "right": SCHEMA}, checkpoint=tmp_path, **how)

    with opened() as operator:
        operator.add_messages(left=table([L1]), right=table([R1]))
        operator.flush()
    assert lose(tmp_path, tables=TABLES)
    with opened(policy=REBUILD) as operator:
        operator.add_messages(left=table([L2]), right=table([R2]))
        operator.rebuild(left=table([L1]), right=table([R1]))
        operator.drain()
        found = [result.panes["right_value"].to_pylist() for result in operator.get_result()]
    assert sorted(value for values in found for value in values) == [11, 11, 12, 12]


@pytest.mark.parametrize("how", [{"how": "left"}, {"offset": None}])
def test_other_session_joins_are_refused(tmp_path: Path, how: dict[str, Any]) -> None:
    made = Joined(described(**how), tmp_path)
    made.feed([L1, R1])
    with pytest.raises(UsageError, match="no-messages"):
        made.rebuild([L1])


@pytest.mark.long  # of windows in every run: tests.operators.windows.test_rebuild
@pytest.mark.kill
def test_a_replay_of_sessions_that_is_killed_at_its_manifest_is_given_again(tmp_path: Path) -> None:
    whole = JOB.standalone(checkpoint=tmp_path / "whole", partitions=2).run(batches(), drain=True)
    root = tmp_path / "root"
    JOB.standalone(checkpoint=root, partitions=2).run(batches()[:LOST_AFTER])
    assert lose(root, tables=TABLES)
    # After the fence come two batches that are served, and a replay in two pieces: it dies in the second.
    death = f"before-manifest:{Checkpoint.open(root).present_ids()[-1] + 5}"
    assert forked("tests.children.lost_sessions", root, death) == -signal.SIGKILL
    finish(str(root))
    found = Checkpoint.open(root)
    panes = [read_rows(found, output.panes, whole.schema) for output in found.outputs()]
    assert any("retract" in part["kind"].to_pylist() for part in panes)
    assert standing(pa.concat_tables(panes)) == standing(whole)


def standing(panes: pa.Table) -> Counter[tuple[Any, ...]]:
    """What is left of panes."""
    left: Counter[tuple[Any, ...]] = Counter()
    for row in panes.to_pylist():
        kind = row.pop("kind")
        left[tuple(row.values())] += 1 if kind == "emit" else -1
    assert set(left.values()) <= {0, 1}
    return +left
