"""Windows of offsets of a side that name no start begin at its first offset, which the job records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.bundles import other_needs
from tests.helpers.internals import head_of
from tests.helpers.join_jobs import TIME
from tests.helpers.moves import rewind
from tests.helpers.process import some
from tidestate import Harness, OperatorStream
from tidestate.operators.inspect.query import query
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.moves.rescale import rescale
from tidestate.statestore.errors import IncompatibleError, UsageError
from tidestate.statestore.spec.store import Memory, Parquet, StoreConfig

SECOND = 1_000_000
SCHEMA = pa.schema([("k", pa.string()), ("t", TIME), ("n", pa.int64()), ("part", pa.string())])
BOTH = {"orders": SCHEMA, "shipments": SCHEMA}
Message = tuple[int, int | None]
"""The second of a message, and its offset."""
THREE, FROM_0 = ts.offset_windows(3), ts.offset_windows(3, start=0)
STORES: dict[str, StoreConfig] = {"memory": Memory(), "parquet": Parquet(max_levels=2, snapshot_bytes=1)}


def rows(*messages: Message, part: str | None = "x") -> pa.Table:
    columns = [
        pa.array(["a"] * len(messages), pa.string()),
        pa.array([second * SECOND for second, _ in messages], pa.int64()).cast(TIME),
        pa.array([offset for _, offset in messages], pa.int64()),
        pa.array([part] * len(messages), pa.string()),
    ]
    return pa.table(columns, schema=SCHEMA)


def joined(window: Any = THREE, *, origin: str | None = None, retain: Any = None, **choices: Any) -> OperatorStream:
    orders, shipments = (ts.stream(name, event_time="t", offset="n", origin=origin) for name in BOTH)
    sides = ts.side(window=window, retain=retain)
    return orders.join(shipments, on="k", sides=sides, identity=True, name="pairs", **choices)


def pairs(*panes: pa.Table) -> list[tuple[int, int]]:
    """The offsets of each pair, in order."""
    found = pa.concat_tables(panes)
    return sorted(zip(found["left_n"].to_pylist(), found["right_n"].to_pylist(), strict=True))


def recorded(harness: Harness) -> dict[str, int]:
    """The first offsets in the newest manifest."""
    (operator,) = head_of(harness).operators.values()
    assert operator.progress is not None
    return dict(operator.progress["first_offsets"])


@pytest.mark.parametrize("store", some(STORES, 1))
def test_the_k_th_windows_of_both_sides_belong_together(tmp_path: Path, store: str) -> None:
    """Two logs that are read from different offsets, a message of each in turn."""
    found = {}
    for name, window in (("recorded", THREE), ("named", FROM_0)):
        harness = joined(window).harness(BOTH, store=STORES[store], folder=tmp_path / name, partitions=3)
        panes = []
        for number in range(9):
            batch = {"orders": rows((2 * number, 5 + number)), "shipments": rows((2 * number + 1, 1000 + number))}
            panes.append(harness.feed(batch))
            if number % 2:
                harness.restart()
        panes.append(harness.finish())
        assert recorded(harness) == ({"left": 5, "right": 1000} if name == "recorded" else {})
        found[name] = pairs(*panes)
    # Each message meets those of the other side's newest window of three, as far as it has come.
    expected = [(5 + number, 1000 + other) for number in range(9) for other in newest_three(number - 1)]
    expected += [(5 + other, 1000 + number) for number in range(9) for other in newest_three(number)]
    assert found["recorded"] == sorted(expected)
    assert found["named"] != found["recorded"]


def newest_three(newest: int) -> range:
    """The messages up to the ``newest`` in its window of three, counted from the first message."""
    return range(newest // 3 * 3, newest + 1) if newest >= 0 else range(0)


def test_a_first_offset_stays_through_restart_and_rescale_and_a_rewind_forgets_it(tmp_path: Path) -> None:
    harness = joined(in_order=False).harness(BOTH, folder=tmp_path, partitions=2)
    harness.feed({"shipments": rows((1, 70))})
    before = head_of(harness).id
    harness.feed({"orders": rows((2, 8), (3, 7))})
    assert recorded(harness) == {"left": 7, "right": 70}
    rescale(tmp_path, 3, force=True)
    harness.restart()
    harness.feed({"orders": rows((9, 12)), "shipments": rows((9, 71))})
    assert recorded(harness) == {"left": 7, "right": 70}
    rewind(Checkpoint.open(tmp_path), before, force=True)
    harness.restart()
    harness.feed({"orders": rows((2, 4))})
    assert recorded(harness) == {"left": 4, "right": 70}


def test_it_is_the_smallest_that_has_come_when_the_first_row_is_processed() -> None:
    """Rows are held until the watermark passes them; the order in which they come until then does not matter."""
    harness = joined().harness(BOTH)
    harness.feed({"orders": rows((5, 9))})
    harness.feed({"orders": rows((3, 7))})
    assert recorded(harness) == {"left": 7}
    assert pairs(harness.feed({"shipments": rows((9, 40)), "orders": rows((8, 6), (9, 10))})) == []
    assert recorded(harness) == {"left": 6, "right": 40}
    assert pairs(harness.feed({"shipments": rows((12, 41)), "orders": rows((12, 5))})) == [(9, 40), (10, 40)]
    assert recorded(harness) == {"left": 6, "right": 40}


@pytest.mark.parametrize("retain", [None, ts.Retention(windows=2)])
def test_a_lower_offset_that_comes_later_is_of_a_past_window(retain: Any) -> None:
    harness = joined(in_order=False, retain=retain).harness(BOTH)
    harness.feed({"orders": rows((2, 7)), "shipments": rows((1, 40))})
    found = pairs(harness.feed({"orders": rows((3, 6))}))
    assert recorded(harness) == {"left": 7, "right": 40}
    if retain is None:
        assert found == []
        assert harness.ledger()["reason"].to_pylist() == ["out_of_retention"]
    else:
        assert found == [(6, 40)]


def test_what_is_rejected_is_no_first_offset_and_moves_no_window() -> None:
    """An offset above 2^57 moved the windows of its side for good: no later row met another one."""
    for window in (THREE, FROM_0):
        harness = joined(window, origin="part", in_order=False).harness(BOTH)
        bad = [rows((1, 2**57 + 1)), rows((1, -4)), rows((1, None)), rows((1, 2), part=None)]
        harness.feed({"orders": pa.concat_tables(bad)})
        panes = harness.feed({"orders": rows((2, 4)), "shipments": rows((3, 90))})
        assert harness.ledger()["reason"].to_pylist() == ["bad_offset"] * 4
        assert recorded(harness) == ({"left": 4, "right": 90} if window is THREE else {})
        assert pairs(panes) == [(4, 90)]


def test_a_second_origin_of_a_side_is_refused() -> None:
    harness = joined(origin="part").harness(BOTH)
    harness.feed({"orders": rows((1, 5)), "shipments": rows((1, 9), part="y")})
    with pytest.raises(UsageError, match="several-origins"):
        harness.feed({"orders": rows((1, 5), part="z")})
    harness.feed({"orders": rows((2, 6))})


def test_the_manifest_has_a_step_for_each_window_once_a_first_offset_is_recorded() -> None:
    harness = joined().harness(BOTH)
    many = [(number, 1000 + number) for number in range(1, 600)]
    harness.feed({"orders": rows(*many)})
    assert len(progress(harness)["ahead"]["left"]) > 599 * 16  # the windows are not known before one is passed
    harness.feed({"shipments": rows((1, 1))})
    harness.feed({"shipments": rows((2, 2))})
    assert len(progress(harness)["ahead"]["left"]) < 599 * 16 / 2
    harness.feed({"orders": rows(*((600 + number, 1600 + number) for number in range(600)))})
    assert len(progress(harness)["ahead"]["left"]) < 1199 * 16 / 2


def progress(harness: Harness) -> dict[str, Any]:
    (operator,) = head_of(harness).operators.values()
    assert operator.progress is not None
    return operator.progress


def test_windows_that_began_at_0_stay_there_until_they_are_given_another_start(tmp_path: Path) -> None:
    """Before first offsets were recorded no start meant 0, and was stored so."""
    batch = {"orders": rows((2, 7)), "shipments": rows((1, 40))}
    joined(FROM_0, in_order=False).standalone(checkpoint=tmp_path).run([batch])
    panes = joined(in_order=False).standalone(checkpoint=tmp_path).run([batch, {"orders": rows((3, 8), (4, 9))}])
    head = Checkpoint.open(tmp_path).head()
    assert head is not None
    assert other_needs(head.manifest.needs) == []
    (operator,) = head.manifest.operators.values()
    assert operator.configuration["windows"][0]["kind"] == "offsets"
    assert operator.progress is not None
    assert operator.progress["first_offsets"] == {}
    assert pairs(panes) == [(8, 40), (9, 40)]
    with pytest.raises(IncompatibleError, match=r"start=7.*start=0|start=0.*start=7"):
        joined(ts.offset_windows(3, start=7), in_order=False).standalone(checkpoint=tmp_path).run([batch])
    with pytest.raises(IncompatibleError, match="configuration-changed"):
        joined(ts.offset_windows(4), in_order=False).standalone(checkpoint=tmp_path).run([batch])


def test_an_operator_by_hand_that_began_at_0_stays_there(tmp_path: Path) -> None:
    for window in (FROM_0, THREE):
        with joined(window, origin="part", in_order=False).by_hand(BOTH, checkpoint=tmp_path) as operator:
            operator.add_messages(left=rows((1, 7), part=str(window.from_first)))
            operator.flush()
            assert bounds(operator.get_windows("left"))[0] == (6, 9)


def test_a_root_that_records_them_names_the_need_and_takes_no_start(tmp_path: Path) -> None:
    batch = {"orders": rows((2, 7)), "shipments": rows((1, 40))}
    joined(in_order=False).standalone(checkpoint=tmp_path).run([batch])
    head = Checkpoint.open(tmp_path).head()
    assert head is not None
    assert other_needs(head.manifest.needs) == ["first-offsets/1"]
    with pytest.raises(IncompatibleError, match="configuration-changed"):
        joined(FROM_0, in_order=False).standalone(checkpoint=tmp_path).run([batch])


def test_windows_that_are_read_begin_there(tmp_path: Path) -> None:
    harness = joined(in_order=False, retain=ts.Retention(windows=5)).harness(BOTH, folder=tmp_path)
    harness.feed({"orders": rows((1, 7), (2, 9), (3, 10)), "shipments": rows((1, 40))})
    asked = query(tmp_path, operator="pairs")
    assert bounds(asked.get_windows(side="left")) == [(7, 10), (10, 13)]
    assert bounds(asked.get_windows(side="right")) == [(40, 43)]
    operator = joined(in_order=False, retain=ts.Retention(windows=5)).by_hand(BOTH, checkpoint=tmp_path / "by-hand")
    operator.add_messages(left=rows((1, 7), (2, 9), (3, 10)), right=rows((1, 40)))
    assert bounds(operator.get_windows("left")) == [(7, 10), (10, 13)]


def bounds(windows: pa.Table) -> list[tuple[int, int]]:
    return list(zip(windows["window_start"].to_pylist(), windows["window_end"].to_pylist(), strict=True))


def test_windows_of_one_stream_start_at_0() -> None:
    log = ts.stream("log", offset="n").group_by("k").window(THREE).aggregate(n=ts.agg.count())
    panes = log.harness(SCHEMA).feed(rows((1, 7), (1, 8), (1, 9)))
    assert panes["window_start"].to_pylist() == [6]
    assert "window(offset_windows(3))" in repr(log)
