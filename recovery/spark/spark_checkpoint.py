"""Rewrite Spark's own checkpoint from ours, so that its query goes on from there.

Spark needs ``metadata``, the offsets and commits of the last two batches, and for a file source the list of all files
that it has read. All of it follows from the manifests; entries of manifests that are gone are read from Spark's log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TypeAlias

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, SparkPosition, spark_number
from tidestate.recovery.log.records import decoded, outputs_below
from tidestate.recovery.log.spark_log import (
    NOTHING,
    NOTHING_READ,
    SPARK_FOLDER,
    Entries,
    SparkLog,
    load_files,
    log_offset,
    read_of,
)
from tidestate.statestore.errors import CorruptionError, IncompatibleError, NotFoundError
from tidestate.statestore.files.segments import read_verified
from tidestate.statestore.storage.objects import Objects

REPLACED = "spark-replaced"
"""The folder for replaced Spark checkpoints."""
ADOPTED = "adopted"
"""The folder in there for what comes from the checkpoint of an adopted query."""
COMMITTED = b'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark writes to commit a batch of a query without a watermark of Spark's own."""
COMPACTED = 10
"""By default Spark folds its list of files at every tenth entry, and reads older ones from the folded file only."""
WORK = ("batch", "tick", "feed")
"""Kinds that a running query publishes: if there is one, Spark's checkpoint was finished before."""
CrashHook: TypeAlias = Callable[[str, int], None]
"""Called with the name of a moment and a checkpoint id: tests kill the process there."""


def no_crash_hook(_moment: str, _checkpoint_id: int) -> None:
    """Let every moment pass; tests give a hook that ends the process at one."""


def check_stateless(objects: Objects) -> None:
    """Raise `IncompatibleError` if Spark has state of its own, which can be neither reset nor forked with ours."""
    if objects.names(f"{SPARK_FOLDER}/state"):
        raise IncompatibleError(
            "the spark folder has state of spark's own, of an operator before this job, which cannot go back with "
            "ours: start in a new folder",
            code="spark-state",
            path=f"{SPARK_FOLDER}/state",
        )


def files_read(checkpoint: Checkpoint, manifest: Manifest) -> dict[int, Entries]:
    """All files that file sources had read at ``manifest``, by the number of the source; nothing is written.

    Raises `IncompatibleError` if neither the manifests nor Spark's log have all of them.
    """
    found = _of_manifests(checkpoint, manifest)
    if any(_lost(found).values()) and (log := _trusted(checkpoint, manifest)) is not None:
        for source, numbers in _lost(found).items():
            found[source] |= {number: log.entry(source, number) for number in numbers}
    lost = {source: numbers[:10] for source, numbers in _lost(found).items() if numbers}
    read = {s: {n: files for n, files in entries.items() if files is not None} for s, entries in found.items()}
    known = manifest.spark.read if manifest.spark is not None else {}
    wrong = [source for source, entries in read.items() if read_of(entries) != known.get(str(source), NOTHING)]
    if lost or wrong:
        raise IncompatibleError(
            "nothing records any longer which files spark has read: the manifests that list them are missing, and "
            "spark's own log lacks them; restore the manifests, or start in a new folder",
            code="spark-files-lost",
            lost=lost or wrong,
        )
    return read


def recorded_positions(checkpoint: Checkpoint, head: Manifest) -> dict[int, SparkPosition]:
    """What each batch up to ``head`` had read, by its number, with its lists of files. Of collected checkpoints what
    the index of outputs has.
    """
    found: dict[int, SparkPosition] = {}
    for output in checkpoint.outputs(of=head):
        position = load_files(checkpoint.objects, output.spark)
        if position is not None:
            found.setdefault(position.batch_id, position)  # a reset has that of the batch which it goes back to
    return found


def write_spark_checkpoint(
    objects: Objects,
    manifest: Manifest,
    hook: CrashHook = no_crash_hook,
    read: Mapping[int, Entries] | None = None,
    interval: int = COMPACTED,
) -> None:
    """Write Spark's checkpoint as of the batch of ``manifest`` into an empty folder. ``read`` are all files read by
    then (default: those that the manifest lists), folded every ``interval`` entries, as Spark does.

    ``metadata`` is written last: without it the query id does not match the manifest, and this is done again.
    """
    position = manifest.spark
    if position is None:
        return
    for source, entries in (_read_ref(objects, position) if read is None else read).items():
        for name, text in _source_log(entries, interval).items():
            objects.put(f"{SPARK_FOLDER}/sources/{source}/{name}", text.encode())
    for batch_id, end in sorted(position.ends.items()):
        objects.put(f"{SPARK_FOLDER}/offsets/{batch_id}", _offsets(end, manifest.processing_us or 0))
        objects.put(f"{SPARK_FOLDER}/commits/{batch_id}", COMMITTED)
    hook("spark-half-written", manifest.id)
    objects.put(f"{SPARK_FOLDER}/metadata", json.dumps({"id": position.query_id}).encode())


def write_planned_batch(objects: Objects, position: SparkPosition, clock_us: int) -> None:
    """Write Spark's checkpoint of a query that has planned the batch of ``position``, with its lists of files, at a
    processing time, and has not done it: this batch it takes first, whatever its sources have now. As
    `write_spark_checkpoint` otherwise.
    """
    sources = [source for source, end in enumerate(position.end) if log_offset(end) is not None]
    for source in sources:
        for name, text in _source_log(_entries(position, source), COMPACTED).items():
            objects.put(f"{SPARK_FOLDER}/sources/{source}/{name}", text.encode())
    objects.put(f"{SPARK_FOLDER}/offsets/{position.batch_id}", _offsets(position.end, clock_us))
    if position.batch_id:
        objects.put(f"{SPARK_FOLDER}/offsets/{position.batch_id - 1}", _offsets(position.start, clock_us))
        objects.put(f"{SPARK_FOLDER}/commits/{position.batch_id - 1}", COMMITTED)
    objects.put(f"{SPARK_FOLDER}/metadata", json.dumps({"id": position.query_id}).encode())


def keep_others(objects: Objects, others: Mapping[int, Mapping[str, bytes]]) -> None:
    """Put what sources other than file sources have kept in another Spark checkpoint where `finish_checkpoint` finds
    it, by number and name. To be called before the manifest of the move; may be repeated.
    """
    for source, files in others.items():
        for name, data in files.items():
            objects.put(f"{REPLACED}/{ADOPTED}/sources/{source}/{name}", data)


def finish_checkpoint(
    checkpoint: Checkpoint, head: Manifest, hook: CrashHook = no_crash_hook, interval: int = COMPACTED
) -> bool:
    """Write Spark's checkpoint for the newest reset or bootstrap, if that is still to be done and no query has
    published anything up to ``head``; returns whether it was.

    The old folder is moved to ``spark-replaced/<id of the reset>``. Idempotent: what a crash has left incomplete is
    moved there too.
    """
    reset = unfinished_move(checkpoint, head)
    if reset is None:
        return False
    _set_aside(checkpoint.objects, reset.id)
    hook("spark-set-aside", reset.id)
    if reset.spark is not None:
        _bring_back(checkpoint.objects, reset.spark)
    write_spark_checkpoint(checkpoint.objects, reset, hook, interval=interval)
    return True


def rewrite_spark_checkpoint(
    checkpoint: Checkpoint,
    head: Manifest,
    read: Mapping[int, Entries],
    interval: int,
    hook: CrashHook = no_crash_hook,
) -> str:
    """Rewrite Spark's checkpoint as of the batch of ``head``; returns the folder that keeps the old one. ``read`` are
    all files read by then. After a crash the next start finds the difference and does it again.

    Raises `IncompatibleError` if Spark has state of its own.
    """
    check_stateless(checkpoint.objects)
    kept = _set_aside(checkpoint.objects, head.id)
    hook("spark-set-aside", head.id)
    _bring_back(checkpoint.objects, head.spark)
    write_spark_checkpoint(checkpoint.objects, head, hook, read, interval)
    return kept


def unfinished_move(checkpoint: Checkpoint, head: Manifest) -> Manifest | None:
    """The reset or bootstrap for which Spark's checkpoint is still to be written, or None."""
    reset = head
    while reset.kind not in ("reset", "bootstrap", *WORK) and reset.id > 1 and reset.parent:
        try:
            reset = checkpoint.read(reset.follows).manifest
        except (CorruptionError, NotFoundError):
            return None  # Spark's checkpoint must agree as it is
    begins = reset.kind in ("reset", "bootstrap")
    return reset if begins and _differs(checkpoint.objects, reset.spark) else None


def _differs(objects: Objects, position: SparkPosition | None) -> bool:
    """Whether the spark folder is not yet that of the reset."""
    if position is None:  # a reset to before the first batch: Spark begins without a folder
        return bool(objects.names(SPARK_FOLDER))
    try:
        return SparkLog(objects).query_id() != position.query_id
    except CorruptionError:
        return True


def _set_aside(objects: Objects, checkpoint_id: int) -> str:
    """Move the spark folder away; returns where it is now."""
    taken = set(objects.names(REPLACED))
    names = (f"{checkpoint_id}-{again}" if again else str(checkpoint_id) for again in range(len(taken) + 1))
    place = f"{REPLACED}/{next(name for name in names if name not in taken)}"
    objects.move(SPARK_FOLDER, place)
    return place


def _bring_back(objects: Objects, position: SparkPosition | None) -> None:
    """Move the files of other sources, such as the offsets where they began, back from the newest folder that was set
    aside and has them intact: they exist nowhere else.
    """
    kept = [SparkLog(objects, f"{REPLACED}/{name}") for name in sorted(objects.names(REPLACED), key=_by_age)]
    if position is None:
        sources = {source for log in kept for source in log.sources() if not log.is_of_files(source)}
    else:
        sources = {n for n, end in enumerate(position.end) if end != NOTHING_READ and log_offset(end) is None}
    for source in sources:
        for log in reversed(kept):
            if _is_intact(log, source):
                objects.move(f"{log.folder}/sources/{source}", f"{SPARK_FOLDER}/sources/{source}")
                break


def _is_intact(log: SparkLog, source: int) -> bool:
    """Whether a source that is not a file source has files here, and none of them is damaged."""
    files = log.own_files(source)
    try:
        for path in files:
            log.check_own(path)
    except CorruptionError:
        return False
    return bool(files) and not log.is_of_files(source)


def _by_age(name: str) -> tuple[int, ...]:
    """Sorts names such as ``12`` and ``12-1``."""
    return tuple(spark_number(part) or 0 for part in name.split("-"))


def _of_manifests(checkpoint: Checkpoint, manifest: Manifest) -> dict[int, dict[int, tuple[str, ...] | None]]:
    """Every entry of every file source up to ``manifest``; None for entries that no manifest has."""
    ends = enumerate(manifest.spark.end if manifest.spark else ())
    found: dict[int, dict[int, tuple[str, ...] | None]] = {
        source: dict.fromkeys(range(last + 1)) for source, text in ends if (last := log_offset(text)) is not None
    }
    for position in _positions(checkpoint, manifest) if found else ():
        read = _read_ref(checkpoint.objects, position)
        for source, entries in found.items():
            entries |= read[source] if source in read else _entries(position, source)
        if read:
            break
    return found


def _lost(found: dict[int, dict[int, tuple[str, ...] | None]]) -> dict[int, list[int]]:
    return {source: [n for n, files in entries.items() if files is None] for source, entries in found.items()}


def _positions(checkpoint: Checkpoint, manifest: Manifest) -> Iterator[SparkPosition]:
    """Spark's positions at ``manifest`` and at earlier ones that can be read, newest first, each batch once."""
    done: int | None = None

    def position_of(number: int) -> SparkPosition | None:
        return load_files(checkpoint.objects, checkpoint.load(number).manifest.spark)

    line = [one for one in reversed(checkpoint.present_ids()) if one <= manifest.id and not manifest.abandons(one)]
    for _, read in checkpoint.prefetch("checkpoints", position_of, line):
        try:
            position = read()
            if position is None:
                return
            if position.batch_id != done or position.read_ref is not None:
                yield position
                done = position.batch_id
        except (CorruptionError, NotFoundError):
            continue  # if it is being collected, the output index has it
    for output in reversed(list(outputs_below(checkpoint.objects, checkpoint.boundary(), 0, manifest.id))):
        if output.spark is not None and not manifest.abandons(output.id):
            with suppress(CorruptionError):
                yield load_files(checkpoint.objects, output.spark) or output.spark


def _entries(position: SparkPosition, source: int) -> Entries:
    """What one batch says: its files stand in its last entry, where it has several."""
    last = log_offset(position.end[source])
    before = log_offset(position.start[source]) if source < len(position.start) else None
    if last is None or last == (-1 if before is None else before):
        return {}
    numbers = range(0 if before is None else before + 1, last)
    return {**dict.fromkeys(numbers, ()), last: position.files.get(str(source), ())}


def _read_ref(objects: Objects, position: SparkPosition) -> dict[int, Entries]:
    if position.read_ref is None:
        return {}
    return decoded(read_verified(objects, position.read_ref), position.read_ref.path, dict[int, Entries])


def _trusted(checkpoint: Checkpoint, manifest: Manifest) -> SparkLog | None:
    """Spark's log, if it belongs to this line of checkpoints."""
    log = SparkLog(checkpoint.objects)
    try:
        query_id = log.query_id()
    except CorruptionError:
        return None
    for number in reversed(checkpoint.present_ids()):
        with suppress(CorruptionError):
            newest = checkpoint.load(number).manifest
            same = newest.spark is not None and newest.spark.query_id == query_id
            return log if same and not newest.abandons(manifest.id) else None
    return None


def _source_log(entries: Entries, interval: int) -> dict[str, str]:
    """Spark's log of a source: contents of files by name."""
    last = max(entries, default=-1)
    compact = (last + 1) // interval * interval - 1
    files: dict[str, list[str]] = {f"{compact}.compact": []} if compact >= 0 else {}
    for number in range(last + 1):
        lines = files.setdefault(f"{compact}.compact" if number <= compact else str(number), [])
        for one in entries.get(number, ()):
            path, _, timestamp = one.rpartition(" ")
            entry = {"path": path, "timestamp": int(timestamp), "batchId": number}
            lines.append(json.dumps(entry, separators=(",", ":"), ensure_ascii=False))
    return {name: "\n".join(["v1", *lines]) for name, lines in files.items()}


def _offsets(end: tuple[str, ...], processing_us: int) -> bytes:
    facts = {"batchWatermarkMs": 0, "batchTimestampMs": processing_us // 1000, "conf": {}}
    return "\n".join(["v1", json.dumps(facts, separators=(",", ":")), *end]).encode()
