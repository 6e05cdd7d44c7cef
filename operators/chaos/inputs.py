"""The input of a job under faults: files in order of name, copied once, each of them a batch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from tidestate.operators.chaos.start import BatchCut, JobInput
from tidestate.operators.describe.runs import Batch
from tidestate.operators.local.history_files import HistoryFiles, schema_of
from tidestate.statestore.errors import UsageError


def copied_input(
    names: Sequence[str], paths: Mapping[str, Sequence[str]], columns: str | None, folder: Path
) -> JobInput:
    """Copies of the files of the streams of these ``names``. Raises `UsageError` unless each has some."""
    if set(paths) != set(names):
        raise UsageError(
            "give the files of each stream by its name", code="streams", streams=list(names), found=sorted(paths)
        )
    schema = schema_of(columns) if columns else None
    folders = {}
    for index, name in enumerate(names):
        history = HistoryFiles.find(paths[name], schema)
        folders[name] = folder / str(index)
        folders[name].mkdir(parents=True)
        for number, path in enumerate(history.files):
            copy = folders[name] / f"{number:05d}{path.suffix.lower()}"
            shutil.copyfile(path, copy)
            os.utime(copy, (1_000_000_000 + number,) * 2)  # by which Spark orders them
    return JobInput(folders, columns)


def batches_of(job_input: JobInput, cut: BatchCut | None = None, pieces: int | None = None) -> list[Batch]:
    """What a standalone run reads; in so many ``pieces`` instead of the batches of a ``cut``."""
    read = {name: _tables(job_input, name) for name in job_input.folders}
    streams = [
        {
            name: pa.concat_tables([read[name][0].slice(0, 0), *(read[name][number] for number in numbers)])
            for name, numbers in zip(read, batch, strict=True)
        }
        for batch in cut or job_input.cut
    ]
    return [*streams] if pieces is None else [*_recut(streams, pieces)]


def _tables(job_input: JobInput, name: str) -> list[pa.Table]:
    files = job_input.files(name)
    history = HistoryFiles.find(
        [str(path) for path in files], schema_of(job_input.columns) if job_input.columns else None
    )
    empty = history.schema.empty_table()
    return [
        pa.concat_tables([empty, *HistoryFiles.find([str(path)], history.schema).batches(history.schema.names)])
        for path in files
    ]


def _recut(streams: list[dict[str, pa.Table]], pieces: int) -> list[dict[str, pa.Table]]:
    tables = {name: pa.concat_tables([batch[name] for batch in streams]) for name in streams[0]}
    batches = []
    # Each bound comes from the whole number of rows, so that no row is lost or twice in two batches.
    for piece in range(pieces):
        bounds = {
            name: [rows.num_rows * (piece + step) // pieces for step in (0, 1)] for name, rows in tables.items()
        }
        batches.append({name: rows.slice(a, b - a) for name, rows in tables.items() for a, b in [bounds[name]]})
    return batches
