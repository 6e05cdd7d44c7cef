"""The runner of watermark cases: a changed expectation fails, and one batch comes to what single steps do."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.bench import Bench
from tests.conformance.case import read
from tests.conformance.run import Result, run
from tests.helpers.checkout import CASES
from tests.helpers.process import LONG, few
from tidestate.operators.progress.origins import advance_origins, buffers, origins

Raw = dict[str, Any]
CARRIED: list[Raw] = [
    raw for path in sorted(CASES.glob("*.json")) for raw in json.loads(path.read_text()) if raw["kind"] == "watermark"
]
NO_BENCH: Any = None
MANY = 1000
"""Steps of a case of the long form: it has 1437, what it carries is in shorter ones."""


def ran(raw: Raw, tmp_path: Path) -> Result:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(raw))
    (case,) = read(path)
    bench: Bench = NO_BENCH
    return run(case, bench)


@pytest.mark.slow
@pytest.mark.parametrize(
    "raw",
    few(CARRIED, *(place for place, raw in enumerate(CARRIED) if len(raw["steps"]) < MANY)),
    ids=lambda raw: raw["id"],
)
def test_a_carried_case_passes_and_a_changed_one_fails(raw: Raw, tmp_path: Path) -> None:
    assert ran(raw, tmp_path).status == "passed"
    for name in ("current", "watermark_out", "bookkeeping"):
        steps = [at for at, expected in enumerate(raw["expect"]) if name in expected]
        for at in steps[-2 if LONG else -1 :]:
            changed = copy.deepcopy(raw)
            value = raw["expect"][at][name]
            changed["expect"][at][name] = [*value, 7] if isinstance(value, list) else 12345
            result = ran(changed, tmp_path)
            assert result.status == "failed" or name == "bookkeeping"


def test_what_is_kept_is_compared_where_it_must_be_nothing(tmp_path: Path) -> None:
    raw = copy.deepcopy(next(raw for raw in CARRIED if "bookkeeping" in raw["expect"][-1]))
    raw["steps"].append({"seq": {"origin": 0, "seq": 500, "offset": 0, "chunk": 1, "last": True, "value": 500}})
    raw["expect"][-1]["after_step"] += 1
    assert ran(raw, tmp_path).status == "failed"


@pytest.mark.parametrize(
    "raw",
    [raw for raw in CARRIED if raw["expect"][-1].get("current") and "seq" in raw["steps"][0]],
    ids=lambda raw: raw["id"],
)
def test_a_case_of_buffers_in_one_batch(raw: Raw) -> None:
    rows = [step["seq"] for step in raw["steps"] if "seq" in step]
    columns = [[row[name] for row in rows] for name in ("origin", "seq", "chunk", "last", "value", "offset")]
    columns[2] = [chunk - 1 for chunk in columns[2]]
    known = advance_origins(origins(raw["generator"]["origins"]), buffers(*columns)).origins
    assert known.watermark_us == raw["expect"][-1]["current"]


STATUS: Raw = {
    "id": "statuses",
    "kind": "watermark",
    "watermark_convention": "inclusive",
    "inputs": 1,
    "generator": {"type": "min_of_inputs"},
    "steps": [
        {"watermark": 25, "input": 0, "wm_excl": 26},
        {"input": 0, "status": "idle"},
        {"watermark": 50, "input": 0, "wm_excl": 51},
        {"input": 0, "status": "active"},
        {"watermark": 50, "input": 0, "wm_excl": 51},
        {"watermark": "inf", "wm_excl": "inf"},
    ],
    "expect": [
        {"from_step": 0, "after_step": 0, "watermark_out": [25], "current": 25, "status_out": []},
        {"from_step": 1, "after_step": 2, "watermark_out": [], "status_out": ["idle"]},
        {"from_step": 3, "after_step": 4, "watermark_out": [50], "status_out": ["active"]},
        {"from_step": 5, "after_step": 5, "current": "inf"},
    ],
}


def test_statuses(tmp_path: Path) -> None:
    assert ran(STATUS, tmp_path).status == "passed"
    for at, status in ((0, ["idle"]), (1, []), (2, ["idle"])):
        changed = copy.deepcopy(STATUS)
        changed["expect"][at]["status_out"] = status
        assert ran(changed, tmp_path).status == "failed"


@pytest.mark.parametrize(
    ("change", "feature"),
    [
        ({"generator": {"type": "moon"}, "inputs": 1}, "watermark generator moon"),
        ({"portable": False}, "a peculiarity of its system (portable: false)"),
        ({"expect": [{"from_step": 0, "after_step": 0, "emit": []}]}, "expectation emit"),
        ({"steps": [{"put": {}}], "expect": []}, "step put in a watermark case"),
    ],
)
def test_what_is_not_there_is_named(change: Raw, feature: str, tmp_path: Path) -> None:
    result = ran(STATUS | change, tmp_path)
    assert (result.status, result.feature) == ("skipped", feature)


def test_none_yet_is_compared(tmp_path: Path) -> None:
    raw: Raw = STATUS | {"expect": [{"from_step": 0, "after_step": 0, "current": None}]}
    assert ran(raw, tmp_path).status == "failed"


def test_times_beyond_the_year_9999_are_moved(tmp_path: Path) -> None:
    far = 10**18
    raw: Raw = STATUS | {
        "steps": [{"watermark": far, "input": 0, "wm_excl": far + 1}],
        "expect": [{"from_step": 0, "after_step": 0, "current": far}],
    }
    assert ran(raw, tmp_path).status == "passed"
