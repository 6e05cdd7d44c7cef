"""A root that is tried before a job relies on it: storage that is fit, and storage with one fault each."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from zipfile import ZipFile

import pytest

from tests.servers.packages import SPARK_JARS
from tests.servers.s3 import Proxy
from tests.servers.s3 import s3_endpoint as s3_endpoint
from tests.servers.s3 import s3_front as s3_front
from tests.servers.s3 import s3_proxy as s3_proxy
from tests.servers.s3 import s3_root as s3_root
from tidestate.recovery.inspect import root_trial
from tidestate.recovery.inspect.root_trial import RootTrial, TrialCheck, try_root
from tidestate.statestore.errors import UnavailableError, UsageError
from tidestate.statestore.storage import options as storage_options
from tidestate.statestore.storage.dialects.gcs import GCS
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.racer import racer_content

ALL = ["create", "race", "list", "ranges", "latency", "throughput", "clock", "hosts"]


def found(trial: RootTrial, name: str) -> TrialCheck:
    return next(check for check in trial.checks if check.name == name)


def failed(trial: RootTrial) -> dict[str, str]:
    """What does not hold, with what was found: a failing test prints it."""
    return {check.name: check.found for check in trial.checks if check.holds is False}


@pytest.mark.slow
def test_a_folder_that_is_not_there_yet_is_fit_and_left_as_it_was(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    trial = try_root(str(tmp_path / "new" / "root"), lambda *progress: told.append(progress))
    assert failed(trial) == {}
    assert trial.summary == "fit for a root"
    assert [check.name for check in trial.checks] == ALL
    assert told == [("checks", number, len(ALL)) for number in range(1, len(ALL) + 1)]
    assert "12 writers each" in found(trial, "race").found
    assert list(tmp_path.iterdir()) == []


def test_what_a_root_has_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_trial, "RACING_PROCESSES", 1)
    Objects(tmp_path).put("probe/of-another", b"kept")
    assert failed(try_root(str(tmp_path))) == {}
    assert [path.name for path in tmp_path.rglob("*")] == ["probe", "of-another"]


@pytest.mark.long
def test_a_bucket_is_fit_and_left_as_it_was(s3_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_trial, "RACING_PROCESSES", 1)
    trial = try_root(s3_root)
    assert failed(trial) == {}
    assert (trial.storage, trial.create) == ("s3", "if-none-match")
    assert trial.spark_url.startswith("s3a://")
    assert Objects(s3_root).names("") == []


NEEDED = {
    "s3://b/x": ("hadoop-aws", "hadoop-aws:3.9.9", "fs.s3a.endpoint=http://host:1"),
    "gs://b/x": ("gcs-connector", "gcs-connector:hadoop3-", "fs.gs.storage.root.url=http://host:1"),
    "abfs://c@me.dfs.core.windows.net/x": ("hadoop-azure", "hadoop-azure:3.9.9", "key.me.dfs.core.windows.net=KEY"),
}


@pytest.mark.slow
@pytest.mark.parametrize("root", NEEDED)
def test_what_spark_needs(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connector, package, last = NEEDED[root]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://host:1")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://host:1")
    monkeypatch.setattr(root_trial, "_hadoop_version", lambda: "3.9.9")
    objects = Objects(root, copies=str(tmp_path / "copies"))
    assert root_trial._needs(objects) == connector
    settings = root_trial._settings(objects)
    assert all(setting.startswith("spark.") and "=" in setting for setting in settings)
    assert package in settings[0]
    assert any(setting.endswith(last) for setting in settings)
    for name in ("AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name)
    assert not [setting for setting in root_trial._settings(objects) if "http" in setting]


def test_googles_connector_gets_no_default_of_hadoop_in_words() -> None:
    """Such as ``64m``, which it takes for a number, and ends with an error of Java's."""
    (jar,) = SPARK_JARS.glob("hadoop-client-api-*.jar")
    with ZipFile(jar) as classes:
        defaults = ElementTree.fromstring(classes.read("core-default.xml"))
    pairs = {entry.findtext("name", ""): entry.findtext("value") or "" for entry in defaults.iter("property")}
    words = {name for name, text in pairs.items() if name.startswith("fs.gs.") and re.fullmatch(r"\d+[kmg]", text)}
    ours = {setting.partition("=")[0].removeprefix("spark.hadoop.") for setting in GCS.spark_settings}
    assert words - ours == set()
    assert "fs.AbstractFileSystem.gs.impl" in ours


def test_what_spark_needs_where_it_has_the_file_system(tmp_path: Path) -> None:
    roots = (str(tmp_path), "hdfs://ns/x", "dbfs:///Volumes/main/jobs/flights/x")
    needs = [root_trial._needs(Objects(root)) for root in roots]
    assert needs[0] == "nothing more"
    assert needs[1].startswith("the address of the name node")
    assert needs[2].startswith("Databricks")
    assert [root_trial._settings(Objects(root)) for root in roots] == [()] * 3
    assert root_trial._hadoop_version().count(".") == 2


@pytest.mark.slow
def test_options_reach_the_processes_of_the_race(s3_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_trial, "RACING_PROCESSES", 1)
    monkeypatch.setattr(storage_options, "_given", {})
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], "key": "testing", "secret": "a-secret-of-nobody"}
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    trial = try_root(s3_root, storage_options=options)
    assert failed(trial) == {}
    assert f"spark.hadoop.fs.s3a.endpoint={options['endpoint_url']}" in trial.spark_settings
    assert options["secret"] not in str(trial.plain())


def test_a_bucket_that_knows_no_condition_is_not_fit(s3_proxy: Proxy, s3_root: str) -> None:
    s3_proxy.careless = True
    trial = try_root(f"{s3_root}/careless")
    assert list(failed(trial)) == ["create"]
    assert "no-atomic-create" in found(trial, "create").found
    assert Objects(s3_root).names("") == []


def test_storage_that_cannot_be_asked_is_an_error(s3_root: str) -> None:
    with pytest.raises(UnavailableError, match="no such bucket"):
        try_root("s3://a-bucket-that-nobody-has/root")


def test_what_is_no_root_is_an_error() -> None:
    with pytest.raises(UsageError, match="root-url"):
        try_root("nonsense://x")


def test_memory_is_raced_for_by_threads() -> None:
    trial = try_root("memory://doctor")
    assert trial.fit
    assert "4 writers each" in found(trial, "race").found
    assert "for tests" in found(trial, "hosts").advice


def test_what_may_not_be_deleted_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_objects: Objects, folder: str) -> None:
        raise UnavailableError("access denied", code="storage", path=folder)

    monkeypatch.setattr(root_trial, "RACING_PROCESSES", 1)
    monkeypatch.setattr(Objects, "clear", refuses)
    trial = try_root(str(tmp_path))
    assert [check.name for check in trial.checks] == [*ALL, "clean-up"]
    (folder,) = (tmp_path / "probe").iterdir()
    assert folder.name in found(trial, "clean-up").found
    assert "by hand" in found(trial, "clean-up").advice


def overwrites(objects: Objects, path: str, data: bytes) -> None:
    target = Path(objects.root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def test_a_second_create_that_succeeds_is_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Objects, "create", overwrites)
    trial = try_root(str(tmp_path))
    assert [check.name for check in trial.checks] == ["create"]
    assert trial.summary == "not fit for a root: create"


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "list": ("names", lambda _objects, _folder, hidden=False: []),
    "ranges": ("open_input", lambda _objects, _path: io.BytesIO(bytes(1 << 20))),
    "throughput": ("read", lambda _objects, _path: b"first"),
}


@pytest.mark.parametrize("check", FAULTS)
def test_a_fault_of_storage_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    left_out = TrialCheck("race", holds=True, found="left out")
    monkeypatch.setitem(root_trial._STEPS, "race", lambda _objects, _folder: left_out)
    method, fault = FAULTS[check]
    monkeypatch.setattr(Objects, method, fault)
    assert list(failed(try_root(str(tmp_path)))) == [check]


def test_winners_are_counted_by_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Objects(tmp_path)

    def raced(outcomes: dict[tuple[str, int], dict[str, str]]) -> str:
        monkeypatch.setattr(root_trial, "_in_processes", lambda _objects, _folder: outcomes)
        return root_trial._raced(objects, "x").found

    names = [str(number) for number in range(root_trial.RACED_NAMES)]
    for name in names:
        objects.put(f"x/race/{name}", racer_content("0", 1))
    every = dict.fromkeys(names, "")
    assert "won once" in raced({("0", 0): {}, ("0", 1): every})
    assert "8 names were won by several" in raced({("0", 0): every, ("0", 1): every})
    assert "8 names have the bytes of others" in raced({("0", 0): every, ("0", 1): {}})
    assert "some were won by nobody" in raced({("0", 0): {}, ("0", 1): {}})
    assert "1 failed, such as: refused" in raced({("0", 0): {"0": "refused"}, ("0", 1): every})


def test_a_racer_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    told = found(try_root(str(tmp_path)), "race").found
    assert "a process of the race has died (exit code 1): it printed nothing" in told


@pytest.mark.slow
def test_racers_import_what_this_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root_trial, "RACING_PROCESSES", 1)
    stranger = tmp_path / "stranger" / "tidestate"
    stranger.mkdir(parents=True)
    (stranger / "__init__.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(stranger.parent)
    monkeypatch.setenv("PYTHONHASHSEED", "no number")
    monkeypatch.setenv("PYTHONPATH", str(stranger.parent))
    assert failed(try_root(str(tmp_path / "root"))) == {}


@pytest.mark.parametrize(
    ("ahead_s", "said", "advised"), [(0, "agrees", False), (-5, "5.0 s behind", False), (3600, "s ahead of", True)]
)
def test_the_clock_of_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: int, said: str, advised: bool
) -> None:
    put = Objects.put

    def stamped(objects: Objects, path: str, data: bytes) -> None:
        put(objects, path, data)
        target = Path(objects.root, path)
        changed_ns = target.stat().st_mtime_ns + ahead_s * 10**9
        os.utime(target, ns=(changed_ns, changed_ns))

    monkeypatch.setattr(Objects, "put", stamped)
    check = root_trial._clock(Objects(tmp_path), "clock")
    assert said in check.found
    assert bool(check.advice) == advised
