"""Streams whose operator a program calls by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidestate.agg import count
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.streams.inputs import merge_streams, stream, union_streams
from tidestate.operators.streams.stream import OperatorStream
from tidestate.statestore.errors import UsageError

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("t", TIME), ("k", pa.string()), ("v", pa.int64()), ("origin", pa.string()), ("offset", pa.int64())]
)


def rows(*offsets: int) -> pa.Table:
    """Messages of origin ``a``, a second apart."""
    times = pa.array([offset * 1_000_000 for offset in offsets], TIME)
    return pa.table([times, ["k"] * len(offsets), list(offsets), ["a"] * len(offsets), list(offsets)], schema=SCHEMA)


def per_minute(event_time: str = "t", **settings: Any) -> OperatorStream:
    grouped = stream(event_time=event_time, **settings).group_by("k").window(tumbling("1 minute"))
    return grouped.aggregate(n=count(), total=sum_("v"))


def test_windows_know_messages_by_columns_of_their_usual_names(tmp_path: Path) -> None:
    with per_minute().by_hand(SCHEMA, checkpoint=tmp_path) as operator:
        assert operator.add_messages(rows(1, 2))["accepted"] == 2
        assert operator.add_messages(rows(2, 3))["duplicates"] == 1
        (window,) = operator.get_windows().to_pylist()
    assert (window["n"], window["total"]) == (3, 6)


def test_windows_know_messages_by_the_order_of_their_stream(tmp_path: Path) -> None:
    renamed = rows(1, 1, 2).rename_columns(["t", "k", "v", "part", "number"])
    with per_minute(offset="number", origin="part").by_hand(renamed.schema, checkpoint=tmp_path / "both") as operator:
        assert operator.add_messages(renamed)["accepted"] == 2
    with per_minute(offset="number").by_hand(renamed.schema, checkpoint=tmp_path / "offset") as operator:
        assert operator.add_messages(renamed)["accepted"] == 2


def test_a_merge_is_given_schemas_by_stream_and_rows_by_side(tmp_path: Path) -> None:
    sides = merge_streams(web=stream(event_time="t"), app=stream(event_time="t")).sharing("origin", "offset")
    merged = sides.group_by("k").window(tumbling("1 minute")).aggregate(n=count("web_v"), m=count("app_v"))
    with merged.by_hand({"web": SCHEMA, "app": SCHEMA}, checkpoint=tmp_path) as operator:
        operator.add_messages(web=rows(1, 2), app=rows(3))
        (window,) = operator.get_windows().to_pylist()
    assert (window["n"], window["m"]) == (2, 1)


def joined(**settings: Any) -> OperatorStream:
    orders, shipments = (stream(name, event_time="t", **settings) for name in ("orders", "shipments"))
    return orders.join(shipments, on="k", within=("0 seconds", "1 second"))


def test_a_join_knows_messages_by_the_order_of_its_streams(tmp_path: Path) -> None:
    made = joined(offset="offset", origin="origin")
    with made.by_hand({"shipments": SCHEMA, "orders": SCHEMA}, checkpoint=tmp_path) as operator:
        assert operator.add_messages(left=rows(1, 2), right=rows(2))["pairs"] == 2
        assert operator.add_messages(left=rows(1, 2))["duplicates"] == 2
    assert made.graph.description.operators[0].offsets == (None, None)  # type: ignore[attr-defined]


def test_a_stream_joined_with_itself_has_one_schema(tmp_path: Path) -> None:
    clicks = stream(event_time="t", offset="offset", origin="origin")
    made = clicks.join_sessions(clicks, on="k", gap="2 seconds").named("again")
    with made.by_hand(SCHEMA, checkpoint=tmp_path) as operator:
        assert operator.add_messages(left=rows(1), right=rows(2, 9))["accepted"] == 3


def refusal(made: Any, schema: Any, root: Path) -> str:
    with pytest.raises(UsageError) as caught:
        made.by_hand(schema, checkpoint=root / "root")
    assert not (root / "root").exists()
    return str(caught.value.code)


def test_refused_before_anything_is_written(tmp_path: Path) -> None:
    web, app = stream("web", event_time="t"), stream("app", event_time="t")
    assert refusal(joined(), {"orders": SCHEMA, "shipments": SCHEMA}, tmp_path) == "join-offset"
    assert refusal(joined(offset="offset"), SCHEMA, tmp_path) == "streams"
    assert refusal(joined(offset="offset"), {"left": SCHEMA, "right": SCHEMA}, tmp_path) == "streams"
    assert refusal(per_minute(), {"orders": SCHEMA}, tmp_path) == "streams"
    assert refusal(web.deduplicate("k"), SCHEMA, tmp_path) == "operator-window"
    assert refusal(union_streams(web, app), {"web": SCHEMA, "app": SCHEMA}, tmp_path) == "operator-window"
    behind = web.deduplicate("k").group_by("k").window(tumbling("1 minute")).aggregate(n=count())
    assert refusal(behind, SCHEMA, tmp_path) == "operator-window"
