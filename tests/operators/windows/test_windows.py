"""The whole windowed computation against its naive twin: any store, any partitions, any split, any crash."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

import tidestate as ts
from tests.helpers import evidence
from tests.helpers.every_store import STORES, added, new_folder, store_config
from tests.helpers.process import LONG, forget
from tests.twins import streams
from tests.twins.naive import Event, Row, Setting, Twin
from tidestate import agg
from tidestate.statestore.spec.store import StoreName

SHARE = run_settings.default.max_examples
HALF = run_settings(max_examples=SHARE if LONG else 2)
LIMITS = st.sampled_from([(12, 4 << 20), (2, 4 << 20), (4, 1), (12, 1), (2, 1)])
PARTITIONS = st.sampled_from([1, 1, 2, 5])


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
@run_settings(max_examples=SHARE if LONG else max(3, SHARE // 3))
@given(setting=streams.settings(), stream=streams.batches(), partitions=PARTITIONS, limits=LIMITS)
@pytest.mark.long
def test_every_checkpoint_equals_the_twins(
    name: StoreName, setting: Setting, stream: list[streams.Batch], partitions: int, limits: tuple[int, int]
) -> None:
    twin = Twin(setting).run(stream)
    with new_folder() as folder:
        root = folder / "root"
        returned = streams.run(setting, stream, root, store_config(name, folder, limits), partitions)
        found = evidence.panes(root)
        assert found == [Counter(panes) for panes in twin.panes]
        assert Counter(evidence.plain(returned)) == sum(found, Counter())
        assert evidence.ledger(root, streams.SCHEMA.names) == Counter(twin.ledger)
        work = evidence.work(root)
        assert [manifest.get("watermark_us") for manifest in work[:-1]] == twin.watermarks
        check_counters(work, stream, twin)
        check_identities(root)
        check_files(root, limits[0])


def check_counters(work: list[dict], stream: list[streams.Batch], twin: Twin) -> None:
    total = work[-1]["totals"]

    def of(*names: str) -> int:
        return sum(total.get(name, 0) for name in names)

    emitted = Counter((row[-3], row[-2]) for panes in twin.panes for row in panes)
    assert [manifest["counters"].get("events", 0) for manifest in work] == [*map(len, stream), 0]
    assert of("events") == of("accepted", "very_late", "null_key", "null_event_time")
    assert of("accepted") == of("on_time", "mildly_late", "future")
    assert Counter(row[-2] for row in twin.ledger) == Counter(
        {reason: of(reason) for reason in ("very_late", "null_key", "null_event_time") if of(reason)}
    )
    assert of("panes_on_time") == emitted["on_time", "emit"]
    assert of("panes_late") == emitted["late", "emit"]
    assert of("retractions") == emitted["late", "retract"]


def check_identities(root: Path) -> None:
    """No pane twice; every retraction takes back the pane before the one that follows it."""
    emitted: dict[Row, Row] = {}
    retracted: set[Row] = set()
    for manifest in evidence.work(root):
        for row in evidence.rows(root, manifest["panes"]):
            where, values, pane, kind = row[:-11], row[-11:-4], row[-4], row[-2]
            if kind == "retract":
                assert emitted[(*where, pane)] == values
                assert (*where, pane) not in retracted
                assert (*where, pane + 1) not in emitted
                retracted.add((*where, pane))
            else:
                assert (*where, pane) not in emitted
                assert pane == 0 or (*where, pane - 1) in emitted
                emitted[(*where, pane)] = values


def check_files(root: Path, max_levels: int) -> None:
    """The limit on files holds, every named file is there, a folded file stands for the last segment it holds."""
    segments: dict[tuple[int, str, int], tuple[str, str]] = {}
    for manifest in evidence.manifests(root):
        for partition, state in enumerate(manifest["operators"]["windows"]["partitions"]):
            tables = Counter(ref["table"] for ref in state["files"])
            assert all(count <= max_levels for count in tables.values())
            for ref in state["files"]:
                name, ids = (partition, ref["table"], ref["last"]), (ref["segment"], ref.get("kind", "changelog"))
                assert segments.setdefault(name, ids)[0] == ids[0]
                assert ids[1] != "changelog" or segments[name] == ids
                assert ref["first"] <= ref["last"] <= manifest["id"]
            assert [ref["last"] for ref in state["files"] if ref["segment"] == state["lineage"]] in (
                [],
                [state["sequence"]],
                [state["sequence"]] * 2,
            )
    assert all((root / path).is_file() for path in evidence.named_files(root))


def net(setting: Setting, panes: list[Row]) -> dict[Row, Row]:
    """What a reader who puts all panes together ends up with, per window and key."""
    found: dict[Row, Row] = {}
    signed: Counter[Row] = Counter()
    for row in panes:
        where, values, kind = row[:-11], row[-11:-4], row[-2]
        if setting.mode == "retracting":
            signed[(*where, values)] += 1 if kind == "emit" else -1
        elif setting.mode == "accumulating":
            found[where] = values  # panes come in the order of their numbers
        else:
            found[where] = added(found[where], values) if where in found else values[:6]
    if setting.mode == "retracting":
        assert all(times in (0, 1) for times in signed.values())
        kept = [row for row, times in signed.items() if times]
        found = {row[:-1]: row[-1] for row in kept}
        assert len(found) == len(kept)
    return found


@st.composite
def split(draw: st.DrawFn, setting: Setting, stream: list[streams.Batch]) -> list[streams.Batch]:
    """The same events in other batches and another order, with the same sequence of watermarks.

    Events that would move the watermark have to stay in the last piece of their batch.
    """
    pieces: list[streams.Batch] = []
    twin = Twin(setting)
    for batch in stream:
        before = twin.watermark
        twin.batch(batch)
        moving = [e for e in batch if twin.rejection(e, before) is None and moves(setting, e, before)]
        rest = draw(st.permutations([e for e in batch if e not in moving]))
        cuts = sorted(draw(st.lists(st.integers(0, len(rest)), max_size=2)))
        bounds = list(zip([0, *cuts], [*cuts, len(rest)], strict=True))
        made = [rest[first:last] for first, last in bounds]
        made[-1] = draw(st.permutations([*made[-1], *moving]))
        pieces += made
    return pieces


def moves(setting: Setting, event: Event, before: int | None) -> bool:
    return before is None or (event.time is not None and event.time - setting.delay > before)


@pytest.mark.slow
@HALF
@given(setting=streams.settings(), stream=streams.batches(), data=st.data())
def test_the_net_does_not_depend_on_how_events_are_split(
    setting: Setting, stream: list[streams.Batch], data: st.DataObject
) -> None:
    other = data.draw(split(setting, stream), label="other split")
    nets, ledgers, marks = [], [], []
    for batches in (stream, other):
        name = data.draw(st.sampled_from(STORES), label="store")
        with new_folder() as folder:
            store = store_config(name, folder, data.draw(LIMITS, label="limits"))
            returned = streams.run(
                setting, batches, folder / "root", store, data.draw(PARTITIONS, label="partitions")
            )
            nets.append(net(setting, evidence.plain(returned)))
            ledgers.append(evidence.ledger(folder / "root", streams.SCHEMA.names))
            marks.append({m.get("watermark_us") for m in evidence.work(folder / "root")} - {None})
    assert marks[0] == marks[1]
    assert nets[0] == nets[1]
    assert ledgers[0] == ledgers[1]


class CrashError(Exception):
    """Raised by a hook: the process dies here."""


@pytest.mark.slow
@HALF
@given(
    setting=streams.settings(),
    stream=streams.batches(),
    partitions=PARTITIONS,
    crashes=st.lists(
        st.tuples(st.sampled_from(["before-manifest", "after-manifest"]), st.integers(0, 3)), max_size=4
    ),
    stores=st.lists(st.tuples(st.sampled_from(STORES), LIMITS, st.booleans()), min_size=1, max_size=5),
)
@example(
    setting=Setting(4, 2, allowed=9, mode="retracting"),
    stream=[[Event(t, "a", 0, t, 0.25)] for t in (1, 9, 2, 30)],
    partitions=2,
    crashes=[("before-manifest", 1), ("after-manifest", 0), ("after-manifest", 1)],
    stores=[("rocksdb", (2, 50), False), ("memory", (2, 50), False), ("parquet", (2, 1), True)],
)
def test_a_crash_at_any_moment_changes_nothing(
    setting: Setting,
    stream: list[streams.Batch],
    partitions: int,
    crashes: list[tuple[str, int]],
    stores: list[tuple[StoreName, tuple[int, int], bool]],
) -> None:
    """Each start may use another store, with the caches of an earlier one still there or not."""
    twin = Twin(setting).run(stream)
    with new_folder() as folder:
        for number, crash in enumerate([*crashes, None]):
            name, limits, new_process = stores[number % len(stores)]
            if new_process:
                forget()
            try:
                store = store_config(name, folder, limits)
                streams.run(setting, stream, folder / "root", store, partitions, Crashing(crash))
            except CrashError:
                continue
        root = folder / "root"
        assert evidence.panes(root) == [Counter(panes) for panes in twin.panes]
        assert evidence.ledger(root, streams.SCHEMA.names) == Counter(twin.ledger)
        check_counters(evidence.work(root), stream, twin)
        check_identities(root)


class Crashing:
    """A hook that raises at the n-th time a moment comes, counted from this start."""

    def __init__(self, crash: tuple[str, int] | None) -> None:
        self.moment, self.left = crash or ("", 0)

    def __call__(self, moment: str, _checkpoint_id: int) -> None:
        if moment == self.moment:
            if not self.left:
                raise CrashError(moment)
            self.left -= 1


@pytest.mark.parametrize("rule", ["window", "event"])
@pytest.mark.parametrize("known", [False, True])
def test_a_late_event_in_no_window_is_in_the_ledger(known: bool, rule: Any) -> None:
    """Windows [8, 13), [16, 21), [24, 29): 14 and 22 are in none, and 14 is behind W once 20 has been."""
    begun = ts.stream(event_time="t").group_by().window(ts.sliding("5 seconds", "8 seconds", strict=False))
    counted = begun.aggregate(n=agg.count()).allowed_lateness("2 seconds", rule=rule)
    described = counted.messages(identity="id") if known else counted
    schema = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("id", "int64")])
    harness = described.harness(schema)

    def feed(*rows: tuple[int, int]) -> None:
        harness.feed(
            pa.table([[1_000_000 * t for t, _ in rows], [n for _, n in rows]], names=schema.names).cast(schema)
        )

    feed((20, 0))
    feed((14, 1), (15, 2), (22, 3), (17, 4))
    late = {"very_late": 3} if rule == "event" else {"no_window": 2}
    counters = harness.counters()
    assert {name: counters.get(name, 0) for name in late} == late
    assert "out_of_retention" not in counters
    assert counters["accepted"] + sum(late.values()) == 5
    assert sorted(set(harness.ledger()["reason"].to_pylist())) == list(late)
