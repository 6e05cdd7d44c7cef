"""Deduplication to the microsecond: an id is known as long as a repetition of its row is not late."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidestate.operators.describe.deduplicate import deduplicated
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


@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        (pa.string(), ["8d3f", "ä/"]),
        (pa.binary(), [b"\x00\xff", b"\x00"]),
        (pa.decimal128(30, 4), [Decimal("1.5000"), Decimal("-1.5")]),
        (pa.date32(), [date(1969, 12, 31), date(2024, 2, 29)]),
        (TIME, [datetime(1969, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)]),
        (pa.time64("us"), [time(1), time(1, 0, 0, 1)]),
        (pa.bool_(), [True, False]),
        (pa.uint64(), [2**64 - 1, 0]),
    ],
    ids=str,
)
def test_ids_of_every_type_of_a_key(kind: pa.DataType, ids: list[Any], tmp_path: Path) -> None:
    schema = pa.schema([("t", TIME), ("k", kind)])
    described = deduplicated(event_time="t", on="k", within="10 microseconds")
    rows = pa.table({"t": pa.array([0, 0], pa.int64()).cast(TIME), "k": pa.array(ids, kind)})
    job = Harness(described, schema, folder=tmp_path, partitions=2)
    assert sorted(job.feed(rows)["k"].to_pylist()) == sorted(ids)
    job.restart()
    assert job.feed(pa.concat_tables([rows, rows])).num_rows == 0
    assert job.counters()["duplicates"] == 4
