"""Rewind: state, watermark and input position of an older checkpoint, together; later input is replayed."""

from __future__ import annotations

from dataclasses import dataclass

from tidestate.recovery.log.acknowledgements import delivered
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Delivered, Manifest, OutputKind, events_of, output_of
from tidestate.recovery.log.moments import counting
from tidestate.recovery.log.spark_log import load_files
from tidestate.recovery.log.summary import iso_text, job_mark_text
from tidestate.recovery.log.topic_offsets import topic_offsets
from tidestate.recovery.moves.reset import Reset


@dataclass(frozen=True)
class ReplaySpan:
    """The input that a Spark source replays, from ``begin`` to ``end`` in Spark's form of offsets.

    ``files``: the paths, for a file source. ``starting_offsets``: the Kafka option of a query that begins there.
    """

    source: int
    begin: str
    end: str
    files: tuple[str, ...] | None = None
    starting_offsets: str | None = None


@dataclass(frozen=True)
class RepeatedOutput:
    """Panes or ledger rows that are produced again under new ids; ``delivered``: a sink has acknowledged them."""

    checkpoint: int
    rows: int
    delivered: bool


@dataclass(frozen=True)
class Replay:
    """The effect of a reset. ``checkpoints`` and ``events`` are undone and replayed, ``unreadable`` checkpoints not
    included; ``batches`` are those of the standalone runner. ``edits``: checkpoints in which windows were edited by
    hand, which no replay brings back.
    """

    to: int
    created: str | None
    watermark: str | None
    checkpoints: int
    events: int
    batches: int
    unreadable: tuple[int, ...]
    sources: tuple[ReplaySpan, ...]
    panes: tuple[RepeatedOutput, ...]
    late: tuple[RepeatedOutput, ...]
    edits: tuple[int, ...]


def plan_replay(checkpoint: Checkpoint, reset: Reset) -> Replay:
    """The effect of a planned reset; nothing is written."""
    target = reset.manifest
    later = list(counting(checkpoint, reset.to + 1))
    undone = [manifest for manifest in later if isinstance(manifest, Manifest)]
    newest = undone[0] if undone else target
    had = delivered(checkpoint, newest)
    return Replay(
        to=reset.to,
        created=iso_text(checkpoint.read(reset.to).manifest.created_us),
        watermark=job_mark_text(target, target.watermark_us),
        checkpoints=sum(manifest.kind in ("batch", "tick", "feed", "bootstrap") for manifest in undone),
        events=sum(events_of(manifest, manifest.counters) for manifest in undone),
        batches=sum(manifest.input is not None and manifest.kind == "batch" for manifest in undone),
        unreadable=tuple(number for number in reversed(later) if isinstance(number, int)),
        sources=_spans(checkpoint, target, newest, undone),
        panes=_repeated(undone, "panes", had),
        late=_repeated(undone, "late", had),
        edits=tuple(manifest.id for manifest in reversed(undone) if manifest.kind == "edit"),
    )


def _repeated(undone: list[Manifest], kind: OutputKind, had: Delivered) -> tuple[RepeatedOutput, ...]:
    return tuple(
        RepeatedOutput(manifest.id, sum(ref.rows for ref in refs), bool(output_of(manifest).accepted(kind, had)))
        for manifest in reversed(undone)
        if (refs := manifest.output(kind))
    )


def _spans(
    checkpoint: Checkpoint, target: Manifest, newest: Manifest, undone: list[Manifest]
) -> tuple[ReplaySpan, ...]:
    if newest.spark is None:
        return ()
    begin = target.spark.end if target.spark is not None else ()
    files: dict[str, set[str]] = {}
    positions = [manifest.spark for manifest in undone if manifest.kind in ("batch", "bootstrap")]
    for _, read in checkpoint.prefetch("input", lambda entry: load_files(checkpoint.objects, entry), positions):
        position = read()
        for source, paths in (position.files if position is not None else {}).items():
            files.setdefault(source, set()).update(path.rpartition(" ")[0] for path in paths)
    return tuple(
        ReplaySpan(
            source,
            begin[source] if source < len(begin) else "",
            end,
            tuple(sorted(files[str(source)])) if str(source) in files else None,
            _starting_offsets(begin[source]) if source < len(begin) else None,
        )
        for source, end in enumerate(newest.spark.end)
    )


def _starting_offsets(text: str) -> str | None:
    """``text`` if it is the offsets of a Kafka source: topics with partitions and the offset to read next."""
    return text if topic_offsets(text) else None
