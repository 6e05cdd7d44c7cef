"""All that a scenario has come to: two runs that differ in when processes died have the same."""

from __future__ import annotations

from itertools import zip_longest
from typing import TypeAlias

import msgspec
import pyarrow as pa

from tests.faults.scenarios import Scenario
from tests.faults.world import World, in_order
from tidestate.operators.engine.delivery import as_written
from tidestate.recovery.inspect.rows import Wanted, state_rows
from tidestate.recovery.inspect.verify import verify
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest import Manifest, OperatorState, operator_of_file

Outcome: TypeAlias = dict[str, list[str]]
"""What it is, line by line."""


def outcome(world: World, scenario: Scenario) -> Outcome:
    """Panes and ledgers as they were emitted, state, how far time and input are, what sinks have; and what `verify`
    finds, which reads every byte.
    """
    found: Outcome = {}
    for root in scenario.roots:
        checkpoint = world.checkpoint(root)
        head = checkpoint.head(search=True)
        assert head is not None
        parts = {
            **_output(checkpoint),
            **_state(checkpoint, head.manifest, repeats=scenario.repeats),
            "position": _position(head.manifest, repeats=scenario.repeats),
            "verify": sorted({one.kind for one in verify(checkpoint, read_percent=100).findings}),
        }
        found |= {f"{root}, {what}": lines for what, lines in parts.items()}
    return found | {name: one.rows for name, one in world.receivers.items() if one.taken}


def differences(wanted: Outcome, found: Outcome) -> list[str]:
    """In words, the first of each kind."""
    lines = []
    for what in sorted(wanted.keys() | found.keys()):
        one, other = wanted.get(what, []), found.get(what, [])
        if one != other:
            pairs = zip_longest(one, other, fillvalue="nothing")
            here, there = next(pair for pair in pairs if pair[0] != pair[1])
            same = next((at for at, pair in enumerate(zip(here, there, strict=False)) if pair[0] != pair[1]), 0)
            at = max(0, same - 80)
            lines.append(
                f"{what}: {len(other)} lines for {len(one)}; … {there[at : at + 200]} for … {here[at : at + 200]}"
            )
    return lines


def _output(checkpoint: Checkpoint) -> Outcome:
    """A line for each checkpoint that has some."""
    found: Outcome = {"panes": [], "late": []}
    for output in checkpoint.outputs():
        ledgers = dict.fromkeys(operator_of_file(ref) for ref in output.late)
        for kind, refs in (
            *(("panes", refs) for refs in output.emitted.values()),
            *(("late", output.late_of(name)) for name in ledgers),
        ):
            if refs:
                rows = pa.concat_tables(as_written(checkpoint, refs))
                found[kind].append(repr(in_order(rows)))
    return found


def _state(checkpoint: Checkpoint, head: Manifest, *, repeats: bool) -> Outcome:
    found: Outcome = {}
    for name, operator in head.operators.items():
        for spec in operator.tables:
            rows = pa.concat_tables(state_rows(checkpoint, operator, spec, Wanted())).to_pylist()
            found[f"{name}.{spec.name}"] = sorted(map(repr, rows))
        found[f"{name}, progress"] = _progress(operator, repeats=repeats)
    return found


def _progress(operator: OperatorState, *, repeats: bool) -> list[str]:
    """Without what a start begins again: since when sources were polled, and for how long they have been quiet."""
    tracker = {name: value for name, value in (operator.progress or {}).items() if name != "processing_us"}
    left_out = {"quiet_us": 0} | ({"rows": 0} if repeats else {})
    tracker["sources"] = {name: one | left_out for name, one in tracker.get("sources", {}).items()}
    operator = msgspec.structs.replace(operator, progress=tracker)
    names = (
        "watermark_us",
        "progress",
        "advances",
        "buffers",
        "buffers_by_side",
        "numbering",
        "origins",
        "due_us",
        "expired",
        "rebuilding",
    )
    return [f"{name} {msgspec.json.encode(getattr(operator, name), order='sorted').decode()}" for name in names]


def _position(head: Manifest, *, repeats: bool) -> list[str]:
    again = ("duplicates", "events") if repeats else ()
    totals = {name: count for name, count in sorted(head.totals.items()) if count and name not in again}
    names = ("watermark_us", "max_event_us", "processing_us", "drained", "input", "partitions")
    reasons = {name: sorted(by_reason) for name, by_reason in head.fed_by_reason.items()}
    fed = [f"fed {head.fed > 0}", f"fed by reason {reasons}"]
    return [f"totals {totals}", *fed, *(f"{name} {getattr(head, name)}" for name in names)]
