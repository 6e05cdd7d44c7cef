"""Spark's own checkpoint, written anew from ours, so that its query goes on from there.

Spark goes on from ``metadata``, the offsets of the last two batches and the word that both are done; a source of
files needs the list of all files it has read. We hold all that: offsets and files stand in the manifests. Where
manifests are gone, Spark's own log of the files is read for what they lack.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TypeAlias

from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.input_files import NOTHING, Entries, read_of
from tidestate.recovery.log.manifest import Manifest, SparkPosition
from tidestate.recovery.log.names import spark_number
from tidestate.recovery.log.prefetch import prefetch_with_progress
from tidestate.recovery.log.records import decoded, outputs_below
from tidestate.recovery.log.spark_files import SPARK_FOLDER
from tidestate.recovery.spark.position import load_files
from tidestate.recovery.spark.spark_log import NOTHING_READ, SparkLog, log_offset
from tidestate.statestore.errors import CorruptionError, IncompatibleError, NotFoundError
from tidestate.statestore.files.segments import read_verified
from tidestate.statestore.storage.objects import Objects

REPLACED = "spark-replaced"
"""Where the folder goes that was there before."""
COMMITTED = b'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark writes when it has finished a batch of a query without a watermark of its own."""
COMPACTED = 10
"""Spark folds its list of files at every tenth entry, unless set otherwise, and looks for older ones there alone."""

WORK = ("batch", "tick", "feed")
"""Checkpoints that a running query makes: before its first, Spark's checkpoint had been brought along."""
CrashHook: TypeAlias = Callable[[str, int], None]
"""Called with the name of a moment and the checkpoint id it is about: for tests that kill the process there."""


def no_crash_hook(_moment: str, _checkpoint_id: int) -> None:
    """Do nothing."""


def check_stateless(objects: Objects) -> None:
    """Raise `IncompatibleError` where Spark keeps state of its own: it goes neither back nor elsewhere with ours."""
    if objects.names(f"{SPARK_FOLDER}/state"):
        raise IncompatibleError(
            "the spark folder holds state of spark's own (of an operator before this one), which cannot go back with "
            "ours: begin a new folder",
            code="spark-state",
            path=f"{SPARK_FOLDER}/state",
        )


def files_read(checkpoint: Checkpoint, manifest: Manifest) -> dict[int, Entries]:
    """All files that sources of files had read at ``manifest``, by the number of the source. Changes nothing.

    Raises `IncompatibleError` where neither the manifests nor Spark's log have them all.
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
            "which files spark has read is not known any more: manifests that say it are gone, and spark's own log "
            "lacks them; put the manifests back, or begin a new folder",
            code="spark-files-lost",
            lost=lost or wrong,
        )
    return read


def write_spark_checkpoint(
    objects: Objects,
    manifest: Manifest,
    hook: CrashHook = no_crash_hook,
    read: Mapping[int, Entries] | None = None,
    interval: int = COMPACTED,
) -> None:
    """Write Spark's checkpoint as it is after the batch of ``manifest``, where there is none. ``read`` are all files
    read by then (default: those that it lists itself), folded at every so many entries as Spark will.

    ``metadata`` comes last: without it Spark's query is not the one that the manifest names, and this is done again.
    """
    position = manifest.spark
    if position is None:
        return
    for source, entries in (_read_ref(objects, position) if read is None else read).items():
        for name, text in _source_log(entries, interval).items():
            objects.put(f"{SPARK_FOLDER}/sources/{source}/{name}", text.encode())
    ends = {position.batch_id: position.end}
    if position.batch_id:
        ends[position.batch_id - 1] = position.start
    for batch_id, end in sorted(ends.items()):
        objects.put(f"{SPARK_FOLDER}/offsets/{batch_id}", _offsets(end, manifest.processing_us or 0))
        objects.put(f"{SPARK_FOLDER}/commits/{batch_id}", COMMITTED)
    hook("spark-half-forged", manifest.id)
    objects.put(f"{SPARK_FOLDER}/metadata", json.dumps({"id": position.query_id}).encode())


def finish_checkpoint(
    checkpoint: Checkpoint, head: Manifest, hook: CrashHook = no_crash_hook, interval: int = COMPACTED
) -> bool:
    """Bring Spark's checkpoint to where a reset has gone, or a bootstrap begins, if no query has been at work since,
    up to ``head``; whether that was due.

    What is there is moved to ``spark-replaced/<id of the reset>``. It may be run as often as one likes: whatever a
    crash has left half done is moved aside too.
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
    """Rewrite Spark's checkpoint as it is after the batch of ``head``; where what was there is kept now. ``read`` are
    all files read by then. What a crash leaves half done is no better, so it is done again.

    Raises `IncompatibleError` where Spark keeps state of its own.
    """
    check_stateless(checkpoint.objects)
    kept = _set_aside(checkpoint.objects, head.id)
    hook("spark-set-aside", head.id)
    _bring_back(checkpoint.objects, head.spark)
    write_spark_checkpoint(checkpoint.objects, head, hook, read, interval)
    return kept


def unfinished_move(checkpoint: Checkpoint, head: Manifest) -> Manifest | None:
    """The reset or bootstrap that `finish_checkpoint` would bring Spark's checkpoint to; None where there is none."""
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
    if position is None:  # to before the first batch: Spark begins without a folder
        return bool(objects.names(SPARK_FOLDER))
    try:
        return SparkLog(objects).query_id() != position.query_id
    except CorruptionError:
        return True


def _set_aside(objects: Objects, checkpoint_id: int) -> str:
    """Move what is there away; where to."""
    taken = set(objects.names(REPLACED))
    names = (f"{checkpoint_id}-{again}" if again else str(checkpoint_id) for again in range(len(taken) + 1))
    place = f"{REPLACED}/{next(name for name in names if name not in taken)}"
    objects.move(SPARK_FOLDER, place)
    return place


def _bring_back(objects: Objects, position: SparkPosition | None) -> None:
    """What sources other than files keep for themselves, such as where they began, from the newest folder that was
    set aside and has it whole: it stands nowhere else.
    """
    kept = [SparkLog(objects, f"{REPLACED}/{name}") for name in sorted(objects.names(REPLACED), key=_by_age)]
    if position is None:
        sources = {source for log in kept for source in log.sources() if not log.is_of_files(source)}
    else:
        sources = {n for n, end in enumerate(position.end) if end != NOTHING_READ and log_offset(end) is None}
    for source in sources:
        for log in reversed(kept):
            if _is_whole(log, source):
                objects.move(f"{log.folder}/sources/{source}", f"{SPARK_FOLDER}/sources/{source}")
                break


def _is_whole(log: SparkLog, source: int) -> bool:
    """Whether there is something that a source other than files has kept, and no file of it is torn."""
    files = log.own_files(source)
    try:
        for path in files:
            log.check_own(path)
    except CorruptionError:
        return False
    return bool(files) and not log.is_of_files(source)


def _by_age(name: str) -> tuple[int, ...]:
    """Of names such as ``12`` and ``12-1``."""
    return tuple(spark_number(part) or 0 for part in name.split("-"))


def _of_manifests(checkpoint: Checkpoint, manifest: Manifest) -> dict[int, dict[int, tuple[str, ...] | None]]:
    """Every entry of every source of files up to ``manifest``; None where no manifest has it."""
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
    """Where Spark stood at ``manifest`` and at those before it that can be read, newest first, each batch once."""
    done: int | None = None

    def position_of(number: int) -> SparkPosition | None:
        return load_files(checkpoint.objects, checkpoint.load(number).manifest.spark)

    line = [one for one in reversed(checkpoint.present_ids()) if one <= manifest.id and not manifest.abandons(one)]
    for _, read in prefetch_with_progress(checkpoint.seen, "checkpoints", position_of, line):
        try:
            position = read()
            if position is None:
                return
            if position.batch_id != done or position.read_ref is not None:
                yield position
                done = position.batch_id
        except (CorruptionError, NotFoundError):
            continue  # of one that is being collected, the index knows
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
    """Spark's log, where it is that of this line of checkpoints."""
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
    """Spark's log of a source: names of files and what is in them."""
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
