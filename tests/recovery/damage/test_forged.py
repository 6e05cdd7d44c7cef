"""Manifests and files that are forged, with checksums that fit: what one says that the other does not is refused."""

from __future__ import annotations

import base64
import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.bundles import files_alone
from tests.helpers.hostile import check_answers, put, run
from tests.helpers.process import LONG
from tests.helpers.worked_example import STREAM, batch, example
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import DataError
from tidestate.statestore.files.tails import tail_of
from tidestate.statestore.spec.store import Parquet, StoreConfig

Ref = dict[str, Any]
READERS = (
    ["state"],
    ["state", "--table", "groups"],
    ["panes"],
    ["late"],
    ["history", "--key", "k=a", "--window", "1970-01-01T00:00:00", "--json"],
    ["restore", "--json"],
    ["verify", "--read-data", "100", "--json"],
)

MORE = [batch([(45 + n, "abcd"[n % 4], n), (46 + n, "abcd"[(n + 1) % 4], 1)]) for n in range(5)]
LATE = batch([(46, "a", 1), (47, "b", 2), (30, "b", 3)])
"""Windows that are retained are changed too, so that several tables are."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with files_alone():
        return _made(tmp_path_factory.mktemp("forged") / "root", Parquet(max_levels=4, snapshot_bytes=1), MORE)


def _made(folder: Path, store: StoreConfig, more: list[pa.Table]) -> Path:
    example("retracting").standalone(checkpoint=folder, store=store, partitions=2).run([*STREAM, *more])
    return folder


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "root"))


@pytest.fixture(scope="module")
def before(whole: Path) -> dict[tuple[str, ...], str]:
    """What readers print of the whole root."""
    return {tuple(reader): run(whole, reader).output for reader in READERS}


def newest(root: Path) -> int:
    return Checkpoint.open(root).ids()[-1]


class Forged:
    """The newest manifest and its files, to be changed."""

    def __init__(self, root: Path, number: int | None = None) -> None:
        self.root, self.number = root, number or newest(root)
        self.tree = json.loads((root / manifest_path(self.number)).read_bytes())["manifest"]
        self.partitions = self.tree["operators"]["windows"]["partitions"]

    def file(self, kind: str, partition: int = 0) -> Ref:
        """One of the state files of a kind."""
        files = self.partitions[partition]["files"]
        return next(ref for ref in files if ref.get("kind", "changelog") == kind)

    def publish(self) -> None:
        put(self.root, self.number, json.dumps(self.tree).encode())


def swap_partitions(forged: Forged) -> None:
    one, other = forged.partitions
    one["files"], other["files"] = other["files"], one["files"]


def swap_outputs(forged: Forged) -> None:
    forged.tree["panes"], forged.tree["late"] = forged.tree["late"], forged.tree["panes"]


def of_another_operator(forged: Forged) -> None:
    """The same bytes where another operator's files lie, in a manifest where it has that name."""
    shutil.copytree(forged.root / "data" / "windows", forged.root / "data" / "other")
    forged.tree["operators"] = json.loads(json.dumps(forged.tree["operators"]).replace("windows", "other"))


def of_another_partition(forged: Forged) -> None:
    """The bytes of one partition under the path of another."""
    ref, other = forged.file("changelog", 0), forged.file("changelog", 1)
    path = ref["path"]
    shutil.copy(forged.root / other["path"], forged.root / path)
    ref |= other | {"path": path}


def set_in(kind: str, /, **facts: Any) -> Callable[[Forged], None]:
    return lambda forged: forged.file(kind).update(facts)


def more_by(kind: str, name: str, by: int) -> Callable[[Forged], None]:
    def forge(forged: Forged) -> None:
        ref = forged.file(kind)
        ref[name] = ref.get(name, 0) + by

    return forge


def from_other(kind: str, *names: str) -> Callable[[Forged], None]:
    return lambda forged: forged.file(kind).update({name: forged.file(kind, 1)[name] for name in names})


def output(name: str, value: Callable[[Any], Any]) -> Callable[[Forged], None]:
    return lambda forged: forged.tree["late"][0].update({name: value(forged.tree["late"][0][name])})


LIES: dict[str, Callable[[Forged], None]] = {
    "rows of a changelog": more_by("changelog", "rows", 1),
    "rows of a snapshot": more_by("snapshot", "rows", -1),
    "rows of a ledger": output("rows", lambda rows: rows + 1),
    "bytes": more_by("changelog", "bytes", 8),
    "bytes of a ledger": output("bytes", lambda size: size - 1),
    "table": set_in("changelog", table="groups"),
    "first": more_by("changelog", "first", -1),
    "last": more_by("snapshot", "last", 1),
    "segment": set_in("changelog", segment="x"),
    "kind": set_in("snapshot", kind="run"),
    "checksum of another": from_other("changelog", "checksum"),
    "checksum of another snapshot": from_other("snapshot", "checksum"),
    "tail of another": from_other("snapshot", "tail"),
    "tail of nothing": set_in("snapshot", tail=""),
    "tail of a ledger": output("tail", lambda tail: ""),
    "largest expiry of a changelog": set_in("changelog", expiry_max=2**62),
    "largest expiry of a snapshot": set_in("snapshot", expiry_max=2**62),
    "smallest expiry of a snapshot": set_in("snapshot", expiry_min=None),
    "swapped between partitions": swap_partitions,
    "swapped panes and ledger": swap_outputs,
    "of another operator": of_another_operator,
    "of another partition": of_another_partition,
}
UNREAD = ("checksum of another snapshot", "tail of a ledger")
"""Of these readers only `verify` asks: others read what they need, by the checksums of the footer and of pages."""


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_is_not_as_its_files_is_refused(
    root: Path, before: dict[tuple[str, ...], str], lie: str
) -> None:
    forged = Forged(root)
    if "ledger" in lie or "panes" in lie:
        forged = next(one for n in range(forged.number, 0, -1) if (one := Forged(root, n)).tree["late"])
    LIES[lie](forged)
    forged.publish()
    refused = set()
    turn = [*LIES].index(lie) % (len(READERS) - 1)
    for reader in (READERS[-1], *READERS[turn:-1], *READERS[:turn]):
        if not LONG and len(refused) > 1:
            break  # others are asked about other lies
        if lie == "of another operator" and reader[0] in ("panes", "late", "history"):
            continue  # they ask for what that one has observed, which is nothing
        done = run(root, reader)
        if isinstance(done.exception, DataError) or (reader[0] == "verify" and done.exit_code):
            refused.add(reader[0])
        else:
            assert isinstance(done.exception, SystemExit | None), (reader, repr(done.exception))
            if reader[0] == "restore":  # it says seconds
                continue
            assert done.output == before[tuple(reader)], (reader, done.output)
    assert "verify" in refused
    assert lie in UNREAD or len(refused) > 1


def of_another_part(forged: Forged) -> None:
    """The bytes of one table in the place of another, in one bundle."""
    table, other = two_parts(forged)
    table |= {name: other.get(name, 0) for name in ("start", "bytes", "checksum")}


def with_start_of_another(forged: Forged) -> None:
    table, other = two_parts(forged)
    table["start"] = other.get("start", 0)


def two_parts(forged: Forged) -> list[Ref]:
    """Changes of two tables in one bundle."""
    refs = [ref for ref in forged.partitions[0]["files"] if "kind" not in ref and "bundle_bytes" in ref]
    return next([ref, other] for ref in refs for other in refs if ref["path"] == other["path"] and ref is not other)


def part(name: str, by: int) -> Callable[[Forged], None]:
    def forge(forged: Forged) -> None:
        ref, _ = two_parts(forged)
        ref[name] = ref.get(name, 0) + by

    return forge


def no_bundle(forged: Forged) -> None:
    for ref in two_parts(forged):
        del ref["bundle_bytes"]


LIES_OF_PARTS: dict[str, Callable[[Forged], None]] = {
    "start": part("start", 64),
    "start below the file": part("start", -(1 << 20)),
    "start beyond the file": part("start", 1 << 40),
    "bytes": part("bytes", 8),
    "more than the bundle has": part("bytes", 1 << 40),
    "size of the bundle": part("bundle_bytes", 64),
    "no bundle": no_bundle,
    "start of another": with_start_of_another,
    "of another": of_another_part,
}


@pytest.fixture(scope="module")
def with_bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _made(tmp_path_factory.mktemp("bundles") / "root", Parquet(), [LATE])


@pytest.mark.parametrize("lie", LIES_OF_PARTS)
def test_a_manifest_that_is_not_as_its_bundles_is_refused(with_bundles: Path, tmp_path: Path, lie: str) -> None:
    root = Path(shutil.copytree(with_bundles, tmp_path / "root"))
    forged = Forged(root)
    LIES_OF_PARTS[lie](forged)
    forged.publish()
    for reader in (["verify", "--read-data", "100", "--json"], ["state"], ["restore", "--json"]):
        done = run(root, reader)
        assert isinstance(done.exception, DataError) or (reader[0] == "verify" and done.exit_code), reader


def forge_changelog(root: Path, write: Callable[[Path, pa.Table], None]) -> None:
    """Write a changelog file as something else, and have the manifest fit."""
    forged = Forged(root)
    ref = forged.file("changelog")
    path = root / ref["path"]
    write(path, pa.ipc.open_file(path).read_all())
    data = path.read_bytes()
    ref |= {"bytes": len(data), "checksum": checksum(data)}
    forged.publish()


def compressed(path: Path, rows: pa.Table, count: int = 1 << 27) -> None:
    """A changelog of some hundred kilobytes that unpacks to gigabytes."""
    columns = []
    for field in rows.schema:
        if pa.types.is_string(field.type):
            columns.append(pa.nulls(count, field.type))
        else:
            buffers = [None, pa.py_buffer(np.zeros(count * field.type.bit_width // 8, np.uint8))]
            columns.append(pa.Array.from_buffers(field.type, count, buffers))
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(path, rows.schema, options=options) as writer:
        writer.write_batch(pa.record_batch(columns, schema=rows.schema))


def test_a_bomb_in_a_changelog_is_not_unpacked(root: Path) -> None:
    forge_changelog(root, lambda path, rows: compressed(path, rows, 1 << 22))
    before = pa.default_memory_pool().max_memory()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert check_answers(root, [["state"], ["restore"]]) == {"file-damaged"}
    assert pa.default_memory_pool().max_memory() == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 64 << 10  # KiB


def test_a_bomb_in_a_ledger_is_not_unpacked(root: Path) -> None:
    forged = next(one for n in range(newest(root), 0, -1) if (one := Forged(root, n)).tree["late"])
    (ref,) = forged.tree["late"]
    path, count = root / ref["path"], 1 << 21
    nothing = pa.table({"x": pa.nulls(count >> 5, pa.binary(1 << 10))})
    with pq.ParquetWriter(path, nothing.schema) as writer:
        for _ in range(1 << 5):
            writer.write_table(nothing, row_group_size=count)
    data = path.read_bytes()
    assert len(data) < 1 << 20
    ref |= {"bytes": len(data), "checksum": checksum(data), "rows": count, "tail": tail_of(data)}
    forged.publish()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert check_answers(root, [["late"]]) == {"file-damaged"}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 64 << 10


def test_a_bomb_in_the_index_of_a_snapshot_is_not_unpacked(root: Path) -> None:
    """The footer has it, as a stream of Arrow."""
    forged = Forged(root)
    ref = forged.file("snapshot")
    path = root / ref["path"]
    rows, metadata = pq.read_table(path), pq.read_metadata(path).metadata
    index = pa.ipc.open_stream(base64.b64decode(metadata[b"tidestate.index"])).read_all()
    bomb = pa.BufferOutputStream()
    with pa.ipc.new_stream(bomb, index.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(pa.concat_tables([index] * 1000))
    metadata |= {b"tidestate.index": base64.b64encode(bomb.getvalue())}
    with pq.ParquetWriter(path, rows.schema, compression="lz4", write_page_checksum=True) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(metadata)
    data = path.read_bytes()
    ref |= {"bytes": len(data), "checksum": checksum(data), "tail": tail_of(data)}
    forged.publish()
    error = run(root, ["state"]).exception
    assert isinstance(error, DataError)
    assert "a batch is compressed" in error.message
