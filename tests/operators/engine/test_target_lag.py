"""A target that lacks what counts as delivered is delivered from there, with a line; one that cannot say is named."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.process import few, in_turn
from tests.helpers.spark_inputs import job, sample
from tidestate.operators import DeliveryId
from tidestate.recovery.log.checkpoint import Checkpoint, now_us
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import CorruptionError, UsageError

BATCHES = sample(8, 60)


@dataclass
class Target:
    """Remembers deliveries, and says what it has; ``down``: that it refuses, so many times or for good."""

    took: list[DeliveryId] = field(default_factory=list)
    behind: int = 0
    down: int = 0
    asked: int = 0

    def __call__(self, _rows: pa.Table, delivery: DeliveryId) -> None:
        self._up()
        self.took.append(delivery)

    def last(self, run: str) -> int | None:
        self.asked += 1
        self._up()
        return max((one.checkpoint for one in self.took if one.run == run), default=0)

    def _up(self) -> None:
        if self.down:
            self.down -= 1
            raise ts.Refused("down")


def run(root: Path, until: int, *sinks: Any, late: Any = None) -> None:
    job().standalone(checkpoint=root, sink=sinks, late_sink=late).run(BATCHES[:until])


def wanted(root: Path) -> list[DeliveryId]:
    return [one.delivery_id for one in Checkpoint.open(root).outputs() if one.panes]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "Target" in one.getMessage()]


@pytest.mark.parametrize(("lost", "behind"), few(in_turn([1, 3, 5], [0, 100]), 1))
def test_a_target_that_lacks_its_newest_is_delivered_from_there(
    lost: int, behind: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, other = Target(behind=behind), Target()
    for until in (4, 8):
        run(tmp_path, until, target, other)
    everything = wanted(tmp_path)
    assert (target.took, len(everything) > 5, lines(caplog)) == (everything, True, [])
    del target.took[-lost:]
    run(tmp_path, 8, target, other)
    assert target.took == everything
    assert other.took == everything, "it lacked nothing"
    (line,) = lines(caplog)
    assert f"lacks what was delivered after checkpoint {everything[-lost - 1].checkpoint}" in line
    run(tmp_path, 8, target, other)
    assert target.took == everything


def test_a_start_without_a_loss_asks_once_and_a_new_root_never(tmp_path: Path) -> None:
    target = Target()
    run(tmp_path, 4, target)
    assert target.asked == 0
    run(tmp_path, 8, target)
    assert target.asked == 1
    assert target.took == wanted(tmp_path)


def test_late_rows_too(tmp_path: Path) -> None:
    target = Target()
    run(tmp_path, 8, late=target)
    everything = [*target.took]
    assert len(everything) > 2
    del target.took[-2:]
    run(tmp_path, 8, late=target)
    assert target.took == everything


def test_one_that_has_nothing_is_new_and_gets_what_follows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path, 4, Target())
    target, before = Target(), wanted(tmp_path)
    run(tmp_path, 8, target)
    assert target.took == wanted(tmp_path)[len(before) :]
    assert "has nothing of what was delivered before" in lines(caplog)[0]


def test_one_that_is_down_at_the_start_is_named_and_asked_when_it_is_offered_something(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target()
    run(tmp_path, 4, target)
    del target.took[-2:]
    target.down = 2
    run(tmp_path, 8, target)
    assert target.took == wanted(tmp_path)
    assert "cannot be asked what it has" in lines(caplog)[0]


def no_package(_run: str) -> int:
    raise UsageError("no package", code="sink-package")


@pytest.mark.parametrize("last", few([lambda _run: None, no_package], 1))
def test_one_that_can_never_say_is_named_and_goes_on(
    last: Callable[[str], int | None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target()
    run(tmp_path, 4, target)
    target.last = last  # type: ignore[method-assign]
    run(tmp_path, 8, target)
    assert target.took == wanted(tmp_path)
    (line,) = lines(caplog)
    assert "cannot be asked what it has" in line


def test_what_was_collected_meanwhile_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = Target()
    run(tmp_path, 8, target)
    everything, checkpoint = [*target.took], Checkpoint.open(tmp_path)
    collect(checkpoint, CheckpointRetention(newest=2, panes="0 seconds", grace="0 seconds"), now_us() + 3_600_000_000)
    assert checkpoint.boundary().panes_gone > everything[2].checkpoint
    run(tmp_path, 8, target)
    assert target.took == everything, "it lacks nothing"
    del target.took[2:]
    with pytest.raises(CorruptionError, match=r"sink-panes-gone.*has="):
        run(tmp_path, 8, target)
    with caplog.at_level(logging.WARNING, "tidestate"):
        run(tmp_path, 8, Target())
    assert "has nothing" in lines(caplog)[-1]


def test_history_that_was_not_to_be_delivered_is_not_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = Target()
    started = job().standalone(checkpoint=tmp_path, sink=target)
    started.bootstrap(BATCHES[0:6], deliver=False)
    assert wanted(tmp_path)
    job().standalone(checkpoint=tmp_path, sink=target).run(BATCHES[6:])
    assert (len(target.took) > 0, lines(caplog)) == (True, [])
