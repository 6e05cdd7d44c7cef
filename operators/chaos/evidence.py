"""All that a root and a sink have after a run, as rows of text, and how it differs from the undisturbed run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidestate.operators.chaos.offered import Offered, offers
from tidestate.operators.chaos.start import RoundFolders
from tidestate.recovery.inspect.rows import Wanted, state_rows
from tidestate.recovery.inspect.values import values_of
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest
from tidestate.recovery.log.outputs import DeliveryId
from tidestate.statestore.errors import expect
from tidestate.statestore.files.refs import FileRef
from tidestate.statestore.files.tails import read_file_rows

RowTexts = Counter[str]
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


def evidence(place: RoundFolders, target: pa.Table | None, net: pa.Table | None) -> Evidence:
    """The evidence of a drained root; with what the target has, and the net of the panes, where they are wanted."""
    checkpoint = Checkpoint.open(place.root)
    outputs = list(checkpoint.outputs())
    steps = list(_steps(checkpoint))
    head = expect(checkpoint.head(), "a job that is done has a checkpoint").manifest
    found = verify(checkpoint, read_percent=100)
    due = {one.delivery_id: _rows(checkpoint, one.panes) for one in outputs if one.panes}
    calls = list(offers(place.offered))
    return Evidence(
        panes=[rows for one in outputs if (rows := _rows(checkpoint, one.panes))],
        late={
            name: [rows for one in outputs if (rows := _rows(checkpoint, one.late_of(name)))]
            for name in head.operators
        },
        progress={number: _progress(one) for number, one in steps},
        totals=f"{_pairs(head.totals)}, batches {_number(head)}",
        state=_state(checkpoint, steps[-1][1]) if steps and steps[-1][0] == _number(head) else None,
        deliveries=list(_deliveries(due, calls)),
        strays=[
            Deviation("deliveries", f"{call.delivery}, of no checkpoint", (), tuple(sorted(texts(call.rows))[:FIRST]))
            for call in calls
            if call.delivery not in due
        ],
        findings=tuple(f"{one.kind} {one.path}: {one.why}" for one in found.findings if not one.abandoned),
        target=None if target is None else texts(target),
        net=None if net is None else texts(net),
    )


def texts(rows: pa.Table) -> RowTexts:
    """Each row as a line."""
    names = rows.column_names
    columns = [values_of(column) for column in rows.columns]
    return Counter(
        ", ".join(f"{name}={value}" for name, value in zip(names, row, strict=True))
        for row in zip(*columns, strict=True)
    )


def compared(expected: Evidence, found: Evidence, *, state: bool = True, rewound: bool = False) -> list[Deviation]:
    """All that differs; ``state`` only where it can be the same. A sink may have panes that were ``rewound``."""
    differences = list(_sequences("panes", expected.panes, found.panes))
    for name in dict.fromkeys((*expected.late, *found.late)):
        differences += _sequences(f"late rows of {name}", expected.late.get(name, ()), found.late.get(name, ()))
    for number in sorted(expected.progress.keys() & found.progress.keys()):
        if expected.progress[number] != found.progress[number]:
            was, now = expected.progress[number], found.progress[number]
            differences.append(Deviation("progress", f"batch {number}", (was,), (now,)))
    if expected.totals != found.totals:
        differences.append(Deviation("totals", "in the end", (expected.totals,), (found.totals,)))
    if state and expected.state is not None and found.state is not None:
        for name in dict.fromkeys((*expected.state, *found.state)):
            both = [one.get(name, Counter()) for one in (expected.state, found.state)]
            differences += of_rows("state", name, *both)
    differences += found.deliveries
    if not rewound:
        differences += found.strays
        if expected.target is not None and found.target is not None:
            differences += of_rows("sink's target", "all rows", expected.target, found.target)
    if found.findings:
        differences.append(Deviation("verify", "root", (), found.findings[:FIRST]))
    return differences


def of_rows(part: str, where: str, expected: RowTexts, found: RowTexts) -> list[Deviation]:
    """The difference between rows, their order left out; at most one."""
    missing, extra = [sorted(rows.elements()) for rows in (expected - found, found - expected)]
    if not missing and not extra:
        return []
    more = max(0, len(missing) - FIRST) + max(0, len(extra) - FIRST)
    return [Deviation(part, where, tuple(missing[:FIRST]), tuple(extra[:FIRST]), more)]


def _sequences(part: str, expected: Sequence[RowTexts], found: Sequence[RowTexts]) -> Iterator[Deviation]:
    for number in range(max(len(expected), len(found))):
        both = [rows[number] if number < len(rows) else Counter() for rows in (expected, found)]
        yield from of_rows(part, f"output {number + 1}", *both)


def _steps(checkpoint: Checkpoint) -> Iterator[tuple[int, Manifest]]:
    """Manifests of batches that count and are there, by the number of the batch, from 1."""
    for one in checkpoint.history():
        if one.kind == "batch":
            yield _number(one), one


def _number(one: Manifest) -> int:
    """How many batches there were."""
    if one.spark is not None:
        return one.spark.batch_id + 1
    return one.input.batches if one.input is not None else 0


def _progress(one: Manifest) -> str:
    return f"watermark {one.watermark_us}, {_pairs(one.counters)}"


def _pairs(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()) if value)


def _state(checkpoint: Checkpoint, one: Manifest) -> dict[str, RowTexts]:
    found = {}
    for name, operator in one.operators.items():
        for spec in operator.tables:
            rows = [texts(part) for part in state_rows(checkpoint, operator, spec, Wanted())]
            found[f"{name}.{spec.name}"] = sum(rows, RowTexts())
    return found


def _rows(checkpoint: Checkpoint, refs: Sequence[FileRef]) -> RowTexts:
    return sum((texts(read_file_rows(checkpoint.objects, ref)) for ref in refs), RowTexts())


def _deliveries(due: Mapping[DeliveryId, RowTexts], calls: Sequence[Offered]) -> Iterator[Deviation]:
    """Where the offers break the rule: a delivery always has the rows of its checkpoint, and is accepted."""
    firsts: dict[DeliveryId, RowTexts] = {}
    for call in calls:
        rows = texts(call.rows)
        yield from of_rows(
            "deliveries", f"{call.delivery}, offered again", firsts.setdefault(call.delivery, rows), rows
        )
    accepted = {call.delivery for call in calls if call.accepted}
    for one, rows in due.items():
        if one not in accepted:
            yield Deviation("deliveries", f"{one}, never accepted", tuple(sorted(rows)[:FIRST]))
        yield from of_rows("deliveries", f"{one}, not its panes", rows, firsts.get(one, rows))
