"""The verb doctor: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.command import json_here, tidestate_here
from tests.servers.fuse import Mounted
from tests.servers.fuse import fuse as fuse
from tests.servers.s3 import s3_endpoint as s3_endpoint
from tests.servers.s3 import s3_root as s3_root
from tidestate.recovery.inspect import root_trial


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_trial, "RACING_PROCESSES", 1)


@pytest.mark.slow
def test_a_folder_in_eighty_columns(tmp_path: Path) -> None:
    done = tidestate_here("doctor", tmp_path / "root", columns=80)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert (done.returncode, lines[-1]) == (0, "fit for a root")
    assert max(map(len, lines)) <= 80 or str(tmp_path) in done.stdout
    names = [line.split()[0] for line in lines if line[12:15] in ("yes", "-  ")]
    assert names == ["create", "race", "list", "ranges", "latency", "throughput", "clock", "hosts"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_spark_needs_is_printed_in_eighty_columns(s3_root: str) -> None:
    done = tidestate_here("doctor", s3_root, columns=80)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert (done.returncode, lines[-1]) == (0, "fit for a root")
    assert max(map(len, lines)) <= 80
    assert "spark needs  hadoop-aws" in lines
    title = lines.index("settings of Spark, for its own checkpoint there:")
    assert lines[title + 1].startswith("  spark.jars.packages=org.apache.hadoop:hadoop-aws:")
    assert lines[title + 2].startswith("  spark.hadoop.fs.s3a.endpoint=http://")
    assert lines[title + 4] == ""


@pytest.mark.slow
def test_as_json(tmp_path: Path) -> None:
    (trial,) = json_here("doctor", tmp_path / "root", "--json")
    assert (trial["fit"], trial["create"], trial["root"]) == (True, "link", str(tmp_path / "root"))
    assert trial["checks"][0] == {
        "name": "create",
        "holds": True,
        "found": "a second writer of a name is refused",
        "advice": "",
    }


def test_a_mount_of_a_bucket_is_not_fit(fuse: Mounted) -> None:
    mount = fuse("flights", "fuse.gcsfuse")
    done = tidestate_here("doctor", mount)
    assert done.returncode == 1
    assert "use gs://flights" in done.stdout
    assert done.stdout.splitlines()[-1] == "not fit for a root: create"
    machine = tidestate_here("doctor", mount, "--json")
    assert (machine.returncode, json.loads(machine.stdout)["fit"]) == (1, False)


def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no folder")
    done = tidestate_here("doctor", tmp_path / "file")
    assert (done.returncode, done.stdout) == (5, "")
    assert "[storage]" in done.stderr


def test_what_is_no_root() -> None:
    done = tidestate_here("doctor", "nonsense://x")
    assert (done.returncode, done.stdout) == (5, "")
    assert "[root-url]" in done.stderr
