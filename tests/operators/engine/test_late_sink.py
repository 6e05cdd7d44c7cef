"""The late ledger as a sink has it: each row once, by operator, whatever dies, is rewound, forked or added later."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.click_chains import clicks, per_user
from tests.helpers.command import tidestate
from tests.helpers.moves import fork, rewind
from tests.helpers.worked_example import STREAM, batch, example
from tidestate.operators.engine import delivery
from tidestate.recovery.log.acknowledgements import DELIVERED_FOLDER, delivered
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Delivered, DeliveryId
from tidestate.recovery.moves.repair import plan_repair
from tidestate.recovery.moves.rescale import rescale
from tidestate.recovery.moves.reset_plan import ResetPlan
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import UsageError

LATE = [
    batch([(1, "a", 1), (30, "a", 1)]),  # W: 28
    batch([(2, "b", 2), (60, "a", 1)]),  # b is mildly late; W: 58
    batch([(3, "a", 3), (4, "a", 4), (90, "a", 1)]),
    batch([(5, "b", 5), (None, "a", 1)]),
    batch([(6, "a", 6)]),
]
"""Each batch from the third on has rows for the ledger."""


class Receiver:
    """Has every row once: it takes a delivery when its run has not got so far. It may be both sinks of a job."""

    def __init__(self) -> None:
        self.highest: dict[str, int] = {}
        self.rows: Counter[tuple[str, evidence.Row]] = Counter()
        self.offered: list[DeliveryId] = []

    def __call__(self, rows: pa.Table, delivery_id: DeliveryId) -> None:
        self.offered.append(delivery_id)
        if delivery_id.checkpoint > self.highest.get(delivery_id.run, 0):
            self.rows += Counter((delivery_id.operator, row) for row in evidence.plain(rows))
            self.highest[delivery_id.run] = delivery_id.checkpoint


def run(root: Path, late: Any, batches: list[pa.Table] = LATE, sink: Any = None, **options: Any) -> None:
    example("retracting").standalone(checkpoint=root, sink=sink, late_sink=late).run(batches, **options)


def ledgers(root: Path) -> Counter[tuple[str, evidence.Row]]:
    """The ledger rows that count, by operator, as the files have them."""
    refs = [{"path": ref.path} for one in Checkpoint.open(root).outputs() for ref in one.late]
    return Counter((ref["path"].split("/")[1], row) for ref in refs for row in evidence.rows(root, [ref]))


def test_the_ledger_is_delivered_next_to_the_panes_by_one_function(tmp_path: Path) -> None:
    both = Receiver()
    run(tmp_path, both, sink=both, drain=True)
    assert Counter({one: n for one, n in both.rows.items() if one[0]}) == ledgers(tmp_path)
    panes = sum(evidence.panes(tmp_path), Counter())
    assert Counter({row: n for (name, row), n in both.rows.items() if not name}) == panes
    assert len(both.offered) == len({*both.offered}) == len({*map(str, both.offered)})
    names = {one.operator for one in both.offered}
    assert names == {"", "windows"}
    head = Checkpoint.open(tmp_path).head()
    assert head is not None
    assert delivered(Checkpoint.open(tmp_path), head.manifest) == Delivered(head.manifest.id, head.manifest.id, True)
    assert head.manifest.delivered == Delivered(head.manifest.id - 1, head.manifest.id - 1, True)


def test_each_operator_of_a_chain_has_deliveries_of_its_own(tmp_path: Path) -> None:
    late, tables = Receiver(), list[tuple[str, list[str]]]()

    def sink(rows: pa.Table, one: DeliveryId) -> None:
        tables.append((one.operator, rows.column_names))
        late(rows, one)

    batches = [clicks((1, "a", "nl", 5), (7300, "a", "nl", 5)), clicks((2, "z", "nl", 1), (3700, "y", "nl", 1))]
    described = ts.union(*(per_user(name=name).timed_by("window_end") for name in ("first", "second")))
    described.standalone(checkpoint=tmp_path, late_sink=sink).run([*batches, clicks((3, "x", "nl", 1))], drain=True)
    assert late.rows == ledgers(tmp_path)
    assert {name for name, _ in tables} == {"first", "second"}
    assert len({*late.offered}) == len(late.offered) > 2


class Breakdown(Exception):
    """What a sink raises that is broken: it ends the job."""


@pytest.mark.parametrize("after", [False, True], ids=["before it took it", "after it took it"])
def test_a_late_sink_that_breaks_gets_the_same_again_and_the_panes_are_not_repeated(
    tmp_path: Path, after: bool
) -> None:
    panes, late = Receiver(), Receiver()
    broken = iter([True, False, True])

    def breaks(rows: pa.Table, one: DeliveryId) -> None:
        if after:
            late(rows, one)
        if next(broken, False):
            raise Breakdown
        if not after:
            late(rows, one)

    for _ in range(2):
        with pytest.raises(Breakdown):
            run(tmp_path, breaks, sink=panes, drain=True)
    run(tmp_path, breaks, sink=panes, drain=True)
    assert late.rows == ledgers(tmp_path)
    assert len(panes.offered) == len({*panes.offered})
    assert len(late.offered) - len({*late.offered}) == (2 if after else 0)


def test_a_late_sink_that_refuses_holds_the_intake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PAUSE_S", 0.001)
    late, offers, batches_at = Receiver(), list[int](), list[int]()

    def sink(rows: pa.Table, one: DeliveryId) -> bool:
        offers.append(len(evidence.manifests(tmp_path)))
        if len(offers) % 3 == 1:
            return False
        if len(offers) % 3 == 2:
            raise ts.Refused("not now")
        late(rows, one)
        batches_at.append(one.checkpoint)
        return True

    run(tmp_path, sink, drain=True)
    assert late.rows == ledgers(tmp_path)
    assert offers == [one for one in batches_at for _ in range(3)], "no checkpoint while it refuses"


def test_one_that_is_added_later_gets_all_that_is_left_of_the_ledger(tmp_path: Path) -> None:
    panes, late = Receiver(), Receiver()
    run(tmp_path, None, LATE[:4], sink=panes)
    had = len(panes.offered)
    run(tmp_path, late, sink=panes, drain=True)
    assert late.rows == ledgers(tmp_path)
    assert len(panes.offered) - had <= 2, "panes are not offered again with them"
    again = Receiver()
    run(tmp_path, again)
    assert again.offered == []


def test_without_its_record_the_last_rows_come_again_under_the_same_id(tmp_path: Path) -> None:
    late, again = Receiver(), Receiver()
    run(tmp_path, late)
    shutil.rmtree(tmp_path / DELIVERED_FOLDER)  # as if it had died with the last delivery
    run(tmp_path, again)
    assert again.offered == late.offered[-1:]
    assert again.rows == ledgers(tmp_path) - (ledgers(tmp_path) - again.rows)


def test_rewound_rows_come_again_under_new_ids_and_the_plan_lists_them(tmp_path: Path) -> None:
    late = Receiver()
    run(tmp_path, late)
    before = late.rows.copy()
    planned = ResetPlan.of_rewind(Checkpoint.open(tmp_path), 4)
    assert planned.replay is not None
    assert planned.reset is not None
    assert [(one.checkpoint, one.delivered) for one in planned.replay.late] == [(5, True), (6, True)]
    assert [number for number, _ in planned.reset.again] == [5, 6]
    assert "late rows up to checkpoint 6" in " ".join(tidestate("show", tmp_path).stdout.split())
    done = tidestate("rewind", tmp_path, "--to", 4)
    assert "repeats        3 late rows of 2 checkpoints, already delivered to the late sink" in done.stdout
    rewind(Checkpoint.open(tmp_path), 4)
    run(tmp_path, late)
    assert len(late.offered) == len({*late.offered})
    assert late.rows == before + (ledgers(tmp_path) - ledgers_up_to(tmp_path, 4))


def ledgers_up_to(root: Path, last: int) -> Counter[tuple[str, evidence.Row]]:
    refs = [{"path": ref.path} for one in Checkpoint.open(root).outputs(0, last) for ref in one.late]
    return Counter(("windows", row) for ref in refs for row in evidence.rows(root, [ref]))


def test_a_fork_delivers_its_own_rows_and_a_rescale_none_twice(tmp_path: Path) -> None:
    root, late = tmp_path / "root", Receiver()
    run(root, late, LATE[:4])
    fork(root, tmp_path / "fork", 5)
    rescale(root, 3)
    run(root, late)
    assert late.rows == ledgers(root)
    assert len(late.offered) == len({*late.offered})
    run(tmp_path / "fork", late)
    assert late.rows == ledgers(root) + ledgers(tmp_path / "fork")
    assert len(late.offered) == len({*late.offered})


def test_a_ledger_that_a_late_sink_has_yet_to_accept_is_kept_and_without_one_its_age_decides(tmp_path: Path) -> None:
    """What is due to a late sink also has to be intact when a checkpoint is repaired."""
    aged = CheckpointRetention(newest=1, grace="0 seconds", panes="0 seconds")

    def never(_rows: pa.Table, _id: DeliveryId) -> None:
        raise Breakdown

    late, root = Receiver(), tmp_path / "kept"
    run(root, late, LATE[:3])
    with pytest.raises(Breakdown):
        run(root, never)
    done = collect(Checkpoint.open(root), aged)
    assert 0 < done.late_gone < 6
    assert done.unacknowledged > 0
    assert plan_repair(Checkpoint.open(root)).reset is None
    run(root, late, drain=True)
    assert sum(late.rows.values()) == 6

    with pytest.raises(Breakdown):
        run(tmp_path / "dropped", never)
    run(tmp_path / "dropped", None)
    assert collect(Checkpoint.open(tmp_path / "dropped"), aged).late_gone > 5, "this run has no late sink"
    run(tmp_path / "dropped", late := Receiver(), drain=True)
    assert late.offered == []


def test_history_that_is_not_to_be_delivered_goes_to_no_late_sink(tmp_path: Path) -> None:
    late = Receiver()
    started = example().standalone(checkpoint=tmp_path, late_sink=late)
    started.bootstrap(batch([(1, "a", 1), (None, "a", 1)]), deliver=False)
    started.run(STREAM)
    assert all(one.checkpoint > 2 for one in late.offered)
    assert late.rows == ledgers(tmp_path) - ledgers_up_to(tmp_path, 2)
    assert ledgers_up_to(tmp_path, 2)


def test_a_sink_is_a_function_and_its_ready_one_too(tmp_path: Path) -> None:
    class Odd:
        ready = True

        def __call__(self, rows: pa.Table, one: DeliveryId) -> None: ...

    for sink in (Odd(), "sink"):
        with pytest.raises(UsageError, match=r"\[sink\]"):
            example().standalone(checkpoint=tmp_path, late_sink=sink)  # type: ignore[arg-type]


def test_a_harness_delivers_its_ledger(tmp_path: Path) -> None:
    late = Receiver()
    tested = example().harness(LATE[0].schema, folder=tmp_path, late_sink=late)
    for one in LATE:
        tested.feed(one)
    assert late.rows == ledgers(tmp_path) == Counter(("windows", row) for row in evidence.plain(tested.ledger()))
