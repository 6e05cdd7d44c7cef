"""A root from a stranger runs no code, and nothing outside of it is changed: what SECURITY.md promises."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.hostile import check_answers, listing, put, run
from tests.helpers.worked_example import STREAM, example
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import IncompatibleError, TidestateError
from tidestate.statestore.files.tails import tail_of
from tidestate.statestore.spec.combiners import registered
from tidestate.statestore.storage.objects import Objects


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stranger") / "root"
    example("retracting").standalone(checkpoint=folder, partitions=2).run(STREAM)
    return folder


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "root"))


@pytest.mark.parametrize("name", ["stranger", "stranger:run", "os:system", "../stranger"])
def test_a_combiner_is_never_imported_by_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stranger.py").write_text("run = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IncompatibleError) as refused:
        registered(name, 1)
    assert refused.value.code == "combiner"
    assert "stranger" not in sys.modules


class Bomb:
    """What its pickle does where it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def with_a_pickle(schema: pa.Schema, folder: Path) -> pa.Schema:
    """The columns as a type of Python's, which old versions of pyarrow unpickle as soon as they see it."""
    kind = {b"ARROW:extension:name": b"arrow.py_extension_type"}
    kind[b"ARROW:extension:metadata"] = pickle.dumps(Bomb(folder))
    return pa.schema([field.with_metadata(kind) for field in schema], schema.metadata)


def forge(root: Path, kind: str, write: Callable[[Path], None]) -> None:
    """Write the first file of a kind as something else, and have the newest manifest that names one fit."""
    for number in reversed(Checkpoint.open(root).ids()):
        tree = json.loads((root / manifest_path(number)).read_bytes())["manifest"]
        files = [ref for part in tree["operators"]["windows"]["partitions"] for ref in part["files"]]
        refs = tree["late"] if kind == "ledger" else [one for one in files if "kind" not in one]
        if refs:
            break
    path = root / refs[0]["path"]
    write(path)
    data = path.read_bytes()
    refs[0] |= {"bytes": len(data), "checksum": checksum(data)} | (
        {"tail": tail_of(data)} if kind == "ledger" else {}
    )
    put(root, number, json.dumps(tree).encode())


@pytest.mark.parametrize("kind", ["changelog", "ledger"])
def test_a_pickle_in_the_types_of_a_file_is_not_loaded(root: Path, tmp_path: Path, kind: str) -> None:
    made = tmp_path / "made"

    def write(path: Path) -> None:
        rows = pq.read_table(path) if kind == "ledger" else pa.ipc.open_file(path).read_all()
        schema = with_a_pickle(rows.schema, made)
        table = pa.table(rows.columns, schema=schema)
        if kind == "ledger":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(path, schema) as writer:
                writer.write_table(table)

    forge(root, kind, write)
    for verb in (["state"], ["late"], ["verify", "--read-data", "100"], ["report", "--output", str(tmp_path / "x")]):
        run(root, verb)
    assert not made.exists()
    pickle.loads(pickle.dumps(Bomb(made)))
    assert made.exists()


def test_what_a_link_leads_to_is_not_written_over(root: Path, tmp_path: Path) -> None:
    """Whatever lies under the name of a new file: it is refused, or the link itself is replaced."""
    objects, precious = Objects(root), tmp_path / "precious"
    precious.write_text("mine")

    def written(path: str) -> None:
        with objects.writer(path) as sink:
            sink.write(b"theirs")

    ways: dict[str, Callable[[str], None]] = {
        "put": lambda path: objects.put(path, b"theirs"),
        "note": lambda path: objects.note(path, b"theirs"),
        "create": lambda path: objects.create(path, b"theirs"),
        "writer": written,
    }
    for name, write in ways.items():
        (root / name).symlink_to(precious)
        if name == "note":
            write(name)
        else:
            with pytest.raises(TidestateError):
                write(name)
        objects.delete(name)
        assert not (root / name).exists()
        assert precious.read_text() == "mine"


def test_nothing_is_written_in_a_root_that_another_one_names(root: Path, whole: Path, tmp_path: Path) -> None:
    marker = root / "tidestate.json"
    named = Path(shutil.copytree(whole, tmp_path / "named"))
    marker.write_text(json.dumps(json.loads(marker.read_bytes()) | {"bases": [str(named)]}))
    was = listing(named)
    confirmed = [
        ["gc", "--newest", "1", "--grace", "0 seconds", "--confirm"],
        ["rewind", "--to", "6", "--confirm"],
        ["repair", "--to", "newest-good", "--confirm"],
    ]
    check_answers(root, [["state"], *confirmed])
    assert listing(named) == was
