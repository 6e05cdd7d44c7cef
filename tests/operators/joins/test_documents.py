"""The Orders and Shipments of the Samza design (SAMZA-552, case 2): exact outputs, in order, at their moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.process import in_turn
from tidestate.operators import Memory, Parquet, RocksDB, count_window, tumbling
from tidestate.operators.describe.given_join import join
from tidestate.operators.describe.join import Join
from tidestate.operators.describe.join_choices import every
from tidestate.operators.local.harness import Harness
from tidestate.statestore.spec.store import StoreConfig

TIME = pa.timestamp("us", tz="UTC")
ORDERS = pa.schema([("id", pa.int64()), ("time", TIME), ("offset", pa.int64()), ("value", pa.int64())])
SHIPMENTS = pa.schema([("id", pa.int64()), ("time", TIME), ("offset", pa.int64()), ("cost", pa.int64())])
STORES: dict[str, StoreConfig] = {
    "memory": Memory(),
    "parquet": Parquet(max_levels=2, snapshot_bytes=1),
    "rocksdb": RocksDB(max_levels=2),
}
Event = tuple[str, str, dict[str, Any]]


def at(clock: str) -> int:
    """Microseconds of a time of day."""
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000


def order(clock: str, offset: int, value: int, key: int, time: str) -> Event:
    return clock, "left", {"id": key, "time": at(time), "offset": offset, "value": value}


def shipment(clock: str, offset: int, cost: int, key: int, time: str) -> Event:
    return clock, "right", {"id": key, "time": at(time), "offset": offset, "cost": cost}


EVENTS = [
    order("9:00:00", 1, 0, 1, "8:59:10"),
    shipment("9:00:00", 1000, 0, 3, "9:00:10"),
    shipment("9:00:10", 1001, 2, 1, "9:00:10"),
    order("9:00:59", 2, 5, 3, "9:00:00"),
    shipment("9:01:01", 1002, 3, 1, "9:01:10"),
    shipment("9:01:01", 1003, 1, 9, "9:01:20"),
    order("9:02:01", 3, 9, 9, "8:59:30"),
]
OFFSETS = {"event_time": "time", "on": "id", "offset": "offset"}

TUPLES = join(
    **OFFSETS,  # type: ignore[arg-type]
    window=(count_window(3, by="offset", start=1), None),  # ROWS 3 PRECEDING
    update="1 minute",
    late_update="1 minute",
)
TIMES = join(
    **OFFSETS,  # type: ignore[arg-type]
    window=(tumbling("2 minutes", offset="1 minute"), None),  # RANGE '2' min PRECEDING: [8:59, 9:01), …
    update=(every("2 minutes", offset="59 seconds"), every("1 minute", offset="59 seconds")),
    late_update=(every("2 minutes", offset="59 seconds"), None),
)
FIRST = [(3, 5, 0), (1, 0, 2)]
EXPECTED = {
    "tuples": (TUPLES, {"9:01:00": FIRST, "9:02:00": [(1, 0, 3)], "9:03:00": [(9, 9, 1)]}),
    "times": (TIMES, {"9:00:59": FIRST, "9:01:59": [(1, 0, 3)], "9:02:59": [(9, 9, 1)]}),
}


def outputs(
    description: Join, store: StoreConfig, folder: Path, partitions: int, restart: bool
) -> dict[str, list[tuple[Any, ...]]]:
    """What is shown, by the second at which it is: the clock goes by seconds, messages come at theirs."""
    schema = description.schema(ORDERS, SHIPMENTS)
    harness = Harness(description, schema, store=store, folder=folder, partitions=partitions)
    found: dict[str, list[tuple[Any, ...]]] = {}
    moments = sorted({clock for clock, _, _ in EVENTS} | QUIET)
    for moment in moments:
        coming = {side for clock, side, _ in EVENTS if clock == moment}
        # Messages that come at a moment are in what is shown at it: the clock moves with them, not before.
        harness._now = at(moment)
        panes = [] if coming else [harness.advance_processing_time(at(moment))]
        for side, own in (("left", ORDERS), ("right", SHIPMENTS)):
            rows = [row for clock, of, row in EVENTS if (clock, of) == (moment, side)]
            if rows:
                batch = pa.Table.from_pylist(rows, pa.schema([f.with_type(_plain(f.type)) for f in own])).cast(own)
                panes.append(harness.feed(description.rows(schema, **{side: batch})))
        if restart:
            harness.restart()
        names = ("id", "left_value", "right_cost")
        shown = [tuple(row[name] for name in names) for table in panes for row in table.to_pylist()]
        if shown:
            found[moment] = shown
    assert harness.finish().num_rows == 0
    assert harness.ledger().num_rows == 0
    return found


QUIET = {"9:00:58", "9:01:00", "9:01:58", "9:01:59", "9:02:00", "9:02:58", "9:02:59", "9:03:00", "9:05:00"}


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(kind) else kind


@pytest.mark.slow
@pytest.mark.parametrize(("store", "example"), in_turn(STORES, EXPECTED))
@pytest.mark.parametrize("restart", [False, True], ids=["through", "restarted"])
def test_the_documents_examples(example: str, store: str, tmp_path: Path, restart: bool) -> None:
    description, expected = EXPECTED[example]
    assert outputs(description, STORES[store], tmp_path, 1, restart) == expected


@pytest.mark.parametrize("example", EXPECTED)
def test_partitions_change_nothing_but_the_order_within_a_moment(example: str, tmp_path: Path) -> None:
    description, expected = EXPECTED[example]
    found = outputs(description, Memory(), tmp_path, 3, restart=False)
    assert {moment: sorted(rows) for moment, rows in found.items()} == {
        moment: sorted(rows) for moment, rows in expected.items()
    }


def test_the_layouts_are_those_of_the_matrix() -> None:
    assert [str(TUPLES.layout(side)) for side in ("left", "right")] == ["<eq>_<offset>", "<eq>_<offset>"]
    assert [str(TIMES.layout(side)) for side in ("left", "right")] == ["<eq>_<ts>_<offset>", "<eq>_<ts>_<offset>"]
