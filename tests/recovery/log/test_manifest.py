"""The manifest's bytes: what goes in comes out, and no changed byte goes unnoticed."""

from __future__ import annotations

import json
import string
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.example_manifest import example
from tests.helpers.table_model import MAIN, NAMED
from tidestate.recovery.log.manifest import (
    END_OF_TIME_US,
    MANIFEST_FORMAT,
    Delivered,
    InputPosition,
    Manifest,
    OperatorState,
    SparkPosition,
)
from tidestate.recovery.log.manifest_file import decode, encode
from tidestate.recovery.log.summary import brief, full, partitions, size_text, time_text
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError, IncompatibleError
from tidestate.statestore.files.refs import FileRef, PartitionState

INT64 = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.dictionaries(st.text(max_size=8), st.integers(0, 2**63 - 1), max_size=4)
NAMES = st.text(string.ascii_letters + "é_-", min_size=1, max_size=20)
FILES = st.builds(
    FileRef,
    path=NAMES,
    bytes=st.integers(0, 2**50),
    checksum=st.just("xxh3:0123456789abcdef"),
    rows=st.integers(0, 2**40),
    table=st.sampled_from(["", "main"]),
    kind=st.sampled_from(["changelog", "run", "snapshot"]),
    segment=st.text(max_size=4),
    first=st.integers(0, 2**40),
    last=st.integers(2**40, 2**41),
    expiry_min=st.none() | INT64,
    expiry_max=st.none() | INT64,
)
STATES = st.builds(
    PartitionState,
    files=st.lists(FILES.map(lambda ref: msgspec.structs.replace(ref, table="main")), max_size=2).map(tuple),
    expired=st.dictionaries(st.sampled_from(["main", "named"]), INT64),
    lineage=st.text(max_size=6),
    sequence=st.integers(0, 2**40),
)
OPERATORS = st.builds(
    OperatorState,
    configuration=st.fixed_dictionaries({"name": st.text(max_size=5), "key": st.lists(st.text(max_size=3))}),
    fingerprint=st.text(max_size=6),
    tables=st.just((MAIN, NAMED)),
    partitions=st.lists(STATES, min_size=1, max_size=2).map(tuple),
    expired=st.dictionaries(st.sampled_from(["main", "named"]), INT64),
)
SPARK = st.builds(
    SparkPosition,
    query_id=st.text(max_size=6),
    batch_id=st.integers(0, 2**40),
    start=st.lists(st.text(max_size=6), max_size=2).map(tuple),
    end=st.lists(st.text(max_size=6), max_size=2).map(tuple),
    files=st.dictionaries(st.sampled_from(["0", "1"]), st.lists(st.text(max_size=4), max_size=2).map(tuple)),
    files_ref=st.none() | FILES,
)
TIMES = st.none() | INT64
MANIFESTS = st.builds(
    Manifest,
    format=st.just(MANIFEST_FORMAT),
    id=st.integers(2**41, 2**60),
    parent=st.text(max_size=6),
    job_id=st.text(max_size=6),
    epoch=st.integers(1, 2**40),
    writer=st.text(max_size=6),
    kind=st.sampled_from(["fence", "batch", "tick"]),
    created_us=INT64,
    operators=st.dictionaries(NAMES, OPERATORS, max_size=2),
    watermark_us=TIMES,
    watermark_before_us=TIMES,
    max_event_us=TIMES,
    processing_us=TIMES,
    drained=st.booleans(),
    spark=st.none() | SPARK,
    input=st.none() | st.builds(InputPosition, batches=st.integers(0, 2**40), last=st.text(max_size=4)),
    panes=st.lists(FILES, max_size=2).map(tuple),
    late=st.lists(FILES, max_size=2).map(tuple),
    delivered=st.builds(Delivered, st.integers(0, 2**40), st.integers(0, 2**40), st.booleans()),
    counters=COUNTS,
    totals=COUNTS,
    fed_by_operator=st.dictionaries(NAMES, st.integers(1, 2**40), max_size=2),
    version=st.sampled_from(["", "0.1.0", "1.0rc1+local"]),
).map(lambda manifest: placed(manifest))


def placed(manifest: Manifest) -> Manifest:
    """With its files where files of such a checkpoint lie."""

    def below(folder: str, refs: tuple[FileRef, ...]) -> tuple[FileRef, ...]:
        return tuple(msgspec.structs.replace(ref, path=folder + ref.path) for ref in refs)

    operators = {
        name: msgspec.structs.replace(
            operator,
            partitions=tuple(
                msgspec.structs.replace(
                    part,
                    files=tuple(
                        msgspec.structs.replace(ref, path=f"data/{name}/{number}/{ref.path}.{ref.table}.{ref.kind}")
                        for ref in part.files
                    ),
                )
                for number, part in enumerate(operator.partitions)
            ),
        )
        for name, operator in manifest.operators.items()
    }
    outputs: dict[str, Any] = {
        kind: below(f"{kind}/{name}/{manifest.id:020d}-", getattr(manifest, kind)) if operators else ()
        for kind in ("panes", "late")
        for name in [next(iter(operators), "")]
    }
    spark = manifest.spark
    if spark is not None and spark.files_ref is not None:
        (ref,) = below("data/spark/", (spark.files_ref,))
        spark = msgspec.structs.replace(spark, files_ref=ref)
    return msgspec.structs.replace(manifest, operators=operators, spark=spark, **outputs)


@given(MANIFESTS)
@pytest.mark.slow
def test_what_is_encoded_is_decoded(manifest: Manifest) -> None:
    data, digest = encode(manifest)
    assert decode(data, "m") == (manifest, digest)
    # The same manifest, the same bytes: a lost reply is recognised by them.
    assert encode(decode(data, "m")[0]) == (data, digest)


@given(MANIFESTS)
def test_the_file_is_json_that_anybody_can_check(manifest: Manifest) -> None:
    data, digest = encode(manifest)
    file = json.loads(data)
    assert sorted(file) == ["checksum", "manifest"]
    inner = data[data.index(b'"manifest":') + len(b'"manifest":') : -2]
    assert file["checksum"] == digest == checksum(inner)
    assert json.loads(inner) == file["manifest"]


def test_every_flipped_bit_is_noticed() -> None:
    manifest = example()
    data, _ = encode(manifest)
    for place in range(len(data)):
        for bit in range(8):
            damaged = data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]
            assert _outcome(damaged) in (manifest, CorruptionError)


@given(place=st.integers(0), byte=st.integers(0, 255), data=st.data())
def test_every_other_byte_is_noticed(place: int, byte: int, data: st.DataObject) -> None:
    manifest = example()
    whole, _ = encode(manifest)
    at = place % len(whole)
    assert _outcome(whole[:at] + bytes([byte]) + whole[at + 1 :]) in (manifest, CorruptionError)


def test_every_torn_file_is_noticed() -> None:
    manifest = example()
    data, _ = encode(manifest)
    assert {_outcome(data[:length]) for length in range(len(data) - 1)} == {CorruptionError}
    assert _outcome(data + b"{}") is CorruptionError


def _outcome(data: bytes) -> object:
    """The manifest, or the class of the one error there may be."""
    try:
        return decode(data, "manifests/7.json")[0]
    except CorruptionError as error:
        named = (error.code, error.context) == ("manifest-damaged", {"path": "manifests/7.json"})
        return CorruptionError if named else error


@pytest.mark.parametrize("found", [MANIFEST_FORMAT + 1, 99, 0])
def test_another_format_is_named_before_anything_else_is_read(found: int) -> None:
    body = b'{"format":%d,"something":"else"}' % found
    data = b'{"checksum":"%s","manifest":%s}' % (checksum(body).encode(), body)
    with pytest.raises(IncompatibleError) as caught:
        decode(data, "m")
    assert caught.value.code == "manifest-format"
    assert caught.value.context == {"path": "m", "expected": MANIFEST_FORMAT, "found": found}


@pytest.mark.parametrize("further", [{"a": 4}, {"a": 8}, {"a": 5, "": 6}, {"../a": 5}], ids=repr)
def test_what_no_operator_can_have_put_back(further: dict[str, int]) -> None:
    """Checkpoint 7, of which all have put back the late rows up to 4."""
    data, _ = encode(example(fed=4, fed_by_operator=further))
    assert _outcome(data) is CorruptionError
    assert decode(encode(example(fed=4, fed_by_operator={"a": 5, "b": 7}))[0], "m")[0].fed_up_to("b") == 7


@pytest.mark.parametrize(
    "further",
    [*({"a": {"x": last}} for last in (4, 8)), {"b": {"x": 5}}, {"a": {}}, {"a": {"": 5}}, {"": {"x": 5}}],
    ids=repr,
)
def test_what_no_operator_can_have_put_back_by_reason(further: dict[str, dict[str, int]]) -> None:
    """Checkpoint 7, of which all have put back the late rows up to 4, and b up to 5."""
    data, _ = encode(example(fed=4, fed_by_operator={"b": 5}, fed_by_reason=further))
    assert _outcome(data) is CorruptionError
    read = decode(encode(example(fed=4, fed_by_operator={"b": 5}, fed_by_reason={"b": {"x": 6}}))[0], "m")[0]
    assert [read.put_back_up_to("b", reason) for reason in "xy"] == [6, 5]


@pytest.mark.parametrize("body", [b"{}", b'{"format":1}', b'{"format":"1"}', b"[]", b"1"], ids=repr)
def test_a_whole_file_that_holds_no_manifest(body: bytes) -> None:
    data = b'{"checksum":"%s","manifest":%s}' % (checksum(body).encode(), body)
    assert _outcome(data) is CorruptionError


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (None, None),
        (0, "1970-01-01 00:00:00"),
        (-1, "1969-12-31 23:59:59.999999"),
        (END_OF_TIME_US, "+inf"),
        (END_OF_TIME_US - 1, f"{END_OF_TIME_US - 1} us"),
        (-(2**63), f"{-(2**63)} us"),
    ],
)
def test_times_for_people(time_us: int | None, text: str | None) -> None:
    assert time_text(time_us) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_440_000, "1.4 MB"),
        (312_000_000, "312 MB"),
        (10**13, "10000 GB"),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert size_text(count) == text


def test_a_manifest_in_a_line_and_in_full() -> None:
    manifest = example(panes=(FileRef("p", 1, "x", 5),), late=(FileRef("l", 1, "x", 2), FileRef("l2", 1, "x", 1)))
    line = brief(manifest)
    assert (line["id"], line["kind"], line["events"], line["panes"], line["rejected"]) == (7, "batch", 12, 5, 3)
    assert (line["state_files"], line["state_bytes"], line["watermark"]) == (1, 10, "1970-01-01T00:00:01.000001Z")
    assert brief(example(drained=True))["kind"] == "drained"
    whole = json.loads(json.dumps(full(manifest)))
    assert (whole["watermark"], whole["created"]) == (line["watermark"], "2023-11-14T22:13:20Z")
    assert [operator["operator"] for operator in whole["operators"]] == ["windows"]
    (row,) = partitions(manifest.operators["windows"])
    assert row == {"partition": 0, "files": 1, "rows": 3, "bytes": 10, "sequence": 6, "lineage": "s", "taken_over": 0}
