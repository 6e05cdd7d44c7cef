"""A folder of Parquet files that any reader can glob: a file for each delivery, whole or not there.

With partitions a delivery is a file in each folder that it has rows for. No storage creates several files at once,
so a reader that lists the folders may see a part of a delivery; the object ``_deliveries/<checkpoint>-<run>.json``,
which is created after them, names those of a whole one. Who died before it creates the same files again: their names
are the id, so what is there stays, and the rest comes.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.hive_folders import by_folder, without_partitions
from tidestate.operators.sinks.partitions import PartitionChoice, other_partitions, target_partitions
from tidestate.operators.sinks.rows import Rows, tables_of
from tidestate.operators.sinks.stored_columns import ColumnChoice, stored_columns
from tidestate.operators.sinks.target_columns import TargetColumns, not_of_parquet
from tidestate.operators.sinks.withdrawing import WithdrawingSink
from tidestate.recovery.log.manifest import DIGITS, DeliveryId
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import CommitUnknownError, ConflictError, UnavailableError
from tidestate.statestore.roots import checked_place
from tidestate.statestore.secrets import public_url, secrets_of_url
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.options import given_options, root_with_options, secrets_of_storage

_NAME = re.compile(rf"([0-9]{{{DIGITS}}})-(.+)\.parquet")
_WHOLE = "_deliveries"
"""The folder that has an object for each delivery that is there as a whole. Readers skip what begins so."""
_MARK = re.compile(rf"([0-9]{{{DIGITS}}})-(.+)\.json")
_LAYOUT = "_partitions.json"
"""What the partitions of the folder are; a folder without partitions has none."""


class ParquetSink(WithdrawingSink):
    """Writes each delivery as one file, ``<checkpoint>-<run>.parquet``, to a folder or a prefix in remote storage.

    The name is the id, and a file is created whole or not at all: each row is there once, and a reader that lists the
    folder sees whole checkpoints. ``changes`` is ``append`` or ``changelog``; files never change, so there is no
    upsert. On Spark the rows pass through the driver, which holds the file, compressed, until it is complete.
    ``storage_options`` are fsspec's for a folder in remote storage, such as credentials.

    With ``partition_by``, such as ``["k", sinks.day("window_start")]``, a delivery is a file in each folder
    ``k=…/window_start_day=…`` that it has rows for. Partition columns are in the names of folders alone, as Hive has
    it. Each row is there once; a reader that lists the folders may see a part of the newest delivery.

    There is no ``compact=``: who lists the folder while files become one would find their rows twice or not at all
    (docs/how-to/write-to-a-sink.md#compact).
    """

    forms = ("append", "changelog")
    needs_column = False
    target_columns = TargetColumns(lacks=not_of_parquet)

    @checked
    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        changes: Form = "append",
        key: str | Sequence[str] | None = None,
        columns: ColumnChoice = None,
        delivery_column: str | None = None,
        partition_by: PartitionChoice = None,
        compression: str = "zstd",
        behind: int = 0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        place, stored = checked_place(folder, "the folder of a sink"), stored_columns(columns, delivery_column)
        root = root_with_options(place, storage_options)
        secrets = secrets_of_url(place) + secrets_of_storage(given_options(root))
        super().__init__(changes, key, behind, secrets, stored)
        self._objects, self._compression = Objects(root), compression
        self._partitions, self._same_partitions = target_partitions(partition_by, stored), False

    def __str__(self) -> str:
        return f"ParquetSink({public_url(self._objects.root)!r})"

    def schema(self, schema: pa.Schema) -> pa.Schema:
        columns = super().schema(schema)
        self._partitions.check(columns)
        return without_partitions(columns, self._partitions)

    def store(self, rows: Rows, delivery: DeliveryId) -> None:
        self._check_partitions(makes=True)
        last = _mark(delivery) if self._partitions else _name(delivery)
        if self._objects.exists(last):
            return
        files = self._files(rows, delivery)
        # The mark comes last: it says that the files are all there.
        marks = (
            {last: msgspec.json.encode({"delivery": str(delivery), "files": [*files]})} if self._partitions else {}
        )
        for path, data in (files | marks).items():
            with contextlib.suppress(ConflictError):  # this job, or an older self of it, has written it before
                self._objects.create(path, data)

    def stored(self, run: str) -> int:
        self._check_partitions()
        return max((one.checkpoint for one in self._whole_deliveries() if one.run == run), default=0)

    def _whole_deliveries(self) -> list[DeliveryId]:
        if not self._partitions:
            return [delivery for _, delivery in self._found_files("", 0)]
        marks = map(_MARK.fullmatch, self._objects.names(_WHOLE))
        return [DeliveryId(mark[2], int(mark[1])) for mark in marks if mark]

    def _found_files(self, folder: str, levels: int) -> Iterator[tuple[str, DeliveryId]]:
        """The paths of files so many folders below this one, and the deliveries that they are of."""
        for name in self._objects.names(folder):
            path = f"{folder}/{name}" if folder else name
            if levels:
                if "=" in name:
                    yield from self._found_files(path, levels - 1)
            elif found := _NAME.fullmatch(name):
                yield path, DeliveryId(found[2], int(found[1]))

    def count_rows(self) -> Mapping[str | None, int | None]:
        self._check_partitions()
        parts = (delivery for _, delivery in self._found_files("", len(self._partitions.fields)))
        # Also those that are there in part: their job has died, and may have been taken back since.
        return {str(delivery): None for delivery in {*self._whole_deliveries(), *parts}}

    def remove(self, deliveries: Sequence[DeliveryId], last: Mapping[str, int]) -> None:
        files: dict[DeliveryId, list[str]] = {}
        for path, delivery in self._found_files("", len(self._partitions.fields)):
            files.setdefault(delivery, []).append(path)
        # The newest first: what is left ends where `stored` says, whenever this one dies. The mark before the files:
        # else it would say that they are there.
        for delivery in sorted(deliveries, key=lambda one: one.checkpoint, reverse=True):
            for path in [*([_mark(delivery)] if self._partitions else []), *files.get(delivery, [])]:
                self._objects.delete(path)

    def _check_partitions(self, *, makes: bool = False) -> None:
        """Raise `UsageError` (``sink-partition``) where the folder has files in other partitions: its readers would
        find no table in it. ``makes``: an empty folder gets those of this sink.
        """
        names, found = self._partitions.names, list[str]()
        if self._same_partitions:
            return
        if self._objects.exists(_LAYOUT):
            found = msgspec.json.decode(self._objects.read(_LAYOUT))["partition_by"]
        elif names and not any(map(_NAME.fullmatch, self._objects.names(""))):
            if not makes:
                return
            try:
                self._objects.create(_LAYOUT, msgspec.json.encode({"partition_by": names, "id": uuid.uuid4().hex}))
                found = names
            except ConflictError:  # another one has begun with it
                self._check_partitions()
                return
        if found != names:
            raise other_partitions(found, names, str(self))
        self._same_partitions = True

    def _files(self, rows: Rows, delivery: DeliveryId) -> dict[str, bytes]:
        """The files of a delivery by their paths."""
        tables = tables_of(rows)
        # A create that lost its reply knows its own bytes by the id in them.
        schema = self.schema(tables.schema).with_metadata({"tidestate.delivery": str(delivery)})
        buffers: dict[str, tuple[pa.BufferOutputStream, pq.ParquetWriter]] = {}

        def writer(folder: str) -> pq.ParquetWriter:
            if folder not in buffers:
                into = pa.BufferOutputStream()
                buffers[folder] = into, pq.ParquetWriter(into, schema, compression=self._compression)
            return buffers[folder][1]

        if not self._partitions:
            writer("")  # there is a file even without rows
        for table in tables.each:
            formed = self.formed(table, delivery).rows
            for folder, part in by_folder(formed, self._partitions):
                writer(folder).write_table(part.cast(schema))
        for _, open_writer in buffers.values():
            open_writer.close()
        named = ((f"{folder}/" if folder else "", into) for folder, (into, _) in buffers.items())
        return {f"{folder}{_name(delivery)}": into.getvalue().to_pybytes() for folder, into in named}

    def passes(self, error: BaseException) -> bool | None:
        return True if isinstance(error, UnavailableError | CommitUnknownError) else None


def _name(delivery: DeliveryId) -> str:
    return f"{delivery.checkpoint:0{DIGITS}d}-{delivery.run}.parquet"


def _mark(delivery: DeliveryId) -> str:
    return f"{_WHOLE}/{delivery.checkpoint:0{DIGITS}d}-{delivery.run}.json"
