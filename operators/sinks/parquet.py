"""A folder of Parquet files that any reader can glob: a file for each delivery, whole or not there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.rows import Rows, tables_of
from tidestate.operators.sinks.stored_columns import ColumnChoice, stored_columns
from tidestate.operators.sinks.target_columns import TargetColumns, not_of_parquet
from tidestate.operators.sinks.withdrawing import WithdrawingSink
from tidestate.recovery.log.names import DIGITS
from tidestate.recovery.log.outputs import DeliveryId
from tidestate.statestore.arguments import checked
from tidestate.statestore.errors import CommitUnknownError, ConflictError, UnavailableError
from tidestate.statestore.roots import checked_place
from tidestate.statestore.secrets import public_url, secrets_of_url
from tidestate.statestore.storage.objects import Objects
from tidestate.statestore.storage.options import root_with_options

_NAME = re.compile(rf"([0-9]{{{DIGITS}}})-(.+)\.parquet")


class ParquetSink(WithdrawingSink):
    """Writes each delivery as one file, ``<checkpoint>-<run>.parquet``, to a folder or a prefix in remote storage.

    The name is the id, and a file is created whole or not at all: each row is there once, and a reader that lists the
    folder sees whole checkpoints. ``changes`` is ``append`` or ``changelog``; files never change, so there is no
    upsert. On Spark the rows pass through the driver, which holds the file, compressed, until it is complete.
    ``storage_options`` are fsspec's for a folder in remote storage, such as credentials.
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
        compression: str = "zstd",
        behind: int = 0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        place = checked_place(folder, "the folder of a sink")
        super().__init__(changes, key, behind, secrets_of_url(place), stored_columns(columns, delivery_column))
        self._objects, self._compression = Objects(root_with_options(place, storage_options)), compression

    def __str__(self) -> str:
        return f"ParquetSink({public_url(self._objects.root)!r})"

    def store(self, rows: Rows, delivery: DeliveryId) -> None:
        name = _name(delivery)
        if not self._objects.exists(name):
            with contextlib.suppress(ConflictError):  # an older self of this job has just written it
                self._objects.create(name, self._file(rows, delivery))

    def stored(self, run: str) -> int:
        return max((one.checkpoint for one in self._deliveries() if one.run == run), default=0)

    def _deliveries(self) -> list[DeliveryId]:
        names = map(_NAME.fullmatch, self._objects.names(""))
        return [DeliveryId(name[2], int(name[1])) for name in names if name]

    def count_rows(self) -> Mapping[str | None, int | None]:
        return {str(one): None for one in self._deliveries()}

    def remove(self, deliveries: Sequence[DeliveryId], last: Mapping[str, int]) -> None:
        # The newest first: what is left ends where `stored` says, whenever this one dies.
        for one in sorted(deliveries, key=lambda one: one.checkpoint, reverse=True):
            self._objects.delete(_name(one))

    def _file(self, rows: Rows, delivery: DeliveryId) -> bytes:
        tables, into = tables_of(rows), pa.BufferOutputStream()
        # A create that lost its reply knows its own bytes by the id in them.
        schema = self.schema(tables.schema).with_metadata({"tidestate.delivery": str(delivery)})
        with pq.ParquetWriter(into, schema, compression=self._compression) as writer:
            for table in tables.each:
                writer.write_table(self.formed(table, delivery).rows.cast(schema))
        return into.getvalue().to_pybytes()

    def passes(self, error: BaseException) -> bool | None:
        return True if isinstance(error, UnavailableError | CommitUnknownError) else None


def _name(delivery: DeliveryId) -> str:
    return f"{delivery.checkpoint:0{DIGITS}d}-{delivery.run}.parquet"
