"""Files of a join's rows are lost: it goes on at once, and a replay brings the pairs that were missed."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.join_jobs import SCHEMA, STORES, described, observed, table
from tests.helpers.lost_joins import TABLES, Joined, drawn, stream
from tests.helpers.lost_messages import FORGET, REBUILD, lose, noted
from tests.helpers.process import LONG
from tests.twins.join import Asked, Pane, Row, Stored, Twin, Window
from tidestate import agg
from tidestate.operators import JoinOperator
from tidestate.operators.inspect.query import query
from tidestate.statestore.errors import CorruptionError, FencedError, UsageError


class LosingTwin(Twin):
    """Rows that are lost meet nobody until they are back; those that are back meet whom they have missed."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self.lost: list[Stored] = []
        self.back: list[Stored] = []

    def lose(self) -> None:
        self.lost += self.stored
        self.stored = []

    def replay(self, rows: list[Row]) -> Counter[Pane]:
        panes: Counter[Pane] = Counter()
        now = [one for one in self.lost if one.row in rows]
        since = [one for one in self.stored if one not in self.back]
        for one in now:
            for other in since:
                if other.row.side != one.row.side and self.reaches(one.row, other.row, {}):
                    self.meet(one, other, panes)
        self.lost = [one for one in self.lost if one not in now]
        self.stored += now
        self.back += now
        return panes

    def passed(self) -> Counter[Pane]:
        self.lost = [one for one in self.lost if not self.forgotten(one.row)]
        return super().passed()


@settings(max_examples=40 if LONG else 2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), store=st.sampled_from(list(STORES)), partitions=st.integers(1, 3))
def test_pairs_are_those_of_the_twin(
    tmp_path_factory: pytest.TempPathFactory, seed: int, store: str, partitions: int
) -> None:
    pick, folder = random.Random(seed), tmp_path_factory.mktemp("lost")
    asked, batches = drawn(pick), stream(pick)
    made, twin = Joined(asked, folder, store, partitions), LosingTwin(asked)
    at = pick.randrange(1, 5)
    for number, batch in enumerate(batches):
        if number == at and lose(folder, tables=TABLES):
            made.harness.restart(REBUILD)
            twin.lose()
        if number >= at and made.rebuilding is not None:
            had = [row for one in batches[:number] for row in one]
            for _ in range(pick.choice([0, 1, 3])):
                replay = pick.choices(had, k=pick.randint(0, 2 * len(had)))
                assert made.rebuild(replay) == twin.replay(replay), asked
                assert (made.rebuilding.lacking if made.rebuilding else 0) == len(twin.lost), asked
                if pick.random() < 0.3:
                    made.harness.restart(REBUILD)
        assert made.feed(batch) == twin.batch(batch, 0), asked
    assert observed(made.harness.finish(), asked) == twin.finish(), asked
    assert made.harness.ledger().num_rows == twin.rejected, asked


@settings(max_examples=25 if LONG else 2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), store=st.sampled_from(list(STORES)), partitions=st.integers(1, 3))
@pytest.mark.long
def test_a_join_that_has_lost_some_files_is_as_one_that_has_lost_none(
    tmp_path_factory: pytest.TempPathFactory, seed: int, store: str, partitions: int
) -> None:
    """Where nothing expires before the replay."""
    pick, folder = random.Random(seed), tmp_path_factory.mktemp("lost")
    asked, batches = drawn(pick), stream(pick)
    asked = Asked(**{**vars(asked), "late": 100, "spans": pick.choice([(None, None), (8, 200)])})
    made, whole = (
        Joined(asked, folder / "made", store, partitions),
        Joined(asked, folder / "whole", store, partitions),
    )
    at, replayed = sorted(pick.choices(range(1, 6), k=2))
    panes: Counter[Pane] = Counter()
    wanted: Counter[Pane] = Counter()
    for number, batch in enumerate(batches):
        if number == at and lose(folder / "made", pick, tables=TABLES):
            made.harness.restart(REBUILD)
        if number == replayed:
            replay = [row for one in batches[:number] for row in one]
            pick.shuffle(replay)
            half = pick.randrange(len(replay))
            for part in (replay[:half], replay[half:], replay):
                panes += made.rebuild(part)
            assert made.rebuilding is None
            for name in (*TABLES, "left_seen", "right_seen"):
                assert made.state(name) == whole.state(name)
        panes += made.feed(batch)
        wanted += whole.feed(batch)
    panes += observed(made.harness.finish(), asked)
    assert panes == wanted + observed(whole.harness.finish(), asked), asked


NEAR = Asked(low=0, high=60, late=60, named=True)
L1, L2, R1, R2, R3 = (
    Row("left", "a", 1, 1, 1),
    Row("left", "a", 2, 2, 2),
    Row("right", "a", 11, 11, 1),
    Row("right", "a", 12, 12, 2),
    Row("right", "a", 13, 13, 3),
)


def pairs(*values: tuple[int, int]) -> Counter[Pane]:
    return Counter(("emit", "a", left, right, None) for left, right in values)


def served(folder: Path) -> Joined:
    """A join that has lost two left rows and a right one, and has had another right one since."""
    made = Joined(NEAR, folder)
    assert made.feed([L1, L2, R1]) == pairs((1, 11), (2, 11))
    assert lose(folder, tables=TABLES)
    made.harness.restart(REBUILD)
    assert made.feed([R2]) == pairs()
    return made


def test_pairs_are_missed_at_once_and_emitted_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = served(tmp_path)
    asked = query(tmp_path)
    assert asked.replay_from("left").to_pylist() == [{"origin": 0, "start_offset": 1, "last_offset": 2}]
    assert asked.replay_from("right").to_pylist() == [{"origin": 0, "start_offset": 1, "last_offset": 2}]
    assert made.rebuild([R1, L1, L1, R3]) == pairs((1, 12)), "what the join never had is not taken from a replay"
    assert noted(made.rebuilding) == (3, 1)
    assert "1 rows are missing" in caplog.text
    made.harness.restart(REBUILD)
    assert made.feed([R3]) == pairs((1, 13))
    assert made.rebuild([L1, L2]) == pairs((2, 12), (2, 13))
    assert made.rebuilding is None
    assert made.harness.counters()["put_back"] == 3
    assert made.harness.counters()["pairs"] == 6
    assert made.harness.counters()["events"] == 5
    assert made.rebuild([L1, L2, R1, R2, R3]) == pairs()


def test_rows_are_lost_again(tmp_path: Path) -> None:
    """Once all rows are back; before, pairs of the first loss and what has come since would be missed forever."""
    made = served(tmp_path)
    assert lose(tmp_path, tables=TABLES)
    with pytest.raises(CorruptionError, match="lost-again"):
        made.harness.restart(REBUILD)
    made = served(tmp_path / "again")
    made.rebuild([L1, L2, R1])
    assert lose(tmp_path / "again", tables=TABLES)
    made.harness.restart(REBUILD)
    assert made.feed([R3]) == pairs()
    assert made.rebuild([L1, L2, R1, R2]) == pairs((1, 13), (2, 13))


def test_what_is_given_up_is_not_missing_any_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = served(tmp_path)
    assert made.rebuild([L1]) == pairs((1, 12))
    assert noted(made.rebuilding) == (3, 2)
    made.harness.restart(FORGET)
    assert "gives up on 2 rows" in caplog.text
    assert made.rebuilding is None
    assert made.feed([R3]) == pairs((1, 13))
    assert made.feed([L2]) == pairs(), "it has been here"
    assert made.rebuild([L1, L2, R1]) == pairs()
    assert lose(tmp_path, tables=TABLES)  # again, which is not refused
    made.harness.restart(REBUILD)
    assert made.rebuild([L2]) == pairs()
    assert noted(made.rebuilding)[1:] == (3,), "L1, R2 and R3"  # type: ignore[index]
    assert made.rebuild([L1, L2, R1, R2, R3]) == pairs()
    assert made.rebuilding is None
    assert [row["offset"] for row in made.state("left")] == [1]
    assert made.feed([Row("right", "a", 14, 14, 4)]) == pairs((1, 14))


def test_what_is_lost_now_is_given_up_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = served(tmp_path)
    assert lose(tmp_path, tables=TABLES)
    with pytest.raises(CorruptionError, match="lost-again"):
        made.harness.restart(REBUILD)
    made.harness.restart(FORGET)
    assert "gives up on the 3 rows of lost files" in caplog.text
    assert "gives up on the 1 rows of these files" in caplog.text
    assert made.rebuild([L1, L2, R1, R2]) == pairs(), "nothing is put back, before the first step either"
    assert made.feed([R3]) == made.rebuild([L1, L2, R1, R2]) == pairs()
    assert made.feed([Row("left", "a", 3, 3, 3)]) == pairs((3, 13))
    made.harness.restart(FORGET)  # there is nothing
    assert made.rebuilding is None


def test_an_older_run_is_fenced(tmp_path: Path) -> None:
    made, older = Joined(NEAR, tmp_path), Joined(NEAR, tmp_path)
    older.feed([L1, L2, R1])
    kept = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*.changelog.*")}
    lose(tmp_path, tables=TABLES)
    made.harness.restart(REBUILD)
    for path, data in kept.items():
        path.write_bytes(data)
    for late in (older.feed, older.rebuild):
        with pytest.raises(FencedError):
            late([R2])
    assert made.feed([R2]) == pairs()


def test_what_expires_before_the_replay_is_not_put_back(tmp_path: Path) -> None:
    asked = Asked(low=0, high=5, named=True)
    made = Joined(asked, tmp_path)
    made.feed([Row("left", "a", 1, 1, 1), Row("left", "a", 20, 2, 2), Row("right", "a", 2, 11, 1)])
    lose(tmp_path, tables=TABLES)
    made.harness.restart(REBUILD)
    made.feed([Row("right", "a", 22, 12, 2)])  # now the watermark is 20
    assert made.rebuild([Row("left", "a", 1, 1, 1), Row("left", "a", 20, 2, 2)]) == pairs((2, 12))
    assert made.rebuilding is None
    assert made.harness.counters()["put_back"] == 1
    assert not made.harness.ledger().num_rows


def test_by_hand(tmp_path: Path) -> None:
    def opened(**how: Any) -> JoinOperator:
        return described(NEAR).by_hand({"left": SCHEMA, "right": SCHEMA}, checkpoint=tmp_path, **how)

    with opened() as operator:
        operator.add_messages(left=table([L1, L2]), right=table([R1]))
        operator.flush()
    assert lose(tmp_path, tables=TABLES)
    with opened(policy=REBUILD) as operator:
        operator.add_messages(right=table([R2]))
        assert operator.replay_from("left").to_pylist() == [{"origin": 0, "start_offset": 1, "last_offset": 2}]
        operator.rebuild(left=table([L2]))
        operator.rebuild(left=table([L1, L2]), right=table([R1]))
    with opened() as operator:
        assert operator.get_messages("left")["offset"].to_pylist() == [1, 2]
        operator.add_messages(right=table([R3]))
        emitted: Counter[Pane] = Counter()
        for result in operator.get_result():
            emitted += observed(result.panes, NEAR)
    assert emitted == pairs((1, 11), (2, 11), (1, 12), (2, 12), (1, 13), (2, 13))


def test_pairs_reach_the_operators_that_follow(tmp_path: Path) -> None:
    joined = described(NEAR)
    counted = joined.group_by("key").window(ts.tumbling("1 minute")).aggregate(n=agg.count())
    both = counted.allowed_lateness("1 hour").named("counted")
    found = []
    for name, how in (("whole", None), ("made", REBUILD)):
        made = both.harness({"left": SCHEMA, "right": SCHEMA}, folder=tmp_path / name)
        made.feed({"left": table([L1, L2]), "right": table([R1])})
        if how is not None:
            assert lose(tmp_path / name, tables=TABLES)
            made.restart(how)
        made.feed({"left": table([]), "right": table([R2])})
        if how is not None:
            made.rebuild({"left": table([L1, L2]), "right": table([R1])})
        made.feed({"left": table([]), "right": table([R3])})
        found.append(made.finish()["n"].to_pylist())
    assert found == [[6], [6]]


REFUSED: dict[str, Any] = {
    "outer, with update periods": Asked(how="left", low=0, high=9, named=True, updates=(4, 4)),
    "without offsets": Asked(low=0, high=9),
    "update periods": Asked(low=0, high=9, named=True, updates=(4, 4)),
    "windows that overlap": Asked(window=Window(6, 2), named=True),
    "windows of each side": Asked(own=(Window(6, 6), None), named=True, spans=(None, 20)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_replay_cannot_put_back_is_refused(tmp_path: Path, name: str) -> None:
    made = Joined(REFUSED[name], tmp_path)
    made.feed([L1, L2, R1])
    with pytest.raises(UsageError, match="no-messages"):
        made.rebuild([L1])
    assert lose(tmp_path, tables=TABLES)
    made.harness.restart(REBUILD)
    with pytest.raises(CorruptionError, match="file-missing") as caught:
        made.feed([R2])
    assert "rebuild" not in caught.value.message
