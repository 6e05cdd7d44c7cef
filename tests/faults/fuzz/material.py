"""Durable files as jobs write them: what fuzzing begins with, and the root into which its bytes are put."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import msgspec
import pyarrow as pa

from tests.faults.damage.subjects import make_collected, make_spark
from tests.helpers.process import SCRATCH
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.manifest_file import InvalidManifest, check_file
from tidestate.statestore.checksums import checksum
from tidestate.statestore.errors import CorruptionError
from tidestate.statestore.files import footers
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.resident import clear_residents
from tidestate.statestore.files.tails import tail_of
from tidestate.statestore.spec.tables import TableSpec
from tidestate.statestore.storage.objects import Objects


@dataclass(frozen=True)
class Material:
    """A root with one of everything: ``changelog``, ``folded``, ``panes`` and ``late`` are files that the newest
    manifests name, those of state with their table; ``part`` is one of a bundle.
    """

    root: Path
    objects: Objects
    manifest: Manifest
    changelog: tuple[FileRef, TableSpec]
    folded: tuple[FileRef, TableSpec]
    part: tuple[FileRef, TableSpec]
    panes: FileRef
    late: FileRef
    original: Mapping[str, bytes]
    """The bytes of each file, as they were made, by path."""

    def read(self, pattern: str) -> list[bytes]:
        """The files with such names, as they were made."""
        return [data for path, data in sorted(self.original.items()) if fnmatch(path, pattern)]


@cache
def material() -> Material:
    """Made once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=SCRATCH))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    make_collected(folder)
    root = folder / "root"
    checkpoint = Checkpoint.open(root)
    manifest = checkpoint.chosen(None).manifest
    operator = manifest.operators["windows"]
    specs = {spec.name: spec for spec in operator.tables}
    refs = {ref.location: (ref, specs[ref.table]) for id in checkpoint.ids() for ref in _state(checkpoint, id)}
    alone = [entry for entry in refs.values() if not entry[0].bundle_bytes]
    changelogs = [entry for entry in alone if entry[0].kind == "changelog"]
    folded = [entry for entry in alone if entry[0].kind != "changelog"]
    parts = [entry for entry in refs.values() if entry[0].bundle_bytes and entry[0].kind == "changelog"]
    outputs = list(checkpoint.outputs())
    return Material(
        root,
        checkpoint.objects,
        manifest,
        max(changelogs, key=lambda one: one[0].rows),
        max(folded, key=lambda one: one[0].rows),
        max(parts, key=lambda entry: entry[0].start),
        next(ref for output in outputs for ref in output.panes),
        next(ref for output in outputs for ref in output.late),
        _originals(root),
    )


def _originals(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _state(checkpoint: Checkpoint, checkpoint_id: int) -> list[FileRef]:
    return checkpoint.load(checkpoint_id).manifest.operators["windows"].files


@cache
def spark_root() -> tuple[Path, Mapping[str, bytes]]:
    """A root with a checkpoint of Spark's, with a folded list of files and a planned batch; and its files."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-spark-", dir=SCRATCH))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    make_spark(folder)
    return folder / "root", _originals(folder / "root")


def placed(root: Path, path: str, data: bytes) -> None:
    """Put bytes in the place of a file."""
    footers.clear_footers()
    clear_residents()
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    target.write_bytes(data)


def forged(ref: FileRef, data: bytes, **changes: object) -> FileRef:
    """How a manifest would name these bytes, with checksums that fit. Raises `CorruptionError` where none could."""
    facts = {"bytes": len(data), "checksum": checksum(data), **({"tail": tail_of(data)} if ref.tail else {})}
    made = msgspec.structs.replace(ref, **{**facts, **changes})
    try:
        check_file(made)
    except InvalidManifest as error:
        raise CorruptionError(str(error), code="manifest-damaged") from None
    return made


def tables_of(data: bytes) -> list[pa.Table]:
    """The batches of an Arrow stream, each valid; none for bytes that are no stream."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
            found = [pa.Table.from_batches([batch]) for batch in stream]
        for table in found:
            table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError):
        return []
    return found
