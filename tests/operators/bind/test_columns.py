"""Names of columns that cannot be read as they are: refused when a description is bound."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import tidestate as ts
from tidestate import OperatorStream, agg
from tidestate.operators.bind.graph import bind_graph
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME

SCHEMA = pa.schema({"t": TIME, ".v": pa.int64(), "v": pa.int64()})
HOURLY = ts.stream(event_time="t").group_by().window(ts.tumbling("1 hour"))
DOTTED: dict[str, Callable[[], OperatorStream]] = {
    "a column to sum": lambda: HOURLY.aggregate(s=agg.sum(".v")),
    "a key": lambda: ts.stream(event_time="t").group_by(".v").window(ts.tumbling("1 hour")).aggregate(n=agg.count()),
    "a result": lambda: HOURLY.aggregate(**{".n": agg.count()}),
    "a column of the ledger": lambda: HOURLY.aggregate(n=agg.count()).allowed_lateness(
        "0 seconds", ledger_columns=".v"
    ),
    "a column that is handed on": lambda: ts.stream(event_time="t").deduplicate("v"),
}


@pytest.mark.parametrize("make", DOTTED.values(), ids=DOTTED.keys())
def test_a_name_that_begins_with_a_dot_is_refused_where_it_is_read(make: Callable[[], OperatorStream]) -> None:
    with pytest.raises(UsageError, match="column-name"):
        bind_graph(make().graph.description, SCHEMA)


def test_a_column_that_is_not_read_may_be_called_anything() -> None:
    assert bind_graph(HOURLY.aggregate(s=agg.sum("v")).graph.description, SCHEMA)


@pytest.mark.parametrize("on", ["time", "side", "left_v"])
def test_the_one_stream_of_a_join_has_no_two_columns_of_one_name(on: str) -> None:
    sides = pa.schema({"t": TIME, "v": pa.int64(), on: pa.string()})
    job = ts.stream(event_time="t").join(ts.stream(event_time="t"), on=on, within=("0 s", "1 s"))
    with pytest.raises(UsageError, match="name-taken") as refused:
        job.harness({"left": sides, "right": sides})
    assert refused.value.context["names"] == [on]
