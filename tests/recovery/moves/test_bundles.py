"""Roots with bundles, some beside files that are each alone: verbs do what they do where all files are alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.faults.damage.verbs import state_of, went
from tests.helpers.bundles import files_alone
from tests.helpers.moves import fork, reset_to
from tests.helpers.worked_example import STREAM, batch, example
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log import manifest_file
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.pins import pin
from tidestate.recovery.moves.repair import plan_repair
from tidestate.recovery.moves.rescale import rescale
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.errors import IncompatibleError
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.spec.store import Parquet

OFTEN = Parquet(max_levels=3)
MORE = [batch([(46 + n, "abc"[n % 3], n), (31, "abcd"[n], 1), (52 + n, "d", n)]) for n in range(4)]
WHOLE = [*STREAM, *MORE]


def run(root: Path, batches: int, *, partitions: int = 2) -> None:
    example("retracting").standalone(checkpoint=root, store=OFTEN, partitions=partitions).run(WHOLE[:batches])


def refs(root: Path, number: int | None = None) -> list[FileRef]:
    return Checkpoint.open(root).chosen(number).manifest.operators["windows"].files


def forked(root: Path) -> Path:
    target = root.with_name(f"{root.name}-fork")
    fork(root, target)
    return target


def rescaled(root: Path) -> Path:
    rescale(root, 3)
    return root


def rewound(root: Path) -> Path:
    reset_to(Checkpoint.open(root), 5)
    return root


def collected(root: Path) -> Path:
    pin(Checkpoint.open(root), 5, "release")
    collect(Checkpoint.open(root), CheckpointRetention(newest=1, grace="0 seconds"))
    assert verify(Checkpoint.open(root), read_percent=100).findings == ()
    return root


VERBS: dict[str, Callable[[Path], Path]] = {
    "fork": forked,
    "rescale": rescaled,
    "rewind": rewound,
    "collect": collected,
    "collect and rewind": lambda root: rewound(collected(root)),
    "rescale and fork": lambda root: forked(rescaled(root)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_and_the_job_after_it_do_what_they_did_without_bundles(tmp_path: Path, verb: str) -> None:
    found: list[Any] = []
    for name in ("alone", "mixed"):
        root = tmp_path / name
        with files_alone():
            run(root, 4)
        with files_alone() if name == "alone" else mock.MagicMock():
            run(root, 8)
            root = VERBS[verb](root)
            before = state_of(str(root))
            run(root, len(WHOLE))
        assert verify(Checkpoint.open(root), read_percent=100).findings == ()
        found.append((before, went(str(root))))
        has_bundles = any(ref.bundle_bytes for ref in refs(root))
        assert has_bundles == (name == "mixed")
    assert found[0] == found[1]


def test_the_first_checkpoint_with_a_bundle_says_what_a_reader_needs(tmp_path: Path) -> None:
    with files_alone():
        run(tmp_path, 4)
    run(tmp_path, 8)
    manifests = [read().manifest for _, read in Checkpoint.open(tmp_path).load_each(Checkpoint.open(tmp_path).ids())]
    has_bundles = [any(ref.bundle_bytes for ref in one.operators["windows"].files) for one in manifests]
    named = ["bundles/1" in one.needs for one in manifests]
    first = has_bundles.index(True)
    assert named == [False] * first + [True] * (len(named) - first)
    older = {name: text for name, text in manifest_file.CAPABILITIES.items() if name != "bundles/1"}
    with mock.patch.object(manifest_file, "CAPABILITIES", older):
        with pytest.raises(IncompatibleError) as error:
            Checkpoint.open(tmp_path).chosen(None)
        assert error.value.code == "newer-version"
        assert Checkpoint.open(tmp_path).chosen(manifests[first - 1].id).manifest == manifests[first - 1]
    reset_to(Checkpoint.open(tmp_path), manifests[first - 1].id)
    assert "bundles/1" not in Checkpoint.open(tmp_path).chosen(None).manifest.needs


def test_a_bundle_that_is_gone_is_one_finding_and_the_way_back_is_before_it(tmp_path: Path) -> None:
    run(tmp_path, 7)
    newest = Checkpoint.open(tmp_path).chosen(None).manifest
    lost = next(ref for ref in refs(tmp_path) if ref.bundle_bytes and ref.first == newest.id)
    parts = [ref for ref in refs(tmp_path) if ref.path == lost.path]
    assert len(parts) > 1
    (tmp_path / lost.path).unlink()
    report = verify(Checkpoint.open(tmp_path))
    assert [(finding.kind, finding.path, finding.checkpoint) for finding in report.findings] == [
        ("file", lost.path, newest.id)
    ]
    repair = plan_repair(Checkpoint.open(tmp_path))
    assert [finding.path for finding in repair.findings] == [lost.path]
    assert repair.reset is not None
    assert repair.reset.to == report.good == newest.id - 1


def test_a_collection_keeps_a_bundle_while_one_part_of_it_is_named(tmp_path: Path) -> None:
    parts, partly_needed = set[FileRef](), 0
    # When a window closes, its slice is gone, and the window that closed before it is retained still.
    events = [batch([(time, "a", 1), (time, "b", 1)]) for time in (1, 13, 24, 26, 35, 47)]
    for batches in range(1, 7):
        example("retracting").standalone(checkpoint=tmp_path, partitions=1).run(events[:batches])
        needed = {ref.path for ref in refs(tmp_path)}
        parts |= {ref for number in Checkpoint.open(tmp_path).ids() for ref in refs(tmp_path, number)}
        partly_needed += any(ref.path in needed and ref not in refs(tmp_path) for ref in parts)
        collect(Checkpoint.open(tmp_path), CheckpointRetention(newest=1, grace="0 seconds"))
        assert {str(path.relative_to(tmp_path)) for path in (tmp_path / "data").rglob("*.*")} == needed
        assert verify(Checkpoint.open(tmp_path), read_percent=100).findings == ()
    assert partly_needed
