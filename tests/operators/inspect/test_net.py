"""The net of panes: what a dictionary that follows retractions has in the end."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.orders import ORDERS, SHIPMENTS, tables
from tests.helpers.orders import Row as Sided
from tests.helpers.root_scans import scan_panes
from tests.helpers.scanned import opened, rows, run, sql
from tests.helpers.worked_example import SECOND, STREAM
from tests.twins.net import counting
from tidestate import Aggregation, agg
from tidestate.operators.inspect import net
from tidestate.recovery.inspect.rows import AT
from tidestate.statestore.errors import UsageError


def test_the_net_of_a_key_that_was_renamed(tmp_path: Path) -> None:
    run(tmp_path, stream=STREAM[:3])
    renamed = [table.rename_columns(["t", "city", "v"]) for table in STREAM]
    job = ts.stream(event_time="t", watermark_delay="2 seconds").group_by("city").window(ts.tumbling("10 seconds"))
    job = job.aggregate(n=agg.count(), total=agg.sum("v")).allowed_lateness("20 seconds").accumulation("retracting")
    job.renamed(columns={"k": "city"}).standalone(checkpoint=tmp_path).run(renamed)
    found = scan_panes(tmp_path, net=True).to_table().select(["city", "n"]).to_pylist()
    assert found == [{"city": "b", "n": 1}, {"city": "c", "n": 1}, {"city": "a", "n": 4}, {"city": "a", "n": 1}]


def test_the_net_of_a_join_has_no_retracted_rows(tmp_path: Path) -> None:
    job = ts.stream(event_time="ordered").join(
        ts.stream(event_time="shipped"), on="order", within=("0 s", "5 s"), how="left", allowed_lateness="20 s"
    )
    schema = {"left": ORDERS, "right": SHIPMENTS}
    harness = job.harness(schema, folder=tmp_path)
    harness.feed(tables([Sided("left", "a", 10, 1)]))
    harness.advance_watermark(20 * SECOND)
    alone = scan_panes(tmp_path, net=True).to_table().select(["left_price", "right_weight"]).to_pylist()
    harness.feed(tables([Sided("right", "a", 12, 2)]))
    assert scan_panes(tmp_path).to_table()["kind"].to_pylist() == ["emit", "retract", "emit"]
    paired = scan_panes(tmp_path, net=True).to_table().select(["left_price", "right_weight"]).to_pylist()
    assert alone == [{"left_price": 1, "right_weight": None}]
    assert paired == [{"left_price": 1, "right_weight": 2}]


def test_as_many_rows_are_left_as_were_not_retracted() -> None:
    kinds = ["emit", "emit", "retract", "emit", "retract", "retract"]
    rows = pa.table({AT: range(6), "k": ["a"] * 5 + ["b"], "y": [[1]] * 6, "kind": kinds})
    assert net.not_retracted(rows, ["k", "y"])[AT].to_pylist() == [3]
    assert net.not_retracted(rows.slice(0, 0), ["k", "y"]).num_rows == 0
    assert net.last_of_each(rows.slice(0, 0), ["k"]).num_rows == 0


def test_the_net_in_bands_is_the_net(tmp_path: Path) -> None:
    sink = run(tmp_path, drain=True)
    with mock.patch.object(net, "NET_ROWS", 3):
        dataset = scan_panes(tmp_path, net=True)
    assert len(dataset.files) > 1
    key = lambda row: (row["window_end"], row["k"])  # noqa: E731
    assert sorted(rows(dataset), key=key) == sorted(counting(sink.rows, ["k"]), key=key)
    with opened() as paths:
        assert sql("select n from rows where window_end > '1970-01-01 00:00:25Z'", dataset) == [(1,)]
    assert len(paths) == 1


def test_a_net_that_would_be_wrong_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "parts", "discarding")
    with pytest.raises(UsageError, match="net-panes"):
        scan_panes(tmp_path / "parts", net=True)
    grows = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.sessions("5 seconds"))
        .aggregate(n=agg.count())
        .allowed_lateness("1 minute")
    )
    with pytest.warns(UserWarning, match="sessions grow"):
        grows.standalone(checkpoint=tmp_path / "grows").run(STREAM[:2])
    with pytest.raises(UsageError, match="net-panes"):
        scan_panes(tmp_path / "grows", net=True)


def test_the_net_of_a_chain_that_retracts_all_along(tmp_path: Path) -> None:
    first = (
        ts.stream(event_time="t")
        .group_by("k")
        .window(ts.tumbling("1 minute"))
        .aggregate(n=agg.count())
        .allowed_lateness("30 minutes")
        .accumulation("retracting")
        .named("first")
    )
    second = first.group_by("k").window(ts.tumbling("5 minutes")).aggregate(n=agg.sum("n")).named("second")
    both = second.allowed_lateness("30 minutes").accumulation("retracting")
    batches = [
        pa.table({"t": pa.array([at * 1_000_000], pa.timestamp("us", "UTC")), "k": ["a"]}) for at in (0, 320, 299)
    ]
    both.standalone(checkpoint=tmp_path).run(batches)
    kinds = scan_panes(tmp_path).to_table()["kind"].to_pylist()
    assert kinds == ["emit", "retract", "emit"]
    assert scan_panes(tmp_path, net=True).to_table()["n"].to_pylist() == [2]


def test_the_net_after_a_key_was_renamed_and_before_the_next_pane(tmp_path: Path) -> None:
    def run(key: str, job: Aggregation) -> None:
        times = pa.array([0, 70_000_000], pa.timestamp("us", "UTC"))
        job.standalone(checkpoint=tmp_path).run([pa.table({"t": times, key: ["a", "a"]})])

    def described(key: str) -> Aggregation:
        return ts.stream(event_time="t").group_by(key).window(ts.tumbling("1 minute")).aggregate(n=agg.count())

    run("user", described("user"))
    before = scan_panes(tmp_path, net=True).to_table()
    run("who", described("who").renamed(columns={"user": "who"}))
    after = scan_panes(tmp_path, net=True).to_table()
    assert after.rename_columns([{"who": "user"}.get(name, name) for name in after.column_names]) == before
    assert (before.num_rows, "who" in after.column_names, "user" in after.column_names) == (1, True, False)
