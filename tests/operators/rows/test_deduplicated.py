"""Deduplication to the microsecond: an id is known as long as a repetition of its row is not late."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tidestate.operators import deduplicated
from tidestate.operators.local.harness import Harness
from tidestate.statestore.spec.tables import TIME

SCHEMA = pa.schema([("t", TIME), ("k", pa.string())])


def passed(job: Harness, *rows: tuple[int, str]) -> list[tuple[int, str]]:
    times, keys = zip(*rows, strict=True)
    found = job.feed(pa.table({"t": pa.array(times, pa.int64()).cast(TIME), "k": keys}, schema=SCHEMA))
    return list(zip(found["t"].cast(pa.int64()).to_pylist(), found["k"].to_pylist(), strict=True))


def test_a_row_at_the_watermark_is_still_known(tmp_path: Path) -> None:
    job = Harness(deduplicated(event_time="t", on=["t", "k"]), SCHEMA, folder=tmp_path)
    assert passed(job, (10, "a"), (10, "a"), (10, "b")) == [(10, "a"), (10, "b")]
    assert passed(job, (10, "a"), (10, "c")) == [(10, "c")]
    assert passed(job, (9, "d"), (11, "a")) == [(11, "a")]
    assert job.counters()["very_late"] == 1


def test_an_id_is_remembered_for_its_span_and_no_longer(tmp_path: Path) -> None:
    job = Harness(deduplicated(event_time="t", on="k", within="10 microseconds"), SCHEMA, folder=tmp_path)
    assert passed(job, (0, "a"), (9, "b")) == [(0, "a"), (9, "b")]
    assert passed(job, (9, "a")) == []
    assert passed(job, (10, "c")) == [(10, "c")]
    assert passed(job, (10, "a")) == [(10, "a")]
    assert job.state("seen").num_rows == 3
    assert passed(job, (40, "d")) == [(40, "d")]
    assert job.state("seen").num_rows == 1
