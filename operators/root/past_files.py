"""A root from files of past events: the plan, and what it needs to be made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import pyarrow as pa

from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.describe.runs import Offset
from tidestate.operators.local.bootstrap import Archive, RowsCallback, Survey
from tidestate.operators.local.history_files import HistoryFiles, schema_of
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.summary import brief, pluralize, size_text, time_text
from tidestate.recovery.moves.root_plan import LISTED, Fact, RootPlan
from tidestate.statestore.errors import UsageError
from tidestate.statestore.secrets import public_url


def _not_counted(rows: int) -> None: ...


@dataclass(frozen=True, repr=False, eq=False)
class BootstrapPlan(RootPlan):
    """A new root with the state that results from files of past events; ``streams`` is what they hold."""

    root: str
    archive: Archive
    streams: Mapping[str, Survey]
    offsets: Mapping[str, Offset] | None
    partitions: int
    standalone: bool
    deliver: bool
    manifest: Manifest | None = None

    @classmethod
    def of(
        cls,
        description: Runnable,
        root: str,
        files: Mapping[str, Sequence[str]],
        offsets: Mapping[str, Offset] | Offset | None = None,
        schema: pa.Schema | str | None = None,
        partitions: int | None = None,
        *,
        standalone: bool = False,
        deliver: bool = True,
        on_rows: RowsCallback = _not_counted,
    ) -> Self:
        """From the files of each stream, all of which are read; ``on_rows`` hears of rows. Raises as `Archive`."""
        columns = schema_of(schema) if isinstance(schema, str) else schema
        archive = Archive.of(description, {name: HistoryFiles.find(paths, columns) for name, paths in files.items()})
        by_stream = offsets_of_streams(offsets, list(archive.streams))
        count = partitions or os.cpu_count() or 1
        return cls(root, archive, archive.survey(on_rows), by_stream, count, standalone, deliver)

    @property
    def done(self) -> bool:
        return self.manifest is not None

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(stream.rows for stream in self.streams.values())

    def execute(self, on_rows: RowsCallback = _not_counted) -> Self:
        """Make the root; ``on_rows`` hears of rows. Raises as `Archive.bootstrap`."""
        manifest = self.archive.bootstrap(
            self.root,
            offsets=self.offsets,
            standalone=self.standalone,
            partitions=self.partitions,
            deliver=self.deliver,
            on_rows=on_rows,
        )
        return replace(self, manifest=manifest)

    def as_dict(self) -> dict[str, Any]:
        if self.manifest is not None:
            return {"root": self.root, "done": True, **brief(self.manifest)}
        return {
            "root": self.root,
            "streams": {name: asdict(stream) for name, stream in self.streams.items()},
            "done": False,
        }

    def facts(self, limit: int = LISTED) -> Iterator[Fact]:
        if self.manifest is not None:
            row = brief(self.manifest)
            yield "bootstrapped", f"{public_url(self.root)}, checkpoint {self.manifest.id}"
            yield "events", f"{row['events']:,}, of which {row['rejected']:,} were rejected"
            yield "panes", f"{row['panes']:,}"
            yield "watermark", row["watermark"] or "-"
            yield "state", size_text(row["state_bytes"])
            return
        yield "to create", public_url(self.root)
        for name, stream in self.streams.items():
            yield f"stream {name}", f"{pluralize(stream.files, 'file')}, {pluralize(stream.rows, 'row')}"
            if stream.first_us is not None:
                yield "event times", f"{time_text(stream.first_us)} to {time_text(stream.last_us)}"
            yield "columns", ", ".join(stream.columns)
            if not self.standalone:
                after = (self.offsets or {}).get(name)
                yield "spark goes on", "from all other files" if after is None else f"from {after}"


def files_of_streams(streams: Mapping[str, str], files: Any) -> dict[str, list[str]]:
    """The names of files by stream of the description: one name or several, of the first stream; or by the names that
    the user knows, which are those of ``streams``.
    """
    if isinstance(files, Mapping) and (strange := sorted(map(str, set(files) - set(streams)))):
        raise UsageError("no operator reads these streams", code="streams", found=strange, streams=list(streams))
    file_names = files.items() if isinstance(files, Mapping) else [(next(iter(streams)), files)]
    by_stream = {streams.get(name, name): names for name, names in file_names}
    several = {name: [names] if isinstance(names, str | os.PathLike) else names for name, names in by_stream.items()}
    if not all(isinstance(names, Sequence) and names for names in several.values()) or not several:
        raise UsageError(
            'files must be names of files, folders or patterns, such as files="history/*.parquet", or a mapping '
            "of these by stream",
            code="argument",
            parameter="files",
            found=f"{files!r:.100}",
        )
    return {name: list(map(os.fspath, names)) for name, names in several.items()}


def offsets_of_streams(
    offsets: Mapping[str, Offset] | Offset | None, streams: Sequence[str]
) -> Mapping[str, Offset] | None:
    """The offset of the one stream; of several by their names, as text too. Raises `UsageError`
    (``bootstrap-offsets``).
    """
    if offsets is None or len(streams) == 1:
        return None if offsets is None else {streams[0]: offsets}
    try:
        by_stream = json.loads(offsets) if isinstance(offsets, str) else offsets
    except ValueError:
        by_stream = None
    if not isinstance(by_stream, Mapping):
        raise UsageError(
            "the offsets of several streams must be JSON, by the names of the streams",
            code="bootstrap-offsets",
            found=offsets,
        )
    return by_stream
