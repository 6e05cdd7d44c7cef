"""The worked example of docs/reference/format.md, made by the runner and read without any code of ours."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
import xxhash

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.table_model import moment
from tests.helpers.worked_example import SECOND, batch
from tidestate import Aggregation, agg
from tidestate.statestore.spec.store import Parquet

EVENTS = batch([(1, "a", 0), (2, "a", 0), (12, "b", 0)])


def example() -> Aggregation:
    job = ts.stream(event_time="t").group_by("k").window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    return job.allowed_lateness("0 seconds")


def operator(root: Path) -> dict:
    return evidence.manifests(root)[-1]["operators"]["windows"]


def partition(root: Path) -> dict:
    (found,) = operator(root)["partitions"]
    return found


def test_the_changelog_of_the_worked_example(tmp_path: Path) -> None:
    example().standalone(checkpoint=tmp_path).run([EVENTS])
    state = partition(tmp_path)
    assert operator(tmp_path)["expired"] == {"parts": 10 * SECOND, "groups": 12 * SECOND, "marks": 12 * SECOND}
    assert state["expired"] == {}
    (ref,) = state["files"]
    rows = pa.ipc.open_file(tmp_path / ref["path"]).read_all()
    assert rows.to_pylist() == [{"__op": 0, "slice_end": moment(20 * SECOND), "k": "b", "n": 1}]
    assert rows.schema.field("__op").type == pa.int8()
    (pane,) = evidence.rows(tmp_path, evidence.manifests(tmp_path)[-1]["panes"])
    assert pane == (0, 10 * SECOND, "a", 2, 0, "on_time", "emit", True)


def test_duckdb_reads_a_snapshot_panes_and_the_ledger(tmp_path: Path) -> None:
    more = batch([(13, "b", 0), (14, "c", 0), (1, "a", 0)])
    example().standalone(checkpoint=tmp_path, store=Parquet(snapshot_bytes=1)).run(
        [EVENTS, more, batch([(15, "c", 0)])]
    )
    snapshots = [ref["path"] for ref in partition(tmp_path)["files"] if ref.get("kind") == "snapshot"]
    (path,) = snapshots
    state = duckdb.sql(f"select epoch_us(slice_end), k, n from '{tmp_path / path}' order by k").fetchall()
    assert state == [(20 * SECOND, "b", 1)]  # as of its last checkpoint; what came later is in the changelogs
    panes = duckdb.sql(f"select k, n, pane, timing, kind, last from '{tmp_path}/panes/windows/*.parquet'").fetchall()
    assert panes == [("a", 2, 0, "on_time", "emit", True)]
    late = duckdb.sql(f"select k, reason, epoch_us(watermark) from '{tmp_path}/late/windows/*.parquet'").fetchall()
    assert late == [("a", "very_late", 12 * SECOND)]


def test_the_chain_of_manifests_can_be_checked_by_anybody(tmp_path: Path) -> None:
    example().standalone(checkpoint=tmp_path).run([EVENTS, EVENTS], drain=True)
    parent = ""
    for path in sorted((tmp_path / "manifests").iterdir()):
        data = path.read_bytes()
        body = data[data.index(b'"manifest":') + len(b'"manifest":') : -2]
        file = json.loads(data)
        assert file["checksum"] == f"xxh3:{xxhash.xxh3_64_hexdigest(body)}"
        assert file["manifest"]["parent"] == parent
        assert path.name == f"{file['manifest']['id']:020d}.json"
        parent = file["checksum"]


@pytest.mark.parametrize("kind", ["panes", "late", "files"])
def test_every_file_is_named_with_its_size_rows_and_checksum(tmp_path: Path, kind: str) -> None:
    late = batch([(1, "a", 0)])
    example().standalone(checkpoint=tmp_path).run([EVENTS, late])
    refs = (
        partition(tmp_path)["files"]
        if kind == "files"
        else [r for m in evidence.manifests(tmp_path) for r in m[kind]]
    )
    assert refs
    for ref in refs:
        data = (tmp_path / ref["path"]).read_bytes()
        assert ref["bytes"] == len(data)
        assert ref["checksum"] == f"xxh3:{xxhash.xxh3_64_hexdigest(data)}"
        assert ref["rows"] == 1
