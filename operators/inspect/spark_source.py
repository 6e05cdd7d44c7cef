"""Spark's format ``tidestate``: a root as a table and, of its panes, as a stream. It needs Spark 4.0 or newer.

Spark makes these objects in Python processes of its own, and sends them by pickle from one to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tidestate.operators.inspect.pane_stream import NewestPanes, PaneStream
from tidestate.operators.inspect.scan import (
    changes_of_root,
    checkpoints_of_root,
    late_of_root,
    panes_of_root,
    state_of_root,
)
from tidestate.operators.spark.compat import arrow_schema_of
from tidestate.operators.spark.partitioned_reads import spark_columns
from tidestate.recovery.inspect.rows import in_columns
from tidestate.recovery.inspect.scans import RowScan
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import OutputKind
from tidestate.recovery.log.moments import head_at
from tidestate.statestore.errors import UsageError
from tidestate.statestore.storage.options import of_roots

FORMAT = "tidestate"


def _changes(root: str, since: str, checkpoint: str, of: str = "panes", operator: str | None = None) -> RowScan:
    return changes_of_root(root, since, checkpoint, cast("OutputKind", of), operator)


TABLE_KINDS: dict[str, tuple[Callable[..., RowScan], set[str]]] = {
    "panes": (panes_of_root, {"checkpoint", "operator"}),
    "net": (partial(panes_of_root, net=True), {"checkpoint", "operator"}),
    "late": (late_of_root, {"checkpoint", "operator"}),
    "state": (state_of_root, {"checkpoint", "operator", "table"}),
    "checkpoints": (checkpoints_of_root, set()),
    "changes": (_changes, {"checkpoint", "since", "of", "operator"}),
}
"""The kinds of tables: what reads them, and its arguments that are options."""
CHOICES = {"rewound": ("fail", "again"), "retractions": ("fail", "keep")}
STREAM_OPTIONS = {"since", "operator", *CHOICES}


class TidestateSource(DataSource):  # type: ignore[misc]
    """The root in the option ``path``, as one of `TABLE_KINDS`."""

    roots: ClassVar[tuple[str, ...]] = ()
    """Those with options of storage, see `source_with_options`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checkpoint: str | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of the newest checkpoint, or the chosen one; it is read from then on, whatever is published."""
        return spark_columns(self._scan().schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of rows of that checkpoint."""
        if self.options.get("kind", "panes") == "panes":
            self._given(TABLE_KINDS["panes"][1])  # Spark asks for the columns of a stream in the same way
        return ScanReader(self._scan(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream of the panes."""
        return PaneReader(self._stream, schema)

    def _stream(self) -> PaneStream:
        """The stream that the options name. Raises `UsageError`."""
        arguments = {"kind": "panes", "rewound": "fail", "retractions": "fail", **self._given(STREAM_OPTIONS)}
        if arguments["kind"] != "panes" or any(arguments[name] not in choices for name, choices in CHOICES.items()):
            raise UsageError(
                "a stream can only read panes, of one operator, and takes the options since=, rewound=fail or again, "
                "and retractions=fail or keep",
                code="read-option",
                **{name: arguments[name] for name in ("kind", *CHOICES)},
            )
        stream = PaneStream(
            arguments["path"], arguments.get("since"), arguments["rewound"] == "again", arguments.get("operator")
        )
        if arguments["retractions"] == "fail":
            stream.check_retractions()
        return stream

    def _scan(self) -> RowScan:
        kind = self.options.get("kind", "panes")
        if kind not in TABLE_KINDS:
            raise UsageError(
                "unknown kind of table: choose from those listed",
                code="read-kind",
                found=kind,
                there=list(TABLE_KINDS),
            )
        read, options = TABLE_KINDS[kind]
        arguments = self._given(options | (STREAM_OPTIONS if kind == "panes" else set()))
        if kind == "changes" and "since" not in arguments:
            raise UsageError("changes need the option since=", code="read-option", found=sorted(arguments))
        if "checkpoint" in options:
            # Spark sends the object on: later uses of this table are of the same checkpoint.
            if self._checkpoint is None:
                folder = Checkpoint.open(arguments["path"])
                self._checkpoint = str(head_at(folder, arguments.get("checkpoint")).manifest.id)
            arguments["checkpoint"] = self._checkpoint
        return read(arguments["path"], **{name: arguments[name] for name in options & arguments.keys()})

    def _given(self, options: set[str]) -> dict[str, str]:
        arguments = {name.lower(): value for name, value in self.options.items()}
        if "storage_options" in arguments:
            raise UsageError(
                "Spark writes the options of a reader into plans, views and its catalogue: give those of storage to "
                "register_format(spark, storage_options={root: …})",
                code="storage-options",
                found=["storage_options"],
            )
        unknown_names = sorted(arguments.keys() - {"path", "kind"} - options)
        if unknown_names or "path" not in arguments:
            raise UsageError(
                "unknown options: choose from those listed"
                if unknown_names
                else "name the root: load(path), or the option path",
                code="read-option",
                found=unknown_names,
                there=sorted({"path", "kind"} | options),
            )
        return {**arguments, "path": of_roots(self.roots, arguments["path"])}


def source_with_options(roots: Sequence[str]) -> type[TidestateSource]:
    """The format with options of storage for these roots, which have them along where they are pickled.

    Spark pickles a class that is in no module as it is, with its attributes, and keeps no more of it than these
    bytes: no option of a reader has them, so none of what Spark prints or writes.
    """
    return type(TidestateSource.__name__, (TidestateSource,), {"roots": tuple(roots), "__module__": "__main__"})


class ReadShare(InputPartition):  # type: ignore[misc]
    """The parts of a scan that a task reads."""

    def __init__(self, scan: RowScan) -> None:
        super().__init__(scan)


class ScanReader(DataSourceReader):  # type: ignore[misc]
    """Rows of a scan in the columns that Spark expects.

    It takes no filters. Spark 4.3 keeps them with the table: a later query of the same DataFrame or view that pushes
    no filter of its own gets the rows of the earlier one.
    """

    def __init__(self, scan: RowScan, schema: StructType) -> None:
        self._scan, self._columns = scan, arrow_schema_of(schema)

    def partitions(self) -> list[InputPartition]:
        """A share of the parts for each task."""
        return [ReadShare(share) for share in self._scan.shares()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return share_rows(partition, self._columns)


class PaneReader(DataSourceStreamReader):  # type: ignore[misc]
    """The panes of a job as they come; an offset is a position of `PaneStream`.

    The stream is opened when Spark first asks something of it: Spark reports an error while a reader is made as an
    ``UnboundLocalError`` of its own.
    """

    def __init__(self, open_stream: Callable[[], PaneStream], schema: StructType) -> None:
        self._open_stream, self._columns = open_stream, arrow_schema_of(schema)
        self._newest: NewestPanes | None = None

    @cached_property
    def _stream(self) -> PaneStream:
        return self._open_stream()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins."""
        return dict(self._stream.first())

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """The newest checkpoint with panes."""
        self._newest = self._newest or NewestPanes(self._stream)
        return dict(self._newest.position())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """A share of the files for each task."""
        return [ReadShare(share) for share in self._stream.between(start, end).shares()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return share_rows(partition, self._columns)


def share_rows(partition: InputPartition, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a task. Spark makes a partition without a value where there is none."""
    for batch in partition.value.batches() if partition.value is not None else ():
        yield from in_columns(pa.Table.from_batches([batch]), columns, {}).to_batches()
