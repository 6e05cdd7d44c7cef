"""Keys, times and shared columns of several streams that are fields of structs: as if they were selected first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidestate.agg import count
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.describe.chain import chain
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.describe.session_join import session_join
from tidestate.operators.describe.union import union
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.local.harness import Harness
from tidestate.statestore.errors import UsageError

TIME = pa.timestamp("us", tz="UTC")
NESTED = pa.schema(
    [("user", pa.struct([("id", "string"), ("age", "int64")])), ("meta", pa.struct([("t", TIME)])), ("v", "int64")]
)
FLAT = pa.schema([("user.id", "string"), ("meta.t", TIME), ("v", "int64")])
JOBS: dict[str, Callable[[], Sided]] = {
    "join": lambda: join(event_time="meta.t", on="user.id", within=("-5 seconds", "5 seconds"), how="full"),
    "merge": lambda: (
        merge(event_time="meta.t", key="user.id", shared="v")
        .window(tumbling("10 seconds"))
        .aggregate(n=count(), total=sum_("v"))
    ),
    "session join": lambda: session_join(event_time="meta.t", on="user.id", gap="5 seconds", how="full"),
    "union": lambda: union(event_time="meta.t", sides=("left", "right")),
}
LEFT, RIGHT = [("a", 1, 1), ("b", 2, 2), ("b", 40, 5)], [("a", 3, 3), ("c", 2, 4), (None, 4, 6)]


def nested(rows: list[tuple[Any, ...]]) -> pa.Table:
    people = [None if key is None else {"id": key, "age": 7} for key, _, _ in rows]
    times = [{"t": second * 1_000_000} for _, second, _ in rows]
    columns = [pa.array(people, NESTED.field(0).type), pa.array(times, NESTED.field(1).type)]
    return pa.table([*columns, pa.array([value for *_, value in rows])], schema=NESTED)


def flat(rows: list[tuple[Any, ...]]) -> pa.Table:
    whole = nested(rows)
    fields = [pc.struct_field(whole[column], place) for column, place in (("user", 0), ("meta", 0))]
    return pa.table([*fields, whole["v"]], schema=FLAT)


@pytest.mark.parametrize("name", JOBS)
def test_a_path_reads_as_a_column(name: str) -> None:
    job, found = JOBS[name](), []
    for schema, table in ((NESTED, nested), (FLAT, flat)):
        whole = job.schema(schema, schema)
        harness = Harness(job, whole, partitions=2)
        panes = [harness.feed(job.rows(whole, left=table(LEFT), right=table(RIGHT))), harness.finish()]
        rows = pa.concat_tables(panes).to_pylist()
        # Columns of a side's own go on as they are, the struct or its fields.
        own = {"user", "meta", "user.id", "meta.t"} if name == "union" else {"left_user", "right_user"}
        own |= {f"{side}_{column}" for side in job.sides.names for column in ("meta", "meta.t")}
        found.append(sorted(str({name: value for name, value in row.items() if name not in own}) for row in rows))
        assert harness.ledger().num_rows == (name != "union")  # a field of a null is null
    assert found[0] == found[1]
    assert len(found[0]) > 2


def test_in_a_chain(tmp_path: Any) -> None:
    counted = windowed(event_time="time", key="user.id", name="counted").window(tumbling("10 seconds"))
    job = chain(JOBS["join"](), counted.aggregate(n=count()), inputs={"joined": ("l", "r"), "counted": "joined"})
    panes = job.standalone(checkpoint=tmp_path).run([{"l": nested(LEFT), "r": nested(RIGHT)}], drain=True)
    assert sorted((row["user.id"], row["n"]) for row in panes.to_pylist()) == [("a", 1), ("b", 1), ("b", 1), ("c", 1)]


def test_a_path_that_a_side_lacks() -> None:
    with pytest.raises(UsageError, match="column-missing"):
        join(event_time="meta.t", on="user.name", within=("0 s", "1 s")).schema(NESTED, NESTED)
