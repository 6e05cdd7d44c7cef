"""The files of a state partition as manifests name them, and what they are called. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, TypeAlias

import msgspec

from tidestate.statestore.spec.tables import TableSpec

FileKind = Literal["changelog", "run", "snapshot"]
FILE_FORMAT = "1"


class FileRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file as a manifest names it, or a part of a bundle. ``first`` and ``last`` are the sequences (checkpoint
    ids) it covers.

    ``bundle_bytes`` is the size of the bundle at ``path`` (0: it is no bundle). Then the segment that begins at
    ``start`` is meant, and ``bytes`` and ``checksum`` are those of this part.

    ``root`` says below which root it lies, see `Objects.at`: 0 is the checkpoint's own. ``tail`` is
    ``<bytes>:<checksum>`` of the end of a folded file, its footer: what a reader checks who does not want to read the
    whole.

    A file that was written before a rescale stands in each partition that takes some of it:
    ``share`` numbers, from 1 and oldest first, the lists of files that a partition took over (0: its own). Of such a
    file only rows with a key hash in ``hashes`` (half-open; None: all) count, and of these only what was above
    ``expired``, the bound that held where it came from (None: all).
    """

    path: str
    bytes: int
    checksum: str
    rows: int
    table: str = ""
    kind: FileKind = "changelog"
    segment: str = ""
    previous: str = ""
    first: int = 0
    last: int = 0
    expiry_min: int | None = None
    expiry_max: int | None = None
    tail: str = ""
    root: int = 0
    share: int = 0
    hashes: tuple[int, int] | None = None
    expired: int | None = None
    start: int = 0
    bundle_bytes: int = 0

    @property
    def file_bytes(self) -> int:
        """The size of the file at ``path``."""
        return self.bundle_bytes or self.bytes

    @property
    def location(self) -> Location:
        """Where its bytes are: no two different files of a checkpoint, or parts of a bundle, have the same."""
        return self.root, self.path, self.start


Location: TypeAlias = tuple[int, str, int]
"""A file, or a part of a bundle: the number of its root, the path and the first byte."""

Level: TypeAlias = tuple[FileRef, ...]
"""Files of a table that were folded together, or hold the changes of one checkpoint: disjoint, in key order."""


class PartitionState(msgspec.Struct, frozen=True):
    """All durable state of one state partition: files oldest first, and per table the expiry bound in force.

    A manifest stores it `above` the bounds that hold in all partitions. A step without input changes nothing but
    these bounds before the watermark reaches ``due_mark`` (None: not known) or the clock ``due_us`` (None: never).
    Changes up to sequence ``floor`` have been folded: a cache that is older cannot catch up from files any more.
    """

    files: tuple[FileRef, ...] = ()
    expired: dict[str, int] = {}
    lineage: str = ""
    sequence: int = 0
    floor: int = 0
    due_mark: int | None = None
    due_us: int | None = None

    def above(self, bounds: Mapping[str, int]) -> PartitionState:
        """Without its bounds that are no higher than ``bounds``."""
        own = {table: bound for table, bound in self.expired.items() if bound > bounds.get(table, bound - 1)}
        return self if len(own) == len(self.expired) else msgspec.structs.replace(self, expired=own)

    def under(self, bounds: Mapping[str, int]) -> PartitionState:
        """With each of its bounds raised to that in ``bounds``, if that is higher."""
        raised = {table: max(bound, self.expired.get(table, bound)) for table, bound in bounds.items()}
        whole = self.expired | raised
        return self if whole == self.expired else msgspec.structs.replace(self, expired=whole)


def common_bounds(states: Sequence[PartitionState]) -> dict[str, int]:
    """Per table the bound that holds in all ``states``, for the tables that have one in each."""
    tables = set.intersection(*(set(one.expired) for one in states)) if states else set()
    return {table: min(one.expired[table] for one in states) for table in sorted(tables)}


def files_by_table(files: Sequence[FileRef]) -> dict[str, list[FileRef]]:
    """The files of each table, in their order."""
    tables: dict[str, list[FileRef]] = {}
    for ref in files:
        tables.setdefault(ref.table, []).append(ref)
    return tables


def count_files(files: Iterable[FileRef]) -> int:
    """How many files these are; parts of one bundle are one."""
    return len({(ref.root, ref.path) for ref in files})


def levels_of(files: Sequence[FileRef]) -> list[Level]:
    """The files of one table by level: those of one level begin with the same checkpoint, and came together."""
    return [tuple(level) for _, level in groupby(files, key=lambda ref: (ref.share, ref.first))]


def taken_over(levels: Sequence[Level]) -> int:
    """How many levels were there before a rescale: the oldest ones."""
    return sum(level[0].share > 0 for level in levels)


EXPIRY = ("expiry_min", "expiry_max")
BUNDLE_SUFFIX = ".bundle"
"""How the name of a bundle ends. It has no table: those of other files end in ``<table>.<kind>…``."""


class Contents(msgspec.Struct, frozen=True):
    """The rows of a state file: how many, and the smallest and largest expiry (None: not known)."""

    rows: int
    expiry_min: int | None = None
    expiry_max: int | None = None

    def metadata(self) -> dict[str, str]:
        """For the file's own metadata."""
        return {name: fact(getattr(self, name)) for name in EXPIRY}


class SegmentName(msgspec.Struct, frozen=True):
    """What a new file is of, which says where it goes. ``written`` is the checkpoint it is written for, ``part``
    counts the files that one fold writes, or one change set for a table.
    """

    operator: str
    partition: int
    partitions: int
    first: int
    last: int
    segment: str
    previous: str
    attempt: str
    written: int
    part: int = 0

    def path(self, table: str, kind: FileKind) -> str:
        """The file's path below the root: a name nobody else uses."""
        folded = f"{kind}-{self.first}-{self.last}-{self.part}.parquet"
        segment = f"changelog.{self.part}.arrow" if self.part else "changelog.arrow"
        suffix = segment if kind == "changelog" else folded
        return f"{state_folder(self.operator, self.partition)}{self.written}-{self.attempt}.{table}.{suffix}"

    @property
    def bundle_path(self) -> str:
        """The path of the bundle that the file may be a part of: one for each attempt at a checkpoint."""
        return f"{state_folder(self.operator, self.partition)}{self.written}-{self.attempt}{BUNDLE_SUFFIX}"

    def metadata(self, spec: TableSpec, kind: FileKind) -> dict[str, str]:
        """What the file says of itself."""
        described = {"tidestate.format": FILE_FORMAT, "kind": kind, "table": msgspec.json.encode(spec).decode()}
        return described | {
            field: str(getattr(self, field)) for field in self.__struct_fields__ if field != "written"
        }

    def ref(self, spec: TableSpec, kind: FileKind, contents: Contents, **facts: Any) -> FileRef:
        """How a manifest names the file."""
        return FileRef(
            path=self.path(spec.name, kind),
            table=spec.name,
            kind=kind,
            segment=self.segment,
            previous=self.previous,
            first=self.first,
            last=self.last,
            **msgspec.structs.asdict(contents),
            **facts,
        )


def state_folder(operator: str, partition: int | None = None) -> str:
    """How the paths of an operator's state files begin, or those of one state partition."""
    return f"data/{operator}/" if partition is None else f"data/{operator}/{partition}/"


def fact(value: Any) -> str:
    """As a file says it of itself."""
    return "" if value is None else str(value)
