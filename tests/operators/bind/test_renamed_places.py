"""Columns of times, offsets and identities by other names: every setting that names one follows a renaming."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tidestate import Stream, agg, watermark
from tidestate.operators.bind.evolve import evolve, new_operator
from tidestate.operators.bind.operator import bind_plan
from tidestate.operators.describe.renames import given_renames
from tidestate.operators.describe.runnable import Sided
from tidestate.operators.plan.graph import single_operator
from tidestate.statestore.errors import of_type
from tidestate.statestore.spec.tables import TIME

OWN = {"t": TIME, "o": pa.int64(), "g": pa.int64(), "e": TIME, "v": pa.int64(), "k": pa.string(), "z": pa.string()}
Named = Callable[[Callable[[str], str]], Any]
Name = Callable[[str], str]


def plainly(name: str) -> str:
    return name


def newly(name: str) -> str:
    return f"new_{name}"


def lasting(name: Name) -> Stream:
    settings = watermark.cti_settings("drop", generate=watermark.generate_ctis("5 seconds", delay="1 second"))
    lifetime = ts.lifetime(name("e"))
    made = ts.stream(event_time=name("t"), offset=name("o"), origin=name("g"), lifetime=lifetime)
    return made.watermark(watermark.ctis(settings))


SIDED: dict[str, Named] = {
    "join": lambda name: ts.stream(event_time=name("t"), offset=name("o"), origin=name("g")).join(
        ts.stream(event_time=name("t"), offset=name("o"), origin=name("g")),
        on=name("k"),
        within=("0 s", "5 s"),
        identity=True,
    ),
    "join that retains": lambda name: ts.stream(event_time=name("t"), offset=name("o")).join(
        ts.stream(event_time=name("t"), offset=name("o")),
        on=name("k"),
        within=("0 s", "5 s"),
        how="left",
        in_order=True,
        identity=True,
    ),
    "session join": lambda name: ts.stream(event_time=name("t"), offset=name("o"), origin=name("g")).join_sessions(
        ts.stream(event_time=name("t"), offset=name("o"), origin=name("g")),
        on=(name("k"), name("z")),
        gap="5 s",
        session_key=name("k"),
        identity=True,
    ),
    "overlap join": lambda name: lasting(name).join_lifetimes(lasting(name), on=name("k")),
    "merge": lambda name: (
        ts.merge(
            left=ts.stream(event_time=name("t"), offset=name("o"), origin=name("g")),
            right=ts.stream(event_time=name("t"), offset=name("o"), origin=name("g")),
        )
        .sharing(name("z"))
        .group_by(name("k"))
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.list(f"left_{name('v')}"), m=agg.count(name("z")))
        .messages([name("g"), name("o")])
    ),
}
PLAIN: dict[str, Named] = {
    "messages": lambda name: (
        ts.stream(event_time=name("t"), offset=name("o"), origin=name("g"))
        .group_by(name("k"))
        .window(ts.tumbling("10 seconds"))
        .aggregate(n=agg.count(), s=agg.sum(name("v")), best=agg.top_n(name("v"), 2, by=name("e")))
        .messages([name("g"), name("o")])
    ),
    "lifetimes": lambda name: (
        ts.stream(event_time=name("t"), lifetime=ts.lifetime(name("e")))
        .group_by(name("k"))
        .window(ts.tumbling("10 seconds", of="lifetime"))
        .aggregate(n=agg.count())
    ),
    "offsets in order": lambda name: (
        ts.stream(event_time=name("t"), offset=name("o"))
        .group_by()
        .window(ts.sessions("5 seconds"))
        .aggregate(n=agg.list(name("v")))
        .in_order()
    ),
    "deduplication": lambda name: ts.stream(event_time=name("t")).deduplicate(
        (name("k"), name("o")), within="1 hour"
    ),
}


def columns_of(name: Name) -> pa.Schema:
    return pa.schema([(name(column), kind) for column, kind in OWN.items()])


def of_both(job: Any, columns: pa.Schema) -> pa.Schema:
    """The one stream of both sides."""
    sides = of_type(job.graph.description, Sided).sides
    return sides.schema(dict.fromkeys(sides.names, columns))


def changes(before: Any, after: Any, schemas: list[pa.Schema]) -> set[str]:
    stored = new_operator(single_operator(bind_plan(before.graph.description, schemas[0])).nodes[0], 1, 1)
    _, operator, changed = evolve(stored, bind_plan(after.graph.description, schemas[1]), 7, may_change=True)
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
    schemas = [of_both(before, columns_of(plainly)), of_both(after, columns_of(newly))]
    pairs = {f"{side}_{name}": f"{side}_{newly(name)}" for side in ("left", "right") for name in OWN}
    pairs |= {name: newly(name) for name in OWN}
    found = changes(before, after.renamed(columns=pairs), schemas)
    assert found <= {f"column {old}" for old in pairs}
    assert {"column left_t", "column right_t", "column k"} <= found


def test_a_union_whose_time_and_offset_are_renamed() -> None:
    before, after = (
        ts.union(
            x=ts.stream(event_time=name("t"), offset=name("o"), origin=name("g")),
            y=ts.stream(event_time=name("t"), offset=name("o"), origin=name("g")),
        )
        for name in (plainly, newly)
    )
    schemas = [of_both(before, columns_of(plainly)), of_both(after, columns_of(newly))]
    after = after.renamed(columns={name: newly(name) for name in OWN})
    assert changes(before, after, schemas) == {f"column {name}" for name in OWN}


def test_a_pair_of_rows_from_before_and_after(tmp_path: Path) -> None:
    """The left row came with a time t and an offset o; the right one and a repetition come under other names."""

    def run(name: Name, parts: list[tuple[str, int, int]], renamed: dict[str, str]) -> pa.Table:
        job = SIDED["join"](name).renamed(columns=renamed)
        batches = []
        for side, second, offset in parts:
            us = second * 1_000_000
            rows = [[us], [offset], [0], [us], [second], ["a"], ["z"]]
            nothing = dict.fromkeys(("left", "right"), columns_of(name).empty_table())
            batches.append(nothing | {side: pa.table(rows, schema=columns_of(name))})
        return job.standalone(checkpoint=tmp_path).run(batches)

    parts = [("left", 1, 5), ("left", 1, 5), ("right", 2, 0)]
    run(plainly, parts[:1], {})
    pairs = {f"{side}_{name}": f"{side}_{newly(name)}" for side in ("left", "right") for name in OWN if name != "k"}
    panes = run(newly, parts, {**pairs, "k": "new_k"})
    assert [(row["left_new_v"], row["right_new_v"], row["new_k"]) for row in panes.to_pylist()] == [(1, 2, "a")]


def test_a_mapping_is_of_columns_that_are_there() -> None:
    assert given_renames(None, {"left_t": "left_at"}).columns == (("left_t", "left_at"),)
