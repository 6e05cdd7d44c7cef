"""Stored values that a changed description has no place for: what is asked, refused and dropped."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.process import few
from tidestate import Aggregation, Stream, agg
from tidestate.operators import (
    Policy,
)
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.tables import TIME

SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("v", pa.int64()), ("w", pa.int64())])


def events(*rows: tuple[int, str, int]) -> pa.Table:
    return pa.table(
        [
            pa.array([second * 1_000_000 for second, _, _ in rows], TIME),
            [key for _, key, _ in rows],
            *[pa.array([value for _, _, value in rows], pa.int64())] * 2,
        ],
        schema=SCHEMA,
    )


BATCHES = [events((1, "a", 1)), events((2, "a", 100)), events((30, "a", 5))]


def described(events: Stream | None = None, **aggregates: Any) -> Aggregation:
    began = (events or ts.stream(event_time="t")).group_by("k").window(ts.tumbling("10 seconds"))
    return began.aggregate(n=agg.count(), **aggregates).named("windows")


def changed(root: Path, before: Any, after: Any, policy: Policy | None = None) -> pa.Table:
    before.standalone(checkpoint=root).run(BATCHES[:1])
    return after.standalone(checkpoint=root, policy=policy).run(BATCHES)


def refused(root: Path, before: Any, after: Any, policy: Policy | None = None) -> IncompatibleError:
    """The error; no byte has changed."""
    before.standalone(checkpoint=root).run(BATCHES[:1])
    there = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(IncompatibleError) as caught:
        after.standalone(checkpoint=root, policy=policy).run(BATCHES)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == there
    return caught.value


def test_a_sum_by_another_name_is_asked_about(tmp_path: Path) -> None:
    error = refused(tmp_path, described(s=agg.sum("v")), described(total=agg.sum("v")))
    assert error.code == "renamed-unclear"
    assert '.renamed(aggregates={"s": "total"})' in str(error)
    renamed = described(total=agg.sum("v")).renamed(aggregates={"s": "total"})
    panes = renamed.standalone(checkpoint=tmp_path).run(BATCHES)
    assert panes.select(["n", "total"]).to_pylist() == [{"n": 2, "total": 101}]


def test_who_accepts_gets_what_comes_from_now_on(tmp_path: Path) -> None:
    panes = changed(tmp_path, described(s=agg.sum("v")), described(total=agg.sum("v")), ts.Policy(dropped="accept"))
    assert panes.select(["n", "total"]).to_pylist() == [{"n": 2, "total": 100}]


@pytest.mark.parametrize(
    "after",
    [described(), described(other=agg.sum("w")), described(high=agg.max("v"))],
    ids=["nothing", "another column", "another function"],
)
def test_a_plain_removal_is_logged_or_refused(tmp_path: Path, after: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tidestate")
    changed(tmp_path / "asks", described(s=agg.sum("v")), after)
    assert "its values are dropped" in caplog.text
    error = refused(tmp_path / "refuses", described(s=agg.sum("v")), after, ts.Policy(dropped="refuse"))
    assert error.code == "configuration-changed"
    assert list(error.context["why"]) == ["aggregate s"]


def test_where_nothing_is_stored_nothing_is_lost(tmp_path: Path) -> None:
    described(s=agg.sum("v")).standalone(checkpoint=tmp_path).run([events()])
    later = described(total=agg.sum("v")).standalone(checkpoint=tmp_path, policy=ts.Policy(dropped="refuse"))
    assert later.run([events(), *BATCHES])["total"].to_pylist() == [101]


def test_an_operator_that_goes_takes_its_state_with_it(tmp_path: Path) -> None:
    once = ts.stream(event_time="t").deduplicate("k", within="1 minute", name="once")
    both = described(once, s=agg.sum("v"))
    error = refused(tmp_path, both, described(s=agg.sum("v")), ts.Policy(dropped="refuse"))
    assert list(error.context["why"]) == ["once"]
    described(s=agg.sum("v")).standalone(checkpoint=tmp_path).run(BATCHES)


def per_window(name: str, size: str = "1 minute") -> Aggregation:
    return (
        described()
        .allowed_lateness("0 seconds")
        .group_by("k")
        .window(ts.tumbling(size))
        .aggregate(n=agg.sum("n"))
        .allowed_lateness("1 hour")
        .named(name)
    )


def test_an_operator_by_another_name_is_asked_about(tmp_path: Path) -> None:
    began = per_window("minutes")
    began.standalone(checkpoint=tmp_path).run(BATCHES)
    renamed = per_window("per_minute")
    with pytest.raises(IncompatibleError, match=r'name="minutes".*renamed-unclear'):
        renamed.standalone(checkpoint=tmp_path).run(BATCHES)
    other = per_window("hourly", "1 hour")
    other.standalone(checkpoint=tmp_path).run(BATCHES)


@pytest.mark.parametrize(
    ("was", "now", "asks"),
    few(
        [
            (agg.median("v"), agg.quantile("v", 0.5), True),
            (agg.quantile("v", 0.5), agg.median("v"), True),
            (agg.median("v"), agg.quantile("v", 0.9), False),
            (agg.median("v"), agg.quantile("v", 0.5, interpolation="lower"), False),
            (agg.median("v"), agg.quantile("w", 0.5), False),
            (agg.first("v", by="w"), agg.arg_min("v", by="w"), True),
            (agg.first("v", by="w"), agg.arg_min("v", by="t"), False),
            (agg.latest("v"), agg.last("v", by="t"), True),
            (agg.earliest("v"), agg.arg_min("v", by="t"), True),
            (agg.latest("v"), agg.earliest("v"), False),
            (agg.last("v", by="w"), agg.arg_max("v", by="w"), False),
        ],
        0,
        4,
        7,
        8,
        9,
    ),
)
def test_a_function_of_two_names_is_one(was: Any, now: Any, asks: bool, tmp_path: Path) -> None:
    if not asks:
        assert changed(tmp_path, described(x=was), described(y=now)).num_rows == 1
        return
    assert refused(tmp_path, described(x=was), described(y=now)).code == "renamed-unclear"
    renamed = described(y=now).renamed(aggregates={"x": "y"})
    goes_on = renamed.standalone(checkpoint=tmp_path).run(BATCHES)["y"].to_pylist()
    assert goes_on == described(y=now).standalone(checkpoint=tmp_path / "whole").run(BATCHES)["y"].to_pylist()
    described(y=was).standalone(checkpoint=tmp_path).run(BATCHES)  # under its name too


def joined(price: str) -> tuple[Any, list[dict[str, pa.Table]]]:
    """A left outer join and its rows: one is kept until its partner can come no more."""
    job = ts.stream(event_time="t").join(ts.stream(event_time="t"), on="k", within=("0 s", "20 s"), how="left")
    columns = [pa.schema([("t", TIME), ("k", pa.string()), (name, pa.int64())]) for name in (price, "weight")]
    parts = [pa.table([[second * 1_000_000], [key], [7]], schema=columns[0]) for second, key in ((1, "a"), (2, "b"))]
    return job, [{"left": part, "right": columns[1].empty_table()} for part in parts]


def test_a_column_that_a_join_keeps_is_one_too(tmp_path: Path) -> None:
    job, rows = joined("price")
    job.standalone(checkpoint=tmp_path).run(rows[:1])
    job, rows = joined("cost")
    with pytest.raises(IncompatibleError) as caught:
        job.standalone(checkpoint=tmp_path).run(rows)
    assert caught.value.code == "renamed-unclear"
    assert '.renamed(columns={"left_price": "left_cost"})' in str(caught.value)
    renamed = job.renamed(columns={"left_price": "left_cost"})
    panes = renamed.standalone(checkpoint=tmp_path).run(rows, drain=True)
    assert panes["left_cost"].to_pylist() == [7, 7]


def test_a_policy_has_three_choices() -> None:
    with pytest.raises(UsageError, match="dropped=ask"):
        ts.Policy(dropped="never")  # type: ignore[arg-type]
