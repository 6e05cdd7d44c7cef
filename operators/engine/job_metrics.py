"""The metrics of a running job, as families of samples: operators, checkpoints, sinks, retention. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tidestate.operators.progress.figures import SinkWaits
from tidestate.operators.progress.metrics import Family, Sample, families_of
from tidestate.operators.progress.progress import Progress
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.topic_offsets import TopicOffsets, topic_offsets
from tidestate.recovery.retention.rules import Upkept
from tidestate.statestore.files.refs import count_files


@dataclass(frozen=True)
class JobFigures:
    """A running job in numbers. ``published`` checkpoints of this run took these ``seconds`` by phase; ``upkept``:
    what it has collected, None if it keeps everything. ``behind``: of each source by topic and partition, how many
    offsets it had beyond those that were read when it was asked last; empty of other sources.
    """

    name: str
    head: Manifest
    progress: Mapping[str, Progress]
    waits: SinkWaits
    upkept: Upkept | None
    published: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    behind: Sequence[TopicOffsets] = ()


def job_families(figures: JobFigures) -> list[Family]:
    """Each metric once, also one without samples yet. Every sample has the label ``query``, the job's name, and those
    of operators ``operator``.
    """
    found = [
        *_of_operators(figures.head, figures.progress),
        *_of_newest(figures.head),
        Family("consumer_lag", "gauge", "Offsets that a source had beyond those read.", _by_topic(figures.behind)),
        *_of_run(figures),
        *_of_sinks(figures.waits),
        *_of_upkeep(figures.upkept),
    ]
    return _joined(figures.name, found)


def stored_families(name: str, head: Manifest, progress: Mapping[str, Progress]) -> list[Family]:
    """The metrics that follow from a checkpoint alone, whether the job is running or not."""
    return _joined(name, [*_of_operators(head, progress), *_of_newest(head)])


def _joined(job: str, families: Iterable[Family]) -> list[Family]:
    """The families, of each name one with all samples."""
    found: dict[str, Family] = {}
    for one in families:
        had = found.get(one.name)
        found[one.name] = one if had is None else had._replace(samples=[*had.samples, *one.samples])
    return [family.labelled({"query": job}) for family in found.values()]


def _of_operators(head: Manifest, known: Mapping[str, Progress]) -> Iterator[Family]:
    several = len(known) > 1
    for name, progress in known.items():
        front = f"{name}." if several else ""  # in a chain a counter's name begins with that of its operator
        counted = {key.removeprefix(front): count for key, count in head.totals.items() if key.startswith(front)}
        labels = {"operator": name}
        yield from (one.labelled(labels) for one in families_of(progress, counted))
        files = head.operators[name].files
        rows, size = sum(ref.rows for ref in files), sum(ref.bytes for ref in files)
        for what, about, number in (
            ("state_files", "Files of the state.", count_files(files)),
            ("state_rows", "Rows in files of the state; a replaced one counts until folded.", rows),
            ("state_bytes", "Bytes of the state's files.", size),
        ):
            yield Family(what, "gauge", about, [(labels, number)])


def _of_newest(head: Manifest) -> Iterator[Family]:
    yield _lone("checkpoint_id", "gauge", "Id of the newest checkpoint.", head.id)
    yield _lone("checkpoint_created_seconds", "gauge", "When the newest checkpoint was made.", head.created_us / 1e6)
    read = _by_topic([topic_offsets(end) for end in _ends(head)])
    yield Family("consumer_position", "gauge", "Offset of a source that is read next.", read)


def _ends(head: Manifest) -> Sequence[Any]:
    """Where the input of a checkpoint ended, of each of Spark's sources, or of the one of the standalone runner."""
    if head.spark is not None:
        return head.spark.end
    return () if head.input is None else (head.input.position,)


def _by_topic(sources: Sequence[TopicOffsets]) -> list[Sample]:
    return [
        ({"source": str(number), "topic": topic, "partition": partition}, value)
        for number, offsets in enumerate(sources)
        for (topic, partition), value in sorted(offsets.items())
    ]


def _of_run(figures: JobFigures) -> Iterator[Family]:
    yield _lone("checkpoints", "counter", "Checkpoints of this run.", figures.published)
    spent: list[Sample] = [({"phase": phase}, seconds) for phase, seconds in figures.seconds.items()]
    yield Family("phase_seconds", "counter", "Time that checkpoints of this run took, by phase.", spent)


def _of_sinks(waits: SinkWaits) -> Iterator[Family]:
    yield _lone("sink_waiting", "gauge", "Whether the intake waits for a sink.", waits.since_us is not None)
    yield _lone("sink_waited_seconds", "counter", "Time that the intake waited for sinks.", waits.total_us / 1e6)
    yield _lone("undelivered_checkpoints", "gauge", "Checkpoints that wait for a sink.", waits.checkpoints)
    by_sink: list[Sample] = [({"sink": name, "rows": kind}, found) for name, kind, found in waits.behind]
    yield Family("sink_behind_checkpoints", "gauge", "Checkpoints that wait for this sink.", by_sink)


def _of_upkeep(done: Upkept | None) -> Iterator[Family]:
    if done is None:
        return
    for name, about, number in (
        ("collections", "Collections of old checkpoints.", done.collections),
        ("collection_failures", "Collections that failed.", done.failures),
        ("collected_checkpoints", "Checkpoints that were deleted.", done.checkpoints),
        ("collected_files", "Files that were deleted.", done.files),
        ("collected_bytes", "Bytes of files that were deleted.", done.bytes),
    ):
        yield _lone(name, "counter", about, number)
    finished: list[Sample] = [] if done.last_us is None else [({}, done.last_us / 1e6)]
    yield Family("collection_finished_seconds", "gauge", "When the last collection was finished.", finished)
    yield _lone("collection_took_seconds", "gauge", "How long the last collection took.", done.last_s)


def _lone(name: str, kind: Literal["gauge", "counter"], about: str, value: float) -> Family:
    """A metric with one sample, which has no labels of its own."""
    return Family(name, kind, about, [({}, value)])
