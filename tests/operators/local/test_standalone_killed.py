"""Real SIGKILL: a process running the standalone runner dies anywhere, and the next one gives exactly the output."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.children.standalone import PARTITIONS, SETTING, store_config, stream
from tests.helpers import evidence
from tests.helpers.forked import Forked
from tests.helpers.process import LONG
from tests.twins import streams
from tests.twins.naive import Twin
from tidestate.statestore.spec.store import StoreName

STORES: tuple[StoreName, ...] = ("memory", "parquet", "rocksdb")


def child(folder: Path, name: StoreName, *death: str) -> Forked:
    return Forked("tests.children.standalone", folder / "root", name, folder / "cache", *death)


def check_exact(root: Path) -> None:
    twin = Twin(SETTING).run(stream())
    assert evidence.panes(root) == [Counter(panes) for panes in twin.panes]
    assert evidence.ledger(root, streams.SCHEMA.names) == Counter(twin.ledger)


def test_the_stream_is_worth_the_trouble() -> None:
    twin = Twin(SETTING).run(stream())
    kinds = Counter(row[-3:-1] for panes in twin.panes for row in panes)
    assert min(kinds["on_time", "emit"], kinds["late", "emit"], kinds["late", "retract"]) > 100
    assert len({row[-2] for row in twin.ledger}) == 2


@pytest.mark.long  # by hand, on RocksDB, in every run: tests.operators.embedded.test_window_operator_killed
@pytest.mark.parametrize("name", STORES if LONG else ["rocksdb"])
def test_killed_anywhere_again_and_again(tmp_path: Path, name: StoreName) -> None:
    chance = random.Random(STORES.index(name))
    for _ in range(4):
        process = child(tmp_path, name)
        for _ in range(chance.randint(1, 9)):
            assert process.stdout.readline() != ""
        time.sleep(chance.uniform(0, 0.02))  # anywhere between two lines
        process.kill()
        rest = process.stdout.read()
        assert process.wait() == -signal.SIGKILL or rest.endswith("done\n")
        process.stdout.close()
    process = child(tmp_path, name)
    output, _ = process.communicate()
    assert process.returncode == 0
    assert output.endswith("done\n")
    assert 1 < evidence.manifests(tmp_path / "root")[-1]["epoch"] <= 5
    check_exact(tmp_path / "root")


@pytest.mark.parametrize("name", STORES if LONG else ["memory"])
def test_killed_between_segments_and_manifest(tmp_path: Path, name: StoreName) -> None:
    root = tmp_path / "root"
    process = child(tmp_path, name, "before-manifest:7")
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert output.endswith("before-manifest 7\n")
    assert len(evidence.manifests(root)) == 6
    written = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    garbage = {path for path in written - evidence.named_files(root) if "/windows/" in path}
    assert any(path.startswith("data/") for path in garbage)
    assert any(path.startswith("panes/") for path in garbage)
    streams.run(SETTING, stream(), root, store_config(name, tmp_path / "cache"), PARTITIONS)
    assert not garbage & evidence.named_files(root)
    check_exact(root)


@pytest.mark.parametrize("name", STORES if LONG else ["parquet"])
def test_killed_after_the_manifest(tmp_path: Path, name: StoreName) -> None:
    root = tmp_path / "root"
    process = child(tmp_path, name, "after-manifest:7")
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert output.endswith("after-manifest 7\n")
    seventh = evidence.manifests(root)[-1]
    assert (seventh["id"], seventh["input"]["batches"]) == (7, 6)
    streams.run(SETTING, stream(), root, store_config(name, tmp_path / "cache"), PARTITIONS)
    assert evidence.manifests(root)[6] == seventh
    check_exact(root)
