"""Smallest and largest durations, in every unit and store; what else needs an order says what to cast to."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.helpers.process import in_turn
from tidestate.operators import Memory, Parquet, RocksDB, arg_min, max_, min_, scan_panes, tumbling, windowed
from tidestate.operators.bind.graph import bind_graph
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import StoreConfig
from tidestate.statestore.spec.tables import TIME

HOURLY = windowed(event_time="t").window(tumbling("1 hour")).late("0 seconds")


def rows(unit: str, *pairs: tuple[int, int | None]) -> pa.Table:
    seconds, spans = zip(*pairs, strict=True)
    times = pa.array([second * 1_000_000 for second in seconds], TIME)
    return pa.table({"t": times, "d": pa.array(spans, pa.duration(unit))})


@pytest.mark.parametrize(("unit", "store"), in_turn(("us", "s", "ms", "ns"), (Parquet(), Memory(), RocksDB())))
def test_extremes_of_durations(tmp_path: Path, unit: str, store: StoreConfig) -> None:
    job = HOURLY.aggregate(least=min_("d"), most=max_("d")).standalone(checkpoint=tmp_path / "root", store=store)
    job.run([rows(unit, (0, 5), (1, None)), rows(unit, (2, -3), (3, 9)), rows(unit, (4000, None))], drain=True)
    panes = scan_panes(tmp_path / "root").to_table()
    assert panes.schema.field("least").type == panes.schema.field("most").type == pa.duration(unit)
    assert panes["least"].cast(pa.int64()).to_pylist() == [-3, None]
    assert panes["most"].cast(pa.int64()).to_pylist() == [9, None]


def test_what_else_needs_an_order_says_what_to_cast_to() -> None:
    with pytest.raises(UsageError, match="cast it to whole numbers first") as refused:
        bind_graph(HOURLY.aggregate(a=arg_min("t", by="d")), rows("us", (0, 1)).schema)
    assert refused.value.code == "aggregate-type"
