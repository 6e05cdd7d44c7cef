"""A key column that was renamed twice: readers that join older files to newer ones read one column of three names."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tidestate as ts
from tests.helpers.report_page import text_of
from tests.helpers.root_scans import scan_panes
from tidestate import Aggregation, Standalone, agg
from tidestate.operators.inspect.history.window_history import window_history
from tidestate.operators.inspect.query import query
from tidestate.operators.inspect.report.document import write_report
from tidestate.recovery.log.checkpoint import Checkpoint
from tidestate.recovery.log.renames import Renamed, names_now
from tidestate.statestore.spec.tables import TIME

PARTS = [[(1, "a"), (2, "b")], [(20, "a")], [(31, "b")], [(3, "a"), (1, "late")]]
NAMES = ("user", "who", "visitor")
START = "1970-01-01T00:00:00"


def described(key: str) -> Aggregation:
    began = ts.stream(event_time="t").group_by(key).window(ts.tumbling("10 seconds")).aggregate(n=agg.count())
    return began.allowed_lateness("28 seconds").retain_windows("1 hour").accumulation("retracting")


def rows_of(key: str, parts: list[list[tuple[int, str]]]) -> list[pa.Table]:
    return [
        pa.table({"t": pa.array([second * 1_000_000 for second, _ in part], TIME), key: [one for _, one in part]})
        for part in parts
    ]


def started(root: Path, number: int) -> Standalone:
    key, renamed = NAMES[number], {NAMES[number - 1]: NAMES[number]} if number else {}
    return described(key).renamed(columns=renamed).standalone(checkpoint=root)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, each with another name: the first emits a pane of a and of b, the last corrects that of a."""
    folder = tmp_path_factory.mktemp("renamed") / "root"
    for number, batches in enumerate((2, 3, 4)):
        started(folder, number).run(rows_of(NAMES[number], PARTS[:batches]))
    return folder


def test_the_net_has_each_window_once(root: Path) -> None:
    """1970-01-01 00:00:00 has one event of a and one of b until the last batch, with which it has two of a."""
    first = {("a", 1), ("b", 1)}
    for at in Checkpoint.open(root).ids():
        net = scan_panes(root, at, net=True).to_table()
        key = NAMES[0] if at < 4 else NAMES[1] if at < 6 else NAMES[2]
        assert set(NAMES) & set(net.column_names) == {key}
        counted = {(row[key], row["n"]) for row in net.to_pylist() if row["window_start"].timestamp() == 0}
        assert counted == (set() if at < 3 else first if at < 7 else {("a", 2), ("b", 1)})


def test_a_history_is_of_the_one_key(root: Path) -> None:
    history = window_history(Checkpoint.open(root), START, {"visitor": "a"})
    events = [(one.checkpoint, one.kind, one.values.get("n")) for one in history.events if one.kind != "became"]
    assert events == [(2, "added", 1), (3, "pane", 1), (7, "pane", 1), (7, "pane", 2)]
    assert history.result == [{"n": 2}]
    other = window_history(Checkpoint.open(root), START, {"visitor": "b"})
    assert other.result == [{"n": 1}]


def test_the_report_has_each_window_once(root: Path, tmp_path: Path) -> None:
    write_report(root, tmp_path / "report.html")
    text = text_of(tmp_path / "report.html")
    assert text.count("1970-01-01 00:00:00") == len({"a", "b"}), text


def test_the_state_has_the_newest_name(root: Path) -> None:
    windows = query(root).get_windows().to_pylist()
    assert [(row["visitor"], row["n"]) for row in windows] == [("a", 2), ("b", 1), ("a", 1), ("b", 1)]


def test_the_net_of_a_join_whose_column_was_renamed_twice(tmp_path: Path) -> None:
    """A row without a partner is emitted under the first name, and under the third taken back for a pair."""
    sides = [{"left": [(1, "a")]}, {"left": [(40, "b")]}, {"left": [(41, "b")]}, {"right": [(2, "a")]}]
    kinds = {"left": 0, "right": 1}

    def feed(number: int, price: str, renamed: dict[str, str]) -> None:
        job = ts.stream(event_time="t").join(
            ts.stream(event_time="t"), on="k", within=("0 s", "5 s"), how="left", allowed_lateness="1 minute"
        )
        columns = [pa.schema([("t", TIME), ("k", pa.string()), (name, pa.int64())]) for name in (price, "weight")]
        batches = []
        for part in sides[:number]:
            given = {
                side: pa.table(
                    [[second * 1_000_000 for second, _ in own], [key for _, key in own], [7] * len(own)],
                    schema=columns[kinds[side]],
                )
                for side, own in part.items()
            }
            batches.append({side: one.empty_table() for side, one in zip(kinds, columns, strict=True)} | given)
        job.renamed(columns=renamed).standalone(checkpoint=tmp_path).run(batches)

    feed(2, "price", {})
    feed(3, "cost", {"left_price": "left_cost"})
    feed(4, "fee", {"left_cost": "left_fee"})
    net = scan_panes(tmp_path, net=True).to_table()
    rows = [(row["left_fee"], row["right_weight"]) for row in net.to_pylist() if row["k"] == "a"]
    assert rows == [(7, 7)]
    assert {"left_price", "left_cost"}.isdisjoint(net.column_names)


@pytest.mark.parametrize(
    ("renamed", "checkpoint", "names"),
    [
        ([(3, "a", "b"), (5, "b", "c")], 1, {"a": "c"}),
        ([(3, "a", "b"), (5, "b", "c")], 3, {"b": "c"}),
        ([(3, "a", "b"), (5, "b", "c")], 5, {}),
        ([(3, "a", "b"), (5, "b", "a")], 1, {"a": "a"}),
        ([(3, "a", "b"), (5, "x", "a")], 1, {"a": "b", "x": "a"}),
        ([(3, "a", "b"), (4, "b", "c"), (6, "a", "z")], 1, {"a": "c"}),
    ],
)
def test_what_columns_are_called_now(renamed: list[Renamed], checkpoint: int, names: dict[str, str]) -> None:
    """In the last case a is another column by then, which the file has not."""
    assert names_now(renamed, checkpoint) == names


def test_a_harness_has_its_ledger_under_the_newest_name(tmp_path: Path) -> None:
    for key, renamed in (("user", {}), ("who", {"user": "who"}), ("visitor", {"who": "visitor"})):
        columns = pa.schema([("t", TIME), (key, pa.string())])
        harness = described(key).renamed(columns=renamed).harness(columns, folder=tmp_path)
        if key == "user":
            for rows in rows_of(key, [[(200, "a")], [(1, "late")]]):
                harness.feed(rows)
    assert harness.ledger()["visitor"].to_pylist() == ["late"]
