"""An outer join has lost rows: what has no partner waits until a replay has put them back; then nothing differs."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.internals import head_of
from tests.helpers.join_jobs import SCHEMA, STORES, described, observed, table
from tests.helpers.lost_joins import TABLES, Joined, net, stream
from tests.helpers.lost_messages import FORGET, REBUILD, lose, noted
from tests.helpers.process import LONG
from tests.twins.join import Asked, Pane, Row, Twin, Window
from tidestate import agg
from tidestate.operators import JoinOperator
from tidestate.statestore.errors import CorruptionError, UsageError


def drawn(pick: random.Random) -> Asked:
    chosen: dict[str, Any] = {
        "on": pick.random() < 0.8,
        "large": pick.random() < 0.5,
        "how": pick.choice(["left", "right", "full"]),
        "close": pick.random() < 0.7,
        "late": pick.choice([0, 0, 6, 20]),
    }
    if pick.random() < 0.25:
        chosen["window"] = Window(10, 10)
        chosen["first"] = pick.random() < 0.5
    else:
        chosen["low"], chosen["high"] = pick.choice(
            [(-3, 3), (0, 15), (-12, -2), (2, 7), (None, 4), (1, None), (-12, 12), (-12, 12)]
        )
        chosen["in_order"] = pick.random() < 0.2
        chosen["spans"] = pick.choice([(None, None), (None, None), (8, 8), (25, 12)])
    return Asked(named=True, delays=pick.choice([(0, 0), (0, 3)]), **chosen)


@pytest.mark.long
@settings(max_examples=60 if LONG else 2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), store=st.sampled_from(list(STORES)), partitions=st.integers(1, 3))
def test_it_comes_to_what_a_join_emits_that_has_lost_nothing(
    tmp_path_factory: pytest.TempPathFactory, seed: int, store: str, partitions: int
) -> None:
    pick, folder = random.Random(seed), tmp_path_factory.mktemp("lost")
    asked, batches = drawn(pick), stream(pick)
    made, twin = Joined(asked, folder, store, partitions), Twin(asked)
    at = pick.randrange(1, 5)
    until = pick.randrange(at, 6)
    panes: Counter[Pane] = Counter()
    wanted: Counter[Pane] = Counter()
    for number, batch in enumerate(batches):
        if number == at and lose(folder, pick, tables=TABLES):
            made.harness.restart(REBUILD)
        if number >= at and made.rebuilding is not None:
            had = [row for one in batches[:number] for row in one]
            replays = [pick.choices(had, k=pick.randint(0, len(had))) for _ in range(pick.choice([0, 1, 2]))]
            for replay in [*replays, had] if number == until else replays:
                panes += made.rebuild(replay)
                if pick.random() < 0.3:
                    made.harness.restart(REBUILD)
            assert number < until or made.rebuilding is None
        waits = made.rebuilding is not None
        new = made.feed(batch)
        assert not waits or all(None not in pane[2:4] for pane in new if pane[0] == "emit"), asked
        panes += new
        wanted += twin.batch(batch, 0)
        assert waits or net(panes) == net(wanted), asked
    if made.rebuilding is not None:
        with pytest.raises(UsageError, match="rebuilding"):
            made.harness.finish()
        had = [row for one in batches for row in one]
        panes += made.rebuild(pick.sample(had, len(had)))
    panes += observed(made.harness.finish(), asked)
    assert net(panes) == net(wanted + twin.finish()), asked
    assert made.harness.ledger().num_rows == twin.rejected, asked


NEAR = Asked(how="full", low=-5, high=5, late=2, named=True)


def row(side: str, at: int, offset: int) -> Row:
    return Row(side, "a", at, at, offset)


L1, L2, R1, R2 = row("left", 1, 1), row("left", 9, 2), row("right", 3, 1), row("right", 12, 2)
PAST = [row("left", 40, 9), row("right", 40, 9)]
"""With these the watermark is 40."""


def pane(kind: str, left: int | None, right: int | None) -> Pane:
    return kind, "a", left, right, None


def served(folder: Path, asked: Asked = NEAR) -> Joined:
    """A join that has lost two rows of a pair and one that waits, and where every row is over since."""
    made = Joined(asked, folder)
    assert made.feed([L1, R1, L2]) == Counter([pane("emit", 1, 3)])
    assert lose(folder, tables=TABLES)
    made.harness.restart(REBUILD)
    assert made.feed(PAST) == Counter([pane("emit", 40, 40)]), "the row that waits may meet one that is lost"
    return made


def test_rows_wait_until_all_are_back(tmp_path: Path) -> None:
    made = served(tmp_path)
    assert made.rebuild([L1, L1]) == Counter()
    made.harness.restart(REBUILD)
    assert made.feed([]) == Counter()
    assert noted(made.rebuilding) == (3, 2)
    assert made.rebuild([R1, L2, L1]) == Counter()
    made.harness.restart()
    assert made.rebuilding is None
    assert made.feed([]) == Counter([pane("emit", 9, None)])
    assert made.feed([]) == observed(made.harness.finish(), NEAR) == Counter()


def test_what_had_expired_before_a_row_is_no_partner_of_it(tmp_path: Path) -> None:
    """Though it is there, as nothing expires while rows are missing, or comes back later."""
    old, stays, late = row("right", 12, 1), row("right", 16, 2), row("left", 15, 1)
    for lost in (False, True):
        made, twin = Joined(NEAR, tmp_path / str(lost)), Twin(NEAR)
        steps = [[old, stays, row("left", 14, 8)], [row("left", 22, 9), row("right", 22, 9)], [late], PAST]
        panes, wanted = Counter[Pane](), Counter[Pane]()
        for number, batch in enumerate(steps):
            if number == 1 and lost:
                assert lose(tmp_path / str(lost), tables=TABLES)
                made.harness.restart(REBUILD)
            panes += made.feed(batch)
            wanted += twin.batch(batch, 0)
        if lost:
            panes += made.rebuild([row for batch in steps for row in batch])
            assert made.rebuilding is None
        panes += observed(made.harness.finish(), NEAR)
        assert net(panes) == net(wanted + twin.finish())
        assert wanted[pane("emit", 15, 16)] == 1
        assert not wanted[pane("emit", 15, 12)]


def limited(made: Joined) -> int:
    """Rows that are known not to meet all lost ones."""
    return sum(made.harness.state(f"limited_{side}").num_rows for side in ("left", "right"))


@pytest.mark.parametrize("late", [17, 19])
def test_a_microsecond_decides_whether_a_row_had_expired(tmp_path: Path, late: int) -> None:
    """The watermark was at 22 when the late row came, and rows up to 14 had expired; it reaches back to 12 or 14."""
    uneven, partners = Asked(how="full", low=-5, high=3, late=2, named=True), set()
    for at in range(13, 17):
        made, twin = Joined(uneven, tmp_path / str(at), unit="us"), Twin(uneven)
        steps = [[row("right", at, 1), row("left", 14, 8)], [row("left", 22, 9), row("right", 22, 9)]]
        steps += [[row("left", late, 1)], PAST]
        panes, wanted = Counter[Pane](), Counter[Pane]()
        for number, batch in enumerate(steps):
            if number == 1:
                assert lose(tmp_path / str(at), tables=TABLES)
                made.harness.restart(REBUILD)
            panes += made.feed(batch)
            wanted += twin.batch(batch, 0)
        assert limited(made) == 1
        panes += made.rebuild([row for batch in steps for row in batch])
        panes += observed(made.harness.finish(), uneven, "us")
        assert net(panes) == net(wanted + twin.finish()), at
        assert limited(made) == 0
        partners |= {at} if wanted[pane("emit", late, at)] else set()
    assert partners == {15, 16}


def test_what_is_given_up_is_no_partner_and_is_not_emitted(tmp_path: Path) -> None:
    made = served(tmp_path)
    assert made.rebuild([L2]) == Counter()
    made.harness.restart(FORGET)
    alone = row("left", 100, 10)
    assert made.feed([alone, row("right", 200, 10)]) == Counter([pane("emit", 9, None)])
    assert observed(made.harness.finish(), NEAR) == Counter([pane("emit", 100, None), pane("emit", None, 200)])
    made = served(tmp_path / "nothing_back")
    made.harness.restart(FORGET)
    assert made.feed([]) == observed(made.harness.finish(), NEAR) == Counter()


def test_rows_are_lost_again(tmp_path: Path) -> None:
    """Before what had waited is emitted, its rows are needed."""
    made = served(tmp_path)
    made.rebuild([L1, R1, L2])
    assert lose(tmp_path, tables=TABLES)
    with pytest.raises(CorruptionError, match="lost-again"):
        made.harness.restart(REBUILD)
    made.harness.restart(FORGET)
    assert made.feed([]) == Counter()


def test_an_input_cannot_end_while_rows_are_missing(tmp_path: Path) -> None:
    made = served(tmp_path)
    before = head_of(made.harness).id
    with pytest.raises(UsageError, match="rebuilding"):
        made.harness.finish()
    assert head_of(made.harness).id == before
    made.rebuild([L1, R1, L2])
    assert observed(made.harness.finish(), NEAR) == Counter([pane("emit", 9, None)])


def test_operators_that_follow_wait_too(tmp_path: Path) -> None:
    joined = described(NEAR)
    counted = joined.group_by("key").window(ts.tumbling("10 s")).aggregate(n=agg.count())
    both = counted.named("counted")
    found = []
    for name, lost in (("whole", False), ("made", True)):
        made = both.harness({"left": SCHEMA, "right": SCHEMA}, folder=tmp_path / name)
        made.feed({"left": table([L1, L2]), "right": table([R1])})
        if lost:
            assert lose(tmp_path / name, tables=TABLES)
            made.restart(REBUILD)
        panes = made.feed({"left": table(PAST[:1]), "right": table(PAST[1:])})
        assert panes.num_rows == (0 if lost else 1)
        if lost:
            made.rebuild({"left": table([L1, L2]), "right": table([R1])})
            panes = made.feed({"left": table([]), "right": table([])})
        found.append([panes["n"].to_pylist(), made.finish()["n"].to_pylist()])
    assert found[0] == found[1] == [[2], [1]]


def test_by_hand(tmp_path: Path) -> None:
    def opened(**how: Any) -> JoinOperator:
        return described(NEAR).by_hand({"left": SCHEMA, "right": SCHEMA}, checkpoint=tmp_path, **how)

    with opened() as operator:
        operator.add_messages(left=table([L1, L2]), right=table([R1]))
        operator.flush()
    assert lose(tmp_path, tables=TABLES)
    with opened(policy=REBUILD) as operator:
        operator.add_messages(left=table(PAST[:1]), right=table(PAST[1:]))
        with pytest.raises(UsageError, match="rebuilding"):
            operator.drain()
        operator.rebuild(left=table([L1, L2]), right=table([R1]))
        operator.drain()
        emitted: Counter[Pane] = Counter()
        for result in operator.get_result():
            emitted += observed(result.panes, NEAR)
    assert emitted == Counter([pane("emit", 1, 3), pane("emit", 40, 40), pane("emit", 9, None)])
