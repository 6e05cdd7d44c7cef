"""Boundaries, pins and manifests of no good will, asked by the verbs that keep, collect and rescale."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.hostile import POOL, changed, check_answers, manifest_of, places, put, run, untouched
from tests.helpers.process import LONG, SCRATCH
from tests.helpers.worked_example import STREAM, example
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path, now_us
from tidestate.recovery.log.lease import Lease, this_process
from tidestate.recovery.log.manifest import is_pin
from tidestate.recovery.log.pins import pin
from tidestate.recovery.log.records import boundary_path, pin_path
from tidestate.recovery.retention.collection import collect
from tidestate.recovery.retention.rules import CheckpointRetention
from tidestate.statestore.checksums import checksum

VERBS = [
    ["list"],
    ["show"],
    ["panes"],
    ["late"],
    ["verify", "--json"],
    ["gc", "--newest", "1", "--grace", "0s"],
    ["gc", "--newest", "1", "--grace", "0s", "--panes", "0s", "--json"],
    ["rescale", "--partitions", "3"],
    ["restore"],
    ["restore", "--at", "3", "--store", "rocksdb"],
    ["rewind", "--to", "6"],
    ["history", "--key", "k=a", "--window", "1970-01-01T00:00:05"],
]
SOME = st.lists(st.sampled_from(VERBS), min_size=5, max_size=5, unique_by=tuple)
BOUNDARY, PIN = boundary_path(1), pin_path("mine")


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A root of which the first checkpoints were collected, but for one that is pinned."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-", dir=SCRATCH))
    example("retracting").standalone(checkpoint=folder / "root", partitions=2).run(STREAM)
    checkpoint = Checkpoint.open(folder / "root")
    pin(checkpoint, 3, "mine", note="kept")
    assert collect(checkpoint, CheckpointRetention(newest=3, grace="0 seconds")).pinned == (3,)
    yield folder / "root"
    shutil.rmtree(folder)


def sealed(body: bytes) -> bytes:
    return b'{"checksum":"%s",\n"record":%s}\n' % (checksum(body).encode(), body)


@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data())
def test_records_that_lie(root: Path, data: st.DataObject) -> None:
    path = root / data.draw(st.sampled_from([BOUNDARY, PIN]))
    tree = json.loads(path.read_bytes())["record"]
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(list(places(tree))))
        tree = changed(tree, place, data.draw(st.sampled_from(POOL)), data.draw(st.sampled_from(["put", "drop"])))
    assert untouched(root, path, sealed(json.dumps(tree).encode()), data.draw(SOME))


@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data())
def test_manifests_that_lie_to_other_verbs(root: Path, data: st.DataObject) -> None:
    path = root / manifest_path(Checkpoint.open(root).ids()[-1])
    tree = json.loads(path.read_bytes())["manifest"]
    place = data.draw(st.sampled_from(list(places(tree))))
    tree = changed(
        tree, place, data.draw(st.sampled_from(POOL)), data.draw(st.sampled_from(["put", "drop", "repeat"]))
    )
    assert untouched(root, path, manifest_of(json.dumps(tree).encode()), data.draw(SOME))


@settings(max_examples=settings.default.max_examples // 4)
@given(data=st.data())
def test_entries_of_the_output_index_that_lie(root: Path, data: st.DataObject) -> None:
    tree = json.loads((root / BOUNDARY).read_bytes())["record"]
    part = tree["outputs"][0]
    was = (root / part["path"]).read_bytes()
    entries = json.loads(was)
    place = data.draw(st.sampled_from(list(places(entries))))
    entries = changed(entries, place, data.draw(st.sampled_from(POOL)), data.draw(st.sampled_from(["put", "drop"])))
    body = json.dumps(entries).encode()
    tree["outputs"][0] = part | {"bytes": len(body), "checksum": checksum(body)}
    try:
        (root / part["path"]).write_bytes(body)
        assert untouched(root, root / BOUNDARY, sealed(json.dumps(tree).encode()), data.draw(SOME))
    finally:
        (root / part["path"]).write_bytes(was)


@settings(max_examples=settings.default.max_examples // 4)
@given(data=st.data())
def test_leases_that_lie(root: Path, data: st.DataObject) -> None:
    now = now_us()
    tree = json.loads(msgspec.json.encode(Lease(this_process(), 7, "w", now, now)))
    place = data.draw(st.sampled_from(list(places(tree))))
    tree = changed(tree, place, data.draw(st.sampled_from(POOL)), data.draw(st.sampled_from(["put", "drop"])))
    path = root / "alive" / "7-1.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    try:
        assert untouched(root, path, json.dumps(tree).encode(), [["show"], ["rewind", "--to", "6"]])
    finally:
        path.unlink()


def answered(root: Path) -> list[tuple[int, str]]:
    return [(done.exit_code, done.output) for verb in VERBS[2:5] for done in [run(root, verb)]]


@pytest.mark.long
@pytest.mark.slow
def test_names_that_are_not_ours_say_nothing(root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "root"))
    (copy / "alive").mkdir(exist_ok=True)
    whole, codes = answered(copy), check_answers(root, VERBS)
    strange = ("5.json", "²³.json", "٥.json", "0" * 20 + ".json", "9" * 20 + ".json", "9" * 200 + ".json")
    for folder in ("gc/boundary", "manifests", "pins", "alive"):
        for name in (*strange, "x y.json", os.fsdecode(b"\xff.json"), f"{3:020d}.json~", "-1.json", "1-2-3.json"):
            if not (folder == "pins" and is_pin(name.removesuffix(".json"))):
                (copy / folder / name).write_bytes(b"{}")
        if LONG or folder == "alive":  # the last one
            assert answered(copy) == whole
            assert check_answers(copy, VERBS) == codes


def test_a_boundary_that_is_listed_and_leads_nowhere(root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "root"))
    (copy / boundary_path(2)).symlink_to("nowhere")
    assert check_answers(copy, VERBS) == {"record-damaged"}


def stop(_signal: int, _frame: object) -> None:
    raise AssertionError("a reader waits forever")


NO_FILES = ("pipe", "folder", "socket", "device", "loop")


@pytest.mark.slow
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_in_place_of_one(root: Path, tmp_path: Path, kind: str) -> None:
    """In each folder each kind; or each folder has one or two of the kinds, and each kind some of the folders."""
    copy = Path(shutil.copytree(root, tmp_path / "root"))
    named = {path.parent: path for path in sorted(copy.rglob("*")) if path.is_file()}
    before = signal.signal(signal.SIGALRM, stop)
    try:
        asked = [["state"], *VERBS[2:6], VERBS[-2], VERBS[-1]]
        paths = list(named.values())
        for number, path in enumerate(paths if LONG else paths[NO_FILES.index(kind) % 3 :: 3]):
            path.rename(tmp_path / "aside")
            with in_place(path, kind):
                signal.alarm(30)
                codes = check_answers(copy, asked if LONG else asked[number % 3 :: 3])
                assert codes <= {"not-a-file", "storage", "reset-damaged"}, (path, codes)
            (tmp_path / "aside").rename(path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def in_place(path: Path, kind: str) -> Iterator[None]:
    """Something at ``path`` that is no file."""
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "socket":
            here = Path.cwd()
            os.chdir(path.parent)  # the path of a socket is short
            listening.bind("s")
            os.chdir(here)
            (path.parent / "s").rename(path)
        else:
            path.symlink_to("/dev/zero" if kind == "device" else path.name)
        yield
    path.rmdir() if kind == "folder" else path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("name", [BOUNDARY, PIN])
def test_records_without_end_are_not_read(root: Path, name: str, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "root"))
    with (copy / name).open("r+b") as file:
        file.truncate(1 << 40)  # a hole: takes no room
    assert "record-damaged" in check_answers(copy, VERBS)
    deep = sealed(b"[" * 50_000 + b"]" * 50_000)
    for number, broken in enumerate((b"", b"\xff\xfe", b"[" * 100_000, deep, sealed(b"7"))):
        (copy / name).write_bytes(broken)
        assert "record-damaged" in check_answers(copy, VERBS if LONG else [VERBS[5], *VERBS[number::4]])


@pytest.mark.parametrize("body", [b"[" * 100_000, b"7", b"\xff", b'[{"id":"x"}]'])
def test_an_index_of_outputs_that_is_none(root: Path, body: bytes, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "root"))
    tree = json.loads((copy / BOUNDARY).read_bytes())["record"]
    part = tree["outputs"][0]
    (copy / part["path"]).write_bytes(body)
    tree["outputs"][0] = part | {"bytes": len(body), "checksum": checksum(body)}
    (copy / BOUNDARY).write_bytes(sealed(json.dumps(tree).encode()))
    assert "record-damaged" in check_answers(copy, VERBS if LONG else [VERBS[5], *VERBS[len(body) % 4 :: 4]])


@pytest.mark.parametrize("reported", [b"[" * 100_000, b"7", b"\xff\xfe", b'{"name":"x","key":[],"values":[]}'])
def test_a_state_file_that_describes_no_table(root: Path, reported: bytes, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "root"))
    number = Checkpoint.open(copy).ids()[-1]
    tree = json.loads((copy / manifest_path(number)).read_bytes())["manifest"]
    files = [ref for part in tree["operators"]["windows"]["partitions"] for ref in part["files"]]
    ref = next(ref for ref in files if ref.get("kind", "changelog") == "changelog")
    path = copy / ref["path"]
    rows = pa.ipc.open_file(path).read_all()
    rows = rows.replace_schema_metadata({**rows.schema.metadata, b"table": reported})
    with pa.ipc.new_file(path, rows.schema) as writer:
        writer.write_table(rows)
    data = path.read_bytes()
    ref |= {"bytes": len(data), "checksum": checksum(data)}
    put(copy, number, json.dumps(tree).encode())
    assert check_answers(copy, [["state"], ["restore"]]) in ({"file-foreign"}, {"file-damaged"})
