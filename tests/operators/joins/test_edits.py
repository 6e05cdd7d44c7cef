"""Rows of a side of a join that are retired, and ends of sessions that are put, on roots and by hand: beside twins
that forget the same rows.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.join_jobs import SCHEMA, STORES, UNITS, described, drawn, observed, table
from tests.helpers.join_operator_messages import Row as Message
from tests.helpers.join_operator_messages import held, near, operator, sessions, sided
from tests.helpers.operator_messages import TIME
from tests.helpers.process import SCRATCH, examples
from tests.helpers.session_join_play import Play, joins
from tests.helpers.two_streams import SECOND, by_side, numbered, rows
from tests.helpers.two_streams import Row as SessionRow
from tests.twins.join import SIDES, Asked, Row, Twin
from tests.twins.sessions import ENDED
from tidestate import Root, UsageError
from tidestate.operators import JoinOperator
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.spec.store import StoreConfig
from tidestate.watermark import cti_settings, generate_ctis

Span = tuple[str, int, int, str | None]


def retired(twin: Twin, span: Span) -> int | None:
    """Forget these rows; None where some of them are held for their order."""
    side, start, end, key = span

    def among(row: Row) -> bool:
        return row.side == side and start <= twin.asked.place(row) < end and key in (None, row.key)

    if any(among(row) for row in twin.ahead):
        return None
    gone = [one for one in twin.stored if among(one.row)]
    twin.stored = [one for one in twin.stored if not among(one.row)]
    values = {one.row.value for one in gone}
    twin.held = [(at, pane) for at, pane in twin.held if pane[2 + SIDES.index(side)] not in values]
    return len(gone)


def chosen_span(pick: random.Random, asked: Asked) -> Span:
    side = pick.choice(SIDES)
    start = pick.randint(0, 12 if asked.by_offset(side) else 40)
    return (
        side,
        start,
        start + pick.choice([1, 3, 9, 20]),
        pick.choice([None, None, "a", "b"] if asked.on else [None]),
    )


def played(seed: int, store: StoreConfig) -> Iterator[tuple[object, object]]:
    """What a job shows with each batch, and what the twin does, where rows are retired in between."""
    asked, batches = drawn(seed)
    pick, twin = random.Random(f"edits {seed}"), Twin(asked)
    # The same row again would be another one, of which nobody could tell which was retired.
    seen = set[tuple[str, int]]()
    for batch in batches if not asked.named else ():
        batch[:] = [row for row in dict.fromkeys(batch) if (row.side, row.value) not in seen]
        seen |= {(row.side, row.value) for row in batch}
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        schema = {"left": SCHEMA, "right": SCHEMA}
        harness = described(asked).harness(schema, store=store, folder=folder, partitions=pick.choice([1, 2, 5]))
        now = 0
        for batch in batches:
            sides = {side: table([row for row in batch if row.side == side]) for side in SIDES}
            yield (asked, observed(harness.feed(sides), asked)), (asked, twin.batch(batch, now))
            for _ in range(pick.choice([0, 1, 2])):
                span = chosen_span(pick, asked)
                yield (asked, span, edited(Path(folder), asked, span)), (asked, span, retired(twin, span))
                harness.restart()
            now += pick.choice([0, 1, 3])
            panes = harness.advance_processing_time(now * UNITS["s"])
            yield (asked, observed(panes, asked)), (asked, twin.clock(now))
        yield (asked, observed(harness.finish(), asked)), (asked, twin.finish())


def edited(root: Path, asked: Asked, span: Span) -> int | None:
    """How many rows an edit of the root has retired; None where it was refused, as rows are held."""
    side, start, end, key = span
    unit = 1 if asked.by_offset(side) else UNITS["s"]
    before, open_ = Checkpoint.open(root).ids()[-1], Root(root)
    arguments: dict[str, Any] = {"key": key, "side": side, "force": True}
    if (code := error_code(lambda: open_.retire(start * unit, end * unit, **arguments))) is not None:
        assert code == "window-waits"
        return None
    done = open_.retire(start * unit, end * unit, **arguments).execute()
    assert Checkpoint.open(root).ids()[-1] == before + (done.messages > 0)
    return done.messages


def error_code(call: Callable[[], object]) -> str | None:
    """Of the error that a call raises; None where it does not."""
    try:
        call()
    except UsageError as error:
        return error.code
    return None


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(40))
@given(st.integers(0, 2**32), st.sampled_from(sorted(STORES)))
def test_a_retired_row_emits_nothing_more(seed: int, store: str) -> None:
    for found, wanted in played(seed, STORES[store]):
        assert found == wanted


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(30))
@given(joins(), st.lists(st.lists(rows, max_size=8), min_size=1, max_size=4), st.integers(0, 2**32))
def test_rows_of_sessions_are_retired(made: Any, batches: list[list[SessionRow]], seed: int) -> None:
    """What was emitted stays; of an outer join no row of a session that has fired is retired."""
    pick = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        play = Play(made, STORES["parquet"], folder)
        brute, stays = play.brute, Counter[Any]()

        def check(panes: pa.Table) -> None:
            play.net -= stays
            play.check(panes)
            play.net += stays

        for number, batch in enumerate(numbered(batches)):
            brute.batch(batch)
            check(play.harness.feed(by_side(batch)))
            brute.passed(number * 9)
            check(play.harness.advance_watermark(number * 9 * SECOND))
            side, start = pick.choice(SIDES), pick.randint(-10, 40)
            end = start + pick.choice([1, 5, 30])
            live = [one for one in brute.live if any(r.side == side and start <= r.at < end for r in one.rows)]
            fired = [one for one in live if brute.watermark is not None and one.end <= brute.watermark]
            root = Root(folder)
            if fired and brute.how != "inner":
                with pytest.raises(UsageError, match="window-edit"):
                    root.retire(start * SECOND, end * SECOND, side=side, force=True)
                continue
            lost, was = 0, brute.observed()
            for one in live:
                kept = [r for r in one.rows if not (r.side == side and start <= r.at < end)]
                lost += len(one.rows) - len(kept)
                one.rows = kept
            gone = [one for one in live if not one.rows]
            brute.live = [one for one in brute.live if one not in gone]
            stays += was - brute.observed()
            done = root.retire(start * SECOND, end * SECOND, side=side, force=True).execute()
            assert (done.messages, done.windows) == (lost, len(gone))
            play.harness.restart()
            play.kept()
        brute.passed(ENDED)
        check(play.harness.finish())
        play.kept()


EDITED_JOINS: dict[str, Callable[[], Any]] = {
    "full": near,
    "inner": lambda: near("inner"),
    "held pairs": lambda: near("left", update="4 seconds"),
    "sessions": lambda: sessions("inner"),
    "outer sessions": sessions,
}


def given_rows(count: int) -> list[Message]:
    return [Message(side, "x", n, n, "ab"[n % 2], 10 * n) for n in range(1, count) for side in SIDES]


def pairs(running: JoinOperator) -> set[tuple[int | None, int | None]]:
    panes = [row for one in running.get_result() for row in one.panes.to_pylist()]
    return {(row["left_at"], row["right_at"]) for row in panes if row["kind"] == "emit"}


@pytest.mark.parametrize("kind", sorted(EDITED_JOINS))
def test_a_row_that_was_retired_by_hand_stays_known(tmp_path: Path, kind: str) -> None:
    made = given_rows(9)
    with operator(EDITED_JOINS[kind](), tmp_path, partitions=3) as running:
        running.add_messages(**sided(made), now_us=1)
        held_back = kind != "full" and kind != "inner"
        running.retire("left", 7 * SECOND, 9 * SECOND, key={"k": "a"})
        assert running.flush().checkpoint == running.flush().checkpoint
        assert running.retire("left", 7 * SECOND, 8 * SECOND) == {"windows": 0, "messages": 1}
        running.flush()
    with operator(EDITED_JOINS[kind](), tmp_path) as running:
        assert running.get_messages("left")["offset"].to_pylist() == [1, 2, 3, 4, 5, 6]
        assert running.add_messages(**sided(made))["duplicates"] == len(made)
        assert running.get_messages("left").num_rows == 6
        assert running.retire("left", 7 * SECOND, 9 * SECOND) == {"windows": 0, "messages": 0}
        running.drain()
        found = pairs(running)
    assert ((7, 7) in found) == ((8, 8) in found) == (not held_back)
    assert (6, 6) in found
    assert (7, None) not in found
    assert not Root(tmp_path).verify(read_data=100.0).findings


def test_windows_of_a_side_are_read_and_deleted_unless_they_overlap(tmp_path: Path) -> None:
    def job(window: Any, **more: Any) -> Any:
        left, right = (ts.stream(event_time="t", offset="at", origin="part") for _ in "lr")
        return left.join(right, on="k", identity=True, **({"window": window} if window else {}), **more)

    tumbling = job(ts.tumbling("4 seconds"), how="full", allowed_lateness="1 hour")
    with operator(tumbling, tmp_path / "tumbling", partitions=2) as running:
        running.add_messages(**sided(given_rows(9)))
        window = running.get_window("left", 4 * SECOND)
        assert window is not None
        assert (window["events"], [*window["offsets"][0].values()]) == (4, ["x", 4, 7])
        assert running.get_window("left", 400 * SECOND) is None
        assert running.del_window("left", 4 * SECOND)
        assert not running.del_window("left", 4 * SECOND, end=8 * SECOND)
        assert running.get_window("left", 4 * SECOND) is None
        assert (running.get_window("right", 4 * SECOND) or {})["events"] == 4
        running.flush()
        for code, call in {
            "window-bounds": lambda: running.get_window("left", 5 * SECOND),
            "window-edit": lambda: running.put_window("left", 4 * SECOND, end=9 * SECOND),
            "window-key": lambda: running.del_window("left", 4 * SECOND, key="a"),
            "sides": lambda: running.retire("middle", 0, 1),
        }.items():
            with pytest.raises(UsageError, match=code):
                call()
    assert Root(tmp_path / "tumbling").get_window(4 * SECOND, side="left") is None
    plan = Root(tmp_path / "tumbling").del_window(0, side="right")
    assert "to remove      1 window, 3 messages" in str(plan)
    assert "side           right" in str(plan)
    assert plan.execute().as_dict()["side"] == "right"
    assert Root(tmp_path / "tumbling").get_window(0, side="right") is None
    assert "nothing to retire" in str(Root(tmp_path / "tumbling").del_window(0, side="right"))
    sliding = job(ts.sliding("4 seconds", "2 seconds"), allowed_lateness="1 hour")
    with operator(sliding, tmp_path / "sliding") as running:
        running.add_messages(**sided(given_rows(9)))
        assert (running.get_window("left", 4 * SECOND) or {})["events"] == 4
        with pytest.raises(UsageError, match="window-edit"):
            running.del_window("left", 4 * SECOND)
        assert running.retire("left", 4 * SECOND, 8 * SECOND)["messages"] == 4
        assert running.get_window("left", 4 * SECOND) is None
    own = job(None, left=ts.side(window=ts.offset_windows(4)), in_order=False)
    with operator(own, tmp_path / "own") as running:
        running.add_messages(**sided(given_rows(12)))
        newest = running.get_windows("left").to_pylist()[-1]
        assert running.get_window("left", newest["window_start"]) == newest
        assert running.del_window("left", newest["window_start"])
        assert (running.get_window("right") or {})["events"] == 11
        assert running.del_window("right")
        assert running.get_messages("right").num_rows == 0
    with operator(near(), tmp_path / "near") as running, pytest.raises(UsageError, match="query-windows"):
        running.del_window("left", 0)


def test_the_end_of_a_session_is_put(tmp_path: Path) -> None:
    """Rows before the new end join it, also more than the gap after its last row."""
    first = [Message("left", "x", 1, 1, "a", 1), Message("right", "x", 1, 2, "a", 2)]
    later = [Message("left", "x", 2, 9, "a", 3), Message("right", "x", 2, 20, "b", 2)]
    with operator(sessions("inner", late="0 seconds"), tmp_path, partitions=2) as running:
        running.add_messages(**sided(first))
        for end, code in ((2, "window-bounds"), (-1, "window-over")):
            with pytest.raises(UsageError, match=code):
                running.put_window("left", 1 * SECOND, key="a", end=end * SECOND)
        with pytest.raises(UsageError, match="window-bounds"):
            running.put_window("left", 2 * SECOND, key="a", end=9 * SECOND)
        running.put_window("left", 1 * SECOND, key="a", end=10 * SECOND)
        running.flush()
        assert seconds_of(running.get_window("right", 1 * SECOND, key="a")) == (1, 10)
    plan = Root(tmp_path).put_window(1 * SECOND, key="a", end=11 * SECOND, side="left")
    assert "before" in str(plan)
    assert plan.execute().done
    for wrong in ({"events": 3}, {"values": {"n": 1}}, {"offsets": {"x": (1, 2)}}):
        with pytest.raises(UsageError, match="window-value"):
            Root(tmp_path).put_window(1 * SECOND, key="a", end=11 * SECOND, side="left", **wrong)  # type: ignore[arg-type]
    with operator(sessions("inner", late="0 seconds"), tmp_path) as running:
        running.add_messages(**sided(later))
        running.timeout(1, watermark_us=15 * SECOND)
        panes = [row for one in running.get_result() for row in one.panes.to_pylist()]
        assert {(row["left_at"], row["right_at"], *seconds_of(row)) for row in panes} == {
            (1, 1, 1, 12),
            (2, 1, 1, 12),
        }
        running.add_messages(**sided([Message("left", "x", 3, 21, "b", 1)]))
        with pytest.raises(UsageError, match="window-over"):
            running.put_window("left", 20 * SECOND, key="b", end=15 * SECOND)


def seconds_of(row: dict[str, Any] | None) -> tuple[int, int]:
    assert row is not None
    return int(row["window_start"].timestamp()), int(row["window_end"].timestamp())


def test_what_cannot_be_edited_says_why(tmp_path: Path) -> None:
    with operator(held(), tmp_path / "ordered") as running:
        running.add_messages(**sided(given_rows(30)))
        with pytest.raises(UsageError, match="window-waits"):
            running.retire("left", 20 * SECOND, 21 * SECOND)
        assert running.retire("left", 4 * SECOND, 5 * SECOND, key="b")["messages"] in (0, 1)
        running.flush()
    root = Root(tmp_path / "ordered")
    with pytest.raises(UsageError, match="sides"):
        root.retire(0, 1)
    with pytest.raises(UsageError, match="sides"):
        root.retire(0, 1, side="middle")
    with pytest.raises(UsageError, match="window-key"):
        root.retire(0, 1, side="left", key=("a", "b"))
    with operator(sessions(), tmp_path / "outer") as running:
        running.add_messages(**sided(given_rows(4)))
        running.timeout(1, watermark_us=8 * SECOND)
        with pytest.raises(UsageError, match="window-edit"):
            running.retire("left", 0, 9 * SECOND)
    lifetime, ctis = ts.lifetime("end", shape="interval"), cti_settings("drop", generate=generate_ctis(1))
    left, right = (ts.stream(event_time="t", offset="off", lifetime=lifetime) for _ in SIDES)
    alive = pa.table([["a"], pa.array([1]).cast(TIME), pa.array([5]).cast(TIME), [1]], names=["k", "t", "end", "off"])
    ctis_of = ts.watermark.ctis(ctis)
    joined = left.watermark(ctis_of).join_lifetimes(right.watermark(ctis_of), on="k")
    joined.standalone(checkpoint=tmp_path / "lives").run([dict.fromkeys(SIDES, alive)])
    lives = Root(tmp_path / "lives")
    for call in (lambda: lives.retire(0, 9, side="left"), lambda: lives.del_window(0, side="left")):
        with pytest.raises(UsageError, match="window-edit"):
            call()


def test_an_edited_root_goes_on_as_an_operator_by_hand_that_was(tmp_path: Path) -> None:
    made = given_rows(9)
    with operator(near(), tmp_path / "hand") as running:
        running.add_messages(**sided(made))
        running.retire("right", 5 * SECOND, 9 * SECOND)
        running.drain()
        by_hand = pairs(running)
    with operator(near(), tmp_path / "root") as running:
        running.add_messages(**sided(made))
        running.flush()
    Root(tmp_path / "root").retire(5 * SECOND, 9 * SECOND, side="right").execute()
    with operator(near(), tmp_path / "root") as running:
        running.drain()
        assert pairs(running) == by_hand
