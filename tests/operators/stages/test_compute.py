"""Filters and computed columns of a stream: against the job that has these columns, and a key for rows left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tidestate import agg
from tidestate.operators.expressions.builder import col

TIME_TYPE = pa.timestamp("us", "UTC")
ARRIVING = pa.schema({"at": TIME_TYPE, "p": pa.int64(), "q": pa.int64(), "k": pa.string()})
ROW = st.tuples(st.integers(0, 300), st.none() | st.integers(-3, 9), st.integers(0, 5), st.sampled_from("abc"))
BATCHES = st.lists(st.lists(ROW, max_size=6), min_size=1, max_size=5)
LEFT_OUT = "left out"


def arriving(rows: list[Any]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 4
    times = pa.array([second * 1_000_000 for second in columns[0]], pa.int64()).view(TIME_TYPE)
    return pa.table(
        [times, *(pa.array(c, f.type) for c, f in zip(columns[1:], list(ARRIVING)[1:], strict=True))], schema=ARRIVING
    )


def by_python(rows: list[Any]) -> list[Any]:
    """The same rows with what the stages compute: rows that they leave out have a key of their own."""
    return [(at, p if p is None else p * q, q, k if p is not None and p > 0 else LEFT_OUT) for at, p, q, k in rows]


def windows(stream: Any) -> Any:
    grouped = stream.group_by("k").window(ts.tumbling("1 minute"))
    return grouped.aggregate(n=agg.count(), total=agg.sum("p")).allowed_lateness("1 minute")


def result(job: Any, batches: list[pa.Table]) -> list[Any]:
    harness = job.harness(ARRIVING)
    tables = [harness.feed(batch) for batch in batches]
    names = ["window_start", "k", "n", "total", "timing", "kind"]
    return [[row for row in t.select(names).to_pylist() if row["k"] != LEFT_OUT] for t in tables]


@settings(max_examples=settings.default.max_examples * 3)  # type: ignore[union-attr]
@given(BATCHES)
def test_rows_that_are_left_out_move_the_watermark_and_nothing_else(batches: list[list[Any]]) -> None:
    source = ts.stream(event_time="at")
    staged = source.with_columns(p=col("p") * col("q"), was=col("p")).where("was > 0")
    wanted = result(windows(source), [arriving(by_python(rows)) for rows in batches])
    assert result(windows(staged), [arriving(rows) for rows in batches]) == wanted


def test_the_late_ledger_has_rows_as_they_arrived(tmp_path: Path) -> None:
    job = windows(ts.stream(event_time="at").with_columns(p=col("p") * 2).where(col("q") > 0))
    late, left_out = (5, 4, 1, "a"), (6, 4, 0, "a")
    job.standalone(checkpoint=tmp_path).run([arriving([(300, 1, 1, "a")]), arriving([late, left_out])])
    rows = ts.Root(tmp_path).late().to_table().to_pylist()
    assert [(row["reason"], row["received_p"], row["q"]) for row in rows] == [("very_late", 4, 1)]


@pytest.mark.parametrize("stage", ["where", "with_columns"])
def test_what_cannot_be_bound_is_refused_before_anything_runs(stage: str, tmp_path: Path) -> None:
    source = ts.stream(event_time="at")
    staged = source.where("z > 1") if stage == "where" else source.with_columns(z="nothing + 1")
    with pytest.raises(ts.UsageError, match=r"expression-name|column-missing"):
        windows(staged).standalone(checkpoint=tmp_path).run([arriving([(1, 1, 1, "a")])])
