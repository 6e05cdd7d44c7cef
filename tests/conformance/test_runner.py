"""The runner: what is changed fails, a file that is amiss is answered to be, a skip has its reason."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidestate as ts
from tests.conformance.bench import Bench
from tests.conformance.driver import windows_at
from tests.conformance.harness import STORES, folder
from tests.conformance.run import Result, run
from tests.conformance.samples import EVENT, MARK, Raw, case, loaded, over
from tests.conformance.units import Units
from tests.helpers.checkout import CASES
from tests.helpers.process import LONG
from tidestate import OperatorStream

Change = Callable[[Raw], None]


def ran(raw: Raw, tmp_path: Path, opener: Any = None) -> Result:
    case = loaded(raw, tmp_path)
    with folder() as room:
        bench = Bench(STORES["memory"](), room) if opener is None else Bench(STORES["memory"](), room, opener)
        return run(case, bench)


def carried(kind: str) -> list[Raw]:
    return [
        raw for path in sorted(CASES.glob("*.json")) for raw in json.loads(path.read_text()) if raw["kind"] == kind
    ]


# Changed expectations


def other(value: Any) -> Any:
    """A value of the same kind that is not the same."""
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "?"
    if isinstance(value, list):
        return [other(value[0]), *value[1:]] if value else [1]
    return {**value, "more": 1} if isinstance(value, dict) else 7


def changes(raw: Raw) -> Iterator[Change]:
    """Ways to ask of a case what is not so."""
    for at, expected in enumerate(raw["expect"]):
        if expected.get("unasserted"):
            continue
        for name in ("emit", "windows", "state", "assign", "last"):
            for number, thing in enumerate(expected.get(name) or []):
                yield from changed_thing(at, name, number, thing, raw.get("soft_fields", []))
        if expected.get("ordered") is True and (expected.get("emit") or [0])[0] != (expected.get("emit") or [0])[-1]:
            yield lambda raw, at=at: raw["expect"][at]["emit"].reverse()
        if "dropped_total" in expected:
            yield lambda raw, at=at: raw["expect"][at].update(dropped_total=99)
    for name in ("outputs", "more"):
        for at, _ in enumerate(raw.get(name) or []):
            yield lambda raw, name=name, at=at: raw[name][at].update(output=other(raw[name][at]["output"]))
    for at, _ in enumerate(raw.get("merges") or []):
        yield lambda raw, at=at: raw["merges"][at].__setitem__(2, other(raw["merges"][at][2]))


def changed_thing(at: int, name: str, number: int, thing: Any, soft: list[str]) -> Iterator[Change]:
    if name != "last":
        yield lambda raw: raw["expect"][at][name].pop(number)
        yield lambda raw: raw["expect"][at][name].append(raw["expect"][at][name][number])
    if not isinstance(thing, dict):
        yield lambda raw: raw["expect"][at][name].__setitem__(number, other(thing))
        return
    for field in {"window", "key", "value", "values"} & thing.keys():
        yield lambda raw, field=field: raw["expect"][at][name][number].update({field: other(thing[field])})
    if name == "emit" and thing.get("kind") != "retract":
        yield lambda raw: raw["expect"][at][name][number].update(kind="retract")
    if thing.get("kind") in ("early", "ontime", "late") and "kind" not in soft:
        wrong = {"early": "late", "ontime": "early", "late": "ontime"}[thing["kind"]]
        yield lambda raw: raw["expect"][at][name][number].update(kind=wrong)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["pane", "windows", "assign", "accumulation", "state"])
def test_a_changed_expectation_is_a_failure(kind: str, tmp_path: Path) -> None:
    tried = 0
    for raw in carried(kind)[:: 1 if LONG else 20]:
        if ran(raw, tmp_path).status != "passed":
            continue
        possible = list(changes(raw))
        for change in random.Random(raw["id"]).sample(possible, min(2 if LONG else 1, len(possible))):
            asked = copy.deepcopy(raw)
            change(asked)
            result = ran(asked, tmp_path)
            assert result.status == "failed", raw["id"]
            assert result.failures[0].case == raw["id"]
            tried += 1
    assert tried


def test_an_element_that_is_taken_but_should_not_is_a_failure(tmp_path: Path) -> None:
    raw = next(raw for raw in carried("pane") if raw.get("expect_dropped") and raw["window"]["type"] == "tumbling")
    taken = next(
        at
        for at, step in enumerate(raw["steps"])
        if "event" in step and at not in {dropped["step"] for dropped in raw["expect_dropped"]}
    )
    raw["expect_dropped"].append({"step": taken, "event": raw["steps"][taken]["event"]})
    (failure,) = ran(raw, tmp_path).failures
    assert (failure.first, failure.what) == (taken, "an element that is refused")


@pytest.mark.parametrize(
    ("config", "valid"),
    [
        ({"type": "tumbling", "size": 0}, False),
        ({"type": "tumbling", "size": 10, "offset": 3}, True),
        ({"type": "sliding", "size": 10, "slide": -1}, False),
        ({"type": "sliding", "size": 10}, False),
        ({"type": "session", "gap": 0}, False),
        ({"window": {"type": "session", "gap": 5}}, True),
        ({"window": {"type": "tumbling", "size": 10}, "allowed_lateness": -1}, False),
        ({"type": "tumbling", "size": 10, "grace": -1}, False),
        ({"type": "count", "n": 0}, False),
    ],
)
def test_configurations_are_built_or_refused(config: Raw, valid: bool, tmp_path: Path) -> None:
    raw = {"id": "x", "kind": "invalid", "configs": [{"config": config, "valid": valid}]}
    assert ran(raw, tmp_path).status == "passed"
    raw["configs"][0]["valid"] = not valid
    assert ran(raw, tmp_path).status == "failed"


@pytest.mark.parametrize(
    "fields",
    [
        {"merges": [[[0, 10], [5, 15], [0, 15]], [[0, 10], [12, 15], None]]},
        {"inputs": [[0, 3], [2, 5], [7, 9]], "outputs": [[[0, 5], [7, 9]]]},
        {"more": [{"inputs": [[3, 4], [0, 9]], "output": [0, 9]}]},
    ],
)
def test_windows_merge_where_they_overlap(fields: Raw, tmp_path: Path) -> None:
    assert ran({"id": "x", "kind": "window_merge", **fields}, tmp_path).status == "passed"


# Steps and units, on a harness that answers by a script


class Scripted:
    """A harness that shows the panes it was given, one list a call, and notes what it is asked."""

    def __init__(self, answers: list[list[Raw]]) -> None:
        self.answers, self.calls = answers, []

    def opened(self, job: Any, schema: Any, store: Any, folder: Path) -> Scripted:
        return self

    def _answer(self, call: str, argument: Any = None) -> pa.Table:
        self.calls.append((call, argument))
        rows = self.answers.pop(0) if self.answers else []
        names = ("window_start", "window_end", "key", "result0", "pane", "timing", "kind", "last")
        return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})

    def feed(self, rows: pa.Table) -> pa.Table:
        return self._answer("feed", rows["row"].to_pylist())

    def advance_watermark(self, us: int) -> pa.Table:
        return self._answer("watermark", us)

    def advance_processing_time(self, us: int) -> pa.Table:
        return self._answer("clock", us)

    def finish(self) -> pa.Table:
        return self._answer("finish")

    def restart(self) -> None:
        self.calls.append(("restart", None))


def pane(window: tuple[int, int], value: Any, timing: str = "on_time", kind: str = "emit", key: Any = None) -> Raw:
    start, end = (bound * 1000 for bound in window)
    answered = {"window_start": start, "window_end": end, "result0": value, "key": key}
    return answered | {"pane": 0, "timing": timing, "kind": kind, "last": False}


def test_each_step_is_a_batch_and_its_panes_are_its_own(tmp_path: Path) -> None:
    scripted = Scripted([[], [pane((0, 10), 1)]])
    raw = case([EVENT, MARK], [over(0, 0, emit=[]), over(1, 1, emit=[{"window": [0, 10], "value": 1}])])
    assert ran(raw, tmp_path, scripted.opened).status == "passed"
    assert scripted.calls == [("feed", [0]), ("watermark", 10_000)]
    early = Scripted([[pane((0, 10), 1)], []])
    (first, second) = ran(raw, tmp_path, early.opened).failures
    assert (first.first, second.first) == (0, 1)


def test_where_a_trigger_speaks_of_batches_they_are_gathered(tmp_path: Path) -> None:
    scripted = Scripted([])
    triggers = {"early": {"type": "end_of_batch"}, "ontime": False, "late": None}
    raw = case([EVENT, EVENT, {"end_batch": True}, EVENT], [], triggers=triggers)
    assert ran(raw, tmp_path, scripted.opened).status == "passed"
    assert scripted.calls == [("feed", [0, 1]), ("feed", [2])]


def test_a_periodic_trigger_sees_the_clock_at_the_end_of_a_batch(tmp_path: Path) -> None:
    scripted = Scripted([])
    triggers = {"early": {"type": "processing_time_every", "ms": 5}, "ontime": False, "late": None}
    raw = case([{"processing_time": 5}, EVENT, {"end_batch": True}], [], triggers=triggers)
    assert ran(raw, tmp_path, scripted.opened).status == "passed"
    assert scripted.calls == [("feed", [0]), ("clock", 5_000)]


def test_elements_may_follow_the_end_of_time(tmp_path: Path) -> None:
    end = {"watermark": "inf", "wm_excl": "inf"}
    scripted = Scripted([])
    assert ran(case([EVENT, end, EVENT, {"end_of_stream": True}], []), tmp_path, scripted.opened).status == "passed"
    assert [call for call, _ in scripted.calls] == ["feed", "watermark", "feed", "finish"]
    scripted = Scripted([])
    assert ran(case([EVENT, end], []), tmp_path, scripted.opened).status == "passed"
    assert [call for call, _ in scripted.calls] == ["feed", "finish"]


def test_retractions_come_before_what_replaces_them(tmp_path: Path) -> None:
    old, new = pane((0, 10), 1, "late", "retract"), pane((0, 10), 2, "late")
    emit = [{"value": 2}, {"value": 1, "kind": "retract"}]
    raw = case([EVENT], [over(0, 0, emit=emit, ordered="retract_first")])
    assert ran(raw, tmp_path, Scripted([[old, new]]).opened).status == "passed"
    assert ran(raw, tmp_path, Scripted([[new, old]]).opened).status == "failed"


def test_counts_and_sizes_of_panes(tmp_path: Path) -> None:
    answers = [[pane((0, 10), [1, 2]), pane((0, 10), [3])]]
    raw = case([EVENT], [over(0, 0, pane_count=2, pane_sizes=[1, 2], sum=6)], aggregate="list")
    assert ran(raw, tmp_path, Scripted(copy.deepcopy(answers)).opened).status == "passed"
    for name, wrong in (("pane_count", 1), ("pane_sizes", [2, 2]), ("sum", 5)):
        asked = case([EVENT], [over(0, 0, **{name: wrong})], aggregate="list")
        assert ran(asked, tmp_path, Scripted(copy.deepcopy(answers)).opened).status == "failed"


def test_fields_that_are_soft_and_windows_that_start_early_are_left_out(tmp_path: Path) -> None:
    answers = [[pane((-5, 5), 1), pane((0, 10), 1, "early")]]
    emit = [{"window": [0, 10], "value": 1, "kind": "ontime"}]
    raw = case([EVENT], [over(0, 0, emit=emit)], soft_fields=["kind"], ignore_window_start_below=0)
    assert ran(raw, tmp_path, Scripted(copy.deepcopy(answers)).opened).status == "passed"
    assert ran(raw | {"soft_fields": []}, tmp_path, Scripted(copy.deepcopy(answers)).opened).status == "failed"


@pytest.mark.parametrize("named", [True, False])
def test_refusals_are_counted_by_element_and_window(named: bool, tmp_path: Path) -> None:
    class Refusing(Scripted):
        def ledger(self) -> pa.Table:
            bounds = [(-5_000, 5_000), (0, 10_000)] if named else [(None, None)]
            rows = [{"row": 0, "time": 1_000, "window_start": start, "window_end": end} for start, end in bounds]
            return pa.Table.from_pylist(rows)

    dropped = {"step": 0, "event": {"ts": 1}, "windows": [[0, 10], [-5, 5]]}
    window = {"type": "sliding", "size": 10, "slide": 5}
    raw = case([EVENT], [over(0, 0, dropped_total=2)], window=window, dropped_total=2, expect_dropped=[dropped])
    assert ran(raw, tmp_path, Refusing([]).opened).status == "passed"
    dropped["windows"].pop()
    (failure,) = ran(raw, tmp_path, Refusing([]).opened).failures
    assert failure.what == "windows that refuse an element"
    assert ran(raw | {"dropped_total": 1, "expect_dropped": []}, tmp_path, Refusing([]).opened).status == "failed"


def test_windows_of_an_element_have_it_in_them() -> None:
    for size, slide, offset in ((10, 10, 3), (10, 3, 0), (3, 10, 1), (10, 5, -2)):
        for time in range(-25, 25):
            found = windows_at({"type": "sliding", "size": size, "slide": slide, "offset": offset}, time)
            starts = [start for start in range(-60, 60) if (start - offset) % slide == 0]
            assert found == [[start, start + size] for start in starts if start <= time < start + size]
    assert windows_at({"type": "session"}, 3) == [[None, None]]


def test_what_is_raised_is_a_failure(tmp_path: Path) -> None:
    class Broken(Scripted):
        def feed(self, rows: pa.Table) -> pa.Table:
            raise OSError("no space")

    (failure,) = ran(case([EVENT], []), tmp_path, Broken([]).opened).failures
    assert failure.found[0].startswith("OSError: no space (test_runner.py:")


@pytest.mark.parametrize(
    ("fields", "feature"),
    [
        ({"kind": "join"}, "kind join"),
        ({"kind": "riddle"}, "kind riddle (unknown)"),
        ({"portable": False}, "a peculiarity of its system (portable: false)"),
        ({"aggregate": "mode"}, "aggregate mode"),
        ({"window": {"type": "snapshot"}}, "window snapshot"),
        ({"trigger_ast": {"type": "after_each"}}, "trigger_ast after_each"),
        ({"expect": [{"from_step": 0, "after_step": 0, "watermark_out": [3]}]}, "expectation watermark_out"),
        ({"expect": [{"from_step": 0, "after_step": 0, "emit": [{"mood": 1}]}]}, "emission field mood"),
    ],
)
def test_what_is_not_there_is_skipped_by_its_name(fields: Raw, feature: str, tmp_path: Path) -> None:
    result = ran(case([EVENT], []) | fields, tmp_path)
    assert (result.status, result.feature) == ("skipped", feature)


def test_rows_that_repeat_are_asked_of_the_operator_for_them(tmp_path: Path) -> None:
    jobs: list[OperatorStream] = []

    class Seen(Scripted):
        def opened(self, job: Any, schema: Any, store: Any, folder: Path) -> Scripted:
            jobs.append(job)
            return self

        def feed(self, rows: pa.Table) -> pa.Table:
            new = [key not in self.calls for key in rows["key"].to_pylist()]
            self.calls += rows["key"].to_pylist()
            return rows.filter(pa.array(new))

    steps = [{"event": {"ts": 1, "key": key, "value": value}} for key, value in (("a", 1), ("a", 2), ("b", 3))]
    raw = case(steps, [over(0, 2, emit=[{"key": "a", "value": 1}, {"key": "b", "value": 3}])], kind="dedup")
    raw["dedup"] = {"on": "key", "within_watermark": True, "delay": 7}
    assert ran(raw, tmp_path, Seen([]).opened).status == "passed"
    wanted = ts.stream(event_time="time").deduplicate("key", within=Units().span(7), name="case")
    assert [job.graph.description for job in jobs] == [wanted.graph.description]
    raw["expect"][0]["emit"].pop()
    assert ran(raw, tmp_path, Seen([]).opened).status == "failed"
