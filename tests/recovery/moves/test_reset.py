"""A reset: what it carries, which ids it abandons, what was delivered, and who is fenced by it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.helpers.manifests import following
from tests.helpers.moves import reset_to
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.manifest import Delivered, Ids, SparkPosition
from tidestate.recovery.log.ranges import merged_ranges
from tidestate.recovery.moves.reset import plan_reset
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import FencedError, NotFoundError
from tidestate.statestore.files.refs import FileRef


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """A fence and four batches, each with a pane file; the sink has the panes of up to 3."""
    checkpoint = Checkpoint.open_or_create(tmp_path)
    grow(checkpoint, 5)
    return checkpoint


def grow(checkpoint: Checkpoint, count: int) -> None:
    for _ in range(count):
        head = checkpoint.head()
        number = head.manifest.id + 1 if head else 1
        path = f"panes/windows/{number:020d}-x.parquet"
        checkpoint.objects.put(path, b"1")
        carried = {"abandoned": head.manifest.abandoned, "epoch": head.manifest.epoch} if head else {}
        checkpoint.publish(
            following(
                checkpoint,
                head,
                watermark_us=number,
                totals={"events": number},
                panes=(FileRef(path, 1, "", number),) if number > 1 else (),
                delivered=Delivered(max(0, number - 2)),
                spark=SparkPosition("query", number, (str(number - 1),), (str(number),)),
                **carried,
            )
        )


def test_a_reset_has_all_of_the_chosen_one_and_abandons_what_came_after(checkpoint: Checkpoint) -> None:
    chosen = checkpoint.read(3)
    done = reset_to(checkpoint, 3)
    head = checkpoint.head()
    assert head is not None
    found = head.manifest
    assert (found.id, found.kind, found.parent_id, found.parent) == (6, "reset", 3, chosen.checksum)
    assert (found.watermark_us, found.totals, found.counters) == (3, {"events": 3}, {})
    assert (found.abandoned, found.epoch, found.delivered.panes, found.panes) == (((4, 5),), 2, 3, ())
    assert found.spark is not None
    assert found.spark.query_id != "query"
    assert msgspec.structs.replace(found.spark, query_id="query") == chosen.manifest.spark
    assert done.again == ()
    assert [one.id for one in checkpoint.history()] == [1, 2, 3, 6]
    assert verify(checkpoint).worst is None


def test_panes_that_a_sink_had_come_again(checkpoint: Checkpoint) -> None:
    assert plan_reset(checkpoint, 1).again == ((2, 2), (3, 3))
    assert checkpoint.ids() == [1, 2, 3, 4, 5]


def test_resets_add_up_and_one_goes_back_over_another(checkpoint: Checkpoint) -> None:
    reset_to(checkpoint, 3)  # 6
    grow(checkpoint, 2)
    second = reset_to(checkpoint, 7)  # 9
    assert second.abandoned == ((4, 5), (8, 8))
    assert [one.id for one in checkpoint.history()] == [1, 2, 3, 6, 7, 9]
    undone = reset_to(checkpoint, 5)  # an abandoned one: its line counts again
    assert undone.abandoned == ((6, 9),)
    assert undone.delivered.panes == 3
    assert [one.id for one in checkpoint.history()] == [1, 2, 3, 4, 5, 10]
    assert verify(checkpoint).worst is None


def test_damaged_manifests_are_gone_over_and_their_epochs_are_taken(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for number in (4, 5):
        (tmp_path / manifest_path(number)).write_bytes(b"rubbish")
    done = reset_to(checkpoint, 3)
    assert (done.id, done.manifest.epoch, done.abandoned) == (6, 4, ((4, 5),))
    assert [one.id for one in checkpoint.history()] == [1, 2, 3, 6]
    found = verify(checkpoint)
    assert [(one.kind, one.checkpoint, one.abandoned) for one in found.findings] == [
        ("manifest", 4, True),
        ("manifest", 5, True),
    ]
    assert (found.worst, found.good) == (None, 6)


def test_an_older_run_is_fenced(checkpoint: Checkpoint) -> None:
    old = checkpoint.head()
    reset_to(checkpoint, 3)
    with pytest.raises(FencedError):
        checkpoint.publish(following(checkpoint, old))


def test_a_checkpoint_that_is_not_there(checkpoint: Checkpoint) -> None:
    with pytest.raises(NotFoundError, match="no-such-checkpoint"):
        reset_to(checkpoint, 9)
    collect(checkpoint, CheckpointRetention(newest=2, grace="0 seconds"))
    with pytest.raises(NotFoundError, match="collected"):
        reset_to(checkpoint, 1)


@pytest.mark.parametrize(
    ("ranges", "wanted"),
    [((), ()), (((4, 5), (1, 2)), ((1, 2), (4, 5))), (((1, 3), (4, 5)), ((1, 5),)), (((1, 9), (2, 3)), ((1, 9),))],
)
def test_ranges_join(ranges: tuple[Ids, ...], wanted: tuple[Ids, ...]) -> None:
    assert merged_ranges(ranges) == wanted
