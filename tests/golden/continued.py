"""A root of an earlier version, and how it goes on: what lies next to it, and what a continuation puts out."""

from __future__ import annotations

import json
import logging
import tarfile
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

import tidestate as ts
from tests.helpers.checkout import ROOT
from tidestate import OperatorStream
from tidestate.operators.describe.chain import Chain
from tidestate.operators.describe.configuration import configuration_of, description_of
from tidestate.operators.describe.sides import SIDE, Sides
from tidestate.operators.inspect.query import query
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import parse_type, type_text
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig

ROOTS = ROOT / "tests" / "golden" / "roots"
ADDED_COUNTERS = ("window_in_time", "window_past", "window_future")
"""Counters that versions after that of the oldest roots have added: events by the current window."""
Step = Mapping[str, Any]
"""What a job takes next: ``rows`` of its one stream, or rows by stream (``streams``); the time (``clock``); the late
ledger (``reprocess``), of all operators or the one that is named, of all reasons or one (``reason``); the plan of an
edit of its root (``edit``).
"""


class Root(NamedTuple):
    """What lies next to a root: who made it and how, and the input that follows."""

    name: str
    about: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        return ROOTS / self.name

    @property
    def schemas(self) -> Any:
        stored = self._stored_schemas
        return {side: _of_side(self.sides, side, stored) for side in self.sides.names} if self.sides else stored

    @property
    def steps(self) -> list[Step]:
        steps = [_read_step(step, self._stored_schemas) for step in read_json(self.folder / "input.json")]
        return [_by_side(self.sides, step) for step in steps] if self.sides else steps

    @property
    def sides(self) -> Sides | None:
        """Those of a root whose rows lie next to it as the one stream of both sides; None of all others."""
        only = description_of(self.about["operators"][0]) if list(self.about["schemas"]) == [""] else None
        sides: Sides | None = getattr(only, "sides", None)
        return sides

    @property
    def _stored_schemas(self) -> Any:
        named = {name: _schema(columns) for name, columns in self.about["schemas"].items()}
        return named.get("", named)

    @property
    def expected(self) -> Any:
        return read_json(self.folder / "expected.json")

    def unpack(self, folder: Path) -> Path:
        """A copy of the root below ``folder``."""
        with tarfile.open(self.folder / "root.tar.gz") as archive:
            archive.extractall(folder, filter="fully_trusted")
        return folder / "root"


def read_root(name: str) -> Root:
    return Root(name, read_json(ROOTS / name / "description.json"))


def written(job: OperatorStream) -> dict[str, Any]:
    """A job as it lies next to its root: the configuration of each operator, and what each of several reads."""
    graph = job.graph
    if not isinstance(graph.description, Chain):
        return {"operators": [configuration_of(graph.description)], "inputs": {}}
    inputs = dict(zip(graph.operators, map(list, graph.inputs), strict=True))
    operators = [configuration_of(operator) for operator in graph.description.operators]
    outputs = {"outputs": list(graph.outputs)} if graph.outputs else {}
    return {"operators": operators, "inputs": inputs, **outputs}


def root_names(*runners: str) -> list[str]:
    """Roots of these runners."""
    names = sorted(path.parent.name for path in ROOTS.glob("*/description.json"))
    return [name for name in names if read_root(name).about["runner"] in runners]


class Run:
    """A job on a root, step by step."""

    def __init__(self, about: Mapping[str, Any], job: Any, schemas: Any, root: Path, cache: Path) -> None:
        self.kind, self.schemas, self.root = about["runner"], schemas, root
        how: dict[str, Any] = {"store": store_of(about["store"], cache), "partitions": about["partitions"]}
        self.running: Any
        if self.kind == "harness":
            self.running = job.harness(schemas, folder=root, **how)
        elif self.kind == "standalone":
            self.running = job.standalone(checkpoint=root, **how)
        else:
            self.running = job.by_hand(schemas, checkpoint=root, **how)

    def take(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._take(step)

    def _take(self, step: Step) -> None:
        if "clock" in step:
            self.running.advance_processing_time(step["clock"])
        elif "reprocess" in step:
            operator = step["reprocess"]
            chosen = {} if operator is True else {"operator": operator}
            self.running.reprocess_late(**chosen, **({"reason": step["reason"]} if "reason" in step else {}))
        elif "edit" in step:
            step["edit"](ts.Root(self.root)).execute()
        elif self.kind == "harness":
            self.running.feed(_batch(step))
        elif self.kind == "standalone":
            self.running.run(_Next(self.schemas, _batch(step)))
        elif "streams" in step:
            self.running.add_messages(**step["streams"])
        else:
            self.running.add_messages(step["rows"])
        if self.kind == "by hand":
            self.running.flush()

    def drain(self) -> None:
        if self.kind == "harness":
            self.running.finish()
        else:
            self.running.drain()
        if self.kind == "by hand":
            self.running.flush()

    def close(self) -> None:
        if self.kind == "by hand":
            self.running.close()


def continued(stored: Root, job: OperatorStream, folder: Path) -> dict[str, Any]:
    """What ``job`` puts out on a copy of its root: of the input that follows, and then at its end."""
    root = stored.unpack(folder)
    before = newest_id(root)
    run = Run(stored.about, job, stored.schemas, root, folder / "cache")
    run.take(stored.steps)
    following, after = put_out(root, before), newest_id(root)
    run.drain()
    run.close()
    return {"continued": following, "drained": put_out(root, after)}


class _Next(NamedTuple):
    """A source that has one batch after whatever was read."""

    schema: Any
    batch: Any

    def seek(self, position: Any) -> Iterator[tuple[int, Any]]:
        yield (position or 0) + 1, self.batch


def put_out(root: Path, after: int) -> dict[str, Any]:
    """All that a job has put out and counted since checkpoint ``after``, as JSON has it: the panes and the ledgers of
    each checkpoint that has any, what it has counted since the beginning, watermarks, and the windows it keeps.
    """
    checkpoint = Checkpoint.open(root)
    head = checkpoint.newest()
    assert head is not None
    manifest = head.manifest
    outputs = [one for one in checkpoint.outputs() if one.id > after]
    late = {name: _by_checkpoint(checkpoint, [one.late_of(name) for one in outputs]) for name in manifest.operators}
    return {
        "panes": _by_checkpoint(checkpoint, [one.panes for one in outputs]),
        "late": {name: found for name, found in late.items() if found},
        "counters": dict(sorted(manifest.totals.items())),
        "watermarks": {name: state.watermark_us for name, state in manifest.operators.items()},
        "windows": {name: _windows(root, name) for name in manifest.operators},
    }


def as_counted_then(found: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """What was ``found``, without the counters that the version of a root did not have yet."""
    counted = {}
    for part, output in found.items():
        then = expected[part]["counters"]
        added = {name for name in output["counters"] if name.rpartition(".")[2] in ADDED_COUNTERS} - then.keys()
        counters = {name: count for name, count in output["counters"].items() if name not in added}
        counted[part] = {**output, "counters": counters}
    return counted


def log_lines(records: Iterable[logging.LogRecord]) -> list[str]:
    """Warnings, but for those about rows that were rejected: these are in the ledger as well."""
    lines = [record.getMessage() for record in records if record.levelno >= logging.WARNING]
    return [line for line in lines if " rows rejected by " not in line]


def newest_id(root: Path) -> int:
    head = Checkpoint.open(root).newest()
    assert head is not None
    return head.manifest.id


def _by_checkpoint(checkpoint: Checkpoint, refs: Iterable[Any]) -> list[list[str]]:
    """A row as one line of JSON: its columns by name. Those of a checkpoint in the order of the text: that of the
    files depends on how the state lies.
    """
    found = []
    for some in refs:
        tables = [pq.read_table(pa.BufferReader(checkpoint.objects.map(ref.path))) for ref in some]
        if rows := [_line(row) for table in tables for row in table.to_pylist()]:
            found.append(sorted(rows))
    return found


def _windows(root: Path, operator: str) -> Any:
    """The windows that are kept, with their results; None of an operator without windows."""
    try:
        rows = query(root, operator=operator).get_windows()
    except UsageError as error:
        return error.code
    return sorted(_line(row) for row in rows.to_pylist())


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, default=_text, ensure_ascii=False)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def store_of(name: str, cache: Path) -> StoreConfig:
    """Small limits, so that files are folded."""
    if name == "rocksdb":
        return RocksDB(cache_dir=str(cache), max_levels=3, snapshot_bytes=1)
    return {"memory": Memory, "parquet": Parquet}[name](max_levels=3, snapshot_bytes=1)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def _schema(columns: Mapping[str, str]) -> pa.Schema:
    return pa.schema([(name, parse_type(text)) for name, text in columns.items()])


def schema_texts(schemas: Any) -> dict[str, dict[str, str]]:
    """Schemas by stream as JSON has them; the only one under the empty name."""
    named = {"": schemas} if isinstance(schemas, pa.Schema) else schemas
    return {name: {field.name: type_text(field.type) for field in schema} for name, schema in named.items()}


def _batch(step: Step) -> Any:
    return step["rows"] if "rows" in step else step["streams"]


def _read_step(step: Step, schemas: Any) -> Step:
    if "rows" in step:
        return {"rows": _table(step["rows"], schemas)}
    if "streams" in step:
        return {"streams": {name: _table(rows, schemas[name]) for name, rows in step["streams"].items()}}
    return step


def _of_side(sides: Sides, side: str, whole: pa.Schema) -> pa.Schema:
    """The columns of a side, of the one stream of both."""
    return pa.schema([(name, whole.field(sides.prefixed(side, name)).type) for name in sides.columns_of(side, whole)])


def _by_side(sides: Sides, step: Step) -> Step:
    """Rows of the one stream of both sides, each side by itself."""
    if "rows" not in step:
        return step
    tables = {}
    for side in sides.names:
        rows = step["rows"].filter(pa.array([name == side for name in step["rows"][SIDE].to_pylist()]))
        schema = _of_side(sides, side, rows.schema)
        tables[side] = rows.select([sides.prefixed(side, name) for name in schema.names]).rename_columns(schema.names)
    return {"streams": tables}


def step_text(step: Step) -> Step:
    """A step as JSON has it: whole numbers for times, text for decimals and bytes."""
    if "rows" in step:
        return {"rows": _columns(step["rows"])}
    if "streams" in step:
        return {"streams": {name: _columns(rows) for name, rows in step["streams"].items()}}
    return step


def _columns(table: pa.Table) -> dict[str, list[Any]]:
    return {name: [_plain(value) for value in _numbers(table[name]).to_pylist()] for name in table.column_names}


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.int64()) if pa.types.is_temporal(column.type) else column


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else _text(value)


def _table(columns: Mapping[str, list[Any]], schema: pa.Schema) -> pa.Table:
    return pa.table([_array(columns[field.name], field.type) for field in schema], schema=schema)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else b64decode(value) for value in values], kind)
    return pa.array(values, kind)
