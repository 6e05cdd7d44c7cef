"""An operator by hand: who takes over from whom, and a start over a damaged checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tidestate as ts
from tests.helpers.moves import rewind
from tests.helpers.operator_messages import (
    STORES,
    Message,
    Receiver,
    description,
    expected,
    operator,
    plain,
    store_config,
    stream,
    table,
    take,
)
from tests.helpers.process import few, some
from tidestate.operators import Policy
from tidestate.operators.engine.delivery import read_rows
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.statestore.errors import CorruptionError, FencedError, UsageError
from tidestate.statestore.spec.store import StoreName

JOB = description(ts.tumbling("6 seconds"))


def output(root: Path) -> list[object]:
    """Panes that count."""
    checkpoint = Checkpoint.open(root)
    refs = [ref for one in checkpoint.outputs() for ref in one.panes]
    schema = pq.read_schema(checkpoint.objects.locate(refs[0].path))
    return sorted((row for ref in refs for row in plain(read_rows(checkpoint, (ref,), schema))), key=repr)


def undisturbed(batches: Sequence[list[Message]], root: Path) -> list[object]:
    return sorted(expected(JOB, batches, root)[0], key=repr)


def give(root: Path, store: StoreName, batches: Sequence[list[Message]], policy: Policy | None = None) -> Receiver:
    receiver = Receiver()
    with operator(JOB, root, store_config(store, root.parent / "cache"), policy=policy) as running:
        for batch in batches:
            running.add_messages(table(batch))
            take(running, receiver)
            running.flush()
    return receiver


@pytest.mark.slow
def test_a_second_one_is_refused_or_takes_over(tmp_path: Path) -> None:
    store, batches = store_config("parquet", tmp_path / "cache"), stream(1, 6)
    with operator(JOB, tmp_path / "root", store) as first:
        first.add_messages(table(batches[0]))
        first.flush()
        before = Checkpoint.open(tmp_path / "root").ids()
        with pytest.raises(UsageError, match="running"):
            operator(JOB, tmp_path / "root", store, policy=ts.Policy(second="refuse"))
        assert Checkpoint.open(tmp_path / "root").ids() == before
        first.add_messages(table(batches[1]))
        first.flush()
        with operator(JOB, tmp_path / "root", store) as second:
            with pytest.raises(FencedError):
                first.drain()
            for batch in batches[2:]:
                second.add_messages(table(batch))
            second.drain()
    assert output(tmp_path / "root") == undisturbed(batches, tmp_path / "twin")
    operator(JOB, tmp_path / "root", store, policy=ts.Policy(second="refuse")).close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "store"), few([("manifest", "parquet"), ("state", "memory"), ("state", "rocksdb")], 0)
)
def test_a_damaged_newest_checkpoint_is_gone_back_over(tmp_path: Path, store: StoreName, what: str) -> None:
    root, batches = tmp_path / "root", stream(2, 8)
    had = give(root, store, batches[:6])
    checkpoint = Checkpoint.open(root)
    head = checkpoint.head()
    assert head is not None
    paths = {ref.path for part in head.manifest.operators["windows"].partitions for ref in part.files}
    earlier = checkpoint.read(head.manifest.id - 3).manifest
    older = {ref.path for part in earlier.operators["windows"].partitions for ref in part.files}
    path = root / (manifest_path(head.manifest.id) if what == "manifest" else min(paths - older))
    path.write_bytes(path.read_bytes()[:-20])
    if what == "manifest":
        with pytest.raises(CorruptionError):
            give(root, store, [])
    again = give(root, store, batches, ts.Policy(damaged="reset"))
    with operator(JOB, root, store_config(store, tmp_path / "cache")) as running:
        running.drain()
        take(running, again)
    reset = next(one for one in Checkpoint.open(root).history() if one.kind == "reset")
    assert reset.abandons(head.manifest.id)
    panes = undisturbed(batches, tmp_path / "twin")
    assert output(root) == panes
    # A receiver that takes back what it has of abandoned checkpoints has every pane once.
    kept = {number: rows for number, rows in had.taken.items() if not reset.abandons(number.checkpoint)} | again.taken
    assert sorted((row for rows in kept.values() for row in rows), key=repr) == panes


@pytest.mark.slow
@pytest.mark.parametrize("store", some(STORES, 1))
@pytest.mark.long
def test_rewound_it_takes_the_messages_again(tmp_path: Path, store: StoreName) -> None:
    root, batches = tmp_path / "root", stream(3, 8)
    give(root, store, batches[:7])
    rewind(Checkpoint.open(root), 5)
    give(root, store, batches)
    with operator(JOB, root, store_config(store, tmp_path / "cache")) as running:
        running.drain()
    assert output(root) == undisturbed(batches, tmp_path / "twin")
