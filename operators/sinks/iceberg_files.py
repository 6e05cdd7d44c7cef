"""Small files of an Iceberg table rewritten as larger ones, by ``pyiceberg``, which has no such operation of its own.

The commit takes files out and puts others in, and nothing but files: it names those that were read, so it cannot take
out what came later. A commit meanwhile makes it fail as a whole; the new files are then in no snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files

from tidestate.statestore.arrays import in_shares

_SMALL_FILE_BYTES = 32 << 20
"""Files from this size on are left as they are."""
_TOGETHER_BYTES = 64 << 20
"""The files that are read at once have so many bytes, compressed."""


def rewrite_small_files(table: Any, properties: Mapping[str, str]) -> None:
    """Rewrite the small files of each partition of a ``table``, and set these ``properties`` of it with them. A table
    without several small files in one partition is left as it is. Raises what pyiceberg raises.
    """
    groups = [tasks for tasks in _small_files(table) if len(tasks) > 1]
    if not groups:
        return
    with table.transaction() as changing:
        changing.set_properties(dict(properties))
        with changing.update_snapshot().overwrite() as rewriting:
            for tasks in groups:
                scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
                for file in _dataframe_to_data_files(table.metadata, scan.to_table(tasks), table.io):
                    rewriting.append_data_file(file)
                for task in tasks:
                    rewriting.delete_data_file(task.file)


def _small_files(table: Any) -> Iterator[list[Any]]:
    """Small files that may become one: of one partition of today's kind, without rows that others have deleted."""
    of_partition = defaultdict[Any, list[Any]](list)
    for task in table.scan().plan_files():
        file = task.file
        is_small = file.file_size_in_bytes < _SMALL_FILE_BYTES
        if is_small and file.spec_id == table.spec().spec_id and not task.delete_files:
            of_partition[tuple(file.partition[place] for place in range(len(file.partition)))].append(task)
    for tasks in of_partition.values():
        yield from in_shares(tasks, lambda task: task.file.file_size_in_bytes, _TOGETHER_BYTES)
