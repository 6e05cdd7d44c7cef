"""Columns of times, offsets and identities by other names: every setting that names one follows a renaming."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidestate.agg import count, top_n
from tidestate.agg import list as list_
from tidestate.agg import sum as sum_
from tidestate.operators import tumbling
from tidestate.operators.bind.evolve import evolve, new_operator
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.deduplicate import deduplicated
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.merge import merge
from tidestate.operators.describe.overlap_join import overlap_join
from tidestate.operators.describe.renames import given_renames
from tidestate.operators.describe.session_join import session_join
from tidestate.operators.describe.union import union
from tidestate.operators.describe.windowed import windowed
from tidestate.operators.describe.windows import session
from tidestate.operators.plan.graph import single_operator
from tidestate.operators.progress.cti_settings import advance_time, generation
from tidestate.statestore.spec.tables import TIME

OWN = {"t": TIME, "o": pa.int64(), "g": pa.int64(), "e": TIME, "v": pa.int64(), "k": pa.string(), "z": pa.string()}
Named = Callable[[Callable[[str], str]], Any]
Name = Callable[[str], str]


def plainly(name: str) -> str:
    return name


def newly(name: str) -> str:
    return f"new_{name}"


SIDED: dict[str, Named] = {
    "join": lambda name: join(
        event_time=name("t"), on=name("k"), within=("0 s", "5 s"), offset=name("o"), origin=name("g")
    ),
    "join that retains": lambda name: join(
        event_time=name("t"), on=name("k"), within=("0 s", "5 s"), offset=name("o"), how="left", in_order=True
    ),
    "session join": lambda name: session_join(
        event_time=name("t"),
        on=(name("k"), name("z")),
        session=name("k"),
        gap="5 s",
        offset=name("o"),
        origin=name("g"),
    ),
    "overlap join": lambda name: overlap_join(
        event_time=name("t"), on=name("k"), shape="interval", end=name("e"), offset=name("o"), origin=name("g")
    ).advance_time(advance_time("drop", generation("5 seconds", "1 second"))),
    "merge": lambda name: (
        merge(event_time=name("t"), key=name("k"), offset=name("o"), origin=name("g"), shared=name("z"))
        .window(tumbling("10 seconds"))
        .aggregate(n=list_(f"left_{name('v')}"), m=count(name("z")))
        .messages([name("g"), name("o")])
    ),
}
PLAIN: dict[str, Named] = {
    "messages": lambda name: (
        windowed(event_time=name("t"), key=name("k"), origin=name("g"), offset=name("o"))
        .window(tumbling("10 seconds"))
        .aggregate(n=count(), s=sum_(name("v")), best=top_n(name("v"), 2, by=name("e")))
        .messages([name("g"), name("o")])
    ),
    "lifetimes": lambda name: (
        windowed(event_time=name("t"), key=name("k"))
        .window(tumbling("10 seconds", end=name("e")))
        .aggregate(n=count())
    ),
    "offsets in order": lambda name: (
        windowed(event_time=name("t"), offset=name("o"), in_order=True)
        .window(session("5 seconds"))
        .aggregate(n=list_(name("v")))
    ),
    "deduplication": lambda name: deduplicated(event_time=name("t"), on=(name("k"), name("o")), within="1 hour"),
}


def columns_of(name: Name) -> pa.Schema:
    return pa.schema([(name(column), kind) for column, kind in OWN.items()])


def changes(before: Any, after: Any, schemas: list[pa.Schema]) -> set[str]:
    stored = new_operator(single_operator(bind_plan(before, schemas[0])).nodes[0], 1, 1)
    _, operator, changed = evolve(stored, bind_plan(after, schemas[1]), 7, may_change=True)
    lasting = {column.lasting for spec in operator.tables for column in (*spec.key, *spec.values)}
    assert not [name for name in lasting if name.startswith("__7.")], "a column that goes on has its identity"
    return {one.setting for one in changed}


@pytest.mark.parametrize("kind", PLAIN)
def test_all_columns_of_an_operator_may_be_renamed_at_once(kind: str) -> None:
    before, after = (PLAIN[kind](name) for name in (plainly, newly))
    after = after.renamed(columns={name: newly(name) for name in OWN})
    found = changes(before, after, [columns_of(name) for name in (plainly, newly)])
    assert found <= {f"column {name}" for name in OWN}


@pytest.mark.parametrize("kind", SIDED)
def test_all_columns_of_the_sides_may_be_renamed_at_once(kind: str) -> None:
    before, after = (SIDED[kind](name) for name in (plainly, newly))
    schemas = [one.schema(*[columns_of(name)] * 2) for one, name in ((before, plainly), (after, newly))]
    pairs = {f"{side}_{name}": f"{side}_{newly(name)}" for side in ("left", "right") for name in OWN}
    pairs |= {name: newly(name) for name in OWN}
    found = changes(before, after.renamed(columns=pairs), schemas)
    assert found <= {f"column {old}" for old in pairs}
    assert {"column left_t", "column right_t", "column k"} <= found


def test_a_union_whose_time_and_offset_are_renamed() -> None:
    before, after = (
        union(event_time=name("t"), sides=("x", "y"), offset=name("o"), origin=name("g")) for name in (plainly, newly)
    )
    schemas = [one.schema(columns_of(n), columns_of(n)) for one, n in ((before, plainly), (after, newly))]
    after = after.renamed(columns={name: newly(name) for name in OWN})
    assert changes(before, after, schemas) == {f"column {name}" for name in OWN}


def test_a_pair_of_rows_from_before_and_after(tmp_path: Path) -> None:
    """The left row came with a time t and an offset o; the right one and a repetition come under other names."""

    def run(name: Name, parts: list[tuple[str, int, int]], renamed: dict[str, str]) -> pa.Table:
        job = SIDED["join"](name).renamed(columns=renamed)
        schema = job.schema(*[columns_of(name)] * 2)
        batches = []
        for side, second, offset in parts:
            us = second * 1_000_000
            rows = [[us], [offset], [0], [us], [second], ["a"], ["z"]]
            batches.append(job.rows(schema, **{side: pa.table(rows, schema=columns_of(name))}))
        return job.standalone(checkpoint=tmp_path).run(batches)

    parts = [("left", 1, 5), ("left", 1, 5), ("right", 2, 0)]
    run(plainly, parts[:1], {})
    pairs = {f"{side}_{name}": f"{side}_{newly(name)}" for side in ("left", "right") for name in OWN if name != "k"}
    panes = run(newly, parts, {**pairs, "k": "new_k"})
    assert [(row["left_new_v"], row["right_new_v"], row["new_k"]) for row in panes.to_pylist()] == [(1, 2, "a")]


def test_a_mapping_is_of_columns_that_are_there() -> None:
    assert given_renames(None, {"left_t": "left_at"}).columns == (("left_t", "left_at"),)
