"""The checkpoints of one operator, oldest first, each with what it added: read once, from the manifests.

A changelog segment belongs to the checkpoint it was written for, whether the manifest of that one is still there or a
later one still names it. What was folded before the oldest manifest is one value, without its parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidestate.recovery.inspect.rows import operator_of
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Head, Ids, Manifest, OperatorState, Output, SparkPosition, output_of
from tidestate.recovery.log.ranges import merged_ranges, missing_ranges
from tidestate.recovery.log.spark_log import load_files
from tidestate.recovery.log.summary import time_text
from tidestate.statestore.errors import CorruptionError
from tidestate.statestore.files.refs import FileRef, Location
from tidestate.statestore.spec.tables import TableSpec


@dataclass
class HistoryStep:
    """One checkpoint of one operator. ``manifest`` is None if it was collected; its ``output`` and its files may
    still exist. ``segments`` are its changelog segments with their tables.
    """

    id: int
    manifest: Manifest | None = None
    output: Output | None = None
    state: OperatorState | None = None
    segments: list[tuple[TableSpec, FileRef]] = field(default_factory=list)
    panes: tuple[FileRef, ...] = ()
    late: tuple[FileRef, ...] = ()
    abandoned: bool = False

    @property
    def created(self) -> str | None:
        """When it was created, in UTC, for people."""
        source = self.manifest or self.output
        return time_text(source.created_us // 1_000_000 * 1_000_000) if source else None

    def expired(self, table: str) -> int | None:
        """The bound up to which rows of a table have expired in all state partitions."""
        return self.state.expired.get(table) if self.state else None


@dataclass(frozen=True)
class HistorySteps:
    """All checkpoints. ``base`` is the state at the oldest manifest: its folded files are older than every change.
    ``emits``: the operator's panes are those of the job, in files, and not the input of other operators. ``unread``:
    ids that a reset has abandoned and whose manifests are gone or damaged.
    """

    operator: str
    base: OperatorState
    newest: OperatorState
    base_id: int
    emits: bool
    steps: list[HistoryStep]
    unread: tuple[Ids, ...]


def read_steps(checkpoint: Checkpoint, operator: str | None) -> HistorySteps:
    """Every checkpoint of a root. Raises `NotFoundError` if there is none, or no such operator, and `CorruptionError`
    if one that counts is gone or damaged.
    """
    head = checkpoint.chosen(None).manifest
    ids = checkpoint.ids(last=head.id)
    if not ids:  # a newer checkpoint was published, and all up to this one were collected
        return read_steps(checkpoint, operator)
    unread = missing_ranges(ids, ids[0])
    name, state_now = operator_of(head, operator)
    steps: dict[int, HistoryStep] = {}
    base: tuple[int, OperatorState] | None = None
    for number, read in checkpoint.load_each(ids):
        step = steps.setdefault(number, HistoryStep(number))
        step.abandoned = head.abandons(number)
        if (manifest := _manifest(step, read)) is None:
            unread.append((number, number))
            continue
        state = manifest.operators.get(name)
        step.manifest, step.state = manifest, state
        _put_out(step, name, output_of(manifest))
        if state is not None:
            for spec, ref in _segments(state).values():
                # The oldest manifest names older segments too; every other one adds its own.
                if base is None or ref.first == number:
                    steps.setdefault(ref.first, HistoryStep(ref.first)).segments.append((spec, ref))
            base = base or (number, state)
    for output in checkpoint.outputs(0, ids[0] - 1):
        _put_out(steps.setdefault(output.id, HistoryStep(output.id)), name, output)
    base_id, first = base or (ids[-1], state_now)
    emits = name in head.output_names
    return HistorySteps(
        name, first, state_now, base_id, emits, [steps[number] for number in sorted(steps)], merged_ranges(unread)
    )


def _manifest(step: HistoryStep, read: Callable[[], Head]) -> Manifest | None:
    """The manifest of a checkpoint; None if it is damaged and abandoned."""
    try:
        return read().manifest
    except CorruptionError:
        if not step.abandoned:
            raise
        return None


def _put_out(step: HistoryStep, operator: str, output: Output) -> None:
    step.output = output
    step.panes = output.panes_of(operator)
    step.late = output.late_of(operator)


def _segments(state: OperatorState) -> dict[Location, tuple[TableSpec, FileRef]]:
    """Changelog segments by place: state partitions may share one after a rescale."""
    specs = {spec.name: spec for spec in state.tables}
    refs = (ref for partition in state.partitions for ref in partition.files)
    return {ref.location: (specs[ref.table], ref) for ref in refs if ref.kind == "changelog" and ref.table in specs}


def input_of(checkpoint: Checkpoint, step: HistoryStep) -> dict[str, Any] | None:
    """The input of a checkpoint as plain values: offsets and files by source, or the number of a batch."""
    if step.manifest is not None and step.manifest.kind not in ("batch", "bootstrap"):
        return None  # Spark's position is that of an earlier batch
    if step.output is not None and step.output.spark is not None:
        position = load_files(checkpoint.objects, step.output.spark)
        return _spark(position) if position is not None else None
    batch_input = step.manifest.input if step.manifest is not None else None
    return {"batch": batch_input.batches} if batch_input is not None else None


def _spark(position: SparkPosition) -> dict[str, Any]:
    sources = []
    for number, end in enumerate(position.end):
        start = position.start[number] if number < len(position.start) else None
        files = list(position.files.get(str(number), ()))
        sources.append({"start": start, "end": end} | ({"files": files} if files else {}))
    return {"spark_batch": position.batch_id, "sources": sources}


def input_text(input_values: dict[str, Any] | None) -> str | None:
    """The input of a checkpoint, for people."""
    if input_values is None:
        return None
    if "batch" in input_values:
        return f"batch {input_values['batch']}" if input_values["batch"] else "history"
    return (
        "; ".join(_source_text(source) for source in input_values["sources"])
        or f"spark batch {input_values['spark_batch']}"
    )


def _source_text(source: dict[str, Any]) -> str:
    if "files" in source:
        names = [path.rsplit(" ", 1)[0].rsplit("/", 1)[-1] for path in source["files"]]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more files"
    start, end = _offsets(source["start"]), _offsets(source["end"])
    if set(end) == {""}:
        return f"{start.get('', 0)}→{end['']}"
    partitions = [name for name in end if end[name] != start.get(name)]
    return ", ".join(f"{name}: {start.get(name, 0)}→{end[name]}" for name in partitions) or "nothing"


def _offsets(text: str | None) -> dict[str, Any]:
    """Offsets by partition, for Kafka; for a source with one offset, or in another form, the only key is ""."""
    try:
        offsets = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        offsets = text
    if not isinstance(offsets, dict):
        return {"": offsets}
    if not all(isinstance(part, dict) for part in offsets.values()):
        return {str(name): value for name, value in offsets.items()}
    return {f"{topic}/{part}": offset for topic, parts in offsets.items() for part, offset in parts.items()}
