"""The forms of panes: what a reader of each form sees is what the job has emitted, however its deliveries are cut."""

from __future__ import annotations

from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.helpers.spark_inputs import job, sample
from tests.twins import streams
from tests.twins.naive import Setting
from tidestate import Aggregation
from tidestate.operators.describe.sinks import Emitted
from tidestate.operators.sinks.delta import DeltaSink
from tidestate.operators.sinks.forms import KIND_OF_CHANGE, Form, formed, identity
from tidestate.recovery.log.manifest import DeliveryId
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.plain import plain_table

Row = tuple[Any, ...]


def table(*rows: tuple[str, int, str, int]) -> pa.Table:
    """Rows (key, pane, kind, value)."""
    names = ("k", "pane", "kind", "v")
    return pa.table({name: pa.array([row[n] for row in rows]) for n, name in enumerate(names)})


def values(rows: pa.Table, *names: str) -> list[Row]:
    return [tuple(row[name] for name in names) for row in rows.to_pylist()]


PANES = table(
    ("a", 0, "emit", 1), ("b", 0, "emit", 2), ("a", 0, "retract", 1), ("a", 1, "emit", 3), ("c", 2, "emit", 4),
    ("d", 1, "retract", 5), ("b", 0, "retract", 2),
)  # fmt: skip


def test_each_form_of_a_few_rows() -> None:
    by = identity(PANES.schema, ["k"])
    assert formed(PANES, "append", by).rows is PANES
    assert values(formed(PANES, "changelog", by).rows, "k", KIND_OF_CHANGE, "v") == [
        ("a", "insert", 1),
        ("b", "insert", 2),
        ("a", "update_before", 1),
        ("a", "update_after", 3),
        ("c", "update_after", 4),
        ("d", "delete", 5),
        ("b", "delete", 2),
    ]
    net = formed(PANES, "upsert", by)
    assert net.gone is not None
    assert values(net.rows, "k", "v") == [("a", 3), ("c", 4)]
    assert values(net.gone, "k") == [("d",), ("b",)]
    assert "kind" not in net.rows.column_names


@pytest.mark.parametrize("form", ["append", "changelog", "upsert"])
def test_no_rows_have_the_columns_of_some(form: Form) -> None:
    by = identity(PANES.schema, ["k"])
    assert formed(PANES.schema.empty_table(), form, by).rows.schema == formed(PANES, form, by).rows.schema


def test_rows_without_a_kind_are_inserts() -> None:
    plain = PANES.drop_columns(["kind", "pane"])
    assert set(formed(plain, "changelog", ["k"]).rows[KIND_OF_CHANGE].to_pylist()) == {"insert"}
    net = formed(plain, "upsert", ["k"])
    assert net.gone is not None
    assert (values(net.rows, "k", "v"), net.gone.num_rows) == ([("a", 3), ("c", 4), ("d", 5), ("b", 2)], 0)


def test_a_row_is_known_by_columns_that_are_there_and_not_null() -> None:
    with pytest.raises(UsageError, match=r"sink-key.*missing"):
        identity(PANES.schema, ["other"])
    with pytest.raises(UsageError, match="sink-key"):
        identity(PANES.schema, [])
    with pytest.raises(UsageError, match="null in some"):
        formed(pa.table({"k": ["a", None]}), "upsert", ["k"])
    bounds = pa.schema([("window_start", pa.int64()), ("window_end", pa.int64()), ("k", pa.string())])
    assert identity(bounds, ["k"]) == ["window_start", "window_end", "k"]


NOT_VALUES = ("kind", "timing", "last", "pane")


def stored(state: dict[Row, Row], rows: pa.Table, form: Form, key: list[str]) -> None:
    """What a target that applies rows of this form holds after them."""
    by = identity(rows.schema, key)
    found = formed(rows, form, by)
    names = [name for name in rows.column_names if name not in NOT_VALUES]
    for one in values(found.gone, *by) if found.gone is not None else ():
        state.pop(one, None)
    for row in found.rows.to_pylist():
        identified = tuple(row[name] for name in by)
        if row.get(KIND_OF_CHANGE) in ("update_before", "delete"):
            assert state.pop(identified) == tuple(row[name] for name in names), "it takes back what is there"
        else:
            assert row.get(KIND_OF_CHANGE) != "insert" or identified not in state
            state[identified] = tuple(row[name] for name in names)


def replayed(whole: pa.Table, key: list[str]) -> dict[Row, Row]:
    """What stands after all panes, one after the other."""
    state: dict[Row, Row] = {}
    for row in whole.to_pylist():
        identified = tuple(row[name] for name in identity(whole.schema, key))
        found = tuple(value for name, value in row.items() if name not in NOT_VALUES)
        if row["kind"] == "retract":
            assert state.pop(identified) == found
        else:
            state[identified] = found
    return state


def panes_of(described: Aggregation, batches: list[pa.Table]) -> pa.Table:
    running = described.harness(batches[0].schema)
    fed = [running.feed(one) for one in batches]
    return pa.concat_tables([plain_table(one) for one in (*fed, running.finish())])


@cache
def panes_of_sample() -> pa.Table:
    return panes_of(job(), sample(6, 60))


def delivered_in_cuts(whole: pa.Table, form: Form, key: list[str], cuts: list[int]) -> dict[Row, Row]:
    """At any cut: a retraction and its pane may be in different deliveries."""
    state, begin = dict[Row, Row](), 0
    for size in cycle(cuts):
        stored(state, whole.slice(begin, size), form, key)
        begin += size
        if begin >= whole.num_rows:
            return state
    raise AssertionError


@pytest.mark.parametrize("form", ["changelog", "upsert"])
@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_what_stands_is_the_newest_pane_of_each_window(form: Form, cuts: list[int]) -> None:
    whole = panes_of_sample()
    assert set(whole["kind"].to_pylist()) == {"emit", "retract"}
    state = delivered_in_cuts(whole, form, ["k"], cuts)
    assert state == replayed(whole, ["k"])
    assert len(state) > 20


@settings(max_examples=max(4, settings.default.max_examples // 3))
@given(streams.settings(), streams.batches(), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_of_any_stream(setting: Setting, made: list[streams.Batch], cuts: list[int]) -> None:
    whole, key = panes_of(streams.description(setting), [streams.arrow(one) for one in made]), list(setting.key)
    by = identity(whole.schema, key)
    assume(not any(whole[name].null_count for name in by))
    assert delivered_in_cuts(whole, "upsert", key, cuts) == replayed(whole, key)


PLAIN = pa.table({"id": [1, 2, 1], "pane": ["x", "y", "z"], "kind": ["retract", "emit", "retract"]})
"""Rows of a job that only passes them on, with columns of the user's that are called as those of panes."""


def test_rows_that_are_no_panes_are_taken_as_they_are() -> None:
    changes = formed(PLAIN, "changelog", ["id"], is_plain=True).rows
    assert changes[KIND_OF_CHANGE].to_pylist() == ["insert"] * 3
    assert changes.drop_columns([KIND_OF_CHANGE]).equals(PLAIN)
    net = formed(PLAIN, "upsert", ["id"], is_plain=True)
    assert net.rows.to_pylist() == PLAIN.to_pylist()[1:]
    assert net.gone is not None
    assert net.gone.num_rows == 0


def test_a_sink_of_plain_rows_keeps_their_kind(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path), changes="upsert", key="id")
    sink.fit(Emitted("moved", PLAIN.schema, None, withdraws=False, is_plain=True))
    rows_formed = sink.formed(PLAIN, DeliveryId("run", 1))
    assert rows_formed.rows["kind"].to_pylist() == ["emit", "retract"]
    sink.fit(Emitted("panes", PLAIN.drop_columns(["pane"]).schema, None, withdraws=True))
    rows_formed = sink.formed(PLAIN.drop_columns(["pane"]), DeliveryId("run", 2))
    assert rows_formed.rows.to_pylist() == [{"id": 2}]
