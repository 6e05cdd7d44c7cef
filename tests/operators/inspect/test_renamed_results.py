"""Results that are renamed, change names and go: who reads older panes with newer ones goes by what each result is.

The twin knows results by a letter for life, whatever they are called: A, B and D are sums of columns, C is a text.
"""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.moves import fork, rewind
from tests.helpers.root_scans import scan_panes
from tidestate import Aggregation, agg
from tidestate.operators.inspect import net
from tidestate.operators.inspect.history.window_history import window_history
from tidestate.operators.inspect.query import query
from tidestate.operators.inspect.scan import panes_of_root
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.manifest_file import encode
from tidestate.recovery.log.renames import Renamed, names_now
from tidestate.statestore.spec.tables import TIME

Row = dict[str, Any]
Net = dict[tuple[int, str], Row]
COLUMNS = {"A": "x", "B": "y", "C": "s", "D": "z"}


@dataclass(frozen=True)
class Start:
    """A start of the job: what each result is called, what it says was renamed, and the batch that follows."""

    results: dict[str, str]
    renamed: dict[str, str] = field(default_factory=dict)
    events: tuple[tuple[int, str, int], ...] = ()
    key: str = "k"
    renamed_columns: dict[str, str] = field(default_factory=dict)


def described(start: Start) -> Aggregation:
    made = {
        name: agg.latest(COLUMNS[letter]) if letter == "C" else agg.sum(COLUMNS[letter])
        for letter, name in start.results.items()
    }
    job = ts.stream(event_time="t").group_by(start.key).window(ts.tumbling("10 seconds")).aggregate(**made)
    job = job.allowed_lateness("1 hour").retain_windows("1 hour").accumulation("retracting")
    return job.renamed(aggregates=start.renamed, columns=start.renamed_columns)


def feed(root: Path, start: Start) -> None:
    columns = [("t", TIME), (start.key, pa.string()), *((name, pa.int64()) for name in "xyz"), ("s", pa.string())]
    harness = described(start).harness(pa.schema(columns), folder=root)
    rows = [
        {"t": at * 1_000_000, start.key: key, "x": v, "y": 10 * v, "z": 100 * v, "s": f"v{v}"}
        for at, key, v in start.events
    ]
    if rows:
        harness.feed(rows)


class Twin:
    """Panes by what a result is. A result counts events from the start that adds it on."""

    def __init__(self) -> None:
        self.windows: Net = {}
        self.emitted: Net = {}
        self.last_names: dict[str, str] = {}
        self.alive: set[str] = set()
        self.mark = -1

    def feed(self, start: Start) -> None:
        self.alive = set(start.results)
        for letter, name in start.results.items():  # who has the name now takes it from who had it
            self.last_names = {one: has for one, has in self.last_names.items() if has != name} | {letter: name}
        for window in self.windows.values():
            for letter in self.alive ^ set(window):
                window.pop(letter, None)
                if letter in self.alive:
                    window[letter] = None
        changed = {self._add(at, key, v) for at, key, v in start.events}
        before, self.mark = self.mark, max([self.mark, *(at for at, _, _ in start.events)])
        for place, window in self.windows.items():
            end = place[0] + 10
            if end <= self.mark and (end > before or place in changed):
                self.emitted[place] = dict(window)

    def _add(self, at: int, key: str, v: int) -> tuple[int, str]:
        place = at // 10 * 10, key
        window = self.windows.setdefault(place, dict.fromkeys(self.alive))
        for letter, value in (("A", v), ("B", 10 * v), ("D", 100 * v)):
            if letter in self.alive:
                window[letter] = (window[letter] or 0) + value
        if "C" in self.alive:
            window["C"] = f"v{v}"
        return place

    def net(self) -> Net:
        """By today's name of each result, or the last one of one that has gone, unless another has it now."""
        return {
            place: {self.last_names[letter]: value for letter, value in window.items() if letter in self.last_names}
            for place, window in self.emitted.items()
        }


def of_root(root: Path, at: int, key: str) -> Net:
    found = scan_panes(root, at, net=True).to_table().to_pylist()
    ours = {"checkpoint", "pane", "timing", "kind", "last", "window_start", "window_end", key}
    return {
        (int(row["window_start"].timestamp()), row[key]): {
            name: value for name, value in row.items() if name not in ours
        }
        for row in found
    }


def without_nulls(net: Net) -> Net:
    return {place: {name: value for name, value in row.items() if value is not None} for place, row in net.items()}


FIRST = ((1, "a", 1), (2, "b", 2), (11, "a", 3), (25, "c", 4))
LATER = ((3, "a", 5), (36, "c", 6))
LAST = ((12, "a", 7), (47, "c", 8))
AGAIN = ((26, "c", 9), (58, "c", 1))
CASES: dict[str, list[Start]] = {
    "twice": [
        Start({"A": "a", "B": "b"}, events=FIRST),
        Start({"A": "n", "B": "b"}, {"a": "n"}),
        Start({"A": "n", "B": "b"}, {"a": "n"}, LATER),
        Start({"A": "m", "B": "b"}, {"n": "m"}, LAST),
        Start({"A": "a", "B": "b"}, {"m": "a"}, AGAIN),
    ],
    "one takes the former name of another": [
        Start({"A": "a", "B": "b"}, events=FIRST),
        Start({"A": "a", "B": "c"}, {"b": "c"}, LATER),
        Start({"A": "b", "B": "c"}, {"a": "b"}, LAST),
    ],
    "two of other types change names": [
        Start({"A": "a", "C": "c"}, events=FIRST),
        Start({"A": "x", "C": "c"}, {"a": "x"}, LATER),
        Start({"A": "x", "C": "a"}, {"c": "a"}),
        Start({"A": "c", "C": "a"}, {"x": "c"}, LAST),
    ],
    "two change names": [
        Start({"A": "a", "B": "b"}, events=FIRST),
        Start({"A": "q", "B": "b"}, {"a": "q"}),
        Start({"A": "q", "B": "a"}, {"b": "a"}),
        Start({"A": "b", "B": "a"}, {"q": "b"}, LATER),
    ],
    "one takes the name of one that has gone": [
        Start({"A": "a", "B": "b"}, events=FIRST),
        Start({"A": "a"}, events=LATER),
        Start({"A": "b"}, {"a": "b"}, LAST),
    ],
    "another of the same name": [
        Start({"A": "a", "C": "b"}, events=FIRST),
        Start({"A": "a"}, events=LATER),
        Start({"A": "a", "D": "b"}, events=LAST),
        Start({"A": "a"}, events=AGAIN),
    ],
    "one goes": [
        Start({"A": "a", "B": "b"}, events=FIRST),
        Start({"A": "a", "B": "c"}, {"b": "c"}, LATER),
        Start({"A": "a"}, events=LAST),
    ],
    "a new one at once takes the name": [
        Start({"A": "a", "B": "b"}, events=FIRST),
        Start({"A": "n", "B": "b", "D": "a"}, {"a": "n"}, LATER),
    ],
    "the key takes the name of a result": [
        Start({"A": "a", "B": "b"}, events=FIRST),
        Start({"A": "n", "B": "b"}, {"a": "n"}, LATER, "a", {"k": "a"}),
        Start({"A": "k", "B": "b"}, {"n": "k"}, LAST, "a"),
    ],
    "a result takes the name of the key": [
        Start({"A": "a", "B": "b"}, events=FIRST),
        Start({"A": "k", "B": "b"}, {"a": "k"}, LATER, "who", {"k": "who"}),
    ],
}


def run(root: Path, starts: list[Start], twin: Twin) -> dict[int, tuple[str, Net]]:
    """By the newest checkpoint after each start: the name of the key, and the net."""
    expected = {}
    for start in starts:
        twin.feed(start)
        feed(root, start)
        expected[Checkpoint.open(root).chosen(None).manifest.id] = start.key, twin.net()
    return expected


def check(root: Path, expected: dict[int, tuple[str, Net]]) -> None:
    for at, (key, counted) in expected.items():
        assert without_nulls(of_root(root, at, key)) == without_nulls(counted), at


@pytest.mark.parametrize("case", CASES)
def test_the_net_has_each_result_under_its_own_name(case: str, tmp_path: Path) -> None:
    check(tmp_path, run(tmp_path, CASES[case], Twin()))


def test_so_have_its_bands_where_tasks_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "NET_ROWS", 2)
    case = CASES["two of other types change names"]
    expected = run(tmp_path, case, Twin())
    check(tmp_path, expected)
    scan = panes_of_root(tmp_path, net=True)
    rows = [batch.num_rows for share in scan.shares() for batch in pickle.loads(pickle.dumps(share)).batches()]
    assert sum(rows) == len(expected[max(expected)][1])


def test_a_rewind_has_the_names_of_the_checkpoint_that_it_goes_back_to(tmp_path: Path) -> None:
    first = Start({"A": "a", "B": "b"}, events=FIRST)
    twin, root = Twin(), tmp_path / "root"
    before = run(root, [first], twin)
    run(root, [Start({"A": "a", "B": "c"}, {"b": "c"}, LATER)], deepcopy(twin))
    fork(root, tmp_path / "fork")
    rewind(Checkpoint.open(root), max(before))
    other = [Start({"A": "z", "B": "b"}, {"a": "z"}, LATER), Start({"A": "z", "B": "a"}, {"b": "a"}, LAST)]
    check(root, before | run(root, other, twin))
    feed(tmp_path / "fork", Start({"A": "b", "B": "c"}, {"a": "b"}, LAST))
    own = of_root(tmp_path / "fork", Checkpoint.open(tmp_path / "fork").ids()[-1], "k")
    assert own[10, "a"] == {"b": 10, "c": 100}


def test_what_is_recorded_is_named_and_left_out_while_there_is_nothing(tmp_path: Path) -> None:
    for start in CASES["one takes the name of one that has gone"]:
        feed(tmp_path, start)
    folder = Checkpoint.open(tmp_path)
    manifests = [folder.read(number).manifest for number in folder.ids()]
    records = [manifest.operators["windows"].results for manifest in manifests]
    assert records == [(), (), ((3, "b", ""),), ((3, "b", ""),), *(2 * [((3, "b", ""), (5, "a", "b"))])]
    assert ["renamed-results/1" in manifest.needs for manifest in manifests] == [bool(one) for one in records]
    for manifest in manifests:
        assert (b'"results"' in encode(manifest)[0]) == bool(manifest.operators["windows"].results)


def test_a_history_and_the_report_of_the_state_have_the_names_of_today(tmp_path: Path) -> None:
    for start in CASES["two change names"]:
        feed(tmp_path, start)
    history = window_history(Checkpoint.open(tmp_path), "1970-01-01T00:00:00", {"k": "a"})
    panes = [(one.what, one.values) for one in history.events if one.kind == "pane"]
    first, second = {"b": 1, "a": 10}, {"b": 6, "a": 60}
    assert panes == [("pane 0 on time", first), ("retracted: pane 0 late", first), ("pane 1 late", second)]
    added = [one.values for one in history.events if one.kind in ("added", "folded", "became")]
    assert added == [first, second]
    assert history.result == [second]
    windows = query(tmp_path).get_windows(key="a").to_pylist()
    assert [(row["b"], row["a"]) for row in windows] == [(6, 60), (3, 30)]


def test_a_history_takes_back_a_pane_of_other_columns(tmp_path: Path) -> None:
    """A row of before a result was removed and another added is the one that its retraction means."""
    for start in (Start({"A": "a", "B": "b"}, events=FIRST), Start({"A": "a", "D": "d"}, events=LATER)):
        feed(tmp_path, start)
    history = window_history(Checkpoint.open(tmp_path), "1970-01-01T00:00:00", {"k": "a"})
    assert history.result == [{"a": 6, "d": 500}]


def test_the_net_of_a_join_takes_rows_back_whose_column_has_gone(tmp_path: Path) -> None:
    """The retraction of a row has the columns of today. A column of the same name that came later is another."""
    sides = {
        0: ({"x": pa.int64(), "y": pa.int64()}, [("left", 1, "a"), ("left", 40, "b")]),
        1: ({"y": pa.int64()}, [("left", 41, "b")]),
        2: ({"x": pa.string(), "y": pa.int64()}, [("left", 80, "c"), ("right", 2, "a")]),
    }
    job = ts.stream(event_time="t").join(
        ts.stream(event_time="t"), on="k", within=("0 s", "5 s"), how="left", allowed_lateness="2 minutes"
    )
    for columns, events in sides.values():
        left = pa.schema([("t", TIME), ("k", pa.string()), *columns.items()])
        schema = {"left": left, "right": pa.schema([("t", TIME), ("k", pa.string()), ("w", pa.int64())])}
        harness = job.harness(schema, folder=tmp_path)
        for side, at, key in events:
            row = {"t": at * 1_000_000, "k": key, "x": "7" if columns.get("x") == pa.string() else 7, "y": 8, "w": 9}
            of_side = left if side == "left" else pa.schema([("t", TIME), ("k", pa.string()), ("w", pa.int64())])
            harness.feed({side: pa.Table.from_pylist([row], schema=of_side)})
            harness.advance_watermark(at * 1_000_000 - 20_000_000)
    rows = scan_panes(tmp_path, net=True).to_table().to_pylist()
    found = [(row["left_x"], row["left_y"], row["right_w"]) for row in rows if row["k"] == "a"]
    assert found == [(None, 8, 9)]


@pytest.mark.parametrize(
    ("records", "checkpoint", "names"),
    [
        ([(3, "a", "b"), (3, "b", "a")], 1, {"a": "b", "b": "a"}),
        ([(3, "a", "")], 1, {"a": "a"}),
        ([(3, "now", "")], 1, {"now": ""}),
        ([(3, "a", ""), (5, "b", "a")], 1, {"a": "", "b": "a"}),
        ([(3, "a", ""), (5, "b", "a"), (6, "a", "c")], 1, {"a": "", "b": "c"}),
        ([(3, "a", ""), (5, "a", "")], 1, {"a": ""}),
        ([(3, "a", ""), (5, "a", "")], 4, {"a": "a"}),
        ([(2, "a", "b"), (3, "b", ""), (5, "b", "c")], 1, {"a": ""}),
        ([(2, "a", "b"), (3, "b", "")], 1, {"a": "b"}),
        ([(3, "a", ""), (5, "a", "z")], 4, {"a": "z"}),
    ],
)
def test_what_results_are_called_now(records: list[Renamed], checkpoint: int, names: dict[str, str]) -> None:
    """What has gone keeps its last name unless another has had it since."""
    assert names_now(records, checkpoint, {"now"}) == names
