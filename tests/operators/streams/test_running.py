"""Jobs of several streams on the standalone runner: rows are given by name, of a single join too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidestate.operators import count, join, sum_, tumbling
from tidestate.operators.describe.runs import Standalone
from tidestate.operators.streams.inputs import merge_streams, stream, union_streams
from tidestate.operators.streams.stream import OperatorStream, Stream
from tidestate.statestore.errors import UsageError

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("t", TIME), ("k", pa.string()), ("v", pa.int64())])


def rows(*seconds: int) -> pa.Table:
    values = [pa.array([s * 1_000_000 for s in seconds], TIME), ["a"] * len(seconds), list(seconds)]
    return pa.table(values, schema=SCHEMA)


def at(name: str | None = None, **settings: Any) -> Stream:
    return stream(name, event_time="t", **settings)


def alone(made: OperatorStream, root: Path) -> Standalone:
    return made.graph.description.standalone(checkpoint=root)


WITHIN = ("0 seconds", "1 second")
BATCHES = [{"left": rows(1, 2), "right": rows(2)}, {"right": rows(3)}, {}, {"right": rows(), "left": rows(9)}]


def test_a_root_that_began_with_rows_in_one_table_goes_on_with_rows_by_name(tmp_path: Path) -> None:
    packed = join(event_time=("t", "t"), on="k", within=WITHIN)
    one = packed.schema(SCHEMA, SCHEMA)
    tables = [packed.rows(one, None, **batch) for batch in BATCHES]
    whole = packed.standalone(checkpoint=tmp_path / "packed").run(tables, drain=True)
    assert whole.num_rows == 3
    named = at().join(at(), on="k", within=WITHIN)
    assert alone(named, tmp_path / "new").run(BATCHES, drain=True).equals(whole)
    before = packed.standalone(checkpoint=tmp_path / "old").run(tables[:2])
    after = alone(named, tmp_path / "old").run(BATCHES, drain=True)
    assert pa.concat_tables([before, after]).equals(whole)


def test_graphs_run_by_the_names_of_their_streams(tmp_path: Path) -> None:
    shipped = at("orders").join(at("shipments"), on="k", within=WITHIN, how="left")
    daily = shipped.group_by("k").window(tumbling("1 minute")).aggregate(n=count(), x=sum_("right_v"))
    batches = [{"orders": rows(1, 2), "shipments": rows(2)}, {"shipments": rows(3)}]
    (pane,) = alone(daily, tmp_path / "daily").run(batches, drain=True).to_pylist()
    assert (pane["n"], pane["x"]) == (3, 7)
    both = union_streams(at("web"), at("app")).group_by("side").window(tumbling("1 minute")).aggregate(n=count())
    panes = alone(both, tmp_path / "both").run([{"web": rows(1), "app": rows(2, 3)}], drain=True)
    assert {(row["side"], row["n"]) for row in panes.to_pylist()} == {("web", 1), ("app", 2)}
    merged = merge_streams(a=at(), b=at()).group_by("k").window(tumbling("1 minute")).aggregate(n=count("a_v"))
    (pane,) = alone(merged, tmp_path / "merged").run([{"a": rows(1), "b": rows(2)}], drain=True).to_pylist()
    assert pane["n"] == 1


class Sought:
    """Both streams, continued by number."""

    schema = {"left": SCHEMA, "right": SCHEMA}

    def seek(self, position: Any) -> Any:
        yield from ((number + 1, BATCHES[number]) for number in range(position or 0, len(BATCHES)))


def test_input_that_is_sought_has_schemas_by_name_too(tmp_path: Path) -> None:
    made = at().join(at(), on="k", within=WITHIN)
    whole = alone(made, tmp_path / "whole").run(BATCHES, drain=True)
    assert alone(made, tmp_path / "sought").run(Sought(), drain=True).equals(whole)


REFUSED: dict[str, list[Any]] = {
    "the first batch lacks a stream": [{"left": rows(1)}],
    "a stream that nothing reads": [{"left": rows(1), "right": rows(1), "orders": rows(1)}],
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    running = alone(at().join(at(), on="k", within=WITHIN), tmp_path / "root")
    with pytest.raises(UsageError) as caught:
        running.run(REFUSED[name])
    assert caught.value.code == "streams"
    assert not (tmp_path / "root").exists()
