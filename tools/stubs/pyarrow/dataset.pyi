from collections.abc import Iterator, Sequence
from pathlib import Path

from ._tables import RecordBatch, Table
from ._types import Schema
from .csv import ConvertOptions

class Dataset:
    @property
    def schema(self) -> Schema: ...
    def count_rows(self) -> int: ...
    def to_batches(
        self, columns: Sequence[str] | None = None, *, batch_size: int = 131072
    ) -> Iterator[RecordBatch]: ...
    def to_table(self, columns: Sequence[str] | None = None) -> Table: ...

class FileFormat: ...

class CsvFileFormat(FileFormat):
    def __init__(self, *, convert_options: ConvertOptions | None = None) -> None: ...

def dataset(
    source: str | Path | Sequence[str] | Sequence[Path],
    schema: Schema | None = None,
    format: FileFormat | str | None = None,
) -> Dataset: ...
