"""Rows of a root as an Arrow dataset: parts that are read when a filter leaves them over, and not before.

A part says which rows it can have, as Parquet statistics do for a file: `pyarrow.dataset` does not open one whose
rows a filter cannot want. A part of the output is a Parquet file as it lies in the root. What has to be computed,
rows of a state table or the last pane of each window, has no file: such parts are computed when they are opened, and
look like files to Arrow. So DuckDB, Polars and Spark read all of them in the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NoReturn, Protocol

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from tidestate.statestore.arrays import in_shares
from tidestate.statestore.errors import UsageError
from tidestate.statestore.files.checked_input import CheckedInput
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.storage.objects import Objects

SHARE_BYTES = 32 << 20
"""The files that one task reads, if it reads several."""


_SYSTEMS: deque[object] = deque(maxlen=16)
_FILES: deque[object] = deque(maxlen=64)
"""What Arrow has opened of late. Its threads let go of a file a moment after the rows are there, for which they need
Python's lock; in a process that ends in that moment they would abort it, so the last reference is here.
"""


class ScanPart(Protocol):
    """Some rows of a scan. It can be pickled: tasks read parts."""

    @property
    def name(self) -> str:
        """Unlike that of any other part of the scan."""
        ...

    @property
    def size(self) -> int:
        """About how many bytes are read for it."""
        ...

    def where(self, schema: pa.Schema) -> ds.Expression | None:
        """What holds of all its rows, if that is known without reading any."""
        ...

    def open(self, objects: Objects, schema: pa.Schema) -> CheckedInput | pa.Buffer:
        """Its rows as a file in the format of the scan: one of the root, or one that was computed."""
        ...


@dataclass(frozen=True)
class FilePart:
    """A Parquet file of panes or ledger rows. ``facts``: columns that are not in the file, with their values."""

    ref: FileRef
    facts: Mapping[str, int | str]

    @property
    def name(self) -> str:
        """The path of the file below the root."""
        return self.ref.path

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return self.ref.bytes

    def where(self, schema: pa.Schema) -> ds.Expression | None:
        """The columns that the file has not."""
        return conjunction(
            ds.field(name) == pa.scalar(value, schema.field(name).type) for name, value in self.facts.items()
        )

    def open(self, objects: Objects, schema: pa.Schema) -> CheckedInput:
        """The file, whose checksum is compared while it is read."""
        return CheckedInput(objects, self.ref)


@dataclass(frozen=True)
class RowScan:
    """Rows of a root, not read yet: their columns, and the parts in order. All parts are Parquet files; where it
    ``is_computed``, none is, and each is computed when it is read. A task that gets it reads from ``root``.
    """

    root: str
    bases: tuple[str, ...]
    schema: pa.Schema
    parts: tuple[ScanPart, ...]
    is_computed: bool = False

    def dataset(self) -> ds.Dataset:
        """All rows, for readers of Arrow datasets."""
        files = fs.PyFileSystem(_PartFiles(Objects(self.root, bases=self.bases), self.schema, self.parts))
        _SYSTEMS.append(files)
        form = ds.IpcFileFormat() if self.is_computed else ds.ParquetFileFormat()
        wheres = [part.where(self.schema) for part in self.parts]
        fragments = [
            form.make_fragment(part.name, files)
            if where is None
            else form.make_fragment(part.name, files, partition_expression=where)
            for part, where in zip(self.parts, wheres, strict=True)
        ]
        return ds.FileSystemDataset(fragments, self.schema, form, files)

    def within(self, where: ds.Expression | None) -> RowScan:
        """The parts that can have rows for a filter; nothing is read."""
        if where is None:
            return self
        left = {fragment.path for fragment in self.dataset().get_fragments(where)}
        return replace(self, parts=tuple(part for part in self.parts if part.name in left))

    def shares(self) -> list[RowScan]:
        """The parts for tasks, in order: files together up to `SHARE_BYTES`, each computed part alone."""
        most = -1 if self.is_computed else SHARE_BYTES
        return [replace(self, parts=tuple(share)) for share in in_shares(self.parts, lambda part: part.size, most)]

    def batches(self, where: ds.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a filter, by part, in order."""
        for part in self.parts:
            yield from replace(self, parts=(part,)).dataset().to_batches(filter=where)


def conjunction(conditions: Iterable[ds.Expression]) -> ds.Expression | None:
    """The conjunction of these conditions; None if there are none."""
    terms = list(conditions)
    return reduce(lambda left, right: left & right, terms) if terms else None


def between(schema: pa.Schema, name: str, low: pa.Scalar | None, high: pa.Scalar | None) -> ds.Expression | None:
    """That the values of a column lie between two, both inclusive; None is no bound."""
    kind = schema.field(name).type
    conditions = []
    if low is not None:
        conditions.append(ds.field(name) >= low.cast(kind))
    if high is not None:
        conditions.append(ds.field(name) <= high.cast(kind))
    return conjunction(conditions)


def computed_file(schema: pa.Schema, rows: Iterable[pa.Table]) -> pa.Buffer:
    """Computed rows as an Arrow IPC file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for table in rows:
            writer.write_table(table.cast(schema))
    return sink.getvalue()


def plain(schema: pa.Schema) -> pa.Schema:
    """The columns with values in place of dictionaries, which not every reader of Arrow data takes."""
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in schema
    ]
    return pa.schema(fields)


def free_name(name: str, names: Sequence[str]) -> str:
    """A name for a column of ours: with an underscore where the job has one of that name."""
    return name if name not in names else free_name(f"{name}_", names)


class _PartFiles(fs.FileSystemHandler):
    """Parts as files of a file system that has nothing else, and cannot be written to."""

    def __init__(self, objects: Objects, schema: pa.Schema, parts: Sequence[ScanPart]) -> None:
        self._objects, self._schema = objects, schema
        self._parts = {part.name: part for part in parts}
        self._buffers: dict[str, pa.Buffer] = {}

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = object.__hash__

    def get_type_name(self) -> str:
        return "tidestate"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        kinds = ((path, fs.FileType.File if path in self._parts else fs.FileType.NotFound) for path in paths)
        return [fs.FileInfo(path, kind) for path, kind in kinds]

    def open_input_file(self, path: str) -> pa.NativeFile:
        # A scan opens an IPC file twice, to look at its columns and to read some: the second time it gets the same.
        buffer = self._buffers.pop(path, None)
        source = self.open_part(path) if buffer is None else buffer
        if isinstance(source, CheckedInput):
            _FILES.append(file := pa.PythonFile(source, mode="r"))
            return file
        if buffer is None:
            self._buffers[path] = source
        return pa.BufferReader(source)

    def open_part(self, path: str) -> CheckedInput | pa.Buffer:
        """Read or compute a part."""
        return self._parts[path].open(self._objects, self._schema)

    open_input_stream = open_input_file

    def _refuse(self, *_arguments: object, **_options: object) -> NoReturn:
        raise UsageError(
            "rows of a checkpoint are read-only: nothing can be written to this dataset", code="read-only"
        )

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse
