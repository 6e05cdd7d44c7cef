"""The conformance command and what lies under it: units of time, values, arguments and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.conformance.__main__ import app
from tests.conformance.case import CaseError, Unsupported, load
from tests.conformance.compare import Failure
from tests.conformance.report import WIDTH, lines_of
from tests.conformance.samples import EVENT, MARK, case, loaded, over
from tests.conformance.units import LIMIT_US, units_of
from tests.conformance.values import codec_for, order, same


def test_units_keep_windows_in_place(tmp_path: Path) -> None:
    for time, scale in ((5, 1000), (-(2**54), 1), (2**63 - 8, 1), (-(2**63), 1)):
        raw = case([{"event": {"ts": time}}], [], window={"type": "sliding", "size": 12, "slide": 4})
        units = units_of(loaded(raw, tmp_path))
        assert units.scale == scale
        assert abs(units.us(time)) <= LIMIT_US
        assert units.shift % 4 == 0
        assert units.instant(units.us(time), "") == time
    far = [{"event": {"ts": -(2**63)}}, {"event": {"ts": 2**63 - 1}}]
    with pytest.raises(Unsupported):
        units_of(loaded(case(far, []), tmp_path))


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, None, -3], pa.int64()),
        ([1, 2.5], pa.float64()),
        (["a"], pa.string()),
        ([True], pa.bool_()),
        ([[1, "a"], [2, "b"]], pa.struct([("f0", pa.int64()), ("f1", pa.string())])),
        ([{"x": 1, "y": None}, {"x": 2, "y": 3}], pa.struct([("x", pa.int64()), ("y", pa.int64())])),
        ([1, "2", {}], pa.string()),
        ([2**70, 1], pa.decimal128(38, 0)),
        ([2**200], pa.float64()),
        ([[1], [1, 2]], pa.string()),
    ],
)
def test_values_come_back_as_they_were(values: list[Any], type_: pa.DataType) -> None:
    codec = codec_for(values)
    found = [None if value is None else codec.decode(value) for value in codec.column(values).to_pylist()]
    assert (codec.type, found) == (type_, values)


def test_sort_keys_compare_as_values_do() -> None:
    values = [None, -3, -2.5, 0, 1e9, "", "a", "ab", "b", [1, "a"], [1, "ab"], [2, ""]]
    keys = [order(value) for value in values]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


def test_when_values_are_the_same() -> None:
    assert same([1, 2, 2], [2, 1, 2], "values")
    assert not same([1, 2, 2], [2, 1, 1], "values")
    assert not same([1, 2], [2, 1], "ordered")
    assert same(0.3, 0.1 + 0.2)
    assert same(2, 2.0)
    assert not same(1, True)
    assert not same("1", 1)
    assert same(0, None, "total")
    assert not same(0, None)


def test_the_command_says_how_it_went(tmp_path: Path) -> None:
    good = case([EVENT, MARK], [over(1, 1, emit=[{"window": [0, 10], "value": 1}])])
    bad = case([EVENT, MARK], [over(1, 1, emit=[{"window": [0, 10], "value": 2}])], id="y")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "cases.json").write_text(json.dumps([good, bad, {"id": "z", "kind": "join"}]))
    found = CliRunner().invoke(app, [str(tmp_path)])
    lines = found.stdout.splitlines()
    assert found.exit_code == 1
    assert lines[0] == "FAILED y steps 1..1: emissions"
    assert lines[1:3] == ["  expected  [0, 10) value=2", "  found     [0, 10) value=1 ontime"]
    assert lines[-3:] == ["skipped:", "     1 kind join", "1 passed, 1 failed, 1 skipped"]
    assert all(len(line) <= WIDTH for line in lines)
    only = CliRunner().invoke(app, [str(tmp_path), "--only", "x", "--store", "parquet"])
    assert (only.exit_code, only.stdout) == (0, "1 passed, 0 failed, 0 skipped\n")


@pytest.mark.parametrize(
    "arguments",
    [["--store", "paper"], ["--only", "nobody"], ["/nowhere.json"], ["--loud"]],
    ids=lambda given: given[0],
)
def test_bad_arguments_are_status_2(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text("[]")
    assert CliRunner().invoke(app, [str(tmp_path), *arguments]).exit_code == 2


@pytest.mark.parametrize(
    ("text", "answered"),
    [
        ("{", "not JSON"),
        ("3", "an array of cases is expected, found int"),
        ("[3]", "case 0: Expected `object`, got `int`"),
        ('[{"kind": "pane"}]', "missing required field `id`"),
        ('[{"id": "a", "kind": "pane", "steps": [{"jump": 1}]}]', 'a: step 0 does nothing known: {"jump": 1}'),
        ('[{"id": "a", "kind": "pane", "steps": [{"event": {"ts": "x"}}]}]', "a: step 0: Expected `int | null`"),
        ('[{"id": "a", "kind": "pane", "expect": [{"from_step": 0, "after_step": 0}]}]', "covers steps 0..0 of 0"),
        (
            '[{"id": "a", "kind": "pane", "window": {"type": "sliding", "size": 3}}]',
            "a: window slide: Expected `int`",
        ),
        ('[{"id": "a", "kind": "pane", "accumulation_mode": "guessing"}]', "Invalid enum value 'guessing'"),
    ],
)
def test_a_file_that_is_amiss_is_reported_to_be(text: str, answered: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    found = CliRunner().invoke(app, [str(path)])
    assert found.exit_code == 2
    assert str(path) in found.stderr
    assert answered in found.stderr


def test_a_folder_without_cases_is_amiss(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"no \*\.json below"):
        list(load([tmp_path]))


def test_long_failures_are_wrapped() -> None:
    long = Failure("a-case", 0, 3, "emissions", ("value=" + "word " * 40,), ())
    lines = list(lines_of(long))
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[-1] == "  found     nothing"
