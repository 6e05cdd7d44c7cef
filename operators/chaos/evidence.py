"""All that a root and a sink have after a run, as rows of text, and how it differs from the undisturbed run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidestate.operators.aggregates.signed import CANCEL
from tidestate.operators.aggregates.value_sketches import random_results
from tidestate.operators.chaos.offered import Offered, offers
from tidestate.operators.chaos.start import RoundFolders
from tidestate.operators.engine.recorded_steps import batch_count
from tidestate.recovery.inspect.rows import Wanted, state_rows
from tidestate.recovery.inspect.values import values_of
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import DeliveryId, Manifest
from tidestate.statestore.errors import expect
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.tails import read_file_rows

RowTexts = Counter[str]
BESIDE_A_RESULT = re.compile("^_last_|_(values|sketch)$")
"""What the name of a column of state has more than the result that it is of."""
FIRST = 5
"""So many rows of a difference are reported."""


@dataclass(frozen=True)
class Deviation:
    """A part of what a run left that is not as in the undisturbed run: rows that are missing, and rows too many."""

    part: str
    where: str
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    more: int = 0


@dataclass(frozen=True)
class Evidence:
    """The results of a run that are compared with those of the undisturbed one."""

    panes: Sequence[RowTexts]
    late: Mapping[str, Sequence[RowTexts]]
    progress: Mapping[int, str]
    totals: str
    state: Mapping[str, RowTexts] | None
    """After the last batch; None where that is collected."""
    deliveries: Sequence[Deviation]
    strays: Sequence[Deviation]
    """Deliveries of no checkpoint that counts: after a rewind there may be some."""
    findings: tuple[str, ...]
    target: RowTexts | None
    net: RowTexts | None


def evidence(folders: RoundFolders, target: pa.Table | None, net: Mapping[str, pa.Table] | None) -> Evidence:
    """The evidence of a drained root; with what the target has, and the net of the panes by output, where they are
    wanted.
    """
    checkpoint = Checkpoint.open(folders.root)
    outputs = list(checkpoint.outputs())
    steps = list(_steps(checkpoint))
    head = expect(checkpoint.head(), "a job that is done has a checkpoint").manifest
    report = verify(checkpoint, read_percent=100)
    random = frozenset[str]().union(*(random_results(state.configuration) for state in head.operators.values()))
    due = {id_: _rows(checkpoint, refs) for output in outputs for id_, refs in output.emitted.items()}
    calls = list(offers(folders.offered))
    return Evidence(
        panes=[rows for output in outputs if (rows := _rows(checkpoint, output.panes, random))],
        late={
            name: [rows for output in outputs if (rows := _rows(checkpoint, output.late_of(name)))]
            for name in head.operators
        },
        progress={number: _progress(manifest) for number, manifest in steps},
        totals=f"{_pairs(head.totals)}, batches {batch_count(head)}",
        state=_state(checkpoint, steps[-1][1], random) if steps and steps[-1][0] == batch_count(head) else None,
        deliveries=list(_deliveries(due, calls)),
        strays=[
            Deviation("deliveries", f"{call.delivery}, of no checkpoint", (), tuple(sorted(texts(call.rows))[:FIRST]))
            for call in calls
            if call.delivery not in due
        ],
        findings=tuple(
            f"{finding.kind} {finding.path}: {finding.why}" for finding in report.findings if not finding.abandoned
        ),
        target=None if target is None else texts(target, random),
        net=None if net is None else sum((texts(rows, random) for rows in net.values()), RowTexts()),
    )


def texts(rows: pa.Table, random: frozenset[str] = frozenset(), unordered: frozenset[str] = frozenset()) -> RowTexts:
    """Each row as a line, without results that are drawn at ``random``, and without their state. Lists in the columns
    ``unordered`` are sorted.
    """
    names = [name for name in rows.column_names if BESIDE_A_RESULT.sub("", name) not in random]
    columns = [_sorted_lists(rows[name]) if name in unordered else values_of(rows[name]) for name in names]
    return Counter(
        ", ".join(f"{name}={value}" for name, value in zip(names, row, strict=True))
        for row in zip(*columns, strict=True)
    )


def _sorted_lists(column: pa.ChunkedArray) -> list[Any]:
    """The lists of a column, each sorted by the texts of its elements."""
    return [values and sorted(values, key=repr) for values in values_of(column)]


def compared(baseline: Evidence, actual: Evidence, *, state: bool = True, rewound: bool = False) -> list[Deviation]:
    """All that differs; ``state`` only where it can be the same. A sink may have panes that were ``rewound``."""
    differences = list(_sequences("panes", baseline.panes, actual.panes))
    for name in dict.fromkeys((*baseline.late, *actual.late)):
        differences += _sequences(f"late rows of {name}", baseline.late.get(name, ()), actual.late.get(name, ()))
    for number in sorted(baseline.progress.keys() & actual.progress.keys()):
        if baseline.progress[number] != actual.progress[number]:
            was, now = baseline.progress[number], actual.progress[number]
            differences.append(Deviation("progress", f"batch {number}", (was,), (now,)))
    if baseline.totals != actual.totals:
        differences.append(Deviation("totals", "in the end", (baseline.totals,), (actual.totals,)))
    if state and baseline.state is not None and actual.state is not None:
        for name in dict.fromkeys((*baseline.state, *actual.state)):
            states = [record.get(name, Counter()) for record in (baseline.state, actual.state)]
            differences += of_rows("state", name, *states)
    differences += actual.deliveries
    if not rewound:
        differences += actual.strays
        if baseline.target is not None and actual.target is not None:
            differences += of_rows("sink's target", "all rows", baseline.target, actual.target)
    if actual.findings:
        differences.append(Deviation("verify", "root", (), actual.findings[:FIRST]))
    return differences


def of_rows(part: str, where: str, baseline: RowTexts, actual: RowTexts) -> list[Deviation]:
    """The difference between rows, their order left out; at most one."""
    absent, extra = [sorted(rows.elements()) for rows in (baseline - actual, actual - baseline)]
    if not absent and not extra:
        return []
    left_out = max(0, len(absent) - FIRST) + max(0, len(extra) - FIRST)
    return [Deviation(part, where, tuple(absent[:FIRST]), tuple(extra[:FIRST]), left_out)]


def _sequences(part: str, baseline: Sequence[RowTexts], actual: Sequence[RowTexts]) -> Iterator[Deviation]:
    for number in range(max(len(baseline), len(actual))):
        pair = [rows[number] if number < len(rows) else Counter() for rows in (baseline, actual)]
        yield from of_rows(part, f"output {number + 1}", *pair)


def _steps(checkpoint: Checkpoint) -> Iterator[tuple[int, Manifest]]:
    """Manifests of batches that count and are there, by the number of the batch, from 1."""
    for manifest in checkpoint.history():
        if manifest.kind == "batch":
            yield batch_count(manifest), manifest


def _progress(manifest: Manifest) -> str:
    return f"watermark {manifest.watermark_us}, {_pairs(manifest.counters)}"


def _pairs(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()) if value)


def _state(checkpoint: Checkpoint, manifest: Manifest, random: frozenset[str]) -> dict[str, RowTexts]:
    tables = {}
    for name, operator in manifest.operators.items():
        for spec in operator.tables:
            # Rows that others take back are kept as they arrive, and partitions of an operator before may do so in
            # any order. Where that is seen in a result, panes differ.
            unordered = frozenset(group.columns[0] for group in spec.groups if group.combiner == CANCEL)
            rows = [texts(part, random, unordered) for part in state_rows(checkpoint, operator, spec, Wanted())]
            tables[f"{name}.{spec.name}"] = sum(rows, RowTexts())
    return tables


def _rows(checkpoint: Checkpoint, refs: Sequence[FileRef], random: frozenset[str] = frozenset()) -> RowTexts:
    return sum((texts(read_file_rows(checkpoint.objects, ref), random) for ref in refs), RowTexts())


def _deliveries(due: Mapping[DeliveryId, RowTexts], calls: Sequence[Offered]) -> Iterator[Deviation]:
    """Where the offers break the rule: a delivery always has the rows of its checkpoint, and is accepted."""
    firsts: dict[DeliveryId, RowTexts] = {}
    for call in calls:
        rows = texts(call.rows)
        yield from of_rows(
            "deliveries", f"{call.delivery}, offered again", firsts.setdefault(call.delivery, rows), rows
        )
    accepted_ids = {call.delivery for call in calls if call.accepted}
    for delivery, rows in due.items():
        if delivery not in accepted_ids:
            yield Deviation("deliveries", f"{delivery}, never accepted", tuple(sorted(rows)[:FIRST]))
        yield from of_rows("deliveries", f"{delivery}, not its panes", rows, firsts.get(delivery, rows))
