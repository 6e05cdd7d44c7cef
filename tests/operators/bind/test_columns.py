"""Names of columns that cannot be read as they are: refused when a description is bound."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from tidestate.agg import count
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.bind.graph import bind_graph
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.windowed import windowed
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.tables import TIME

SCHEMA = pa.schema({"t": TIME, ".v": pa.int64(), "v": pa.int64()})
HOURLY = windowed(event_time="t").window(tumbling("1 hour"))
DOTTED: dict[str, Callable[[], Runnable]] = {
    "a column to sum": lambda: HOURLY.aggregate(s=sum_(".v")),
    "a key": lambda: windowed(event_time="t", key=".v").window(tumbling("1 hour")).aggregate(n=count()),
    "a result": lambda: HOURLY.aggregate(**{".n": count()}),
    "a column of the ledger": lambda: HOURLY.aggregate(n=count()).late("0 seconds", keep=".v"),
    "a column that is handed on": lambda: deduplicated(event_time="t", on="v"),
}


@pytest.mark.parametrize("make", DOTTED.values(), ids=DOTTED.keys())
def test_a_name_that_begins_with_a_dot_is_refused_where_it_is_read(make: Callable[[], Runnable]) -> None:
    with pytest.raises(UsageError, match="column-name"):
        bind_graph(make(), SCHEMA)


def test_a_column_that_is_not_read_may_be_called_anything() -> None:
    assert bind_graph(HOURLY.aggregate(s=sum_("v")), SCHEMA)


@pytest.mark.parametrize("on", ["time", "side", "left_v"])
def test_the_one_stream_of_a_join_has_no_two_columns_of_one_name(on: str) -> None:
    sides = pa.schema({"t": TIME, "v": pa.int64(), on: pa.string()})
    with pytest.raises(UsageError, match="name-taken") as refused:
        join(event_time="t", on=on, within=("0 seconds", "5 seconds")).schema(sides, sides)
    assert refused.value.context["names"] == [on]
