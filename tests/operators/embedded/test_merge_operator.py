"""Merges by hand: the twin is the same merge in the harness, which gets each message once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.lost_messages import REBUILD, lose
from tests.helpers.process import LONG, examples, few, in_turn
from tidestate import Aggregation, JoinOperator, Stream, UsageError, WindowOperator, agg, run_operator, watermark
from tidestate.operators.describe.windowed import Merge
from tidestate.operators.inspect.query import query
from tidestate.statestore.errors import of_type
from tidestate.stores import Memory

SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
ORDERS = pa.schema({"shop": "string", "at": "int64", "ordered": TIME, "price": "int64"})
REFUNDS = pa.schema({"shop": "string", "at": "int64", "refunded": TIME, "amount": "int64"})
SCHEMAS = {"left": ORDERS, "right": REFUNDS}
Batch = list[tuple[str, int, int, str]]
"""Side, offset, seconds and shop of each message."""


CTIS = watermark.cti_settings("adjust", generate=watermark.generate_ctis(2, delay="1 second"))


def both(**settings: Any) -> tuple[Stream, Stream]:
    """Orders and refunds."""
    orders, refunds = (ts.stream(event_time=time, **settings) for time in ("ordered", "refunded"))
    return orders, refunds


def job(kind: str, **settings: Any) -> Aggregation:
    orders, refunds = both(**{"offset": "at", "watermark_delay": "3 seconds"} | settings)
    if kind == "ctis":
        orders, refunds = orders.watermark(watermark.ctis(CTIS)), refunds.watermark(watermark.ctis(CTIS))
    windows = ts.sessions("4 seconds") if kind == "session" else ts.tumbling("10 seconds")
    made = ts.merge(left=orders, right=refunds).group_by("shop").window(windows)
    results = made.aggregate(n=agg.count(), sold=agg.sum("left_price"), back=agg.list("right_amount"))
    return results.accumulation("retracting").allowed_lateness("8 seconds")


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


@pytest.mark.parametrize(("kind", "partitions"), few(in_turn(["tumbling", "session", "ctis"], [1, 3])))
@settings(max_examples=examples(20))
@given(made=streams(), data=st.data())
def test_as_the_harness_with_messages_again_and_crashes(
    tmp_path_factory: pytest.TempPathFactory, kind: str, partitions: int, made: list[Batch], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("root")
    described = job(kind)
    twin = described.messages("at").harness(SCHEMAS, store=Memory(), partitions=partitions)
    wanted = [row for batch in made for row in twin.feed(tables(batch)).to_pylist()] + twin.finish().to_pylist()
    found: list[dict[str, Any]] = []

    def opened() -> WindowOperator:
        return described.by_hand(SCHEMAS, checkpoint=folder, store=Memory(), partitions=partitions)

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
        with job("tumbling").by_hand(SCHEMAS, checkpoint=tmp_path) as operator:
            operator.add_messages(left=tables(one)["left"])
            operator.flush()
            assert operator.add_messages(**tables(one))["duplicates"] >= 1
    with job("tumbling").by_hand(SCHEMAS, checkpoint=tmp_path) as operator:
        taken: list[pa.Table] = []
        run_operator(operator, [tables(one), tables(one)], lambda panes, _id: taken.append(panes), drain=True)
    (row,) = pa.concat_tables(taken).to_pylist()
    assert (row["n"], row["sold"], row["back"]) == (2, 1, [1])


def test_questions_and_a_rebuild_by_side(tmp_path: Path) -> None:
    made: Batch = [("left", 1, 5, "a"), ("right", 1, 6, "a"), ("right", 2, 7, "b")]
    with job("tumbling").by_hand(SCHEMAS, checkpoint=tmp_path) as operator:
        operator.add_messages(**tables(made))
        live = operator.get_windows()
        operator.flush()
    assert live.column("n").to_pylist() == [2, 1]
    assert query(tmp_path).get_windows().equals(live)
    assert [row["origin"] for row in query(tmp_path).get_messages().to_pylist()] == ["left", "right", "right"]
    assert lose(tmp_path)
    with job("tumbling").by_hand(SCHEMAS, checkpoint=tmp_path, policy=REBUILD) as operator:
        assert operator.replay_from()["origin"].to_pylist() == ["left", "right"]
        operator.rebuild([tables(made), tables(made[:1])])
        assert operator.counters["put_back"] == 3
        assert operator.get_messages().num_rows == 3
        operator.drain()
        assert [row["back"] for r in operator.get_result() for row in r.panes.to_pylist()] == [[1], [2]]


def test_batches_and_schemas_are_by_side(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="each stream by its name"):
        job("tumbling").by_hand(ORDERS, checkpoint=tmp_path)
    with pytest.raises(UsageError, match="message-identity"):  # no columns origin and offset, which all sides have
        job("tumbling", offset=None).by_hand(SCHEMAS, checkpoint=tmp_path)
    rows = tables([("left", 1, 5, "a")])["left"]
    with job("tumbling").by_hand(SCHEMAS, checkpoint=tmp_path) as operator:
        for wrong in ({"middle": rows}, {"batch": rows}):
            with pytest.raises(UsageError, match="sides"):
                operator.add_messages(**wrong)
        sides = of_type(job("tumbling").graph.description, Merge).sides
        merged = sides.rows(sides.schema(SCHEMAS), "left", rows)
        assert operator.add_messages(merged)["accepted"] == 1
    plain = counted(ts.stream(event_time="ordered", offset="at"))
    with (
        plain.by_hand(ORDERS, checkpoint=tmp_path / "one") as operator,
        pytest.raises(UsageError, match="sides"),
    ):
        operator.add_messages(left=rows)


def counted(stream: Stream) -> Aggregation:
    return stream.group_by("shop").window(ts.tumbling("10 s")).aggregate(n=agg.count())


def test_what_is_no_operator_by_hand_says_what_to_use(tmp_path: Path) -> None:
    orders, refunds = both(offset="at")
    by_ctis = [stream.watermark(watermark.ctis(CTIS)) for stream in (orders, refunds)]
    deduplicated = orders.deduplicate("shop")
    others: list[Any] = [
        ts.union(left=orders, right=refunds),
        deduplicated,
        orders.shift_time("1 second"),
        by_ctis[0].join_lifetimes(by_ctis[1], on="shop"),
        counted(deduplicated),
    ]
    for other in others:
        for made in (
            lambda: other.by_hand(ORDERS, checkpoint=tmp_path),  # noqa: B023
            lambda: WindowOperator(other.graph.description, ORDERS, checkpoint=tmp_path),  # noqa: B023
            lambda: JoinOperator(other.graph.description, ORDERS, REFUNDS, checkpoint=tmp_path),  # noqa: B023
        ):
            with pytest.raises(UsageError, match="standalone") as caught:
                made()
            assert caught.value.code == "operator-window"
    with pytest.raises(UsageError, match="operator-window"):
        JoinOperator(counted(orders).graph.description, ORDERS, REFUNDS, checkpoint=tmp_path)  # type: ignore[arg-type]
