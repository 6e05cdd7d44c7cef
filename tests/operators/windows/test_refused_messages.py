"""What a window has refused is in none of its answers: not in its results, nor among its events and offsets; and what
all windows refused is no stored message.

The twin is the same job without `.messages(…)`: it keeps lists in its state, and is asked for them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers.process import LONG, SCRATCH, examples, few
from tidestate import Aggregation, agg, trigger
from tidestate.operators.inspect.query import Query, query
from tidestate.statestore.spec.store import Memory

SECOND = 1_000_000
SCHEMA = pa.schema(
    {
        "part": pa.string(),
        "at": pa.int64(),
        "t": pa.timestamp("us", tz="UTC"),
        "k": pa.string(),
        "gap": pa.int64(),
        "v": pa.int64(),
    }
)
KINDS: dict[str, Any] = {
    "tumbling": ts.tumbling("6 seconds"),
    "sliding": ts.sliding("6 seconds", "2 seconds"),
    "between": ts.sliding("2 seconds", "5 seconds", strict=False),
    "session": ts.sessions("5 seconds"),
    "gaps": ts.sessions(gap_column="gap"),
    "counted": ts.count_windows(4, 3),
}
KEPT = ts.Retention(span=f"{10**12} microseconds")
Rows = list[dict[str, Any]]


def job(kind: str, *, in_order: bool, rule: str, finishes: int | None, each: bool, retained: bool) -> Aggregation:
    order = {"origin": "part", "offset": "at"} if each or kind == "counted" else {}
    events = ts.stream(event_time="t", watermark_delay="2 seconds", **order)  # type: ignore[arg-type]
    made = (
        events.group_by("k")
        .window(KINDS[kind])
        .aggregate(n=agg.count(), ids=agg.list("v"))
        .allowed_lateness("3 seconds", rule=rule)
    )
    made = made.in_order() if in_order else made
    if retained and kind != "counted" and (kind, rule) != ("gaps", "window"):
        made = made.retain_windows("1 day")
    return (
        made
        if finishes is None
        else made.trigger(when=trigger.after_count(finishes), evaluate="element" if each else "batch")
    )


@st.composite
def streams(draw: st.DrawFn) -> list[Rows]:
    made, base, sent = list[Rows](), 0, 0
    times = draw(st.permutations(range(200)))  # sessions of one start would be the same session
    for size in draw(st.lists(st.integers(1, 6), min_size=2, max_size=6 if LONG else 4)):
        base += draw(st.sampled_from([0, 2, 4, 8]))
        batch: Rows = []
        for _ in range(size):
            time = max(0, base - draw(st.sampled_from([*range(10)]))) * SECOND + times.pop()
            row = {"part": draw(st.sampled_from("pq")), "at": sent, "t": time, "k": draw(st.sampled_from("aab"))}
            batch.append({**row, "gap": draw(st.integers(1, 9)) * SECOND, "v": sent})
            sent += 1
        made.append(batch)
    return made


def answers(asked: Query, rows: dict[int, dict[str, Any]], *, held: bool = False) -> list[Any]:
    """Windows with results; each with as many events, and such offsets, as its list has, but where some are held."""
    found = []
    for row in asked.get_windows().to_pylist():
        if row["n"] is None:
            continue
        ids = row.pop("ids")
        found.append((row["k"], row["window_start"], row["window_end"], row["n"], sorted(ids)))
        if "offsets" in row:
            parts = {rows[one]["part"] for one in ids}
            spans = {part: [one for one in ids if rows[one]["part"] == part] for part in parts}
            offsets = {of["origin"]: (of["start_offset"], of["last_offset"]) for of in row["offsets"]}
            assert held or offsets == {part: (min(of), max(of)) for part, of in spans.items()}
            assert row["events"] == len(ids)
    return sorted(found, key=repr)


def plain_panes(panes: Rows) -> list[str]:
    """Whatever the order of their lists."""
    return sorted(repr({**pane, "ids": sorted(pane["ids"])}) for pane in panes)


@pytest.mark.parametrize("kind", few(KINDS, 4))
@settings(max_examples=examples(24))
@given(made=streams(), data=st.data())
def test_windows_and_messages_are_those_that_windows_took(kind: str, made: list[Rows], data: st.DataObject) -> None:
    chosen = {
        "in_order": kind != "counted" and data.draw(st.booleans()),
        "rule": data.draw(st.sampled_from(["window", "event"])),
        "finishes": data.draw(st.none() | st.integers(1, 3)),
        "each": False,
        "retained": data.draw(st.booleans()),
    }
    chosen["each"] = chosen["finishes"] is not None and data.draw(st.booleans())
    plain = job(kind, **chosen)
    known = plain.messages(("part", "at"), retain=KEPT if chosen["retained"] else None)
    rows = {row["v"]: row for batch in made for row in batch}
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        roots = [Path(folder) / name for name in ("plain", "known")]
        twin, tested = (
            one.harness(SCHEMA, folder=root, partitions=2, store=Memory())
            for one, root in zip((plain, known), roots, strict=True)
        )
        took, held = set[int](), chosen["in_order"] and chosen["finishes"] is None
        for batch in made:
            expected, found = (one.feed(batch).to_pylist() for one in (twin, tested))
            # Counted windows would take what is too late, but its identity is forgotten.
            if data.draw(st.integers(0, 3)) == 0 and kind != "counted":
                expected += twin.reprocess_late().to_pylist()
                found += tested.reprocess_late().to_pylist()
            assert plain_panes(found) == plain_panes(expected)
            took |= {one for pane in found for one in pane["ids"]}
            wanted = answers(query(roots[0]), rows)
            assert answers(query(roots[1]), rows, held=held) == wanted
            took |= {one for *_, ids in wanted for one in ids}
            if chosen["retained"]:
                stored = {row["offset"] for row in query(roots[1]).get_messages().to_pylist()}
                if kind == "between":  # none refused a message that lies between windows
                    stored = {one for one in stored if rows[one]["t"] % (5 * SECOND) < 2 * SECOND}
                assert took == stored if not held else took <= stored
