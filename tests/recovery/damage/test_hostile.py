"""Input that nobody of good will has written: every verb answers in words, within bounds, and touches nothing."""

from __future__ import annotations

import copy as copying
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.hostile import (
    BIG,
    POOL,
    VERBS,
    changed,
    check_answers,
    listing,
    manifest_of,
    places,
    put,
    run,
    untouched,
)
from tests.helpers.hostile import root as root
from tests.helpers.hostile import roots as roots
from tests.helpers.process import LONG, some
from tests.helpers.worked_example import STREAM, example
from tidestate.operators.inspect.query import query
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.manifest_file import decode
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import (
    CorruptionError,
    DataError,
    IncompatibleError,
    NotFoundError,
    UsageError,
)
from tidestate.statestore.spec.store import Parquet

SOME = st.lists(st.sampled_from(VERBS), min_size=6, max_size=6, unique_by=tuple)
OF_SPARK = [verb for verb in VERBS if verb[0] in ("show", "verify", "history", "rewind", "repair")]


def in_their_turn(each: Sequence[Any], number: int, count: int) -> Sequence[Any]:
    """One in so many, in the next case another one; in the long form all."""
    return each if LONG else each[number % count :: count]


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples if LONG else 3)
@given(data=st.data())
def test_manifests_that_lie(roots: list[Path], data: st.DataObject) -> None:
    root = data.draw(st.sampled_from(roots))
    number = data.draw(st.sampled_from([3, len(list((root / "manifests").iterdir()))]))
    path = root / manifest_path(number)
    tree = json.loads(path.read_bytes())["manifest"]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(list(places(tree))))
        how = data.draw(st.sampled_from(["put", "put", "drop", "rename", "repeat"]))
        tree = changed(tree, place, data.draw(st.sampled_from(POOL)), how)
    assert untouched(root, path, manifest_of(json.dumps(tree).encode()), data.draw(SOME))


@settings(max_examples=settings.default.max_examples // 2 if LONG else 3)
@given(data=st.data())
def test_manifests_of_broken_bytes(roots: list[Path], data: st.DataObject) -> None:
    root = data.draw(st.sampled_from(roots))
    path = root / manifest_path(3)
    body = bytearray(json.dumps(json.loads(path.read_bytes())["manifest"]).encode())
    at = data.draw(st.integers(0, len(body) - 1))
    pieces = [b"", b"\x00", b"\xff\xfe", b"[", b"}", b'"', b"9" * 50, b"[" * 5000, b"\\u0000"]
    piece = data.draw(st.sampled_from(pieces))
    body[at : at + data.draw(st.integers(0, 3))] = piece
    assert untouched(root, path, manifest_of(bytes(body)), data.draw(SOME))


def tree_of(root: Path) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((root / manifest_path(7)).read_bytes())["manifest"]
    return tree


LIES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "a path out of the root": (("operators", "windows", "partitions", 1, "files", 0, "path"), "../../etc/passwd"),
    "a path out of the middle": (("operators", "windows", "partitions", 1, "files", 0, "path"), "data/../../x"),
    "an absolute path": (("late", 0, "path"), "/etc/passwd"),
    "a path with a NUL": (("late", 0, "path"), "late/windows/a\x00b"),
    "a path without end": (("late", 0, "path"), "late/windows/" + "a" * 5000),
    "a size past 64 bits": (("late", 0, "bytes"), BIG),
    "rows below nothing": (("late", 0, "rows"), -1),
    "an id past 64 bits": (("id",), BIG),
    "a watermark past 64 bits": (("operators", "windows", "watermark_us"), -BIG - 1),
    "a bound past 64 bits": (("operators", "windows", "partitions", 0, "expired", "parts"), 10**30),
    "a bound of all partitions past 64 bits": (("operators", "windows", "expired", "parts"), 10**30),
    "no partitions": (("operators", "windows", "partitions"), []),
    "more partitions than can be": (("operators", "windows", "partitions"), [{}] * 40_000),
    "more tables than can be": (
        ("operators", "windows", "tables"),
        [{"name": f"t{n}", "key": [{"name": "k", "type": "string"}], "values": []} for n in range(201)],
    ),
    "a table of no name": (("operators", "windows", "tables", 0, "name"), "../x"),
    "another type": (("operators",), 7),
    "a column of a type that ends nowhere": (
        ("operators", "windows", "tables", 0, "values", 0, "type"),
        "list<item: " * 3000 + "int64" + ">" * 3000,
    ),
    "an operator that is a path": (("operators",), {"../x": {}}),
    "abandoned ids that are not there yet": (("abandoned",), [[1, BIG - 1]]),
    "a parent that comes later": (("parent_id",), 9),
    "a version that commands a terminal": (("version",), "1\x1b[2J"),
    "a version without end": (("version",), "1" * 65),
    "a source that is none": (("operators", "windows", "progress", "sources"), {"x": []}),
}
SILENT = ("operators", "windows", "progress", "sources", "input", "standing")
"""What only the job itself reads."""


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_what_cannot_be_is_damage(root: Path, lie: str) -> None:
    """That it is refused when it is read; some of the verbs, others each time, say so."""
    path, value = LIES[lie]
    body = json.dumps(changed(tree_of(root), path, value, "put")).encode()
    with pytest.raises(CorruptionError) as caught:
        decode(b'{"checksum":"%s",\n"manifest":%s}\n' % (checksum(body).encode(), body), "m")
    assert caught.value.code == "manifest-damaged"
    put(root, 7, body)
    assert len(str(caught.value)) < 1000
    check_answers(root, VERBS if LONG else VERBS[[*LIES].index(lie) % 11 :: 11])


def rewritten(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change every manifest; each follows its parent again."""
    parent = ""
    for path in sorted((root / "manifests").iterdir()):
        tree = json.loads(path.read_bytes())["manifest"]
        change(tree)
        tree["parent"] = parent
        put(root, tree["id"], json.dumps(tree).encode())
        parent = json.loads(path.read_bytes())["checksum"]


@pytest.mark.parametrize(
    ("table", "role"), [("groups", "window_start"), ("parts", "window_end"), ("groups", "window_end")]
)
def test_roles_that_lie(root: Path, table: str, role: str) -> None:
    """What a row says of its window is not what its table was made for."""

    def lie(tree: dict[str, Any]) -> None:
        for spec in tree["operators"]["windows"]["tables"]:
            for column in (*spec["key"], *spec["values"]):
                if spec["name"] == table and column.get("role") == role:
                    column["role"] = ""

    rewritten(root, lie)
    check_answers(root, [verb for verb in VERBS if verb[0] in ("history", "state", "panes")])


CONFIGURED: list[Any] = [None, [], {}, "x", -1, [None], {"kind": "session", "gap": "x"}, {"kind": "global"}, True]


@pytest.mark.parametrize(
    "name", ["window", "key", "aggregates", "allowed_lateness", "event_time", "retained", "signed"]
)
def test_configurations_that_lie(roots: list[Path], root: Path, name: str) -> None:
    for kind in ("tumbling", "session"):
        base = next(one for one in roots if one.name == kind)
        path = manifest_path(3)
        for value in ("GONE", *CONFIGURED):
            tree = json.loads((base / path).read_bytes())["manifest"]
            tree["operators"]["windows"]["configuration"][name] = value
            if value == "GONE":
                del tree["operators"]["windows"]["configuration"][name]
            shutil.copytree(base / "data", root / "data", dirs_exist_ok=True)
            put(root, 3, json.dumps(tree).encode())
            with suppress(DataError, UsageError):
                query(root, checkpoint=3).get_windows()


def test_what_is_nested_without_end(root: Path) -> None:
    for number, depth in enumerate((100, 100_000)):
        tree = tree_of(root)
        tree["operators"]["windows"]["configuration"]["x"] = "DEEP"
        body = json.dumps(tree).replace('"DEEP"', "[" * depth + "]" * depth).encode()
        put(root, 7, body)
        assert check_answers(root, in_their_turn(VERBS, number, 4)) <= {"manifest-damaged"}


@pytest.mark.slow
def test_manifests_without_end_are_not_read(root: Path) -> None:
    with (root / manifest_path(7)).open("r+b") as file:
        file.truncate(1 << 40)  # a hole: takes no room
    assert check_answers(root, some(VERBS, 4)) == {"manifest-damaged"}


@pytest.mark.slow
def test_markers(root: Path, tmp_path: Path) -> None:
    marker = root / "tidestate.json"
    good = json.loads(marker.read_bytes())
    cases = (
        ({"format": 2}, "checkpoint-format"),
        ({"format": BIG}, "checkpoint-format"),
        ({"format": "1"}, "marker-damaged"),
        ({"job_id": 7}, "marker-damaged"),
        ({"job_id": "x\x00y"}, "marker-damaged"),
        ({"created_us": BIG}, "marker-damaged"),
        ({"bases": ["http://127.0.0.1:1/x"]}, "base-scheme"),
        ({"bases": ["github://org:repo@main/x"]}, "base-scheme"),
        ({"bases": ["memory://x::http://127.0.0.1:1"]}, "base-scheme"),
    )
    for number, (answered, code) in enumerate(cases):
        marker.write_text(json.dumps(good | answered))
        assert check_answers(root, in_their_turn(VERBS, number, 5)) == {code}
    for number, data in enumerate((b"", b"\x00" * 100, b"[" * 100_000, b"\xff\xfe{}", b"7")):
        marker.write_bytes(data)
        assert check_answers(root, in_their_turn(VERBS, number, 5)) == {"marker-damaged"}


def test_roots_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    none, refused = {"no-checkpoint"}, {"storage"}
    cases = (("empty", none), ("nowhere", none), ("file", refused), ("nul\x00byte", none | refused))
    for number, (name, codes) in enumerate(cases):
        assert set() < check_answers(tmp_path / name, in_their_turn(VERBS, number, 4)) <= codes
    assert not (tmp_path / "nowhere").exists()


def test_folders_and_links_in_place_of_files(root: Path, tmp_path: Path) -> None:
    (root / "manifests" / "²3.json").write_bytes(b"{}")
    (root / "manifests" / ("9" * 200 + ".json")).write_bytes(b"{}")
    (root / "manifests" / "7.json").write_bytes(b"{}")
    assert run(root, ["list"]).exit_code == 0  # names that are not ours say nothing
    late = root / tree_of(root)["late"][0]["path"]
    late.unlink()
    secret = tmp_path / "secret"
    secret.write_text("not for everybody")
    late.symlink_to(secret)
    done = run(root, ["late"])
    assert isinstance(done.exception, DataError)
    assert "everybody" not in done.output
    newest = root / manifest_path(7)
    newest.unlink()
    newest.mkdir()
    assert check_answers(root) == {"not-a-file"}


def test_files_that_may_not_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def refuse(path: Path, *rest: Any, **options: Any) -> Any:
        if path.is_relative_to(root):  # threads of others open files too
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest, **options)

    monkeypatch.setattr(Path, "open", refuse)
    assert check_answers(root) == {"storage"}


@pytest.mark.slow
def test_offsets_and_lists_of_files_that_are_no_json(root: Path) -> None:
    """A quarter of the verbs in each case, others in the next."""
    ends = ("", "no json", "[", "7", '{"logOffset":"x"}', '{"logOffset":null}', "[" * 100_000, '{"t":{"0":[]}}')
    for number, end in enumerate(ends):
        tree = tree_of(root)
        tree["spark"] |= {"start": [end], "end": [end, end], "files": {}}
        put(root, 7, json.dumps(tree).encode())
        (root / "spark" / "offsets").mkdir(parents=True, exist_ok=True)
        (root / "spark" / "metadata").write_text('{"id":"q"}')
        (root / "spark" / "offsets" / "7").write_text(f'v1\n{{"batchTimestampMs":1}}\n{end}\n{end}')
        (root / "spark" / "offsets" / "6").write_text(f'v1\n{{"batchTimestampMs":1}}\n{end}\n{end}')
        assert check_answers(root, in_their_turn(OF_SPARK, number, 4)) <= {"manifest-damaged"}
    for number, body in enumerate((b"", b"no json", b"[1]", b'{"0":7}', b"\xff")):
        path = root / "data" / "spark" / "long.files.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        ref = {"path": "data/spark/long.files.json", "bytes": len(body), "checksum": checksum(body), "rows": 1}
        tree = tree_of(root)
        tree["spark"] |= {"files": {}, "files_ref": ref}
        put(root, 7, json.dumps(tree).encode())
        assert check_answers(root, in_their_turn(OF_SPARK, number, 4)) <= {"file-damaged"}


@pytest.mark.slow
def test_text_from_data_is_neither_markup_nor_a_command_to_the_terminal(root: Path) -> None:
    whole = tree_of(root)
    for number, answered in enumerate(("[/]", "[bold]x", "x\x1b[31mred", "x\x9b31mred")):
        tree = copying.deepcopy(whole)
        tree["operators"]["windows"]["configuration"] |= {"answered": answered, answered: 1}
        tree["totals"][answered] = 1
        tree["spark"]["end"] = [answered]
        tree["operators"] = {"[bold]": tree["operators"]["windows"] | {"partitions": [{}]}}
        put(root, 7, json.dumps(tree).encode())
        assert check_answers(root, in_their_turn(VERBS, number, 4)) <= {"no-such-window", "manifest-damaged"}
        done = run(root, ["show"])
        assert done.output.count(answered.replace("\x1b", "?").replace("\x9b", "?")) >= 3
        assert not {"\x1b", "\x9b"} & set(done.output)


def test_a_job_refuses_what_it_cannot_trust(root: Path) -> None:
    whole = tree_of(root)
    whole["spark"] = None
    assert "input" in whole["operators"]["windows"]["progress"]["sources"]
    for path, value in (LIES["a path out of the root"], LIES["a source that is none"], (SILENT, "on its head")):
        put(root, 7, json.dumps(changed(whole, path, value, "put")).encode())
        was = listing(root)
        with pytest.raises(CorruptionError):
            example("retracting").standalone(checkpoint=root, store=Parquet(), partitions=2).run(STREAM)
        assert listing(root) == was


def test_whatever_a_checkpoint_says_it_can_be_named(root: Path) -> None:
    """Errors of the tree of ours alone, from the library too."""
    tree = tree_of(root)
    for number, place in enumerate(places(tree)):
        for value in in_their_turn([None, "x", -1, BIG, [], {}], number, 5):
            body = json.dumps(changed(tree, place, value, "put")).encode()
            try:
                decode(b'{"checksum":"%s",\n"manifest":%s}\n' % (checksum(body).encode(), body), "m")
            except (CorruptionError, IncompatibleError):
                continue
    with pytest.raises(NotFoundError):
        Checkpoint.open(root).read(10**25)
    assert msgspec.json.decode(msgspec.json.encode(tree)) == tree
