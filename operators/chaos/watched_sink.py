"""What a sink was offered, and what it accepted: written down for each call, to be compared."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc

from tidestate.operators.sinks.rows import tables_of
from tidestate.recovery.log.manifest import DeliveryId


class WatchedSink:
    """``sink``, each call of which leaves a file in a folder: before it, and again once it has accepted."""

    def __init__(self, sink: Any, folder: Path) -> None:
        self._sink, self._folder = sink, folder

    def __call__(self, rows: Any, delivery: DeliveryId) -> Any:
        path = self._folder / f"{time.time_ns():020d}-{os.getpid()}.{delivery.checkpoint}.{delivery.run}"
        tables = tables_of(rows)
        table = pa.concat_tables([tables.schema.empty_table(), *tables.each])
        with ipc.new_file(str(path.with_name(f".{path.name}")), table.schema) as writer:
            writer.write_table(table)
        path.with_name(f".{path.name}").rename(path)
        answer = self._sink(rows, delivery)
        if answer is not False:
            path.with_name(f"{path.name}+").touch()
        return answer

    def __getattr__(self, name: str) -> Any:
        """``ready``, ``behind`` and so on are the sink's."""
        return getattr(self._sink, name)


def takes_all(_rows: Any, _delivery: DeliveryId) -> None:
    """A sink for jobs that name none."""
