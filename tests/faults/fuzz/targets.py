"""The readers of durable bytes. Each takes any bytes: it returns, or raises an error of ours, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa

from tests.faults.damage.answers import documented
from tests.faults.fuzz.material import forged, material, placed, spark_root, tables_of
from tests.helpers.rocks_tables import SPECS
from tests.helpers.table_model import MAIN
from tidestate.operators.bind.stored_description import stored_windows
from tidestate.operators.inspect.plan_from_manifest import plan_of
from tidestate.recovery.log.boundary import Boundary, Pin
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.lease import Lease
from tidestate.recovery.log.manifest import OperatorState, SparkPosition
from tidestate.recovery.log.manifest_file import decode, encode
from tidestate.recovery.log.marker import MARKER, read_marker
from tidestate.recovery.log.parts import Parts
from tidestate.recovery.log.records import BOUNDARIES, decoded, newest_boundary, read_part, read_pins
from tidestate.recovery.log.spark_log import SparkLog, load_files
from tidestate.recovery.log.summary import brief, full
from tidestate.recovery.spark.agreement import compare
from tidestate.recovery.spark.spark_query import read_query
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError, TidestateError, UsageError
from tidestate.statestore.files.refs import FileRef, PartitionState
from tidestate.statestore.files.segments import read_segment
from tidestate.statestore.files.sortedfile import SortedFile
from tidestate.statestore.files.tails import examine, read_file_rows, read_schema
from tidestate.statestore.spec.arrowtypes import is_ordered, parse_type
from tidestate.statestore.spec.changes import Layer
from tidestate.statestore.spec.keyhash import key_hash
from tidestate.statestore.spec.keyrange import EVERYTHING
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.spec.valuehash import hash_tables
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.stores.rocks.keys import KeyCodec
from tidestate.statestore.stores.rocks.rows import decode_rows, encode_rows

LONGEST_ERROR = 5000


@dataclass(frozen=True)
class Target:
    """A reader, and bytes that it understands."""

    name: str
    read: Callable[[bytes], Any]
    seeds: Callable[[], Sequence[bytes]]


def tried(target: Target, data: bytes) -> str:
    """What a reader makes of bytes: ``read``, or the code of its error. Raises whatever is wrong with that."""
    raised: TidestateError | None = None
    try:
        target.read(data)
    except TidestateError as error:
        raised = error
    if raised is None:
        return "read"
    text = str(raised)
    text.encode()  # it can be written to a log
    assert raised.code in documented(), raised.code
    assert len(text) < LONGEST_ERROR, text[:200]
    return raised.code


def _sealed(body: bytes, name: str) -> bytes:
    return b'{"checksum":"%s",\n"%s":%s}\n' % (checksum(body).encode(), name.encode(), body)


def _body(data: bytes, name: str) -> bytes:
    return bytes(msgspec.json.decode(data, type=dict[str, msgspec.Raw])[name])


def _manifest(data: bytes) -> None:
    manifest, _ = decode(data, "manifests/1.json")
    again, _ = decode(encode(manifest)[0], "manifests/1.json")
    assert again == manifest
    msgspec.json.encode([brief(manifest), full(manifest)])


def _manifests() -> list[bytes]:
    return material().read("manifests/*.json")


def _marker(data: bytes) -> None:
    placed(material().root, MARKER, data)
    marker = read_marker(material().objects)
    Objects(material().root, bases=marker.bases)


def _boundary(data: bytes) -> None:
    placed(material().root, _boundary_path(), _sealed(data, "record"))
    newest_boundary(material().objects)


@cache
def _boundary_path() -> str:
    return next(path for path in material().original if path.startswith(BOUNDARIES))


def _pin(data: bytes) -> None:
    placed(material().root, "pins/release.held", _sealed(data, "record"))
    read_pins(material().objects)


def _lease(data: bytes) -> None:
    lease = decoded(data, "alive/1-1.json", Lease)
    lease.left_us(0)
    lease.who().encode()


def _index(data: bytes) -> None:
    ref = forged(FileRef("gc/outputs/fuzz.json", 0, "", 1, first=1, last=1), data)
    placed(material().root, ref.path, data)
    read_part(material().objects, ref)


def _part(data: bytes) -> None:
    ref = forged(FileRef("data/windows/9-fuzz.partitions.json", 0, "", 2, last=1), data)
    placed(material().root, ref.path, data)
    operator = OperatorState({}, "", (MAIN,), (), count=2, base=(ref,), copies=(ref,))
    manifest = msgspec.structs.replace(material().manifest, operators={"windows": operator})
    states = Parts().resolved(material().objects, manifest).operators["windows"].states
    assert all(isinstance(one, PartitionState) for one in states)


def _parts() -> list[bytes]:
    state = msgspec.json.encode(PartitionState(lineage="a", sequence=2, expired={"main": 1}, due_mark=3))
    return [b'{"operator":"windows","partitions":{"0":%s,"1":%s}}' % (state, state)]


def _equal(layers: Sequence[Layer], others: Sequence[Layer]) -> bool:
    return [(one.op, one.rows.to_pylist()) for one in layers] == [(one.op, one.rows.to_pylist()) for one in others]


def _segment(ref: FileRef, data: bytes) -> list[Layer]:
    placed(material().root, ref.path, data)
    layers = read_segment(material().objects, material().changelog[1], ref)
    for layer in layers:
        layer.rows.validate(full=True)
    return layers


def _raw_segment(data: bytes) -> None:
    """Its checksum has to tell."""
    ref = material().changelog[0]
    assert _equal(_segment(ref, data), _segment(ref, _changelog()))


def _bundle(data: bytes) -> None:
    """Of all its bytes those of the part count, whose checksum has to tell."""
    (ref, spec), objects = material().part, material().objects
    placed(material().root, ref.path, data)
    layers = read_segment(objects, spec, ref)
    placed(material().root, ref.path, material().original[ref.path])
    assert _equal(layers, read_segment(objects, spec, ref))


def _changelog() -> bytes:
    return material().original[material().changelog[0].path]


def _sorted(ref: FileRef, data: bytes) -> list[Layer]:
    placed(material().root, ref.path, data)
    layers = SortedFile(material().objects, material().folded[1], ref).layers(EVERYTHING)
    for layer in layers:
        layer.rows.validate(full=True)
    return layers


def _raw_folded(data: bytes) -> None:
    ref = material().folded[0]
    assert _equal(_sorted(ref, data), _sorted(ref, _folded()))


def _folded() -> bytes:
    return material().original[material().folded[0].path]


def _rows(ref: FileRef, data: bytes) -> pa.Table:
    placed(material().root, ref.path, data)
    read_schema(material().objects, ref)
    examine(material().objects, ref)
    rows = read_file_rows(material().objects, ref)
    rows.validate(full=True)
    return rows


def _panes() -> bytes:
    return material().original[material().panes.path]


def _late() -> bytes:
    return material().original[material().late.path]


def _raw_panes(data: bytes) -> None:
    ref = material().panes
    assert _rows(ref, data).equals(_rows(ref, _panes()))


def _in_spark(name: str, read: Callable[[SparkLog], Any]) -> Callable[[bytes], None]:
    """A file of Spark's checkpoint, and what is read of it, alone and in the comparison of a start."""

    def reader(data: bytes) -> None:
        root, original = spark_root()
        objects = Objects(root)
        placed(root, name, data)
        try:
            read(SparkLog(objects))
            found = compare(_position(), SparkLog(objects), 3)
            "".join(map(str, found.differs)).encode()
            if found.refusal is not None:
                raise found.refusal
            with suppress(UsageError, CorruptionError):  # a job of ours has no watermark of Spark's
                read_query(SparkLog(objects))
        finally:
            placed(root, name, original[name])

    return reader


@cache
def _position() -> SparkPosition | None:
    checkpoint = Checkpoint.open(spark_root()[0])
    return load_files(checkpoint.objects, checkpoint.chosen(None).manifest.spark)


def _list(data: bytes) -> None:
    ref = forged(FileRef("data/spark/1-fuzz.files.json", 0, "", 1), data)
    placed(material().root, ref.path, data)
    load_files(material().objects, SparkPosition("q", 0, (), (), files_ref=ref))


def _description(data: bytes) -> None:
    """The configuration of an operator in a manifest."""
    manifest, _ = decode(_sealed(_frame().replace(b'"CONFIGURATION"', data), "manifest"), "m")
    stored_windows(manifest.operators["windows"])
    plan_of(manifest, "windows")


@cache
def _frame() -> bytes:
    tree = msgspec.to_builtins(material().manifest)
    tree["operators"]["windows"]["configuration"] = "CONFIGURATION"
    return msgspec.json.encode(tree)


def _configurations() -> list[bytes]:
    return [msgspec.json.encode(one.configuration) for one in material().manifest.operators.values()]


def _table(data: bytes) -> None:
    try:
        spec = msgspec.json.decode(data, type=TableSpec)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    assert [parse_type(column.type) for column in (*spec.key, *spec.values)] == [*spec.schema.types]


def _packed(data: bytes) -> None:
    """Rows of a table in RocksDB: the first byte says which table, the second how many rows there are."""
    spec, count = SPECS[data[0] % len(SPECS)] if data else SPECS[0], data[1] % 4 if len(data) > 1 else 0
    size = max(1, len(data[2:]) // max(1, count))
    rows = [data[2 + at * size : 2 + (at + 1) * size] for at in range(count)]
    try:
        found = decode_rows(rows, spec.schema)
    except ValueError:  # `RocksTable` says that the cache is damaged
        return
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:  # no text, which the checksum of its block tells
        return
    assert decode_rows(encode_rows(found).to_list(), spec.schema).equals(found)


def _packed_rows() -> list[bytes]:
    found = []
    for place, spec in enumerate(SPECS):
        values = {name: [_example(kind)] for name, kind in zip(spec.schema.names, spec.schema.types, strict=True)}
        found.append(bytes([place, 1]) + encode_rows(pa.table(values, schema=spec.schema)).to_list()[0])
    return found


def _example(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return ["a", "bc"]
    return "key" if pa.types.is_string(kind) else b"key" if pa.types.is_binary(kind) else 7


def _hashes(data: bytes) -> None:
    """The codecs of values and keys take any values."""
    for rows in tables_of(data):
        if len(set(rows.column_names)) == rows.num_columns:
            assert hash_tables({"a": rows}) == hash_tables({"a": rows.combine_chunks()})
        keys = rows.select([place for place, kind in enumerate(rows.schema.types) if is_ordered(kind)])
        if keys.num_columns:
            assert len(key_hash(keys)) == rows.num_rows
            KeyCodec(b"\x01", keys.schema).encode(keys).to_list()


def _streams() -> list[bytes]:
    found = []
    for rows in (
        *(layer.rows for layer in _segment(material().changelog[0], _changelog())),
        _rows(material().panes, _panes()),
    ):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        found.append(sink.getvalue().to_pybytes())
    return found


def _type(data: bytes) -> None:
    try:
        text = data.decode()
        parse_type(text)
    except (UnicodeDecodeError, UsageError):
        return


SPARK = {
    "metadata": ("spark/metadata", lambda log: log.query_id()),
    "offsets": ("spark/offsets/5", lambda log: (log.offsets(5), log.planned("first", 5))),
    "planned": ("spark/offsets/6", lambda log: log.planned("first", 6)),
    "commits": ("spark/commits/5", lambda log: log.check_commit(5)),
    "entries": ("spark/sources/0/6", lambda log: log.entries(0, 3)),
    "folded-entries": ("spark/sources/0/5.compact", lambda log: (log.entries(0, 3), log.entry(0, 4))),
    "other-source": ("spark/sources/1/0", lambda log: log.check_own("spark/sources/1/0")),
}
TARGETS = {
    one.name: one
    for one in (
        Target("manifest", _manifest, _manifests),
        Target(
            "manifest-body",
            lambda data: _manifest(_sealed(data, "manifest")),
            lambda: [_body(one, "manifest") for one in _manifests()],
        ),
        Target("marker", _marker, lambda: material().read(MARKER)),
        Target(
            "boundary", _boundary, lambda: [msgspec.json.encode(Boundary(1, 5, 7, "me")), *_records("gc/boundary/*")]
        ),
        Target(
            "pin",
            _pin,
            lambda: [msgspec.json.encode(Pin("release", 3, 7, "me", "why", "/fork")), *_records("pins/*")],
        ),
        Target("lease", _lease, lambda: [LEASE]),
        Target("index", _index, lambda: material().read("gc/outputs/*")),
        Target("part", _part, _parts),
        Target("list-of-files", _list, lambda: [b'{"0":["file:///a 1","file:///b 2"]}']),
        Target("segment", _raw_segment, lambda: [_changelog()]),
        Target(
            "forged-segment",
            lambda data: _segment(forged(material().changelog[0], data), data),
            lambda: [_changelog()],
        ),
        Target("bundle", _bundle, lambda: [material().original[material().part[0].path]]),
        Target("folded", _raw_folded, lambda: [_folded()]),
        Target("forged-folded", lambda data: _sorted(forged(material().folded[0], data), data), lambda: [_folded()]),
        Target("panes", _raw_panes, lambda: [_panes()]),
        Target("forged-panes", lambda data: _rows(forged(material().panes, data), data), lambda: [_panes()]),
        Target("forged-ledger", lambda data: _rows(forged(material().late, data), data), lambda: [_late()]),
        Target("description", _description, _configurations),
        Target("table", _table, lambda: [msgspec.json.encode(one) for one in (*SPECS, MAIN)]),
        Target("type", _type, lambda: TYPES),
        Target("rocksdb-rows", _packed, _packed_rows),
        Target("hashes", _hashes, _streams),
        *(
            Target(f"spark-{name}", _in_spark(path, read), lambda path=path: [spark_root()[1][path]])  # type: ignore[misc]
            for name, (path, read) in SPARK.items()
        ),
    )
}
LEASE = (
    b'{"process":{"host":"h","pid":7,"space":"s","started":1},"epoch":1,"writer":"w",'
    b'"since_us":1,"written_us":2,"duration_us":3}'
)
TYPES = [
    b"int64",
    b"timestamp[us, tz=UTC]",
    b"decimal128(10, 2)",
    b"list<item: struct<a: int32 not null, b: map<string, double>>>",
    b"fixed_size_list<item: fixed_size_binary[3]>[2]",
]


def _records(pattern: str) -> list[bytes]:
    return [_body(one, "record") for one in material().read(pattern)]
