"""Which batches of a Delta table are plain Parquet files, by what its connector has planned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.left_to_spark import found_or_reason
from tidestate.operators.spark.scan.analysed import DeltaFiles, PlanStep, ReaderSettings, StreamColumn, StreamRelation
from tidestate.operators.spark.scan.batch import InputFiles
from tidestate.operators.spark.scan.decide import DELTA, REBASE, DirectScan, NeedsJvmError, decide
from tidestate.operators.spark.scan.reader import read_ranges
from tidestate.statestore.errors import of_type

PLAIN = ReaderSettings({REBASE: "CORRECTED"})
Entry = dict[str, Any]
Facts = tuple[Entry, Entry, Entry]


def facts() -> Facts:
    """What a plain table says: of readers, of itself, and of a file."""
    protocol = {"minReaderVersion": 3, "readerFeatures": ["deletionVectors", "columnMapping"]}
    metadata = {"format": {"provider": "parquet"}, "configuration": {"delta.enableDeletionVectors": "true"}}
    file = {"path": "d=2024-01-05/k=a%2520b/1.parquet", "partitionValues": {"d": "2024-01-05", "k": "a b"}}
    return protocol, metadata, {**file, "size": 0, "modificationTime": 1, "dataChange": True, "deletionVector": None}


def table(folder: str, *changes: Callable[[Facts], Any]) -> StreamRelation:
    given = facts()
    for change in changes:
        change(given)
    protocol, metadata, file = given
    delta = DeltaFiles(
        folder, json.dumps({"protocol": protocol}), json.dumps({"metaData": metadata}), json.dumps([file])
    )
    columns = (StreamColumn(1, "v", "bigint"), StreamColumn(2, "d", "date"), StreamColumn(3, "k", "string"))
    return StreamRelation(0, DELTA, {}, columns, ("d", "k"), table=True, delta=delta)


def files_of(relation: StreamRelation, root: str = "/root") -> tuple[DirectScan, Any]:
    scan = decide(PlanStep("relation", relation=relation), PLAIN)
    files, delta = InputFiles(root, lambda _: (0, 0)), of_type(relation.delta, DeltaFiles)
    return scan, found_or_reason(lambda: files.of_tables(scan, {0: delta}))


def test_the_files_of_the_log_are_read_with_its_values(tmp_path: Path) -> None:
    path = tmp_path / "a table" / "d=2024-01-05" / "k=a%20b" / "1.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"v": [1, 2], "k": ["of the file"] * 2}), path)

    def sized(given: Facts) -> None:
        given[2]["size"] = path.stat().st_size

    scan, found = files_of(table(f"file:{tmp_path}/a table", sized))
    rows = pa.Table.from_batches(read_ranges(scan, found, 1 << 20))
    assert [tuple(map(str, row.values())) for row in rows.to_pylist()] == [
        ("1", "2024-01-05", "a b"),
        ("2", "2024-01-05", "a b"),
    ]
    _, changed = files_of(table(f"file:{tmp_path}/a table"))
    assert changed == f"a file has changed: expected 0 bytes, found {path.stat().st_size}"


def setting(place: int, name: str, value: Any) -> Callable[[Facts], Any]:
    return lambda given: given[place].__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (setting(0, "minReaderVersion", 4), "reader version is 4"),
        (setting(0, "readerFeatures", ["typeWidening"]), "the table has typeWidening"),
        (setting(0, "readerFeatures", ["unheardOf"]), "the table has unheardOf"),
        (setting(1, "configuration", {"delta.columnMapping.mode": "name"}), "mapped by name"),
        (setting(1, "configuration", {"delta.columnMapping.mode": "id"}), "mapped by id"),
        (setting(1, "format", {"provider": "orc"}), "files are orc"),
        (setting(2, "deletionVector", {"storageType": "u"}), "a file of the table has deletionVector"),
        (setting(2, "unheardOf", 1), "a file of the table has unheardOf"),
        (setting(2, "path", "file:/other/1.parquet"), "outside of its folder"),
        (setting(2, "path", "/other/1.parquet"), "outside of its folder"),
        (setting(2, "path", "a/%2E%2E/../1.parquet"), "outside of its folder"),
        (setting(2, "partitionValues", {"d": "2024-01-05"}), "another partition column"),
        (setting(2, "partitionValues", {"d": "2024-1-5", "k": "a"}), "another partition column"),
        (setting(2, "partitionValues", {"d": "2024-01-05", "k": ""}), "another partition column"),
    ],
)
def test_left_to_spark(change: Callable[[Facts], Any], reason: str) -> None:
    _, found = files_of(table("file:/in", change))
    assert isinstance(found, str)
    assert reason in found


def test_a_table_in_other_storage_is_left_to_spark() -> None:
    assert files_of(table("wasb://in@account/t"))[1] == "the table is at wasb:"
    assert files_of(table("hdfs://name/t"))[1] == "tasks do not read files of hdfs://"


def stream_with(options: dict[str, str]) -> PlanStep:
    return PlanStep("relation", relation=StreamRelation(0, DELTA, options, (StreamColumn(1, "v", "bigint"),)))


def test_options_that_choose_files_are_those_of_the_plan_and_others_are_refused() -> None:
    chosen = {"startingVersion": "3", "skipChangeCommits": "true", "maxFilesPerTrigger": "1", "ignoreDeletes": "true"}
    assert isinstance(decide(stream_with(chosen), PLAIN), DirectScan)
    for option in ("readChangeFeed", "schemaTrackingLocation"):
        with pytest.raises(NeedsJvmError, match=f"the option {option.lower()} of the source"):
            decide(stream_with({option: "true"}), PLAIN)


def test_a_source_without_rows_in_a_batch_has_no_files() -> None:
    empty = PlanStep("empty", columns=(StreamColumn(1, "v", "bigint"),))
    scan = decide(PlanStep("union", below=(empty, empty)), PLAIN)
    files = InputFiles("/root", lambda _: (0, 0))
    assert found_or_reason(lambda: files.of_tables(scan, {})) == "no file of the batch has rows"
