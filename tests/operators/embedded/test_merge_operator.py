"""Merges by hand: the twin is the same merge in the harness, which gets each message once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.lost_messages import REBUILD, lose
from tests.helpers.process import LONG, examples, in_turn
from tidestate.agg import count
from tidestate.agg import list as list_
from tidestate.agg import sum as sum_
from tidestate.operators import Harness, JoinOperator, WindowOperator, run_operator, tumbling
from tidestate.operators.describe.altered import altered
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.merge import Merge, merge
from tidestate.operators.describe.overlap_join import overlap_join
from tidestate.operators.describe.union import union
from tidestate.operators.describe.windowed import RETRACTING, windowed
from tidestate.operators.describe.windows import session
from tidestate.operators.inspect.query import query
from tidestate.operators.progress.cti_settings import advance_time, generation
from tidestate.statestore.errors import UsageError
from tidestate.stores import Memory

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
ORDERS = pa.schema({"shop": "string", "at": "int64", "ordered": TIME, "price": "int64"})
REFUNDS = pa.schema({"shop": "string", "at": "int64", "refunded": TIME, "amount": "int64"})
SCHEMAS = {"left": ORDERS, "right": REFUNDS}
Batch = list[tuple[str, int, int, str]]
"""Side, offset, seconds and shop of each message."""


def job(kind: str) -> Merge:
    made = merge(event_time=("ordered", "refunded"), key="shop", offset="at", watermark_delay="3 seconds")
    made = made.window(session("4 seconds") if kind == "session" else tumbling("10 seconds"))
    made = made.aggregate(n=count(), sold=sum_("left_price"), back=list_("right_amount"))
    made = made.accumulation(RETRACTING).late("8 seconds")
    return made.advance_time(advance_time("adjust", generation(2, "1 second"))) if kind == "ctis" else made


def tables(batch: Batch) -> dict[str, pa.Table]:
    found = {}
    for side, schema in SCHEMAS.items():
        own = [(shop, at, second * SECOND, at) for of, at, second, shop in batch if of == side]
        columns = zip(*own, strict=True) if own else ([] for _ in schema)
        arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
        found[side] = pa.table(arrays, schema=schema)
    return found


@st.composite
def streams(draw: st.DrawFn) -> list[Batch]:
    made, base, sent = list[Batch](), 0, {"left": 0, "right": 0}
    for size in draw(st.lists(st.integers(1, 6), min_size=2, max_size=6 if LONG else 4)):
        base += draw(st.sampled_from([0, 3, 8, 15]))
        batch: Batch = []
        for _ in range(size):
            side = draw(st.sampled_from(["left", "right"]))
            sent[side] += 1
            batch.append((side, sent[side], max(0, base - draw(st.integers(0, 12))), draw(st.sampled_from("ab"))))
        made.append(batch)
    return made


def lines(panes: list[dict[str, Any]]) -> list[str]:
    return sorted(repr({**pane, "back": sorted(pane["back"] or [])}) for pane in panes)


@pytest.mark.parametrize(("kind", "partitions"), in_turn(["tumbling", "session", "ctis"], [1, 3]))
@settings(max_examples=examples(20))
@given(made=streams(), data=st.data())
def test_as_the_harness_with_messages_again_and_crashes(
    tmp_path_factory: pytest.TempPathFactory, kind: str, partitions: int, made: list[Batch], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("root")
    described = job(kind)
    schema = described.schema(ORDERS, REFUNDS)
    twin = Harness(described.messages("at"), schema, store=Memory(), partitions=partitions)
    wanted = [
        row for batch in made for row in twin.feed(described.rows(schema, **tables(batch))).to_pylist()
    ] + twin.finish().to_pylist()
    found: list[dict[str, Any]] = []

    def opened() -> WindowOperator:
        more: dict[str, Any] = {"origin": "", "offset": "at", "store": Memory(), "partitions": partitions}
        return WindowOperator(described, SCHEMAS, checkpoint=folder, **more)

    def take(operator: WindowOperator) -> None:
        for result in operator.get_result():
            found.extend(result.panes.to_pylist())
            operator.acknowledge(result.id)

    operator = opened()
    for number, batch in enumerate(made):
        operator.add_messages(**tables(batch))
        if data.draw(st.booleans()):
            operator.add_messages(**tables([one for earlier in made[: number + 1] for one in earlier]))
        take(operator)
        operator.flush()
        if data.draw(st.booleans()):
            operator.close()  # what is not flushed is gone: nothing
            operator = opened()
    operator.drain()
    take(operator)
    assert lines(found) == lines(wanted)
    assert operator.counters["accepted"] == twin.counters()["accepted"]
    operator.close()


def test_what_was_not_flushed_is_passed_again(tmp_path: Path) -> None:
    one: Batch = [("left", 1, 5, "a"), ("right", 1, 6, "a")]
    for _ in range(2):
        with WindowOperator(job("tumbling"), SCHEMAS, checkpoint=tmp_path, origin="", offset="at") as operator:
            operator.add_messages(left=tables(one)["left"])
            operator.flush()
            assert operator.add_messages(**tables(one))["duplicates"] >= 1
    with WindowOperator(job("tumbling"), SCHEMAS, checkpoint=tmp_path, origin="", offset="at") as operator:
        taken: list[pa.Table] = []
        run_operator(operator, [tables(one), tables(one)], lambda panes, _id: taken.append(panes), drain=True)
    (row,) = pa.concat_tables(taken).to_pylist()
    assert (row["n"], row["sold"], row["back"]) == (2, 1, [1])


def test_questions_and_a_rebuild_by_side(tmp_path: Path) -> None:
    made: Batch = [("left", 1, 5, "a"), ("right", 1, 6, "a"), ("right", 2, 7, "b")]
    with WindowOperator(job("tumbling"), SCHEMAS, checkpoint=tmp_path, origin="", offset="at") as operator:
        operator.add_messages(**tables(made))
        live = operator.get_windows()
        operator.flush()
    assert live.column("n").to_pylist() == [2, 1]
    assert query(tmp_path).get_windows().equals(live)
    assert [row["origin"] for row in query(tmp_path).get_messages().to_pylist()] == ["left", "right", "right"]
    assert lose(tmp_path)
    with WindowOperator(
        job("tumbling"), SCHEMAS, checkpoint=tmp_path, origin="", offset="at", policy=REBUILD
    ) as operator:
        assert operator.replay_from()["origin"].to_pylist() == ["left", "right"]
        operator.rebuild([tables(made), tables(made[:1])])
        assert operator.counters["put_back"] == 3
        assert operator.get_messages().num_rows == 3
        operator.drain()
        assert [row["back"] for r in operator.get_result() for row in r.panes.to_pylist()] == [[1], [2]]


def test_batches_and_schemas_are_by_side(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="schema of each side"):
        WindowOperator(job("tumbling"), ORDERS, checkpoint=tmp_path, origin="", offset="at")
    with pytest.raises(UsageError, match="message-identity"):  # no column origin, which all sides have
        WindowOperator(job("tumbling"), SCHEMAS, checkpoint=tmp_path, offset="at")
    rows = tables([("left", 1, 5, "a")])["left"]
    with WindowOperator(job("tumbling"), SCHEMAS, checkpoint=tmp_path, origin="", offset="at") as operator:
        for wrong in ({"middle": rows}, {"batch": rows}):
            with pytest.raises(UsageError, match="sides"):
                operator.add_messages(**wrong)
        merged = job("tumbling").rows(job("tumbling").schema(ORDERS, REFUNDS), left=rows)
        assert operator.add_messages(merged)["accepted"] == 1
    plain = windowed(event_time="ordered", key="shop").window(tumbling("10 s")).aggregate(n=count())
    with (
        WindowOperator(plain, ORDERS, checkpoint=tmp_path / "one", origin="", offset="at") as operator,
        pytest.raises(UsageError, match="sides"),
    ):
        operator.add_messages(left=rows)


def test_what_is_no_operator_by_hand_says_what_to_use(tmp_path: Path) -> None:
    one = windowed(event_time="ordered", key="shop", name="one").window(tumbling("10 s")).aggregate(n=count())
    lifetimes = overlap_join(event_time=("ordered", "refunded"), on="shop", offset="at")
    others: list[Any] = [
        union(event_time="ordered", sides=("left", "right")),
        deduplicated(event_time="ordered", on="shop"),
        altered(event_time="ordered", shift="1 second"),
        lifetimes,
        chain(one),
    ]
    for other in others:
        with pytest.raises(UsageError, match="standalone") as caught:
            WindowOperator(other, ORDERS, checkpoint=tmp_path)
        assert caught.value.code == "operator-window"
        with pytest.raises(UsageError, match="standalone") as caught:
            JoinOperator(other, ORDERS, REFUNDS, checkpoint=tmp_path)
        assert caught.value.code == "operator-window"
    with pytest.raises(UsageError, match="operator-window"):
        JoinOperator(one, ORDERS, REFUNDS, checkpoint=tmp_path)  # type: ignore[arg-type]
