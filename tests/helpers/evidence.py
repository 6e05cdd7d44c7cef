"""What a checkpoint holds, read with json and pyarrow alone: these tests trust no reader of ours."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = tuple[Any, ...]


def manifests(root: Path) -> list[dict[str, Any]]:
    """All manifests, oldest first; ids are dense."""
    files = sorted((root / "manifests").glob("*.json"))
    found = [json.loads(path.read_bytes())["manifest"] for path in files]
    assert [manifest["id"] for manifest in found] == list(range(1, len(found) + 1))
    return found


def work(root: Path) -> list[dict[str, Any]]:
    """The manifests that are batches or ticks: every start adds a fence between them."""
    return [manifest for manifest in manifests(root) if manifest["kind"] != "fence"]


def operator(manifest: dict[str, Any]) -> dict[str, Any]:
    """What a manifest says of its only operator."""
    (found,) = manifest["operators"].values()
    return dict(found)


def plain(table: pa.Table) -> list[Row]:
    """Rows as tuples, times as microseconds."""
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.columns]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def rows(root: Path, refs: list[dict[str, Any]], columns: Sequence[str] | None = None) -> list[Row]:
    """Rows of the pane or ledger files that a manifest names."""
    tables = [pq.ParquetFile(root / ref["path"]).read() for ref in refs]
    return [row for table in tables for row in plain(table.select(columns) if columns else table)]


def panes(root: Path) -> list[Counter[Row]]:
    """The panes of each batch or tick."""
    return [Counter(rows(root, manifest["panes"])) for manifest in work(root)]


def ledger(root: Path, columns: Sequence[str]) -> Counter[Row]:
    """All rejected events: the named columns, the reason and the watermark they met."""
    every = [*columns, "reason", "watermark"]
    return Counter(row for manifest in work(root) for row in rows(root, manifest["late"], every))


def named_files(root: Path) -> set[str]:
    """Every file some manifest names."""
    found = set()
    for manifest in manifests(root):
        states = [state for operator in manifest["operators"].values() for state in operator["partitions"]]
        refs = [*manifest["panes"], *manifest["late"], *(ref for state in states for ref in state["files"])]
        found |= {ref["path"] for ref in refs}
    return found
