"""Streams run in this process: rows are given by name, of a single join too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidestate.agg import count
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.sinks import Sinks
from tidestate.operators.local.standalone import StandaloneRunner
from tidestate.operators.streams.inputs import merge_streams, stream, union_streams
from tidestate.operators.streams.stream import OperatorStream, Stream
from tidestate.statestore.errors import UsageError, of_type
from tidestate.stores import Parquet

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("v", pa.int64())])


def rows(*seconds: int) -> pa.Table:
    values = [pa.array([s * 1_000_000 for s in seconds], TIME), ["a"] * len(seconds), list(seconds)]
    return pa.table(values, schema=SCHEMA)


def at(name: str | None = None, **settings: Any) -> Stream:
    return stream(name, event_time="t", **settings)


WITHIN = ("0 seconds", "1 second")
BATCHES = [{"left": rows(1, 2), "right": rows(2)}, {"right": rows(3)}, {}, {"right": rows(), "left": rows(9)}]


def test_a_root_that_began_with_rows_in_one_table_goes_on_with_rows_by_name(tmp_path: Path) -> None:
    named = at().join(at(), on="k", within=WITHIN)
    description = of_type(named.graph.description, Sided)
    sides = description.sides
    one = sides.schema({"left": SCHEMA, "right": SCHEMA})
    tables = [
        pa.concat_tables([one.empty_table(), *(sides.rows(one, side, batch[side]) for side in sorted(batch))])
        for batch in BATCHES
    ]

    def packed(folder: str) -> StandaloneRunner:
        return StandaloneRunner(description, str(tmp_path / folder), Parquet(), Sinks(), None)

    whole = packed("packed").run(tables, drain=True)
    assert whole.num_rows == 3
    assert named.standalone(checkpoint=tmp_path / "new").run(BATCHES, drain=True).equals(whole)
    before = packed("old").run(tables[:2])
    after = named.standalone(checkpoint=tmp_path / "old").run(BATCHES, drain=True)
    assert pa.concat_tables([before, after]).equals(whole)


def test_graphs_run_by_the_names_of_their_streams(tmp_path: Path) -> None:
    shipped = at("orders").join(at("shipments"), on="k", within=WITHIN, how="left")
    daily = shipped.group_by("k").window(tumbling("1 minute")).aggregate(n=count(), x=sum_("right_v"))
    batches = [{"orders": rows(1, 2), "shipments": rows(2)}, {"shipments": rows(3)}]
    (pane,) = daily.standalone(checkpoint=tmp_path / "daily").run(batches, drain=True).to_pylist()
    assert (pane["n"], pane["x"]) == (3, 7)
    both = union_streams(at("web"), at("app")).group_by("side").window(tumbling("1 minute")).aggregate(n=count())
    panes = both.standalone(checkpoint=tmp_path / "both").run([{"web": rows(1), "app": rows(2, 3)}], drain=True)
    assert {(row["side"], row["n"]) for row in panes.to_pylist()} == {("web", 1), ("app", 2)}
    merged = merge_streams(a=at(), b=at()).group_by("k").window(tumbling("1 minute")).aggregate(n=count("a_v"))
    (pane,) = (
        merged.standalone(checkpoint=tmp_path / "merged").run([{"a": rows(1), "b": rows(2)}], drain=True).to_pylist()
    )
    assert pane["n"] == 1


class Sought:
    """Both streams, continued by number."""

    schema = {"left": SCHEMA, "right": SCHEMA}

    def seek(self, position: Any) -> Any:
        yield from ((number + 1, BATCHES[number]) for number in range(position or 0, len(BATCHES)))


def test_input_that_is_sought_has_schemas_by_name_too(tmp_path: Path) -> None:
    made = at().join(at(), on="k", within=WITHIN)
    whole = made.standalone(checkpoint=tmp_path / "whole").run(BATCHES, drain=True)
    assert made.standalone(checkpoint=tmp_path / "sought").run(Sought(), drain=True).equals(whole)


REFUSED: dict[str, list[Any]] = {
    "the first batch lacks a stream": [{"left": rows(1)}],
    "one table for two": [rows(1)],
    "a stream that nothing reads": [{"left": rows(1), "right": rows(1), "orders": rows(1)}],
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    running = at().join(at(), on="k", within=WITHIN).standalone(checkpoint=tmp_path / "root")
    with pytest.raises(UsageError) as caught:
        running.run(REFUSED[name])
    assert caught.value.code == "streams"
    assert not (tmp_path / "root").exists()


def per_minute(name: str | None = None) -> OperatorStream:
    return at(name).group_by("k").window(tumbling("1 minute")).aggregate(n=count())


def test_a_single_stream_may_be_named_or_not(tmp_path: Path) -> None:
    for name in ("input", "orders"):
        made = per_minute(None if name == "input" else name)
        (pane,) = made.standalone(checkpoint=tmp_path / name).run([{name: rows(1)}, rows(2)], drain=True).to_pylist()
        assert pane["n"] == 2
        with made.harness({name: SCHEMA}) as harness:
            harness.feed({name: rows(1)})
            harness.feed([{"t": 2_000_000, "k": "a", "v": 1}])
            assert harness.finish()["n"].to_pylist() == [2]
        assert made.plan(tmp_path / name).changes == ()
        assert made.plan(tmp_path / name, schema={name: SCHEMA}).changes == ()
        with pytest.raises(UsageError, match="name"):
            made.plan(tmp_path / name, schema={"shipments": SCHEMA})


def test_a_harness_is_fed_by_stream(tmp_path: Path) -> None:
    for names in ((None, None), ("orders", "shipments")):
        orders, shipments = map(at, names)
        left, right = (name or side for name, side in zip(names, ("left", "right"), strict=True))
        joined = orders.join(shipments, on="k", within=WITHIN)
        with joined.harness({left: SCHEMA, right: SCHEMA}) as harness:
            assert harness.feed({left: [{"t": 1_000_000, "k": "a", "v": 1}]}).num_rows == 0
            assert harness.feed({right: rows(2)})["right_v"].to_pylist() == [2]
            for wrong in (rows(1), [{"t": 1, "k": "a", "v": 1}], {"other": rows(1)}, {"other": [{"t": 1}]}):
                with pytest.raises(UsageError) as caught:
                    harness.feed(wrong)
                assert caught.value.code == "streams"


def test_a_plan_takes_schemas_by_stream(tmp_path: Path) -> None:
    joined = at("orders").join(at("shipments"), on="k", within=WITHIN)
    joined.standalone(checkpoint=tmp_path).run([{"orders": rows(1), "shipments": rows(1)}])
    assert joined.plan(tmp_path, schema={"shipments": SCHEMA, "orders": SCHEMA}).changes == ()
    (change,) = at("orders").join(at("shipments"), on="k", within=("0 seconds", "2 s")).plan(tmp_path).changes
    assert str(change) == "operator joined: within: (0 seconds, 1 second) -> (0 seconds, 2 seconds)"


def test_paths_are_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        per_minute().on_spark(None, checkpoint=tmp_path, paths={"in_drivers"})  # type: ignore[arg-type]
    assert caught.value.code == "paths"
    assert "in_driver" in str(caught.value)


def test_notebooks_have_tables(tmp_path: Path) -> None:
    running = per_minute().standalone(checkpoint=tmp_path)
    running.run([rows(1)])
    assert '<th>streams</th><td style="text-align: left">input</td>' in running._repr_html_()
    plan = at().group_by("v").window(tumbling("1 minute")).aggregate(n=count()).plan(tmp_path, schema=SCHEMA)
    assert f"<caption>{tmp_path}: it would not start</caption>" in plan._repr_html_()
    assert '<td style="text-align: left">group_by</td>' in plan._repr_html_()
    same = per_minute().plan(tmp_path)._repr_html_()
    assert "<p>nothing has changed</p>" in same
    assert "<table>" not in same


def test_a_plan_of_a_root_whose_input_has_ended_compares_nothing(tmp_path: Path) -> None:
    per_minute().standalone(checkpoint=tmp_path).run([rows(1)], drain=True)
    plan = per_minute().allowed_lateness("3 hours").plan(tmp_path)
    assert (plan.starts, plan.ended, plan.as_dict()["ended"]) == (True, True, True)
    assert "nothing has changed" not in str(plan)
    assert "the input has ended" in str(plan)
